package plan

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"

	volumes "github.com/windlass-dev/windlass/services/scheduler/volume/plan"
)

// extenders returns a policy with extenders and otherwise the defaults.
func extenders(t testing.TB, list ...map[string]any) *schedulingv1.Policy {
	t.Helper()
	out := &schedulingv1.Policy{}
	for _, fields := range list {
		s, err := structpb.NewStruct(fields)
		if err != nil {
			t.Fatal(err)
		}
		out.Extenders = append(out.Extenders, s)
	}
	return out
}

// extender returns an extender that filters, with further fields.
func extender(name string, more map[string]any) map[string]any {
	out := map[string]any{"urlPrefix": "https://" + name, "filterVerb": "filter", "nodeCacheCapable": true}
	maps.Copy(out, more)
	return out
}

func managing(resource string, alone bool) map[string]any {
	return map[string]any{"managedResources": []any{map[string]any{"name": resource, "ignoredByScheduler": alone}}}
}

func TestWhatOfAnExtenderIsNotInForceIsRefusedWithItsPath(t *testing.T) {
	for name, tt := range map[string]struct {
		fields map[string]any
		path   string // of the fault; empty if there is none
		says   string
	}{
		"an extender that filters": {nil, "", ""},
		"one that ranks": {
			map[string]any{"filterVerb": "", "prioritizeVerb": "v1.0/rank", "weight": 5}, "", "",
		},
		"a time-out in nanoseconds":      {map[string]any{"httpTimeout": 1e8}, "", ""},
		"a time-out as a text":           {map[string]any{"httpTimeout": "30s"}, "", ""},
		"no time-out":                    {map[string]any{"httpTimeout": 0}, "", ""},
		"a time-out beyond the limit":    {map[string]any{"httpTimeout": "31s"}, ".httpTimeout", "at most 30s"},
		"a time-out that is not a whole": {map[string]any{"httpTimeout": 0.5}, ".httpTimeout", "more than 0"},
		"a negative time-out":            {map[string]any{"httpTimeout": -1}, ".httpTimeout", "more than 0"},
		"an address without encryption":  {map[string]any{"urlPrefix": "http://127.0.0.1:80"}, ".urlPrefix", "https"},
		"an address with a query":        {map[string]any{"urlPrefix": "https://a/b?c"}, ".urlPrefix", "query"},
		"encryption that is turned off":  {map[string]any{"enableHttps": false}, ".enableHttps", "https alone"},
		"a verb that leaves its prefix":  {map[string]any{"filterVerb": "../admin"}, ".filterVerb", "plain path"},
		"a verb with a query":            {map[string]any{"filterVerb": "filter?x=1"}, ".filterVerb", "plain path"},
		"no verb":                        {map[string]any{"filterVerb": ""}, ".filterVerb", "prioritizeVerb"},
		"a verb that binds":              {map[string]any{"bindVerb": "bind"}, ".bindVerb", "not in force"},
		"a verb that preempts":           {map[string]any{"preemptVerb": "preempt"}, ".preemptVerb", "not in force"},
		"a ranking without a weight":     {map[string]any{"prioritizeVerb": "rank"}, ".weight", "1 or more"},
		"a weight of no ranking":         {map[string]any{"weight": -1}, ".weight", "1 to"},
		"a weight that cannot be added": {
			map[string]any{"prioritizeVerb": "rank", "weight": maxWeights}, ".weight", "together",
		},
		"a certificate that is not verified": {
			map[string]any{"tlsConfig": map[string]any{"insecure": true}}, ".tlsConfig.insecure", "always verified",
		},
		"a file of authorities": {
			map[string]any{"tlsConfig": map[string]any{"caFile": "/ca"}}, ".tlsConfig.caFile", "caData",
		},
		"credentials": {
			map[string]any{"tlsConfig": map[string]any{"keyData": "eA=="}}, ".tlsConfig.keyData", "no credentials",
		},
		"a resource of the nodes": {managing("cpu", true), ".managedResources[0].name", "extended resource"},
		"an unknown field":        {map[string]any{"urlprefix": "x"}, ".urlprefix", "unknown field"},
		"an unknown field below": {
			map[string]any{"managedResources": []any{map[string]any{"names": "x"}}}, ".managedResources[0].names", "unknown",
		},
		"a field of another type": {map[string]any{"ignorable": "yes"}, "", "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			policy := extenders(t, extender("a.example.com", tt.fields))
			policy.Priorities = []*schedulingv1.PriorityPolicy{{Name: "EqualPriority", Weight: proto.Int32(1)}}
			fields := CheckPolicy(policy)
			if tt.says == "" {
				if len(fields) > 0 {
					t.Errorf("faults %v", fields)
				}
				return
			}
			if len(fields) != 1 || fields[0].Path != "extenders[0]"+tt.path ||
				!strings.Contains(fields[0].Description, tt.says) {
				t.Errorf("faults %v, want one at extenders[0]%s that says %q", fields, tt.path, tt.says)
			}
			if p := Policy(policy); len(p.extenders) > 0 && tt.path != ".weight" {
				t.Errorf("it is in force all the same: %v", p.extenders[0])
			}
		})
	}
}

