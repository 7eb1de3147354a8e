package files

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestRead(t *testing.T) {
	base := t.TempDir()
	dir, outside := filepath.Join(base, "dir"), filepath.Join(base, "outside")
	for path, text := range map[string]string{
		"dir/selectors.yaml": "podNodeSelectorPluginConfig:\n  clusterDefaultNodeSelector: k3=v3\n",
		"dir/below/a.json":   `{"disable":true}`,
		"dir/list.yaml":      "- a\n",
		"dir/two.yaml":       "a: 1\n---\nb: 2\n",
		"dir/alias.yaml":     "a: &x [1]\nb: *x\n",
		"dir/empty.yaml":     "# nothing\n",
		"dir/huge.yaml":      "a: " + strings.Repeat("x", mostBytes) + "\n",
		"outside":            "secret: yes\n",
		"dir2/a.yaml":        "a: 1\n",
	} {
		path = filepath.Join(base, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"out": outside, "up": "../outside", "in": "selectors.yaml"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for location, says := range map[string]string{
		"selectors.yaml":                   "",
		filepath.Join(dir, "below/a.json"): "",
		"in":                               "",
		"below/../selectors.yaml":          "",
		"../outside":                       "escapes",
		"out":                              "escapes",
		"up":                               "escapes",
		outside:                            "must be in the directory",
		filepath.Join(base, "dir2/a.yaml"): "must be in the directory",
		filepath.Join(dir, "../outside"):   "must be in the directory",
		"absent.yaml":                      "no such file",
		"below":                            "no regular file",
		"pipe":                             "no regular file",
		"list.yaml":                        "object",
		"two.yaml":                         "more than one document",
		"alias.yaml":                       "alias",
		"empty.yaml":                       "is empty",
		"huge.yaml":                        "longer than",
	} {
		text, object, err := Directory{Path: dir}.Read(location)
		switch {
		case says == "":
			if err != nil || len(text) == 0 || len(object.GetFields()) == 0 {
				t.Errorf("%s: %s, %v, %v", location, text, object, err)
			}
		case err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), `"`+location+`"`):
			t.Errorf("%s: %v, want %q with the location", location, err, says)
		}
	}
	if _, _, err := (Directory{}).Read("selectors.yaml"); err == nil || !strings.Contains(err.Error(), "no directory") {
		t.Errorf("without a directory: %v", err)
	}
}
