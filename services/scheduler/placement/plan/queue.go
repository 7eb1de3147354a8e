package plan

import (
	"cmp"
	"container/heap"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
)

const (
	// mostAtOnce is how many pods are placed before their bindings are written: enough for full transactions, few enough
	// that the first of many pods do not wait for the last.
	mostAtOnce = 1000
	// retriesBeside is how many pods that no node fitted are tried again beside new pods: new ones do not wait behind
	// them, and they are not held off by new ones either.
	retriesBeside = 100
	// writePause is how long to wait after etcd refused a write.
	writePause = 500 * time.Millisecond
)

// PodScheduled is the condition of a pod that says whether it has a node.
const PodScheduled = "PodScheduled"

// Plan is the outcome of one decision of a Queue. The zero Plan means nothing to do. The controller does Do, gives the
// outcomes to Done, and calls Next again at Wake, which is at once if more pods may be ready.
type Plan struct {
	Do       []Action   // the bindings first
	Ask      []Question // give the answers to Answer; the pods that they are about wait for nothing else
	Held     []Decision // the pods of this decision that no node fits, with the reason
	WaitsFor string     // what the pods that are not placed wait for, in one line; empty if there are none
	Wake     time.Time  // when to decide again even if nothing changes; zero means never
}

// What an Action does.
const (
	BindClaims   = "BindClaims"   // write Decision.Claims, before BindPod or StorePending of the same pod
	BindPod      = "BindPod"      // write the binding of Decision.Pod to Decision.Node, if the pod is still the same
	CreateBound  = "CreateBound"  // create Decision.Pod, which is not stored yet, as bound to Decision.Node
	StorePending = "StorePending" // write the condition PodScheduled, False, with Decision.Message, and the nominated node
	EvictVictims = "EvictVictims" // delete the pods of Decision.Preempts, if the nomination of Decision.Pod is stored
	StoreUnseen  = "StoreUnseen"  // the same, of a pod that names a scheduler that was not seen
)

// Action is one thing to do for a pod.
type Action struct {
	Verb string
	Decision
}

// Result classifies what happened to an Action.
type Result int

// Results.
const (
	Written   Result = iota // it is stored
	Changed                 // the pod changed, is gone, or has a node
	Invalid                 // the pod as it is stored breaks a rule, so no write of it succeeds
	Unwritten               // etcd did not take the write
)

// Outcome is an action with its result.
type Outcome struct {
	Action
	Result Result
	Now    *schedulingv1.Pod // of Written and Changed: the pod as it is now, nil if it is gone
}

// Queue decides which pods are placed when. It begins empty with each leader. Of its cluster, use only the methods that
// add and remove objects. It may not be used concurrently.
type Queue struct {
	*Cluster
	Profiles
	ready   map[object.Key]*schedulingv1.Pod // to place now
	order   order                            // of ready; it has pods that are not in ready any more, too
	stuck   map[object.Key]*stuckPod         // no node fitted them
	due     map[object.Key]*stuckPod         // those of stuck that something helped since: tried after their pause
	refused map[object.Key]struct{}          // a write of them was Invalid; not placed again until they change
	wanted  [changes]int                     // how many of stuck each change may help
	news    news                             // what changed since stuck was searched for pods that it helps
	paused  time.Time                        // no pod is placed before: etcd refused a write
	turn    uint64                           // see Place
	foreign foreign                          // pods of other schedulers
	choices choices                          // why pods are where they are
	// by node: no pod was bound to it after this revision
	allocated map[string]int64

	consulted map[object.Key]*consultation // pods that extenders decide on
	abandoned map[*Inquiry]line            // about pods that changed or are gone; their questions are still under way
	replied   []object.Key                 // of consulted: those whose inquiries have their answers
	retried   map[line]bool                // whether the next turn is that of a pod that is tried again
	silent    map[string]time.Time         // by address: since when an extender has not answered as it must

	offered  map[object.Key]*schedulingv1.Pod // to place in the next decision, and not stored yet
	reserved map[object.Key]string            // placed so, with their nodes; the cluster counts them until Done
}