func TestAResourceHasOneManager(t *testing.T) {
	fields := CheckPolicy(extenders(t, extender("a", managing("x.io/a", false)), extender("b", managing("x.io/a", true))))
	if len(fields) != 1 || fields[0].Path != "extenders[1].managedResources[0].name" {
		t.Errorf("faults %v", fields)
	}
}

func TestAnExtenderMustBeAllowed(t *testing.T) {
	policy := extenders(t, extender("a.example.com/x", nil), extender("b.example.com", nil))
	fields := ExtendersNotAllowed(policy, []string{"https://a.example.com"})
	if len(fields) != 1 || fields[0].Path != "extenders[1].urlPrefix" {
		t.Errorf("faults %v", fields)
	}
}

// conversation is a queue with nodes, and what its extenders answer.
type conversation struct {
	*Queue
	t     testing.TB
	now   time.Time
	asked []string // what was asked: extender, verb, pod and nodes
	// answer gives an answer its content; nil says yes to everything.
	answer func(a *Answer)
	hold   bool // questions are not answered
	held   []Question
}

func converse(t testing.TB, policy *schedulingv1.Policy, nodes ...*nodev1.Node) *conversation {
	return &conversation{Queue: NewQueue(clusterOf(nodes...), only(policy)), t: t, now: start}
}

func newWaiting(name string, change ...func(*schedulingv1.Pod)) *schedulingv1.Pod {
	return waiting(name, append(change, func(p *schedulingv1.Pod) { p.Metadata.Name = name })...)
}

func say(q Question) string {
	var nodes []string
	for _, n := range q.Nodes {
		nodes = append(nodes, n.GetMetadata().GetName())
	}
	return fmt.Sprintf("%s %s %s: %s", strings.TrimPrefix(q.URL, "https://"), q.Verb, q.Pod.GetMetadata().GetName(),
		strings.Join(nodes, " "))
}

// run decides and answers until nothing is left to do now. It returns where pods are bound, and why others are not.
func (c *conversation) run() (nodes map[string]string, held map[string]Decision) {
	c.t.Helper()
	nodes, held = map[string]string{}, map[string]Decision{}
	for range 200 {
		p := c.Next(c.now)
		var outcomes []Outcome
		for _, a := range p.Do {
			o := Outcome{Action: a, Now: a.Pod}
			if a.Verb == BindPod {
				nodes[a.Pod.GetMetadata().GetName()] = a.Node
				o.Now = proto.CloneOf(a.Pod)
				o.Now.Spec.NodeName = a.Node
			}
			outcomes = append(outcomes, o)
		}
		for _, d := range p.Held {
			held[d.Pod.GetMetadata().GetName()] = d
		}
		c.Done(c.now, outcomes)
		if c.hold {
			c.held = append(c.held, p.Ask...)
		} else {
			c.reply(p.Ask)
		}
		if p.Wake.IsZero() || p.Wake.After(c.now) {
			if c.hold || len(p.Ask) == 0 {
				return nodes, held
			}
		}
	}
	c.t.Fatal("it does not come to rest")
	return nil, nil
}

