package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/spans"
	"google.golang.org/protobuf/proto"
)

// HashLabel is the label that distinguishes the replica sets of a deployment, and their pods.
const HashLabel = "pod-template-hash"

const (
	defaultHistory  = 10 // old replica sets that are kept
	defaultDeadline = 600 * time.Second
	defaultStep     = 25 // percent
)

// DeploymentView is everything that a deployment is decided on.
type DeploymentView struct {
	Now        time.Time
	Clock      spans.Clock // which measures waits
	Deployment *schedulingv1.Deployment
	// of the namespace: those that the deployment manages, and those without a controller
	Sets []*schedulingv1.ReplicaSet
}

// DeploymentPlan is what is done for a deployment. While Adopt or Release has anything, there is nothing else in it:
// look again afterwards.
type DeploymentPlan struct {
	Adopt, Release []*schedulingv1.ReplicaSet
	Create         *SetChange  // a new replica set; nil for none
	Update         []SetChange // replica sets whose metadata or spec change
	Delete         []*schedulingv1.ReplicaSet
	Revision       string             // value of the deployment's revision annotation; empty leaves it
	Held           []*metav1.HeldBack // what would be done and waits
	Status         *schedulingv1.DeploymentStatus
	Wake           time.Time  // when to decide again even if nothing changes; zero means never
	States         spans.Seen // what the next view has seen

	why reasons
}

// Actions returns what is done, in its order, and why.
func (p DeploymentPlan) Actions() []*metav1.PlannedAction {
	out := transfers(p.Adopt, p.Release)
	if p.Create != nil {
		out = append(out, sized("CreateReplicaSet", *p.Create))
	}
	for _, ch := range p.Update {
		out = append(out, sized("UpdateReplicaSet", ch))
	}
	return append(out, planned("DeleteReplicaSet", p.Delete, p.why)...)
}

// sized returns the action that makes a replica set as desired.
func sized(action string, ch SetChange) *metav1.PlannedAction {
	return &metav1.PlannedAction{
		Action: action, Object: object.Reference(ch.Set), Reason: ch.Why,
		Details: map[string]string{"replicas": strconv.Itoa(orOne(ch.Set.GetSpec().Replicas))},
	}
}

// DeploymentAfter returns a deployment as it is stored after a plan was carried out: its status and its revision are
// in one record.
func DeploymentAfter(d *schedulingv1.Deployment, p DeploymentPlan) *schedulingv1.Deployment {
	out := proto.CloneOf(d)
	out.Status = p.Status
	if p.Revision != "" {
		out.Metadata.Annotations = label(out.Metadata.Annotations, RevisionAnnotation, p.Revision)
	}
	return out
}

// SetChange is a desired replica set.
type SetChange struct {
	Set  *schedulingv1.ReplicaSet
	Tell *Event // for the deployment; nil for none
	Why  string
}

// Deployment decides what a deployment does next. It goes step by step: sets grow before others shrink, and each step
// counts on what the sets say of their pods.
func Deployment(v DeploymentView) DeploymentPlan {
	stays := func(s *schedulingv1.ReplicaSet) bool { return !object.Deleting(s) }
	c := claimAll(v.Deployment, matcher(v.Deployment.GetSpec().GetSelector()), v.Sets, stays)
	if !c.settled() {
		return DeploymentPlan{Adopt: c.adopt, Release: c.release}
	}
	if object.Deleting(v.Deployment) {
		return DeploymentPlan{Status: v.Deployment.GetStatus()}
	}
	r := newRollout(v, c.mine)
	r.checkPaused()
	switch paused := v.Deployment.GetSpec().GetPaused(); {
	case paused || r.scaling():
		r.refresh()
		if r.scaling() || r.pods() == 0 {
			r.scale()
		}
		if paused {
			if !r.complete() {
				r.hold("UpdateReplicaSet", r.d, "the deployment is paused", "windlass rollout resume deployment/"+
					r.d.GetMetadata().GetName())
			}
			r.cleanUp()
		}
	case v.Deployment.GetSpec().GetStrategy().GetType() == "Recreate":
		r.recreate()
	default:
		r.roll()
	}
	r.finish()
	return r.p
}