// stuckPod is a pod that no node fitted.
type stuckPod struct {
	pod   *schedulingv1.Pod
	wakes news      // what may help it
	tries int       // in a row, from 1
	since time.Time // its first try
	tried time.Time
	after time.Time // when its pause ends

	message string  // of the last try
	verdict Verdict // of the last try; pods alike share one
}

// NewQueue returns a queue without pods. It keeps c up to date from now on.
func NewQueue(c *Cluster, p Profiles) *Queue {
	return &Queue{
		Cluster: c, Profiles: p,
		ready: map[object.Key]*schedulingv1.Pod{}, stuck: map[object.Key]*stuckPod{},
		due: map[object.Key]*stuckPod{}, refused: map[object.Key]struct{}{},
		foreign: newForeign(), choices: newChoices(mostChoices), allocated: map[string]int64{},
		consulted: map[object.Key]*consultation{}, abandoned: map[*Inquiry]line{}, retried: map[line]bool{},
		silent:  map[string]time.Time{},
		offered: map[object.Key]*schedulingv1.Pod{}, reserved: map[object.Key]string{},
	}
}

// placeable reports whether a pod needs a node and may have one now.
func placeable(pod *schedulingv1.Pod) bool {
	s := pod.GetSpec()
	return s.GetNodeName() == "" && len(s.GetSchedulingGates()) == 0 && !placement.Terminated(pod) && !object.Deleting(pod)
}

// AddPod takes in a pod that was created or changed. A pod that no node fitted is placed again if it asks for something
// else.
func (q *Queue) AddPod(pod *schedulingv1.Pod) {
	k := object.KeyOf(pod)
	if _, ok := q.reserved[k]; ok {
		return // Done brings what is stored
	}
	effect := q.Cluster.AddPod(pod)
	q.note(effect)
	if effect != none && placement.Assigned(pod) {
		q.allocate(pod)
	}
	q.foreign.add(pod, q.Profiles)
	if !q.NeedsNode(pod) {
		q.forget(k)
		return
	}
	delete(q.refused, k)
	if c := q.consulted[k]; c != nil && asksTheSame(c.pod, pod) {
		c.pod = pod
		if before := q.stuck[k]; before != nil {
			before.pod = pod
		}
		return
	}
	q.abandon(k)
	if before := q.stuck[k]; before != nil && asksTheSame(before.pod, pod) {
		before.pod = pod
		return
	}
	q.settle(k)
	q.await(pod)
}

// RemovePod takes in that a pod is gone.
func (q *Queue) RemovePod(k object.Key) {
	if _, ok := q.reserved[k]; ok {
		return
	}
	q.note(q.Cluster.RemovePod(k.Namespace, k.Name))
	q.foreign.remove(k)
	q.choices.remove(k)
	q.forget(k)
}

// AddNode takes in a node that was created or changed.
func (q *Queue) AddNode(n *nodev1.Node) {
	var before *nodev1.Node
	if known := q.byName[n.GetMetadata().GetName()]; known != nil {
		before = known.msg
	}
	q.news |= changesOf(before, n)
	q.Cluster.AddNode(n)
}

// RemoveNode takes in that a node is gone.
func (q *Queue) RemoveNode(name string) {
	q.Cluster.RemoveNode(name)
	delete(q.allocated, name)
	q.news |= nodeLeft
}

// AddService takes in a service that was created or changed.
func (q *Queue) AddService(s *schedulingv1.Service) {
	q.Cluster.AddService(s)
	q.news |= selection
}

// RemoveSelector takes in that a service or a controller is gone.
func (q *Queue) RemoveSelector(kind, namespace, name string) {
	q.Cluster.RemoveSelector(kind, namespace, name)
	if kind == kindService {
		q.news |= selection
	}
}

// AddVolume takes in a volume that was created or changed.
func (q *Queue) AddVolume(v *schedulingv1.PersistentVolume) {
	q.Cluster.AddVolume(v)
	q.news |= storage
}