func (c *conversation) reply(questions []Question) {
	for _, q := range questions {
		c.asked = append(c.asked, say(q))
		a := Answer{Question: q}
		if q.Verb == FilterNodes {
			for _, n := range q.Nodes {
				a.Nodes = append(a.Nodes, n.GetMetadata().GetName())
			}
		}
		if c.answer != nil {
			c.answer(&a)
		}
		c.Answer(c.now, []Answer{a})
	}
}

func TestExtendersFilterOneAfterTheOtherAndThenRankWhatIsLeft(t *testing.T) {
	rank := map[string]any{"prioritizeVerb": "rank", "weight": 1000}
	c := converse(t, extenders(t, extender("one", rank), extender("two", nil), extender("three", rank)),
		newNode("a"), newNode("b"), newNode("c"), newNode("d", cordoned))
	c.AddPod(newWaiting("p"))
	c.answer = func(a *Answer) {
		switch {
		case a.Verb == FilterNodes && a.URL == "https://one":
			a.Nodes = []string{"c", "b"}
		case a.URL == "https://one":
			a.Scores = []NodeScore{{"c", 10}, {"b", 1}}
		case a.URL == "https://three" && a.Verb == RankNodes:
			a.Scores = []NodeScore{{"b", 10}} // another one counts as 0
		}
	}
	nodes, _ := c.run()
	slices.Sort(c.asked[3:]) // the two are asked at the same time
	if diff := cmp.Diff([]string{
		"one filter p: a b c", "two filter p: b c", "three filter p: b c", "one prioritize p: b c", "three prioritize p: b c",
	}, c.asked); diff != "" || nodes["p"] != "b" {
		t.Errorf("bound to %q; asked (-want +got):\n%s", nodes["p"], diff)
	}
}

