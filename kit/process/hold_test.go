package process_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/windlass-dev/windlass/kit/process"
)

// needsMounts skips where this process cannot mount.
func needsMounts(t *testing.T) {
	t.Helper()
	if err := process.CanMount(); err != nil {
		t.Skip(err)
	}
}

func TestWhatIsHeldStays(t *testing.T) {
	needsMounts(t)
	base := openDir(t)
	from, held := filepath.Join(base, "volume"), filepath.Join(base, "held")
	user := &process.User{UID: 70_001, GID: 70_001}
	mkdir(t, from, 0o755)
	mkdir(t, filepath.Join(from, "sub"), 0o755)
	mkdir(t, held, 0o700)
	write(t, filepath.Join(from, "sub", "file"), "of the volume")
	at := filepath.Join(held, "0")
	if err := process.Hold(process.Mount{From: from, Sub: "sub", To: at}, user); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = process.Release(held) })
	if err := os.Rename(filepath.Join(from, "sub"), filepath.Join(from, "aside")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc", filepath.Join(from, "sub")); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(at, "file")); err != nil || string(text) != "of the volume" {
		t.Errorf("after the volume was changed: %q, %v", text, err)
	}
	if err := process.Release(held); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(from, "aside", "file")); err != nil || string(text) != "of the volume" {
		t.Errorf("what was shown is not there after Release: %q, %v", text, err)
	}
	if _, err := os.Stat(held); !os.IsNotExist(err) {
		t.Errorf("after Release: %v", err)
	}
	if err := process.Release(held); err != nil {
		t.Errorf("of what does not exist: %v", err)
	}
}

func TestOnlyWhatTheUserReachesIsHeld(t *testing.T) {
	needsMounts(t)
	base := openDir(t)
	closed, from := filepath.Join(base, "closed"), filepath.Join(base, "volume")
	mkdir(t, closed, 0o700)
	mkdir(t, from, 0o755)
	write(t, filepath.Join(closed, "file"), "secret")
	for name, to := range map[string]string{"out": closed, "up": "../closed", "proc": "/proc/self/root"} {
		if err := os.Symlink(to, filepath.Join(from, name)); err != nil {
			t.Fatal(err)
		}
	}
	user := &process.User{UID: 70_001, GID: 70_001}
	for what, m := range map[string]process.Mount{
		"a closed directory":        {From: filepath.Join(closed, "file")},
		"a link out of the volume":  {From: from, Sub: "out"},
		"a link up":                 {From: from, Sub: "up"},
		"a path up":                 {From: from, Sub: "../closed"},
		"a magic link":              {From: from, Sub: "proc"},
		"something that is missing": {From: from, Sub: "none"},
	} {
		held := filepath.Join(base, "held")
		mkdir(t, held, 0o700)
		m.To = filepath.Join(held, "0")
		err := process.Hold(m, user)
		if err == nil || !strings.Contains(err.Error(), m.To) {
			t.Errorf("%s: %v", what, err)
		}
		if err := process.Release(held); err != nil {
			t.Error(err)
		}
	}
}

// An agent that a shell started may be in groups of its own, which give a pod's user nothing.
func TestGroupsOfTheAgentDoNotOpenFiles(t *testing.T) {
	needsMounts(t)
	base := openDir(t)
	closed, held := filepath.Join(base, "closed"), filepath.Join(base, "held")
	mkdir(t, closed, 0o750)
	mkdir(t, held, 0o700)
	write(t, filepath.Join(closed, "file"), "of a group")
	const group = 70_002
	if err := os.Chown(closed, 0, group); err != nil {
		t.Fatal(err)
	}
	before, err := syscall.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setgroups([]int{group}); err != nil { // of all threads
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Setgroups(before); err != nil {
			t.Fatal(err)
		}
	})
	m := process.Mount{From: filepath.Join(closed, "file"), To: filepath.Join(held, "0")}
	if err := process.Hold(m, &process.User{UID: 70_001, GID: 70_001}); !errors.Is(err, os.ErrPermission) {
		t.Errorf("a file of the agent's group: %v", err)
	}
	if err := process.Release(held); err != nil {
		t.Error(err)
	}
}

func TestWhatTheUserCannotWriteToIsReadOnly(t *testing.T) {
	needsMounts(t)
	base := openDir(t)
	user := &process.User{UID: 70_001, GID: 70_001}
	for what, own := range map[string]bool{"own": true, "other": false} {
		from, held := filepath.Join(base, what), filepath.Join(base, "held-"+what)
		mkdir(t, from, 0o755)
		mkdir(t, held, 0o700)
		if own {
			if err := os.Chown(from, int(user.UID), int(user.GID)); err != nil {
				t.Fatal(err)
			}
		}
		at := filepath.Join(held, "0")
		if err := process.Hold(process.Mount{From: from, To: at}, user); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = process.Release(held) })
		if err := os.Mkdir(filepath.Join(at, "made"), 0o755); (err == nil) != own {
			t.Errorf("%s: root makes a directory: %v", what, err)
		}
	}
}

// openDir returns a directory that every user can pass through.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "windlass-hold-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func mkdir(t *testing.T, dir string, mode os.FileMode) {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, mode); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
