// Package service runs node-agent: it speaks for one machine with the cluster, and keeps what runs on the machine
// running, the etcd member of a control-plane machine above all. What runs outlives the agent and is taken over by the
// next one.
package service

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/spf13/pflag"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/machineconfig"
	"github.com/windlass-dev/windlass/kit/nodeid"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/process"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/windlass-dev/windlass/services/node-agent/agent"
	"github.com/windlass-dev/windlass/services/node-agent/cri"
	"github.com/windlass-dev/windlass/services/node-agent/hellopod"
	"github.com/windlass-dev/windlass/services/node-agent/hostconfig"
	"github.com/windlass-dev/windlass/services/node-agent/hostos"
	"github.com/windlass-dev/windlass/services/node-agent/image"
	"github.com/windlass-dev/windlass/services/node-agent/image/feed"
	"github.com/windlass-dev/windlass/services/node-agent/logger"
	"github.com/windlass-dev/windlass/services/node-agent/machine"
	"github.com/windlass-dev/windlass/services/node-agent/member"
	"github.com/windlass-dev/windlass/services/node-agent/pki"
	"github.com/windlass-dev/windlass/services/node-agent/pods"
	"github.com/windlass-dev/windlass/services/node-agent/proxy"
)

const (
	// haltPatience bounds the end of everything on the machine before a reboot.
	haltPatience = 30 * time.Second
	// podPatience is how long pods get to end then.
	podPatience = 10 * time.Second
	// configPatience is how long a new configuration may keep a host from the cluster.
	configPatience = 10 * time.Minute
)

// Run speaks for the machine until ctx ends, or until the cluster wants a reboot: then everything on the machine is
// ended and Run returns nil, for the provider to start the machine again.
func Run(ctx context.Context, args []string, stderr io.Writer) error {
	cfg, err := parse(args, stderr)
	if errors.Is(err, pflag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	log, err := cfg.logger(stderr)
	if err != nil {
		return err
	}
	if cfg.erase {
		return EndContainers(ctx, []string{cfg.podsDir}, log, func(string) {})
	}
	limitMemory()
	boot, err := machine.LoadBoot(cfg.dir)
	if err != nil {
		return err
	}
	bootstrap, err := machine.LoadBootstrap(cfg.dir)
	if err != nil {
		return err
	}
	m := &instance{cfg: cfg, boot: boot, bootstrap: bootstrap, log: log.With("node", bootstrap.NodeName)}
	m.system = hostos.Local(filepath.Join(cfg.dir, "os"), boot.ID, func(ctx context.Context, ref, dir string) error {
		return m.images.Unpack(ctx, ref, dir)
	})
	return m.run(ctx)
}

// HelloPod runs the program of images named hello-pod, until ctx ends.
func HelloPod(ctx context.Context, args []string, out io.Writer) error {
	return hellopod.Run(ctx, args, out)
}

// ContainerLogger writes the logs of an agent's containers, until ctx ends.
func ContainerLogger(ctx context.Context, args []string, stderr io.Writer) error {
	limitMemory()
	return logger.Run(ctx, args, stderr)
}

// limitMemory trades a little work for memory: an agent is idle nearly all of its time, and there are many. The
// environment has the last word.
func limitMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(48 << 20)
	}
}

// instance is the machine that the agent speaks for.
type instance struct {
	cfg        config
	boot       machine.Boot
	bootstrap  machine.Bootstrap
	log        *slog.Logger
	supervisor *process.Supervisor
	runtime    *cri.Runtime // nil: containers are processes
	images     *image.Library
	system     hostos.Driver
	pods       *pods.Pods // nil before the machine has joined
}

func (i *instance) run(ctx context.Context) error {
	i.supervisor = process.NewSupervisor(filepath.Join(i.cfg.dir, "run"), i.log)
	var m *member.Member
	if i.bootstrap.Role == machine.Master {
		m = member.New(member.Config{
			Dir: filepath.Join(i.cfg.dir, "etcd"), Address: i.bootstrap.Address, Command: i.cfg.memberCommand,
		}, i.supervisor, i.log)
	}
	if i.cfg.runtime != "" {
		var err error
		if i.runtime, err = cri.New(cri.Config{Endpoint: i.cfg.runtime, Owner: i.cfg.podsDir, Log: i.log}); err != nil {
			return err
		}
	}
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return i.supervisor.Run(running) })
	if i.runtime != nil {
		group.Go(func() error { return i.runtime.Run(running) })
	}
	group.Go(func() error {
		i.resume(running, m)
		err := i.speak(running, m)
		if errors.Is(err, agent.ErrReboot) {
			if i.cfg.root != "" {
				return i.awaitRestart(running)
			}
			if err := i.halt(running); err != nil { // the boot is the same then, and its end is asked for again
				i.log.WarnContext(ctx, "machine does not restart", "error", err)
			}
		}
		return err
	})
	err := group.Wait()
	if errors.Is(err, agent.ErrReboot) || (ctx.Err() != nil && errors.Is(err, ctx.Err())) {
		return nil
	}
	return err
}

