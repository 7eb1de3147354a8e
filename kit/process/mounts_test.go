package process_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/windlass-dev/windlass/kit/process"
)

// A process and the commands beside it see the files of their mounts, also after another supervisor took it over. The
// host does not.
func TestAProcessSeesItsMounts(t *testing.T) {
	if err := process.CanMount(); err != nil {
		t.Skip("no mounts here: ", err)
	}
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	for path, text := range map[string]string{from: "its own", to: "the host's"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	worker := process.Spec{
		Name: "worker", Path: "/bin/sh", Args: []string{"-c", "cat " + to + "; echo; exec sleep 1000"},
		LogFile: filepath.Join(dir, "worker.log"), Mounts: []process.Mount{{From: from, To: to}},
	}
	s, end := supervisor(t, dir)
	if err := s.Ensure(worker); err != nil {
		t.Fatal(err)
	}
	pid := running(t, s, "worker", 0)
	greeted(t, worker.LogFile)
	if out, err := os.ReadFile(worker.LogFile); err != nil || string(out) != "its own\n" {
		t.Errorf("the process saw %q, %v", out, err)
	}
	end()

	s, _ = supervisor(t, dir)
	if err := s.Ensure(worker); err != nil {
		t.Fatal(err)
	}
	if again := running(t, s, "worker", 0); again != pid {
		t.Fatalf("pid %d after %d", again, pid)
	}
	var out strings.Builder
	cmd := exec.Command("/bin/cat", to)
	cmd.Stdout = &out
	if err := s.StartBeside("worker", cmd, nil); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || out.String() != "its own" {
		t.Errorf("a command beside it saw %q, %v", out.String(), err)
	}
	if host, err := os.ReadFile(to); err != nil || string(host) != "the host's" {
		t.Errorf("the host sees %q, %v", host, err)
	}
}

// Without a file of its mounts a process is not started.
func TestAProcessIsNotStartedWithoutItsMounts(t *testing.T) {
	if err := process.CanMount(); err != nil {
		t.Skip("no mounts here: ", err)
	}
	dir := t.TempDir()
	s, _ := supervisor(t, dir)
	sp := waiting(dir)
	sp.Mounts = []process.Mount{{From: filepath.Join(dir, "missing"), To: "/etc/hostname"}}
	if err := s.Ensure(sp); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the start failed", func() bool { return statusOf(s, "worker").LastError != nil })
	if err := statusOf(s, "worker").LastError; !strings.Contains(err.Error(), "missing") {
		t.Errorf("error %v", err)
	}
}
