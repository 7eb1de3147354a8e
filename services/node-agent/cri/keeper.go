package cri

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Status is the state of one container.
type Status struct {
	Name    string
	Serial  int
	ID      string // that the runtime gave it; empty before it is made
	Running bool   // the runtime said so, and has not said since that it ended
	Final   bool   // it has ended, or cannot be started: see LastError
	Exit    Exit   // if Final and LastError is nil
	// LastError is why the container could not be made or started although the runtime answered; it is Final then.
	LastError error
	Waiting   string // why the container does not run yet, or cannot be observed; tried again
}

// Exit describes how a container ended.
type Exit struct {
	Code                  int
	Signal                syscall.Signal // that ended it, by its code; 0: none
	Reason                string         // ReasonOutOfMemory, ReasonUnknown or empty
	Message               string
	StartedAt, FinishedAt time.Time // zero: not known
}

// Reasons of an Exit, as Kubernetes spells them.
const (
	ReasonOutOfMemory = "OOMKilled"
	ReasonUnknown     = "ContainerStatusUnknown" // the runtime has lost the container
)

const (
	signalBase = 128 // added to the number of a signal
	codeKilled = signalBase + int(syscall.SIGKILL)
	maxSignal  = 31
	// What containerd says of a container that ended while it was not there to see it. Source: pkg/cri/server/restart.go.
	unknownCode, unknownReason = 255, "Unknown"
	// tries is how often a container is made or started that the runtime refuses. With the back-off that is 3 s.
	tries = 5
	// earlyChecks is how often a container is checked in the first 0.7 s.
	earlyChecks = 3
	// maxSteps is how many calls that succeed lead to the desired state, amply.
	maxSteps = 20
	// patient is the grace period, in seconds, of a container that its caller kills: ten years.
	patient = 10 * 365 * 24 * 3600
)

// keeper keeps one container. All that changes it is done by its goroutine, from run, except signals.
type keeper struct {
	name string
	r    *Runtime
	wake chan struct{} // has one place
	// has one place: something else is wanted, which does not wait for the next try
	ordered chan struct{}

	mu       sync.Mutex
	spec     *order // nil: not wanted
	orders   int
	status   Status
	known    string          // digest of what the runtime had when it was last checked
	stopping chan struct{}   // closed once nothing is left, then nil; nil unless to be stopped
	kill     bool            // stopping goes without a grace period
	ending   string          // ID of the container that the goroutine ends
	begun    string          // file that says that a start was tried
	revoked  bool            // spec was to end before it was known to run: it is not started if it was not yet
	sending  map[string]bool // container IDs and signals that are being sent

	// of the goroutine alone
	pause  backOff
	failed int // refusals in a row
	early  int // checks to come soon after a start
}

// order is what is wanted. Its number differs from that of the order before unless only the grace period changed.
type order struct {
	Spec
	number int
}

func newKeeper(name string, r *Runtime) *keeper {
	return &keeper{
		name: name, r: r, wake: make(chan struct{}, 1), ordered: make(chan struct{}, 1), sending: map[string]bool{},
	}
}

// want makes spec the desired state.
func (k *keeper) want(spec Spec) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.spec != nil && k.spec.Serial == spec.Serial {
		same := *k.spec
		same.Grace, same.Changed = spec.Grace, spec.Changed
		k.spec = &same
		return
	}
	k.orders++
	k.spec, k.status = &order{spec, k.orders}, Status{Name: spec.Name, Serial: spec.Serial}
	k.revoked = false
	poke(k.ordered)
	poke(k.wake)
}

// unwant makes that nothing is left the desired state, and returns what is closed then.
func (k *keeper) unwant(ss *session, kill bool) <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.spec != nil {
		k.spec, k.begun = nil, k.spec.begun()
	}
	k.revoked = false
	if k.stopping == nil {
		k.stopping, k.kill = make(chan struct{}), false
	}
	if kill && !k.kill {
		k.kill = true
		if k.ending != "" {
			k.send(ss, k.ending, true) // its grace period has begun
		}
	}
	poke(k.ordered)
	poke(k.wake)
	return k.stopping
}