// RemoveVolume takes in that a volume is gone.
func (q *Queue) RemoveVolume(name string) {
	q.Cluster.RemoveVolume(name)
	q.news |= storage
}

// AddClaim takes in a claim that was created or changed.
func (q *Queue) AddClaim(c *schedulingv1.PersistentVolumeClaim) {
	q.Cluster.AddClaim(c)
	q.news |= storage
}

// RemoveClaim takes in that a claim is gone.
func (q *Queue) RemoveClaim(k object.Key) {
	q.Cluster.RemoveClaim(k)
	q.news |= storage
}

// AddStorageClass takes in a storage class that was created or changed.
func (q *Queue) AddStorageClass(c *schedulingv1.StorageClass) {
	q.Cluster.AddStorageClass(c)
	q.news |= storage
}

// RemoveStorageClass takes in that a storage class is gone.
func (q *Queue) RemoveStorageClass(name string) {
	q.Cluster.RemoveStorageClass(name)
	q.news |= storage
}

// SetProfiles takes in other policies. It returns the names of schedulers that are or are no longer this one's: have
// AddPod take in their pods again.
func (q *Queue) SetProfiles(p Profiles) (changed map[string]bool) {
	changed = map[string]bool{}
	for name := range p {
		changed[name] = q.Profiles[name] == nil
	}
	for name := range q.Profiles {
		changed[name] = p[name] == nil
	}
	q.Profiles, q.boards = p, nil
	q.news |= policy
	for k, c := range q.consulted { // its policy may say otherwise now
		delete(q.consulted, k)
		if q.NeedsNode(c.pod) {
			q.await(c.pod)
		}
	}
	clear(q.retried)
	clear(q.silent)
	return changed
}

// Next decides what to do now. The cluster counts the pods that are to be bound already.
func (q *Queue) Next(now time.Time) Plan {
	defer clear(q.offered)
	if now.Before(q.paused) {
		return Plan{WaitsFor: "etcd to take writes", Wake: q.paused}
	}
	q.wake()
	batch, again := q.batch(now)
	batch = append(q.queueUp(batch), q.offers()...)
	questions, answered := q.consult()
	turns := q.turns()
	unseen, ask := q.foreign.unseen(now)
	if len(batch)+len(unseen)+len(questions)+len(answered)+len(turns) == 0 {
		if again.IsZero() || !ask.IsZero() && ask.Before(again) {
			again = ask
		}
		return Plan{WaitsFor: q.waitsFor(), Wake: again}
	}
	p := Plan{Ask: questions}
	for _, d := range unseen {
		p.Do = append(p.Do, Action{StoreUnseen, d})
	}
	for _, d := range q.placeAll(append(batch, answered...)) {
		k := object.KeyOf(d.Pod)
		if len(d.Claims) > 0 {
			p.Do = append(p.Do, Action{BindClaims, d})
		}
		switch isNew := q.offered[k] != nil; {
		case d.Node != "" && isNew:
			q.reserved[k] = d.Node
			p.Do = append(p.Do, Action{CreateBound, d})
			continue
		case d.Node != "":
			p.Do = append(p.Do, Action{BindPod, d})
			continue
		case isNew:
			continue
		}
		p.Held = append(p.Held, d)
	}
	questions, held := q.begin(turns)
	p.Ask = append(p.Ask, questions...)
	p.Held = q.preemptAll(append(p.Held, held...))
	for _, d := range p.Held {
		q.stick(now, d)
		if c := placement.PodCondition(d.Pod, PodScheduled); c.GetStatus() != "False" || c.GetMessage() != d.Message ||
			d.Pod.GetStatus().GetNominatedNodeName() != d.Nominated() {
			p.Do = append(p.Do, Action{StorePending, d})
		}
		if d.Preempts != nil && len(d.Preempts.Victims) > 0 {
			p.Do = append(p.Do, Action{EvictVictims, d})
		}
	}
	p.WaitsFor, p.Wake = q.waitsFor(), now
	return p
}