// resume has the member run as the disk says, before any call: the cluster may be waiting for this very member
// to answer. What fails now is tried again when the member is offered.
func (i *instance) resume(ctx context.Context, m *member.Member) {
	if m == nil {
		return
	}
	if err := m.Resume(ctx); err != nil && ctx.Err() == nil {
		i.log.WarnContext(ctx, "member not started from disk", "error", err)
	}
}

// speak joins the cluster and then speaks for the node.
func (i *instance) speak(ctx context.Context, m *member.Member) error {
	hash, err := i.bootstrap.AuthorityHash()
	if err != nil {
		return err
	}
	store := pki.NewStore(i.cfg.dir, i.bootstrap.Endpoints, i.cfg.gatewaysFile)
	node, err := store.Join(ctx, i.bootstrap.Token, hash, i.bootstrap.NodeName, i.log)
	if err != nil {
		return err
	}
	conn, err := store.Dial(i.log)
	if err != nil {
		return err
	}
	defer conn.Close()
	if i.images, err = i.newImages(); err != nil {
		return err
	}
	status, err := i.bootstrap.Status(node.Name, cmp.Or(node.Address, i.bootstrap.Address), i.boot, i.systemFiles())
	if err != nil {
		return err
	}
	if _, _, err := i.system.Booted(); err != nil {
		status.NodeInfo.OsImage = "unknown"
	}
	if i.runtime != nil {
		status.NodeInfo.ContainerRuntimeVersion = i.runtimeVersion(ctx)
	}
	i.resolve(ctx)
	var services *proxy.Proxy
	services = proxy.New(proxy.Config{
		Dir: i.cfg.dir, HostDir: i.cfg.hostDir, Node: node.Name, Conn: conn, Log: i.log,
		Elected: func(ctx context.Context) error { return i.answerNames(ctx, services) },
	})
	var a *agent.Agent
	hostPorts := services.HostPorts()
	if i.pods, err = i.newPods(node, status, store, conn, services, hostPorts,
		func(ctx context.Context, fresh bool) (*nodev1.Node,
			error,
		) {
			return a.Node(ctx, fresh)
		}); err != nil {
		return err
	}
	cfg := agent.Config{
		Node: node.Name, BootID: i.boot.ID, Conn: conn, Conditions: i.pods.Conditions, Images: i.pods.Images,
		NotReady: i.pods.NotReady, Log: i.log,
		Registration: &nodev1.RegisterNodeRequest{
			Name: node.Name, ProviderId: node.ProviderID, Machine: agent.MachineRef(node.MachineNamespace, node.MachineName),
			Labels: i.labels(node.Name), Status: status,
		},
	}
	if m != nil {
		cfg.Member = m
	}
	a = agent.New(cfg)
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return a.Beat(running) })
	group.Go(func() error { return a.ReportImages(running) })
	group.Go(func() error { return i.pods.Run(running) })
	group.Go(func() error { return services.Run(running) })
	group.Go(func() error { return hostPorts.Run(running) })
	group.Go(func() error { return i.newHost(node.Name, conn, a).Run(running) })
	group.Go(func() error { return store.Renew(running, conn, node.Name, i.log) })
	group.Go(func() error { return store.Follow(running, conn, i.log) })
	if m != nil {
		group.Go(func() error { return a.Attend(running) })
	}
	return group.Wait()
}

