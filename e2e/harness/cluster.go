// Package harness runs whole clusters for tests: real processes of the real executable, real etcd members, real TLS. It
// observes a cluster from outside, by its public addresses, its etcd members and its processes; nothing of a service is
// linked into it.
//
// It is Linux only, as the local provider is.
package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/topology"
)

const (
	upPatience   = 10 * time.Minute // far above the figure that is promised: a test host may be busy
	downPatience = 5 * time.Minute
)

// Cluster is a running cluster as one test sees it. What goes wrong fails that test. Its methods may be called
// concurrently, but those that can fail the test only from the test's own goroutine.
type Cluster struct {
	*site
	t testing.TB
}

// site is a cluster, whichever test uses it.
type site struct {
	bin    string
	home   string // WINDLASS_HOME
	name   string
	dir    string // of the cluster
	subnet string
	guard  *guard
	lock   *os.File
	past   atomic.Bool // the harness asks etcd past the proxies before it

	mu      sync.Mutex
	callers map[string]*Caller
	stopped map[string]time.Time // members that a test killed or paused, and when
	closers []io.Closer
	broken  string // the test after which it did not recover
}

// Up starts a cluster of the test's own with `windlass up` and the given flags, and removes it when the test ends. One
// cluster of the harness runs at a time on a host, whichever test package it belongs to: they would only slow each
// other down. So a test that also uses Shared must not call Up; Second is for that.
func Up(t testing.TB, flags ...string) *Cluster {
	t.Helper()
	lock, err := lockHost()
	if err != nil {
		t.Fatal(err)
	}
	s, out, err := start(flags)
	if s != nil {
		s.lock = lock
		t.Cleanup(func() {
			if err := s.close(); err != nil {
				t.Errorf("remove cluster: %v", err)
			}
		})
	}
	return view(t, s, out, err)
}

// Second starts a cluster of the test's own beside the one that runs already.
func Second(t testing.TB, flags ...string) *Cluster {
	t.Helper()
	s, out, err := start(flags)
	if s != nil {
		t.Cleanup(func() {
			if err := s.close(); err != nil {
				t.Errorf("remove cluster: %v", err)
			}
		})
	}
	return view(t, s, out, err)
}

// view shows a site to a test, and has its state printed if the test fails.
func view(t testing.TB, s *site, out string, err error) *Cluster {
	t.Helper()
	if s == nil {
		t.Fatal(err)
	}
	c := &Cluster{site: s, t: t}
	t.Cleanup(func() {
		if t.Failed() {
			c.printState()
		}
	})
	if err != nil {
		t.Fatalf("windlass up: %v\n%s", err, out)
	}
	return c
}

// Shared is a cluster that the tests of a package share. The zero value is ready; it starts with the first test that
// asks.
type Shared struct {
	Flags []string // of `windlass up`

	once sync.Once
	site *site
	out  string
	err  error
}

// Main runs a package's tests and removes the shared cluster after them. For TestMain: os.Exit(shared.Main(m)).
func (s *Shared) Main(m *testing.M) int {
	code := m.Run()
	if s.site == nil {
		return code
	}
	if err := s.site.close(); err != nil {
		fmt.Fprintln(os.Stderr, "remove shared cluster:", err)
		return max(code, 1)
	}
	return code
}

// Cluster returns the shared cluster as t sees it.
func (s *Shared) Cluster(t testing.TB) *Cluster {
	t.Helper()
	s.once.Do(func() {
		lock, err := lockHost()
		if err != nil {
			s.err = err
			return
		}
		s.site, s.out, s.err = start(s.Flags)
		if s.site != nil {
			s.site.lock = lock
		}
	})
	if s.site != nil && s.site.brokenBy() != "" {
		t.Fatalf("the shared cluster is not whole since %s", s.site.brokenBy())
	}
	return view(t, s.site, s.out, s.err)
}

func (s *site) brokenBy() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broken
}

// lockHost waits until no other test process has a cluster.
func lockHost() (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(os.TempDir(), fmt.Sprintf("windlass-e2e-%d.lock", os.Getuid())),
		os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	return f, unix.Flock(int(f.Fd()), unix.LOCK_EX)
}

// start makes a cluster. The site is nil if there is nothing to remove.
func start(flags []string) (*site, string, error) {
	bin, err := Binary()
	if err != nil {
		return nil, "", err
	}
	// Short, because Unix sockets below it have names of at most 107 characters.
	home, err := os.MkdirTemp("", "wl-")
	if err != nil {
		return nil, "", err
	}
	name := strings.ToLower(filepath.Base(home))
	s := &site{bin: bin, home: home, name: name, callers: map[string]*Caller{}, stopped: map[string]time.Time{}}
	s.dir = filepath.Join(home, "clusters", name)
	if s.guard, err = newGuard(s); err != nil {
		return nil, "", errors.Join(err, os.RemoveAll(home))
	}
	out, err := s.up(flags...)
	return s, out, err
}

