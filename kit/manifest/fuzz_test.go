package manifest_test

import (
	"bytes"
	"errors"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
)

// FuzzDecode holds Decode against protojson: what Decode takes, protojson takes, as the same message; and what is
// printed is read back.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"nodeName":"a\u00e9\ud83d\ude00","anInt32":"1","labels":{"a":"b"},"free":{"a":[1,null,{}]},"time":"2026-01-02T03:04:05.5Z","span":"1.5s"}`,
		`{"child":{"children":[{},{"color":"COLOR_RED","someBytes":"AA=="}]},"aDouble":1e-7,"aFloat":"NaN","byBool":{"true":1},"one":"x"}`,
		`{"any":{"@type":"type.googleapis.com/google.protobuf.Duration","value":"1s"},"mask":"a,b","uint64Value":"1","quantities":{"cpu":1}}`,
		`[[[`, `{"a`, "{\"\xff\":1}",
	} {
		f.Add([]byte(seed))
	}
	fresh := newMessages(f, "Everything")
	f.Fuzz(func(t *testing.T, text []byte) {
		m, again, oracle := fresh(), fresh(), fresh()
		if err := manifest.Decode(text, m); err != nil {
			var found *manifest.Errors
			if !errors.As(err, &found) || len(found.Problems) == 0 || err.Error() == "" {
				t.Fatalf("error without problems: %#v", err)
			}
			return
		}
		if err := protojson.Unmarshal(text, oracle); err != nil {
			t.Fatalf("protojson refuses %q: %v", text, err)
		}
		printed, err := manifest.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		other, err := manifest.Encode(oracle)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(printed, other) && !bytes.Contains(text, []byte("null")) { // null in place of a Value is absent here
			t.Fatalf("%q is %s, protojson says %s", text, printed, other)
		}
		if err := manifest.Decode(printed, again); err != nil {
			t.Fatalf("%s: %v", printed, err)
		}
		if last, err := manifest.Encode(again); err != nil || !bytes.Equal(printed, last) {
			t.Fatalf("%s, printed and read back, is %s, %v", printed, last, err)
		}
	})
}

func FuzzSplit(f *testing.F) {
	for _, seed := range []string{
		wrongMachine, "kind: A\n---\nkind: B\n...\n", "{\"kind\":\"A\"}{\"kind\":\"B\"}",
		"%YAML 1.1\n---\nkind: &a A\nb: [*a, *a]\n",
		"kind: A\nx: {<<: {a: 1}}\n? [a]\n: b\n", "kind: A\r---\rversion: 1\u2028...", "--- !!binary AA==\n",
		"a: &a [*a]\nkind: A",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		documents, err := manifest.Split(bytes.NewReader(text), "f")
		if err != nil && (documents != nil || err.Error() == "") {
			t.Fatalf("%d documents and error %q", len(documents), err)
		}
		for _, d := range documents {
			if d.Kind == "" || d.Line < 1 || d.LineOf("spec.a[0]['b']") < 1 {
				t.Fatalf("document %+v", d)
			}
			var again []manifest.Document
			if again, err = manifest.Split(bytes.NewReader(d.JSON), "f"); err != nil || len(again) != 1 ||
				again[0].Kind != d.Kind {
				if !deep(err) {
					t.Fatalf("%s is %d documents, %v", d.JSON, len(again), err)
				}
			}
			_ = d.Locate(manifest.Decode(d.JSON, new(nodev1.Node)))
		}
	})
}

// deep reports that JSON was refused for its nesting, which YAML is only by Decode.
func deep(err error) bool {
	return err != nil && bytes.Contains([]byte(err.Error()), []byte("inside each other"))
}

func FuzzPatch(f *testing.F) {
	original := `{"metadata":{"name":"a","finalizers":["x"]},"spec":{"taints":[{"key":"a","effect":"NoSchedule"}]},"status":{"conditions":[{"type":"Ready"}]}}`
	for _, seed := range []string{
		`[{"op":"copy","from":"/spec","path":"/status"},{"op":"move","from":"/metadata","path":"/a"}]`,
		`{"spec":{"taints":[{"key":"b","$patch":"delete"}]}}`,
		`{"metadata":{"$deleteFromPrimitiveList/finalizers":["x"],"$setElementOrder/finalizers":["x"]},"$patch":"replace"}`,
		`{"spec":{"$retainKeys":["a"],"taints":null}}`,
	} {
		f.Add([]byte(original), []byte(seed))
	}
	descriptor := new(nodev1.Node).ProtoReflect().Descriptor()
	f.Fuzz(func(t *testing.T, original, patch []byte) {
		var stored proto.Message = new(nodev1.Node)
		if manifest.Decode(original, stored) != nil {
			return // only what was stored is ever patched
		}
		for _, media := range []string{manifest.JSONPatch, manifest.MergePatch, manifest.StrategicPatch} {
			changed, err := manifest.Patch(original, media, patch, descriptor)
			if err == nil {
				_ = manifest.Decode(changed, new(nodev1.Node))
			} else if !errors.Is(err, manifest.ErrPatchSyntax) && !errors.Is(err, manifest.ErrPatchTest) {
				t.Fatalf("error of another kind: %v", err)
			}
		}
	})
}
