package main

import (
	"encoding/json"
	"runtime/debug"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const good = `{
  "metadata": {
    "component": {"name": "example.org/program"},
    "properties": [{"name": "cdx:gomod:binary:hash:SHA-256", "value": "abc"}]
  },
  "components": [
    {"name": "std", "version": "go1.26.8"},
    {"name": "example.org/kit", "version": "(devel)"},
    {"name": "example.org/fork", "version": "v2.0.0"}
  ]
}`

func TestABillOfMaterialsIsCompared(t *testing.T) {
	info := &debug.BuildInfo{
		GoVersion: "go1.26.8 X:someexperiment", Main: debug.Module{Path: "example.org/program"},
		Deps: []*debug.Module{
			{Path: "example.org/kit", Version: "(devel)"},
			{
				Path: "example.org/original", Version: "v1.0.0",
				Replace: &debug.Module{Path: "example.org/fork", Version: "v2.0.0"},
			},
		},
	}
	for _, tt := range []struct {
		name   string
		hash   string
		change func(*bom)
		want   []string
	}{
		{"of this executable", "abc", func(*bom) {}, nil},
		{
			"of another build", "def", func(*bom) {},
			[]string{`it is of an executable with the hash "abc", not def`},
		},
		{
			"of another program", "abc", func(b *bom) { b.Metadata.Component.Name = "x" },
			[]string{`it is of "x", not of example.org/program`},
		},
		{
			"with another version of a module", "abc", func(b *bom) { b.Components[2].Version = "v1.9.0" },
			[]string{"example.org/fork@v2.0.0 is missing", "example.org/fork@v1.9.0 is not in the executable"},
		},
		{
			"without the standard library", "abc", func(b *bom) { b.Components = b.Components[1:] },
			[]string{"std@go1.26.8 is missing"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b bom
			if err := json.Unmarshal([]byte(good), &b); err != nil {
				t.Fatal(err)
			}
			tt.change(&b)
			if diff := cmp.Diff(tt.want, compare(info, tt.hash, b)); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}
