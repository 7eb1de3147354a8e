package manifest_test

import (
	"slices"
	"testing"

	apiextensionsv1 "github.com/windlass-dev/windlass/gen/windlass/apiextensions/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
)

func TestFieldsThatAMessageDoesNotDeclareAreInItsInlineField(t *testing.T) {
	const text = `{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"name":"a"},"content":1,` +
		`"data":{"x":[1,null]},"spec":{"size":2},"status":{"phase":"Ready"}}`
	m := &apiextensionsv1.CustomObject{}
	if err := manifest.Decode([]byte(text), m); err != nil {
		t.Fatal(err)
	}
	got, err := manifest.Encode(m)
	if err != nil || string(got) != text {
		t.Errorf("got %s, %v, want %s", got, err, text)
	}
	for path, want := range map[string]any{
		"spec.size": 2.0, "content": 1.0, "status.phase": "Ready",
		"metadata.name": "a",
	} {
		if v, ok := manifest.Lookup(m, path); !ok || v != want {
			t.Errorf("%s is %v, want %v", path, v, want)
		}
	}
	if v, ok := manifest.Lookup(m, "spec.other"); ok {
		t.Errorf("a field that is not there is %v", v)
	}
}

func TestAnInlineFieldIsReadStrictly(t *testing.T) {
	const text = `{"apiVersion":"example.com/v1","spec":{"big":9007199254740993},"spec":{},"metadata":{"nam":"a"}}`
	err := manifest.Decode([]byte(text), &apiextensionsv1.CustomObject{})
	want := []string{
		"spec.big: must be a number below 2^53, not 9007199254740993; quote it to keep its digits",
		"spec: is given twice", `unknown field "metadata.nam"`,
	}
	if got := problems(t, err); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAnApplicationMergesFieldsThatAMessageDoesNotDeclare(t *testing.T) {
	d := (&apiextensionsv1.CustomObject{}).ProtoReflect().Descriptor()
	given := []byte(`{"spec":{"a":1,"list":[1]}}`)
	fields, err := manifest.Fields([]byte(`{"spec":{"a":1,"b":2}}`), d)
	if err != nil {
		t.Fatal(err)
	}
	got, err := manifest.Apply([]byte(`{"spec":{"a":5,"b":2,"c":3,"list":[2,3]}}`), fields, given, d)
	if want := `{"spec":{"a":1,"c":3,"list":[1]}}`; err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}
