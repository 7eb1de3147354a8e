package pods

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/services/node-agent/image"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

// maxSteps bounds what is done in one call of settle; the next call continues.
const maxSteps = 20

// settle moves one pod closer to its desired state, and returns when to run again.
func (s *Pods) settle(ctx context.Context, uid string) (time.Time, error) {
	p := s.lookup(uid)
	if p == nil {
		return time.Time{}, nil
	}
	object := s.refresh(p)
	if !p.record.Ending.IsZero() {
		s.cancelJobs(p)
	}
	if p.record.Started.IsZero() {
		if err := s.admit(ctx, p, object); err != nil {
			return time.Time{}, err
		}
	}
	var d plan.PodPlan
	for range maxSteps {
		s.observe(ctx, p)
		d = plan.Pod(s.view(p, object))
		s.order(p, object, d.Stop)
		s.settleVerdict(p, d.Verdict)
		again, err := s.act(ctx, p, object, d)
		if err != nil {
			return time.Time{}, err
		}
		if !again {
			break
		}
	}
	s.mu.Lock()
	if !proto.Equal(p.status, d.Status) {
		before := p.status
		if before == nil { // an agent before this one said it
			before = object.GetStatus()
		}
		for _, e := range plan.StatusEvents(object.GetMetadata().GetName(), before, d.Status) {
			s.event(p, e.GetType(), e.GetReason(), e.GetMessage())
		}
		p.status = d.Status
	}
	s.mu.Unlock()
	if err := s.save(p); err != nil {
		return time.Time{}, err
	}
	if d.Verdict.Phase != "" && !s.runs(p) {
		s.reclaim(p) // how it ended is written down
	}
	s.mu.Lock()
	p.over = d.Over // from now on its directory may go
	s.mu.Unlock()
	s.leadHostPorts(p)
	s.told.Add(uid)
	s.probed.Add(uid)
	return d.Wake, nil
}

// refresh returns the pod as the cluster has it, and notes whether it is to go.
func (s *Pods) refresh(p *pod) *schedulingv1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.record.Ending.IsZero() && (p.gone || p.object.GetMetadata().GetDeletionTimestamp() != nil) {
		p.record.Ending, p.dirty = time.Now(), true
	}
	if p.evicted.Phase != "" && p.record.Verdict.Phase == "" {
		p.decide(p.evicted)
	}
	// another service ended it
	if st := p.object.GetStatus(); placement.Terminated(p.object) && p.record.Verdict.Phase == "" {
		p.decide(plan.Verdict{Phase: st.GetPhase(), Reason: st.GetReason(), Message: st.GetMessage()})
	}
	return p.object
}

// admit is the last check before a pod runs. Of a pod whose directory was lost processes may be left: they end first.
func (s *Pods) admit(ctx context.Context, p *pod, object *schedulingv1.Pod) error {
	if err := s.stopLeft(ctx, p, object); err != nil {
		return err
	}
	s.admission.Lock()
	defer s.admission.Unlock()
	verdict := p.record.Verdict
	if verdict.Phase == "" && p.record.Ending.IsZero() {
		verdict = s.driver().lacks().Refuse(object.GetSpec())
	}
	if verdict.Phase == "" && p.record.Ending.IsZero() {
		var err error
		if verdict, err = s.check(ctx, p.uid, object); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &p.record
	r.Boot, r.Started, p.dirty = s.cfg.BootID, time.Now(), true
	p.decide(verdict)
	if t := object.GetStatus().GetStartTime(); t != nil {
		r.Started = t.AsTime() // it ran here before, and its directory was lost
	}
	for _, list := range [][]*schedulingv1.ContainerStatus{
		object.GetStatus().GetInitContainerStatuses(),
		object.GetStatus().GetContainerStatuses(),
	} {
		for _, c := range list {
			r.Containers[c.GetName()] = lost(c)
		}
	}
	return nil
}

// leftPatience is how long the end of what is left of a pod is waited for at a time: it goes on without that. A
// container runtime that does not answer must not hold up other pods, and what is left has a grace period of 10 s.
const leftPatience = 15 * time.Second

// stopLeft ends what is left of the containers of a pod. An error means that it is to be called again.
func (s *Pods) stopLeft(ctx context.Context, p *pod, object *schedulingv1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, leftPatience)
	defer cancel()
	for _, c := range slices.Concat(object.GetSpec().GetInitContainers(), object.GetSpec().GetContainers()) {
		if err := s.stop(ctx, processName(p.uid, c.GetName())); err != nil {
			return err
		}
	}
	return nil
}

