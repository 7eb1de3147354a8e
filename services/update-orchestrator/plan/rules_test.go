package plan

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// risky is a graph whose updates from 1.0.0 have queries.
func risky(t *testing.T) *Graph {
	t.Helper()
	return smallGraph(t, `{"edges":[{"from":"1.0.0","to":"1.1.0"}],"risks":[
		{"name":"Pair","message":"m","matchingRules":[{"type":"PromQL","promql":{"promql":"a"}},{"type":"PromQL","promql":{"promql":"b"}}]},
		{"name":"Sure","message":"m","matchingRules":[{"type":"PromQL","promql":{"promql":"c"}},{"type":"Always"}]}]}`)
}

// inquiry is the evaluation of the queries of a graph, one after the other, as the controller does it.
type inquiry struct {
	*testing.T
	Query
}

func (c *inquiry) answer(query string, applies bool, failed error) {
	c.Helper()
	c.Before = Evaluate(c.Query).Conditional // as the graph is retrieved
	next, at := c.NextQuery()
	if next != query {
		c.Fatalf("the query to evaluate at %v is %q (at %v), want %q", c.Now, next, at, query)
	}
	if at.After(c.Now) {
		c.Now = at
	}
	c.Answers = map[string]Answer{query: NewAnswer(applies, failed, c.Now)}
	_, c.Before = Judge(c.Query, nil)
	c.Answers = nil
}

// says returns what is known of the risks.
func (c *inquiry) says() []string {
	var out []string
	for _, u := range Evaluate(c.Query).Conditional {
		for _, r := range u.GetRisks() {
			line := r.GetName() + " " + Find(r.GetConditions(), Applies).GetStatus() + ":"
			for _, o := range r.GetOutcomes() {
				line += fmt.Sprintf(" %s%s=%s", o.GetPromql(), strings.TrimPrefix(o.GetType(), rulePromQL), o.GetStatus())
				if o.GetMessage() != "" {
					line += " (" + o.GetMessage() + ")"
				}
			}
			out = append(out, line)
		}
	}
	return out
}

func (c *inquiry) want(lines ...string) {
	c.Helper()
	if diff := cmp.Diff(lines, c.says()); diff != "" {
		c.Fatalf("at %v (-want +got):\n%s", c.Now, diff)
	}
}

func TestTheFirstRuleWithAResultDecides(t *testing.T) {
	c := &inquiry{t, Query{Graph: risky(t), Version: "1.0.0", Now: noon()}}
	c.want("Pair Unknown: a=Unknown (the query has not been evaluated yet)",
		"Sure Unknown: c=Unknown (the query has not been evaluated yet)")
	c.answer("a", false, errors.New("no sample"))
	c.want("Pair Unknown: a=Unknown (no sample) b=Unknown (the query has not been evaluated yet)",
		"Sure Unknown: c=Unknown (the query has not been evaluated yet)")
	c.answer("b", true, nil)
	c.answer("c", false, errors.New("no sample"))
	c.want("Pair True: a=Unknown (no sample) b=True", "Sure True: c=Unknown (no sample) Always=True")
	c.answer("a", false, nil) // again after its failure
	c.want("Pair False: a=False", "Sure True: c=Unknown (no sample) Always=True")
	c.answer("c", false, nil)
	c.want("Pair False: a=False", "Sure False: c=False")
}

func TestQueriesAreEvaluatedByTargetThenByRisk(t *testing.T) {
	risk := func(name, query string) string {
		return fmt.Sprintf(`{"name":%q,"message":"m","matchingRules":[{"type":"PromQL","promql":{"promql":%q}}]}`, name,
			query)
	}
	g := parsedFor(t, fmt.Appendf(nil, `{"nodes":[{"version":"1.0.0","payload":"r@sha256:a"},
		{"version":"1.0.9","payload":"r@sha256:b"},{"version":"1.0.10","payload":"r@sha256:c"}],"conditionalEdges":[
		{"edges":[{"from":"1.0.0","to":"1.0.9"}],"risks":[%s,%s]},
		{"edges":[{"from":"1.0.0","to":"1.0.10"}],"risks":[%s,%s]}]}`,
		risk("B", "old b"), risk("A", "old a"), risk("D", "new d"), risk("C", "new c")), "1.0.0")
	c := &inquiry{t, Query{Graph: g, Version: "1.0.0", Now: noon()}}
	for _, query := range []string{"new c", "new d", "old a", "old b"} {
		c.answer(query, false, nil)
	}
	var order []string // that of the graph stays
	for _, r := range c.Before[0].GetRisks() {
		order = append(order, r.GetName())
	}
	if fmt.Sprint(order) != "[D C]" {
		t.Errorf("the risks are listed as %v", order)
	}
}