func (i *instance) newHost(node string, conn grpc.ClientConnInterface, a *agent.Agent) *hostconfig.Host {
	cfg := hostconfig.Config{
		Dir: i.cfg.dir, Node: node, BootID: i.boot.ID, Conn: conn, Supervisor: i.supervisor, Reboot: agent.ErrReboot,
		System: i.system,
		Log:    i.log,
		Registered: func(ctx context.Context) error {
			_, err := a.Node(ctx, false)
			return err
		},
	}
	if i.cfg.root != "" { // no driver installs another operating system on a host
		cfg.Root, cfg.Files, cfg.Systemd = i.cfg.root, &machineconfig.Files{Allowed: i.cfg.allowed}, true
		cfg.Observe, cfg.Patience, cfg.System = i.cfg.observe, configPatience, nil
		cfg.Restart, cfg.Dir = restartHost, filepath.Join(i.cfg.dir, hostconfig.HostDir)
	}
	return hostconfig.New(cfg)
}

// labels returns what the agent says of its node.
func (i *instance) labels(node string) map[string]string {
	out := machine.Labels(node, !i.cfg.addresses.Range.IsValid())
	switch {
	case i.cfg.observe:
		out[nodeid.FilesLabel] = nodeid.ObservedFiles
	case i.cfg.root != "":
		out[nodeid.FilesLabel] = nodeid.HostFiles
	}
	return out
}

// systemFiles returns the directory of the operating system that the machine runs; empty if it is the host's.
func (i *instance) systemFiles() string {
	if _, s, err := i.system.Booted(); err != nil || s.Image == "" {
		return ""
	}
	return i.system.Root()
}

func (i *instance) newImages() (*image.Library, error) {
	library := image.LibraryConfig{
		Dir: filepath.Join(i.cfg.dir, "unpacked"), Layouts: i.cfg.images, Settings: i.cfg.registries, Log: i.log,
	}
	if i.runtime != nil {
		library.Dir, library.Keeper = filepath.Join(i.cfg.dir, "kept"), feed.New(i.runtime, 0)
		library.Disk = i.runtime.ImageDir
	}
	return image.NewLibrary(library)
}

func (i *instance) newPods(
	node pki.Node, status *nodev1.NodeStatus, store *pki.Store, conn grpc.ClientConnInterface,
	services *proxy.Proxy, hostPorts *proxy.HostPorts, nodeOf func(context.Context, bool) (*nodev1.Node, error),
) (*pods.Pods, error) {
	has, _ := placement.Allocatable(&nodev1.Node{Status: status})
	if err := noteRuntime(i.cfg.podsDir, i.cfg.runtime); err != nil {
		return nil, err
	}
	return pods.New(pods.Config{
		Dir: i.cfg.podsDir, Users: i.cfg.podUsers, Node: node.Name, Address: cmp.Or(node.Address, i.bootstrap.Address),
		Addresses: i.cfg.addresses, DNS: i.cfg.dns, BootID: i.boot.ID, Conn: conn,
		Authority: store.Files().CA, Gateways: store.Endpoints,
		Services: func(ctx context.Context) ([]*schedulingv1.ServiceEndpoints, bool) {
			known := services.Await(ctx)
			return services.Services(), known
		},
		HostPorts: hostPorts.Set, Supervisor: i.supervisor, Images: i.images, Runtime: i.runtime,
		ShimCommand:  i.cfg.shimCommand,
		HelloCommand: i.cfg.helloCommand, NodeOf: nodeOf,
		LoggerCommand: i.cfg.loggerCommand, LoggerDir: filepath.Join(i.cfg.dir, "logger"),
		ProcessLimit: i.cfg.podPIDsLimit, MemoryCapacity: has.Memory, DiskCapacity: has.EphemeralStorage, Log: i.log,
	})
}

// runtimeVersion returns what the container runtime says of itself; it may not answer yet.
func (i *instance) runtimeVersion(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, runtimePatience)
	defer cancel()
	select {
	case <-i.runtime.Active():
	case <-ctx.Done():
	}
	return i.runtime.Version()
}

// halt ends everything that runs on the machine and makes the next start a new boot.
func (i *instance) halt(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, haltPatience)
	defer cancel()
	if err := i.pods.Halt(ctx, podPatience); err != nil {
		return err
	}
	names, err := i.supervisor.Recorded()
	if err != nil {
		return err
	}
	group, ending := errgroup.WithContext(ctx)
	for _, name := range names { // all at once, since each may take its whole grace
		group.Go(func() error { return i.supervisor.Stop(ending, name) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	i.log.InfoContext(ctx, "machine restarts")
	return machine.EndBoot(i.cfg.dir)
}
