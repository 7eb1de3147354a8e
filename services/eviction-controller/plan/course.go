package plan

import (
	"cmp"
	"container/heap"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Limits of a Course.
const (
	mostSteps = 50_000
	// mostWork bounds the time of a course. It is a few seconds.
	mostWork = 30_000_000
	// made is the work of making a witness.
	made = 10
	// decided is that of a decision, and also that of each pod of the node.
	decided = 100
	// mostSet is by how much the wall clock may be set in all: the sums of more do not fit a Duration.
	mostSet = 100 * 365 * 24 * time.Hour
	// latest is how far ahead at most a decision is planned: the rest is left for the sum with what has passed.
	latest = math.MaxInt64 / 2
	// soonest is how soon at the earliest a decision that changes nothing is made again.
	soonest = time.Millisecond
)

// Given is the state with which a Course begins.
type Given struct {
	Now    time.Time // UTC
	Clock  Clock
	Grace  time.Duration // an agent counts as lost after this silence
	Pause  time.Duration // between two nodes of a zone whose pods are evicted for the silence of their agents
	Nodes  []*nodev1.Node
	Pods   []*schedulingv1.Pod // those without a node, or of other nodes, are left out
	Agents map[string]Agent    // by the name of the node; of those that are missing, see givenAgentOf
	Memory *Memory             // of earlier decisions
}

// Actions of a Step, beside DeletePod, ChangeZone, BeginDisruption and EndDisruption.
const (
	StepAddTaint    = "AddTaint"
	StepRemoveTaint = "RemoveTaint"
	StepReady       = "ChangeReady"
)

// Step is one thing that is done during a Course.
type Step struct {
	At     time.Time     // by the wall clock
	After  time.Duration // since the beginning, on the monotonic clock
	Action string
	Node   string
	Pod    *schedulingv1.Pod // of DeletePod
	Value  string            // the taint, the status of the Ready condition, or the state of the zone
	Reason string            // for people
}

// Course plays what happens to given nodes and pods, and has Node and Evictions decide about them, one decision at a
// time, as the controller does. Make one with NewCourse. A pod that is deleted is gone at once, and no pod is created
// in its place. It is not safe for concurrent use.
type Course struct {
	Given
	Steps []Step

	events  []event
	span    time.Duration
	elapsed time.Duration // on the monotonic clock
	set     time.Duration // by how much the wall clock was set
	work    int

	nodes     map[string]*nodev1.Node
	pods      map[string]map[object.Key]*schedulingv1.Pod // by the name of the node
	hosts     map[object.Key]string                       // the nodes of all pods there ever were
	agents    map[string]givenAgent
	silent    map[string]bool     // the agents that send no heartbeats, by node
	renewed   time.Duration       // at the end of a disruption
	witnesses map[string]*Witness // by the name of the node
	census    *Census             // of the witnesses
	queue     dueQueue
	due       map[string]time.Duration
}

// event is an event with its place in the list that was given.
type event struct {
	*schedulingv1.EvictionEvent
	place int
}

type givenAgent struct {
	silent   bool
	since    time.Duration // of its silence
	reported bool
	notReady string
}

// NewCourse returns a course of a length, in which events happen.
func NewCourse(g Given, events []*schedulingv1.EvictionEvent, span time.Duration) *Course {
	c := &Course{
		Given: g, span: span, nodes: map[string]*nodev1.Node{}, pods: map[string]map[object.Key]*schedulingv1.Pod{},
		hosts: map[object.Key]string{}, agents: map[string]givenAgent{}, silent: map[string]bool{},
		witnesses: map[string]*Witness{}, census: NewCensus(nil, g.Grace), due: map[string]time.Duration{}, renewed: -1 << 62,
	}
	for i, e := range events {
		c.events = append(c.events, event{e, i})
		c.span = max(c.span, e.GetAfter().AsDuration())
	}
	slices.SortStableFunc(c.events, func(a, b event) int {
		return cmp.Compare(a.GetAfter().AsDuration(), b.GetAfter().AsDuration())
	})
	for _, n := range g.Nodes {
		name := n.GetMetadata().GetName()
		a := g.agent(n)
		c.agents[name] = givenAgent{
			silent: a.Silence > 0, since: -a.Silence, reported: a.Reported, notReady: a.NotReady,
		}
		c.addNode(n)
	}
	for _, p := range g.Pods {
		c.addPod(p)
	}
	return c
}

// Fault is why an event of a Course cannot happen.
type Fault struct {
	Place int    // of the event in the list that was given
	Field string // of the event, as a JSON name
	Text  string
}

// Next makes the next decision, or lets time pass until there is one. It returns false at the end of the course.
func (c *Course) Next() (more bool, fault *Fault) {
	if len(c.Steps) >= mostSteps || c.work >= mostWork {
		return false, nil
	}
	if name, ok := c.queue.next(c.due, c.elapsed); ok {
		delete(c.due, name)
		c.decide(name)
		return true, nil
	}
	at := c.span
	if len(c.queue) > 0 {
		at = min(at, c.queue[0].at)
	}
	if len(c.events) > 0 {
		at = min(at, c.events[0].GetAfter().AsDuration())
	}
	if at > c.elapsed {
		c.elapsed = at
		c.passed()
	}
	happened := false
	for len(c.events) > 0 && c.events[0].GetAfter().AsDuration() <= c.elapsed {
		e := c.events[0]
		c.events, happened = c.events[1:], true
		if field, text := c.happen(e.EvictionEvent); text != "" {
			return false, &Fault{e.place, field, text}
		}
	}
	return happened || c.elapsed < c.span || len(c.queue) > 0 && c.queue[0].at <= c.elapsed, nil
}

// Until returns the time up to which the course was played.
func (c *Course) Until() time.Time { return c.now() }

// Wake returns when the next decision is made if nothing happens; zero if none is.
func (c *Course) Wake() time.Time {
	if len(c.queue) == 0 {
		return time.Time{}
	}
	return c.now().Add(max(c.queue[0].at-c.elapsed, 0))
}

// Evictions returns the decisions about all pods of nodes with a NoExecute taint, as Deadlines does.
func (c *Course) Evictions() []Eviction {
	var out []Eviction
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		if NoExecutes(c.nodes[name]) {
			out = append(out, Deadlines(c.evictionView(name))...)
		}
	}
	return InOrder(out)
}

