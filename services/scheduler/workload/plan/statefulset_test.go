package plan_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

func statefulSet(replicas int32, image string, changes ...func(*schedulingv1.StatefulSet)) *schedulingv1.StatefulSet {
	s := &schedulingv1.StatefulSet{
		Metadata: &metav1.ObjectMeta{Name: "web", Namespace: "default", Uid: "web", Generation: 1},
		Spec: &schedulingv1.StatefulSetSpec{
			Replicas: &replicas, Selector: selector(), Template: template(image), ServiceName: "peers",
		},
	}
	for _, f := range changes {
		f(s)
	}
	return s
}

func parallel(s *schedulingv1.StatefulSet) { s.Spec.PodManagementPolicy = "Parallel" }

func strategy(key string, value any) func(*schedulingv1.StatefulSet) {
	return func(s *schedulingv1.StatefulSet) {
		if s.Spec.UpdateStrategy == nil {
			s.Spec.UpdateStrategy = &structpb.Struct{Fields: map[string]*structpb.Value{}}
		}
		s.Spec.UpdateStrategy.Fields[key] = amount(value)
	}
}

func rolling(key string, value any) func(*schedulingv1.StatefulSet) {
	return func(s *schedulingv1.StatefulSet) {
		was := s.Spec.GetUpdateStrategy().GetFields()["rollingUpdate"].GetStructValue().AsMap()
		if was == nil {
			was = map[string]any{}
		}
		was[key] = value
		strategy("rollingUpdate", was)(s)
	}
}

// revisionsAfter returns revisions as a plan leaves them.
func revisionsAfter(list []*schedulingv1.ControllerRevision, p plan.HistoryPlan) []*schedulingv1.ControllerRevision {
	gone := map[string]bool{}
	for _, r := range append(p.Forget[:len(p.Forget):len(p.Forget)], p.Renumber) {
		gone[r.GetMetadata().GetName()] = true
	}
	list = slices.DeleteFunc(slices.Clone(list), func(r *schedulingv1.ControllerRevision) bool {
		return gone[r.GetMetadata().GetName()]
	})
	for _, r := range []*schedulingv1.ControllerRevision{p.Record, p.Renumber} {
		if r != nil {
			list = append(list, r)
		}
	}
	return list
}

// rolled is a stateful set of three pods whose template changed from v1 to v2, and its revisions.
func rolled(t *testing.T, changes ...func(*schedulingv1.StatefulSet)) (*schedulingv1.StatefulSet,
	[]*schedulingv1.ControllerRevision,
) {
	t.Helper()
	s := statefulSet(3, "v1", changes...)
	p := plan.StatefulSet(plan.StatefulSetView{Now: start, Set: s})
	revisions := revisionsAfter(nil, p.History)
	s.Status = p.Status
	s.Spec.Template = template("v2")
	next := plan.StatefulSet(plan.StatefulSetView{Now: start, Set: s, Revisions: revisions})
	return s, revisionsAfter(revisions, next.History)
}

// ofRevision has a pod be of the n-th revision.
func ofRevision(revisions []*schedulingv1.ControllerRevision, n int) change {
	return labelled(plan.RevisionHashLabel, revisions[n-1].GetMetadata().GetName())
}

