package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bufbuild/protocompile/linker"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"
)

const root = "../.."

// golden is the API as it was committed. To compare with an earlier one, put its gen/next.txtpb there.
const golden = root + "/gen/next.txtpb"

// The services are generated and compiled here, not read from disk: the declarations of kinds are compared with the
// API, in any order of messages and methods.
func TestTheGeneratedServicesAreTheCommittedAPI(t *testing.T) {
	protos := tree{root: root, written: map[string][]byte{}}
	all, err := generate(root)
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range all {
		if name, ok := strings.CutPrefix(path, "proto/"); ok {
			protos.written[name] = text
		}
	}
	names, err := protos.files("windlass")
	if err != nil {
		t.Fatal(err)
	}
	compiled, types, err := protos.compile(names)
	if err != nil {
		t.Fatal(err)
	}
	got := &descriptorpb.FileDescriptorSet{}
	for _, f := range compiled {
		d := protodesc.ToFileDescriptorProto(f)
		d.SourceCodeInfo = nil
		got.File = append(got.File, d)
	}
	text, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	want := &descriptorpb.FileDescriptorSet{}
	if err := (prototext.UnmarshalOptions{Resolver: types}).Unmarshal(text, want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(lines(t, want, types), lines(t, got, types)); diff != "" {
		t.Errorf("the API differs (-committed +generated):\n%s", diff)
	}
}

// lines is a set as text, with its options decoded, and its files, messages and methods ordered by name.
func lines(t *testing.T, set *descriptorpb.FileDescriptorSet, types linker.Resolver) []string {
	t.Helper()
	raw, err := proto.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	set = &descriptorpb.FileDescriptorSet{}
	if err := (proto.UnmarshalOptions{Resolver: types}).Unmarshal(raw, set); err != nil {
		t.Fatal(err)
	}
	byName(set.File)
	for _, f := range set.File {
		slices.Sort(f.Dependency)
		byName(f.MessageType)
		for _, s := range f.Service {
			byName(s.Method)
		}
	}
	return strings.Split(prototext.MarshalOptions{Multiline: true, Resolver: types}.Format(set), "\n")
}

func byName[T interface{ GetName() string }](list []T) {
	slices.SortFunc(list, func(a, b T) int { return strings.Compare(a.GetName(), b.GetName()) })
}

func TestNamesFollowFromTheKind(t *testing.T) {
	for _, c := range []struct{ kind, plural, kinds, a, field string }{
		{"Pod", "pods", "Pods", "a Pod", "pod"},
		{"Policy", "policies", "Policies", "a Policy", "policy"},
		{"AdmissionConfig", "admissionconfigs", "AdmissionConfigs", "an AdmissionConfig", "admission_config"},
	} {
		k := kind{Kind: c.kind, Plural: c.plural}
		if k.Kinds() != c.kinds || k.A() != c.a || k.Field() != c.field {
			t.Errorf("%s: %q, %q, %q, want %q, %q, %q", c.kind, k.Kinds(), k.A(), k.Field(), c.kinds, c.a, c.field)
		}
	}
}

func TestACustomFileAddsAndReplaces(t *testing.T) {
	standard := &source{
		comment: "// Standard.", imports: []string{"b.proto"},
		methods: []part{{name: "GetPod", text: "standard"}, {name: "ListPods", text: "standard"}},
	}
	custom, err := parse("custom.proto", []byte(`// Of the file.
syntax = "proto3";
package x;
import "a.proto";

// Not of the service.

// Pods of all kinds.
service PodService {
  // EvictPod evicts.
  rpc EvictPod(EvictPodRequest) returns (EvictPodResponse) {}
  rpc GetPod(GetPodRequest) returns (Pod);
}

// Two lines,
// the second.
message EvictPodRequest {
  // A field.
  string name = 1; // after it
}
`))
	if err != nil {
		t.Fatal(err)
	}
	standard.add(custom)
	want := &source{
		comment: "// Pods of all kinds.", imports: []string{"b.proto", "a.proto"},
		methods: []part{
			{name: "GetPod", text: "  rpc GetPod(GetPodRequest) returns (Pod);", custom: true},
			{name: "ListPods", text: "standard"},
			{
				name: "EvictPod", custom: true,
				text: "  // EvictPod evicts.\n  rpc EvictPod(EvictPodRequest) returns (EvictPodResponse) {}",
			},
		},
		messages: []part{{
			name: "EvictPodRequest", custom: true,
			text: "// Two lines,\n// the second.\nmessage EvictPodRequest {\n  // A field.\n  string name = 1; // after it\n}",
		}},
	}
	if diff := cmp.Diff(want, standard, cmp.AllowUnexported(source{}, part{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestLongLinesAreWrapped(t *testing.T) {
	long := strings.Repeat("word ", 30)
	for _, c := range []struct{ name, line string }{
		{"a comment", "  // " + long},
		{"an option", `    option (x.access) = {verb: "update", group: "` + strings.Repeat("g", 99) + `", resource: "a/b"};`},
		{"a method", "  rpc " + strings.Repeat("M", 60) + "(Request) returns (" + strings.Repeat("A", 60) + ") {"},
	} {
		got := wrap(c.line)
		for line := range strings.Lines(got) {
			if len(line)-1 > columns {
				t.Errorf("%s: %d columns: %s", c.name, len(line)-1, line)
			}
		}
		plain := strings.NewReplacer(" ", "", "\n", "", ",", "", "//", "")
		if plain.Replace(got) != plain.Replace(c.line) {
			t.Errorf("%s changed: %s", c.name, got)
		}
	}
}

func TestOneRunWritesAllOfANewKind(t *testing.T) {
	dir := t.TempDir()
	put := func(path, text string) {
		t.Helper()
		at := filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	const message = `syntax = "proto3";
package windlass.thing.v1;
import "windlass/meta/v1/meta.proto";
import "windlass/meta/v1/options.proto";
message Thing {
  option (windlass.meta.v1.resource) = {kind: "Thing", plural: "things", methods: ["Get", "List", "Watch"]};
  string api_version = 1;
  string kind = 2;
  windlass.meta.v1.ObjectMeta metadata = 3;
}
`
	put("proto/windlass/thing/v1/thing.proto", message)
	put("proto/custom/thing/v1/thing_service.proto", `syntax = "proto3";
package windlass.thing.v1;
service ThingService {
  // PolishThing polishes it.
  rpc PolishThing(GetThingRequest) returns (Thing) {
    option (windlass.meta.v1.access) = {verb: "polish", resource: "things"};
  }
}
`)
	put(apiPage, "# API\n\n"+apiMark)
	for _, path := range []string{".imports", "proto/windlass/meta"} {
		if err := os.CopyFS(filepath.Join(dir, path), os.DirFS(filepath.Join(root, path))); err != nil {
			t.Fatal(err)
		}
	}

	if err := run(dir, true); err == nil {
		t.Error("a service that is not written yet is not reported")
	}
	if err := run(dir, false); err != nil {
		t.Fatal(err)
	}
	if err := run(dir, true); err != nil {
		t.Errorf("after the first run: %v", err)
	}
	for path, want := range map[string]string{
		"proto/windlass/thing/v1/thing_service.proto": "rpc PolishThing",
		restList: `service("windlass.thing.v1.ThingService", thingv1.NewThingServiceClient`,
		apiPage:  "`ThingService/PolishThing` | – | `polish` on `things` | polishes it |",
	} {
		text, err := os.ReadFile(filepath.Join(dir, path))
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s does not contain %s (%v):\n%s", path, want, err, text)
		}
	}
	put("proto/windlass/thing/v1/thing.proto", strings.Replace(message, "  option", "  // option", 1))
	if err := run(dir, false); err == nil || !strings.Contains(err.Error(), "belongs to no kind") {
		t.Errorf("a service without its kind: %v", err)
	}
}