// Unwell returns the nodes that are not ready or have a NoExecute taint, with what holds back that taint; empty if
// nothing does.
func (c *Course) Unwell() (nodes []*nodev1.Node, waits []string) {
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		p := Node(c.nodeView(name))
		if n := p.NodeAfter(c.nodes[name]); n.GetStatus().GetEvictions() != nil {
			nodes, waits = append(nodes, n), append(waits, p.HeldReason(TaintNode))
		}
	}
	return nodes, waits
}

func (c *Course) now() time.Time { return c.Now.Add(c.elapsed + c.set) }

func (c *Course) uptime() Clock {
	if c.Clock.Boot == "" {
		return Clock{}
	}
	return Clock{Boot: c.Clock.Boot, Uptime: c.Clock.Uptime + c.elapsed}
}

// decide makes the decisions about a node and its pods, and carries them out.
func (c *Course) decide(name string) {
	if c.nodes[name] == nil {
		return
	}
	v := c.nodeView(name)
	p := Node(v)
	c.work += decided * (1 + len(v.Pods))
	c.do(v, p)
	e := Evictions(c.evictionView(name))
	c.do(v, Plan{Do: e.Do})
	for _, q := range e.Ask {
		c.note(Step{Action: DeletePod, Node: name, Pod: q.Pod, Reason: q.Reason})
		c.removePod(object.KeyOf(q.Pod))
	}
	if len(p.Do)+len(e.Do)+len(e.Ask) > 0 {
		c.schedule(name, 0)
		return
	}
	// An agent that sends heartbeats goes on with that until an event says otherwise.
	if a := c.agents[name]; !a.silent && p.Wake.Equal(v.Now.Add(c.Grace)) {
		p.Wake = time.Time{}
	}
	p.wake(e.Wake)
	if !p.Wake.IsZero() {
		c.schedule(name, max(p.Wake.Sub(c.now()), soonest))
	}
}

