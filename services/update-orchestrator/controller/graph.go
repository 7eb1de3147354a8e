package controller

import (
	"context"
	"strings"
	"time"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
	"github.com/windlass-dev/windlass/services/update-orchestrator/upstream"
)

// lookEvery is how often the times of a local graph's file are checked.
const lookEvery = 2 * time.Second

// question is all that the answer depends on: another question is asked at once.
type question struct {
	upstream, channel, id, version, image, accept string
	stamp                                         string // of a local file
}

func questionOf(cv *updatev1.ClusterVersion) question {
	spec, desired := cv.GetSpec(), cv.GetStatus().GetDesired()
	return question{
		upstream: spec.GetUpstream(), channel: spec.GetChannel(), id: spec.GetClusterId(),
		version: desired.GetVersion(), image: desired.GetImage(), accept: strings.Join(accepted(spec), " "),
		stamp: upstream.Stamp(spec.GetUpstream(), spec.GetChannel()),
	}
}

// same reports whether two questions are about the same updates: they may differ by the content of the file that
// answers, and by which risks are accepted.
func (q question) same(other question) bool {
	q.stamp, other.stamp, q.accept, other.accept = "", "", "", ""
	return q == other
}

func accepted(spec *updatev1.ClusterVersionSpec) []string {
	var names []string
	for _, r := range spec.GetDesiredUpdate().GetAcceptRisks() {
		names = append(names, r.GetName())
	}
	return names
}

// retrieve asks for the graph if it is time to, and returns when to look again.
func (c *Controller) retrieve(ctx context.Context, _ string) (time.Time, error) {
	cv, ok := c.Tables.Cluster()
	if !ok || cv.GetStatus().GetDesired().GetVersion() == "" {
		return time.Time{}, nil // the other loop writes it
	}
	q := questionOf(cv)
	if time.Now().Before(c.term.askAgain) && q == c.term.asked {
		return c.lookAgain(q), nil
	}
	updates := c.evaluate(ctx, cv)
	if ctx.Err() != nil {
		return time.Time{}, ctx.Err()
	}
	first := c.term.asked == question{} // what an earlier leader showed is no worse than what this one would have
	keep := (first || c.term.asked.same(q)) && plan.Keep(updates.Retrieved, c.term.lastGood, now())
	good := updates.Retrieved.GetStatus() == plan.True
	if err := c.write(ctx, func(cv *updatev1.ClusterVersion, now time.Time) {
		if !questionOf(cv).same(q) {
			return // the cluster moved on while the answer was waited for: it is asked again at once
		}
		set(cv.GetStatus(), plan.RetrievedUpdates, updates.Retrieved, now)
		if good || !keep {
			show(cv.GetStatus(), updates)
		}
	}); err != nil {
		return time.Time{}, err
	}
	if good {
		c.term.lastGood = now()
	}
	c.term.asked, c.term.askAgain = q, time.Now().Add(c.Poll)
	return c.lookAgain(q), nil
}

func (c *Controller) lookAgain(q question) time.Time {
	if strings.HasPrefix(q.upstream, "file:") {
		return time.Now().Add(min(lookEvery, time.Until(c.term.askAgain)))
	}
	return c.term.askAgain
}

// show puts the outcome of an evaluation into a status.
func show(st *updatev1.ClusterVersionStatus, u plan.Updates) {
	st.AvailableUpdates, st.ConditionalUpdates = u.Available, u.Conditional
	if u.Current != nil && st.GetDesired().GetVersion() == u.Current.GetVersion() {
		st.Desired.Channels = u.Current.GetChannels()
		if u.Current.GetUrl() != "" {
			st.Desired.Url = u.Current.GetUrl()
		}
	}
}

// evaluate asks the upstream of a cluster for the graph and says which updates there are.
func (c *Controller) evaluate(ctx context.Context, cv *updatev1.ClusterVersion) plan.Updates {
	version := cv.GetStatus().GetDesired().GetVersion()
	g, refused := c.Graphs.Graph(ctx, cv.GetSpec(), version, c.Arch)
	if refused != nil {
		return plan.Updates{Retrieved: refused}
	}
	return plan.Evaluate(plan.Query{
		Graph: g, Version: version, Channel: cv.GetSpec().GetChannel(),
		Accept: accepted(cv.GetSpec()), Before: cv.GetStatus().GetConditionalUpdates(), Now: now(),
	})
}
