package plan

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/spans"
	"google.golang.org/protobuf/proto"
)

// Labels of a stateful set's pods.
const (
	podNameLabel  = "statefulset.kubernetes.io/pod-name"
	podIndexLabel = "apps.kubernetes.io/pod-index"
)

// StatefulSetView is everything that a stateful set is decided on.
type StatefulSetView struct {
	Now   time.Time
	Clock spans.Clock // which measures waits
	Set   *schedulingv1.StatefulSet
	// of the namespace: those that the set manages, and those without a controller
	Pods      []*schedulingv1.Pod
	Revisions []*schedulingv1.ControllerRevision    // the same of revisions
	Claims    []*schedulingv1.PersistentVolumeClaim // of the namespace; those that have the names of its are enough
	Deaths    YoungDeaths
}

// StatefulSetPlan is what is done for a stateful set. While something is adopted or released, there is nothing else in
// it: look again afterwards.
type StatefulSetPlan struct {
	Adopt, Release          []*schedulingv1.Pod
	History                 HistoryPlan
	CreateClaims            []*schedulingv1.PersistentVolumeClaim // of the pods of Create, before these
	Create                  []*schedulingv1.Pod                   // with names
	Delete                  []*schedulingv1.Pod                   // in the order to delete them
	DeleteClaims            []*schedulingv1.PersistentVolumeClaim
	OwnClaims, DisownClaims []*schedulingv1.PersistentVolumeClaim // to be deleted with the set, or not any more
	Held                    []*metav1.HeldBack                    // what would be done and waits
	Status                  *schedulingv1.StatefulSetStatus
	Wake                    time.Time  // when to decide again even if nothing changes; zero means never
	States                  spans.Seen // what the next view has seen

	why reasons
}

// Settled reports whether nothing changes hands.
func (p StatefulSetPlan) Settled() bool {
	return len(p.Adopt)+len(p.Release) == 0 && p.History.settled()
}

// Actions returns what is done, in its order, and why.
func (p StatefulSetPlan) Actions() []*metav1.PlannedAction {
	return slices.Concat(transfers(p.Adopt, p.Release), p.History.before(p.why),
		planned("AdoptPersistentVolumeClaim", p.OwnClaims, p.why),
		planned("ReleasePersistentVolumeClaim", p.DisownClaims, p.why),
		planned("CreatePersistentVolumeClaim", p.CreateClaims, p.why),
		planned("CreatePod", p.Create, p.why), planned("DeletePod", p.Delete, p.why),
		planned("DeletePersistentVolumeClaim", p.DeleteClaims, p.why), p.History.after(p.why))
}

// StatefulSet decides which pods of a stateful set are created and deleted. There is at most one pod of an ordinal: as
// long as there is a record of one, also on a node that does not answer, no other is created.
func StatefulSet(v StatefulSetView) StatefulSetPlan {
	c := claimAll(v.Set, matcher(v.Set.GetSpec().GetSelector()), v.Pods, func(p *schedulingv1.Pod) bool {
		_, member := ordinalOf(v.Set, p)
		return member && placement.Active(p)
	})
	revisions := claimRevisions(v.Set, v.Set.GetSpec().GetSelector(), v.Revisions)
	if !c.settled() || !revisions.settled() {
		return StatefulSetPlan{
			Adopt: c.adopt, Release: c.release,
			History: HistoryPlan{Adopt: revisions.adopt, Release: revisions.release},
		}
	}
	s := newStateful(v, c.mine, newHistory(revisions.mine))
	if !object.Deleting(v.Set) {
		s.create()
		s.shrink()
		s.roll()
		s.replaceEnded()
		s.reclaim()
		s.cleanUp()
		s.retainClaims()
	} else {
		s.p.History = HistoryPlan{}
	}
	s.observe()
	s.p.Wake, s.p.States = sooner(s.p.Wake, s.ready.wake), s.ready.clock.Used
	return s.p
}

// ordinalOf returns the ordinal of a pod; false if its name is none of the set's.
func ordinalOf(set *schedulingv1.StatefulSet, pod *schedulingv1.Pod) (int, bool) {
	text, ok := strings.CutPrefix(pod.GetMetadata().GetName(), set.GetMetadata().GetName()+"-")
	n, err := strconv.ParseInt(text, 10, 32)
	return int(n), ok && err == nil && n >= 0 && strconv.FormatInt(n, 10) == text
}

