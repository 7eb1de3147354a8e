package manifest_test

import (
	"context"
	"testing"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// fixture compiles testdata/everything.proto.
func fixture(t testing.TB) protoreflect.MessageDescriptors {
	t.Helper()
	compiler := protocompile.Compiler{
		Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{"testdata"}}),
	}
	files, err := compiler.Compile(context.Background(), "everything.proto")
	if err != nil {
		t.Fatal(err)
	}
	return files[0].Messages()
}

// newMessages returns a maker of empty messages of a type of the fixture.
func newMessages(t testing.TB, name protoreflect.Name) func() proto.Message {
	t.Helper()
	d := fixture(t).ByName(name)
	return func() proto.Message { return dynamicpb.NewMessage(d) }
}