// set is a replica set while a plan is made: as it is, and as desired.
type set struct {
	was  *schedulingv1.ReplicaSet // nil for a new one
	next *schedulingv1.ReplicaSet
	tell *Event
	why  string
}

func (s *set) size() int { return orOne(s.next.GetSpec().Replicas) }

// available returns how many pods of the set are available and stay: its status may still speak of those that it is
// about to lose.
func (s *set) available() int {
	return min(int(s.was.GetStatus().GetAvailableReplicas()), s.size())
}

// rollout is a deployment while a plan is made for it.
type rollout struct {
	now     time.Time
	clock   spans.Clock
	d       *schedulingv1.Deployment
	want    int
	surge   int // pods beyond want
	missing int // pods of want that need not be available
	all     []*set
	current *set // of the present template; nil if there is none
	p       DeploymentPlan
	status  *schedulingv1.DeploymentStatus
}

func newRollout(v DeploymentView, mine []*schedulingv1.ReplicaSet) *rollout {
	r := &rollout{
		now: v.Now, clock: clockAt(v.Clock, v.Now), p: DeploymentPlan{why: reasons{}}, d: v.Deployment,
		want: orOne(v.Deployment.GetSpec().Replicas),
	}
	r.surge, r.missing = limits(v.Deployment.GetSpec(), r.want)
	r.status = proto.CloneOf(v.Deployment.GetStatus())
	if r.status == nil {
		r.status = &schedulingv1.DeploymentStatus{}
	}
	slices.SortFunc(mine, byAge)
	for _, s := range mine {
		if object.Deleting(s) {
			continue
		}
		next := &set{was: s, next: proto.CloneOf(s)}
		r.all = append(r.all, next)
		if r.current == nil && equalIgnoringHash(s.GetSpec().GetTemplate(), v.Deployment.GetSpec().GetTemplate()) {
			r.current = next
		}
	}
	return r
}

// limits returns how many pods may be there beyond the wanted ones, and how many of these may be missing. Both zero
// would let nothing move, so then one may be missing. A deployment that recreates all pods has neither: it is
// available only with all of them.
func limits(spec *schedulingv1.DeploymentSpec, want int) (surge, missing int) {
	if spec.GetStrategy().GetType() == "Recreate" {
		return 0, 0
	}
	rolling := spec.GetStrategy().GetRollingUpdate()
	surge, missing = (want*defaultStep+99)/100, want*defaultStep/100
	if v := rolling.GetMaxSurge(); v != nil {
		surge = share(v, want, true)
	}
	if v := rolling.GetMaxUnavailable(); v != nil {
		missing = share(v, want, false)
	}
	if surge == 0 && missing == 0 {
		missing = 1
	}
	return surge, min(missing, want)
}

// old returns the sets that are not of the present template, the oldest first.
func (r *rollout) old() []*set {
	return slices.DeleteFunc(slices.Clone(r.all), func(s *set) bool { return s == r.current })
}

// pods returns how many pods the sets must have.
func (r *rollout) pods() (n int) {
	for _, s := range r.all {
		n += s.size()
	}
	return n
}

// resize gives a set another number of pods and notes what it was chosen for.
func (r *rollout) resize(s *set, n int, why string) {
	if before := s.size(); before != n {
		s.why = why
		direction := "up"
		if n < before {
			direction = "down"
		}
		s.next.Spec.Replicas = number(n)
		s.tell = scaled(direction, s.next.GetMetadata().GetName(), before, n)
	}
	r.noteSize(s)
}

func scaled(direction, name string, from, to int) *Event {
	return &Event{"Normal", "ScalingReplicaSet", fmt.Sprintf("Scaled %s replica set %s from %d to %d", direction, name,
		from, to)}
}

// roll replaces old pods step by step.
func (r *rollout) roll() {
	r.ensure()
	if r.current.size() != r.want {
		if n := r.newSize(); n != r.current.size() {
			r.resize(r.current, n, fmt.Sprintf("%d pods are wanted, and %d may be there at once", r.want, r.want+r.surge))
			return
		}
	}
	if r.shrinkOld() {
		return
	}
	switch {
	case r.complete():
		r.cleanUp()
	case r.current.was != nil:
		r.hold("UpdateReplicaSet", r.current.next,
			fmt.Sprintf("%d of its %d pods are available, %d pods of the deployment must be, and %d may be there at once",
				r.current.available(), r.current.size(), r.want-r.missing, r.want+r.surge),
			"its pods become available, or those that leave are gone")
	}
}