// placeAll decides where pods go, in the order of placeAll, each by the policy of its scheduler. Pods that extenders
// must be asked about again are not in the result.
func (q *Queue) placeAll(pods []*schedulingv1.Pod) []Decision {
	if len(q.Profiles) == 1 && len(q.consulted) == 0 {
		return placeAll(q.Cluster, q.Of(nil), pods, &q.turn)
	}
	slices.SortStableFunc(pods, earlier)
	var out []Decision
	for len(pods) > 0 {
		if c := q.consulted[object.KeyOf(pods[0])]; c != nil {
			if d, ok := q.decide(c); ok {
				out = append(out, d)
			}
			pods = pods[1:]
			continue
		}
		profile, n := q.Of(pods[0]), 1
		for n < len(pods) && q.Of(pods[n]) == profile && q.consulted[object.KeyOf(pods[n])] == nil {
			n++
		}
		out = append(out, placeAll(q.Cluster, profile, pods[:n], &q.turn)...)
		pods = pods[n:]
	}
	return out
}

// preemptAll decides which pods are evicted for those that no node fits, and returns those that wait. What is evicted
// for them is reserved at once. Pods beyond mostPreempting are placed again in the next decision.
func (q *Queue) preemptAll(held []Decision) (out []Decision) {
	preempting := 0
	type class struct {
		profile *Profile
		id      string
	}
	helpless := map[class]int32{} // the priority for which no eviction helps
	for _, d := range held {
		if d.Refused || !q.preempts(d.Pod) {
			q.withdraw(d.Pod)
			out = append(out, d)
			continue
		}
		if e := q.Of(d.Pod).filtersNodes(d.Pod.GetSpec()); e != nil {
			d.Message += " " + unhelped(e)
			q.withdraw(d.Pod)
			out = append(out, d)
			continue
		}
		if preempting == mostPreempting {
			q.await(d.Pod)
			continue
		}
		profile, priority := q.Of(d.Pod), d.Pod.GetSpec().GetPriority()
		alike := class{profile, q.boardFor(profile).classOf(d.Pod).id}
		if most, ok := helpless[alike]; !ok || priority > most {
			d.Preempts = q.preempt(profile, d.Pod)
		}
		d.Message += " " + d.Preempts.message()
		if d.Preempts == nil {
			q.withdraw(d.Pod)
			helpless[alike] = priority
		} else {
			preempting++
			q.grant(d)
		}
		out = append(out, d)
	}
	return out
}

// grant reserves for a pod what is evicted for it. Its victims leave from now on, and pods of lower priority that had
// reserved room there are placed again.
func (q *Queue) grant(d Decision) {
	for b := range q.byName[d.Preempts.Node].pods {
		k := object.Key{Namespace: b.key.namespace, Name: b.key.name}
		if s := q.stuck[k]; b.nominated && b.priority < d.Pod.GetSpec().GetPriority() && s != nil {
			q.take(b)
			q.due[k] = s
		}
	}
	q.setLeaving(d.Preempts.Victims, true)
	q.reserve(d.Pod, d.Preempts.Node)
}

// setLeaving notes that pods are evicted, or that they are not after all.
func (q *Queue) setLeaving(victims []Victim, leaving bool) {
	for _, v := range victims {
		b := q.pods[podKey{v.Key.Namespace, v.Key.Name}]
		if b == nil || b.uid != v.UID || b.leaving == leaving {
			continue
		}
		q.take(b)
		now := *b // classes read b later
		now.leaving = leaving
		q.put(&now)
	}
}

// Nominated returns the node that a pod waits for; empty if there is none.
func (d Decision) Nominated() string {
	if d.Preempts == nil {
		return ""
	}
	return d.Preempts.Node
}

