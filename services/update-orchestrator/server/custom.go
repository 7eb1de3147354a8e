package server

import (
	"context"
	"errors"
	"strings"

	apiextensionsv1 "github.com/windlass-dev/windlass/gen/windlass/apiextensions/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/windlass-dev/windlass/services/update-orchestrator/custom"
)

// Custom serves CustomObjectService.
type Custom struct {
	apiextensionsv1.UnimplementedCustomObjectServiceServer
	kinds   *custom.Kinds
	methods map[resource.Method]protoreflect.MethodDescriptor
}

// NewCustom returns the service of the objects of kinds.
func NewCustom(kinds *custom.Kinds) (*Custom, error) {
	methods, err := resource.Methods((&apiextensionsv1.CustomObject{}).ProtoReflect().Descriptor())
	return &Custom{kinds: kinds, methods: methods}, err
}

// addressed is a request, which names a kind in a version.
type addressed interface {
	proto.Message
	GetGroup() string
	GetVersion() string
	GetResource() string
	GetNamespace() string
}

// find returns the kind of a request, and warns of a deprecated version.
func (s *Custom) find(ctx context.Context, req addressed) (custom.View, error) {
	v, err := s.kinds.Find(ctx, req.GetGroup(), req.GetVersion(), req.GetResource())
	switch {
	case err != nil:
		return v, err
	case req.GetNamespace() != "" && !v.Namespaced(): // a right in a namespace is none to what belongs to no namespace
		return v, rpcerr.Invalid(object.Faultf("namespace", "must be empty: %s have no namespace", req.GetResource()))
	case v.Deprecation() != "":
		rpcerr.Warn(ctx, v.Deprecation())
	}
	return v, nil
}

// call answers a request by a standard method.
func call[T proto.Message](ctx context.Context, s *Custom, verb resource.Method, req addressed) (T, error) {
	var none T
	v, err := s.find(ctx, req)
	if err != nil {
		return none, err
	}
	if statusOf(verb, req) && !v.HasStatus() {
		return none, rpcerr.NotFound("resource type", req.GetResource()+"/status")
	}
	out, err := v.Standard().Call(ctx, verb, s.methods[verb], req)
	if err != nil {
		return none, err
	}
	if list, ok := out.(*apiextensionsv1.CustomObjectList); ok {
		list.ApiVersion, list.Kind = v.APIVersion(), v.ListKind()
	}
	answer, ok := out.(T)
	if !ok {
		return none, errors.New("the answer of a standard method is of another type")
	}
	return answer, nil
}

// statusOf reports whether a request changes the status alone.
func statusOf(verb resource.Method, req addressed) bool {
	patch, ok := req.(*apiextensionsv1.PatchCustomObjectRequest)
	return verb == resource.UpdateStatus || ok && patch.GetSubresource() == "status"
}

// carrying is a request with an object, whose apiVersion is that of the request if it has none.
type carrying interface {
	addressed
	GetObject() *apiextensionsv1.CustomObject
}

// write answers a request with an object. The object must be in the version of the request.
func (s *Custom) write(ctx context.Context, verb resource.Method, req carrying) (*apiextensionsv1.CustomObject, error) {
	want := req.GetGroup() + "/" + req.GetVersion()
	switch have := req.GetObject().GetApiVersion(); have {
	case want:
	case "":
		req.GetObject().ApiVersion = want
	default:
		return nil, rpcerr.Invalid(object.Faultf("apiVersion", "is %q, but the request is for %q", have, want))
	}
	return call[*apiextensionsv1.CustomObject](ctx, s, verb, req)
}

// DiscoverCustomObjects returns the kinds that are served.
func (s *Custom) DiscoverCustomObjects(context.Context, *apiextensionsv1.DiscoverCustomObjectsRequest) (
	*apiextensionsv1.DiscoverCustomObjectsResponse, error,
) {
	return &apiextensionsv1.DiscoverCustomObjectsResponse{Kinds: s.kinds.Types()}, nil
}

// GetCustomObject returns an object.
func (s *Custom) GetCustomObject(ctx context.Context, req *apiextensionsv1.GetCustomObjectRequest) (
	*apiextensionsv1.CustomObject, error,
) {
	return call[*apiextensionsv1.CustomObject](ctx, s, resource.Get, req)
}

// ListCustomObjects returns a page of objects.
func (s *Custom) ListCustomObjects(ctx context.Context, req *apiextensionsv1.ListCustomObjectsRequest) (
	*apiextensionsv1.CustomObjectList, error,
) {
	return call[*apiextensionsv1.CustomObjectList](ctx, s, resource.List, req)
}

// CreateCustomObject stores a new object.
func (s *Custom) CreateCustomObject(ctx context.Context, req *apiextensionsv1.CreateCustomObjectRequest) (
	*apiextensionsv1.CustomObject, error,
) {
	return s.write(ctx, resource.Create, req)
}

// UpdateCustomObject replaces an object.
func (s *Custom) UpdateCustomObject(ctx context.Context, req *apiextensionsv1.UpdateCustomObjectRequest) (
	*apiextensionsv1.CustomObject, error,
) {
	return s.write(ctx, resource.Update, req)
}

// PatchCustomObject changes parts of an object.
func (s *Custom) PatchCustomObject(ctx context.Context, req *apiextensionsv1.PatchCustomObjectRequest) (
	*apiextensionsv1.CustomObject, error,
) {
	if media := req.GetPatch().GetContentType(); strings.HasPrefix(media, manifest.StrategicPatch) {
		return nil, rpcerr.Invalid(object.Faultf("patch", "%s is not supported for custom resources: must be %s or %s",
			manifest.StrategicPatch, manifest.JSONPatch, manifest.MergePatch))
	}
	return call[*apiextensionsv1.CustomObject](ctx, s, resource.Patch, req)
}

// ApplyCustomObject creates an object, or merges fields into it.
func (s *Custom) ApplyCustomObject(ctx context.Context, req *apiextensionsv1.ApplyCustomObjectRequest) (
	*apiextensionsv1.CustomObject, error,
) {
	return s.write(ctx, resource.Apply, req)
}

// UpdateCustomObjectStatus replaces the status of an object.
func (s *Custom) UpdateCustomObjectStatus(ctx context.Context, req *apiextensionsv1.UpdateCustomObjectStatusRequest) (
	*apiextensionsv1.CustomObject, error,
) {
	return s.write(ctx, resource.UpdateStatus, req)
}

// DeleteCustomObject deletes an object.
func (s *Custom) DeleteCustomObject(ctx context.Context, req *apiextensionsv1.DeleteCustomObjectRequest) (
	*apiextensionsv1.CustomObject, error,
) {
	return call[*apiextensionsv1.CustomObject](ctx, s, resource.Delete, req)
}

// WatchCustomObjects sends every change of objects, until the kind is no longer served.
func (s *Custom) WatchCustomObjects(req *apiextensionsv1.WatchCustomObjectsRequest,
	stream grpc.ServerStreamingServer[apiextensionsv1.WatchCustomObjectsResponse],
) error {
	return s.watch(stream.Context(), req, func(m proto.Message) error { return stream.SendMsg(m) })
}

func (s *Custom) watch(ctx context.Context, req *apiextensionsv1.WatchCustomObjectsRequest,
	send func(proto.Message) error,
) error {
	v, err := s.find(ctx, req)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(v.Ended(), cancel)()
	err = v.Standard().Watch(ctx, s.methods[resource.Watch], req, send)
	if v.Ended().Err() != nil {
		return rpcerr.NotFound("resource type", req.GetResource()+"."+req.GetVersion()+"."+req.GetGroup())
	}
	return err
}
