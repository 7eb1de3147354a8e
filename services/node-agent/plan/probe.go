package plan

import (
	"hash/fnv"
	"time"

	"github.com/windlass-dev/windlass/kit/lifecycle"
)

// Kinds of probes, as messages of events begin.
const (
	Startup   = "Startup"
	Liveness  = "Liveness"
	Readiness = "Readiness"
)

// atOnce is how many probes of one pod run at a time. A pod whose probes hang delays no probes but its own.
const atOnce = 8

// Outcome is what a probe found; the zero Outcome is not known.
type Outcome string

// Outcomes of a probe.
const (
	Success Outcome = "Success"
	Failure Outcome = "Failure"
)

// Checks is what the probes of one start of a container found, after as many results as their thresholds require.
type Checks struct {
	Startup   Outcome `json:"startup,omitempty"`
	Liveness  Outcome `json:"liveness,omitempty"`
	Readiness Outcome `json:"readiness,omitempty"`
}

// Of returns the outcome of a kind of probe.
func (c Checks) Of(kind string) Outcome {
	switch kind {
	case Startup:
		return c.Startup
	case Liveness:
		return c.Liveness
	}
	return c.Readiness
}

// With returns c with another outcome of a kind of probe.
func (c Checks) With(kind string, o Outcome) Checks {
	switch kind {
	case Startup:
		c.Startup = o
	case Liveness:
		c.Liveness = o
	default:
		c.Readiness = o
	}
	return c
}

// ProbeRef names a probe of a container of a pod.
type ProbeRef struct {
	ContainerRef
	Kind string
}

// Probing is the course of one probe of one start of a container.
type Probing struct {
	Begun   time.Time // when it last began; zero: it did not yet
	Runs    bool
	Last    Outcome // the last result
	InRow   int     // results like the last one, one after the other
	Outcome Outcome // what counts
}

// After returns p after another result. Source: Kubernetes, pkg/kubelet/prober, worker.doProbe.
func (p Probing) After(of *lifecycle.Probe, result Outcome) Probing {
	p.Runs = false
	if p.Last == result {
		p.InRow++
	} else {
		p.Last, p.InRow = result, 1
	}
	most := of.Success
	if result == Failure {
		most = of.Failures
	}
	if p.InRow >= most {
		p.Outcome = result
	}
	return p
}

// ProbePlan is which probes run now.
type ProbePlan struct {
	Run  []ProbeRef
	Wake time.Time // when to decide again even if nothing changes; zero means never
}

// Probes decides which probes of a pod are due. course returns what is known of a probe of the container's present
// start.
func Probes(v PodView, course func(ProbeRef) Probing) ProbePlan {
	d := probeDecision{view: v, course: course}
	each(v, func(r ContainerRef, c ContainerView) {
		for _, kind := range []string{Startup, Liveness, Readiness} {
			d.runs(ProbeRef{r, kind})
			d.due(ProbeRef{r, kind}, c)
		}
	})
	d.plan.Run = d.plan.Run[:min(len(d.plan.Run), max(0, atOnce-d.running))] // the others when one of them has ended
	return d.plan
}

type probeDecision struct {
	view    PodView
	course  func(ProbeRef) Probing
	plan    ProbePlan
	running int
}

func (d *probeDecision) runs(r ProbeRef) {
	if d.course(r).Runs {
		d.running++
	}
}

// due notes a probe that is to run now, or when it is.
func (d *probeDecision) due(r ProbeRef, c ContainerView) {
	of := ProbeOf(c.Life, r.Kind)
	if of == nil || !d.wanted(r.Kind, c) {
		return
	}
	course := d.course(r)
	if course.Runs {
		return
	}
	when := c.Began.Add(of.InitialDelay)
	switch {
	case !course.Begun.IsZero():
		when = course.Begun.Add(of.Period)
	case !c.Adopted.IsZero():
		// The containers of a node are not probed all at once when its agent starts.
		if spread := c.Adopted.Add(d.share(r, of.Period)); spread.After(when) {
			when = spread
		}
	}
	if d.view.Now.Before(when) {
		if d.plan.Wake.IsZero() || when.Before(d.plan.Wake) {
			d.plan.Wake = when
		}
		return
	}
	d.plan.Run = append(d.plan.Run, r)
}

// share returns a part of a period that is always the same for a probe.
func (d *probeDecision) share(r ProbeRef, period time.Duration) time.Duration {
	h := fnv.New32a()
	_, _ = h.Write([]byte(d.view.Pod.GetMetadata().GetUid() + r.Kind))
	_, _ = h.Write([]byte{byte(r.Index)})
	const parts = 1000
	return period / parts * time.Duration(h.Sum32()%parts)
}

// wanted reports whether a kind of probe has something to find: until the startup probe succeeds there is no other, a
// container that is to end is only checked for its readiness, and one whose probe failed for good is not checked.
func (d *probeDecision) wanted(kind string, c ContainerView) bool {
	if !c.up() {
		return false
	}
	ends := !d.view.Ending.IsZero() || d.view.Verdict.Phase != "" || c.Stopping != nil
	switch kind {
	case Startup:
		return !ends && c.Checks.Startup == ""
	case Liveness:
		return !ends && c.started() && c.Checks.Liveness != Failure
	}
	return c.started()
}

// ProbeOf returns a container's probe of a kind; nil if it has none.
func ProbeOf(c lifecycle.Container, kind string) *lifecycle.Probe {
	switch kind {
	case Startup:
		return c.Startup
	case Liveness:
		return c.Liveness
	}
	return c.Readiness
}

// runs reports whether a start of the container has not ended.
func (c ContainerView) runs() bool { return c.Starts > 0 && c.Exit == nil }

// up reports whether the container's process runs and its postStart hook is done. Until then it is not Running.
func (c ContainerView) up() bool {
	return c.runs() && c.ID != "" && (c.Life.PostStart == nil || c.PostStart.Done)
}

// started reports whether the container has started in the sense of its startup probe.
func (c ContainerView) started() bool {
	return c.up() && (c.Life.Startup == nil || c.Checks.Startup == Success)
}

// ready reports whether the container is ready. One that was never probed is not.
func (c ContainerView) ready() bool {
	return c.started() && (c.Life.Readiness == nil || c.Checks.Readiness == Success)
}
