package process

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestHoldInMakesNothingThatTheUserCouldNot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	dir := t.TempDir()
	for d := dir; d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	user := &User{UID: 0x60000001, GID: 0x60000001}
	closed, own, inner, beyond := filepath.Join(dir, "closed"), filepath.Join(dir, "own"), filepath.Join(dir, "inner"),
		filepath.Join(dir, "beyond")
	for _, d := range []string{closed, own, inner, beyond} {
		if err := errors.Join(os.Mkdir(d, 0o755), os.WriteFile(filepath.Join(d, "file"), []byte(filepath.Base(d)),
			0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chown(own, int(user.UID), -1), os.Symlink(beyond, filepath.Join(own, "link"))); err != nil {
		t.Fatal(err)
	}
	held := filepath.Join(dir, "held")
	if err := os.Mkdir(held, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Release(held); err != nil {
			t.Error(err)
		}
	})
	for i, of := range []string{closed, own} {
		at := filepath.Join(held, string(rune('0'+i)))
		if err := Hold(Mount{From: of, To: at}, user); err != nil {
			t.Fatal(err)
		}
		err := HoldIn(Mount{From: inner, To: at}, "/made", user)
		text, readErr := os.ReadFile(filepath.Join(at, "made/file"))
		_, made := os.Lstat(filepath.Join(of, "made"))
		if of == closed && (err == nil || made == nil) {
			t.Errorf("in a directory that is not the user's: %v, %v", err, made)
		}
		if of == own && (err != nil || readErr != nil || string(text) != "inner") {
			t.Errorf("in the user's: %v, %q, %v", err, text, readErr)
		}
	}
	// a link does not lead out of what is held
	if err := HoldIn(Mount{From: inner, To: filepath.Join(held, "1")}, "/link/made", user); err == nil {
		t.Log("mounted where the link leads within")
	}
	if _, err := os.Lstat(filepath.Join(beyond, "made")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a link led out: %v", err)
	}
}