func TestStatefulSet(t *testing.T) {
	type pods func(s *schedulingv1.StatefulSet, v1, v2 change) []*schedulingv1.Pod
	for _, c := range []struct {
		name   string
		change []func(*schedulingv1.StatefulSet)
		pods   pods
		create []string // names and images
		remove []string
		held   []string // actions and reasons
		wake   time.Duration
	}{
		{
			name:   "the first pod comes before the second",
			pods:   func(*schedulingv1.StatefulSet, change, change) []*schedulingv1.Pod { return nil },
			create: []string{"web-0 v2"},
		},
		{
			name: "a pod that is not available holds back the next one",
			pods: func(s *schedulingv1.StatefulSet, v1, _ change) []*schedulingv1.Pod {
				return []*schedulingv1.Pod{pod("web-0", s, v1), pod("web-1", s, v1, unready)}
			},
			remove: []string{"web-1"},
			held: []string{
				"CreatePod: web-1 is not available, and pods are created in order",
				"DeletePod: it is of a former template, but 2 pods are not available, and 1 may be",
			},
		},
		{
			name: "in parallel all come at once", change: []func(*schedulingv1.StatefulSet){parallel},
			pods:   func(*schedulingv1.StatefulSet, change, change) []*schedulingv1.Pod { return nil },
			create: []string{"web-0 v1", "web-1 v1", "web-2 v2"},
		},
		{
			name: "the pod of a lost node is not replaced before its record is gone",
			pods: func(s *schedulingv1.StatefulSet, v1, _ change) []*schedulingv1.Pod {
				return []*schedulingv1.Pod{pod("web-0", s, v1, leaving, on("b")), pod("web-1", s, v1), pod("web-2", s, v1)}
			},
			held: []string{
				"CreatePod: the former pod of this ordinal is not gone yet on node b",
				"DeletePod: it is of a former template, but 1 pods are not available, and 1 may be",
			},
		},
		{
			name: "the highest ordinal is updated first",
			pods: func(s *schedulingv1.StatefulSet, v1, _ change) []*schedulingv1.Pod {
				return []*schedulingv1.Pod{pod("web-0", s, v1), pod("web-1", s, v1), pod("web-2", s, v1)}
			},
			remove: []string{"web-2"},
			held:   []string{"DeletePod: it is of a former template, but 1 pods are not available, and 1 may be"},
		},
		{
			name:   "two at once, where two may be unavailable",
			change: []func(*schedulingv1.StatefulSet){rolling("maxUnavailable", "50%")},
			pods: func(s *schedulingv1.StatefulSet, v1, _ change) []*schedulingv1.Pod {
				return []*schedulingv1.Pod{pod("web-0", s, v1), pod("web-1", s, v1), pod("web-2", s, v1)}
			},
			remove: []string{"web-2", "web-1"},
			held:   []string{"DeletePod: it is of a former template, but 2 pods are not available, and 2 may be"},
		},
		{
			name:   "a partition keeps the lower ordinals as they are, also when they are created again",
			change: []func(*schedulingv1.StatefulSet){rolling("partition", 2.0)},
			pods: func(s *schedulingv1.StatefulSet, v1, v2 change) []*schedulingv1.Pod {
				return []*schedulingv1.Pod{pod("web-1", s, v1), pod("web-2", s, v2)}
			},
			create: []string{"web-0 v1"},
		},
		{
			name: "while a pod of the new template is not available, others are created of the former one",
			pods: func(s *schedulingv1.StatefulSet, v1, v2 change) []*schedulingv1.Pod {
				return []*schedulingv1.Pod{pod("web-1", s, v1), pod("web-2", s, v2, unready)}
			},
			create: []string{"web-0 v1"},
			held:   []string{"DeletePod: it is of a former template, but 2 pods are not available, and 1 may be"},
		},
		{
			name: "otherwise they are of the new one",
			pods: func(s *schedulingv1.StatefulSet, v1, v2 change) []*schedulingv1.Pod {
				return []*schedulingv1.Pod{pod("web-1", s, v1), pod("web-2", s, v2)}
			},
			create: []string{"web-0 v2"},
			held:   []string{"DeletePod: it is of a former template, but 1 pods are not available, and 1 may be"},
		},
		{
			name: "a pod of the former template that does not work is updated first",
			pods: func(s *schedulingv1.StatefulSet, v1, _ change) []*schedulingv1.Pod {
				return []*schedulingv1.Pod{pod("web-0", s, v1, unready), pod("web-1", s, v1), pod("web-2", s, v1)}
			},
			remove: []string{"web-0"},
			held:   []string{"DeletePod: it is of a former template, but 1 pods are not available, and 1 may be"},
		},
		{
			name: "it also is while a higher ordinal waits for it",
			pods: func(s *schedulingv1.StatefulSet, v1, _ change) []*schedulingv1.Pod {
				return []*schedulingv1.Pod{pod("web-0", s, v1, unready), pod("web-1", s, v1)}
			},
			remove: []string{"web-0"},
			held: []string{
				"CreatePod: web-0 is not available, and pods are created in order",
				"DeletePod: it is of a former template, but 2 pods are not available, and 1 may be",
			},
		},
		{
			name:   "OnDelete leaves that to users, and creates pods of the new template",
			change: []func(*schedulingv1.StatefulSet){strategy("type", "OnDelete")},
			pods: func(s *schedulingv1.StatefulSet, v1, _ change) []*schedulingv1.Pod {
				return []*schedulingv1.Pod{pod("web-0", s, v1), pod("web-1", s, v1)}
			},
			create: []string{"web-2 v2"},
		},
		{
			name: "pods beyond the wanted ones go from the highest, one at a time",
			pods: func(s *schedulingv1.StatefulSet, _, v2 change) []*schedulingv1.Pod {
				return []*schedulingv1.Pod{
					pod("web-0", s, v2), pod("web-1", s, v2), pod("web-2", s, v2), pod("web-3", s, v2), pod("web-10", s, v2),
				}
			},
			remove: []string{"web-10"},
		},
		{
			name: "and only while the wanted ones are available",
			pods: func(s *schedulingv1.StatefulSet, _, v2 change) []*schedulingv1.Pod {
				return []*schedulingv1.Pod{
					pod("web-0", s, v2), pod("web-1", s, v2, unready), pod("web-2", s, v2), pod("web-3", s, v2),
				}
			},
			held: []string{
				"DeletePod: its ordinal is not one of the 3 wanted ones, but web-1 is not available, and pods are deleted in order",
			},
		},
		{
			name: "in parallel they go at once", change: []func(*schedulingv1.StatefulSet){parallel},
			pods: func(s *schedulingv1.StatefulSet, _, v2 change) []*schedulingv1.Pod {
				return []*schedulingv1.Pod{
					pod("web-0", s, v2), pod("web-1", s, v2, unready), pod("web-2", s, v2), pod("web-3", s, v2), pod("web-4", s, v2),
				}
			},
			remove: []string{"web-4", "web-3"},
		},
		{
			name: "ordinals begin where the set says",
			change: []func(*schedulingv1.StatefulSet){
				parallel, func(s *schedulingv1.StatefulSet) { s.Spec.Ordinals = &schedulingv1.StatefulSetOrdinals{Start: 5} },
			},
			pods: func(s *schedulingv1.StatefulSet, _, v2 change) []*schedulingv1.Pod {
				return []*schedulingv1.Pod{pod("web-4", s, v2), pod("web-5", s, v2), pod("web-6", s, v2)}
			},
			create: []string{"web-7 v2"}, remove: []string{"web-4"},
		},
		{
			name: "a pod that ended is replaced",
			pods: func(s *schedulingv1.StatefulSet, _, v2 change) []*schedulingv1.Pod {
				return []*schedulingv1.Pod{pod("web-0", s, v2), pod("web-1", s, v2, phase("Succeeded")), pod("web-2", s, v2)}
			},
			remove: []string{"web-1"},
		},
		{
			name: "after a pause, if it ended soon", wake: 20 * time.Second,
			pods: func(s *schedulingv1.StatefulSet, _, v2 change) []*schedulingv1.Pod {
				return []*schedulingv1.Pod{
					pod("web-0", s, v2), pod("web-1", s, v2, phase("Failed"), born(start.Add(-10*time.Second))), pod("web-2", s, v2),
				}
			},
			held: []string{"DeletePod: it ended soon after it was created: the next one comes after a pause"},
		},
		{
			name: "another's pod of the name is in the way",
			pods: func(s *schedulingv1.StatefulSet, _, v2 change) []*schedulingv1.Pod {
				return []*schedulingv1.Pod{pod("web-0", s, v2), pod("web-1", nil, labelled("app", "other")), pod("web-2", s, v2)}
			},
			held: []string{"CreatePod: there is a pod web-1 that does not belong to the stateful set"},
		},
		{
			name: "a pod becomes available after minReadySeconds", wake: 50 * time.Second,
			change: []func(*schedulingv1.StatefulSet){
				func(s *schedulingv1.StatefulSet) { s.Spec.MinReadySeconds = proto.Int32(60) },
			},
			pods: func(s *schedulingv1.StatefulSet, v1, v2 change) []*schedulingv1.Pod {
				return []*schedulingv1.Pod{
					pod("web-0", s, v1), pod("web-1", s, v1), pod("web-2", s, v2, ready(start.Add(-10*time.Second))),
				}
			},
			held: []string{"DeletePod: it is of a former template, but 1 pods are not available, and 1 may be"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, revisions := rolled(t, c.change...)
			v := plan.StatefulSetView{Now: start, Set: s, Revisions: revisions}
			v.Pods = c.pods(s, ofRevision(revisions, 1), ofRevision(revisions, 2))
			p := plan.StatefulSet(v)
			var create, held []string
			for _, pod := range p.Create {
				create = append(create, pod.GetMetadata().GetName()+" "+pod.GetSpec().GetContainers()[0].GetImage())
			}
			for _, h := range p.Held {
				held = append(held, h.GetAction()+": "+h.GetReason())
			}
			if diff := cmp.Diff([][]string{c.create, c.remove, c.held}, [][]string{create, names(p.Delete), held}); diff != "" {
				t.Errorf("creates, removes and holds back, want (-) and got (+):\n%s", diff)
			}
			if c.wake == 0 && !p.Wake.IsZero() || c.wake > 0 && p.Wake.Sub(start) != c.wake {
				t.Errorf("decides again at %v, want after %v", p.Wake, c.wake)
			}
		})
	}
}

