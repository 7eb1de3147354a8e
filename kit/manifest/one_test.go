package manifest

import (
	"strings"
	"testing"
)

func TestOneDocumentIsRead(t *testing.T) {
	var got struct{ Name string }
	for _, text := range []string{
		"name: a\nother: 1\n", "# comment\n---\nname: a\n", "\n\n---\nname: a\n", `{"name":"a"}`, "name: |-\n  a\n",
	} {
		got.Name = ""
		if err := ReadOne([]byte(text), &got); err != nil || got.Name != "a" {
			t.Errorf("%q: %q, %v", text, got.Name, err)
		}
	}
	for text, want := range map[string]string{
		"name: a\n---\nname: b\n":      "line 2: a second document begins",
		"---\nname: a\n---\nname: b\n": "line 3: a second document begins",
		"name: a\n...\nname: b\n":      "line 2: a second document begins",
		"name: a\nname: b\n":           `key "name" already set`,
		"name: &x a\nother: *x\n":      "line 1: ",
		"name: [":                      "yaml: ",
		"name: {a: b}":                 "cannot unmarshal object",
	} {
		if err := ReadOne([]byte(text), &got); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error = %v, want %q", text, err, want)
		}
	}
}
