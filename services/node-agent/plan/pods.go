package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/kit/lifecycle"
)

const (
	// A container that keeps ending is started again at once the first time, then after firstBackOff, twice as long each
	// time up to longBackOff. After calmAfter the back-off is reset. Source: Kubernetes' crash loop back-off.
	firstBackOff = 10 * time.Second
	longBackOff  = 5 * time.Minute
	calmAfter    = 10 * time.Minute

	// killAgain is when processes that were killed are checked again.
	killAgain = time.Second

	defaultGrace = 30 * time.Second

	// leastGrace is what a container gets after SIGTERM if its preStop hook, or those that end before it, used up the
	// grace period. Source: Kubernetes' minimumGracePeriodInSeconds.
	leastGrace = 2 * time.Second
)

// Words for what a container waits for and how it ended.
const (
	ContainerCreating = "ContainerCreating"
	PodInitializing   = "PodInitializing"
	CrashLoopBackOff  = "CrashLoopBackOff"
	ErrImagePull      = "ErrImagePull"
	ImagePullBackOff  = "ImagePullBackOff"
	ErrImageNeverPull = "ErrImageNeverPull"
	InvalidImageName  = "InvalidImageName"
	SignatureInvalid  = "SignatureValidationFailed"
	StatusUnknown     = "ContainerStatusUnknown"
	DeadlineExceeded  = "DeadlineExceeded"
	StartError        = "StartError"
	OutOfMemory       = "OOMKilled"
	Killing           = "Killing"
	FailedPostStart   = "FailedPostStartHook"

	LimitsNotEnforceable          = "LimitsNotEnforceable"
	SecurityContextNotEnforceable = "SecurityContextNotEnforceable"
	ImageRequired                 = "ImageRequired"
)

const (
	pending   = "Pending"
	running   = "Running"
	succeeded = "Succeeded"
	failed    = "Failed"
)

// PodView is everything a decision about one pod of the node depends on.
type PodView struct {
	Now         time.Time
	Pod         *schedulingv1.Pod // its status is the one that was known before
	HostAddress string            // of the machine
	Address     string            // of the pod; empty while it has none
	Started     time.Time         // when the agent took the pod up
	// Verdict is how the pod ended, if that is settled; it stays so.
	Verdict Verdict
	// Decided is when it was settled.
	Decided time.Time
	// Ending is since when the agent knows that the pod is to go; zero if it stays.
	Ending time.Time
	// Init and Containers are in the order of the spec.
	Init, Containers []ContainerView
	// Conditions are those of the pod that the cluster has; readiness gates refer to them.
	Conditions []*schedulingv1.PodCondition
}

