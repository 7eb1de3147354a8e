package hostagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/machineconfig"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/services/node-agent/hostagent/plan"
	"github.com/windlass-dev/windlass/services/node-agent/hostconfig"
	"github.com/windlass-dev/windlass/services/node-agent/machine"
)

// Config says which host it is, and how its machine is run.
type Config struct {
	Name       string // of the host
	Address    string // IP address of the host
	Dir        string // of the host; its machine is in node below it
	Executable string // that holds the node-agent
	Link       string // path of Executable that stays when a host is updated: what is started by it is not started again
	// PodsDir holds the pods; empty: they are in the machine's own directory, and run as this process's user.
	PodsDir    string
	PodUsers   process.Users       // that pods run as
	Supervisor *process.Supervisor // of the machine's agent
	// EndContainers ends what a container runtime has of the pods in a directory.
	EndContainers func(ctx context.Context, podsDir string) error
	Files         identity.Files // certificate of the host
	Renews        bool           // the certificate is renewed by the cluster, not by an authority on this host
	Certificates  Certificates   // what is asked of the certificates; nil on a host that has no authority
	Access        Access         // keeps the policy and the tokens; nil on a host that has none
	Gateway       string         // of this host, which is preferred; empty if it has none
	GatewaysFile  string         // has the endpoints of all gateways, one per line, as they were known last
	Runtime       string         // what runs containers, as --runtime of node-agent takes it; empty: processes
	Root          string         // of the files that configurations change: /, or empty for a directory of the machine
	AllowedPaths  []string       // what of the host they may change, too
	Observe       bool           // nothing of the host is changed
	Log           *slog.Logger
}

const (
	// ProcessName is the name of the process of the machine's agent.
	ProcessName = "node-agent"
	recordFile  = "machine.json"
	// startPatience is for the start of the agent's process, which startPoll looks for.
	startPatience = 10 * time.Second
	startPoll     = 20 * time.Millisecond
)

// hostMachine is the machine of a host. Its methods are for one goroutine at a time.
type hostMachine struct{ cfg Config }

func (m *hostMachine) path(elem ...string) string {
	return filepath.Join(append([]string{m.cfg.Dir, "node"}, elem...)...)
}

// uid returns the uid of the machine whose files the host has; empty if it has none.
func (m *hostMachine) uid() (string, error) {
	r, err := m.record()
	if r == nil {
		return "", err
	}
	return r.UID, err
}

