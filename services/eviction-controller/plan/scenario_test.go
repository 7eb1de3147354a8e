package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/disruption"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// TestScenarios plays the files of testdata: each lists what happens to a cluster, and what this service does about it
// and waits for. Run it with -rewrite to update what it does. What happens is one of these, a line each:
//
//	node a [zone=z] [control-plane]     a node, whose agent sends a heartbeat every second
//	pod p node=a [app=x] [tolerates=key:seconds] [ends=5s] [bare]   ends is how long it takes to end
//	budget b app=x allowed=1            a disruption budget, or how many evictions it allows now
//	drain d node=a [force]              a drain; delete d deletes it
//	taint a key                         a user sets a NoExecute taint; untaint a takes it off
//	silent a b, beats a b               agents stop sending heartbeats, and send them again
//	reboot a, boots a                   a reboot is requested; the node restarts
//	permit granted, permit refused: …   what etcd-guardian answers from now on
//	scheduler answers, scheduler away: …   whether the scheduler answers
//	suspended 8s                        this process was suspended, and evicts nothing for that long
//
// "pass 30s" lets time pass, and "held" shows what is held back, since when, and what resolves it. Times are minutes
// and seconds since the begin.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		c := newCluster()
		datadriven.RunTest(t, path, c.run)
	})
}

// cluster plays all that is around the plans: the objects, the agents, the other services and the controller.
type cluster struct {
	clock    time.Time
	nodes    map[string]*nodev1.Node
	pods     map[string]*schedulingv1.Pod
	ends     map[string]time.Duration // how long a pod takes to end
	leaves   map[string]time.Time     // when a pod that is being deleted is gone
	drains   map[string]*nodev1.Drain
	budgets  map[string]*schedulingv1.PodDisruptionBudget
	silent   map[string]time.Time // since when an agent is silent
	renewed  time.Time            // when all silent agents got the grace once more
	refusal  string               // why the permit is refused
	away     string               // why the scheduler does not answer
	settled  time.Time
	memory   *Memory
	revision int
	beat     time.Time         // when the agents sent their last heartbeats
	waits    map[string]string // what each object last waited for
	out      strings.Builder
}

const (
	scenarioPause = 10 * time.Second // --node-eviction-rate=0.1
	scenarioRetry = 5 * time.Second  // --eviction-retry
)

func newCluster() *cluster {
	return &cluster{
		clock: now(), nodes: map[string]*nodev1.Node{}, pods: map[string]*schedulingv1.Pod{},
		ends: map[string]time.Duration{}, leaves: map[string]time.Time{}, drains: map[string]*nodev1.Drain{},
		budgets: map[string]*schedulingv1.PodDisruptionBudget{}, silent: map[string]time.Time{}, memory: NewMemory(),
		waits: map[string]string{},
	}
}