func TestQueriesAreEvaluatedInTheirTime(t *testing.T) {
	c := &inquiry{t, Query{Graph: risky(t), Version: "1.0.0", Now: noon()}}
	next := func(query string, after time.Duration) {
		t.Helper()
		got, at := c.NextQuery()
		if wait := at.Sub(noon()); got != query || wait != after {
			t.Fatalf("next is %q after %s, want %q after %s", got, wait, query, after)
		}
	}
	c.Before = Evaluate(c.Query).Conditional
	if query, at := c.NextQuery(); query != "a" || !at.IsZero() {
		t.Fatalf("the first query is %q, to be evaluated at %v", query, at)
	}
	c.answer("a", false, nil)
	next("c", time.Second)
	c.answer("c", false, errors.New("down"))
	next("c", time.Second+time.Minute) // a is due after an hour
	c.answer("c", false, errors.New("down"))
	next("c", 2*(time.Minute+time.Second)) // failures are repeated as late as they are old
	c.answer("c", false, errors.New("down"))
	next("c", 4*(time.Minute+time.Second))
	c.answer("c", true, nil)
	next("a", time.Hour)
	c.answer("a", true, nil)
	next("c", time.Hour+4*(time.Minute+time.Second))
}

func TestAResultCountsForADayWhileTheEvaluationFails(t *testing.T) {
	c := &inquiry{t, Query{Graph: risky(t), Version: "1.0.0", Now: noon()}}
	c.answer("a", true, nil)
	c.answer("c", false, nil)
	c.answer("a", false, errors.New("down"))
	c.want("Pair True: a=True (down)", "Sure False: c=False")
	since := c.Before[0].GetRisks()[0].GetOutcomes()[0].GetSince().AsTime()
	if !since.Equal(noon()) {
		t.Errorf("since %v, want %v", since, noon())
	}
	c.Now = noon().Add(24 * time.Hour)
	c.want(
		"Pair Unknown: a=Unknown (down; the last result is of 2026-03-01T12:00:00Z and counts for 24 h) b=Unknown (the query has not been evaluated yet)",
		"Sure False: c=False")
	c.Now = noon().Add(24*time.Hour + time.Second)
	c.want(
		"Pair Unknown: a=Unknown (down; the last result is of 2026-03-01T12:00:00Z and counts for 24 h) b=Unknown (the query has not been evaluated yet)",
		"Sure True: c=Unknown (it was not evaluated again; the last result is of 2026-03-01T12:00:01Z and counts for 24 h) "+
			"Always=True")
}

