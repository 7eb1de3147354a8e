package durable_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/windlass-dev/windlass/kit/durable"
)

func TestAFileIsReplacedAsAWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "note")
	for _, text := range []string{"first", "second"} {
		if err := durable.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("read %q, %v, want %q", got, err, text)
		}
	}
	if list, err := os.ReadDir(filepath.Dir(path)); err != nil || len(list) != 1 {
		t.Errorf("left beside it: %v, %v", list, err)
	}
	if err := durable.Remove(path); err != nil {
		t.Error(err)
	}
	if err := durable.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("again: %v, want that it does not exist", err)
	}
	below := filepath.Join(path, "a", "b")
	for range 2 {
		if err := durable.MkdirAll(below, 0o750); err != nil {
			t.Error(err)
		}
	}
	if info, err := os.Stat(below); err != nil || !info.IsDir() || info.Mode().Perm() != 0o750 {
		t.Errorf("directory %v, %v", info, err)
	}
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	if err := durable.WriteFile(filepath.Join(path, "below"), nil, 0o600); err == nil {
		t.Error("a file below a directory that is not there was written")
	}
}
