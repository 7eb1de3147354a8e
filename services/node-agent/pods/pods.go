// Package pods runs the pods that are bound to the agent's node. A container is a process with a directory of its own;
// its processes outlive the agent and are taken over by the next one. It promises that a container is never started
// twice at once, that how it ended is known even if the agent did not run then, and that nothing of a pod stays once
// the cluster does not have it any more.
//
// With Users each pod has a user of its own, who reaches nothing of the cluster, the machine's agent or other pods; the
// pods share the network and what the host lets every user read. Without, what runs in a pod is a process of the
// agent's user, and sees the machine as the agent does: no security boundary.
package pods

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/loopback"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/services/node-agent/cri"
	"github.com/windlass-dev/windlass/services/node-agent/image"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
	"github.com/windlass-dev/windlass/services/node-agent/stream"
)

const (
	settlers  = 4 // pods that are started or ended at a time
	reporters = 4 // reports under way at a time

	callPatience = 10 * time.Second
)

// Config says where pods live and whom they belong to.
type Config struct {
	Dir     string // of the pods, each by its uid
	Node    string
	Address string // IP address of the machine
	// Addresses are those that pods get; the zero value: they have that of the machine.
	Addresses loopback.Addresses
	// DNS is the server of the names of services; the zero address if pods resolve names as the host does. It requires
	// CanResolve.
	DNS    netip.Addr
	BootID string
	Conn   grpc.ClientConnInterface
	// Authority is the file of the authorities of the gateways, and Gateways returns the endpoints of these, the preferred
	// one first: for pods that call the cluster. Without them pods get no credentials.
	Authority string
	Gateways  func() ([]string, error)
	// Services returns all services, for the variables of containers, and false if they are not known: the cluster has
	// not said them and does not answer. It may wait for its answer. Without it containers get no such variables.
	Services func(context.Context) ([]*schedulingv1.ServiceEndpoints, bool)
	// HostPorts has ports of the machine lead to a pod, and others no longer. notify is called, from any goroutine, when
	// it has changed whether a port is open: with the reason why it is not, or with an empty one. nil: none are led.
	HostPorts func(uid string, ports []plan.HostPort, notify func(port plan.HostPort, why string))
	// Supervisor runs the processes, beside others of the machine.
	Supervisor *process.Supervisor
	Images     *image.Library
	// Runtime runs the containers; nil: they are processes. It requires Users, and Images that it keeps.
	Runtime *cri.Runtime
	// ShimCommand is the program of package shim: an absolute path, of an executable that is linked statically where
	// containers are to have root directories of their own, and first arguments.
	ShimCommand []string
	// HelloCommand runs for images named hello-pod: an absolute path, and first arguments.
	HelloCommand []string
	// LoggerCommand is the program that writes the logs of containers: an absolute path, and first arguments. LoggerDir
	// is its directory.
	LoggerCommand []string
	LoggerDir     string
	// NodeOf returns the node as the cluster has it; fresh asks for it as it is now.
	NodeOf func(ctx context.Context, fresh bool) (*nodev1.Node, error)
	// Users are those that pods run as, one each. They are the machine's own. None: pods run as the agent's user.
	Users process.Users
	// ProcessLimit is how many processes and threads a pod has at most, where control groups can limit them; 0 or less: as
	// many as the host has. Pods that run keep the limit that they have until a container starts.
	ProcessLimit int64
	// MemoryCapacity and DiskCapacity are what the machine has, in bytes; 0 is not known.
	MemoryCapacity, DiskCapacity int64
	Log                          *slog.Logger
}

// Pods are the pods of a machine. Make them with New; their methods may be called concurrently.
type Pods struct {
	cfg     Config
	agents  schedulingv1.PodAgentServiceClient
	settled *controller.Loop // by uid: what runs
	told    *controller.Loop // by uid: what the cluster knows of it
	probed  *controller.Loop // by uid: probes that are due
	cleared *controller.Loop // by uid: volumes whose directories are to go
	actions sync.WaitGroup   // probes and hooks that run

	processes *processes
	runtime   *runtime // nil: containers are processes

	logs      *logs
	configs   configs
	accounts  accounts
	jobs      sync.WaitGroup  // work for containers that are about to start, and after pods that ended
	life      context.Context // of the jobs
	endAll    context.CancelFunc
	copying   chan struct{}
	admission sync.Mutex // one pod is admitted at a time, for each counts those before it

	mu         sync.Mutex
	pods       map[string]*pod
	handing    map[string]bool                           // by uid: volumes that get another user now
	leaving    map[string]*schedulingv1.PersistentVolume // by uid: volumes whose directories are to go
	lastUser   uint32                                    // given out last
	conditions []*nodev1.NodeCondition                   // replaced, never changed
	images     []*nodev1.ContainerImage                  // the same
	pressures  plan.Pressures
	disks      map[string]plan.DiskUse // by uid: as of the last measurement; replaced, never changed
	measured   measured
	metrics    *schedulingv1.NodeMetrics // as of the last measurement; replaced, never changed; nil before the second
}