func (c *Course) schedule(name string, in time.Duration) {
	at := c.elapsed + min(in, latest)
	if have, ok := c.due[name]; ok && have <= at {
		return
	}
	c.due[name] = at
	heap.Push(&c.queue, due{at, name})
}

func (c *Course) note(s Step) {
	s.At, s.After = c.now(), c.elapsed
	c.Steps = append(c.Steps, s)
}

// do carries out the actions of a plan, as the controller does. v is the view that led to it.
func (c *Course) do(v NodeView, p Plan) {
	name := v.Node.GetMetadata().GetName()
	for _, a := range p.Do {
		switch a.Verb {
		case StoreNode:
			c.noteNode(v, p)
			c.nodes[name] = a.Node
			c.witness(name)
		case ChangeZone:
			c.note(Step{Action: ChangeZone, Node: name, Value: a.ZoneState, Reason: a.Reason})
			c.again(func(n *nodev1.Node) bool { return Zone(n) == a.Zone && (!IsReady(n) || NoExecutes(n)) })
		case BeginDisruption, EndDisruption:
			c.note(Step{Action: a.Verb, Node: name, Reason: a.Reason})
			if a.Verb == EndDisruption {
				c.renewed = c.elapsed
			}
			c.again(func(n *nodev1.Node) bool { return !IsReady(n) })
		}
		c.Memory.Done(a)
	}
}

// noteNode adds steps for what a plan changes about a node.
func (c *Course) noteNode(v NodeView, p Plan) {
	name, after := v.Node.GetMetadata().GetName(), p.NodeAfter(v.Node)
	was, is := find(v.Node.GetStatus().GetConditions(), Ready), find(after.GetStatus().GetConditions(), Ready)
	if was.GetStatus() != is.GetStatus() {
		c.note(Step{Action: StepReady, Node: name, Value: is.GetStatus(), Reason: is.GetMessage()})
	}
	for _, t := range TaintChanges(v, p) {
		switch t.Change {
		case AddTaint:
			c.note(Step{Action: StepAddTaint, Node: name, Value: TaintText(t.Taint), Reason: t.Reason})
		case RemoveTaint:
			c.note(Step{Action: StepRemoveTaint, Node: name, Value: TaintText(t.Taint), Reason: t.Reason})
		}
	}
}

// again has the nodes decided about again that change concerns.
func (c *Course) again(concerns func(*nodev1.Node) bool) {
	c.work += len(c.nodes)
	for name, n := range c.nodes {
		if concerns(n) {
			c.schedule(name, 0)
		}
	}
}

func (c *Course) nodeView(name string) NodeView {
	n := c.nodes[name]
	return NodeView{
		Now: c.now(), Node: n, Reachability: c.reachability(n), Turn: c.Memory.Turn(Zone(n)), Pause: c.Pause,
		Pods: c.podsOn(name), Known: true, Clock: c.uptime(),
	}
}

func (c *Course) evictionView(name string) EvictionView {
	n, pods := c.nodes[name], c.podsOn(name)
	return EvictionView{
		Now: c.now(), Node: n, Pods: pods, Reachability: c.reachability(n), Clock: c.uptime(), Seen: c.Memory.Seen(pods),
	}
}

func (c *Course) reachability(n *nodev1.Node) Reachability {
	h := Reachability{
		Agent: c.agent(n.GetMetadata().GetName(), c.renewed), Grace: c.Grace, Disrupted: c.Memory.Disrupted(),
		ZoneState: c.Memory.ZoneState(Zone(n)),
	}
	if h.NeedsCensus() {
		h.Census = c.census
	}
	return h
}

// agent returns the state of a node's agent, whose silence counts from begin at the earliest.
func (c *Course) agent(name string, begin time.Duration) Agent {
	a := c.agents[name]
	switch {
	case !a.silent:
		return Agent{Reported: true, NotReady: a.notReady}
	case a.since < begin:
		return Agent{Silence: c.elapsed - begin}
	}
	return Agent{Reported: a.reported, Silence: c.elapsed - a.since, NotReady: a.notReady}
}

// passed updates the witnesses after time has passed: it changes those that are silent.
func (c *Course) passed() {
	for name := range c.silent {
		c.census.change(c.witnesses[name], WitnessOf(c.nodes[name], c.agent(name, -1<<62)))
	}
	c.work += made * len(c.silent)
}

