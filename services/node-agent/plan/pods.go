package plan

import (
	"fmt"
	"strings"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/types/known/timestamppb"
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
)

// Words for what a container waits for and how it ended.
const (
	ContainerCreating = "ContainerCreating"
	PodInitializing   = "PodInitializing"
	CrashLoopBackOff  = "CrashLoopBackOff"
	ErrImagePull      = "ErrImagePull"
	ImagePullBackOff  = "ImagePullBackOff"
	StatusUnknown     = "ContainerStatusUnknown"
	DeadlineExceeded  = "DeadlineExceeded"
	OutOfMemory       = "OOMKilled"

	LimitsNotEnforceable = "LimitsNotEnforceable"
)

const (
	pending   = "Pending"
	running   = "Running"
	succeeded = "Succeeded"
	failed    = "Failed"
)

// PodView is everything a decision about one pod of the node depends on.
type PodView struct {
	Now     time.Time
	Pod     *schedulingv1.Pod // its status is the one that was known before
	Address string            // of the machine
	Started time.Time         // when the agent took the pod up
	// Verdict is how the pod ended, if that is settled; it stays so.
	Verdict Verdict
	// Decided is when it was settled.
	Decided time.Time
	// Ending is since when the agent knows that the pod is to go; zero if it stays.
	Ending time.Time
	// Init and Containers are in the order of the spec.
	Init, Containers []ContainerView
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
	PID      int       // of the last start; 0 if it is not known
	Exit     *Exit     // of the last start; nil while it runs
	Last     *Exit     // of the start before
	Crashes  int       // ends one after the other that were no calm ones
	Asked    bool      // it was asked to end
	Obstacle *Obstacle // why it could not be started; nil if nothing is known
	ImageID  string
}

// Exit is how a container ended.
type Exit struct {
	Code     int       `json:"code"`
	Signal   int       `json:"signal,omitempty"`
	Reason   string    `json:"reason,omitempty"` // empty: Completed or Error
	Message  string    `json:"message,omitempty"`
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
	PID      int       `json:"pid,omitempty"`
}

// Obstacle is why a container could not be started, and when to try again.
type Obstacle struct {
	Reason, Message string
	Tries           int
	Until           time.Time
}

// ContainerRef names a container of a PodView.
type ContainerRef struct {
	Init  bool
	Index int
}