// New returns the pods that are on the disk. Nothing runs before Run.
func New(cfg Config) (*Pods, error) {
	s := &Pods{cfg: cfg, agents: schedulingv1.NewPodAgentServiceClient(cfg.Conn), pods: map[string]*pod{}, logs: newLogs()}
	s.life, s.endAll = context.WithCancel(context.Background())
	s.copying = make(chan struct{}, copies)
	s.leaving, s.handing = map[string]*schedulingv1.PersistentVolume{}, map[string]bool{}
	s.cleared = controller.NewLoop("volumes", 1, s.clear, cfg.Log)
	s.cleared.Begin(s.leavingUIDs)
	s.settled = controller.NewLoop("pods", settlers, s.settle, cfg.Log)
	s.settled.Begin(s.uids)
	s.probed = controller.NewLoop("probes", probers, s.probe, cfg.Log)
	s.probed.Begin(s.uids)
	s.told = controller.NewLoop("pod reports", reporters, s.report, cfg.Log)
	s.told.Begin(s.uids)
	s.conditions = plan.Conditions(plan.Usage{}, plan.Pressures{})
	if err := s.openUsers(); err != nil {
		return nil, err
	}
	var err error
	if s.processes, err = s.newProcesses(); err != nil {
		return nil, err
	}
	if cfg.Runtime != nil {
		if cfg.Users.Count == 0 {
			return nil, errors.New("pods: a container runtime, but no users that containers run as")
		}
		s.runtime = &runtime{Runtime: cfg.Runtime, pods: s}
	}
	entries, err := os.ReadDir(cfg.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if !e.IsDir() || e.Name() == volumesDir {
			continue
		}
		p, err := s.load(e.Name())
		if err != nil {
			cfg.Log.Warn("unreadable pod record is discarded", "pod", e.Name(), "error", err)
			continue // the sweep after the first list removes what is unknown
		}
		s.pods[e.Name()] = p
	}
	if err := s.sweepAddresses(); err != nil {
		return nil, err
	}
	if cfg.Users.Count > 0 {
		if err := s.closeUnused(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// uids returns the uids of all pods.
func (s *Pods) uids() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.pods))
}

// Run runs the pods until ctx ends. They run on then.
func (s *Pods) Run(ctx context.Context) error {
	select {
	case <-s.cfg.Supervisor.Active():
	case <-ctx.Done():
		return nil
	}
	images, stopImages := context.WithCancel(context.WithoutCancel(ctx))
	var library sync.WaitGroup
	library.Go(func() { s.cfg.Images.Run(images) })
	defer library.Wait()
	defer stopImages()
	defer s.jobs.Wait() // before the library ends, which they use
	defer s.endAll()
	s.adoptLogs(ctx)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { s.checkProcessLimit(ctx); return nil })
	group.Go(func() error { return s.settled.Run(ctx) })
	group.Go(func() error { return s.told.Run(ctx) })
	group.Go(func() error { return s.probed.Run(ctx) })
	group.Go(func() error { return s.cleared.Run(ctx) })
	group.Go(func() error { return stream.Again(ctx, s.cfg.Log, "pods", nil, s.watch) })
	group.Go(func() error { return stream.Again(ctx, s.cfg.Log, "volumes", nil, s.watchVolumes) })
	group.Go(func() error { return s.keepLogs(ctx) })
	group.Go(func() error { return s.attend(ctx) })
	group.Go(func() error { return s.measure(ctx) })
	group.Go(func() error { return s.walk(ctx) })
	group.Go(func() error { return s.followConfig(ctx) })
	group.Go(func() error { return s.collect(ctx) })
	defer s.actions.Wait() // none begins once the loops have ended
	return group.Wait()
}

// Conditions returns what the agent sees of its node: MemoryPressure, DiskPressure, PIDPressure and NetworkUnavailable.
// The list is never changed.
func (s *Pods) Conditions() []*nodev1.NodeCondition {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conditions
}

// NotReady returns why the node cannot run pods; empty if it can.
func (s *Pods) NotReady() string {
	if s.runtime == nil {
		return ""
	}
	if err := s.runtime.Condition(); err != nil {
		return err.Error()
	}
	return ""
}

// watch is one stream of the node's pods: first all of them, which ends what is not among them, then every change.
func (s *Pods) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := s.agents.WatchOwnPods(ctx, &schedulingv1.WatchOwnPodsRequest{NodeName: s.cfg.Node})
	if err != nil {
		return err
	}
	first := map[string]bool{} // nil once the list is complete
	for {
		r, err := events.Recv()
		if err != nil {
			return err
		}
		for _, e := range r.GetEvents() {
			uid := e.GetObject().GetMetadata().GetUid()
			if e.GetType() == "DELETED" {
				delete(first, uid)
				s.lose(uid)
				continue
			}
			if first != nil {
				first[uid] = true
			}
			s.take(ctx, e.GetObject(), first != nil)
		}
		if r.GetBookmark() && first != nil {
			if err := s.sweep(ctx, first); err != nil {
				return err
			}
			first = nil
		}
	}
}