// witness makes or updates the witness of a node.
func (c *Course) witness(name string) {
	n := c.nodes[name]
	if n == nil {
		return
	}
	next := WitnessOf(n, c.agent(name, -1<<62))
	if w := c.witnesses[name]; w != nil {
		c.census.change(w, next)
	} else {
		c.witnesses[name] = &next
		c.census.add(&next)
	}
	if delete(c.silent, name); c.agents[name].silent {
		c.silent[name] = true
	}
}

// removeNode removes a node, with its pods and its agent.
func (c *Course) removeNode(name string) {
	c.census.remove(c.witnesses[name])
	delete(c.witnesses, name)
	delete(c.silent, name)
	delete(c.nodes, name)
	delete(c.pods, name)
	delete(c.agents, name)
}

func (c *Course) podsOn(node string) []*schedulingv1.Pod {
	return slices.SortedFunc(maps.Values(c.pods[node]), func(a, b *schedulingv1.Pod) int {
		return cmp.Compare(PodName(a), PodName(b))
	})
}

func (c *Course) addNode(n *nodev1.Node) {
	n = object.Clone(n)
	if n.Metadata == nil {
		n.Metadata = &metav1.ObjectMeta{}
	}
	name := n.GetMetadata().GetName()
	c.nodes[name] = n
	c.witness(name)
	c.schedule(name, 0)
}

// addPod adds a pod. It gets a uid if it has none: decisions about pods are kept by it.
func (c *Course) addPod(pod *schedulingv1.Pod) {
	node := pod.GetSpec().GetNodeName()
	if c.nodes[node] == nil {
		return
	}
	key := podKey(pod.GetMetadata().GetNamespace(), pod.GetMetadata().GetName())
	pod = object.Clone(pod)
	if pod.Metadata == nil {
		pod.Metadata = &metav1.ObjectMeta{}
	}
	pod.Metadata.Namespace = key.Namespace
	pod.Metadata.Uid = cmp.Or(pod.Metadata.Uid, key.Namespace+"/"+key.Name)
	if c.pods[node] == nil {
		c.pods[node] = map[object.Key]*schedulingv1.Pod{}
	}
	c.pods[node][key], c.hosts[key] = pod, node
}

func (c *Course) removePod(key object.Key) {
	delete(c.pods[c.hosts[key]], key)
	c.Memory.Gone(key)
}

func podKey(namespace, name string) object.Key {
	return object.Key{Namespace: cmp.Or(namespace, "default"), Name: name}
}

