// Package cri keeps containers running in a container runtime that it reaches through the Container Runtime Interface
// (k8s.io/cri-api v1), such as containerd or CRI-O. What is to run is declared with Ensure; what the runtime has is
// listed before anything is made, by labels, and taken over. A container has a name and a serial; it is started at most
// once. What this process knows can be read from the runtime again, with one addition: an empty file beside the log of
// a container says that a start was tried, so that a container that the runtime has lost is not taken for one that was
// never made. A runtime that does not answer is waited for. Containers go on when this process ends. The package knows
// nothing of pods as API objects, does not pull images by itself, and leaves it to its caller to end containers that
// nothing wants any more: see Recorded.
package cri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/windlass-dev/windlass/kit/cgroup"
)

var (
	// ErrNotRunning means that Run is not active.
	ErrNotRunning = errors.New("client of the container runtime is not running")
	// ErrNoContainer means that no container of that name runs.
	ErrNoContainer = errors.New("no such container")
)

const (
	listEvery   = time.Second      // source: kubelet's relist period
	statusEvery = 5 * time.Second  // source: kubelet's check of the runtime
	silence     = 10 * time.Second // how long an answer may take before Condition says so
)

// Config describes a Runtime.
type Config struct {
	Endpoint string // unix:///run/containerd/containerd.sock
	// Owner is the value of a label of all that belongs to this client; nothing else is touched. If it is the path of a
	// directory, the control groups of pools are known by that directory.
	Owner string
	Log   *slog.Logger // nil: discarded
}

// Runtime keeps a set of containers running. Its methods are safe for concurrent use.
type Runtime struct {
	owner  string
	log    *slog.Logger
	conn   *grpc.ClientConn
	cri    runtimeapi.RuntimeServiceClient
	images runtimeapi.ImageServiceClient
	// parents are found when they are first used: a directory that the owner is exists then.
	parents func() cgroup.Parents

	mu      sync.Mutex
	keepers map[string]*keeper
	places  map[string]*place
	session *session // nil unless Run is active
	// of the runtime
	name, version string
	imageDir      string // see ImageDir
	health        health
	// parentless has the reasons against groups of pools that were reported.
	parentless map[string]bool

	rotateEvery time.Duration // set before Run

	active     chan struct{}
	activeOnce sync.Once
}

// session is the state of Run.
type session struct {
	ctx   context.Context
	group sync.WaitGroup
}

// health is what is known of the runtime.
type health struct {
	answered time.Time // the last time it did
	asked    time.Time // what is asked now was asked then; zero: nothing
	failure  error     // of the last listing
	since    time.Time // of failure
	unready  error     // what the runtime says of itself
}

// New returns a client of a runtime, which it does not wait for. An endpoint that is no unix:// path is an error.
func New(cfg Config) (*Runtime, error) {
	path, ok := strings.CutPrefix(cfg.Endpoint, "unix://")
	if !ok || !filepath.IsAbs(path) {
		return nil, fmt.Errorf("endpoint %q of the container runtime: want unix:// and an absolute path", cfg.Endpoint)
	}
	if cfg.Owner == "" {
		return nil, errors.New("owner of containers must not be empty")
	}
	conn, err := grpc.NewClient(cfg.Endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstPause, Multiplier: 2, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: silence,
		}))
	if err != nil {
		return nil, fmt.Errorf("endpoint %q of the container runtime: %w", cfg.Endpoint, err)
	}
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Runtime{
		owner: cfg.Owner, log: log, conn: conn,
		cri: runtimeapi.NewRuntimeServiceClient(conn), images: runtimeapi.NewImageServiceClient(conn),
		parents: sync.OnceValue(func() cgroup.Parents { return cgroup.FindParents(cfg.Owner) }),
		keepers: map[string]*keeper{}, places: map[string]*place{}, parentless: map[string]bool{},
		rotateEvery: rotateEvery, active: make(chan struct{}),
	}, nil
}

// Run keeps the ensured containers until ctx ends, and then leaves them as they are. It can be called once; afterwards
// no call reaches the runtime.
func (r *Runtime) Run(ctx context.Context) error {
	defer r.conn.Close()
	ss := &session{ctx: ctx}
	r.mu.Lock()
	r.session, r.health.since = ss, time.Now()
	for _, k := range r.keepers {
		r.keep(k)
	}
	r.mu.Unlock()
	ss.group.Go(func() { r.every(ctx, statusEvery, r.checkStatus) })
	ss.group.Go(func() { r.every(ctx, r.rotateEvery, r.rotateLogs) })
	r.every(ctx, listEvery, r.relist)
	r.mu.Lock()
	r.session = nil
	r.mu.Unlock()
	ss.group.Wait()
	return nil
}

