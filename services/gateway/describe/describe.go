// Package describe lets clients ask what can be called: gRPC's reflection over the services that the gateway passes on
// and its own, and nothing else of what is linked into the program.
package describe

import (
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Register serves reflection of services on server, in both versions that clients ask for.
func Register(server grpc.ServiceRegistrar, services []protoreflect.ServiceDescriptor) error {
	files := &protoregistry.Files{}
	names := listed{}
	for _, s := range services {
		names[string(s.FullName())] = grpc.ServiceInfo{}
		if err := add(files, s.ParentFile()); err != nil {
			return err
		}
	}
	for _, own := range []protoreflect.FileDescriptor{
		grpc_health_v1.File_grpc_health_v1_health_proto,
		reflectionv1.File_grpc_reflection_v1_reflection_proto,
		reflectionv1alpha.File_grpc_reflection_v1alpha_reflection_proto,
	} {
		if err := add(files, own); err != nil {
			return err
		}
		for i := range own.Services().Len() {
			names[string(own.Services().Get(i).FullName())] = grpc.ServiceInfo{}
		}
	}
	options := reflection.ServerOptions{Services: names, DescriptorResolver: files, ExtensionResolver: extensions{files}}
	reflectionv1.RegisterServerReflectionServer(server, reflection.NewServerV1(options))
	reflectionv1alpha.RegisterServerReflectionServer(server, reflection.NewServer(options))
	return nil
}

type listed map[string]grpc.ServiceInfo

func (l listed) GetServiceInfo() map[string]grpc.ServiceInfo { return l }

// add registers a file with all that it imports.
func add(files *protoregistry.Files, f protoreflect.FileDescriptor) error {
	if _, err := files.FindFileByPath(f.Path()); err == nil {
		return nil
	}
	for i := range f.Imports().Len() {
		if err := add(files, f.Imports().Get(i).FileDescriptor); err != nil {
			return err
		}
	}
	if err := files.RegisterFile(f); err != nil {
		return fmt.Errorf("reflection: %w", err)
	}
	return nil
}

// extensions are the linked extensions that files declare.
type extensions struct{ files *protoregistry.Files }

func (e extensions) known(t protoreflect.ExtensionType) bool {
	_, err := e.files.FindFileByPath(t.TypeDescriptor().ParentFile().Path())
	return err == nil
}

func (e extensions) FindExtensionByName(name protoreflect.FullName) (protoreflect.ExtensionType, error) {
	t, err := protoregistry.GlobalTypes.FindExtensionByName(name)
	if err == nil && !e.known(t) {
		return nil, protoregistry.NotFound
	}
	return t, err
}

func (e extensions) FindExtensionByNumber(message protoreflect.FullName, n protoreflect.FieldNumber) (
	protoreflect.ExtensionType, error,
) {
	t, err := protoregistry.GlobalTypes.FindExtensionByNumber(message, n)
	if err == nil && !e.known(t) {
		return nil, protoregistry.NotFound
	}
	return t, err
}

func (e extensions) RangeExtensionsByMessage(message protoreflect.FullName, f func(protoreflect.ExtensionType) bool) {
	protoregistry.GlobalTypes.RangeExtensionsByMessage(message, func(t protoreflect.ExtensionType) bool {
		return !e.known(t) || f(t)
	})
}