// waitsFor says in one line what the pods that are not placed wait for.
func (q *Queue) waitsFor() string {
	var out []string
	if n := len(q.stuck); n > 0 {
		out = append(out, fmt.Sprintf("a change that helps pods that no node fits: %d", n))
	}
	if n := len(q.refused); n > 0 {
		out = append(out, fmt.Sprintf("a change of pods whose stored form breaks a rule: %d", n))
	}
	if n := len(q.consulted); n > 0 {
		out = append(out, fmt.Sprintf("the answers of extenders about pods: %d", n))
	}
	return strings.Join(out, "; ")
}

// Done takes in the outcomes of what Next wanted. What a binding would have used is free again unless it was written.
func (q *Queue) Done(now time.Time, outcomes []Outcome) {
	for _, o := range outcomes {
		if o.Result == Unwritten && o.Verb != CreateBound {
			q.paused = now.Add(writePause)
		}
		k := object.KeyOf(o.Pod)
		switch {
		case o.Verb == BindPod:
			q.bound(o)
			q.remember(now, o)
		case o.Verb == CreateBound:
			q.storedPlaced(o)
			q.remember(now, o)
		case o.Verb == EvictVictims:
			if o.Result != Written {
				q.setLeaving(o.Preempts.Victims, false)
				q.withdraw(o.Pod)
				q.settle(k)
				if o.Result == Unwritten { // of a pod that changed, the change is taken in
					q.await(o.Pod)
				}
			}
		case o.Verb == StoreUnseen:
			if o.Result == Unwritten {
				q.foreign.add(o.Pod, q.Profiles)
			}
		case o.Result == Invalid:
			q.refuse(k)
		case o.Result == Unwritten: // or its condition would be stale until something changes
			q.settle(k)
			q.await(o.Pod)
		}
	}
}

// remember keeps why a pod has the node that is stored now.
func (q *Queue) remember(now time.Time, o Outcome) {
	if o.Result == Written && o.Now.GetSpec().GetNodeName() == o.Node {
		q.choices.add(now, o.Now, o.choice)
	}
}

func (q *Queue) bound(o Outcome) {
	k := object.KeyOf(o.Pod)
	q.settle(k) // a node fitted it
	delete(q.consulted, k)
	if o.Result == Written {
		q.allocate(o.Now)
		q.Cluster.AddPod(o.Now)
		q.news |= podCame
		return
	}
	q.note(q.Cluster.RemovePod(k.Namespace, k.Name))
	switch o.Result {
	case Unwritten:
		q.await(o.Pod)
	case Invalid:
		q.refuse(k)
	case Changed:
		if o.Now == nil {
			q.forget(k)
		} else {
			q.AddPod(o.Now)
		}
	}
}

// wake makes the pods due that what changed may help.
func (q *Queue) wake() {
	news := q.news
	q.news = 0
	wanted := false
	for i, n := range q.wanted {
		wanted = wanted || n > 0 && news&(1<<i) != 0
	}
	if !wanted {
		return
	}
	for k, s := range q.stuck {
		if s.wakes&news != 0 {
			q.due[k] = s
		}
	}
}

// note takes in the effect of a change of a pod.
func (q *Queue) note(e Effect) {
	switch e {
	case company:
		q.news |= podCame
	case room: // another pod of its name may have come for it
		q.news |= podCame | podLeft
	}
}

// await has a pod placed in its turn.
func (q *Queue) await(pod *schedulingv1.Pod) {
	q.ready[object.KeyOf(pod)] = pod
	if len(q.order) > 2*len(q.ready)+mostAtOnce { // mostly pods that are not ready any more
		q.order = slices.Collect(maps.Values(q.ready))
		heap.Init(&q.order)
		return
	}
	heap.Push(&q.order, pod)
}