// PodPlan is the outcome of one decision. The zero PodPlan means nothing to do.
type PodPlan struct {
	Start   []ContainerRef
	Ask     []ContainerRef // to end by themselves
	Kill    []ContainerRef
	Verdict Verdict // how the pod ended, if that is so
	Over    bool    // the pod is to go and nothing of it runs: what is left may be removed
	Status  *schedulingv1.PodStatus
	Wake    time.Time // when to decide again even if nothing changes; zero means never
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
		d.end(d.decided(), grace(v.Pod))
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
		if c.Exit != nil && c.Exit.Code != 0 && spec.GetRestartPolicy() == "Never" {
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
	switch d.view.Pod.GetSpec().GetRestartPolicy() {
	case "Never":
		return false
	case "OnFailure":
		return c.Exit.Code != 0
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

// end has everything that runs end: asked first, killed when the grace is over.
func (d *decision) end(since time.Time, grace time.Duration) {
	deadline := since.Add(grace)
	late := !d.view.Now.Before(deadline)
	each(d.view, func(r ContainerRef, c ContainerView) {
		if c.Starts == 0 || c.Exit != nil {
			return
		}
		switch {
		case late:
			d.plan.Kill = append(d.plan.Kill, r)
			d.wake(d.view.Now.Add(killAgain))
			return
		case !c.Asked:
			d.plan.Ask = append(d.plan.Ask, r)
		}
		d.wake(deadline)
	})
}

// run has init containers run one after the other, and then the others.
func (d *decision) run() {
	for i, c := range d.view.Init {
		if c.Exit != nil && c.Exit.Code == 0 {
			continue
		}
		d.start(ContainerRef{Init: true, Index: i}, c)
		return
	}
	for i, c := range d.view.Containers {
		if c.Exit != nil && !d.again(c) {
			continue
		}
		d.start(ContainerRef{Index: i}, c)
	}
}

// start has a container started that does not run, now or when its back-off is over.
func (d *decision) start(r ContainerRef, c ContainerView) {
	if c.Starts > 0 && c.Exit == nil {
		return
	}
	if when := due(c); d.view.Now.Before(when) {
		d.wake(when)
		return
	}
	d.plan.Start = append(d.plan.Start, r)
}

// due returns from when on a container may be started.
func due(c ContainerView) (when time.Time) {
	if c.Exit != nil {
		when = c.Exit.Finished.Add(BackOff(c.Crashes))
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
	each(v, func(_ ContainerRef, c ContainerView) { runs = runs || c.Starts > 0 && c.Exit == nil })
	return runs
}

func anyStarted(v PodView) (started bool) {
	each(v, func(_ ContainerRef, c ContainerView) { started = started || c.Starts > 0 })
	return started
}

func initialized(v PodView) bool {
	for _, c := range v.Init {
		if c.Exit == nil || c.Exit.Code != 0 {
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

// status returns the status to report.
func (d *decision) status() *schedulingv1.PodStatus {
	v, before := d.view, d.view.Pod.GetStatus()
	s := &schedulingv1.PodStatus{
		Phase: new(d.phase()), HostIp: v.Address, QosClass: before.GetQosClass(), StartTime: at(v.Started),
	}
	if v.Address != "" {
		s.HostIps, s.PodIp = []*schedulingv1.HostIP{{Ip: v.Address}}, v.Address
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
	if p := d.plan.Verdict.Phase; p != "" {
		return p
	}
	if !d.initialized {
		return pending
	}
	for _, c := range d.view.Containers {
		if c.Starts == 0 {
			return pending
		}
	}
	return running
}

// container returns the status of one container.
func (d *decision) container(c *schedulingv1.Container, v ContainerView, init bool) *schedulingv1.ContainerStatus {
	runs := v.Starts > 0 && v.Exit == nil && v.PID != 0
	ready := runs && !init || init && v.Exit != nil && v.Exit.Code == 0
	s := &schedulingv1.ContainerStatus{
		Name: c.GetName(), Image: c.GetImage(), ImageId: v.ImageID, Ready: &ready, Started: &runs,
		RestartCount: new(int32(max(v.Starts-1, 0))), State: &schedulingv1.ContainerState{},
	}
	if v.PID != 0 {
		s.ContainerId = containerID(v.PID)
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
	if d.plan.Verdict.Phase != "" || !d.view.Ending.IsZero() || init && v.Exit.Code == 0 {
		return false
	}
	return d.again(v) || init
}

func (d *decision) waiting(c *schedulingv1.Container, v ContainerView, init bool) *schedulingv1.ContainerStateWaiting {
	switch o := v.Obstacle; {
	case o != nil && o.Reason == ErrImagePull && o.Tries > 1:
		return &schedulingv1.ContainerStateWaiting{Reason: ImagePullBackOff, Message: "next try in a while: " + o.Message}
	case o != nil:
		return &schedulingv1.ContainerStateWaiting{Reason: o.Reason, Message: o.Message}
	case v.Exit != nil:
		return &schedulingv1.ContainerStateWaiting{
			Reason:  CrashLoopBackOff,
			Message: fmt.Sprintf("back-off of %v before container %q is started again", BackOff(v.Crashes), c.GetName()),
		}
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
	t := &schedulingv1.ContainerStateTerminated{
		ExitCode: new(int32(e.Code)), Signal: int32(e.Signal), Reason: reason, Message: e.Message,
		StartedAt: at(e.Started), FinishedAt: at(e.Finished),
	}
	if e.PID != 0 {
		t.ContainerId = containerID(e.PID)
	}
	return t
}

func containerID(pid int) string { return fmt.Sprintf("process://%d", pid) }

// conditions returns Initialized, ContainersReady and Ready; one whose status is as before keeps the time of its
// change.
func (d *decision) conditions(s, before *schedulingv1.PodStatus) []*schedulingv1.PodCondition {
	init := condition("Initialized", "", unready(s.GetInitContainerStatuses()), "ContainersNotInitialized",
		"containers with incomplete status")
	names := unready(s.GetContainerStatuses())
	over := ""
	if s.GetPhase() == succeeded {
		over = "PodCompleted"
	}
	out := []*schedulingv1.PodCondition{
		init,
		condition("ContainersReady", over, names, "ContainersNotReady", "containers with unready status"),
		condition("Ready", over, names, "ContainersNotReady", "containers with unready status"),
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

func unready(list []*schedulingv1.ContainerStatus) (names []string) {
	for _, c := range list {
		if !c.GetReady() {
			names = append(names, c.GetName())
		}
	}
	return names
}