// Verdict is the end of a pod: Succeeded or Failed, and why. The zero Verdict is none.
type Verdict struct {
	Phase   string `json:"phase,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// ContainerView is what is known of one container.
type ContainerView struct {
	Starts   int       // how often it was started
	Since    time.Time // of the last start
	ID       string    // of the last start, as the status has it; empty until it is known to run
	Exit     *Exit     // of the last start; nil while it runs
	Last     *Exit     // of the start before
	Crashes  int       // ends one after the other that were no calm ones
	Asked    bool      // it was asked to end
	Obstacle *Obstacle // why it could not be started; nil if nothing is known
	Awaits   string    // what the runtime waits for before the last start runs; empty: nothing is known
	ImageID  string

	Life    lifecycle.Container
	Checks  Checks    // of the last start
	Began   time.Time // when the last start began, by the agent's monotonic clock
	Adopted time.Time // when the agent took the last start over from an earlier agent; zero if it did not
	// AskedAt is when it was asked to end, by the agent's monotonic clock.
	AskedAt time.Time
	// Ended is when the last start ended, by the agent's monotonic clock. Exit has the time by the wall clock, which may
	// have been set since.
	Ended time.Time
	// PostStart and PreStop are the hooks of the last start.
	PostStart, PreStop Hook
	// Stopping is why the last start is to end although the pod is not; nil if it is not.
	Stopping *Cause
}

// Hook is the course of a hook.
type Hook struct {
	Runs bool
	Done bool
	// Error is why it failed; empty if it did not.
	Error string
}

// Cause is why a container that runs is to end, since when, and how long it gets.
type Cause struct {
	Reason  string        `json:"reason"` // of the event that says why, if not Killing
	Message string        `json:"message"`
	Since   time.Time     `json:"since"`
	Grace   time.Duration `json:"grace"`
	// Again means that the container is started again although it may end well.
	Again bool `json:"again,omitempty"`
}

// StopOrder is a container that is to end from now on.
type StopOrder struct {
	ContainerRef
	Cause
}

// Exit is how a container ended.
type Exit struct {
	Code     int       `json:"code"`
	Signal   int       `json:"signal,omitempty"`
	Reason   string    `json:"reason,omitempty"` // empty: Completed or Error
	Message  string    `json:"message,omitempty"`
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
	ID       string    `json:"id,omitempty"`  // of the container, as the status has it
	PID      int       `json:"pid,omitempty"` // in the place of ID, in a record of an earlier version
	// Again means that the container was ended to be started again.
	Again bool `json:"again,omitempty"`
}

// Obstacle is why a container could not be started, and when to try again.
type Obstacle struct {
	Reason, Message string
	Tries           int
	Failed          int // while another try is under way: how many failed before
	Until           time.Time
}

// ContainerRef names a container of a PodView.
type ContainerRef struct {
	Init  bool
	Index int
}

// PodPlan is the outcome of one decision. The zero PodPlan means nothing to do.
type PodPlan struct {
	Start     []ContainerRef
	PostStart []ContainerRef // hooks that are to run, and do not yet
	PreStop   []ContainerRef
	Stop      []StopOrder    // to be noted; they are in Ask, PreStop or Kill as well
	Ask       []ContainerRef // to end by themselves
	Kill      []ContainerRef
	Verdict   Verdict // how the pod ended, if that is so
	Over      bool    // the pod is to go and nothing of it runs: what is left may be removed
	Status    *schedulingv1.PodStatus
	Wake      time.Time // when to decide again even if nothing changes; zero means never
}

// Pod decides what is to be done for a pod of the node, and what its status is.
func Pod(v PodView) PodPlan {
	d := decision{view: v, initialized: initialized(v)}
	d.plan.Verdict = d.verdict()
	switch {
	case !v.Ending.IsZero():
		d.end(v.Ending, grace(v.Pod))
		d.plan.Over = !anyRuns(v)
	case d.plan.Verdict.Phase != "":
		d.end(d.decided(), afterVerdict(d.plan.Verdict, v.Pod))
	default:
		d.run()
	}
	d.plan.Status = d.status()
	return d.plan
}

// decision is a PodPlan that is being made.
type decision struct {
	view        PodView
	plan        PodPlan
	initialized bool
}

func (d *decision) wake(t time.Time) {
	if d.plan.Wake.IsZero() || t.Before(d.plan.Wake) {
		d.plan.Wake = t
	}
}

// verdict returns how the pod ended.
func (d *decision) verdict() Verdict {
	v := d.view
	if v.Verdict.Phase != "" {
		return v.Verdict
	}
	spec := v.Pod.GetSpec()
	for i, c := range v.Init {
		if c.Exit != nil && c.Exit.Code != 0 && spec.GetRestartPolicy() == "Never" && !c.Life.Sidecar {
			return Verdict{Phase: failed, Message: fmt.Sprintf("init container %q ended with exit code %d",
				spec.GetInitContainers()[i].GetName(), c.Exit.Code)}
		}
	}
	if done, bad := d.ended(); done && d.initialized {
		if bad {
			return Verdict{Phase: failed}
		}
		return Verdict{Phase: succeeded}
	}
	if spec.ActiveDeadlineSeconds != nil {
		deadline := v.Started.Add(time.Duration(spec.GetActiveDeadlineSeconds()) * time.Second)
		if !v.Now.Before(deadline) {
			return Verdict{
				Phase: failed, Reason: DeadlineExceeded,
				Message: fmt.Sprintf("the pod was active for longer than its deadline of %d s", spec.GetActiveDeadlineSeconds()),
			}
		}
		d.wake(deadline)
	}
	return Verdict{}
}

// ended reports whether every container has ended for good, and whether one did so badly.
func (d *decision) ended() (done, bad bool) {
	for _, c := range d.view.Containers {
		if c.Exit == nil || d.again(c) {
			return false, false
		}
		bad = bad || c.Exit.Code != 0
	}
	return true, bad
}

// again reports whether a container that ended is started again.
func (d *decision) again(c ContainerView) bool {
	if c.Life.Sidecar {
		return true
	}
	switch d.view.Pod.GetSpec().GetRestartPolicy() {
	case "Never":
		return false
	case "OnFailure":
		return c.Exit.Code != 0 || c.Exit.Again
	}
	return true
}

// decided returns when the verdict of a pod whose processes may still run was reached.
func (d *decision) decided() time.Time {
	if d.view.Decided.IsZero() {
		return d.view.Now
	}
	return d.view.Decided
}

// end has everything that runs end: the containers first, then the sidecars, the last one first.
func (d *decision) end(since time.Time, grace time.Duration) {
	deadline, turn := since.Add(grace), true
	for i, c := range d.view.Containers {
		turn = turn && !c.runs()
		d.stop(ContainerRef{Index: i}, c, deadline, grace, true)
	}
	for i := len(d.view.Init) - 1; i >= 0; i-- {
		c := d.view.Init[i]
		d.stop(ContainerRef{Init: true, Index: i}, c, deadline, grace, turn || !c.Life.Sidecar)
		turn = turn && !c.runs()
	}
}

// stop has a container end: first its preStop hook runs, then it is asked if it is its turn, and killed when the grace
// is over. Source: Kubernetes' killContainer.
func (d *decision) stop(r ContainerRef, c ContainerView, deadline time.Time, grace time.Duration, turn bool) {
	if !c.runs() {
		return
	}
	if s := c.Stopping; s != nil && s.Since.Add(s.Grace).Before(deadline) {
		deadline, grace = s.Since.Add(s.Grace), s.Grace
	}
	late := !d.view.Now.Before(deadline)
	least := deadline
	if waited := c.Life.PreStop != nil || c.Life.Sidecar; waited && grace > 0 {
		least = d.view.Now.Add(leastGrace)
		if c.Asked {
			least = c.AskedAt.Add(leastGrace)
		}
		if least.Before(deadline) {
			least = deadline
		}
	}
	switch {
	case !late && c.up() && c.Life.PreStop != nil && !c.PreStop.Done:
		if !c.PreStop.Runs {
			d.plan.PreStop = append(d.plan.PreStop, r)
		}
		d.wake(deadline)
	case !late && !c.Asked && !turn:
		d.wake(deadline)
	case !d.view.Now.Before(least):
		d.plan.Kill = append(d.plan.Kill, r)
		d.wake(d.view.Now.Add(killAgain))
	default:
		if !c.Asked {
			d.plan.Ask = append(d.plan.Ask, r)
		}
		d.wake(least)
	}
}

// run has init containers run one after the other, and then the others. A sidecar keeps running; what comes after it
// starts when it has started.
func (d *decision) run() {
	for i, c := range d.view.Init {
		r := ContainerRef{Init: true, Index: i}
		switch {
		case !c.Life.Sidecar && (d.initialized || c.Exit != nil && c.Exit.Code == 0):
			continue
		case !c.Life.Sidecar || !d.initialized && !c.started():
			d.keep(r, c)
			return
		}
		d.keep(r, c)
	}
	for i, c := range d.view.Containers {
		if c.Exit != nil && !d.again(c) {
			continue
		}
		if d.keep(ContainerRef{Index: i}, c); c.runs() && c.Life.PostStart != nil && !c.PostStart.Done && c.Stopping == nil {
			return // the next one starts after the hook, as in Kubernetes
		}
	}
}

// keep has a container run: it is started, its hook runs, and it is ended if it is not well.
func (d *decision) keep(r ContainerRef, c ContainerView) {
	if !c.runs() {
		d.start(r, c)
		return
	}
	if c.Stopping == nil {
		if s, bad := d.unwell(r, c); bad {
			d.plan.Stop = append(d.plan.Stop, StopOrder{r, s})
			c.Stopping = &s
		}
	}
	switch {
	case c.Stopping != nil:
		d.stop(r, c, c.Stopping.Since.Add(c.Stopping.Grace), c.Stopping.Grace, true)
	case c.ID != "" && c.Life.PostStart != nil && !c.PostStart.Done && !c.PostStart.Runs:
		d.plan.PostStart = append(d.plan.PostStart, r)
	}
}

// unwell returns why a container that runs is to end. Source: Kubernetes' computePodActions.
func (d *decision) unwell(r ContainerRef, c ContainerView) (Cause, bool) {
	of := d.spec(r)
	s := Cause{
		Since: d.view.Now, Grace: grace(d.view.Pod), Again: c.Life.Sidecar ||
			d.view.Pod.GetSpec().GetRestartPolicy() != "Never",
	}
	var probe *lifecycle.Probe
	switch {
	case c.PostStart.Error != "":
		s.Reason, s.Message = FailedPostStart, c.PostStart.Error
		return s, true
	case c.Life.Startup != nil && c.Checks.Startup == Failure:
		probe, s.Message = c.Life.Startup, fmt.Sprintf("Container %s failed startup probe", of.GetName())
	case c.Life.Liveness != nil && c.Checks.Liveness == Failure:
		probe, s.Message = c.Life.Liveness, fmt.Sprintf("Container %s failed liveness probe", of.GetName())
	default:
		return Cause{}, false
	}
	if s.Reason = Killing; s.Again {
		s.Message += ", will be restarted"
	}
	if probe.Grace != nil {
		s.Grace = *probe.Grace
	}
	return s, true
}

func (d *decision) spec(r ContainerRef) *schedulingv1.Container {
	if r.Init {
		return d.view.Pod.GetSpec().GetInitContainers()[r.Index]
	}
	return d.view.Pod.GetSpec().GetContainers()[r.Index]
}

// start has a container started that does not run, now or when its back-off is over.
func (d *decision) start(r ContainerRef, c ContainerView) {
	if when := due(c); d.view.Now.Before(when) {
		d.wake(when)
		return
	}
	d.plan.Start = append(d.plan.Start, r)
}

// due returns from when on a container may be started.
func due(c ContainerView) (when time.Time) {
	if c.Exit != nil {
		when = c.Ended.Add(BackOff(c.Crashes))
	}
	if o := c.Obstacle; o != nil && o.Until.After(when) {
		when = o.Until
	}
	return when
}

// BackOff returns how long a container rests after so many ends one after the other.
func BackOff(ends int) time.Duration {
	if ends <= 1 {
		return 0
	}
	pause := firstBackOff
	for range ends - 2 {
		if pause = 2 * pause; pause >= longBackOff {
			return longBackOff
		}
	}
	return pause
}

// ImageBackOff returns how long to wait after so many attempts to get an image.
func ImageBackOff(tries int) time.Duration { return BackOff(tries + 1) }

// Crashes returns how many ends one after the other there are after another one of a process that ran for so long.
func Crashes(before int, ran time.Duration) int {
	if ran >= calmAfter {
		return 1
	}
	return before + 1
}

func each(v PodView, f func(ContainerRef, ContainerView)) {
	for i, c := range v.Init {
		f(ContainerRef{Init: true, Index: i}, c)
	}
	for i, c := range v.Containers {
		f(ContainerRef{Index: i}, c)
	}
}

func anyRuns(v PodView) (runs bool) {
	each(v, func(_ ContainerRef, c ContainerView) { runs = runs || c.runs() })
	return runs
}

func anyStarted(v PodView) (started bool) {
	each(v, func(_ ContainerRef, c ContainerView) { started = started || c.Starts > 0 })
	return started
}

// initialized reports whether the init containers have done their part: all have ended well, and the sidecars have
// started. It stays so once a container was started.
func initialized(v PodView) bool {
	for _, c := range v.Containers {
		if c.Starts > 0 {
			return true
		}
	}
	for _, c := range v.Init {
		if done := c.Exit != nil && c.Exit.Code == 0; c.Life.Sidecar && !c.started() || !c.Life.Sidecar && !done {
			return false
		}
	}
	return true
}

// grace returns how long the processes of a pod get to end.
func grace(p *schedulingv1.Pod) time.Duration {
	if s := p.GetMetadata().DeletionGracePeriodSeconds; s != nil {
		return time.Duration(*s) * time.Second
	}
	if s := p.GetSpec().TerminationGracePeriodSeconds; s != nil {
		return time.Duration(*s) * time.Second
	}
	return defaultGrace
}

// afterVerdict returns how long the processes of a pod get to end that has ended for the cluster: none if the node has
// too little for it. Source: Kubernetes' hard eviction.
func afterVerdict(v Verdict, p *schedulingv1.Pod) time.Duration {
	if v.Reason == Evicted {
		return 0
	}
	return grace(p)
}

// status returns the status to report.
func (d *decision) status() *schedulingv1.PodStatus {
	v, before := d.view, d.view.Pod.GetStatus()
	s := &schedulingv1.PodStatus{
		Phase: new(d.phase()), HostIp: v.HostAddress, QosClass: before.GetQosClass(), StartTime: at(v.Started),
	}
	if v.HostAddress != "" {
		s.HostIps = []*schedulingv1.HostIP{{Ip: v.HostAddress}}
	}
	if v.Address != "" {
		s.PodIp = v.Address
		s.PodIps = []*schedulingv1.PodIP{{Ip: v.Address}}
	}
	if w := d.plan.Verdict; w.Reason != "" || w.Message != "" {
		s.Reason, s.Message = pointer(w.Reason), pointer(w.Message)
	}
	if d.plan.Verdict.Phase == failed && !anyStarted(v) {
		s.Conditions = d.conditions(s, before)
		return s // it was refused
	}
	for i, c := range v.Init {
		s.InitContainerStatuses = append(s.InitContainerStatuses, d.container(v.Pod.GetSpec().GetInitContainers()[i], c,
			true))
	}
	for i, c := range v.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses, d.container(v.Pod.GetSpec().GetContainers()[i], c, false))
	}
	s.Conditions = d.conditions(s, before)
	return s
}

// at returns a time in whole seconds, as objects have them.
func at(t time.Time) *timestamppb.Timestamp { return timestamppb.New(t.Truncate(time.Second)) }

// pointer returns nil for an empty string.
func pointer(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func (d *decision) phase() string {
	if p := d.plan.Verdict.Phase; p != "" && !d.sidecarsEnd() {
		return p
	}
	if !d.initialized {
		return pending
	}
	for _, c := range d.view.Containers {
		if c.Starts == 0 || c.Starts == 1 && c.runs() && !c.up() { // it is being started
			return pending
		}
	}
	return running
}

// sidecarsEnd reports whether the sidecars of a pod whose containers have ended are about to end: until then its phase
// is not final, as in Kubernetes.
func (d *decision) sidecarsEnd() (runs bool) {
	if before := d.view.Pod.GetStatus().GetPhase(); before == succeeded || before == failed {
		return false
	}
	for _, c := range d.view.Containers {
		if c.runs() || c.Starts == 0 {
			return false
		}
	}
	for _, c := range d.view.Init {
		runs = runs || c.Life.Sidecar && c.runs()
	}
	return runs
}

// container returns the status of one container.
func (d *decision) container(c *schedulingv1.Container, v ContainerView, init bool) *schedulingv1.ContainerStatus {
	runs, started, ready := v.up(), v.started(), v.ready()
	if init && !v.Life.Sidecar {
		ready = v.Exit != nil && v.Exit.Code == 0
	}
	s := &schedulingv1.ContainerStatus{
		Name: c.GetName(), Image: c.GetImage(), ImageId: v.ImageID, ContainerId: v.ID, Ready: &ready, Started: &started,
		RestartCount: new(int32(max(v.Starts-1, 0))), State: &schedulingv1.ContainerState{},
	}
	last := v.Last
	switch {
	case runs:
		s.State.Running = &schedulingv1.ContainerStateRunning{StartedAt: at(v.Since)}
	case v.Exit == nil: // it is being started, at the latest
		s.State.Waiting = d.waiting(c, v, init)
	case d.waits(v, init):
		s.State.Waiting = d.waiting(c, v, init)
		last = v.Exit
	default:
		s.State.Terminated = terminated(v.Exit)
	}
	if last != nil {
		s.LastState = &schedulingv1.ContainerState{Terminated: terminated(last)}
	}
	return s
}

// waits reports whether a container that ended is to be started again.
func (d *decision) waits(v ContainerView, init bool) bool {
	if d.plan.Verdict.Phase != "" || !d.view.Ending.IsZero() || init && v.Exit.Code == 0 && !v.Life.Sidecar {
		return false
	}
	return d.again(v) || init
}

func (d *decision) waiting(c *schedulingv1.Container, v ContainerView, init bool) *schedulingv1.ContainerStateWaiting {
	switch o := v.Obstacle; {
	case o != nil && o.Reason == ErrImagePull && o.Tries > 1:
		return &schedulingv1.ContainerStateWaiting{
			Reason:  ImagePullBackOff,
			Message: fmt.Sprintf("Back-off pulling image %q: %s: %s", c.GetImage(), ErrImagePull, o.Message),
		}
	case o != nil:
		return &schedulingv1.ContainerStateWaiting{Reason: o.Reason, Message: o.Message}
	case v.Exit != nil:
		return &schedulingv1.ContainerStateWaiting{
			Reason:  CrashLoopBackOff,
			Message: fmt.Sprintf("back-off of %v before container %q is started again", BackOff(v.Crashes), c.GetName()),
		}
	case v.Awaits != "":
		return &schedulingv1.ContainerStateWaiting{Reason: ContainerCreating, Message: v.Awaits}
	case len(d.view.Init) > 0 && (!d.initialized || init):
		return &schedulingv1.ContainerStateWaiting{Reason: PodInitializing}
	}
	return &schedulingv1.ContainerStateWaiting{Reason: ContainerCreating}
}

func terminated(e *Exit) *schedulingv1.ContainerStateTerminated {
	reason := e.Reason
	switch {
	case reason != "":
	case e.Code == 0:
		reason = "Completed"
	default:
		reason = "Error"
	}
	return &schedulingv1.ContainerStateTerminated{
		ExitCode: new(int32(e.Code)), Signal: int32(e.Signal), Reason: reason, Message: e.Message,
		StartedAt: at(e.Started), FinishedAt: at(e.Finished), ContainerId: e.ID,
	}
}

// conditions returns Initialized, ContainersReady and Ready; one whose status is as before keeps the time of its
// change.
func (d *decision) conditions(s, before *schedulingv1.PodStatus) []*schedulingv1.PodCondition {
	names := append(d.unready(s.GetInitContainerStatuses(), true), d.unready(s.GetContainerStatuses(), false)...)
	over := ""
	if s.GetPhase() == succeeded {
		over = "PodCompleted"
	}
	out := []*schedulingv1.PodCondition{
		condition("Initialized", "", d.uninitialized(s.GetInitContainerStatuses()), "ContainersNotInitialized",
			"containers with incomplete status"),
		condition("ContainersReady", over, names, "ContainersNotReady", "containers with unready status"),
		condition("Ready", over, names, "ContainersNotReady", "containers with unready status"),
	}
	if why := d.gates(); len(why) > 0 && out[2].GetStatus() == "True" {
		out[2] = &schedulingv1.PodCondition{
			Type: "Ready", Status: "False", Reason: new("ReadinessGatesNotReady"), Message: new(strings.Join(why, ", ")),
		}
	}
	if s.GetPhase() == failed {
		for _, c := range out[1:] {
			c.Status, c.Reason = "False", new("PodFailed")
		}
	}
	for _, c := range out {
		c.LastTransitionTime = at(d.view.Now)
		for _, old := range before.GetConditions() {
			if old.GetType() == c.GetType() && old.GetStatus() == c.GetStatus() && old.GetLastTransitionTime() != nil {
				c.LastTransitionTime = old.GetLastTransitionTime()
			}
		}
	}
	return out
}

// gates returns the readiness gates of the pod whose conditions are not True. Source: Kubernetes'
// GeneratePodReadyCondition.
func (d *decision) gates() (why []string) {
	for _, g := range d.view.Pod.GetSpec().GetReadinessGates() {
		typ := g.GetFields()["conditionType"].GetStringValue()
		i := slices.IndexFunc(d.view.Conditions, func(c *schedulingv1.PodCondition) bool { return c.GetType() == typ })
		switch {
		case i < 0:
			why = append(why, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", typ))
		case d.view.Conditions[i].GetStatus() != "True":
			why = append(why, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %s", typ,
				d.view.Conditions[i].GetStatus()))
		}
	}
	return why
}

// uninitialized returns the init containers that hold up the others.
func (d *decision) uninitialized(list []*schedulingv1.ContainerStatus) (names []string) {
	if d.initialized {
		return nil
	}
	for i, c := range list {
		if sidecar := d.view.Init[i].Life.Sidecar; sidecar && !c.GetStarted() || !sidecar && !c.GetReady() {
			names = append(names, c.GetName())
		}
	}
	return names
}

// unready returns the containers that are not ready. Of the init containers only sidecars count.
func (d *decision) unready(list []*schedulingv1.ContainerStatus, init bool) (names []string) {
	for i, c := range list {
		if !c.GetReady() && (!init || d.view.Init[i].Life.Sidecar) {
			names = append(names, c.GetName())
		}
	}
	return names
}

func condition(typ, over string, names []string, reason, message string) *schedulingv1.PodCondition {
	switch {
	case over != "":
		return &schedulingv1.PodCondition{Type: typ, Status: "False", Reason: &over}
	case len(names) == 0:
		return &schedulingv1.PodCondition{Type: typ, Status: "True"}
	}
	return &schedulingv1.PodCondition{
		Type: typ, Status: "False", Reason: &reason, Message: new(message + ": [" + strings.Join(names, " ") + "]"),
	}
}