// up runs `windlass up` and learns the cluster's addresses.
func (s *site) up(flags ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), upPatience)
	defer cancel()
	args := append([]string{"up", "--timeout", (upPatience - 10*time.Second).String()}, flags...)
	out, err := s.command(ctx, args...).CombinedOutput()
	raw, readErr := os.ReadFile(filepath.Join(s.dir, "cluster.json"))
	if readErr != nil {
		return string(out), errors.Join(err, readErr)
	}
	var settings struct{ Subnet string }
	if readErr := json.Unmarshal(raw, &settings); readErr != nil {
		return string(out), errors.Join(err, readErr)
	}
	s.subnet = settings.Subnet
	return string(out), err
}

// Up brings the cluster back after a Down or a fault, and returns what was printed.
func (c *Cluster) Up(flags ...string) string {
	c.t.Helper()
	out, err := c.up(flags...)
	if err != nil {
		c.t.Fatalf("windlass up: %v\n%s", err, out)
	}
	return out
}

// Down stops the cluster with `windlass down`.
func (c *Cluster) Down() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), downPatience)
	defer cancel()
	if out, err := c.command(ctx, "down").CombinedOutput(); err != nil {
		c.t.Fatalf("windlass down: %v\n%s", err, out)
	}
}

// Name returns the cluster's name, Dir its directory or a path below it, Gateway the host and port of its one address.
func (s *site) Name() string { return s.name }

// Dir returns the cluster's directory, or what the path elements name in it.
func (s *site) Dir(elem ...string) string { return filepath.Join(append([]string{s.dir}, elem...)...) }

// Gateway returns host and port of the cluster's one address.
func (s *site) Gateway() string { return s.Address(topology.Port(topology.Gateway)) }

// Address returns host and port of one of the cluster's programs, which differ in their ports.
func (s *site) Address(port int) string { return fmt.Sprintf("%s.1:%d", s.subnet, port) }

// close removes the cluster and everything of it.
func (s *site) close() error {
	s.mu.Lock()
	for _, c := range s.closers {
		c.Close()
	}
	s.mu.Unlock()
	err := s.ContinueAll() // a paused process does not receive the signal to end
	ctx, cancel := context.WithTimeout(context.Background(), downPatience)
	defer cancel()
	if out, downErr := s.command(ctx, "down", "--purge").CombinedOutput(); downErr != nil {
		err = errors.Join(err, fmt.Errorf("windlass down --purge: %w\n%s", downErr, out))
	}
	if left, listErr := s.Processes(); listErr != nil || len(left) > 0 {
		err = errors.Join(err, listErr, fmt.Errorf("`windlass down` left processes running: %v", left), s.KillAll())
	}
	s.guard.stop()
	if s.lock != nil {
		s.lock.Close()
	}
	return errors.Join(err, os.RemoveAll(s.home))
}

// command is the executable under test, speaking of this cluster and of no other.
func (s *site) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.bin, args...)
	cmd.Env = s.environment()
	return cmd
}

func (s *site) environment() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "WINDLASS_") {
			env = append(env, kv)
		}
	}
	return append(env, "WINDLASS_HOME="+s.home, "WINDLASS_CLUSTER="+s.name)
}

// guard removes the cluster if the test process dies before it can: it waits for the end of a pipe that only the test
// process holds.
type guard struct {
	cmd  *exec.Cmd
	hold io.WriteCloser
}

func newGuard(s *site) (*guard, error) {
	const script = `read _; "$0" down --purge >/dev/null 2>&1; rm -rf "$1"`
	cmd := exec.Command("/bin/sh", "-c", script, s.bin, s.home)
	cmd.Env = s.environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	hold, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &guard{cmd, hold}, nil
}

func (g *guard) stop() {
	_ = g.cmd.Process.Kill()
	_ = g.cmd.Wait()
	g.hold.Close()
}

// Interrupt runs the command line as the administrator and kills it after the given time, unless it has ended.
func (c *Cluster) Interrupt(after time.Duration, args ...string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), after)
	defer cancel()
	_ = c.command(ctx, args...).Run() // by SIGKILL
}

// Result is what a program printed and how it ended.
type Result struct {
	Stdout, Stderr string
	Code           int
}

// run runs a command to its end. The error is that it could not be run at all.
func run(cmd *exec.Cmd, stdin string) (Result, error) {
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = nil
	}
	return Result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}, err
}

// TryUp is Up for other goroutines than the test's own.
func (c *Cluster) TryUp(flags ...string) error {
	out, err := c.up(flags...)
	if err != nil {
		return fmt.Errorf("windlass up: %w\n%s", err, out)
	}
	return nil
}