// hold notes what waits since the rollout came forward last, or was paused.
func (r *rollout) hold(action string, on object.Object, why, unblock string) {
	r.p.Held = held(action, on, why, unblock)
	r.p.Held[0].SinceTime = object.FindCondition(r.status.GetConditions(), progressing).GetLastTransitionTime()
}

// newSize returns how many pods the set of the present template may have now.
func (r *rollout) newSize() int {
	have := 0
	if r.current != nil {
		have = r.current.size()
	}
	room := r.want + r.surge - r.pods()
	switch {
	case have >= r.want:
		return r.want
	case room <= 0:
		return have
	}
	return have + min(room, r.want-have)
}

// shrinkOld takes pods away from old sets: first those that are not available, then as many as may
// be missing. It reports whether anything changed.
func (r *rollout) shrinkOld() bool {
	least := r.want - r.missing
	free := r.pods() - least - (r.current.size() - r.current.available())
	before := r.pods()
	for _, s := range r.old() {
		if idle := min(free, s.size()-s.available()); idle > 0 {
			r.resize(s, s.size()-idle, "it is of a former template, and these of its pods are not available")
			free -= idle
		}
	}
	up := 0
	for _, s := range r.all {
		up += s.available()
	}
	free = min(free, up-least)
	for _, s := range r.old() {
		if take := min(free, s.size()); take > 0 {
			r.resizeFrom(s, s.size()-take, fmt.Sprintf("it is of a former template, and %d pods stay available without these",
				least))
			free -= take
		}
	}
	return r.pods() != before
}

// resizeFrom is resize for a set that may have been resized before in the same plan: it reports both as one.
func (r *rollout) resizeFrom(s *set, n int, why string) {
	from := orOne(s.was.GetSpec().Replicas)
	r.resize(s, n, why)
	s.tell = scaled("down", s.next.GetMetadata().GetName(), from, n)
}

// recreate removes all old pods before it makes new ones.
func (r *rollout) recreate() {
	gone := true
	for _, s := range r.old() {
		if s.size() > 0 {
			r.resize(s, 0, "it is of a former template: its pods go before new ones come")
		}
		st := s.was.GetStatus()
		gone = gone && st.GetReplicas() == 0 && st.GetTerminatingReplicas() == 0 &&
			s.size() == orOne(s.was.GetSpec().Replicas) &&
			st.GetObservedGeneration() >= s.was.GetMetadata().GetGeneration()
	}
	if !gone {
		r.hold("CreateReplicaSet", r.d, "pods of a former template are still there", "they go")
		return
	}
	r.ensure()
	if r.current.size() != r.want {
		r.resize(r.current, r.want, "no pod of a former template is left")
	}
	if r.complete() {
		r.cleanUp()
	}
}

// ensure makes the set of the present template, or brings what it has from the deployment up to date.
func (r *rollout) ensure() {
	if r.current != nil {
		r.refresh()
		return
	}
	hash := templateHash(r.d.GetSpec().GetTemplate(), r.status.GetCollisionCount())
	template := proto.CloneOf(r.d.GetSpec().GetTemplate())
	if template.GetMetadata() == nil {
		template.Metadata = &metav1.ObjectMeta{}
	}
	template.Metadata.Labels = label(template.Metadata.Labels, HashLabel, hash)
	selector := proto.CloneOf(r.d.GetSpec().GetSelector())
	selector.MatchLabels = label(selector.GetMatchLabels(), HashLabel, hash)
	n := r.newSize()
	s := &set{next: &schedulingv1.ReplicaSet{
		Metadata: &metav1.ObjectMeta{
			Name: r.d.GetMetadata().GetName() + "-" + hash, Namespace: r.d.GetMetadata().GetNamespace(),
			Labels: maps.Clone(template.Metadata.Labels), OwnerReferences: []*metav1.OwnerReference{object.OwnedBy(r.d)},
		},
		Spec: &schedulingv1.ReplicaSetSpec{
			Replicas: number(n), MinReadySeconds: r.d.GetSpec().MinReadySeconds, Selector: selector, Template: template,
		},
	}}
	s.why = "no replica set has the present template"
	if n > 0 {
		s.tell = scaled("up", s.next.GetMetadata().GetName(), 0, n)
	}
	r.all, r.current = append(r.all, s), s
	r.noteSize(s)
	r.noteRevision()
	r.progress("NewReplicaSetCreated", fmt.Sprintf("Created new replica set %q", s.next.GetMetadata().GetName()))
}