func TestAStatefulPodHasItsIdentity(t *testing.T) {
	s := statefulSet(1, "v1")
	p := plan.StatefulSet(plan.StatefulSetView{Now: start, Set: s})
	if len(p.Create) != 1 {
		t.Fatalf("creates %d pods", len(p.Create))
	}
	got := p.Create[0]
	want := map[string]string{
		"app": "web", "statefulset.kubernetes.io/pod-name": "web-0", "apps.kubernetes.io/pod-index": "0",
		"controller-revision-hash": p.History.Record.GetMetadata().GetName(),
	}
	if diff := cmp.Diff(want, got.GetMetadata().GetLabels()); diff != "" {
		t.Errorf("labels, want (-) and got (+):\n%s", diff)
	}
	if got.GetSpec().GetHostname() != "web-0" || got.GetSpec().GetSubdomain() != "peers" ||
		object.ControllerOf(got).GetUid() != "web" || got.GetMetadata().GetGenerateName() != "" {
		t.Errorf("the pod is %v", got)
	}
}

func TestRevisionsOfAStatefulSet(t *testing.T) {
	s, revisions := rolled(t)
	s.Spec.RevisionHistoryLimit = proto.Int32(1)
	view := func() plan.StatefulSetPlan {
		return plan.StatefulSet(plan.StatefulSetView{Now: start, Set: s, Revisions: revisions})
	}
	restored := func(n int32) string {
		template, err := plan.Restore(s, revisions, n)
		if err != nil {
			return err.Error()
		}
		return template.GetSpec().GetContainers()[0].GetImage()
	}
	if got := restored(0); got != "v1" {
		t.Errorf("the one before is %s, want v1", got)
	}
	s.Spec.Template = template("v1")
	p := view()
	if p.History.Record != nil || p.History.Renumber.GetRevision() != 3 ||
		p.Status.GetUpdateRevision() != revisions[0].Metadata.Name {
		t.Fatalf("going back records %v, renumbers %v", p.History.Record, p.History.Renumber)
	}
	revisions = revisionsAfter(revisions, p.History)
	for _, image := range []string{"v3", "v4"} {
		s.Spec.Template = template(image)
		p = view()
		revisions = revisionsAfter(revisions, p.History)
	}
	if got := restored(4); got != "v3" {
		t.Errorf("revision 4 is %s, want v3", got)
	}
	if got, want := restored(9),
		`statefulset "web": unable to find revision 9 in its history: no such revision`; got != want {
		t.Errorf("revision 9: %s, want %s", got, want)
	}
	if len(p.History.Forget) != 1 || p.History.Forget[0].GetRevision() != 2 {
		t.Errorf("forgets %v, want v2, the oldest that is not in use", p.History.Forget)
	}
	taken := proto.CloneOf(p.History.Record)
	if plan.RevisionTaken(s, p.History.Record, taken) {
		t.Error("a revision of the same set and template counts as another")
	}
	taken.Data = revisions[0].Data
	if !plan.RevisionTaken(s, p.History.Record, taken) {
		t.Error("a revision of another template does not count as another")
	}
	s.Status = plan.RevisionCollided(s.Status)
	if again := view().History.Record; again != nil && again.Metadata.Name == p.History.Record.Metadata.Name {
		t.Errorf("after a collision the name is still %s", again.Metadata.Name)
	}
}