// stateful is a stateful set while a plan is made for it.
type stateful struct {
	v          StatefulSetView
	spec       *schedulingv1.StatefulSetSpec
	start, end int // ordinals that are wanted: from start to end-1
	ordered    bool
	ready      *readiness

	pods    map[int]*schedulingv1.Pod
	claims  map[string]*schedulingv1.PersistentVolumeClaim // by name
	surplus []int                                          // ordinals of pods that are not wanted, the highest first
	history history
	update  *schedulingv1.ControllerRevision // of the present template
	current *schedulingv1.ControllerRevision // the one before; update, if no update is in progress
	most    int                              // how many pods may be unavailable while others are replaced
	first   int                              // the first ordinal that an update replaces
	manual  bool                             // pods are replaced when users delete them

	leaving map[*schedulingv1.Pod]bool
	p       StatefulSetPlan
}

func newStateful(v StatefulSetView, mine []*schedulingv1.Pod, h history) *stateful {
	spec := v.Set.GetSpec()
	s := &stateful{
		v: v, spec: spec, start: int(spec.GetOrdinals().GetStart()), ordered: spec.GetPodManagementPolicy() != "Parallel",
		pods: map[int]*schedulingv1.Pod{}, claims: map[string]*schedulingv1.PersistentVolumeClaim{}, history: h,
		leaving: map[*schedulingv1.Pod]bool{}, p: StatefulSetPlan{why: reasons{}},
	}
	for _, c := range v.Claims {
		s.claims[c.GetMetadata().GetName()] = c
	}
	clock := clockAt(v.Clock, v.Now)
	s.ready = newReadiness(&clock, spec.GetMinReadySeconds(), mine, v.Set.GetStatus().GetAvailableReplicas())
	want := orOne(spec.Replicas)
	s.end = s.start + want
	for _, pod := range mine {
		if n, ok := ordinalOf(v.Set, pod); ok {
			s.pods[n] = pod
			if n < s.start || n >= s.end {
				s.surplus = append(s.surplus, n)
			}
		}
	}
	slices.Sort(s.surplus)
	slices.Reverse(s.surplus)
	s.update, s.p.History = h.present(v.Set, spec.GetTemplate(), v.Set.GetStatus().GetCollisionCount(), s.p.why)
	if s.current = h.named(v.Set.GetStatus().GetCurrentRevision()); s.current == nil ||
		s.current.GetMetadata().GetName() == s.update.GetMetadata().GetName() {
		s.current = s.update
	}
	strategy := spec.GetUpdateStrategy().GetFields()
	rolling := strategy["rollingUpdate"].GetStructValue().GetFields()
	s.most = 1
	if m := rolling["maxUnavailable"]; m != nil {
		s.most = max(1, share(m, want, true))
	}
	s.first = s.start + share(rolling["partition"], want, false)
	s.manual = strategy["type"].GetStringValue() == "OnDelete"
	return s
}

// up reports whether the pod of an ordinal is available.
func (s *stateful) up(n int) bool {
	pod := s.pods[n]
	if pod == nil || !placement.Active(pod) || s.leaving[pod] {
		return false
	}
	return s.ready.up(pod)
}

// updated reports whether a pod is of the present template.
func (s *stateful) updated(pod *schedulingv1.Pod) bool {
	return pod.GetMetadata().GetLabels()[RevisionHashLabel] == s.update.GetMetadata().GetName()
}

func (s *stateful) remove(why string, pod *schedulingv1.Pod) {
	if !object.Deleting(pod) && !s.leaving[pod] {
		s.leaving[pod] = true
		s.p.Delete = append(s.p.Delete, pod)
		note(s.p.why, why, pod)
	}
}

func (s *stateful) hold(action string, on object.Object, why, unblock string) {
	s.p.Held = append(s.p.Held, held(action, on, why, unblock)...)
}

// replaceEnded removes pods that have ended, for their successors. One that ended soon after it was created waits.
func (s *stateful) replaceEnded() {
	for n := s.start; n < s.end; n++ {
		pod := s.pods[n]
		if pod == nil || !placement.Terminated(pod) || object.Deleting(pod) || s.leaving[pod] {
			continue
		}
		if at := tooYoung(s.ready.clock, pod); !at.IsZero() {
			s.hold("DeletePod", pod, "it ended soon after it was created: the next one comes after a pause", pauseEnds(at))
			s.p.Wake = sooner(s.p.Wake, at)
			continue
		}
		s.remove("it has ended, and another one takes its place", pod)
	}
}