// take notes a pod as the cluster has it. What the cluster knows of its status counts only when it comes with the first
// list, or when another writer set the pod not ready: otherwise it is an answer to what was reported, and may
// be older than the last report.
func (s *Pods) take(ctx context.Context, object *schedulingv1.Pod, listed bool) {
	uid := object.GetMetadata().GetUid()
	if !plainNames(object) {
		s.cfg.Log.WarnContext(ctx, "pod has names that no directory can have", "pod", object.GetMetadata().GetName())
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pods[uid]
	if p == nil {
		p = &pod{uid: uid, record: record{Containers: map[string]*container{}}}
		s.pods[uid] = p
		s.cfg.Log.InfoContext(ctx, "pod bound here", "pod", object.GetMetadata().GetName(), "namespace",
			object.GetMetadata().GetNamespace())
	}
	overruled := placement.PodCondition(object, "Ready").GetReason() == placement.NodeNotReady
	if listed || p.object == nil || overruled {
		p.reported = ownPart(object.GetStatus())
	}
	if overruled {
		p.overruled++
		s.told.Add(uid)
	}
	if was := p.object.GetMetadata(); was.GetDeletionTimestamp() == nil &&
		object.GetMetadata().GetDeletionTimestamp() != nil {
		p.dirty = true
	}
	p.object, p.gone, p.life = object, false, lives(object)
	s.settled.Add(uid)
}

// lose notes that the cluster does not have a pod any more.
func (s *Pods) lose(uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.pods[uid]; p != nil {
		p.gone = true
		s.settled.Add(uid)
	}
}

// sweep ends everything that is not in the list.
func (s *Pods) sweep(ctx context.Context, list map[string]bool) error {
	s.mu.Lock()
	known := map[string]bool{}
	for uid, p := range s.pods {
		known[uid] = true
		p.gone = p.gone || !list[uid]
		s.settled.Add(uid)
		s.told.Add(uid)
	}
	s.mu.Unlock()
	for _, d := range s.drivers() {
		names, err := recordedBy(ctx, d)
		if err != nil {
			return err
		}
		for _, name := range names {
			if uid, ok := uidOf(name); ok && !known[uid] {
				s.cfg.Log.InfoContext(ctx, "container of an unknown pod stopped", "container", name)
				if err := d.Stop(ctx, name); err != nil {
					return err
				}
				if err := d.EndPool(ctx, poolOf(name)); err != nil {
					return err
				}
			}
		}
	}
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if e.IsDir() && !known[e.Name()] && e.Name() != volumesDir {
			if err := s.removeAll(filepath.Join(s.cfg.Dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// recordedBy returns the names of all containers that a driver may run. It gives up on a container runtime that does
// not answer: pods wait for that.
func recordedBy(ctx context.Context, d driver) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	return d.Recorded(ctx)
}

// lookup returns a pod, or nil.
func (s *Pods) lookup(uid string) *pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods[uid]
}

// Halt ends the containers of all pods, for the machine is about to restart: those that still run when patience is over
// are killed. Run must have ended.
func (s *Pods) Halt(ctx context.Context, patience time.Duration) error {
	var group errgroup.Group // what one driver cannot end does not keep the other from it
	for _, d := range s.drivers() {
		group.Go(func() error {
			names, err := d.Recorded(ctx)
			if err != nil {
				return err
			}
			return d.halt(ctx, names, patience)
		})
	}
	return errors.Join(group.Wait(), s.cfg.Users.Kill())
}

// stop ends a container, whatever runs it.
func (s *Pods) stop(ctx context.Context, name string) error {
	for _, d := range s.drivers() {
		if err := d.Stop(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

const processPrefix = "pod."

// processName returns the name under which the process of a container is supervised.
func processName(uid, container string) string { return processPrefix + uid + "." + container }

// poolOf returns the pool of a pod's process, and of all of that pod.
func poolOf(process string) string {
	uid, _ := uidOf(process)
	return processPrefix + uid
}

func uidOf(process string) (string, bool) {
	uid, _, ok := partsOf(process)
	return uid, ok
}

// partsOf returns the uid of the pod and the container that a process is of. The container is empty for what is of a
// pod alone.
func partsOf(process string) (uid, container string, ok bool) {
	rest, ok := strings.CutPrefix(process, processPrefix)
	uid, container, dot := strings.Cut(rest, ".")
	return uid, container, ok && dot
}

// plainNames reports whether a pod's uid and the names of its containers and volumes can be parts of paths.
func plainNames(p *schedulingv1.Pod) bool {
	names := []string{p.GetMetadata().GetUid()}
	for _, c := range p.GetSpec().GetInitContainers() {
		names = append(names, c.GetName())
	}
	for _, c := range p.GetSpec().GetContainers() {
		names = append(names, c.GetName())
	}
	for _, v := range p.GetSpec().GetVolumes() {
		names = append(names, v.GetName())
	}
	return !slices.ContainsFunc(names, func(n string) bool { return !plainName(n) })
}

// plainName reports whether a name can be a part of a path.
func plainName(n string) bool {
	return n != "" && strings.Trim(n, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") == ""
}