// TestStatefulSetHoldsItsPromises has pods come, go, fail and hang in a random order, while templates and sizes change.
func TestStatefulSetHoldsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := statefulSet(rapid.Int32Range(0, 5).Draw(t, "replicas"), "v1")
		if rapid.Bool().Draw(t, "parallel") {
			parallel(s)
		}
		most := rapid.IntRange(1, 3).Draw(t, "maxUnavailable")
		rolling("maxUnavailable", float64(most))(s)
		w := &statefulWorld{set: s, pods: map[string]*schedulingv1.Pod{}, now: start, most: most}
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			w.happens(t)
			w.decide(t)
		}
		w.settle(t)
	})
}

// statefulWorld is a stateful set and its pods.
type statefulWorld struct {
	set       *schedulingv1.StatefulSet
	revisions []*schedulingv1.ControllerRevision
	pods      map[string]*schedulingv1.Pod
	now       time.Time
	most      int
	made      int
}

func (w *statefulWorld) up(n int) bool {
	p := w.pods[fmt.Sprintf("web-%d", n)]
	return p != nil && placement.Active(p) && placement.IsReady(p)
}

func (w *statefulWorld) happens(t *rapid.T) {
	w.now = w.now.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "seconds")) * time.Second)
	name := fmt.Sprintf("web-%d", rapid.IntRange(0, 5).Draw(t, "pod"))
	p := w.pods[name]
	switch what := rapid.SampledFrom([]string{
		"ready", "ready", "unready", "gone", "gone", "deleted", "failed", "template",
		"replicas", "start",
	}).Draw(t, "what"); {
	case what == "template":
		w.set.Spec.Template = template(rapid.SampledFrom([]string{"v1", "v2", "v3"}).Draw(t, "image"))
	case what == "replicas":
		w.set.Spec.Replicas = proto.Int32(rapid.Int32Range(0, 5).Draw(t, "replicas"))
	case p == nil:
	case what == "ready" && placement.Active(p):
		ready(w.now)(p)
	case what == "unready":
		unready(p)
	case what == "gone" && object.Deleting(p):
		delete(w.pods, name)
	case what == "deleted":
		leaving(p)
	case what == "failed":
		phase("Failed")(p)
	}
}