func (c *cluster) run(t *testing.T, d *datadriven.TestData) string {
	c.out.Reset()
	c.beat = time.Time{} // each step begins with a heartbeat
	for _, line := range strings.Split(d.Input, "\n") {
		if words := strings.Fields(line); len(words) > 0 {
			c.command(t, words)
		}
	}
	switch d.Cmd {
	case "happens":
		c.settle(t)
	case "pass":
		c.pass(t, d.CmdArgs[0].Key)
	case "held":
		c.held()
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	if c.out.Len() == 0 {
		return "nothing\n"
	}
	return c.out.String()
}

func (c *cluster) printf(format string, args ...any) {
	since := c.clock.Sub(now())
	fmt.Fprintf(&c.out, "%s %s\n", clockText(since), fmt.Sprintf(format, args...))
}

func clockText(d time.Duration) string {
	return fmt.Sprintf("%02d:%02d", int(d.Minutes()), int(d.Seconds())%60)
}

// command carries out one line of what happens.
func (c *cluster) command(t *testing.T, words []string) {
	t.Helper()
	args := map[string]string{}
	for _, w := range words[1:] {
		k, v, _ := strings.Cut(w, "=")
		args[k] = v
	}
	name, _, _ := strings.Cut(append(words, "")[1], ":")
	rest := strings.TrimSpace(strings.TrimPrefix(strings.Join(words[1:], " "), append(words, "")[1]))
	switch words[0] {
	case "node":
		c.addNode(name, args)
	case "pod":
		c.addPod(t, name, args)
	case "gone":
		c.removePod(name)
	case "budget":
		c.revision++
		c.budgets[name] = newBudget(name, args["app"], int32(number(t, args["allowed"])))
		c.budgets[name].Metadata.ResourceVersion = fmt.Sprint(c.revision)
	case "drain":
		d := newDrain(name, "")
		d.Metadata.Uid, d.Metadata.Finalizers, d.Spec.NodeName = "uid-"+name, []string{Finalizer}, args["node"]
		if _, ok := args["force"]; ok {
			d.Spec.Force = proto.Bool(true)
		}
		c.drains[name] = d
	case "delete":
		d := object.Clone(c.drains[name])
		d.Metadata.DeletionTimestamp = timestamppb.New(c.clock)
		c.drains[name] = d
	case "taint", "untaint":
		next := object.Clone(c.nodes[name])
		next.Spec.Taints = slices.DeleteFunc(next.Spec.Taints, func(t *nodev1.Taint) bool { return t.GetKey() == words[2] })
		if words[0] == "taint" {
			next.Spec.Taints = append(next.Spec.Taints, taint(words[2], "NoExecute"))
		}
		Taint(c.nodes[name], next, c.clock)
		c.nodes[name] = next
	case "silent":
		for _, name := range words[1:] {
			c.silent[name] = c.clock
		}
	case "beats":
		for _, name := range words[1:] {
			delete(c.silent, name)
		}
	case "reboot":
		next := object.Clone(c.nodes[name])
		SetReboot(next, next.GetStatus().GetNodeInfo().GetBootId())
		c.nodes[name] = next
	case "boots":
		next := object.Clone(c.nodes[name])
		next.Status.NodeInfo.BootId += "+"
		c.nodes[name] = next
	case "permit":
		c.refusal = map[bool]string{true: rest}[name == "refused"]
	case "scheduler":
		c.away = map[bool]string{true: rest}[name == "away"]
	case "suspended":
		c.settled = c.clock.Add(length(t, name))
	default:
		t.Fatalf("unknown: %v", words)
	}
}

func (c *cluster) addNode(name string, args map[string]string) {
	node := newNode()
	node.Metadata.Name, node.Metadata.Uid = name, "uid-"+name
	if zone := args["zone"]; zone != "" {
		node.Metadata.Labels["topology.kubernetes.io/zone"] = zone
	}
	if _, ok := args["control-plane"]; ok {
		controlPlane(node)
	}
	c.nodes[name] = node
}

func (c *cluster) addPod(t *testing.T, name string, args map[string]string) {
	t.Helper()
	change := []func(*schedulingv1.Pod){labelled(args["app"]), readyPod}
	if _, bare := args["bare"]; !bare {
		change = append(change, managed("ReplicaSet"))
	}
	if key, seconds, ok := strings.Cut(args["tolerates"], ":"); ok {
		change = append(change, tolerating(key, int32(number(t, seconds))))
	}
	pod := newPod(name, change...)
	pod.Spec.NodeName = args["node"]
	c.pods[name], c.ends[name] = pod, time.Second
	if ends := args["ends"]; ends != "" {
		c.ends[name] = length(t, ends)
	}
}

func (c *cluster) removePod(name string) {
	c.memory.Gone(object.KeyOf(c.pods[name]))
	delete(c.pods, name)
	delete(c.leaves, name)
}

func number(t *testing.T, s string) (n int) {
	t.Helper()
	if _, err := fmt.Sscan(s, &n); err != nil {
		t.Fatalf("%q: %v", s, err)
	}
	return n
}

func length(t *testing.T, s string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// agent returns the state of a node's agent: one that is not silent has just sent a heartbeat.
func (c *cluster) agent(name string) Agent {
	if since, silent := c.silent[name]; silent && since.Before(c.renewed) {
		return Agent{Silence: c.clock.Sub(c.renewed)}
	} else if silent {
		return Agent{Reported: c.clock.Sub(since) < grace, Silence: c.clock.Sub(since)}
	}
	return Agent{Reported: true}
}

func (c *cluster) reachability(name string) Reachability {
	h := Reachability{
		Agent: c.agent(name), Grace: grace, Disrupted: c.memory.Disrupted(),
		ZoneState: c.memory.ZoneState(Zone(c.nodes[name])),
	}
	var nodes []Witness
	for _, n := range sorted(c.nodes) {
		nodes = append(nodes, WitnessOf(n, c.agent(n.Metadata.Name)))
	}
	h.Census = NewCensus(nodes, grace)
	return h
}

func (c *cluster) podsOn(node string) []*schedulingv1.Pod {
	return slices.DeleteFunc(sorted(c.pods), func(p *schedulingv1.Pod) bool { return p.GetSpec().GetNodeName() != node })
}

func (c *cluster) drainsOf(node string) []*nodev1.Drain {
	return slices.DeleteFunc(sorted(c.drains), func(d *nodev1.Drain) bool { return d.GetSpec().GetNodeName() != node })
}

func sorted[T any](m map[string]T) []T {
	var out []T
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[k])
	}
	return out
}

// decision is a plan with the object that it is about.
type decision struct {
	about string
	with  func(answers []Answered) Plan
	beats bool // with each heartbeat
}

