package harness

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// MountDisk mounts a file system of a size at an empty directory until the test ends, and then removes the directory.
func MountDisk(t testing.TB, dir string, bytes int64) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		_ = os.Remove(dir)
		t.Skipf("no file system of a known size can be mounted here (%v)", err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Unmount(dir, unix.MNT_DETACH), os.Remove(dir)); err != nil {
			t.Error(err)
		}
	})
}

// FillDisk has a file take what is left of its disk. A member of etcd that is started again gives some of it back.
func FillDisk(t testing.TB, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zeros := make([]byte, 64<<10)
	for err == nil {
		_, err = f.Write(zeros)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}