// refresh brings what the set of the present template has from the deployment up to date.
func (r *rollout) refresh() {
	if r.current == nil {
		return
	}
	r.current.next.Spec.MinReadySeconds = r.d.GetSpec().MinReadySeconds
	r.noteRevision()
	if c := object.FindCondition(r.status.GetConditions(), progressing); c == nil || c.GetReason() == setRefused {
		r.progress("FoundNewReplicaSet", fmt.Sprintf("Found new replica set %q", r.current.next.GetMetadata().GetName()))
	}
}

// Collides reports whether a replica set that has the name of a new one is another: not of this deployment, or of
// another template.
func Collides(d *schedulingv1.Deployment, found *schedulingv1.ReplicaSet) bool {
	return object.ControllerOf(found).GetUid() != d.GetMetadata().GetUid() ||
		!equalIgnoringHash(found.GetSpec().GetTemplate(), d.GetSpec().GetTemplate())
}

// Collided returns a status that counts one collision more.
func Collided(s *schedulingv1.DeploymentStatus) *schedulingv1.DeploymentStatus {
	out := proto.CloneOf(s)
	if out == nil {
		out = &schedulingv1.DeploymentStatus{}
	}
	out.CollisionCount = proto.Int32(s.GetCollisionCount() + 1)
	return out
}

// SetFailed is the event of a replica set that could not be made.
func SetFailed(name, why string) Event {
	return Event{"Warning", setRefused, fmt.Sprintf("Failed to create new replica set %q: %s", name, why)}
}

// SetNotChanged is the event of a replica set that could not be changed.
func SetNotChanged(name, why string) Event {
	return Event{"Warning", "ReplicaSetUpdateError", fmt.Sprintf("Failed to update replica set %q: %s", name, why)}
}

// Refused returns a deployment as it is stored after a replica set of it was refused, with the event of that: it does
// not progress until it or a rule changes.
func Refused(d *schedulingv1.Deployment, e Event, now time.Time) *schedulingv1.Deployment {
	out := proto.CloneOf(d)
	if out.Status == nil {
		out.Status = &schedulingv1.DeploymentStatus{}
	}
	out.Status.ObservedGeneration = proto.Int32(d.GetMetadata().GetGeneration())
	out.Status.Conditions = object.SetCondition(out.Status.Conditions, &metav1.Condition{
		Type: progressing, Status: "False", Reason: proto.String(setRefused), Message: proto.String(e.Message),
	}, now)
	return out
}

// cleanUp removes the oldest sets without pods beyond those that are kept to go back to.
func (r *rollout) cleanUp() {
	keep := defaultHistory
	if n := r.d.GetSpec().RevisionHistoryLimit; n != nil {
		keep = int(*n)
	}
	old := r.old()
	slices.SortStableFunc(old, func(a, b *set) int { return int(Revision(a.was) - Revision(b.was)) })
	for _, s := range old[:max(0, len(old)-keep)] {
		st := s.was.GetStatus()
		if s.size() == 0 && st.GetReplicas() == 0 && st.GetObservedGeneration() >= s.was.GetMetadata().GetGeneration() {
			r.p.Delete = append(r.p.Delete, s.was)
			note(r.p.why, fmt.Sprintf("it has no pods, and %d former ones are kept to go back to", keep), s.was)
		}
	}
}

// finish gathers what changed.
func (r *rollout) finish() {
	for _, s := range r.all {
		switch {
		case s.was == nil:
			r.p.Create = &SetChange{Set: s.next, Tell: s.tell, Why: s.why}
		case !proto.Equal(s.was, s.next):
			r.p.Update = append(r.p.Update,
				SetChange{Set: s.next, Tell: s.tell, Why: cmp.Or(s.why, "it takes over what changed of the deployment")})
		}
	}
	r.observe()
	r.p.Status, r.p.States = r.status, r.clock.Used
}
