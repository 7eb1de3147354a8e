package objects

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSourcesOfData(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"app.conf": "a=b\n", "app.env": "\ufeff# comment\n\n  LEVEL=debug=x\r\nFROM_HERE\n", "bad.env": "A B=hunter2\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("FROM_HERE", "v")
	in := func(name string) string { return filepath.Join(dir, name) }
	for what, c := range map[string]struct {
		sources sources
		want    map[string]string
		err     string
	}{
		"literals": {sources{literals: []string{"a=b=c", "d="}}, map[string]string{"a": "b=c", "d": ""}, ""},
		"files": {
			sources{files: []string{in("app.conf"), "other=" + in("app.conf")}},
			map[string]string{"app.conf": "a=b\n", "other": "a=b\n"},
			"",
		},
		"lines of a file": {
			sources{envFiles: []string{in("app.env")}},
			map[string]string{"LEVEL": "debug=x", "FROM_HERE": "v"},
			"",
		},
		"a line without a key":    {sources{envFiles: []string{in("bad.env")}}, nil, "bad.env:1"},
		"a key twice":             {sources{literals: []string{"a=hunter2", "a=hunter2"}}, nil, `"a"`},
		"a literal without =":     {sources{literals: []string{"hunter2"}}, nil, "number 1"},
		"a key that is none":      {sources{literals: []string{"../a=hunter2"}}, nil, "valid key"},
		"a key for a directory":   {sources{files: []string{"k=" + dir}}, nil, "directory"},
		"files and lines at once": {sources{envFiles: []string{"x"}, literals: []string{"a=b"}}, nil, "combined"},
	} {
		t.Run(what, func(t *testing.T) {
			got, err := c.sources.read()
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "hunter2") {
					t.Errorf("error is %v, want one with %s and without values", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			text := map[string]string{}
			for k, v := range got {
				text[k] = string(v)
			}
			if diff := cmp.Diff(c.want, text); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
