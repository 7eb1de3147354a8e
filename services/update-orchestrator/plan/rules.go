package plan

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// Answer is what came of the evaluation of a query.
type Answer struct {
	Status string    // True if the risk applies, False if not, Unknown if the evaluation failed
	Why    string    // why it failed
	At     time.Time // when it ended
}

// maxWhy bounds what is said of a failure: it is stored.
const maxWhy = 512

// NewAnswer returns what came of an evaluation that ended at a time.
func NewAnswer(applies bool, failed error, at time.Time) Answer {
	a := Answer{Status: False, At: at}
	switch {
	case failed != nil:
		why := strings.ToValidUTF8(failed.Error(), "�")
		if len(why) > maxWhy {
			why = strings.ToValidUTF8(why[:maxWhy], "") + "…"
		}
		a.Status, a.Why = Unknown, why
	case applies:
		a.Status = True
	}
	return a
}

// How often queries are evaluated. Source: the Cluster Version Operator, but for failures, which it repeats after an
// hour, too.
const (
	BetweenQueries = time.Second    // of all queries
	repeatQuery    = time.Hour      // after a result
	firstRetry     = time.Minute    // after a failure; later as long as the failures have lasted
	keepResult     = 24 * time.Hour // how long a result counts while the evaluation fails
)

// clockAhead is by how much an evaluation may seem to be in the future: more means that the clock was set back.
const clockAhead = time.Minute

// notEvaluated says why a query has no result before it was evaluated.
const notEvaluated = "the query has not been evaluated yet"

// outcome returns the result of a rule: of a query the latest one, for as long as it counts.
func (q Query) outcome(rule *updatev1.ClusterCondition) *updatev1.RuleOutcome {
	if rule.GetType() == ruleAlways {
		return &updatev1.RuleOutcome{Type: ruleAlways, Status: True}
	}
	query := rule.GetPromql().GetPromql()
	out := &updatev1.RuleOutcome{
		Type: rulePromQL, Promql: query, Status: Unknown, Message: notEvaluated, Version: q.Version,
	}
	before := Unknown
	if last := q.last(query); last != nil {
		out, before = proto.CloneOf(last), last.GetStatus()
	}
	if a, ok := q.Answers[query]; ok {
		out.Attempted, out.Message = timestamppb.New(a.At), a.Why
		if a.Status != Unknown {
			out.Status, out.Evaluated = a.Status, out.Attempted
		}
	}
	if at := out.GetEvaluated().AsTime(); out.Status != Unknown && q.Now.Sub(at) >= keepResult {
		out.Status = Unknown
		if out.Message == "" {
			out.Message = "it was not evaluated again"
		}
		out.Message += fmt.Sprintf("; the last result is of %s and counts for %.0f h", at.UTC().Format(time.RFC3339),
			keepResult.Hours())
	}
	if !q.Now.IsZero() && (out.Since == nil || before != out.Status) {
		out.Since = timestamppb.New(q.Now)
	}
	return out
}

// Tried returns the result of a query that is no rule of a risk yet, as if it were one. version is that of the cluster.
func Tried(query, version string, a Answer) *updatev1.RuleOutcome {
	q := Query{Version: version, Answers: map[string]Answer{query: a}}
	return q.outcome(&updatev1.ClusterCondition{
		Type: rulePromQL, Promql: &updatev1.PromQLClusterCondition{Promql: query},
	})
}

// last returns the last outcome of a query that counts; nil if there is none.
func (q Query) last(query string) *updatev1.RuleOutcome {
	for o := range q.former() {
		if o.GetPromql() == query {
			return o
		}
	}
	return nil
}

// former returns the last outcomes of queries: those at the version of the cluster, and not of a time to come.
func (q Query) former() iter.Seq[*updatev1.RuleOutcome] {
	return func(yield func(*updatev1.RuleOutcome) bool) {
		for _, u := range q.Before {
			for _, r := range u.GetRisks() {
				for _, o := range r.GetOutcomes() {
					ahead := !q.Now.IsZero() && o.GetAttempted().AsTime().After(q.Now.Add(clockAhead))
					if o.GetType() == rulePromQL && o.GetVersion() == q.Version && !ahead && !yield(o) {
						return
					}
				}
			}
		}
	}
}

// NextQuery returns the query of the risks of the last outcome that is to be evaluated next, and when: those that were
// never evaluated first, those of the newest update before others and those of one update by the names of its risks;
// then the one that was due first. The query is empty if there is none.
func (q Query) NextQuery() (query string, at time.Time) {
	_, risky := Judge(q, nil)
	for _, u := range risky {
		byName := slices.SortedStableFunc(slices.Values(u.GetRisks()), func(a, b *updatev1.ConditionalUpdateRisk) int {
			return strings.Compare(a.GetName(), b.GetName())
		})
		for _, r := range byName {
			for _, o := range r.GetOutcomes() {
				if due := dueAt(o); o.GetType() == rulePromQL && (query == "" || due.Before(at)) {
					query, at = o.GetPromql(), due
				}
			}
		}
	}
	for o := range q.former() {
		if free := o.GetAttempted().AsTime().Add(BetweenQueries); o.GetAttempted() != nil && free.After(at) {
			at = free
		}
	}
	return query, at
}

// dueAt returns when a query is to be evaluated again: the zero time if it never was.
func dueAt(o *updatev1.RuleOutcome) time.Time {
	attempted := o.GetAttempted().AsTime()
	switch {
	case o.GetAttempted() == nil:
		return time.Time{}
	case o.GetStatus() == Unknown:
		return attempted.Add(min(max(attempted.Sub(o.GetSince().AsTime()), firstRetry), repeatQuery))
	case o.GetMessage() != "":
		return attempted.Add(min(max(attempted.Sub(o.GetEvaluated().AsTime())-repeatQuery, firstRetry), repeatQuery))
	}
	return attempted.Add(repeatQuery)
}