func (w *statefulWorld) decide(t *rapid.T) plan.StatefulSetPlan {
	before := proto.CloneOf(w.set)
	p := plan.StatefulSet(plan.StatefulSetView{
		Now: w.now, Set: w.set, Revisions: w.revisions,
		Pods: slices.SortedFunc(maps.Values(w.pods), func(a, b *schedulingv1.Pod) int {
			return len(a.Metadata.Name) - len(b.Metadata.Name)
		}),
	})
	if !proto.Equal(before, w.set) {
		t.Fatal("the view was modified")
	}
	ordered, want := w.set.GetSpec().GetPodManagementPolicy() != "Parallel", int(w.set.GetSpec().GetReplicas())
	up := 0
	for n := range want {
		if w.up(n) {
			up++
		}
	}
	for _, pod := range p.Create {
		name := pod.GetMetadata().GetName()
		if w.pods[name] != nil {
			t.Fatalf("creates %s, which exists", name)
		}
		for n := 0; ordered && fmt.Sprintf("web-%d", n) != name; n++ {
			if !w.up(n) {
				t.Fatalf("creates %s, although web-%d is not available", name, n)
			}
		}
	}
	if ordered && len(p.Create) > 1 {
		t.Fatalf("creates %v at once", names(p.Create))
	}
	stop := 0
	for _, pod := range p.Delete {
		for n := range want {
			if pod.GetMetadata().GetName() == fmt.Sprintf("web-%d", n) && w.up(n) {
				stop++
			}
		}
	}
	if stop > 0 && want-up+stop > w.most {
		t.Fatalf("stops %v: %d of %d pods would be available, and %d may be missing", names(p.Delete), up-stop, want, w.most)
	}
	w.revisions, w.set.Status = revisionsAfter(w.revisions, p.History), p.Status
	for _, pod := range p.Create {
		w.made++
		pod.Metadata.Uid, pod.Metadata.CreationTimestamp = fmt.Sprint(w.made), at(w.now)
		pod.Status = &schedulingv1.PodStatus{Phase: proto.String("Running")}
		w.pods[pod.Metadata.Name] = pod
	}
	for _, pod := range p.Delete {
		leaving(pod)
	}
	return p
}

// settle has all pods work and go as they are asked to: the update must complete.
func (w *statefulWorld) settle(t *rapid.T) {
	for range 200 {
		w.now = w.now.Add(40 * time.Second)
		for name, p := range w.pods {
			switch {
			case object.Deleting(p):
				delete(w.pods, name)
			case placement.Active(p):
				ready(w.now)(p)
			}
		}
		p := w.decide(t)
		st := p.Status
		if len(p.Actions()) == 0 && st.GetCurrentRevision() == st.GetUpdateRevision() &&
			st.GetUpdatedReplicas() == w.set.GetSpec().GetReplicas() && st.GetReplicas() == st.GetUpdatedReplicas() {
			return
		}
	}
	t.Fatalf("never complete: %v", w.set.GetStatus())
}