// create creates the pods that are missing: all at once, or the first of them once all before it are available.
func (s *stateful) create() {
	missing := s.missing()
	if len(missing) == 0 {
		return
	}
	if at := s.v.Deaths.until(s.v.Now); s.v.Now.Before(at) {
		s.hold("CreatePod", s.v.Set, s.podName(missing[0])+" is missing"+diedYoung, pauseEnds(at))
		s.p.Wake = sooner(s.p.Wake, at)
		return
	}
	missing = missing[:min(len(missing), maxBurst)]
	revisions := s.revisionsFor(missing)
	for _, n := range missing {
		if !s.claim(n, "CreatePod") {
			if s.ordered {
				return
			}
			continue
		}
		pod := s.pod(n, revisions[n])
		s.p.Create = append(s.p.Create, pod)
		why := fmt.Sprintf("%d of %d wanted pods are there, and none of this ordinal", s.wantedThere(), s.end-s.start)
		if revisions[n] != s.update {
			why += "; it is of the former template"
		}
		note(s.p.why, why, pod)
	}
}

// missing returns the ordinals whose pods can be created now, in order, and notes why others wait.
func (s *stateful) missing() []int {
	taken := map[string]bool{}
	for _, pod := range s.v.Pods {
		taken[pod.GetMetadata().GetName()] = true
	}
	var out []int
	for n := s.start; n < s.end; n++ {
		pod, name := s.pods[n], s.podName(n)
		switch {
		case pod == nil && taken[name]:
			s.hold("CreatePod", s.v.Set, "there is a pod "+name+" that does not belong to the stateful set",
				"it is deleted, or its labels match the selector")
		case pod == nil:
			out = append(out, n)
		case object.Deleting(pod):
			s.hold("CreatePod", pod, "the former pod of this ordinal is not gone yet"+s.whereOf(pod),
				"its node reports that it ended, or the node is deleted")
		}
		if !s.ordered || s.up(n) {
			continue
		}
		if pod != nil && n+1 < s.end && s.wantedThere() < s.end-s.start {
			s.hold("CreatePod", s.v.Set, name+" is not available, and pods are created in order", name+" becomes available")
		}
		break
	}
	return out
}

// whereOf names the node of a pod, for people.
func (s *stateful) whereOf(pod *schedulingv1.Pod) string {
	if node := pod.GetSpec().GetNodeName(); node != "" {
		return " on node " + node
	}
	return ""
}

// wantedThere counts the wanted pods that exist.
func (s *stateful) wantedThere() int { return len(s.pods) - len(s.surplus) }

// revisionsFor returns of which revision new pods are. During an update they are of the new one, the highest ordinals
// first, as long as no more pods of it than may be unavailable are: a template whose pods fail takes no further pods.
func (s *stateful) revisionsFor(missing []int) map[int]*schedulingv1.ControllerRevision {
	out := map[int]*schedulingv1.ControllerRevision{}
	free := s.most
	for n := s.start; n < s.end; n++ {
		if pod := s.pods[n]; pod != nil && s.updated(pod) && !s.up(n) {
			free--
		}
	}
	for _, n := range slices.Backward(missing) {
		switch {
		case s.manual || s.current == s.update:
			out[n] = s.update
		case n >= s.first && free > 0:
			out[n] = s.update
			free--
		default:
			out[n] = s.current
		}
	}
	return out
}

func (s *stateful) podName(n int) string {
	return s.v.Set.GetMetadata().GetName() + "-" + strconv.Itoa(n)
}

// pod returns the new pod of an ordinal.
func (s *stateful) pod(n int, of *schedulingv1.ControllerRevision) *schedulingv1.Pod {
	template := s.spec.GetTemplate()
	if of != s.update {
		if t, err := templateOf(of); err == nil {
			template = t
		} else { // only an older version can have written what cannot be read
			of = s.update
		}
	}
	pod := newPod(s.v.Set, template)
	name := s.podName(n)
	m := pod.GetMetadata()
	m.Name, m.GenerateName = name, ""
	m.Labels = label(m.Labels, podNameLabel, name)
	m.Labels[podIndexLabel] = strconv.Itoa(n)
	m.Labels[RevisionHashLabel] = of.GetMetadata().GetName()
	pod.Spec.Hostname, pod.Spec.Subdomain = name, s.spec.GetServiceName()
	s.mountClaims(pod, n)
	return pod
}

// shrink removes pods that are not wanted: all at once, or the highest ordinal once those above it are gone and all
// wanted pods are available.
func (s *stateful) shrink() {
	why := fmt.Sprintf("its ordinal is not one of the %d wanted ones", s.end-s.start)
	for _, n := range s.surplus[:min(len(s.surplus), maxBurst)] {
		pod := s.pods[n]
		if !s.ordered {
			s.remove(why, pod)
			continue
		}
		if object.Deleting(pod) {
			return
		}
		for i := s.start; i < s.end; i++ {
			if !s.up(i) {
				s.hold("DeletePod", pod, why+", but "+s.podName(i)+" is not available, and pods are deleted in order",
					s.podName(i)+" becomes available")
				return
			}
		}
		s.remove(why, pod)
		return
	}
}