// While the upstream does not answer, the lists of its last answer are judged again all the same.
func TestTheLastOutcomeIsJudgedAgainWithoutAGraph(t *testing.T) {
	c := &inquiry{t, Query{Graph: risky(t), Version: "1.0.0", Now: noon()}}
	for _, query := range []string{"a", "c"} {
		c.answer(query, false, nil)
	}
	last := Evaluate(c.Query)
	q := Query{Version: "1.0.0", Now: noon().Add(time.Hour), Before: last.Conditional}
	judged := func() string {
		available, conditional := Judge(q, last.Available)
		out := fmt.Sprint(versions(available))
		for _, u := range conditional {
			out += " " + Find(u.GetConditions(), Recommended).GetStatus()
			for _, r := range u.GetRisks() {
				out += fmt.Sprintf(" %s:%d", r.GetName(), len(r.GetConditions())+len(r.GetOutcomes()))
			}
		}
		return out
	}
	if got, want := judged(), "[1.1.0 1.0.1] True Pair:2 Sure:2"; got != want {
		t.Errorf("after an hour: %s, want %s", got, want)
	}
	q.Answers = map[string]Answer{"a": NewAnswer(true, nil, q.Now)}
	if got, want := judged(), "[1.0.1] False Pair:2 Sure:2"; got != want {
		t.Errorf("a risk applies: %s, want %s", got, want)
	}
	q.Accept = []string{"Pair"}
	if got, want := judged(), "[1.1.0 1.0.1] True Pair:2 Sure:2"; got != want {
		t.Errorf("it is accepted: %s, want %s", got, want)
	}
	q.Accept, q.Answers, q.Now = nil, nil, noon().Add(25*time.Hour)
	if got, want := judged(), "[1.0.1] False Pair:3 Sure:3"; got != want {
		t.Errorf("after a day: %s, want %s", got, want)
	}
}

func TestWhatIsSaidOfAFailureIsBounded(t *testing.T) {
	why := NewAnswer(false, errors.New(strings.Repeat("ä\xff", 1000)), noon()).Why
	if len(why) > maxWhy+len("…") || strings.ToValidUTF8(why, "") != why {
		t.Errorf("%d bytes: %q", len(why), why)
	}
}

func TestAGraphWithoutQueriesHasNoneToEvaluate(t *testing.T) {
	q := Query{
		Graph: smallGraph(t,
			`{"edges":[{"from":"1.0.0","to":"1.1.0"}],"risks":[{"name":"R","matchingRules":[{"type":"Always"}]}]}`),
		Version: "1.0.0", Now: noon(), Before: []*updatev1.ConditionalUpdate{{Risks: []*updatev1.ConditionalUpdateRisk{{}}}},
	}
	if query, _ := q.NextQuery(); query != "" {
		t.Errorf("next is %q", query)
	}
}

func TestAResultFromBeforeTheClockWasSetBackDoesNotCount(t *testing.T) {
	c := &inquiry{t, Query{Graph: risky(t), Version: "1.0.0", Now: noon().AddDate(1, 0, 0)}}
	c.answer("a", false, nil)
	c.want("Pair False: a=False", "Sure Unknown: c=Unknown (the query has not been evaluated yet)")
	c.Now = noon()
	c.want("Pair Unknown: a=Unknown (the query has not been evaluated yet)",
		"Sure Unknown: c=Unknown (the query has not been evaluated yet)")
	if query, at := c.NextQuery(); query != "a" || at.After(noon()) {
		t.Errorf("next is %q at %v", query, at)
	}
}

func TestAResultIsOfOneVersion(t *testing.T) {
	c := &inquiry{t, Query{
		Graph: smallGraph(t,
			`{"edges":[{"from":"1.0.0","to":"1.1.0"},{"from":"1.0.1","to":"1.1.0"}],"risks":[{"name":"R","message":"m","matchingRules":[{"type":"PromQL","promql":{"promql":"a"}}]}]}`),
		Version: "1.0.0", Now: noon(),
	}}
	c.answer("a", false, nil)
	c.want("R False: a=False")
	c.Version = "1.0.1"
	c.want("R Unknown: a=Unknown (the query has not been evaluated yet)")
	c.answer("a", true, nil)
	c.want("R True: a=True")
}

// What is listed must not change with what comes of the queries.
func TestTheSizeOfAListDoesNotDependOnResults(t *testing.T) {
	q := Query{Graph: risky(t), Version: "1.0.0", Now: noon(), Answers: map[string]Answer{}}
	most := mostOf(Evaluate(q).Conditional[0])
	for _, query := range []string{"a", "b", "c"} {
		q.Answers[query] = NewAnswer(false, errors.New(strings.Repeat("é", 10_000)), noon())
		u := Evaluate(q).Conditional[0]
		if is := proto.Size(u); is > most || mostOf(u) != most {
			t.Errorf("%d bytes, at most %d, were said to be at most %d", is, mostOf(u), most)
		}
	}
}