// idle reports whether there is nothing to do.
func (k *keeper) idle() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.spec == nil && k.stopping == nil
}

func (k *keeper) isOf(pool string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.spec != nil && k.spec.Pool == pool
}

// pool returns the pool of an ordered container; empty if it is not wanted any more.
func (k *keeper) pool() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.spec == nil {
		return ""
	}
	return k.spec.Pool
}

func (k *keeper) lookup() (Status, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status, k.spec != nil
}

// poke has a goroutine that waits for c go on, or not wait the next time.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// compare wakes the keeper if the runtime has something else than it knows.
func (k *keeper) compare(found string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if found != k.known && !k.status.Final {
		poke(k.wake)
	}
}

// set changes the status of an ordered container, unless something else is wanted now.
func (k *keeper) set(spec *order, change func(*Status)) {
	k.mu.Lock()
	if k.spec == nil || k.spec.number != spec.number {
		k.mu.Unlock()
		return
	}
	before, changed := k.status, k.spec.Changed
	change(&k.status)
	same := k.status == before
	k.mu.Unlock()
	if !same && changed != nil {
		changed()
	}
}

// run brings the container to the desired state, again whenever that or the container changes, until ctx ends or there
// is nothing left to do: then it reports true.
func (k *keeper) run(ctx context.Context) bool {
	for steps := 0; ; {
		done, err := k.step(ctx)
		if ctx.Err() != nil {
			return false
		}
		if steps++; err == nil && !done && steps > maxSteps {
			err = errors.New("the container runtime does not do what it says")
		}
		switch {
		case k.idle():
			return true
		case err != nil:
			k.wait(ctx, err)
			steps = 0
		case done:
			k.pause, steps = backOff{}, 0
			k.sleep(ctx)
		}
	}
}

// sleep waits until there may be something to do. A container may end soon after it was started: that is noticed before
// the next listing.
func (k *keeper) sleep(ctx context.Context) {
	if k.early == 0 {
		select {
		case <-ctx.Done():
		case <-k.wake:
		}
		return
	}
	timer := time.NewTimer(firstPause << (earlyChecks - k.early))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-k.wake:
	case <-timer.C:
		k.early--
	}
}

// wait waits before the next try, and says why.
func (k *keeper) wait(ctx context.Context, err error) {
	k.mu.Lock()
	spec := k.spec
	k.mu.Unlock()
	pause := k.pause.next()
	if spec != nil {
		text := err.Error()
		if away(err) {
			text = "the container runtime does not answer"
			if c := k.r.Condition(); c != nil {
				text = c.Error()
			}
		}
		k.set(spec, func(st *Status) { st.Waiting = text })
	}
	if k.pause.failures == 3 {
		k.r.log.WarnContext(ctx, "container waits", "container", k.name, "error", err)
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-k.ordered:
		k.pause = backOff{}
	}
}

// step does one thing towards the desired state, and reports whether nothing is left to do.
func (k *keeper) step(ctx context.Context) (done bool, err error) {
	list, err := k.r.listContainers(ctx, map[string]string{labelContainer: k.name})
	if err != nil {
		return false, err
	}
	k.mu.Lock()
	spec, stopping, st := k.spec, k.stopping, k.status
	k.mu.Unlock()
	switch {
	case stopping != nil:
		return false, k.clear(ctx, list)
	case spec == nil || st.Final && st.Serial == spec.Serial:
		return true, nil
	}
	mine, others := pick(list, spec.Serial)
	if len(others) > 0 {
		return false, k.removeAll(ctx, others)
	}
	if mine == nil {
		return k.absent(ctx, spec, st)
	}
	ready, err := k.r.sandboxReady(ctx, mine.GetPodSandboxId())
	if err != nil {
		return false, err
	}
	k.mu.Lock()
	k.known = digest(list, map[string]bool{mine.GetPodSandboxId(): ready})
	k.mu.Unlock()
	return k.present(ctx, spec, mine, ready)
}

