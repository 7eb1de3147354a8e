package pods

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/kit/lifecycle"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

const (
	probers = 2 // pods whose probes are begun at a time; probes that run hold up none of them

	// A failure is said again at the earliest after saidFor, or sayAgain with the same words.
	saidFor  = 10 * time.Second
	sayAgain = time.Minute
)

// Kinds of hooks.
const (
	postStart = "PostStart"
	preStop   = "PreStop"
)

// part names a probe or a hook of a container.
type part struct{ container, kind string }

// course is a probe or a hook of one start of a container. The lock of Pods guards it.
type course struct {
	plan.Probing
	start  int
	cancel context.CancelFunc // of what runs
	done   bool               // of a hook
	err    string             // why a hook failed
	said   string             // the failure that was last said
	saidAt time.Time
}

// courseOf returns a course of a container's present start. What is known of an earlier agent's course is in the
// container's record. The lock is held.
func (p *pod) courseOf(name, kind string) *course {
	c, at := p.record.Containers[name], part{name, kind}
	if c == nil {
		return &course{}
	}
	if co := p.courses[at]; co != nil && co.start == c.Starts {
		return co
	}
	co := &course{start: c.Starts}
	switch kind {
	case postStart:
		co.done, co.err = c.PostStarted, c.PostStartError
	case preStop:
		co.done = c.PreStopped
	default:
		co.Outcome = c.Checks.Of(kind)
	}
	if p.courses == nil {
		p.courses = map[part]*course{}
	}
	p.courses[at] = co
	return co
}

// forget ends what is done with a start of a container, whose results count for nothing any more. The lock is held.
func (p *pod) forget(name string) {
	for at, co := range p.courses {
		if at.container != name {
			continue
		}
		if co.cancel != nil {
			co.cancel()
		}
		delete(p.courses, at)
	}
}

// interrupt ends a hook that runs. The lock is held.
func (p *pod) interrupt(name, hook string) {
	if co := p.courses[part{name, hook}]; co != nil && co.Runs {
		co.cancel()
	}
}

// learn writes down what was found of a container since the last check. The lock is held.
func (p *pod) learn(name string, c *container) {
	for _, kind := range []string{plan.Startup, plan.Liveness, plan.Readiness} {
		co := p.courses[part{name, kind}]
		if co != nil && co.start == c.Starts && co.Outcome != "" && co.Outcome != c.Checks.Of(kind) {
			c.Checks, p.dirty = c.Checks.With(kind, co.Outcome), true
		}
	}
	if co := p.courses[part{name, postStart}]; co != nil && co.start == c.Starts && co.done && !c.PostStarted {
		c.PostStarted, c.PostStartError, p.dirty = true, co.err, true
	}
	if co := p.courses[part{name, preStop}]; co != nil && co.start == c.Starts && co.done && !c.PreStopped {
		c.PreStopped, p.dirty = true, true
	}
}

// lives returns what the containers of a pod say about their life.
func lives(object *schedulingv1.Pod) map[string]lifecycle.Container {
	out := map[string]lifecycle.Container{}
	for _, c := range object.GetSpec().GetInitContainers() {
		out[c.GetName()], _ = lifecycle.Of(c, true)
	}
	for _, c := range object.GetSpec().GetContainers() {
		out[c.GetName()], _ = lifecycle.Of(c, false)
	}
	return out
}