// happen carries out an event. text is why it cannot happen, and field the field of the event that is at fault.
func (c *Course) happen(e *schedulingv1.EvictionEvent) (field, text string) {
	known := func(name string) string {
		if c.nodes[name] == nil {
			return fmt.Sprintf("there is no node %q at that time", name)
		}
		c.witness(name)
		c.schedule(name, 0)
		return ""
	}
	switch w := e.GetWhat().(type) {
	case *schedulingv1.EvictionEvent_TaintAdded:
		if text = known(w.TaintAdded.GetNode()); text == "" {
			c.retaint(w.TaintAdded.GetNode(), w.TaintAdded.GetTaint(), true)
		}
		return "taintAdded.node", text
	case *schedulingv1.EvictionEvent_TaintRemoved:
		if text = known(w.TaintRemoved.GetNode()); text == "" {
			c.retaint(w.TaintRemoved.GetNode(), w.TaintRemoved.GetTaint(), false)
		}
		return "taintRemoved.node", text
	case *schedulingv1.EvictionEvent_NodeSilent:
		if a := c.agents[w.NodeSilent]; !a.silent {
			a.silent, a.since, a.reported = true, c.elapsed, true
			c.agents[w.NodeSilent] = a
		}
		field, text = "nodeSilent", known(w.NodeSilent)
	case *schedulingv1.EvictionEvent_NodeHeard:
		c.agents[w.NodeHeard] = givenAgent{notReady: c.agents[w.NodeHeard].notReady}
		field, text = "nodeHeard", known(w.NodeHeard)
	case *schedulingv1.EvictionEvent_NodeReports:
		c.agents[w.NodeReports.GetNode()] = givenAgent{notReady: w.NodeReports.GetNotReady()}
		field, text = "nodeReports.node", known(w.NodeReports.GetNode())
	case *schedulingv1.EvictionEvent_PodBound:
		node := w.PodBound.GetSpec().GetNodeName()
		if text = known(node); text == "" {
			c.bind(w.PodBound)
		}
		return "podBound.spec.nodeName", text
	case *schedulingv1.EvictionEvent_PodGone:
		key := podKey(w.PodGone.GetNamespace(), w.PodGone.GetName())
		node, ever := c.hosts[key]
		if !ever {
			return "podGone", fmt.Sprintf("there is no pod %q", key.Namespace+"/"+key.Name)
		}
		c.removePod(key) // it may have been evicted before
		c.schedule(node, 0)
		return "", ""
	case *schedulingv1.EvictionEvent_NodeCreated:
		name := w.NodeCreated.GetMetadata().GetName()
		if name == "" || c.nodes[name] != nil {
			return "nodeCreated.metadata.name", fmt.Sprintf("a node %q exists at that time, or the name is empty", name)
		}
		c.agents[name] = givenAgent{}
		c.addNode(w.NodeCreated)
	case *schedulingv1.EvictionEvent_NodeDeleted:
		if field, text = "nodeDeleted", known(w.NodeDeleted); text == "" {
			c.removeNode(w.NodeDeleted)
		}
	case *schedulingv1.EvictionEvent_ClockSet:
		field = "clockSet"
		if by := w.ClockSet.AsDuration(); by.Abs() > mostSet || (c.set+by).Abs() > mostSet {
			text = "sets the clock by more than 100 years in all"
		} else {
			c.set += by
		}
	}
	return field, text
}

// retaint has a user set or remove a taint.
func (c *Course) retaint(name string, t *nodev1.Taint, on bool) {
	next := object.Clone(c.nodes[name])
	next.Spec = ensured(next.Spec)
	next.Spec.Taints = slices.DeleteFunc(next.Spec.Taints, func(o *nodev1.Taint) bool { return markOf(o) == markOf(t) })
	if on {
		next.Spec.Taints = append(next.Spec.Taints, proto.CloneOf(t))
	}
	Taint(c.nodes[name], next, c.now())
	c.nodes[name] = next
	c.witness(name)
}

// bind has a pod bound to its node.
func (c *Course) bind(pod *schedulingv1.Pod) {
	pod = object.Clone(pod)
	if pod.Status == nil {
		pod.Status = &schedulingv1.PodStatus{}
	}
	if placement.PodCondition(pod, placement.PodScheduled) == nil {
		pod.Status.Conditions = append(pod.Status.Conditions, &schedulingv1.PodCondition{
			Type: placement.PodScheduled, Status: "True", LastTransitionTime: &timestamppb.Timestamp{Seconds: c.now().Unix()},
		})
	}
	c.addPod(pod)
	name := pod.GetSpec().GetNodeName()
	key := podKey(pod.GetMetadata().GetNamespace(), pod.GetMetadata().GetName())
	if bound := c.pods[name][key]; NoExecutes(c.nodes[name]) {
		c.Memory.Bound(bound, c.uptime().Uptime)
	}
}

// due is when a node is decided about.
type due struct {
	at   time.Duration // on the monotonic clock of the course
	name string
}

// dueQueue is a heap of them, the earliest first. A node whose time was moved forward is in it more than once.
type dueQueue []due

func (q dueQueue) Len() int { return len(q) }
func (q dueQueue) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(q[i].at, q[j].at), cmp.Compare(q[i].name, q[j].name)) < 0
}
func (q dueQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *dueQueue) Push(x any) { *q = append(*q, x.(due)) }

// Pop implements heap.Interface.
func (q *dueQueue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

// next removes the first node that is due by now. ok is false if none is.
func (q *dueQueue) next(valid map[string]time.Duration, now time.Duration) (name string, ok bool) {
	for len(*q) > 0 {
		first := (*q)[0]
		if at, there := valid[first.name]; !there || at != first.at {
			heap.Pop(q)
			continue
		}
		if first.at > now {
			return "", false
		}
		heap.Pop(q)
		return first.name, true
	}
	return "", false
}
