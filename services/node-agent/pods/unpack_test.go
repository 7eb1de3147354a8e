package pods

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/windlass-dev/windlass/kit/process"
)

// TestACopySharesNothingThatOneCanWrite has a container change every file of its image.
func TestACopySharesNothingThatOneCanWrite(t *testing.T) {
	from, root := filepath.Join(t.TempDir(), "image"), filepath.Join(t.TempDir(), "root")
	if err := errors.Join(os.MkdirAll(filepath.Join(from, "d"), 0o755),
		os.WriteFile(filepath.Join(from, "d/a"), []byte("image"), 0o755),
		os.Link(filepath.Join(from, "d/a"), filepath.Join(from, "b")),
		os.Symlink("d/a", filepath.Join(from, "link"))); err != nil {
		t.Fatal(err)
	}
	var user *process.User
	if u := users(); u.Count > 0 {
		user = &process.User{UID: u.First, GID: u.First}
	}
	for range 2 { // the second one replaces what the container made of the first
		if err := copyTree(t.Context(), from, root, user); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"d/a", "b", "link"} {
			if text, err := os.ReadFile(filepath.Join(root, name)); string(text) != "image" {
				t.Fatalf("%s has %q, %v", name, text, err)
			}
		}
		info, err := os.Stat(filepath.Join(root, "b"))
		if err != nil {
			t.Fatal(err)
		}
		st := info.Sys().(*syscall.Stat_t)
		if st.Nlink != 2 || info.Mode() != 0o755 || user != nil && st.Uid != user.UID {
			t.Errorf("mode %v, %d names, user %d", info.Mode(), st.Nlink, st.Uid)
		}
		if err := errors.Join(os.WriteFile(filepath.Join(root, "b"), []byte("changed"), 0o600),
			os.Remove(filepath.Join(root, "link")), os.WriteFile(filepath.Join(root, "more"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(filepath.Join(from, "b")); string(text) != "image" {
			t.Fatalf("the image has %q, %v", text, err)
		}
	}
	if _, err := os.Stat(root + ".new"); !errors.Is(err, os.ErrNotExist) {
		t.Error("a part of the copy is left")
	}
}
