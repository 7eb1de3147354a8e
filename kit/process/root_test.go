package process_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/kit/process"
)

// inRoot is a process with a root of its own, in which there are the host's programs: a wrapper of a shell that runs
// the script as root of its user namespace.
func inRoot(t testing.TB, dir, script string, change func(*process.Spec)) process.Spec {
	t.Helper()
	for _, err := range []error{process.CanMount(), process.CanMap()} {
		if err != nil {
			t.Skip("no roots here: ", err)
		}
	}
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	user := process.User{UID: 71000, GID: 71000, Inside: &process.ID{UID: 0, GID: 5}}
	for at := dir; at != "/"; at = filepath.Dir(at) { // the user passes
		if info, err := os.Stat(at); err != nil || info.Mode().Perm()&0o001 == 0 {
			if err := os.Chmod(at, 0o711); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Chown(root, 71000, 71000); err != nil {
		t.Fatal(err)
	}
	sp := process.Spec{
		Name: "worker", Path: "/bin/sh", Args: []string{"-c", script},
		Env: []string{"PATH=/usr/bin:/bin"}, OnlyEnv: true, LogFile: filepath.Join(dir, "worker.log"),
		Root: &process.Root{Dir: root, Hostname: "inside"}, User: &user,
	}
	for _, host := range []string{"/bin", "/lib", "/lib64", "/usr"} {
		if info, err := os.Lstat(host); err == nil && info.Mode()&os.ModeSymlink != 0 {
			to, _ := os.Readlink(host)
			if err := os.Symlink(to, filepath.Join(root, host)); err != nil {
				t.Fatal(err)
			}
		} else if err == nil {
			sp.Mounts = append(sp.Mounts, process.Mount{From: host, To: host, ReadOnly: true})
		}
	}
	if change != nil {
		change(&sp)
	}
	return sp
}

// saying runs a process and returns what it says, without the last line, which is "ready".
func saying(t *testing.T, s *process.Supervisor, sp process.Spec) string {
	t.Helper()
	if err := s.Ensure(sp); err != nil {
		t.Fatal(err)
	}
	var out []byte
	eventually(t, "the process is ready", func() bool {
		st := statusOf(s, sp.Name)
		if st.LastError != nil {
			t.Fatal(st.LastError)
		}
		out, _ = os.ReadFile(sp.LogFile)
		return st.PID != 0 && bytes.HasSuffix(out, []byte("ready\n")) // it may say so before its start is known
	})
	return strings.TrimSuffix(string(out), "ready\n")
}

func TestAProcessHasItsRoot(t *testing.T) {
	dir := t.TempDir()
	s, end := supervisor(t, dir)
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("the host's"), 0o644); err != nil {
		t.Fatal(err)
	}
	sp := inRoot(t, dir, `cd /; echo *
pwd; id -u; id -g; id -G; hostname
cat `+secret+` /proc/1/root/`+secret+` /proc/$PPID/root/`+secret+` /proc/$PPID/cwd/`+secret+` 2>/dev/null
ls /proc | grep -c '^1$'
touch /file && stat -c %u /file; echo x >/dev/null; test -c /dev/urandom && echo device
mknod /null c 1 3 2>/dev/null || echo none; grep -c ' / ' /proc/self/mountinfo; ls /proc/self/fd | wc -l
echo ready; exec sleep 1000`, nil)
	got := saying(t, s, sp)
	want := "bin dev lib lib64 proc sys usr\n/\n0\n5\n5\ninside\n0\n0\ndevice\nnone\n"
	if !strings.HasPrefix(got, want) {
		t.Errorf("the process says\n%s\nwant\n%s", got, want)
	}
	if info, err := os.Stat(filepath.Join(dir, "root", "file")); err != nil {
		t.Error(err)
	} else if st := info.Sys().(*syscall.Stat_t); st.Uid != 71000 {
		t.Errorf("for the host its file is one of %d", st.Uid)
	}
	pid := running(t, s, "worker", 0)
	end()

	s, _ = supervisor(t, dir)
	if err := s.Ensure(sp); err != nil {
		t.Fatal(err)
	}
	if again := running(t, s, "worker", 0); again != pid {
		t.Fatalf("pid %d after %d", again, pid)
	}
	var out strings.Builder
	cmd := exec.Command("/bin/sh", "-c", "cd /; echo *; id -u; id -g; hostname; cat "+secret)
	cmd.Stdout, cmd.Env = &out, []string{"PATH=/usr/bin:/bin"}
	if err := s.StartBeside("worker", cmd, sp.User); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || out.String() != "bin dev file lib lib64 proc sys usr\n0\n5\ninside\n" {
		t.Errorf("a command beside it says %q, %v", out.String(), err)
	}
	if name, err := os.Hostname(); err != nil || name == "inside" {
		t.Errorf("the host's name is %q, %v", name, err)
	}
}

func TestMountsInARoot(t *testing.T) {
	dir := t.TempDir()
	s, _ := supervisor(t, dir)
	volume, closed := filepath.Join(dir, "volume"), filepath.Join(dir, "closed")
	for _, d := range []string{filepath.Join(volume, "sub"), filepath.Join(volume, "inner"), closed} {
		if err := os.MkdirAll(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for path, text := range map[string]string{
		filepath.Join(volume, "sub", "a"): "in sub", filepath.Join(volume, "one"): "one file",
		filepath.Join(closed, "b"): "closed",
	} {
		if err := os.WriteFile(path, []byte(text+"\n"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc", filepath.Join(volume, "out")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(volume, 0o777); err != nil {
		t.Fatal(err)
	}
	sp := inRoot(t, dir, `cat /data/deep/one; echo x >/data/deep/new && echo written; cat /data/deep/inner/a
cat /etc/single; echo y >/etc/single || echo refused; touch /x || echo read-only
echo ready; exec sleep 1000`, func(sp *process.Spec) {
		sp.Root.ReadOnly = true
		sp.Mounts = append(sp.Mounts, // the inner one first: the order does not count
			process.Mount{From: volume, Sub: "sub", To: "/data/deep/inner", ReadOnly: true},
			process.Mount{From: filepath.Join(volume, "one"), To: "/etc/single", ReadOnly: true},
			process.Mount{From: volume, To: "/data/deep"})
	})
	got := saying(t, s, sp)
	for _, want := range []string{"one file\nwritten\nin sub\none file\n", "refused\n", "read-only\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("the process says\n%s\nwithout\n%s", got, want)
		}
	}
	if err := s.Stop(t.Context(), "worker"); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(closed, 0o700); err != nil { // its files are for everyone
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		process.Mount
		err error
	}{
		"out of a volume by a link": {process.Mount{From: volume, Sub: "out", To: "/data"}, syscall.EXDEV},
		"out of a volume":           {process.Mount{From: volume, Sub: "../closed", To: "/data"}, syscall.EXDEV},
		"what is missing": {
			process.Mount{From: filepath.Join(dir, "missing"), To: "/data"},
			syscall.ENOENT,
		},
		"what the user cannot reach":        {process.Mount{From: filepath.Join(closed, "b"), To: "/data"}, syscall.EACCES},
		"a place that the user cannot make": {process.Mount{From: volume, To: "/etc/host/new"}, syscall.EACCES},
		"a link to itself":                  {process.Mount{From: volume, To: "/loop"}, syscall.ELOOP},
	} {
		sp := sp
		sp.Name = "refused"
		sp.Mounts = append(sp.Mounts[:len(sp.Mounts):len(sp.Mounts)], process.Mount{From: "/etc", To: "/etc/host"}, c.Mount)
		_ = os.Symlink("loop", filepath.Join(sp.Root.Dir, "loop"))
		if err := s.Ensure(sp); err != nil {
			t.Fatal(err)
		}
		eventually(t, fmt.Sprint("the start fails: ", what), func() bool { return statusOf(s, "refused").LastError != nil })
		if err := statusOf(s, "refused").LastError; !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", what, err, c.err)
		}
		if err := s.Stop(t.Context(), "refused"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat("/etc/new"); err == nil {
		t.Error("a place was made on the host")
	}
}

// A volume may be mounted at /dev: what the user cannot make there is not made.
func TestNothingIsMadeInAVolumeAtDev(t *testing.T) {
	dir := t.TempDir()
	s, _ := supervisor(t, dir)
	host := filepath.Join(dir, "host")
	if err := os.Mkdir(host, 0o755); err != nil {
		t.Fatal(err)
	}
	sp := inRoot(t, dir, "", func(sp *process.Spec) {
		sp.Mounts = append(sp.Mounts, process.Mount{From: host, To: "/dev"},
			process.Mount{From: "/etc/passwd", To: "/dev/new/file"})
	})
	if err := s.Ensure(sp); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the start fails", func() bool { return statusOf(s, "worker").LastError != nil })
	if err := statusOf(s, "worker").LastError; !errors.Is(err, syscall.EACCES) {
		t.Error(err)
	}
	if entries, err := os.ReadDir(host); err != nil || len(entries) > 0 {
		t.Errorf("%v was made on the host, %v", entries, err)
	}
}

// What is mounted keeps its restrictions, and nothing of it can be changed that the host does not let be changed.
func TestMountsKeepTheirRestrictions(t *testing.T) {
	dir := t.TempDir()
	s, _ := supervisor(t, dir)
	source := filepath.Join(dir, "source")
	if err := os.Mkdir(source, 0o777); err != nil {
		t.Fatal(err)
	}
	sp := inRoot(t, dir, `touch /data/x 2>/dev/null || echo read-only
grep -cE '^[0-9]+ [0-9]+ [^ ]+ [^ ]+ /sys[^ ]* rw' /proc/self/mountinfo; grep -c ' /data ro,.*noexec' /proc/self/mountinfo
stat -c "%u %g" /made /made/by; echo ready; exec sleep 1000`, func(sp *process.Spec) {
		sp.Mounts = append(sp.Mounts, process.Mount{From: source, To: "/data"},
			process.Mount{From: source, To: "/made/by/user"}, process.Mount{From: source, To: "/dangling"},
			process.Mount{From: "/etc/passwd", To: "/dev/termination-log"})
		if err := os.Symlink("../made/target", filepath.Join(sp.Root.Dir, "dangling")); err != nil {
			t.Fatal(err)
		}
	})
	if err := syscall.Mount("none", source, "tmpfs", syscall.MS_NOEXEC, "mode=777"); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(source, syscall.MNT_DETACH) })
	if err := syscall.Mount("", source, "", syscall.MS_REMOUNT|syscall.MS_RDONLY|syscall.MS_NOEXEC, ""); err != nil {
		t.Fatal(err)
	}
	if got, want := saying(t, s, sp), "read-only\n0\n1\n0 5\n0 5\n"; got != want {
		t.Errorf("the process says %q, want %q", got, want)
	}
}

// A link in an image leads to what is in the image, also where something is mounted.
func TestAMountFollowsLinksInsideItsRoot(t *testing.T) {
	dir := t.TempDir()
	s, _ := supervisor(t, dir)
	outside := filepath.Join(dir, "outside")
	if err := os.Mkdir(outside, 0o777); err != nil {
		t.Fatal(err)
	}
	sp := inRoot(t, dir, "cat "+outside+"/single; echo ready; exec sleep 1000", func(sp *process.Spec) {
		sp.Mounts = append(sp.Mounts, process.Mount{From: "/etc/passwd", To: "/data/single"})
		at := filepath.Join(sp.Root.Dir, outside)
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(at, 71000, 71000); err != nil { // an image's files are the user's
			t.Fatal(err)
		}
		if err := os.Symlink(outside, filepath.Join(sp.Root.Dir, "data")); err != nil {
			t.Fatal(err)
		}
	})
	if got := saying(t, s, sp); !strings.Contains(got, "root:") {
		t.Errorf("the process says\n%s", got)
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
		t.Errorf("%v was made on the host, %v", entries, err)
	}
}

// A confined process, and a command beside it, cannot make system calls that are for administrators of a host.
func TestAConfinedProcess(t *testing.T) {
	if err := process.CanConfine(); err != nil {
		t.Skip("no confinement here: ", err)
	}
	for _, tool := range []string{"unshare", "mount"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	const try = "unshare -m true 2>/dev/null && echo unshared; unshare -Ur true 2>/dev/null && echo mapped; " +
		"mount -t tmpfs none /dev/shm 2>/dev/null && echo mounted; grep Seccomp: /proc/self/status; id -u"
	for _, confined := range []bool{false, true} {
		dir := t.TempDir()
		s, _ := supervisor(t, dir)
		sp := inRoot(t, dir, try+"; echo ready; exec sleep 1000", func(sp *process.Spec) { sp.Confined = confined })
		want := "unshared\nmapped\nSeccomp:\t0\n0\n" // root of a namespace of its own
		if confined {
			want = "Seccomp:\t2\n0\n"
		}
		if got := saying(t, s, sp); got != want {
			t.Errorf("confined %t: the process says %q, want %q", confined, got, want)
		}
		var out strings.Builder
		cmd := exec.Command("/bin/sh", "-c", try)
		cmd.Stdout, cmd.Env = &out, []string{"PATH=/usr/bin:/bin"}
		if err := s.StartBeside("worker", cmd, sp.User); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil || out.String() != want {
			t.Errorf("confined %t: a command beside it says %q, %v, want %q", confined, out.String(), err, want)
		}
	}
}

// BenchmarkStart starts a process and ends it: beside the host's root, and with one of its own.
func BenchmarkStart(b *testing.B) {
	for what, change := range map[string]func(*process.Spec){
		"host": func(sp *process.Spec) {
			sp.Root, sp.Mounts, sp.User.Inside = nil, nil, nil
		},
		"user namespace": func(sp *process.Spec) { sp.Root, sp.Mounts = nil, nil },
		"root":           func(sp *process.Spec) { sp.User.Inside = nil },
		"all":            func(sp *process.Spec) { sp.Confined = true },
	} {
		b.Run(what, func(b *testing.B) {
			dir := b.TempDir()
			s, _ := supervisor(b, dir)
			sp := inRoot(b, dir, "exec /bin/sleep 1000", change)
			sp.Pool, sp.PoolLimits.Processes = "bench", 4096
			sp.Name = "bench.worker"
			var started time.Duration
			for b.Loop() {
				began := time.Now()
				if err := s.Ensure(sp); err != nil {
					b.Fatal(err)
				}
				for statusOf(s, sp.Name).PID == 0 {
					if err := statusOf(s, sp.Name).LastError; err != nil {
						b.Fatal(err)
					}
					runtime.Gosched()
				}
				started += time.Since(began)
				if err := s.Stop(b.Context(), sp.Name); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(started.Microseconds())/float64(b.N), "µs/start")
		})
	}
}

// A process that has other mounts now than it was started with is not joined: whatever it has there, a command would
// begin with the rights of the supervisor.
func TestACommandDoesNotJoinMountsThatAProcessChose(t *testing.T) {
	dir := t.TempDir()
	s, _ := supervisor(t, dir)
	sp := inRoot(t, dir, "exec unshare -Ur unshare -m sh -c 'echo ready; exec sleep 1000'", nil)
	saying(t, s, sp)
	cmd := exec.Command("/bin/true")
	if err := s.StartBeside("worker", cmd, sp.User); err == nil || !strings.Contains(err.Error(), "other mounts") {
		t.Errorf("a command beside it: %v", err)
	}
}

func TestFileSystemsInMemoryGoWithTheirDirectory(t *testing.T) {
	if err := process.CanMount(); err != nil {
		t.Skip("no mounts here: ", err)
	}
	dir := t.TempDir()
	inside, outside := filepath.Join(dir, "top", "a b\u00a0c"), filepath.Join(dir, "other")
	for _, d := range []string{inside, outside} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time it is there
			if err := process.InMemory(d, "size=1m"); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(d, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = process.Unmount(dir) })
	link := filepath.Join(dir, "link")
	if err := os.Symlink("other", link); err != nil {
		t.Fatal(err)
	}
	for _, gone := range []string{link, filepath.Join(dir, "top")} {
		if err := process.RemoveAll(gone); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(gone); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", gone, err)
		}
	}
	if _, err := os.Stat(filepath.Join(outside, "file")); err != nil {
		t.Error(err)
	}
	if err := process.Unmount(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(outside, "file")); err == nil {
		t.Error("still mounted")
	}
}