func (m *hostMachine) record() (*plan.Record, error) {
	data, err := os.ReadFile(m.path(recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r := &plan.Record{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%s: %w", m.path(recordFile), err)
	}
	return r, nil
}

// follow does what an order says, or, without one, what the disk says: it starts the machine again, or ends a wipe that
// was cut off. It may be repeated.
func (m *hostMachine) follow(ctx context.Context, o *hostv1.HostOrder) error {
	for {
		r, err := m.record()
		if err != nil {
			return err
		}
		p := plan.Next(plan.View{Record: r, Order: o})
		if err := m.do(ctx, p, o); err != nil || !p.Erase {
			return err
		}
		// What was there is gone now: the order is still in force.
	}
}

func (m *hostMachine) do(ctx context.Context, p plan.Plan, o *hostv1.HostOrder) error {
	if p.Clear {
		if err := m.erase(ctx); err != nil {
			return err
		}
	}
	if p.Write != nil {
		if err := m.write(*p.Write, o); err != nil && !p.Erase {
			return err
		} else if err != nil { // a full disk is no reason to let the machine run on: the order comes again after a crash
			m.cfg.Log.WarnContext(ctx, "the wipe of the machine is not written down", "error", err)
		}
	}
	if p.Erase {
		m.cfg.Log.InfoContext(ctx, "the machine of this host is wiped")
		return m.erase(ctx)
	}
	if p.Run {
		if err := m.cfg.Supervisor.Ensure(m.spec()); err != nil {
			return err
		}
	}
	switch {
	case p.Refuse != "":
		return errors.New(p.Refuse)
	case p.Run && o != nil:
		return m.started(ctx)
	}
	return nil
}

// started waits until the agent of the machine runs, for a while.
func (m *hostMachine) started(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for backoff.Sleep(ctx, startPoll) {
		if st, ok := m.cfg.Supervisor.Lookup(ProcessName); ok && st.Running {
			return nil
		}
	}
	return fmt.Errorf("the agent of the machine does not start: see %s", m.spec().LogFile)
}

// write writes the record of a machine, and before that of a new one what it joins with.
func (m *hostMachine) write(r plan.Record, o *hostv1.HostOrder) error {
	if err := durable.MkdirAll(m.path(), 0o700); err != nil {
		return err
	}
	if r.State == plan.Running {
		b := machine.Bootstrap{
			Endpoints: o.GetBootstrap().GetEndpoints(), Token: o.GetBootstrap().GetToken(), Role: o.GetBootstrap().GetRole(),
			Address: m.cfg.Address, NodeName: r.Name, ProviderID: o.GetProviderId(),
		}
		if err := b.Save(m.path()); err != nil {
			return err
		}
	}
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return durable.WriteFile(m.path(recordFile), append(data, '\n'), 0o600)
}

func (m *hostMachine) spec() process.Spec {
	args := []string{
		"serve", "node-agent", "--dir", m.path(), "--images", filepath.Join(m.cfg.Dir, "images"), "--executable", m.cfg.Link,
		"--gateways-file", m.cfg.GatewaysFile,
	}
	if m.cfg.PodUsers.Count > 0 {
		args = append(args, "--pods-dir", m.podsDir(), "--pod-users", m.cfg.PodUsers.String())
	}
	if m.cfg.Runtime != "" {
		args = append(args, "--runtime", m.cfg.Runtime)
	}
	if m.cfg.Root != "" {
		args = append(args, "--root", m.cfg.Root)
		for _, p := range m.cfg.AllowedPaths {
			args = append(args, "--allow-path", p)
		}
		if m.cfg.Observe {
			args = append(args, "--observe")
		}
	}
	return process.Spec{
		Name: ProcessName, Path: m.cfg.Executable, Args: args, Dir: m.path(),
		LogFile: filepath.Join(m.cfg.Dir, "logs", ProcessName+".log"),
	}
}

// podsDir returns the directory of the machine's pods: the only machine of its host, whatever its name.
func (m *hostMachine) podsDir() string {
	if m.cfg.PodsDir == "" {
		return m.path("pods")
	}
	return filepath.Join(m.cfg.PodsDir, "node")
}

// errStopped means that nothing of a machine runs any more and its keys are removed, but not all of its files.
var errStopped = errors.New("the machine is stopped, and not all of its files are removed")

// erase ends everything of the machine, as if its power were cut, and removes its files, the keys first; errStopped if
// only some of the others are left. The record is removed last: as long as it is there, the wipe is taken up again.
func (m *hostMachine) erase(ctx context.Context) error {
	if err := m.kill(ctx); err != nil {
		return err
	}
	for _, keys := range []string{"pki", "etcd", "bootstrap.json"} {
		if err := os.RemoveAll(m.path(keys)); err != nil {
			return err
		}
	}
	if err := m.restore(ctx); err != nil {
		return fmt.Errorf("%w: the files of the host are not restored: %w", errStopped, err)
	}
	if err := m.remove(); err != nil {
		return fmt.Errorf("%w: %w", errStopped, err)
	}
	return nil
}

// restore puts back the files of the host that configurations changed, and ends their units.
func (m *hostMachine) restore(ctx context.Context) error {
	if m.cfg.Root == "" {
		return nil
	}
	dir := m.path(hostconfig.HostDir)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return hostconfig.Restore(ctx, hostconfig.Config{
		Dir: dir, Root: m.cfg.Root, Files: &machineconfig.Files{}, Systemd: true, Log: m.cfg.Log,
	})
}

// kill ends everything of the machine. It may run again afterwards.
func (m *hostMachine) kill(ctx context.Context) error {
	_ = m.cfg.Supervisor.Signal(ProcessName, unix.SIGKILL) // it runs nothing that outlives its machine; perhaps it is gone
	if err := m.cfg.Supervisor.Stop(ctx, ProcessName); err != nil {
		return err
	}
	if _, err := os.Stat(m.path("run")); err == nil {
		if err := process.KillAll(ctx, m.path("run")); err != nil {
			return err
		}
	}
	if err := m.cfg.PodUsers.Kill(); err != nil {
		return err
	}
	return m.cfg.EndContainers(ctx, m.podsDir())
}

// remove removes the files of the machine, the record last.
func (m *hostMachine) remove() error {
	if err := process.RemoveAll(m.podsDir()); err != nil {
		return err
	}
	entries, err := os.ReadDir(m.path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == recordFile {
			continue
		}
		if err := os.RemoveAll(m.path(e.Name())); err != nil {
			return err
		}
	}
	if err := durable.Remove(m.path(recordFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// halt ends what runs of the machine without removing anything, unless it is a control-plane machine: its member of
// etcd is the quorum's matter, and ends by itself when it was removed. It reports whether it did.
func (m *hostMachine) halt(ctx context.Context) (bool, error) {
	r, err := m.record()
	if err != nil || r == nil {
		return false, err
	}
	b, err := machine.LoadBootstrap(m.path())
	if err != nil || b.Role == machine.Master {
		return false, err
	}
	return true, m.kill(ctx)
}
