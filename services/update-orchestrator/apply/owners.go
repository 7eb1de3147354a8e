package apply

import (
	"context"
	"errors"
	"fmt"
	"io"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	// The kinds that a release may bring are found among what the program is linked with.
	_ "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	_ "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	_ "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	_ "github.com/windlass-dev/windlass/gen/windlass/program/v1"
	_ "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/topology"
)

// Owners are the services that own kinds, by the package of their messages.
type Owners map[protoreflect.FullName]grpc.ClientConnInterface

// Packages returns the packages of kinds that releases bring, each with the service that owns them.
func Packages() map[protoreflect.FullName]string {
	owners := map[protoreflect.FullName]string{}
	for _, s := range topology.Services() {
		for _, pkg := range s.Released {
			owners[pkg] = s.Name
		}
	}
	return owners
}

// kind is a kind that another service owns.
type kind struct {
	message protoreflect.MessageDescriptor
	typ     *metav1.ResourceType
	methods map[resource.Method]protoreflect.MethodDescriptor
	conn    grpc.ClientConnInterface
}

// kinds returns every kind of the owners, by apiVersion and kind.
func (o Owners) kinds() (map[[2]string]*kind, error) {
	found := map[[2]string]*kind{}
	var failed error
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		conn, owned := o[f.Package()]
		for i := 0; owned && i < f.Messages().Len(); i++ {
			m := f.Messages().Get(i)
			typ := object.TypeOf(m)
			if typ == nil {
				continue
			}
			methods, err := resource.Methods(m)
			failed = errors.Join(failed, err)
			found[[2]string{object.APIVersion(typ), typ.GetKind()}] = &kind{message: m, typ: typ, methods: methods, conn: conn}
		}
		return true
	})
	return found, failed
}

// decode reads a document of the kind, strictly. The status is left out: it is its owner's.
func (k *kind) decode(doc []byte) (object.Object, error) {
	m := resource.NewMessage(k.message)
	if err := manifest.Decode(doc, m); err != nil {
		return nil, err
	}
	o, ok := m.(object.Object)
	if !ok {
		return nil, fmt.Errorf("%s is no kind of object", k.message.FullName())
	}
	if f := k.message.Fields().ByName("status"); f != nil {
		o.ProtoReflect().Clear(f)
	}
	return o, nil
}

// call invokes a standard method for an object. The object itself goes along where the request has a place for it.
func (k *kind) call(ctx context.Context, verb resource.Method, o object.Object) (proto.Message, error) {
	m, ok := k.methods[verb]
	if !ok {
		return nil, status.Errorf(codes.Unimplemented, "%s has no method %s", k.typ.GetKind(), verb)
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	out := resource.NewMessage(m.Output())
	return out, k.conn.Invoke(ctx, method(m), k.request(m, o), out)
}

func method(m protoreflect.MethodDescriptor) string {
	return fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
}

func (k *kind) request(m protoreflect.MethodDescriptor, o object.Object) proto.Message {
	req := resource.NewMessage(m.Input())
	fields := m.Input().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.Message() != nil && f.Message().FullName() == k.message.FullName():
			req.ProtoReflect().Set(f, protoreflect.ValueOfMessage(o.ProtoReflect()))
		case f.Name() == "preconditions" && o.GetMetadata().GetUid() != "":
			pre := (&metav1.Preconditions{Uid: o.GetMetadata().GetUid()}).ProtoReflect()
			req.ProtoReflect().Set(f, protoreflect.ValueOfMessage(pre))
		case k.address(f.Name()) != "":
			req.ProtoReflect().Set(f, protoreflect.ValueOfString(k.address(f.Name())))
		case f.Name() == "name":
			req.ProtoReflect().Set(f, protoreflect.ValueOfString(k.key(o).Name))
		case f.Name() == "namespace":
			req.ProtoReflect().Set(f, protoreflect.ValueOfString(k.key(o).Namespace))
		}
	}
	return req
}

// key returns where the owner keeps an object.
func (k *kind) key(o object.Object) object.Key {
	key := object.KeyOf(o)
	if key.Name == "" {
		key.Name = object.DefaultName(k.typ)
	}
	if key.Namespace == "" && k.typ.GetNamespaced() {
		key.Namespace = k.typ.GetDefaultNamespace()
	}
	return key
}

// follow calls see with every state of one object until that returns true or an error, ctx ends, or the stream breaks.
// It is ErrGone if there is no such object any more.
func (k *kind) follow(ctx context.Context, o object.Object, see func(object.Object) (bool, error)) error {
	there := false
	err := k.watch(ctx, k.key(o), func(events []resource.Event[object.Object], _ int64, listed bool) error {
		for _, e := range events {
			if there = e.Type != resource.Deleted; !there {
				return ErrGone
			}
			if done, err := see(e.Object); err != nil {
				return err
			} else if done {
				return errDone
			}
		}
		if listed && !there {
			return ErrGone
		}
		return nil
	})
	if errors.Is(err, errDone) {
		return nil
	}
	return err
}

// errDone ends a watch that has shown what was waited for.
var errDone = errors.New("done")

// watch calls see with every frame of a watch of a key: its events, the revision up to which they are complete (0 if
// more follow), and whether everything that was there was shown. Without a name it is all objects of the namespace. It
// returns what see does, or why the stream ended.
func (k *kind) watch(ctx context.Context, key object.Key, see func([]resource.Event[object.Object], int64, bool) error,
) error {
	m, ok := k.methods[resource.Watch]
	if !ok {
		return status.Errorf(codes.Unimplemented, "%s has no method %s", k.typ.GetKind(), resource.Watch)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := k.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method(m))
	if err != nil {
		return err
	}
	req := resource.NewMessage(m.Input())
	for name, value := range map[protoreflect.Name]string{
		"namespace": key.Namespace, "field_selector": selector(key),
		"group": k.address("group"), "version": k.address("version"), "resource": k.address("resource"),
	} {
		if f := m.Input().Fields().ByName(name); f != nil && value != "" {
			req.ProtoReflect().Set(f, protoreflect.ValueOfString(value))
		}
	}
	if err := errors.Join(stream.SendMsg(req), stream.CloseSend()); err != nil {
		return err
	}
	for frame := resource.NewFrame(m.Output()); ; {
		in := resource.NewMessage(m.Output())
		if err := stream.RecvMsg(in); errors.Is(err, io.EOF) {
			return status.Error(codes.Unavailable, "the watch ended")
		} else if err != nil {
			return err
		}
		events, at, listed, err := resource.ReadFrame[object.Object](frame, in)
		if err != nil {
			return err
		}
		if err := see(events, at, listed); err != nil {
			return err
		}
	}
}

// selector is the field selector of a key's name.
func selector(key object.Key) string {
	if key.Name == "" {
		return ""
	}
	return "metadata.name=" + key.Name
}