// probe begins the probes of a pod that are due.
func (s *Pods) probe(ctx context.Context, uid string) (time.Time, error) {
	p := s.lookup(uid)
	if p == nil {
		return time.Time{}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	object := p.object
	d := plan.Probes(s.viewOf(p, object), func(r plan.ProbeRef) plan.Probing {
		return p.courseOf(containerOf(object, r.ContainerRef).GetName(), r.Kind).Probing
	})
	for _, r := range d.Run {
		s.beginProbe(ctx, p, containerOf(object, r.ContainerRef).GetName(), r.Kind)
	}
	return d.Wake, nil
}

// target returns the present start of a container. The lock is held.
func (s *Pods) target(p *pod, name string) target {
	return target{*p.record.Containers[name], p.uid, name, cmp.Or(p.record.Address, s.cfg.Address)}
}

// beginProbe runs a probe beside everything else. The lock is held.
func (s *Pods) beginProbe(ctx context.Context, p *pod, name, kind string) {
	of, co, t := plan.ProbeOf(p.life[name], kind), p.courseOf(name, kind), s.target(p, name)
	ctx, cancel := context.WithTimeout(ctx, of.Timeout)
	co.Begun, co.Runs, co.cancel = time.Now(), true, cancel
	s.actions.Go(func() {
		defer cancel()
		got, err := s.perform(ctx, t, of.Action, false)
		s.mu.Lock()
		defer s.mu.Unlock()
		defer s.probed.Add(p.uid)
		co.Runs = false
		if err != nil || errors.Is(ctx.Err(), context.Canceled) || p.courses[part{name, kind}] != co {
			return // it says nothing about the container, or about another start of it
		}
		before, outcome := co.Outcome, plan.Success
		if !got.ok {
			outcome = plan.Failure
		}
		if co.Probing = co.After(of, outcome); co.Outcome != before {
			s.settled.Add(p.uid)
		}
		s.say(p, co, kind, got)
	})
}

// say has an event say what a probe found, unless that was said lately. The lock is held.
func (s *Pods) say(p *pod, co *course, kind string, got answer) {
	reason, text := "Unhealthy", kind+" probe failed: "+got.message
	if got.ok {
		if reason, text = "ProbeWarning", kind+" probe warning: "+got.warning; got.warning == "" {
			return
		}
	}
	now := time.Now()
	if since := now.Sub(co.saidAt); co.said != "" && (since < saidFor || co.said == text && since < sayAgain) {
		return
	}
	co.said, co.saidAt = text, now
	s.event(p, plan.Warning, reason, text)
}

// beginHook runs a hook beside everything else. If the agent ends before the hook does, the next agent runs it again.
// The lock is held.
func (s *Pods) beginHook(ctx context.Context, p *pod, name, kind string) {
	of := p.life[name].PostStart
	if kind == preStop {
		of = p.life[name].PreStop
	}
	co, t := p.courseOf(name, kind), s.target(p, name)
	agent := ctx
	ctx, cancel := context.WithCancel(ctx)
	co.Runs, co.cancel = true, cancel
	s.actions.Go(func() {
		defer cancel()
		got, err := s.perform(ctx, t, *of, true)
		s.mu.Lock()
		defer s.mu.Unlock()
		co.Runs = false
		if agent.Err() != nil || p.courses[part{name, kind}] != co {
			return
		}
		if errors.Is(err, process.ErrNoProcess) { // it is not taken over yet, or its end was not seen yet
			time.AfterFunc(again(&t.container), func() { s.settled.Add(p.uid) })
			return
		}
		defer s.settled.Add(p.uid)
		co.done = true
		if err != nil {
			got = failed("%v", err)
		}
		if !got.ok && ctx.Err() == nil {
			co.err = kind + "Hook failed: " + got.message
			s.event(p, plan.Warning, "Failed"+kind+"Hook", co.err)
		}
	})
}

const (
	maxEvents  = 32   // of a pod that wait to be reported; more are dropped
	maxMessage = 1024 // of an event
)

// event has an event about a pod reported with its status. The lock is held.
func (s *Pods) event(p *pod, typ, reason, message string) {
	if len(p.events) >= maxEvents {
		return
	}
	// A message that is no text would keep the pod's status from being reported.
	message = strings.ToValidUTF8(message[:min(len(message), maxMessage)], "")
	p.events = append(p.events, &schedulingv1.PodEvent{Type: typ, Reason: reason, Message: message})
	s.told.Add(p.uid)
}