// lost returns what is known of a container whose directory was lost.
func lost(st *schedulingv1.ContainerStatus) *container {
	c := &container{}
	if st.GetState().GetRunning() == nil && st.GetState().GetTerminated() == nil &&
		st.GetLastState().GetTerminated() == nil {
		return c
	}
	c.Starts = int(st.GetRestartCount()) + 1
	c.Since = time.Now()
	c.end(plan.Exit{
		Code: codeKilled, Reason: plan.StatusUnknown, Message: "what was known of it is lost",
		Finished: time.Now(),
	})
	if t := st.GetState().GetTerminated(); t != nil {
		c.Exit.Code, c.Exit.Reason, c.Exit.Message = int(t.GetExitCode()), t.GetReason(), t.GetMessage()
		c.Exit.Started, c.Exit.Finished = t.GetStartedAt().AsTime(), t.GetFinishedAt().AsTime()
	}
	return c
}

// check returns the verdict on a pod beside those that run here. What was known of the node when it was registered is
// enough to admit a pod that asks for none of its labels, which may have changed since; and it never refuses
// one.
func (s *Pods) check(ctx context.Context, uid string, object *schedulingv1.Pod) (plan.Verdict, error) {
	others := s.others(uid)
	for fresh := plan.AsksForLabels(object.GetSpec()); ; fresh = true {
		ctx, cancel := context.WithTimeout(ctx, callPatience)
		node, err := s.cfg.NodeOf(ctx, fresh)
		cancel()
		if err != nil {
			return plan.Verdict{}, err
		}
		if verdict := plan.Admit(object, node, others); verdict.Phase == "" || fresh {
			return verdict, nil
		}
	}
}

// others returns the other pods that use what the machine has.
func (s *Pods) others(uid string) []*schedulingv1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*schedulingv1.Pod
	for id, p := range s.pods {
		if id != uid && !p.record.Started.IsZero() && p.record.Verdict.Phase == "" && !p.over {
			out = append(out, p.object)
		}
	}
	return out
}

// observe brings what is known of a pod's processes up to date.
func (s *Pods) observe(ctx context.Context, p *pod) {
	s.mu.Lock()
	for _, c := range p.record.Containers {
		c.awaited()
	}
	s.mu.Unlock()
	for name, c := range p.record.Containers {
		if c.Starts == 0 || c.Exit != nil {
			continue
		}
		s.mu.Lock()
		p.learn(name, c)
		s.mu.Unlock()
		st, known := s.driverOf(c).look(ctx, p, name, c)
		switch {
		case !known:
			s.supervise(p, name, c)
			continue
		case st.broken != nil:
			s.broken(p, name, c, st.broken)
			continue
		case st.exit != nil:
			st.exit.Message = cmp.Or(s.terminationMessage(p, name, c, st.exit.Code), st.exit.Message)
		}
		s.mu.Lock()
		c.awaits = st.awaits
		if st.id != "" && st.id != c.ID {
			c.ID, p.dirty = st.id, true
		}
		if st.exit != nil {
			c.end(*st.exit)
			p.dirty = true
			p.forget(name)
		}
		s.mu.Unlock()
	}
}

// supervise has the last start of a container run, or taken over if it does. What cannot be run has ended.
func (s *Pods) supervise(p *pod, name string, c *container) {
	if err := s.driverOf(c).ensure(c, func() { s.settled.Add(p.uid) }); err != nil {
		s.broken(p, name, c, err)
	}
}

