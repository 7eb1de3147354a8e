package member

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/version"

	"github.com/windlass-dev/windlass/kit/process"
)

func TestHasData(t *testing.T) {
	for _, tc := range []struct {
		name string
		file string
		want bool
	}{
		{"nothing", "tls/peer.key", false},
		{"a database that a failed start left", "data/member/snap/db", false},
		{"a log", "data/member/wal/0000000000000000-0000000000000000.wal", true},
		{"a log that was not finished", "data/member/wal.tmp/0.tmp", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, tc.file)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			log := slog.New(slog.NewTextHandler(io.Discard, nil))
			m := New(Config{Dir: dir, Command: []string{"/bin/true"}}, process.NewSupervisor(filepath.Join(dir, "run"), log),
				log)
			if got := m.HasData(); got != tc.want {
				t.Errorf("HasData = %v", got)
			}
		})
	}
}

func TestAMemberRunsFromAnotherExecutableUntilItIsStartedAgain(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "windlass")
	lead := func(to string) {
		t.Helper()
		_ = os.Remove(link)
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	sleep, err := filepath.EvalSymlinks("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	s := process.NewSupervisor(filepath.Join(dir, "run"), log).WithoutCgroups()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	<-s.Active()
	m := New(Config{Dir: dir, Command: []string{link}}, s, log)
	lead(sleep)
	if m.EtcdVersion() != "" || m.Other() {
		t.Errorf("without a process: version %q, other: %v", m.EtcdVersion(), m.Other())
	}
	err = s.Ensure(process.Spec{Name: processName, Path: link, Args: []string{"1000"}, LogFile: filepath.Join(dir, "log")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop(context.Background(), processName) })
	for tick := time.NewTicker(5 * time.Millisecond); ; <-tick.C {
		if st, ok := s.Lookup(processName); ok && st.Running {
			break
		}
	}
	if m.Other() {
		t.Error("it runs from what it would be started from, and that is another executable")
	}
	lead(own)
	if m.EtcdVersion() != version.Version || !m.Other() {
		t.Errorf("after a change of the link: version %q, other: %v", m.EtcdVersion(), m.Other())
	}
}