// pick returns the container with a serial, and all others. If the runtime has several, the one that was started is it.
func pick(list []*runtimeapi.Container, serial int) (mine *runtimeapi.Container, others []*runtimeapi.Container) {
	for _, c := range list {
		switch {
		case c.GetMetadata().GetAttempt() != uint32(serial):
			others = append(others, c)
		case mine == nil:
			mine = c
		case mine.GetState() == runtimeapi.ContainerState_CONTAINER_CREATED:
			others, mine = append(others, mine), c
		default:
			others = append(others, c)
		}
	}
	return mine, others
}

// clear removes what there is of the container. If there is nothing, that was it.
func (k *keeper) clear(ctx context.Context, list []*runtimeapi.Container) error {
	if len(list) > 0 {
		return k.removeAll(ctx, list)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := removeFile(k.begun); err != nil {
		return err
	}
	close(k.stopping)
	k.stopping, k.known, k.begun = nil, "", ""
	return nil
}

// removeFile removes a file if it exists. An empty path is none.
func removeFile(path string) error {
	if path == "" {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// removeAll ends and removes containers.
func (k *keeper) removeAll(ctx context.Context, list []*runtimeapi.Container) error {
	for _, c := range list {
		if c.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED &&
			c.GetState() != runtimeapi.ContainerState_CONTAINER_CREATED {
			if err := k.end(ctx, c); err != nil {
				return err
			}
		}
		if err := k.remove(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// end ends a container within its grace period.
func (k *keeper) end(ctx context.Context, c *runtimeapi.Container) error {
	k.mu.Lock()
	grace := graceOf(c)
	if k.spec != nil {
		grace = k.spec.grace()
	}
	if k.kill && k.stopping != nil {
		grace = 0
	}
	k.ending = c.GetId()
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.ending = ""
	}()
	return k.r.stopContainer(ctx, c.GetId(), int64(math.Ceil(grace.Seconds())), grace+callPatience)
}

// remove removes a container that does not run, and first the file that says that it was started: without a container,
// that would mean that it was lost.
func (k *keeper) remove(ctx context.Context, c *runtimeapi.Container) error {
	if err := removeFile(c.GetAnnotations()[annotationBegun]); err != nil {
		return err
	}
	_, err := call(ctx, k.r.cri.RemoveContainer, &runtimeapi.RemoveContainerRequest{ContainerId: c.GetId()})
	return notFound(err)
}

// absent makes a container that the runtime does not have, unless it had it and a start was tried.
func (k *keeper) absent(ctx context.Context, spec *order, st Status) (done bool, err error) {
	switch _, err := os.Lstat(spec.begun()); {
	case err == nil || st.Running || spec.Ran:
		k.lose(spec, "the container runtime has no such container any more")
		return true, nil
	case !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	if k.isRevoked(spec) {
		k.set(spec, func(st *Status) { st.Final, st.Waiting, st.Exit = true, "", neverStarted() })
		return true, nil
	}
	for _, m := range spec.Mounts { // containerd makes a directory where one is missing
		if _, err := os.Lstat(m.From); err != nil {
			return k.refused(ctx, spec, nil, fmt.Errorf("container could not be made: what is mounted at %s is gone: %w", m.To,
				err))
		}
	}
	sandbox, config, err := k.r.sandboxFor(ctx, spec.Spec)
	if err != nil {
		if away(err) {
			return false, err
		}
		return false, fmt.Errorf("sandbox could not be made: %s", plain(err))
	}
	if err := makeLogDir(spec.Spec); err != nil {
		return false, err
	}
	out, err := call(ctx, k.r.cri.CreateContainer, &runtimeapi.CreateContainerRequest{
		PodSandboxId: sandbox, Config: spec.containerConfig(k.r.owner), SandboxConfig: config,
	})
	switch {
	case err == nil:
		k.failed = 0
		k.set(spec, func(st *Status) { st.ID = out.GetContainerId() })
		return false, nil
	case away(err) || reserved(err):
		return false, err
	}
	return k.refused(ctx, spec, nil, fmt.Errorf("container could not be made: %s", plain(err)))
}

// isRevoked reports whether a container is not to be started any more.
func (k *keeper) isRevoked(spec *order) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.revoked && k.spec != nil && k.spec.number == spec.number
}

// neverStarted returns the exit of a container that was to end before it was started.
func neverStarted() Exit {
	return Exit{
		Code: codeKilled, Signal: syscall.SIGKILL, Message: "it was ended before it was started", FinishedAt: time.Now(),
	}
}

// lose notes that it is not known how a container ended.
func (k *keeper) lose(spec *order, why string) {
	k.set(spec, func(st *Status) {
		began := st.Exit.StartedAt
		st.Running, st.Final, st.Waiting, st.Exit = false, true, "", lost(why)
		st.Exit.StartedAt = began
	})
}

// refused notes that the runtime refused to make or start a container, which is final after some tries. c is what was
// made of it.
func (k *keeper) refused(ctx context.Context, spec *order, c *runtimeapi.Container, cause error) (done bool,
	err error,
) {
	if k.failed++; k.failed < tries {
		return false, cause
	}
	if c != nil {
		if err := k.remove(ctx, c); err != nil {
			return false, err
		}
	}
	k.failed = 0
	k.set(spec, func(st *Status) { st.Final, st.LastError, st.Waiting = true, cause, "" })
	return true, nil
}

// present brings a container that the runtime has to the desired state.
func (k *keeper) present(ctx context.Context, spec *order, c *runtimeapi.Container, ready bool) (done bool, err error) {
	switch c.GetState() {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		if k.isRevoked(spec) { // what the runtime is starting just now it does not remove
			return false, k.remove(ctx, c)
		}
		if ready {
			return k.start(ctx, spec, c)
		}
		if _, err := os.Lstat(spec.begun()); err == nil { // as when the host was restarted just then
			k.lose(spec, "its sandbox ended while it was started")
			return true, nil
		}
		return false, k.remove(ctx, c) // it was never started, and cannot be
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		if !ready { // as kubelet does
			return false, k.end(ctx, c)
		}
		return true, k.running(ctx, spec, c)
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		return k.ended(ctx, spec, c)
	default: // the runtime does not know its state
		return false, k.r.stopContainer(ctx, c.GetId(), 0, callPatience)
	}
}

// start starts a container that was made.
func (k *keeper) start(ctx context.Context, spec *order, c *runtimeapi.Container) (done bool, err error) {
	switch foreign, err := k.r.foreignGroups(ctx, c.GetId(), spec.GID); {
	case err != nil:
		return false, notFound(err)
	case len(foreign) > 0:
		k.failed = tries // the image stays as it is
		return k.refused(ctx, spec, c, fmt.Errorf("/etc/group of the image has the container's user %d in groups of the "+
			"host, which it must not be in: %v", spec.UID, foreign))
	}
	if err := spec.makeBegun(); err != nil {
		return false, err
	}
	_, err = call(ctx, k.r.cri.StartContainer, &runtimeapi.StartContainerRequest{ContainerId: c.GetId()})
	if err == nil {
		k.failed, k.early = 0, earlyChecks
		k.r.log.InfoContext(ctx, "container started", "container", k.name, "start", spec.Serial, "id", c.GetId())
		return false, nil
	}
	if away(err) || starting(err) {
		return false, err
	}
	st, statusErr := k.r.containerStatus(ctx, c.GetId())
	if statusErr != nil {
		return false, notFound(statusErr)
	}
	if st.GetState() != runtimeapi.ContainerState_CONTAINER_CREATED {
		return false, nil // it was started before, or cannot be: that is seen next
	}
	return k.refused(ctx, spec, c, fmt.Errorf("container could not be started: %s", plain(err)))
}

// foreignGroups returns the groups, beside its own, that the processes of a container that was made would be in. Before
// version 2.0 containerd, and other runtimes without the policy "Strict", add those that /etc/group of the image names
// for the user: there are no user namespaces, so they are groups of the host, such as 0, which may connect to the
// runtime. What the runtime is about to start is in the verbose status. Source: containerd, pkg/cri, ContainerInfo, and
// CRI-O, which has the same field.
func (r *Runtime) foreignGroups(ctx context.Context, id string, own uint32) (foreign []uint32, err error) {
	out, err := call(ctx, r.cri.ContainerStatus, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return nil, err
	}
	var info struct {
		RuntimeSpec *struct {
			Process struct {
				User struct {
					AdditionalGIDs []uint32 `json:"additionalGids"`
				} `json:"user"`
			} `json:"process"`
		} `json:"runtimeSpec"`
	}
	if err := json.Unmarshal([]byte(out.GetInfo()["info"]), &info); err != nil || info.RuntimeSpec == nil {
		return nil, errors.New("the container runtime does not say which groups the container has")
	}
	return slices.DeleteFunc(info.RuntimeSpec.Process.User.AdditionalGIDs, func(g uint32) bool { return g == own }), nil
}

// running notes that a container runs.
func (k *keeper) running(ctx context.Context, spec *order, c *runtimeapi.Container) error {
	st, err := k.r.containerStatus(ctx, c.GetId())
	if err != nil {
		return notFound(err) // the next listing shows it
	}
	k.set(spec, func(s *Status) {
		s.ID, s.Running, s.Waiting = c.GetId(), true, ""
		s.Exit.StartedAt = timeOf(st.GetStartedAt())
	})
	return nil
}

// ended notes how a container ended. One whose start was cut off before its program ran is made again.
func (k *keeper) ended(ctx context.Context, spec *order, c *runtimeapi.Container) (done bool, err error) {
	st, err := k.r.containerStatus(ctx, c.GetId())
	if err != nil {
		return false, notFound(err)
	}
	exit := exitOf(st)
	if exit.StartedAt.IsZero() {
		switch {
		case neverRan(st.GetMessage()):
			return false, errors.Join(k.remove(ctx, c), errors.New(st.GetMessage()))
		case cutOff(st.GetMessage()):
			exit = lost("the container runtime gave up its start, so it may have run: " + st.GetMessage())
			exit.StartedAt = exit.FinishedAt
		case exit.Reason == ReasonUnknown || begunBefore(st.GetMessage()):
			exit = lost("the container runtime ended while it started the container, so it may have run")
			exit.StartedAt = exit.FinishedAt
		}
	}
	var failure error
	if exit.StartedAt.IsZero() {
		failure = errors.New(st.GetMessage())
		if st.GetMessage() == "" {
			failure = errors.New("container could not be started: " + st.GetReason())
		}
	}
	k.set(spec, func(s *Status) {
		s.ID, s.Running, s.Final, s.Waiting, s.Exit, s.LastError = c.GetId(), false, true, "", exit, failure
	})
	return true, nil
}

// cutOff reports whether the runtime gave up to start a container because the request was given up: the process that
// sent it was killed, or the call took too long. containerd notes that as if the container could not be started. The
// cause comes last: what is before it may be the name of a program, which is the pod's to choose.
func cutOff(message string) bool {
	message = strings.TrimSuffix(message, ": unknown") // the code of the shim's error
	for _, cause := range []string{"context canceled", "context deadline exceeded", "signal: killed"} {
		if strings.HasSuffix(message, cause) {
			return true
		}
	}
	return false
}

// begunBefore reports whether a start was refused since an earlier one, of a runtime that ended, was under way: it has
// left a task, as containerd calls it.
func begunBefore(message string) bool {
	return strings.HasPrefix(message, "failed to create containerd task: task ") &&
		strings.HasSuffix(message, ": already exists")
}

// neverRan reports whether the runtime gave up to start a container before its program ran, for a reason that is not
// the container's own: see cutOff, or its sandbox had just ended. The texts are containerd's.
func neverRan(message string) bool {
	return cutOff(message) && strings.HasPrefix(message, "failed to create containerd task") ||
		strings.HasPrefix(message, "sandbox container") && strings.HasSuffix(message, "is not running")
}

// lost returns the exit of a container of which it is not known how it ended.
func lost(message string) Exit {
	return Exit{
		Code: codeKilled, Signal: syscall.SIGKILL, Reason: ReasonUnknown, Message: message, FinishedAt: time.Now(),
	}
}

// exitOf returns how a container ended, as the runtime says it.
func exitOf(st *runtimeapi.ContainerStatus) Exit {
	e := Exit{
		Code: int(st.GetExitCode()), Message: st.GetMessage(),
		StartedAt: timeOf(st.GetStartedAt()), FinishedAt: timeOf(st.GetFinishedAt()),
	}
	if !e.FinishedAt.IsZero() && e.FinishedAt.Before(e.StartedAt) {
		e.FinishedAt = e.StartedAt // the runtime notes a start after it, and maybe after the end
	}
	if e.Code > signalBase && e.Code <= signalBase+maxSignal {
		e.Signal = syscall.Signal(e.Code - signalBase)
	}
	switch {
	case st.GetReason() == ReasonOutOfMemory:
		e.Reason = ReasonOutOfMemory
	case st.GetReason() == unknownReason && e.Code == unknownCode:
		unknown := lost(cmp.Or(e.Message, "the container runtime does not know how it ended"))
		e.Code, e.Signal, e.Reason, e.Message = unknown.Code, unknown.Signal, unknown.Reason, unknown.Message
	}
	return e
}

// timeOf returns a time that the runtime gives in nanoseconds; 0 is none.
func timeOf(nanoseconds int64) time.Time {
	if nanoseconds <= 0 {
		return time.Time{}
	}
	return time.Unix(0, nanoseconds)
}

// signal has the container end, and reports whether it runs. It kills at once if kill is true, and never otherwise. One
// that is not started yet is not started any more.
func (k *keeper) signal(ss *session, kill bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.spec == nil || !k.status.Running {
		if k.spec != nil && !k.status.Final && !k.revoked {
			k.revoked = true
			poke(k.ordered)
			poke(k.wake)
		}
		return false
	}
	k.send(ss, k.status.ID, kill)
	return true
}

// send sends a signal in the background, once. The caller holds k.mu.
func (k *keeper) send(ss *session, id string, kill bool) {
	key, timeout, patience := id+" asked", int64(patient), time.Duration(patient)*time.Second
	if kill {
		key, timeout, patience = id+" killed", 0, callPatience
	}
	if k.sending[key] {
		return
	}
	k.sending[key] = true
	ss.group.Go(func() {
		var pause backOff
		for {
			err := k.r.stopContainer(ss.ctx, id, timeout, patience)
			if err == nil {
				break
			}
			if k.hasEnded(id) || !sleep(ss.ctx, pause.next()) {
				break
			}
		}
		k.mu.Lock()
		delete(k.sending, key)
		k.mu.Unlock()
		poke(k.wake)
	})
}

// hasEnded reports whether a container is known to have ended, or is not the current one.
func (k *keeper) hasEnded(id string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status.ID != id || k.status.Final
}

// stopContainer has the runtime end a container: with SIGTERM, and SIGKILL after timeout, in seconds; at once if that
// is 0. It returns when the container has ended, also if there is none.
func (r *Runtime) stopContainer(ctx context.Context, id string, timeout int64, patience time.Duration) error {
	_, err := callWithin(ctx, patience, r.cri.StopContainer, &runtimeapi.StopContainerRequest{
		ContainerId: id, Timeout: timeout,
	})
	return notFound(err)
}

func (r *Runtime) containerStatus(ctx context.Context, id string) (*runtimeapi.ContainerStatus, error) {
	out, err := call(ctx, r.cri.ContainerStatus, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	return out.GetStatus(), err
}

// makeLogDir makes the directory of a container's log.
func makeLogDir(spec Spec) error {
	return os.MkdirAll(filepath.Dir(filepath.Join(spec.Sandbox.LogDir, spec.LogPath)), 0o755)
}
