package client

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/resource"
)

const planVerb = "plan"

// Verbs returns the verbs that Allowed knows.
func Verbs() []string {
	return []string{"get", "list", "watch", "create", "update", "patch", "delete", planVerb}
}

// Verbs returns the verbs of Verbs that the kind has methods for.
func (k Kind) Verbs() []string {
	return slices.DeleteFunc(Verbs(), func(v string) bool {
		_, err := k.methodOf(v)
		return err != nil
	})
}

// methodOf returns the method that needs a verb's right.
func (k Kind) methodOf(verb string) (protoreflect.MethodDescriptor, error) {
	standard := map[string]resource.Method{
		"get": resource.Get, "list": resource.List, "watch": resource.Watch, "create": resource.Create,
		"update": resource.Update, "patch": resource.Patch, "delete": resource.Delete,
	}
	if d, ok := k.Methods[standard[verb]]; ok {
		return d, nil
	}
	if verb == planVerb {
		svc, err := resource.Service(k.Message)
		if err != nil {
			return nil, err
		}
		if d := svc.Methods().ByName(protoreflect.Name("Plan" + k.GetKind())); d != nil {
			return d, nil
		}
	}
	return nil, fmt.Errorf("%s: cannot be asked about verb %q; those that can are %s", k.GetPlural(), verb, strings.Join(Verbs(), ", "))
}

// nobody is the name of an object that is asked about where none is named: rights for single objects do not reach it.
const nobody = "windlass-can-i"

// Allowed reports whether the caller has the right to a verb, and why not. It asks the service itself, by a call that changes nothing: the right is
// checked before everything else, so any answer but a refusal means yes.
func (c *Client) Allowed(ctx context.Context, k Kind, verb, namespace, name string) (bool, string, error) {
	d, err := k.methodOf(verb)
	if err != nil {
		return false, "", err
	}
	if name == "" {
		name = nobody
	}
	req := resource.NewMessage(d.Input())
	set := func(field protoreflect.Name, v any) {
		if f := d.Input().Fields().ByName(field); f != nil {
			if m, ok := v.(proto.Message); ok {
				req.ProtoReflect().Set(f, protoreflect.ValueOfMessage(m.ProtoReflect()))
				return
			}
			req.ProtoReflect().Set(f, protoreflect.ValueOf(v))
		}
	}
	set("namespace", namespace)
	set("name", name)
	set("limit", int32(1))
	set("dry_run", "All")
	set("patch", &httpbody.HttpBody{ContentType: manifest.MergePatch, Data: []byte("{}")})
	err = c.ask(ctx, d, req)
	switch status.Code(err) {
	case codes.PermissionDenied:
		return false, status.Convert(err).Message(), nil
	case codes.Unauthenticated, codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Internal, codes.Unknown:
		if err != nil {
			return false, "", err
		}
	}
	return true, "", nil
}

// ask makes a call and leaves its answer; of a stream it takes the first message.
func (c *Client) ask(ctx context.Context, d protoreflect.MethodDescriptor, req proto.Message) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	full := fmt.Sprintf("/%s/%s", d.Parent().FullName(), d.Name())
	resp := resource.NewMessage(d.Output())
	if !d.IsStreamingServer() {
		return c.conn.Invoke(ctx, full, req, resp)
	}
	stream, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, full)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(req); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	return stream.RecvMsg(resp)
}
