package rpcerr_test

import (
	"testing"

	"buf.build/go/protovalidate"
	"github.com/bufbuild/protocompile"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/windlass-dev/windlass/kit/rpcerr"
)

const shapes = `
syntax = "proto3";
package shapes;
import "buf/validate/validate.proto";
message Root {
  Spec spec = 1;
  string provider_id = 2 [json_name = "providerID", (buf.validate.field).string.max_len = 3];
}
message Spec {
  repeated Hook pre_drain = 1;
  map<string, Hook> hooks_by_name = 2;
  repeated string host_ips = 3 [json_name = "hostIPs", (buf.validate.field).repeated.items.string.max_len = 3];
  Hook the_hook = 4 [json_name = "theHOOK"];
}
message Hook {
  option (buf.validate.message).cel = {id: "pair", message: "first and second go together", expression: "has(this.owner_name) || this.kind_of != 'x'"};
  optional string owner_name = 1 [(buf.validate.field).string.min_len = 3];
  string kind_of = 2;
}`

func rootDescriptor(t *testing.T) protoreflect.MessageDescriptor {
	t.Helper()
	linked := protocompile.ResolverFunc(func(path string) (protocompile.SearchResult, error) {
		file, err := protoregistry.GlobalFiles.FindFileByPath(path)
		if err != nil {
			return protocompile.SearchResult{}, err
		}
		return protocompile.SearchResult{Proto: protodesc.ToFileDescriptorProto(file)}, nil
	})
	source := &protocompile.SourceResolver{
		Accessor: protocompile.SourceAccessorFromMap(map[string]string{"shapes.proto": shapes}),
	}
	compiler := protocompile.Compiler{Resolver: protocompile.CompositeResolver{source, linked}}
	files, err := compiler.Compile(t.Context(), "shapes.proto")
	if err != nil {
		t.Fatal(err)
	}
	return files[0].Messages().ByName("Root")
}

func TestPathsAreInJSONNames(t *testing.T) {
	root := rootDescriptor(t)
	validator, err := protovalidate.New()
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, json string
		validated  string // path by Validate, which knows the message
		from       string // path by From, which does not
	}{
		{"a field by its json_name", `{"providerID":"long"}`, "providerID", "providerID"},
		{
			"an item of a list by its index", `{"spec":{"preDrain":[{"ownerName":"abc"},{"ownerName":"a"}]}}`,
			"spec.preDrain[1].ownerName", "spec.preDrain[1].ownerName",
		},
		{
			"a value of a map by its key", `{"spec":{"hooksByName":{"it's":{"ownerName":"a"}}}}`,
			`spec.hooksByName['it\'s'].ownerName`, `spec.hooksByName['it\'s'].ownerName`,
		},
		{"a scalar item by its index", `{"spec":{"hostIPs":["abc","abcd"]}}`, "spec.hostIPs[1]", "spec.hostIps[1]"},
		{
			"a name in the middle", `{"spec":{"theHOOK":{"ownerName":"a"}}}`, "spec.theHOOK.ownerName",
			"spec.theHook.ownerName",
		},
		{
			"a rule of a message by the message's path", `{"spec":{"preDrain":[{"kindOf":"x"}]}}`, "spec.preDrain[0]",
			"spec.preDrain[0]",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := dynamicpb.NewMessage(root)
			if err := protojson.Unmarshal([]byte(tt.json), m); err != nil {
				t.Fatal(err)
			}
			if got := violations(rpcerr.Validate(validator, m)); !cmp.Equal(got, []string{tt.validated}) {
				t.Errorf("Validate names %q, want %q", got, tt.validated)
			}
			if got := violations(rpcerr.From(validator.Validate(m))); !cmp.Equal(got, []string{tt.from}) {
				t.Errorf("From names %q, want %q", got, tt.from)
			}
		})
	}
}

func violations(err error) (paths []string) {
	for _, d := range status.Convert(err).Details() {
		if bad, ok := d.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				paths = append(paths, v.GetField())
			}
		}
	}
	return paths
}