// every calls do at once and again after each pause until ctx ends.
func (r *Runtime) every(ctx context.Context, pause time.Duration, do func(context.Context)) {
	for {
		do(ctx)
		if !sleep(ctx, pause) {
			return
		}
	}
}

// keep starts the goroutine of k. The caller holds r.mu and Run is active.
func (r *Runtime) keep(k *keeper) {
	ss := r.session
	ss.group.Go(func() {
		if k.run(ss.ctx) {
			r.forget(k)
		}
	})
}

// forget drops a keeper that has nothing left to do, unless a concurrent call gave it something.
func (r *Runtime) forget(k *keeper) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k.idle() {
		delete(r.keepers, k.name)
		return
	}
	if r.session != nil {
		r.keep(k)
	}
}

// Active is closed once the runtime answered for the first time and its containers are known.
func (r *Runtime) Active() <-chan struct{} { return r.active }

// Name returns how the runtime names itself, such as "containerd"; empty before Active.
func (r *Runtime) Name() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.name
}

// Version returns the name and the version of the runtime, such as "containerd://1.6.20"; empty before Active.
func (r *Runtime) Version() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.name == "" {
		return ""
	}
	return r.name + "://" + r.version
}

// Condition returns why the runtime cannot run containers now; nil if it can. It does not call the runtime.
func (r *Runtime) Condition() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.health
	switch {
	case r.session == nil:
		return ErrNotRunning
	case h.failure != nil:
		return fmt.Errorf("the container runtime does not answer since %s: %s", h.since.UTC().Format(time.RFC3339),
			plain(h.failure))
	case !h.asked.IsZero() && time.Since(h.asked) > silence:
		return fmt.Errorf("the container runtime does not answer since %s", h.asked.UTC().Format(time.RFC3339))
	case h.answered.IsZero():
		return errors.New("the container runtime has not answered yet")
	}
	return h.unready
}

// relist lists what the runtime has, and wakes the keepers for which that differs from what they know.
func (r *Runtime) relist(ctx context.Context) {
	r.mu.Lock()
	r.health.asked = time.Now()
	name, version, imageDir := r.name, r.version, r.imageDir
	r.mu.Unlock()
	found, err := r.observe(ctx)
	if err == nil && name == "" {
		var v *runtimeapi.VersionResponse
		v, err = call(ctx, r.cri.Version, &runtimeapi.VersionRequest{})
		name, version = v.GetRuntimeName(), v.GetRuntimeVersion()
		var missed error
		if imageDir, missed = r.findImageDir(ctx); missed != nil && err == nil {
			r.log.WarnContext(ctx, "the disk of images is not known", "error", missed)
		}
	}
	if ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	h := &r.health
	if err != nil {
		if h.failure == nil {
			h.since = h.asked
			r.log.WarnContext(ctx, "container runtime does not answer", "error", err)
		}
		h.failure, h.asked = err, time.Time{}
		return
	}
	if h.failure != nil {
		r.log.InfoContext(ctx, "container runtime answers")
	}
	h.failure, h.asked, h.answered = nil, time.Time{}, time.Now()
	r.name, r.version, r.imageDir = name, version, imageDir
	for n, k := range r.keepers {
		k.compare(found[n])
	}
	r.activeOnce.Do(func() { close(r.active) })
}

// observe returns what the runtime has of each container.
func (r *Runtime) observe(ctx context.Context) (map[string]string, error) {
	sandboxes, err := r.listSandboxes(ctx, "")
	if err != nil {
		return nil, err
	}
	ready := map[string]bool{}
	for _, s := range sandboxes {
		ready[s.GetId()] = isReady(s)
	}
	containers, err := r.listContainers(ctx, nil)
	if err != nil {
		return nil, err
	}
	byName := map[string][]*runtimeapi.Container{}
	for _, c := range containers {
		name := c.GetLabels()[labelContainer]
		byName[name] = append(byName[name], c)
	}
	found := map[string]string{}
	for name, list := range byName {
		found[name] = digest(list, ready)
	}
	return found, nil
}

