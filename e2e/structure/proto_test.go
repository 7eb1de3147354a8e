package structure

import (
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bufbuild/protocompile"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/descriptorpb"

	_ "github.com/windlass-dev/windlass/gen/rest" // every package that is reached through the gateway
	_ "github.com/windlass-dev/windlass/gen/windlass/admission/v1"
	_ "github.com/windlass-dev/windlass/gen/windlass/audit/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	_ "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
)

// protoFiles returns the names of our proto files as they import each other.
func protoFiles(t *testing.T) []string {
	t.Helper()
	dir := filepath.Join(root, "proto")
	var out []string
	err := filepath.WalkDir(filepath.Join(dir, "windlass"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".proto") {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		out = append(out, filepath.ToSlash(rel))
		return err
	})
	if err != nil || len(out) == 0 {
		t.Fatalf("%d proto files, %v", len(out), err)
	}
	return out
}

func TestGeneratedCodeMatchesTheProtos(t *testing.T) {
	files := protoFiles(t)
	ours := map[string]bool{}
	for _, f := range files {
		ours[f] = true
	}
	compiler := protocompile.Compiler{Resolver: protocompile.CompositeResolver{
		&protocompile.SourceResolver{Accessor: func(path string) (io.ReadCloser, error) {
			if !ours[path] {
				return nil, os.ErrNotExist
			}
			return os.Open(filepath.Join(root, "proto", path))
		}},
		// What others have made (google/…, buf/…) comes as it was linked.
		protocompile.ResolverFunc(func(path string) (protocompile.SearchResult, error) {
			d, err := protoregistry.GlobalFiles.FindFileByPath(path)
			if err != nil {
				return protocompile.SearchResult{}, err
			}
			return protocompile.SearchResult{Desc: d}, nil
		}),
	}}
	compiled, err := compiler.Compile(context.Background(), files...)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range compiled {
		linked, err := protoregistry.GlobalFiles.FindFileByPath(f.Path())
		if err != nil {
			t.Errorf("%s is not generated: run make generate", f.Path())
			continue
		}
		want, got := shape(t, f), shape(t, linked)
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%s differs from the generated code (-proto +gen): run make generate\n%s", f.Path(), diff)
		}
	}
}

// shape is a file's descriptor without what only the generator adds. It goes through bytes, so that options are
// compared by their content.
func shape(t *testing.T, f protoreflect.FileDescriptor) *descriptorpb.FileDescriptorProto {
	t.Helper()
	d := protodesc.ToFileDescriptorProto(f)
	d.SourceCodeInfo, d.Options = nil, nil
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	out := &descriptorpb.FileDescriptorProto{}
	if err := proto.Unmarshal(raw, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestEveryMethodSaysWhichRightItNeeds(t *testing.T) {
	seen := 0
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		// windlass.admission.v1 is served by others, and Windlass is its caller.
		if !strings.HasPrefix(string(f.Package()), "windlass.") || f.Package() == "windlass.admission.v1" {
			return true
		}
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				m := s.Methods().Get(j)
				seen++
				a, _ := proto.GetExtension(m.Options(), metav1.E_Access).(*metav1.Access)
				if a.GetOfRequest() {
					for _, field := range []protoreflect.Name{"group", "resource"} {
						if m.Input().Fields().ByName(field) == nil {
							t.Errorf("%s: its request has no field %s, by which the right is checked", m.FullName(), field)
						}
					}
				}
				if a.GetVerb() == "" || a.GetResource() == "" && !a.GetOfRequest() {
					t.Errorf("%s has no access option", m.FullName())
				}
			}
		}
		return true
	})
	if seen == 0 {
		t.Error("no method was checked")
	}
}