// decisions returns all that is decided, as the controller does: from what is observed and remembered now.
func (c *cluster) decisions() []decision {
	var out []decision
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		out = append(out, decision{about: "node " + name, with: func([]Answered) Plan {
			return Node(NodeView{
				Now: c.clock, Node: c.nodes[name], Drains: c.drainsOf(name), Reachability: c.reachability(name),
				Turn: c.memory.Turn(Zone(c.nodes[name])), Pause: scenarioPause, Pods: c.podsOn(name), Known: true,
			})
		}}, decision{about: "pods of " + name, with: func([]Answered) Plan {
			return Evictions(EvictionView{
				Now: c.clock, Node: c.nodes[name], Pods: c.podsOn(name), Reachability: c.reachability(name), Settled: c.settled,
				Tries: c.memory.Tries(c.podsOn(name)),
			})
		}})
		if _, silent := c.silent[name]; !silent {
			out = append(out, decision{about: "agent of " + name, beats: true, with: func(answers []Answered) Plan {
				v := RebootView{Now: c.clock, Node: c.nodes[name], Boot: c.nodes[name].Status.NodeInfo.BootId}
				for _, a := range answers {
					v.Permit = a.Answer
				}
				return Reboot(v)
			}})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.drains)) {
		out = append(out, decision{about: "drain " + name, with: func(answers []Answered) Plan {
			if c.drains[name] == nil {
				return Plan{}
			}
			return Drain(c.drainView(c.drains[name]).With(answers))
		}})
	}
	return out
}

func (c *cluster) drainView(d *nodev1.Drain) DrainView {
	node, uid := d.GetSpec().GetNodeName(), d.GetMetadata().GetUid()
	return DrainView{
		Now: c.clock, Drain: d, Node: c.nodes[node], Pods: c.podsOn(node), Known: true, Budgets: sorted(c.budgets),
		Tries: c.memory.Tries(c.podsOn(node)), Settled: c.settled,
		Permit: c.memory.Refusal(uid, AcquirePermit), Listed: c.memory.Refusal(uid, ListPods),
		Others: slices.DeleteFunc(c.drainsOf(node), func(o *nodev1.Drain) bool { return uidOf(o) == uid }),
	}
}

// settle carries out all decisions until nothing is to be done and asked, and returns when to decide again.
func (c *cluster) settle(t *testing.T) time.Time {
	t.Helper()
	for round := 0; ; round++ {
		if round > 50 {
			t.Fatalf("it does not settle:\n%s", c.out.String())
		}
		busy, wake := false, Plan{}
		for _, d := range c.decisions() {
			if d.beats && (round > 0 || c.beat.Equal(c.clock)) {
				continue
			}
			var answers []Answered
			p := d.with(nil)
			for ; len(p.Do)+len(p.Ask) > 0; p = d.with(answers) {
				done := c.do(d.about, p)
				if len(p.Ask) == 0 {
					busy = busy || done
					break
				}
				for _, q := range p.Ask[:min(len(p.Ask), AtOnce)] {
					answers = append(answers, c.ask(d.about, q))
				}
				busy = busy || !d.beats
			}
			c.say(d.about, p)
			wake.wake(p.Wake)
		}
		c.beat = c.clock
		if !busy {
			return wake.Wake
		}
	}
}

// say prints what an object waits for, if that is news.
func (c *cluster) say(about string, p Plan) {
	if c.waits[about] == p.WaitsFor {
		return
	}
	if c.waits[about] = p.WaitsFor; p.WaitsFor == "" {
		return
	}
	again := ""
	if !p.Wake.IsZero() {
		again = ", again at " + clockText(p.Wake.Sub(now()))
	}
	if strings.HasPrefix(p.WaitsFor, "waits for ") {
		c.printf("%s %s%s", about, p.WaitsFor, again)
	} else {
		c.printf("%s waits: %s%s", about, p.WaitsFor, again)
	}
}

// do does what a plan wants, as the controller does. It reports whether that changes what other decisions depend on.
func (c *cluster) do(about string, p Plan) (changed bool) {
	for _, a := range p.Do {
		changed = true
		switch a.Verb {
		case StoreNode:
			c.tellNode(about, c.nodes[a.Node.Metadata.Name], a.Node)
			c.nodes[a.Node.Metadata.Name] = a.Node
		case StoreDrain:
			if s := a.Drain.GetStatus(); s.GetPhase() != c.drains[a.Drain.Metadata.Name].GetStatus().GetPhase() {
				c.printf("%s is %s: %s", about, s.GetPhase(), s.GetMessage())
				c.waits[about] = s.GetMessage()
			}
			c.drains[a.Drain.Metadata.Name] = a.Drain
		case ReleaseDrain:
			c.printf("%s is gone", about)
			delete(c.drains, a.Drain.Metadata.Name)
			c.memory.Freed(a.Drain.GetSpec().GetNodeName())
		case EndDisruption:
			c.printf("the full disruption ends")
			c.renewed = c.clock
		case BeginDisruption:
			c.printf("a full disruption begins")
		case ChangeZone:
			c.printf("%s", a.Reason)
		case TakeTurn:
			c.printf("%s has its turn in zone %s", about, a.Zone)
		case RebootNode:
			c.printf("%s is ordered to restart it", about)
			changed = false
		case CordonNode:
			changed = false // see StoreDrain
		case ReleasePermit:
			c.printf("%s gives the permit back: %s", about, a.Reason)
		}
		c.memory.Done(a)
	}
	return changed
}

