package process_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/windlass-dev/windlass/kit/process"
)

// What a process puts in the place of /dev/null and of /proc in its root is not opened for the commands beside it: the
// supervisor may open everything, in the host's root, too.
func TestACommandBesideAProcessIsNotStartedWithItsFiles(t *testing.T) {
	dir := t.TempDir()
	s, _ := supervisor(t, dir)
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("the host's"), 0o600); err != nil {
		t.Fatal(err)
	}
	sp := inRoot(t, dir, `exec </p/self/limits; ln -s /p/self/root`+secret+` /dev/null
rm /proc; mkdir /proc /d; ln -s /p/self/root`+secret+` /d/uid_map
i=$$; i=$((i + 250)); end=$((i + 400)) # the next processes
while [ $i -lt $end ]; do i=$((i + 1)); ln -s /d /proc/$i; done
echo ready; exec sleep 1000`, func(sp *process.Spec) {
		if err := os.Mkdir(filepath.Join(sp.Root.Dir, "p"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("p", filepath.Join(sp.Root.Dir, "proc")); err != nil {
			t.Fatal(err)
		}
		volume := filepath.Join(dir, "volume")
		if err := os.Mkdir(volume, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(volume, 0o777); err != nil {
			t.Fatal(err)
		}
		sp.Mounts = append(sp.Mounts, process.Mount{From: volume, To: "/dev"})
	})
	saying(t, s, sp)
	for range 3 {
		cmd := exec.Command("/bin/sh", "-c", "cat; id -u; unshare -U true && echo apart")
		cmd.Env = []string{"PATH=/usr/bin:/bin"}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.StartBeside("worker", cmd, sp.User); err != nil {
			t.Error(err)
			continue
		}
		text, err := io.ReadAll(out)
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil || string(text) != "0\napart\n" {
			t.Errorf("the command says %q, %v", text, err)
		}
	}
	if now, err := os.ReadFile(secret); err != nil || string(now) != "the host's" {
		t.Errorf("the host's file has %q, %v", strings.TrimSpace(string(now)), err)
	}
}

// What a supervisor inherited from the shell that started it, say, does not lead a process out of its root.
func TestAProcessInheritsNoFiles(t *testing.T) {
	dir := t.TempDir()
	fd, err := syscall.Open("/", syscall.O_DIRECTORY, 0) // not closed on exec
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	s, _ := supervisor(t, dir)
	sp := inRoot(t, dir, fmt.Sprintf("test -e /proc/self/fd/%d && echo inherited; echo ready; exec sleep 1000", fd), nil)
	if got := saying(t, s, sp); got != "" {
		t.Errorf("the process says %q", got)
	}
}
