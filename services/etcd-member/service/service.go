// Package service runs one etcd server of a Windlass cluster: secured, with the limits that Windlass needs, and
// with its users set up before the first client is served.
package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/gcpace"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/services/etcd-member/users"
)

const (
	transferPatience = time.Second            // to hand leadership over before stopping
	drainPatience    = 100 * time.Millisecond // for calls that are under way; watches never end by themselves
	haltPatience     = 2 * time.Second        // for the server to close its files
)

// Run runs the member until ctx ends, and then hands over leadership, stops and returns nil. It returns ErrRemoved
// if the cluster removed the member; ExitCode returns the exit code. The process should end after Run: etcd
// does not let go of everything.
func Run(ctx context.Context, args []string, stderr io.Writer) error {
	cfg, err := parse(args, stderr)
	if errors.Is(err, pflag.ErrHelp) {
		return nil
	}
	if err != nil {
		return usageError{err}
	}
	m := &member{cfg: cfg, log: newLog(cfg, stderr)}
	if m.validity, err = identity.OpenValidity(""); err != nil {
		return err
	}
	m.validity.CloseAtOnce()
	if m.etcdLog, err = etcdLog(cfg, stderr); err != nil {
		return usageError{err}
	}
	var list []users.User
	if cfg.usersFile != "" {
		if list, err = users.Load(cfg.usersFile); err != nil {
			return usageError{err}
		}
	}
	if m.wasRemoved() {
		return errRemoved
	}
	limitMemory(cfg.memoryBytes)
	return m.run(ctx, list)
}

// limitMemory collects garbage early while the member is quiet, which costs little: most of its memory is mapped, not
// allocated. The environment has the last word.
func limitMemory(limit int64) {
	gcpace.Follow(30)
	if os.Getenv("GOMEMLIMIT") == "" && limit > 0 {
		debug.SetMemoryLimit(limit)
	}
}

func (m *member) run(ctx context.Context, list []users.User) error {
	begin := time.Now()
	if err := os.MkdirAll(m.cfg.dataDir, 0o700); err != nil {
		return err
	}
	var err error
	if m.socket, err = m.cfg.socketPath(); err != nil {
		return usageError{err}
	}
	if m.peers, err = listenPeers(m.cfg, m.validity); err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() { failed <- m.peers.run() }()
	defer m.peers.close()
	m.gate.open.Store(!m.cfg.bootstrap)
	e, err := m.start(ctx)
	if err == nil && e != nil {
		if ctx.Err() == nil {
			m.log.Info("etcd is ready", "id", e.Server.MemberID().String(), "elapsed_ms", time.Since(begin).Milliseconds())
		}
		err = m.serve(ctx, e, list, failed)
	}
	if errors.Is(err, errRemoved) {
		m.markRemoved()
	}
	return err
}

// serve sets up the users and waits for the end.
func (m *member) serve(ctx context.Context, e *embed.Etcd, list []users.User, peersFailed <-chan error) error {
	setup, stopSetup := context.WithCancel(ctx)
	setupDone := make(chan struct{})
	go func() {
		defer close(setupDone)
		m.setUp(setup, e, list)
	}()
	defer func() { stopSetup(); <-setupDone }()
	select {
	case <-ctx.Done():
		return m.stop(e)
	case <-e.Server.StopNotify():
		return whyEnded(e, nil)
	case err := <-e.Err():
		return whyEnded(e, err)
	case err := <-peersFailed:
		return fmt.Errorf("serve peers: %w", err)
	}
}

// setUp brings the users into being and opens the gate, trying for as long as it takes.
func (m *member) setUp(ctx context.Context, e *embed.Etcd, list []users.User) {
	root := e.Server.AuthStore()
	if root.IsAuthEnabled() {
		m.gate.open.Store(true) // an earlier start got through; what follows only adds
	}
	if m.cfg.usersFile == "" {
		return
	}
	client := v3client.New(e.Server) // in process, past the gate
	defer client.Close()
	begin, told := time.Now(), ""
	for again := backoff.New(50*time.Millisecond, 2*time.Second); ctx.Err() == nil; again.Wait(ctx) {
		err := m.gate.call(func() error { return users.Ensure(root.WithRoot(ctx), client, list) })
		if err == nil {
			m.gate.open.Store(true)
			m.log.Info("users are set up", "users", len(list), "elapsed_ms", time.Since(begin).Milliseconds())
			return
		}
		if err.Error() != told && ctx.Err() == nil {
			told = err.Error()
			m.log.Warn("users are not set up yet", "error", err)
		}
	}
}

// stop hands leadership over, lets calls finish, and stops the server. It does not close etcd as a whole: that
// waits 8 s for open watches.
func (m *member) stop(e *embed.Etcd) error {
	begin := time.Now()
	within(transferPatience, func() {
		if err := e.Server.TryTransferLeadershipOnShutdown(); err != nil {
			m.log.Warn("leadership is not handed over", "error", err)
		}
	})
	if s := m.grpc.Load(); s != nil {
		within(drainPatience, s.GracefulStop)
		within(drainPatience, s.Stop)
	}
	if !within(haltPatience, e.Server.HardStop) {
		return fmt.Errorf("etcd did not stop within %v", haltPatience)
	}
	m.log.Info("etcd is stopped", "elapsed_ms", time.Since(begin).Milliseconds())
	return nil
}

// within runs f and reports whether it ended in time. If not, f goes on; the process is about to end.
func within(limit time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}
