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
	multi, toMulti                                bool   // architecture that is asked for
	stamp                                         string // of a local file
}

func questionOf(cv *updatev1.ClusterVersion) question {
	spec, desired := cv.GetSpec(), cv.GetStatus().GetDesired()
	return question{
		upstream: spec.GetUpstream(), channel: spec.GetChannel(), id: spec.GetClusterId(),
		multi: desired.GetArchitecture() == plan.Multi, toMulti: plan.ToMulti(cv),
		version: desired.GetVersion(), image: desired.GetImage(), accept: strings.Join(plan.Accepted(spec), " "),
		stamp: upstream.Stamp(spec.GetUpstream(), spec.GetChannel()),
	}
}

// same reports whether two questions are about the same updates: they may differ by the content of the file that
// answers, and by which risks are accepted.
func (q question) same(other question) bool {
	q.stamp, other.stamp, q.accept, other.accept = "", "", "", ""
	return q == other
}

// retrieve asks for the graph if it is time to, and evaluates the queries of its risks, one at each call. It returns
// when to look again.
func (c *Controller) retrieve(ctx context.Context, _ string) (time.Time, error) {
	cv, ok := c.Tables.Cluster()
	if !ok || cv.GetStatus().GetDesired().GetVersion() == "" {
		return time.Time{}, nil // the other loop writes it
	}
	q := questionOf(cv)
	if time.Now().Before(c.term.askAgain) && q == c.term.asked {
		return c.evaluate(ctx, cv, q)
	}
	graph, refused := c.Graphs.Graph(ctx, cv.GetSpec(), q.version, plan.Architecture(cv, c.Arch))
	if ctx.Err() != nil {
		return time.Time{}, ctx.Err()
	}
	evaluate := func(cv *updatev1.ClusterVersion) plan.Updates {
		if refused != nil {
			return plan.Updates{Retrieved: refused}
		}
		query := queryOf(cv)
		query.Graph = graph
		return plan.Evaluate(query)
	}
	updates := evaluate(cv)
	first := c.term.asked == question{} // what an earlier leader showed is no worse than what this one would have
	keep := (first || c.term.asked.same(q)) && plan.Keep(updates.Retrieved, c.term.lastGood, now())
	good := updates.Retrieved.GetStatus() == plan.True
	if err := c.write(ctx, func(cv *updatev1.ClusterVersion, now time.Time) {
		if !questionOf(cv).same(q) {
			return // the cluster moved on while the answer was waited for: it is asked again at once
		}
		updates := evaluate(cv) // by the outcomes that are there now
		set(cv.GetStatus(), plan.RetrievedUpdates, updates.Retrieved, now)
		if good || !keep {
			show(cv.GetStatus(), updates)
		} else {
			judge(cv, nil)
		}
	}); err != nil {
		return time.Time{}, err
	}
	if good {
		c.term.lastGood = now()
	}
	c.term.asked, c.term.askAgain = q, time.Now().Add(c.Poll)
	// At once again: a query may be due, whether or not what was retrieved has changed anything.
	return time.Now(), c.Tables.Versions.CatchUp(ctx)
}

// evaluate evaluates the query that is due, if one is, and returns when to look again. It needs no answer of the
// upstream: the risks are in the status.
func (c *Controller) evaluate(ctx context.Context, cv *updatev1.ClusterVersion, q question) (time.Time, error) {
	query, at := queryOf(cv).NextQuery()
	if query == "" {
		return c.lookAgain(q), nil
	}
	if time.Now().Before(at) {
		if again := c.lookAgain(q); again.Before(at) {
			return again, nil
		}
		return at, nil
	}
	applies, err := c.Queries.Evaluate(ctx, query)
	if ctx.Err() != nil {
		return time.Time{}, ctx.Err()
	}
	answer := plan.NewAnswer(applies, err, time.Now())
	if err := c.write(ctx, func(cv *updatev1.ClusterVersion, _ time.Time) {
		if questionOf(cv).same(q) {
			judge(cv, map[string]plan.Answer{query: answer})
		}
	}); err != nil {
		return time.Time{}, err
	}
	// Whatever comes next sees what was written: otherwise it would evaluate the query again at once.
	return time.Now().Add(plan.BetweenQueries), c.Tables.Versions.CatchUp(ctx)
}

// judge judges the risks in a status again, by what queries returned since.
func judge(cv *updatev1.ClusterVersion, answers map[string]plan.Answer) {
	q, st := queryOf(cv), cv.GetStatus()
	q.Answers = answers
	st.AvailableUpdates, st.ConditionalUpdates = plan.Judge(q, st.GetAvailableUpdates())
}

// queryOf returns the question which updates there are for a cluster, without a graph.
func queryOf(cv *updatev1.ClusterVersion) plan.Query {
	return plan.Query{
		Version: cv.GetStatus().GetDesired().GetVersion(), Channel: cv.GetSpec().GetChannel(),
		ToMulti: plan.ToMulti(cv), Accept: plan.Accepted(cv.GetSpec()), Before: cv.GetStatus().GetConditionalUpdates(),
		Now: now(),
	}
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
