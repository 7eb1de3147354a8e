package controller

import (
	"sync"
	"time"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/rpcerr"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// shown is what Plan RPCs may read of the passes of this process, which its loops own.
type shown struct {
	mu    sync.Mutex
	leads bool
	pass  *pass     // the last one over all manifests; nil if there was none since the release changed
	next  time.Time // when the next one begins; zero while one is under way
}

func (s *shown) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// lead notes whether this process leads.
func (s *shown) lead(leads bool) {
	s.set(func() { s.leads, s.pass, s.next = leads, nil, time.Time{} })
}

// leading reports whether this process leads.
func (s *shown) leading() (leads bool) {
	s.set(func() { leads = s.leads })
	return leads
}

// begin notes that a pass over all manifests has begun; nil: that none is known any more.
func (s *shown) begin(p *pass) { s.set(func() { s.pass, s.next = p, time.Time{} }) }

// rest notes when the next pass over all manifests begins.
func (s *shown) rest(next time.Time) { s.set(func() { s.next = next }) }

// Progress says how far the pass over the release of a live cluster version is. Only the leader knows it: the error of
// any other replica is UNAVAILABLE.
func (c *Controller) Progress(cv *updatev1.ClusterVersion) (*updatev1.PlanClusterVersionRunResponse, error) {
	c.shown.mu.Lock()
	leads, p, next := c.shown.leads, c.shown.pass, c.shown.next
	c.shown.mu.Unlock()
	if !leads {
		return nil, rpcerr.Unavailable("this process does not lead, and only the leader knows how far a pass is")
	}
	now := time.Now()
	out := plan.RunWithout(cv, c.mode(cv.GetStatus(), cv.GetStatus().GetDesired().GetImage()),
		c.Tables.Windows.All(), now)
	if p == nil || p.release.image != cv.GetStatus().GetDesired().GetImage() {
		return out, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plan.Describe(out)
	// What has drifted since, and is not put back yet, is in the condition alone.
	out.Completed = out.GetCompleted() && plan.Find(out.GetConditions(), plan.Failing).GetStatus() != plan.True
	if out.Ended = p.over.Load(); out.Ended {
		out.NextPassTime = plan.NextPass(next)
	}
	return out, nil
}

// Foresee says how far a pass over given manifests comes now, for a given cluster version. It asks no other service.
func (c *Controller) Foresee(r *updatev1.PlanClusterVersionRunRequest, now time.Time,
) *updatev1.PlanClusterVersionRunResponse {
	cv := r.GetClusterVersion()
	st := cv.GetStatus()
	mode := plan.GivenMode(st)
	operators := map[string]*updatev1.ClusterOperator{}
	for _, o := range r.GetClusterOperators() {
		operators[o.GetMetadata().GetName()] = o
	}
	p := plan.Foresee(plan.GivenPass(r, mode), st.GetProgress().GetWaits(), func(name string) *updatev1.ClusterOperator {
		return operators[name]
	}, plan.Paused(cv, now), now)
	out := plan.RunWithout(cv, mode, r.GetMaintenanceWindows(), now)
	p.Describe(out)
	out.Conditions = nil
	run := p.Run()
	run.Completed, run.Invalid = p.Completed(), plan.Find(st.GetConditions(), plan.Invalid).GetStatus() == plan.True
	for _, condition := range plan.Conditions(run, st.GetConditions(), now) {
		out.Conditions = append(out.Conditions, plan.Stamp(condition, plan.Find(st.GetConditions(), condition.GetType()),
			now))
	}
	out.Ended = out.GetCompleted() // nothing fails in it
	return out
}