func (c *cluster) tellNode(about string, before, after *nodev1.Node) {
	if was, is := IsReady(before), IsReady(after); was != is {
		ready := find(after.GetStatus().GetConditions(), Ready)
		c.printf("%s: Ready=%s: %s", about, ready.GetStatus(), ready.GetMessage())
	}
	var taints []string
	for _, t := range after.GetSpec().GetTaints() {
		taints = append(taints, TaintText(t))
	}
	var had []string
	for _, t := range before.GetSpec().GetTaints() {
		had = append(had, TaintText(t))
	}
	if slices.Sort(taints); !slices.Equal(taints, slices.Sorted(slices.Values(had))) {
		c.printf("%s: taints %s", about, cmp.Or(strings.Join(taints, " "), "none"))
	}
}

// ask has the other services answer.
func (c *cluster) ask(about string, q Question) Answered {
	a := Answered{Question: q, Answer: Answer{Code: Granted, At: c.clock}}
	refuse := func(code Code, why string) { a.Code, a.Why = code, why }
	switch {
	case q.Verb == AcquirePermit && c.refusal != "":
		refuse(Refused, c.refusal)
	case q.Verb == AcquirePermit:
	case c.away != "":
		refuse(Away, c.away)
	case q.Verb == ListPods:
		a.Pods = c.podsOn(q.Object.GetName())
	case q.Verb == EvictPod:
		c.spend(&a)
	}
	what := q.Verb
	if q.Pod != nil {
		what += " " + q.Pod.Metadata.Name
		if name := q.Pod.Metadata.Name; a.Code == Granted {
			pod := object.Clone(q.Pod)
			pod.Metadata.DeletionTimestamp = timestamppb.New(c.clock)
			c.pods[name], c.leaves[name] = pod, c.clock.Add(c.ends[name])
		}
	}
	answer := "yes"
	if a.Code != Granted {
		answer = "no: " + a.Why
	}
	c.printf("%s: %s? %s", about, what, answer)
	c.memory.Answered(a, sorted(c.budgets), scenarioRetry)
	return a
}

// spend has the scheduler answer an eviction by the budgets of the pod.
func (c *cluster) spend(a *Answered) {
	mine := guarding(a.Question.Pod, sorted(c.budgets))
	switch v, why := disruption.Evict(a.Question.Pod, mine); v {
	case disruption.Delete:
	case disruption.Spend:
		c.revision++
		b := object.Clone(mine[0])
		disruption.Spent(b, a.Question.Pod.Metadata.Name, c.clock)
		b.Metadata.ResourceVersion = fmt.Sprint(c.revision)
		c.budgets[b.Metadata.Name] = b
	default:
		a.Code, a.Why = Refused, why
	}
}

// pass lets time pass, from one decision to the next.
func (c *cluster) pass(t *testing.T, d string) {
	t.Helper()
	end := c.clock.Add(length(t, d))
	for wake := c.settle(t); ; wake = c.settle(t) {
		next := Plan{Wake: end}
		next.wake(wake)
		for _, at := range c.leaves {
			next.wake(at)
		}
		if c.clock = next.Wake; !c.clock.Before(end) {
			break
		}
		c.end()
	}
	c.clock = end
	c.end()
	c.settle(t)
}

// end removes the pods that have ended.
func (c *cluster) end() {
	for _, name := range slices.Sorted(maps.Keys(c.leaves)) {
		if !c.leaves[name].After(c.clock) {
			c.printf("pod %s is gone from node %s", name, c.pods[name].GetSpec().GetNodeName())
			c.removePod(name)
		}
	}
}

// held prints what is held back.
func (c *cluster) held() {
	for _, d := range c.decisions() {
		for _, h := range d.with(nil).Held {
			since := ""
			if h.GetSinceTime() != nil {
				since = " since " + clockText(h.GetSinceTime().AsTime().Sub(now()))
			}
			c.printf("%s: %s %s is held back%s: %s", d.about, h.Action, h.Object.GetName(), since, h.Reason)
			if h.Unblock != "" {
				fmt.Fprintf(&c.out, "      until %s\n", h.Unblock)
			}
		}
	}
}