// broken notes that a container could not be started.
func (s *Pods) broken(p *pod, name string, c *container, err error) {
	s.logged(p, c) // nothing is in its log
	s.mu.Lock()
	defer s.mu.Unlock()
	c.end(plan.Exit{Code: signalBase, Reason: plan.StartError, Message: err.Error(), Finished: time.Now()})
	p.dirty = true
	p.forget(name)
}

// view is what the plan decides on.
func (s *Pods) view(p *pod, object *schedulingv1.Pod) plan.PodView {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.viewOf(p, object)
}

// viewOf is view with the lock held.
func (s *Pods) viewOf(p *pod, object *schedulingv1.Pod) plan.PodView {
	conditions := object.GetStatus().GetConditions()
	if p.status != nil {
		object = &schedulingv1.Pod{
			Metadata: object.GetMetadata(), Spec: object.GetSpec(),
			Status: withQOS(p.status, object.GetStatus()),
		}
	}
	return plan.PodView{
		Now: time.Now(), Pod: object, HostAddress: s.cfg.Address, Address: p.record.Address, Started: p.record.Started,
		Verdict: p.record.Verdict,
		Decided: p.record.Decided, Ending: p.record.Ending,
		Conditions: conditions,
		Init:       p.views(object.GetSpec().GetInitContainers()), Containers: p.views(object.GetSpec().GetContainers()),
	}
}

// withQOS returns a status with what the cluster alone says.
func withQOS(st, of *schedulingv1.PodStatus) *schedulingv1.PodStatus {
	if st.GetQosClass() == of.GetQosClass() {
		return st
	}
	st = proto.CloneOf(st)
	st.QosClass = of.GetQosClass()
	return st
}

func (p *pod) views(list []*schedulingv1.Container) []plan.ContainerView {
	out := make([]plan.ContainerView, len(list))
	for i, of := range list {
		if c := p.record.Containers[of.GetName()]; c != nil {
			out[i] = plan.ContainerView{
				Starts: c.Starts, Since: c.Since, ID: c.ID, Exit: c.Exit, Last: c.Last, Crashes: c.Crashes, Asked: c.Asked,
				Obstacle: c.obstacle, ImageID: c.ImageID, Awaits: c.awaits,
				Checks: c.Checks, Adopted: c.adopted, Began: c.began, AskedAt: c.askedAt, Ended: c.ended, Stopping: c.Stopping,
			}
			for kind, hook := range map[string]*plan.Hook{postStart: &out[i].PostStart, preStop: &out[i].PreStop} {
				co := p.courses[part{of.GetName(), kind}]
				hook.Runs = co != nil && co.start == c.Starts && co.Runs
			}
			out[i].PostStart.Done, out[i].PostStart.Error, out[i].PreStop.Done = c.PostStarted, c.PostStartError, c.PreStopped
		}
		out[i].Life = p.life[of.GetName()]
	}
	return out
}

func (s *Pods) settleVerdict(p *pod, v plan.Verdict) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.decide(v)
}

// decide notes a verdict. The lock is held.
func (p *pod) decide(v plan.Verdict) {
	if p.record.Verdict != v {
		p.record.Verdict, p.record.Decided, p.dirty = v, time.Now(), true
	}
}

// act does what was decided, and reports whether there may be more to do at once.
func (s *Pods) act(ctx context.Context, p *pod, object *schedulingv1.Pod, d plan.PodPlan) (again bool, err error) {
	for _, r := range d.Start {
		if err := s.start(ctx, p, object, containerOf(object, r)); err != nil {
			return false, err
		}
		again = true
	}
	s.mu.Lock()
	for _, r := range d.PostStart {
		s.beginHook(ctx, p, containerOf(object, r).GetName(), postStart)
	}
	for _, r := range d.PreStop {
		name := containerOf(object, r).GetName()
		p.interrupt(name, postStart)
		s.beginHook(ctx, p, name, preStop)
	}
	s.mu.Unlock()
	for _, r := range d.Ask {
		if s.ask(ctx, p, object, containerOf(object, r).GetName()) {
			again = true
		}
	}
	for _, r := range d.Kill {
		name := containerOf(object, r).GetName()
		c := p.record.Containers[name]
		s.mu.Lock()
		p.interrupt(name, postStart)
		p.interrupt(name, preStop)
		c.Asked, p.dirty = true, p.dirty || !c.Asked
		s.mu.Unlock()
		s.kill(ctx, p, object, name)
	}
	return again, nil
}

