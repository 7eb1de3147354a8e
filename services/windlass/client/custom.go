package client

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	apiextensionsv1 "github.com/windlass-dev/windlass/gen/windlass/apiextensions/v1"
	"github.com/windlass-dev/windlass/kit/resource"
)

var customObject = (&apiextensionsv1.CustomObject{}).ProtoReflect().Descriptor()

// Custom reports whether the kind is defined by a CustomResourceDefinition.
func (k Kind) Custom() bool { return k.Message == customObject }

// address returns the fields of a request that name the kind; none for a kind that has a service of its own.
func (k Kind) address() fields {
	if !k.Custom() {
		return nil
	}
	return fields{"group": k.GetGroup(), "version": k.GetVersion(), "resource": k.GetPlural()}
}

// CustomKinds returns the kinds that the CustomResourceDefinitions of the cluster define, in each version.
func (c *Client) CustomKinds(ctx context.Context) ([]Kind, error) {
	found, err := apiextensionsv1.NewCustomObjectServiceClient(c.conn).DiscoverCustomObjects(ctx,
		&apiextensionsv1.DiscoverCustomObjectsRequest{})
	if err != nil {
		return nil, fmt.Errorf("kinds of CustomResourceDefinitions: %w", err)
	}
	methods, err := resource.Methods(customObject)
	if err != nil {
		return nil, err
	}
	var out []Kind
	for _, t := range found.GetKinds() {
		out = append(out, Kind{ResourceType: t, Message: customObject, Methods: methods})
	}
	return out, nil
}

// FindAmong is FindKind for some kinds; false if none of them is meant.
func FindAmong(kinds []Kind, word string) (Kind, bool) {
	name, rest, _ := strings.Cut(strings.ToLower(word), ".")
	for _, k := range kinds {
		if name != k.GetPlural() && name != k.GetSingular() && !slices.Contains(k.GetShortNames(), name) {
			continue
		}
		if rest == "" || rest == k.GetGroup() || rest == k.GetVersion()+"."+k.GetGroup() {
			return k, true
		}
	}
	return Kind{}, false
}

// set sets the fields of a request that it has.
func (set fields) set(req protoreflect.Message) {
	for name, v := range set {
		if f := req.Descriptor().Fields().ByName(name); f != nil {
			req.Set(f, protoreflect.ValueOf(v))
		}
	}
}