// digest returns a text that differs if what the runtime has of a container does. ready says it of sandboxes.
func digest(list []*runtimeapi.Container, ready map[string]bool) string {
	var parts []string
	for _, c := range list {
		parts = append(parts, fmt.Sprint(c.GetId(), c.GetState(), ready[c.GetPodSandboxId()]))
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

// checkStatus asks the runtime what it says of itself. That the network is not ready does not matter: sandboxes are in
// that of the host.
func (r *Runtime) checkStatus(ctx context.Context) {
	st, err := call(ctx, r.cri.Status, &runtimeapi.StatusRequest{})
	if err != nil {
		return // relist says so
	}
	var unready error
	for _, c := range st.GetStatus().GetConditions() {
		if c.GetType() == runtimeapi.RuntimeReady && !c.GetStatus() {
			unready = fmt.Errorf("the container runtime is not ready: %s: %s", c.GetReason(), c.GetMessage())
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.health.unready = unready
}

// listContainers returns the containers of the owner that have labels.
func (r *Runtime) listContainers(ctx context.Context, labels map[string]string) ([]*runtimeapi.Container, error) {
	selector := map[string]string{labelOwner: r.owner}
	maps.Copy(selector, labels)
	out, err := call(ctx, r.cri.ListContainers, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{LabelSelector: selector},
	})
	if err != nil {
		return nil, err
	}
	return out.GetContainers(), nil
}

// Ensure makes spec the desired state and returns at once. While Run is active, the container is made and started,
// unless the runtime has one of its name and serial: that is taken over as it is. One of the same name and another
// serial is ended and removed first. The error describes what is invalid about spec; what fails later is reported by
// Lookup.
func (r *Runtime) Ensure(spec Spec) error {
	if err := spec.validate(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	k, known := r.keepers[spec.Name]
	if !known {
		k = newKeeper(spec.Name, r)
		r.keepers[spec.Name] = k
	}
	k.want(spec)
	if !known && r.session != nil {
		r.keep(k)
	}
	return nil
}

// Lookup returns the status of an ensured container; false if it was not ensured. It does not call the runtime.
func (r *Runtime) Lookup(name string) (Status, bool) {
	r.mu.Lock()
	k := r.keepers[name]
	r.mu.Unlock()
	if k == nil {
		return Status{}, false
	}
	return k.lookup()
}

// Ask sends SIGTERM, or the signal that the image names instead, to the main process of a container, and returns before
// that is done. It is sent once the runtime answers. ErrNoContainer if the container is not known to run: one that was
// not started yet is not started any more, and is Final then.
func (r *Runtime) Ask(name string) error { return r.signal(name, false) }

// Kill sends SIGKILL to all processes of a container, also one that was asked to end, and returns before that is done.
// ErrNoContainer as for Ask.
func (r *Runtime) Kill(name string) error { return r.signal(name, true) }

func (r *Runtime) signal(name string, kill bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.keepers[name]
	switch {
	case r.session == nil:
		return fmt.Errorf("signal container %q: %w", name, ErrNotRunning)
	case k == nil || !k.signal(r.session, kill):
		return fmt.Errorf("signal container %q: %w", name, ErrNoContainer)
	}
	return nil
}

// Stop ends a container, with SIGTERM, and SIGKILL after its grace period, and removes it. It is then no longer wanted.
// Stop also ends a container that was not ensured since Run began. It returns nil once the container is gone or if
// there was none; if ctx ends first, stopping continues in the background.
func (r *Runtime) Stop(ctx context.Context, name string) error {
	gone, ss := r.unwant(name, false)
	if ss == nil {
		return fmt.Errorf("stop container %q: %w", name, ErrNotRunning)
	}
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop container %q: %w", name, ctx.Err())
	case <-ss.ctx.Done():
		return fmt.Errorf("stop container %q: %w", name, ErrNotRunning)
	}
}

// unwant begins to stop a container, without a grace period if kill is true.
func (r *Runtime) unwant(name string, kill bool) (gone <-chan struct{}, ss *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.session == nil {
		return nil, nil
	}
	k := r.keepers[name]
	if k == nil {
		k = newKeeper(name, r)
		r.keepers[name] = k
		gone = k.unwant(r.session, kill)
		r.keep(k)
		return gone, r.session
	}
	return k.unwant(r.session, kill), r.session
}

// Recorded returns the sorted names of all containers of the owner that the runtime has or that are ensured, and the
// name of a pool and a dot for each sandbox that has no containers, and each control group of a pool without sandboxes.
func (r *Runtime) Recorded(ctx context.Context) ([]string, error) {
	left, err := r.parents().Pools() // before what they are for
	if err != nil {
		return nil, fmt.Errorf("recorded control groups: %w", err)
	}
	var names []string
	made := map[string]bool{} // pools that are not only left
	r.mu.Lock()               // before what the runtime has, so that no container made in between is missed
	for name, k := range r.keepers {
		if _, wanted := k.lookup(); wanted {
			names = append(names, name)
			made[k.pool()] = true
		}
	}
	r.mu.Unlock()
	sandboxes, err := r.listSandboxes(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("recorded sandboxes: %w", err)
	}
	containers, err := r.listContainers(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("recorded containers: %w", err)
	}
	used := map[string]bool{}
	for _, c := range containers {
		names = append(names, c.GetLabels()[labelContainer])
		used[c.GetPodSandboxId()] = true
	}
	for _, s := range sandboxes {
		made[s.GetLabels()[labelPool]] = true
		if !used[s.GetId()] {
			names = append(names, s.GetLabels()[labelPool]+".")
		}
	}
	for _, pool := range left {
		if !made[pool] {
			names = append(names, pool+".")
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
