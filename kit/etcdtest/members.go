package etcdtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/windlass-dev/windlass/kit/store"
)

// With this variable the test binary is one member of etcd; its value is a memberConfig.
const asMember = "WINDLASS_ETCDTEST_MEMBER"

type memberConfig struct {
	Name, Dir, Cluster string
	Client, Peer       string
}

// Members is one etcd of several members. Each is a process of its own, so a test can stop one with a signal.
type Members struct {
	t       testing.TB
	members []*member
}

type member struct {
	config memberConfig
	cmd    *exec.Cmd
	output bytes.Buffer
}

// StartMembers starts an etcd of n members with the ticks of a real one, and waits until it answers. The members end
// with the test.
func StartMembers(t testing.TB, n int) *Members {
	t.Helper()
	dir, err := os.MkdirTemp("", "etcdtest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m := &Members{t: t}
	var cluster []string
	for i := range n {
		name := fmt.Sprintf("m%d", i)
		peer := fmt.Sprintf("unix://localhost:%d", i) // a socket of that name in the directory: rafthttp needs a host
		cluster = append(cluster, name+"="+peer)
		m.members = append(m.members, &member{config: memberConfig{
			Name: name, Dir: filepath.Join(dir, name), Client: "unix://" + filepath.Join(dir, name+".client"), Peer: peer,
		}})
	}
	for _, one := range m.members {
		one.config.Cluster = strings.Join(cluster, ",")
		if err := one.start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(one.stop)
	}
	client := m.Client(t)
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	for {
		try, cancel := context.WithTimeout(ctx, time.Second)
		_, err := client.Get(try, "ready")
		cancel()
		if err == nil {
			return m
		}
		if ctx.Err() != nil {
			t.Fatalf("members are not ready: %v\n%s", err, m.members[0].output.String())
		}
	}
}

func (m *member) start() error {
	config, err := json.Marshal(m.config)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	m.cmd = exec.Command(self)
	m.cmd.Dir = filepath.Dir(m.config.Dir)
	m.cmd.Env = append(os.Environ(), asMember+"="+string(config))
	m.cmd.Stdout, m.cmd.Stderr = &m.output, &m.output
	// Its end is the sign that the test is over, however that ended.
	if _, err := m.cmd.StdinPipe(); err != nil {
		return err
	}
	return m.cmd.Start()
}

func (m *member) stop() {
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait()
}

// Endpoints returns the client addresses of all members, in their order.
func (m *Members) Endpoints() []string {
	var out []string
	for _, one := range m.members {
		out = append(out, one.config.Client)
	}
	return out
}

// Client returns a client, as the services use it, of the members with the given numbers, or of all if none is given.
// It is closed when the test ends.
func (m *Members) Client(t testing.TB, only ...int) *clientv3.Client {
	t.Helper()
	endpoints := m.Endpoints()
	if len(only) > 0 {
		endpoints = nil
		for _, i := range only {
			endpoints = append(endpoints, m.members[i].config.Client)
		}
	}
	c, err := store.Dial(store.ClientConfig{Endpoints: endpoints})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Leader returns the number of the member that leads.
func (m *Members) Leader() int {
	m.t.Helper()
	c := m.Client(m.t)
	for i, endpoint := range m.Endpoints() {
		s, err := c.Status(m.t.Context(), endpoint)
		if err != nil {
			m.t.Fatal(err)
		}
		if s.Leader == s.Header.MemberId {
			return i
		}
	}
	m.t.Fatal("no member leads")
	return -1
}

// Stop stops a member by SIGSTOP: its connections stay open, and when Stop returns it is silent.
func (m *Members) Stop(i int) {
	m.t.Helper()
	m.signal(i, syscall.SIGSTOP)
	for pid := m.members[i].cmd.Process.Pid; !stopped(m.t, pid); {
		time.Sleep(time.Millisecond) // the kernel stops one thread after the other
	}
}

// stopped reports whether all threads of a process are stopped.
func stopped(t testing.TB, pid int) bool {
	t.Helper()
	paths, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no threads of process %d: %v", pid, err)
	}
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // the thread has ended
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, state, _ := bytes.Cut(raw, []byte(") ")); !bytes.HasPrefix(state, []byte("T")) {
			return false
		}
	}
	return true
}

// Continue ends Stop.
func (m *Members) Continue(i int) { m.signal(i, syscall.SIGCONT) }

// Kill ends a member by SIGKILL, and returns when it has ended.
func (m *Members) Kill(i int) { m.members[i].stop() }

// DataDir returns the directory of a member's data.
func (m *Members) DataDir(i int) string { return m.members[i].config.Dir }

func (m *Members) signal(i int, s syscall.Signal) {
	m.t.Helper()
	if err := m.members[i].cmd.Process.Signal(s); err != nil {
		m.t.Fatal(err)
	}
}

// runMember is the process of one member. It returns its exit code once the test that started it is over.
func runMember(raw string) int {
	if err := serveMember(raw); err != nil {
		fmt.Fprintln(os.Stderr, "etcd:", err)
		return 1
	}
	return 0
}

func serveMember(raw string) error {
	var c memberConfig
	if err := json.Unmarshal([]byte(raw), &c); err != nil {
		return err
	}
	client, err := url.Parse(c.Client)
	if err != nil {
		return err
	}
	peer, err := url.Parse(c.Peer)
	if err != nil {
		return err
	}
	cfg := config(c.Dir)
	cfg.Name, cfg.Dir, cfg.InitialCluster = c.Name, c.Dir, c.Cluster
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	cfg.ListenClientHttpUrls = socket(filepath.Dir(c.Dir), c.Name+".http")
	cfg.TickMs, cfg.ElectionMs = 100, 1000
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	defer e.Close()
	defer e.Server.HardStop()
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	select {
	case <-over:
		return nil
	case <-e.Server.StopNotify():
		return errors.New("stopped")
	case err := <-e.Err():
		return err
	}
}
