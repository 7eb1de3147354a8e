package untyped_test

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/kit/untyped"
)

func TestFaultsHaveThePathOfTheirField(t *testing.T) {
	s, err := structpb.NewStruct(map[string]any{
		"text": 1, "flag": "yes", "half": 1.5, "small": 0, "object": "x", "objects": []any{1, map[string]any{"a": "b"}, "x"},
		"texts": []any{"a", 1, "b\x00"}, "list": "x", "none": nil,
	})
	if err != nil {
		t.Fatal(err)
	}
	var r untyped.Reader
	r.Only("", s, "text", "flag", "half", "small", "object", "objects", "texts", "list")
	r.Text("at", s, "text")
	r.Flag("at", s, "flag")
	r.Number("at", s, "half", 0)
	r.Number("at", s, "small", 1)
	r.Object("at", s, "object")
	var indices []int
	for i := range r.Objects("at", s, "objects") {
		indices = append(indices, i)
	}
	r.Texts("at", s, "texts")
	r.Texts("at", s, "list")
	var got []string
	for _, f := range r.Faults {
		got = append(got, f.Path)
	}
	want := []string{
		"none", "at.text", "at.flag", "at.half", "at.small", "at.object", "at.objects[0]", "at.objects[2]", "at.texts[1]",
		"at.texts[2]", "at.list",
	}
	if !slices.Equal(got, want) || !slices.Equal(indices, []int{1}) {
		t.Errorf("faults at %q, want %q; objects %v", got, want, indices)
	}
}

func TestNullIsAbsent(t *testing.T) {
	s, err := structpb.NewStruct(map[string]any{"x": nil})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"x", "y"} {
		var r untyped.Reader
		n, ok := r.Number("", s, name, 0)
		if r.Text("", s, name) != "" || r.Flag("", s, name) || n != 0 || ok || r.Object("", s, name) != nil ||
			r.Texts("", s, name) != nil {
			t.Errorf("%s is there", name)
		}
		for range r.Objects("", s, name) {
			t.Errorf("%s has objects", name)
		}
		if len(r.Faults) > 0 {
			t.Errorf("%s: %v", name, r.Faults)
		}
	}
}
