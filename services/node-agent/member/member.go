// Package member keeps the etcd member of a control-plane machine: its settings on the disk, its process and its data.
// Settings are written before anything is done, so that the next start after a crash continues where it ended.
package member

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/version"

	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/kit/process"

	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

const (
	processName = "etcd-member"
	recordFile  = "member.json"
	// exitRemoved is how the process says that the cluster removed its member.
	exitRemoved = 3
)

// Config says where a member lives.
type Config struct {
	Dir     string   // of the member: its settings, "data" and "tls"
	Address string   // IP address of the machine
	Command []string // that runs an etcd member: an absolute path, and the arguments before the member's own flags
}

// Member is the one member of a machine. Its methods may be called concurrently.
type Member struct {
	cfg        Config
	supervisor *process.Supervisor
	log        *slog.Logger

	mu      sync.Mutex // held while an order is followed
	noted   bool       // the record says that there is data
	renewal time.Time  // when the certificates are renewed; zero until that is known
}

// New returns the member of a machine; its process runs under supervisor.
func New(cfg Config, supervisor *process.Supervisor, log *slog.Logger) *Member {
	return &Member{cfg: cfg, supervisor: supervisor, log: log}
}

// PeerURL returns the address for the other members.
func (m *Member) PeerURL() string { return "https://" + net.JoinHostPort(m.cfg.Address, "2380") }

// ClientURL returns the address for clients.
func (m *Member) ClientURL() string { return "https://" + net.JoinHostPort(m.cfg.Address, "2379") }

func (m *Member) path(name string) string { return filepath.Join(m.cfg.Dir, name) }

// HasData reports whether a member's data is on the disk. A start that did not reach the cluster leaves a database
// behind, but no log; etcd then takes the settings of the next start, so that is no data.
func (m *Member) HasData() bool {
	logs, err := filepath.Glob(m.path("data/member/wal/*.wal"))
	return err == nil && len(logs) > 0
}

// Resume does what the disk says, without a call: it starts the member again, or ends a removal that was
// interrupted.
func (m *Member) Resume(ctx context.Context) error { return m.Follow(ctx, plan.Order{}) }

// Removed reports whether the process ended because the cluster removed the member.
func (m *Member) Removed() bool {
	for _, st := range m.supervisor.Status() {
		if st.Name == processName {
			return st.Final
		}
	}
	return false
}

// EtcdVersion returns the version of etcd that the member runs after its next start; empty if it is then started from
// another executable than this process runs from.
func (m *Member) EtcdVersion() string {
	own, err := os.Readlink("/proc/self/exe")
	if next, nextErr := filepath.EvalSymlinks(m.cfg.Command[0]); err != nil || nextErr != nil || next != own {
		return ""
	}
	return version.Version
}

// Other reports whether the member runs from another executable than it would be started from.
func (m *Member) Other() bool {
	st, ok := m.supervisor.Lookup(processName)
	if !ok || !st.Running {
		return false
	}
	now, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", st.PID))
	next, nextErr := filepath.EvalSymlinks(m.cfg.Command[0])
	return err == nil && nextErr == nil && now != next
}

// Note writes down that the member has data, as soon as it has. It costs nothing once that is done.
func (m *Member) Note(ctx context.Context) error {
	m.mu.Lock()
	done := m.noted || !m.HasData()
	m.mu.Unlock()
	if done {
		return nil
	}
	return m.Follow(ctx, plan.Order{})
}

// Follow does what an order says; plan.ErrRefused if that would harm the cluster. It may be repeated.
func (m *Member) Follow(ctx context.Context, order plan.Order) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		record, err := m.load()
		if err != nil {
			return err
		}
		p := plan.Member(plan.MemberView{
			Record: record, HasData: m.HasData(), Removed: m.Removed(), Trust: m.startedWith(),
			Other: m.Other(), Order: order,
		})
		if err := m.do(ctx, p); err != nil {
			return err
		}
		if !p.Erase || order.Command != plan.Start {
			return nil
		}
		// What was there is gone now: the command is still in force.
	}
}

func (m *Member) do(ctx context.Context, p plan.MemberPlan) error {
	if p.Refuse != "" {
		return fmt.Errorf("%w: %s", plan.ErrRefused, p.Refuse)
	}
	if p.Restart {
		m.log.InfoContext(ctx, "member is started again, for other authorities or another executable")
		if err := m.halt(ctx); err != nil {
			return err
		}
	}
	if p.Write != nil {
		if err := m.write(*p.Write); err != nil {
			return err
		}
	}
	if p.Halt {
		if err := m.halt(ctx); err != nil {
			return err
		}
	}
	if p.Erase {
		m.log.InfoContext(ctx, "member's data removed")
		m.noted = false
		return m.erase()
	}
	if p.Run == nil {
		return nil
	}
	m.noted = p.Run.HadData
	return m.supervisor.Ensure(m.spec(*p.Run))
}

// halt ends the process. A supervisor that is about to begin is waited for.
func (m *Member) halt(ctx context.Context) error {
	for {
		err := m.supervisor.Stop(ctx, processName)
		if !errors.Is(err, process.ErrNotRunning) {
			return err
		}
		timer := time.NewTimer(10 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// spec is the process of the member. Only what differs between members is said; everything else is etcd-member's own
// choice.
func (m *Member) spec(r plan.Record) process.Spec {
	args := append([]string{}, m.cfg.Command[1:]...)
	args = append(args,
		"--name", r.Name, "--data-dir", m.path("data"), "--tls-dir", m.path("tls"),
		"--listen-client", m.ClientURL(), "--listen-peer", m.PeerURL(),
		"--initial-cluster", r.InitialCluster, "--initial-cluster-token", r.ClusterToken, "--initial-cluster-state",
		"existing")
	if r.QuotaBytes != 0 {
		args = append(args, "--quota-backend-bytes", strconv.FormatInt(r.QuotaBytes, 10))
	}
	return process.Spec{
		Name: processName, Path: m.cfg.Command[0], Args: args, LogFile: m.path("member.log"), FinalExits: []int{exitRemoved},
	}
}

func (m *Member) load() (*plan.Record, error) {
	data, err := os.ReadFile(m.path(recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r := &plan.Record{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%s: %w", recordFile, err)
	}
	return r, nil
}

func (m *Member) write(r plan.Record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(m.cfg.Dir, 0o700); err != nil {
		return err
	}
	return durable.WriteFile(m.path(recordFile), append(data, '\n'), 0o600)
}

// erase removes the data and then the record: as long as the record is there, the removal is taken up again.
func (m *Member) erase() error {
	if err := os.RemoveAll(m.path("data")); err != nil {
		return err
	}
	if err := durable.Remove(m.path(recordFile)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