func TestAPodThatNoExtenderManagesIsNotHeldUp(t *testing.T) {
	c := converse(t, extenders(t, extender("one", managing("x.io/gpu", true)), extender("two", managing("x.io/b", true))),
		newNode("a"))
	c.hold = true
	for i := range 5 {
		c.AddPod(newWaiting(fmt.Sprintf("gpu-%d", i), asking("x.io/gpu", "1")))
	}
	c.AddPod(newWaiting("plain"))
	c.AddPod(newWaiting("other", asking("x.io/b", "1")))
	nodes, _ := c.run()
	if diff := cmp.Diff(map[string]string{"plain": "a"}, nodes); diff != "" {
		t.Errorf("bound while the extenders hang (-want +got):\n%s", diff)
	}
	var asked []string
	for _, q := range c.held {
		asked = append(asked, say(q))
	}
	slices.Sort(asked)
	// An extender that counts alone is asked about one pod at a time; that one hangs holds up no pod of the other.
	if diff := cmp.Diff([]string{"one filter gpu-0: a", "two filter other: a"}, asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	c.hold = false
	c.reply(c.held)
	if nodes, _ = c.run(); len(nodes) != 6 {
		t.Errorf("bound after the answers: %v", nodes)
	}
}

func TestAnExtenderIsAskedAboutFewPodsAtATime(t *testing.T) {
	for want, more := range map[int]map[string]any{
		mostInquiries: nil, mostWithNodes: {"nodeCacheCapable": false}, 1: managing("x.io/gpu", true),
	} {
		c := converse(t, extenders(t, extender("one", more)), newNode("a"))
		for i := range 100 {
			c.AddPod(newWaiting(fmt.Sprint("p", i), asking("x.io/gpu", "1"), asking("cpu", "1m")))
		}
		c.hold = true
		if want != 1 { // otherwise no node has the resource
			c.AddNode(newNode("a", having("x.io/gpu", "100")))
		}
		c.run()
		if len(c.held) != want {
			t.Errorf("asked about %d pods at a time, want %d", len(c.held), want)
		}
	}
}

func TestWhatAnExtenderAloneCountsIsNotComparedWithNodes(t *testing.T) {
	pod := func() *schedulingv1.Pod { return newPod("p", asking("x.io/license", "1")) }
	for alone, want := range map[bool]bool{true: true, false: false} {
		p := Policy(extenders(t, extender("one", managing("x.io/license", alone))))
		c := clusterOf(newNode("a"))
		if e := Explain(c, p, pod(), 0); (e.GetBest() == "a") != want {
			t.Errorf("ignoredByScheduler %v: %v", alone, e)
		}
	}
	p := Policy(extenders(t, extender("one", managing("x.io/license", true))))
	if e := Explain(clusterOf(newNode("a")), p, newPod("p", asking("x.io/license", "1"), asking("cpu", "5")), 0); e.
		GetBest() != "" || !strings.Contains(e.GetMessage(), "Insufficient cpu") {
		t.Errorf("other resources are compared: %v", e)
	}
}

// What a hostile or broken extender answers is no answer: the pod waits with the reason, is asked about again after a
// pause, and is placed once the extender answers as it must.
func TestAnAnswerThatIsNoneLeavesThePodWaiting(t *testing.T) {
	ranks := map[string]any{"prioritizeVerb": "rank", "weight": 1}
	filters := func(f func(a *Answer)) func(*Answer) {
		return func(a *Answer) {
			if a.Verb == FilterNodes {
				f(a)
			}
		}
	}
	for name, tt := range map[string]struct {
		answer func(*Answer)
		says   string // why the pod waits; empty if it does not
	}{
		"no answer": {filters(func(a *Answer) { a.Err = "did not answer within 5s" }), "did not answer within 5s"},
		"an unknown node": {
			filters(func(a *Answer) { a.Nodes = []string{"b", "zz"} }),
			`names node "zz", which it was not asked`,
		},
		"a node twice": {filters(func(a *Answer) { a.Nodes = []string{"b", "b"} }), `names node "b" twice`},
		"no node": {
			filters(func(a *Answer) { a.Nodes, a.Failed = nil, map[string]string{"a": "no\n license\x00"} }),
			"1 node(s) were rejected by the extender https://one (no license)",
		},
		"reasons about other nodes": {
			filters(func(a *Answer) { a.Nodes, a.Failed = nil, map[string]string{"zz": "?"} }),
			"2 node(s) were rejected by the extender https://one.",
		},
		"a score that is no number": {func(a *Answer) { a.Scores = []NodeScore{{"a", math.NaN()}} }, ""},
		"a negative score":          {func(a *Answer) { a.Scores = []NodeScore{{"a", -1}} }, ""},
		"a score beyond 10":         {func(a *Answer) { a.Scores = []NodeScore{{"a", 11}} }, ""},
		"an infinite score":         {func(a *Answer) { a.Scores = []NodeScore{{"a", math.Inf(1)}} }, ""},
		"a fraction":                {func(a *Answer) { a.Scores = []NodeScore{{"a", 0.5}} }, ""},
		"a score of another node":   {func(a *Answer) { a.Scores = []NodeScore{{"zz", 1}} }, ""},
		"two scores of a node":      {func(a *Answer) { a.Scores = []NodeScore{{"a", 1}, {"a", 1}} }, ""},
		"no ranking": {func(a *Answer) {
			if a.Verb == RankNodes {
				a.Err = "500"
			}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := converse(t, extenders(t, extender("one", ranks)), newNode("a"), newNode("b"))
			c.AddPod(newWaiting("p"))
			c.answer = tt.answer
			nodes, held := c.run()
			if tt.says == "" {
				if nodes["p"] == "" {
					t.Fatalf("the ranking is left out, but the pod waits: %v", held)
				}
				return
			}
			message := held["p"].Message
			if !strings.Contains(message, tt.says) || !strings.Contains(message, "https://one") {
				t.Fatalf("the pod says %q, want %q", message, tt.says)
			}
			before := len(c.asked)
			if c.run(); len(c.asked) != before {
				t.Error("it is asked again without a pause")
			}
			c.now = c.now.Add(longestPause)
			_, held = c.run()
			if len(c.asked) == before {
				t.Fatal("it is not asked again")
			}
			if again := held["p"].Message; again != message {
				t.Errorf("the text changes with each try: %q, then %q", message, again)
			}
			c.answer = nil
			c.now = c.now.Add(longestPause)
			if nodes, _ = c.run(); nodes["p"] == "" {
				t.Error("the extender answers, and the pod still waits")
			}
		})
	}
}

func TestTheReasonNamesSinceWhenAnExtenderDoesNotAnswer(t *testing.T) {
	c := converse(t, extenders(t, extender("one", nil)), newNode("a"))
	c.answer = func(a *Answer) { a.Err = "it hangs" }
	c.AddPod(newWaiting("p"))
	c.run()
	c.now = c.now.Add(time.Hour)
	_, held := c.run()
	if want := start.UTC().Format(time.RFC3339); !strings.Contains(held["p"].Message, "since "+want) {
		t.Errorf("it says %q, want since %s", held["p"].Message, want)
	}
}

func TestAnIgnorableExtenderThatDoesNotAnswerIsLeftOut(t *testing.T) {
	c := converse(t, extenders(t, extender("one", map[string]any{"ignorable": true}), extender("two", nil)), newNode("a"),
		newNode("b"))
	c.answer = func(a *Answer) {
		if a.URL == "https://one" {
			a.Err = "it hangs"
		} else {
			a.Nodes = []string{"b"}
		}
	}
	c.AddPod(newWaiting("p"))
	if nodes, held := c.run(); nodes["p"] != "b" {
		t.Errorf("bound to %q, %v", nodes["p"], held)
	}
}

func TestManyReasonsOfAnExtenderMakeAShortMessage(t *testing.T) {
	var nodes []*nodev1.Node
	for i := range 500 {
		nodes = append(nodes, newNode(fmt.Sprintf("node-%03d", i)))
	}
	c := converse(t, extenders(t, extender("one", nil)), nodes...)
	c.answer = func(a *Answer) {
		a.Failed = map[string]string{}
		for _, n := range a.Nodes {
			a.Failed[n] = n + strings.Repeat("x", 1<<16)
		}
		a.Nodes = nil
	}
	c.AddPod(newWaiting("p"))
	if _, held := c.run(); len(held["p"].Message) > 4096 {
		t.Errorf("the message has %d bytes", len(held["p"].Message))
	}
}

// The answer is about the cluster as it was. What changed since is checked again.
func TestAnAnswerIsNotUsedForNodesThatNoLongerFit(t *testing.T) {
	c := converse(t, extenders(t, extender("one", nil)), newNode("a"), newNode("b"))
	c.hold = true
	c.AddPod(newWaiting("p", asking("cpu", "3")))
	c.run()
	c.answer = func(a *Answer) { a.Nodes = []string{"a"} }
	c.AddPod(running("q", "a", "3", 0, 0))
	c.hold = false
	c.reply(c.held)
	nodes, held := c.run()
	if nodes["p"] != "" || !strings.Contains(held["p"].Message, "1 Insufficient cpu") ||
		!strings.Contains(held["p"].Message, "rejected by the extender") {
		t.Errorf("bound to %q, %q", nodes["p"], held["p"].Message)
	}
}

func TestAnAnswerAboutAPodThatChangedIsDropped(t *testing.T) {
	for name, change := range map[string]func(*conversation){
		"deleted": func(c *conversation) {
			c.RemovePod(object.KeyOf(newWaiting("p")))
		},
		"bound by another": func(c *conversation) {
			c.AddPod(newWaiting("p", on("b")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := converse(t, extenders(t, extender("one", nil)), newNode("a"), newNode("b"))
			c.hold = true
			c.AddPod(newWaiting("p"))
			c.run()
			change(c)
			c.reply(c.held)
			if nodes, held := c.run(); len(nodes)+len(held) > 0 {
				t.Errorf("bound to %v, %v", nodes, held)
			}
		})
	}
	c := converse(t, extenders(t, extender("one", nil)), newNode("a", labelled("x", "y")), newNode("b"))
	c.hold = true
	c.AddPod(newWaiting("p"))
	c.run()
	c.AddPod(newWaiting("p", selecting("x", "y"), func(p *schedulingv1.Pod) { p.Metadata.Generation = 2 }))
	c.reply(c.held)
	c.hold = false
	nodes, _ := c.run()
	if want := []string{"one filter p: a b", "one filter p: a"}; nodes["p"] != "a" || !slices.Equal(c.asked, want) {
		t.Errorf("bound to %q; asked %v, want %v", nodes["p"], c.asked, want)
	}
	c = converse(t, extenders(t, extender("one", nil)), newNode("a"))
	c.hold = true
	c.AddPod(newWaiting("p"))
	c.run()
	c.SetProfiles(only(nil))
	if nodes, _ = c.run(); nodes["p"] != "a" {
		t.Errorf("the policy has no extender any more, and the pod waits for one: %v", nodes)
	}
}

// An eviction helps only if the extender accepts the node afterwards, which it cannot be asked.
func TestAPodWhoseNodesAnExtenderFiltersEvictsNoOthers(t *testing.T) {
	c := converse(t, extenders(t, extender("one", nil)), newNode("a"))
	c.AddPod(running("low", "a", "3", 0, 0))
	c.AddPod(newWaiting("p", asking("cpu", "3"), ranking(100)))
	_, held := c.run()
	if d := held["p"]; d.Preempts != nil ||
		!strings.Contains(d.Message, "Preemption: none, since the extender https://one") {
		t.Errorf("%+v", d)
	}
}

func TestANewPodThatAnExtenderDecidesOnIsStoredFirst(t *testing.T) {
	c := converse(t, extenders(t, extender("one", managing("x.io/gpu", true))), newNode("a"))
	got := c.Offer([]*schedulingv1.Pod{newWaiting("p", asking("x.io/gpu", "1")), newWaiting("q")})
	if !slices.Equal(got, []bool{false, true}) {
		t.Errorf("placed before they are stored: %v", got)
	}
}

func TestExplainSaysWhatExtendersAnsweredOrThatTheyWereNotAsked(t *testing.T) {
	p := Policy(extenders(t, extender("one", map[string]any{"prioritizeVerb": "rank", "weight": 3}),
		extender("two", managing("x.io/gpu", false))))
	c := clusterOf(newNode("a"), newNode("b"), newNode("c"))
	e := Explain(c, p, newPod("p"), 0)
	if len(e.GetExtenders()) != 1 || e.GetExtenders()[0].GetAsked() || e.GetExtenders()[0].GetUrl() != "https://one" ||
		!strings.Contains(e.GetMessage(), "not asked") {
		t.Errorf("not asked: %v", e)
	}
	in := NewInquiry(c, p, newPod("p"))
	in.Take(Answer{Question: in.Ask()[0], Nodes: []string{"b", "c"}, Failed: map[string]string{"a": "it is old"}})
	in.Take(Answer{Question: in.Ask()[0], Scores: []NodeScore{{"c", 7}}})
	if more := in.Ask(); len(more) > 0 {
		t.Fatalf("further questions: %v", more)
	}
	e = ExplainAnswered(c, p, newPod("p"), 0, in)
	if v := e.GetExtenders()[0]; !v.GetAsked() || v.GetMessage() != "it leaves 2 of 3 nodes; it ranks 1 nodes" {
		t.Errorf("verdict %v", v)
	}
	if e.GetBest() != "c" || e.GetNodes()[0].GetTotal() != e.GetNodes()[1].GetTotal()+21 {
		t.Errorf("best %s of %v", e.GetBest(), e.GetNodes())
	}
	if last := e.GetNodes()[2]; last.GetNode() != "a" || last.GetFits() ||
		last.GetFailures()[0].GetReason() != "node(s) were rejected by the extender https://one: it is old" {
		t.Errorf("the node that it rejects: %v", last)
	}
	in = NewInquiry(c, p, newPod("p"))
	in.Take(Answer{Question: in.Ask()[0], Err: "it hangs"})
	if e = ExplainAnswered(c, p, newPod("p"), 0, in); e.GetBest() != "" || !strings.Contains(e.GetRefused(), "it hangs") {
		t.Errorf("an extender that hangs: %v", e)
	}
}

// verbsOf returns what a plan does, in order.
func verbsOf(p Plan) (out []string) {
	for _, a := range p.Do {
		out = append(out, a.Verb)
	}
	return out
}

func TestClaimsOfAPodThatAnExtenderDecidesOn(t *testing.T) {
	// begun returns a conversation in which an extender was asked about a pod with the claim c.
	begun := func(t *testing.T, provisioner string) *conversation {
		c := converse(t, extenders(t, extender("one", nil)), newNode("a"), newNode("b"))
		c.AddStorageClass(classOf("class", provisioner, volumes.WaitForFirstConsumer))
		c.AddClaim(claimOf("c", "class", "1Gi"))
		c.answer = func(a *Answer) { a.Nodes = []string{"b"} }
		c.hold = true
		c.AddPod(newWaiting("p", claiming("c")))
		if c.run(); len(c.held) != 1 {
			t.Fatalf("asked %v", c.held)
		}
		c.hold = false
		return c
	}
	t.Run("a volume is made on the node that the extender leaves, before the pod is bound", func(t *testing.T) {
		c := begun(t, volumes.LocalProvisioner)
		c.reply(c.held)
		p := c.Next(c.now)
		if got := verbsOf(p); !slices.Equal(got, []string{BindClaims, BindPod}) {
			t.Fatalf("the plan is %v", got)
		}
		for _, a := range p.Do {
			if a.Node != "b" || len(a.Claims) != 1 || !a.Claims[0].Made {
				t.Errorf("%s: %+v", a.Verb, a.Decision)
			}
		}
		// The claim could not be stored, so that the pod must not be bound: it is decided on once more.
		c.AddClaim(claimOf("c", "class", "1Gi"))
		c.Done(c.now, []Outcome{{Action: p.Do[1], Result: Unwritten}})
		c.now = c.now.Add(time.Minute)
		if nodes, _ := c.run(); nodes["p"] != "b" || len(c.asked) != 2 {
			t.Errorf("after a failed write it is on %q; asked %v", nodes["p"], c.asked)
		}
	})
	t.Run("the claim vanishes while the extender is asked", func(t *testing.T) {
		c := begun(t, volumes.LocalProvisioner)
		c.RemoveClaim(object.Key{Namespace: "default", Name: "c"})
		c.reply(c.held)
		nodes, held := c.run()
		if nodes["p"] != "" || !strings.Contains(held["p"].Message, `persistentvolumeclaim "c" not found`) {
			t.Errorf("it is on %q: %s", nodes["p"], held["p"].Message)
		}
		c.AddClaim(claimOf("c", "class", "1Gi"))
		c.now = c.now.Add(time.Minute)
		if nodes, _ = c.run(); nodes["p"] != "b" {
			t.Errorf("after it is back, the pod is on %q", nodes["p"])
		}
	})
	t.Run("the claim gets a volume of a node that the extender rejects while it is asked", func(t *testing.T) {
		c := begun(t, volumes.LocalProvisioner)
		c.boundTo(claimOf("c", "class", "1Gi"), volumeOf("v", "class", "1Gi", host, "a"))
		c.reply(c.held)
		nodes, held := c.run()
		if nodes["p"] != "" || !strings.Contains(held["p"].Message, "1 node(s) had volume node affinity conflict") ||
			!strings.Contains(held["p"].Message, "rejected by the extender") {
			t.Errorf("it is on %q: %s", nodes["p"], held["p"].Message)
		}
	})
	t.Run("another program makes the volume on the node that the extender leaves", func(t *testing.T) {
		c := begun(t, "example.com/disk")
		c.reply(c.held)
		p := c.Next(c.now)
		if got := verbsOf(p); !slices.Equal(got, []string{BindClaims, StorePending}) ||
			p.Do[0].Claims[0].SelectedNode != "b" {
			t.Fatalf("the plan is %v: %+v", got, p.Do)
		}
		claim := claimOf("c", "class", "1Gi")
		claim.Metadata.Annotations = map[string]string{volumes.SelectedNode: "b"}
		c.AddClaim(claim) // as it is stored
		if nodes, _ := c.run(); len(nodes) > 0 {
			t.Errorf("bound without a volume: %v", nodes)
		}
		b := volumes.Bind(claim, volumeOf("v", "class", "1Gi", host, "b"))
		c.AddVolume(b.Volume)
		c.AddClaim(b.Claim)
		c.now = c.now.Add(time.Minute)
		if nodes, held := c.run(); nodes["p"] != "b" {
			t.Errorf("once its volume is there, it is on %q: %s", nodes["p"], held["p"].Message)
		}
	})
	t.Run("two pods of one claim are asked about at the same time", func(t *testing.T) {
		c := begun(t, volumes.LocalProvisioner)
		c.hold = true
		c.AddPod(newWaiting("q", claiming("c")))
		c.run()
		c.hold = false
		c.answer = func(a *Answer) {
			if a.Nodes = []string{"b"}; a.Pod.GetMetadata().GetName() == "q" {
				a.Nodes = []string{"a"}
			}
		}
		c.reply(c.held)
		nodes, held := c.run()
		if len(nodes) != 1 || len(held) != 1 {
			t.Errorf("on %v, held %v", nodes, held)
		}
	})
}

// What was asked about pods that are gone is still under way, and must count: otherwise a user who creates and deletes
// pods has as many calls under way as they like.
func TestQuestionsAboutPodsThatAreGoneCount(t *testing.T) {
	for name, drop := range map[string]func(*conversation, *schedulingv1.Pod){
		"deleted": func(c *conversation, p *schedulingv1.Pod) { c.RemovePod(object.KeyOf(p)) },
		"changed": func(c *conversation, p *schedulingv1.Pod) {
			p = proto.CloneOf(p)
			p.Metadata.Generation++
			c.AddPod(p)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := converse(t, extenders(t, extender("one", nil)), newNode("a"))
			c.hold = true
			p := newWaiting("p")
			for range 10 * mostInquiries {
				c.AddPod(p)
				c.run()
				drop(c, p)
			}
			if len(c.held) != mostInquiries {
				t.Errorf("%d questions are under way, want %d", len(c.held), mostInquiries)
			}
			c.AddPod(newWaiting("q"))
			c.hold = false
			c.reply(c.held)
			if nodes, _ := c.run(); nodes["q"] != "a" {
				t.Errorf("after their answers a pod is on %q", nodes["q"])
			}
		})
	}
}