// batch takes pods off ready: by priority, then the oldest first, so that none waits indefinitely. Pods that are tried
// again go along, all if there is no other pod: by priority, then by their last try. If there is nothing to do, it
// returns when there will be, even if nothing changes.
func (q *Queue) batch(now time.Time) (batch []*schedulingv1.Pod, again time.Time) {
	batch = make([]*schedulingv1.Pod, 0, min(len(q.ready), mostAtOnce))
	for len(q.order) > 0 && len(batch) < mostAtOnce {
		pod := heap.Pop(&q.order).(*schedulingv1.Pod)
		if k := object.KeyOf(pod); q.ready[k] == pod {
			delete(q.ready, k)
			batch = append(batch, pod)
		}
	}
	var retries []*stuckPod
	for _, s := range q.due {
		switch {
		case !now.Before(s.after):
			retries = append(retries, s)
		case again.IsZero() || s.after.Before(again):
			again = s.after
		}
	}
	slices.SortFunc(retries, longerWaiting)
	most := mostAtOnce
	if len(batch) > 0 {
		most = retriesBeside
	}
	for _, s := range retries[:min(len(retries), most)] {
		delete(q.due, object.KeyOf(s.pod))
		batch = append(batch, s.pod)
	}
	return batch, again
}

// order is a heap of pods by earlier: to sort all that wait in each round took 10 µs of each pod's time.
type order []*schedulingv1.Pod

func (o order) Len() int           { return len(o) }
func (o order) Less(i, j int) bool { return earlier(o[i], o[j]) < 0 }
func (o order) Swap(i, j int)      { o[i], o[j] = o[j], o[i] }
func (o *order) Push(pod any)      { *o = append(*o, pod.(*schedulingv1.Pod)) }

func (o *order) Pop() any {
	last := len(*o) - 1
	pod := (*o)[last]
	(*o)[last] = nil
	*o = (*o)[:last]
	return pod
}

// longerWaiting orders pods that are tried again.
func longerWaiting(a, b *stuckPod) int {
	return cmp.Or(cmp.Compare(b.pod.GetSpec().GetPriority(), a.pod.GetSpec().GetPriority()), a.tried.Compare(b.tried),
		earlier(a.pod, b.pod))
}

// stick notes that no node fits a pod. One that had not been tried for long, for want of a change that may help it,
// begins with a short pause again.
func (q *Queue) stick(now time.Time, d Decision) {
	k := object.KeyOf(d.Pod)
	s := &stuckPod{
		pod: d.Pod, wakes: wakers(d), tries: 1, since: now, tried: now, message: d.Message, verdict: d.Verdict,
	}
	if before := q.stuck[k]; before != nil {
		s.since = before.since
		if now.Sub(before.tried) < 2*longestPause {
			s.tries = before.tries + 1
		}
	}
	s.after = pauseAfter(now, k.String(), s.tries)
	q.settle(k)
	if d.Extended { // the extender is asked again whatever happens here
		s.after = pauseAfter(now, k.String(), s.tries+1)
		q.due[k] = s
	}
	q.stuck[k] = s
	q.count(s, 1)
}

// settle forgets that no node fitted a pod.
func (q *Queue) settle(k object.Key) {
	if s := q.stuck[k]; s != nil {
		q.count(s, -1)
	}
	delete(q.stuck, k)
	delete(q.due, k)
}

// count keeps wanted in sync with a pod of stuck.
func (q *Queue) count(s *stuckPod, by int) {
	for i := range q.wanted {
		if s.wakes&(1<<i) != 0 {
			q.wanted[i] += by
		}
	}
}

// refuse drops a pod until it changes: it would be placed again for the room that it leaves itself, before others that
// need it.
func (q *Queue) refuse(k object.Key) {
	q.forget(k)
	q.refused[k] = struct{}{}
}

// forget drops a pod that needs no node.
func (q *Queue) forget(k object.Key) {
	delete(q.ready, k)
	delete(q.refused, k)
	q.abandon(k)
	q.settle(k)
}

// asksTheSame reports whether two versions of a name are one pod, and ask for the same of nodes.
func asksTheSame(a, b *schedulingv1.Pod) bool {
	x, y := a.GetMetadata(), b.GetMetadata()
	return x.GetUid() == y.GetUid() && x.GetGeneration() == y.GetGeneration() &&
		maps.Equal(x.GetLabels(), y.GetLabels())
}