// order notes which containers are to end although their pod is not, and says why.
func (s *Pods) order(p *pod, object *schedulingv1.Pod, list []plan.StopOrder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range list {
		name := containerOf(object, o.ContainerRef).GetName()
		p.record.Containers[name].Stopping, p.dirty = &o.Cause, true
		if o.Reason == plan.Killing {
			s.event(p, plan.Normal, plan.Killing, o.Message)
		}
	}
}

// ask sends SIGTERM to the main process of a container, and reports whether it got it.
func (s *Pods) ask(ctx context.Context, p *pod, object *schedulingv1.Pod, name string) bool {
	s.mu.Lock()
	p.interrupt(name, postStart)
	p.interrupt(name, preStop)
	c := p.record.Containers[name]
	s.mu.Unlock()
	switch err := s.driverOf(c).Ask(processName(p.uid, name)); {
	case errors.Is(err, process.ErrNoProcess):
		time.AfterFunc(again(c), func() { s.settled.Add(p.uid) }) // it starts, or ends
		return false
	case err != nil:
		s.cfg.Log.WarnContext(ctx, "container not asked to end", "pod", object.GetMetadata().GetName(), "error", err)
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c.Asked, c.askedAt, p.dirty = true, time.Now(), true
	if c.Stopping == nil {
		s.event(p, plan.Normal, plan.Killing, "Stopping container "+name)
	}
	return true
}

// When a container is asked again that could not be.
const (
	askAgain        = 20 * time.Millisecond
	askRuntimeAgain = time.Second // it may be silent for long, and says at once what happens to a container
)

// again returns when a container is asked again that could not be.
func again(c *container) time.Duration {
	if c.CRI != nil {
		return askRuntimeAgain
	}
	return askAgain
}

// kill sends SIGKILL to all processes of a container; one that does not run yet, or no more, gets it when that is
// known.
func (s *Pods) kill(ctx context.Context, p *pod, object *schedulingv1.Pod, name string) {
	err := s.driverOf(p.record.Containers[name]).Kill(processName(p.uid, name))
	if err != nil && !errors.Is(err, process.ErrNoProcess) {
		s.cfg.Log.WarnContext(ctx, "container not killed", "pod", object.GetMetadata().GetName(), "error", err)
	}
}

func containerOf(object *schedulingv1.Pod, r plan.ContainerRef) *schedulingv1.Container {
	if r.Init {
		return object.GetSpec().GetInitContainers()[r.Index]
	}
	return object.GetSpec().GetContainers()[r.Index]
}

// start starts a container, or notes why that cannot be. What is to run is written down first, so that an agent that
// comes after a crash knows that it may run.
func (s *Pods) start(ctx context.Context, p *pod, object *schedulingv1.Pod, of *schedulingv1.Container) error {
	s.mu.Lock()
	c := p.record.Containers[of.GetName()]
	if c == nil {
		c = &container{}
		p.record.Containers[of.GetName()] = c
	}
	s.mu.Unlock()
	user, err := s.user(p)
	if err = errors.Join(err, s.address(p, object), s.save(p)); err != nil { // one write for both
		s.hinder(ctx, p, c, of, err)
		return nil
	}
	dir := s.containerDir(p.uid, of.GetName())
	if err := s.makeDir(dir); err != nil {
		return err
	}
	if mountsClaim(object, of) {
		if err := s.resolveVolumes(ctx, p, object); err != nil {
			s.hinder(ctx, p, c, of, err)
			return nil
		}
	}
	if err := errors.Join(s.loadConfig(ctx, object), s.loadTokens(ctx, object)); err != nil {
		s.hinder(ctx, p, c, of, err)
		return nil
	}
	img, ready, err := s.imageOf(p, object, c, of, dir, user)
	if err != nil {
		s.hinder(ctx, p, c, of, err)
		return nil
	}
	if !ready {
		s.waits(c, of)
		return nil
	}
	l, err := s.prepare(ctx, p, object, of, dir, user, img)
	if err != nil {
		s.hinder(ctx, p, c, of, err)
		return nil
	}
	own, err := s.ownFiles(p, object, l.isolated)
	if err != nil {
		s.hinder(ctx, p, c, of, err)
		return nil
	}
	if err := removeOld(dir, c.Starts); err != nil {
		return err
	}
	if l.isolated {
		m, err := makeMessage(dir, of, user)
		if err != nil {
			return err
		}
		own = append(own, m)
	}
	own = slices.DeleteFunc(own, func(m process.Mount) bool { // what the container mounts itself counts
		return slices.ContainsFunc(l.mounts, func(of process.Mount) bool { return of.To == cleanPath(m.To) })
	})
	l.mounts = append(l.mounts, own...)
	next, err := s.driver().describe(p, object, of, c, l)
	if err != nil {
		s.hinder(ctx, p, c, of, err)
		return nil
	}
	s.mu.Lock()
	c.Last, c.Exit, c.Asked, c.obstacle = c.Exit, nil, false, nil
	p.forget(of.GetName())
	c.logged = nil
	c.Checks, c.PostStarted, c.PostStartError, c.PreStopped, c.Stopping = plan.Checks{}, false, "", false, nil
	c.began, c.adopted, c.askedAt, c.ended = time.Now(), time.Time{}, time.Time{}, time.Time{}
	c.Starts, c.Since, c.ID, c.ImageID, c.start, c.awaits = c.Starts+1, time.Now(), "", l.imageID, next, ""
	p.dirty = true
	if c.CopyBytes = 0; c.job != nil {
		c.CopyBytes = c.job.bytes
	}
	s.letGo(c)
	s.mu.Unlock()
	if err := s.save(p); err != nil {
		return err
	}
	s.cfg.Log.InfoContext(ctx, "container started", "pod", object.GetMetadata().GetName(), "container", of.GetName(),
		"start", c.Starts)
	s.supervise(p, of.GetName(), c)
	return nil
}

// hinder notes why a container cannot be started.
func (s *Pods) hinder(ctx context.Context, p *pod, c *container, of *schedulingv1.Container, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var noImage errImage
	o := &plan.Obstacle{Reason: "CreateContainerError", Message: cause.Error(), Tries: 1}
	switch {
	case errors.Is(cause, image.ErrNeverPull):
		o.Reason = plan.ErrImageNeverPull
	case errors.Is(cause, image.ErrInvalidName):
		o.Reason = plan.InvalidImageName
	case errors.Is(cause, image.ErrUnsigned):
		o.Reason = plan.SignatureInvalid
	case errors.As(cause, &noImage):
		o.Reason = plan.ErrImagePull
	case errors.Is(cause, errConfig):
		o.Reason = "CreateContainerConfigError"
	}
	if c.obstacle != nil && c.obstacle.Reason == o.Reason {
		o.Tries = c.obstacle.Tries + 1
	} else if c.obstacle != nil && c.obstacle.Failed > 0 && o.Reason == plan.ErrImagePull {
		o.Tries = c.obstacle.Failed + 1
	}
	o.Until = time.Now().Add(plan.ImageBackOff(o.Tries))
	if errors.Is(cause, plan.ErrMissing) {
		o.Until = time.Now().Add(configEvery)
	}
	if errors.Is(cause, errInUse) {
		o.Until = time.Now().Add(inUseAgain) // it is free at once when the other pod has ended
	}
	if c.obstacle == nil || c.obstacle.Message != o.Message {
		s.cfg.Log.InfoContext(ctx, "container not started", "pod", p.object.GetMetadata().GetName(), "container",
			of.GetName(), "error", cause)
	}
	c.obstacle = o
}