// roll removes pods of former templates: first those that are not available, then others, the highest ordinal first,
// as long as no more pods than may be are unavailable.
func (s *stateful) roll() {
	if s.manual {
		return
	}
	free, down := s.most, 0
	for n := s.start; n < s.end; n++ {
		if s.up(n) {
			continue
		}
		down++
		if s.moving(n, down == 1) {
			free--
		}
	}
	var working []*schedulingv1.Pod
	for n := s.end - 1; n >= s.first; n-- {
		pod := s.pods[n]
		switch {
		case pod == nil || object.Deleting(pod) || s.leaving[pod] || s.updated(pod):
		case s.up(n):
			working = append(working, pod)
		case free > 0:
			s.remove(former+" and not available", pod)
			free--
		}
	}
	for _, pod := range working {
		switch {
		case s.ordered && len(s.surplus) > 0:
			s.hold("DeletePod", pod, former+", but pods of ordinals that are not wanted are deleted first", "they are gone")
			return
		case down >= s.most:
			s.hold("DeletePod", pod, fmt.Sprintf("%s, but %d pods are not available, and %d may be", former, down, s.most),
				"the others become available")
			return
		}
		s.remove(former, pod)
		down++
	}
}

// moving reports whether the pod of an ordinal, which is not available, is on its way to be: it was replaced, and is
// awaited. first says that all before it are available.
func (s *stateful) moving(n int, first bool) bool {
	switch pod := s.pods[n]; {
	case pod == nil:
		return first || !s.ordered // in order, others wait
	case object.Deleting(pod), s.leaving[pod]:
		return true
	default:
		return s.updated(pod)
	}
}

// cleanUp forgets the oldest revisions that no pod has.
func (s *stateful) cleanUp() {
	live := map[string]bool{s.current.GetMetadata().GetName(): true, s.update.GetMetadata().GetName(): true}
	for _, pod := range s.pods {
		live[pod.GetMetadata().GetLabels()[RevisionHashLabel]] = true
	}
	s.p.History.Forget = s.history.superfluous(s.spec.RevisionHistoryLimit, live, s.p.why)
}

// observe sets the status as seen before the plan is carried out. An update is complete once all pods that are wanted,
// and no others, are available and of the present template.
func (s *stateful) observe() {
	was := s.v.Set.GetStatus()
	of := map[string]int{}
	ready, up, complete := 0, 0, len(s.surplus) == 0 && s.wantedThere() == s.end-s.start
	for _, n := range slices.Sorted(maps.Keys(s.pods)) {
		pod := s.pods[n]
		is := s.ready.up(pod)
		if placement.Active(pod) {
			of[pod.GetMetadata().GetLabels()[RevisionHashLabel]]++
			if placement.IsReady(pod) {
				ready++
			}
			if is {
				up++
			}
		}
		complete = complete && placement.Active(pod) && is && s.updated(pod)
	}
	current, update := s.current.GetMetadata().GetName(), s.update.GetMetadata().GetName()
	if complete {
		current = update
	}
	s.p.Status = &schedulingv1.StatefulSetStatus{
		ObservedGeneration: proto.Int32(s.v.Set.GetMetadata().GetGeneration()), Replicas: number(len(s.pods)),
		ReadyReplicas: number(ready), AvailableReplicas: number(up),
		CurrentReplicas: number(of[current]), UpdatedReplicas: number(of[update]),
		CurrentRevision: proto.String(current), UpdateRevision: proto.String(update),
		Conditions: was.GetConditions(),
	}
	if n := was.GetCollisionCount(); n > 0 {
		s.p.Status.CollisionCount = &n
	}
}

// Turns reports whether a status names other revisions than that of the set.
func Turns(set *schedulingv1.StatefulSet, s *schedulingv1.StatefulSetStatus) bool {
	return s.GetCurrentRevision() != set.GetStatus().GetCurrentRevision() ||
		s.GetUpdateRevision() != set.GetStatus().GetUpdateRevision()
}

// RevisionCollided returns a stateful set's status that counts one collision more.
func RevisionCollided(s *schedulingv1.StatefulSetStatus) *schedulingv1.StatefulSetStatus {
	out := proto.CloneOf(s)
	if out == nil {
		out = &schedulingv1.StatefulSetStatus{}
	}
	out.CollisionCount = proto.Int32(s.GetCollisionCount() + 1)
	return out
}
