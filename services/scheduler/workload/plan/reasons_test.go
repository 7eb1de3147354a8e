package plan_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

// TestPlansSayWhatTheyDoAndWhy has what people read: an action and its object, with the number of pods or the node
// where there is one, and the beginning of the reason; what waits begins with "held".
func TestPlansSayWhatTheyDoAndWhy(t *testing.T) {
	replicas := func(want int, pods ...*schedulingv1.Pod) ([]*metav1.PlannedAction, []*metav1.HeldBack) {
		v := plan.ReplicaSetView(replicaSet(want), start)
		v.Pods = pods
		p := plan.Replicas(v)
		return p.Actions(), p.Held
	}
	owner := replicaSet(1)
	refused := func(p *schedulingv1.Pod) { p.Status.Phase, p.Status.Conditions = proto.String("Failed"), nil }
	for name, tc := range map[string]struct {
		plan func() ([]*metav1.PlannedAction, []*metav1.HeldBack)
		want []string
	}{
		"a set that lacks a pod": {
			func() ([]*metav1.PlannedAction, []*metav1.HeldBack) { return replicas(2, pod("a", owner)) },
			[]string{"CreatePod web-: 1 of 2 wanted pods are there"},
		},
		"a set with too many": {
			func() ([]*metav1.PlannedAction, []*metav1.HeldBack) {
				return replicas(1, pod("a", owner), pod("b", owner, unready))
			},
			[]string{"DeletePod b: 2 of 1 wanted pods are there, and this one is missed least: it is not ready"},
		},
		"a set with a pod without a controller": {
			func() ([]*metav1.PlannedAction, []*metav1.HeldBack) { return replicas(1, pod("a", nil)) },
			[]string{"AdoptPod a: it matches the selector, and no controller manages it"},
		},
		"a set whose pods no node takes": {
			func() ([]*metav1.PlannedAction, []*metav1.HeldBack) {
				return replicas(1, pod("a", owner, refused, born(start)))
			},
			[]string{"held CreatePod web: 0 of 1 wanted pods are there, but nodes did not take the last ones"},
		},
		"a daemon set": {
			func() ([]*metav1.PlannedAction, []*metav1.HeldBack) {
				set := &schedulingv1.DaemonSet{
					Metadata: &metav1.ObjectMeta{Name: "watch", Namespace: "default", Uid: "ds"},
					Spec:     &schedulingv1.DaemonSetSpec{Selector: selector(), Template: template("v1")},
				}
				p := plan.DaemonSet(plan.DaemonSetView{Now: start, Set: set, Nodes: []*nodev1.Node{
					node("a"), node("b"),
					node("c", taint("x", "NoExecute")),
				}, Pods: []*schedulingv1.Pod{
					pod("old", set, on("b")), pod("out", set, on("c")),
				}})
				return p.Actions(), p.Held
			},
			[]string{
				"CreateControllerRevision watch-cb64b5cc4: no revision has the present template",
				"CreatePod watch- on a: the node fits, and has none", "DeletePod out: its node does not fit any more",
				"held DeletePod old: it is of a former template, but as many nodes are without one",
			},
		},
		"a job that is suspended": {
			func() ([]*metav1.PlannedAction, []*metav1.HeldBack) {
				j := job(func(j *schedulingv1.Job) { j.Spec.Suspend = proto.Bool(true) })
				p := plan.Job(plan.JobView{Now: start, Job: j, Pods: []*schedulingv1.Pod{pod("a", j)}})
				return p.Actions(), p.Held
			},
			[]string{"DeletePod a: the job is suspended"},
		},
		"a job whose pod failed": {
			func() ([]*metav1.PlannedAction, []*metav1.HeldBack) {
				j := job()
				p := plan.Job(plan.JobView{Now: start, Job: j, Pods: []*schedulingv1.Pod{
					pod("a", j, ended("Failed", 0), born(start)),
				}})
				return p.Actions(), p.Held
			},
			[]string{"held CreatePod sum: 0 of 2 pods that may run now are there, but the last one failed"},
		},
		"a job that is over": {
			func() ([]*metav1.PlannedAction, []*metav1.HeldBack) {
				j := job(func(j *schedulingv1.Job) {
					j.Spec.TtlSecondsAfterFinished = proto.Int32(10)
					j.Status.Conditions = []*metav1.Condition{
						{Type: "Complete", Status: "True", LastTransitionTime: at(start.Add(-time.Minute))},
					}
				})
				p := plan.Job(plan.JobView{Now: start, Job: j})
				return p.Actions(), p.Held
			},
			[]string{"DeleteJob sum: it ended more than 10 s ago"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			actions, held := tc.plan()
			agree(t, tc.want, actions, held)
		})
	}
}

// agree compares what a plan says with the beginnings of lines.
func agree(t *testing.T, want []string, actions []*metav1.PlannedAction, held []*metav1.HeldBack) {
	t.Helper()
	var got []string
	for _, a := range actions {
		line := a.GetAction() + " " + a.GetObject().GetName() + a.GetDetails()["generateName"]
		if n := a.GetDetails()["node"]; n != "" {
			line += " on " + n
		}
		if n := a.GetDetails()["replicas"]; n != "" {
			line += " to " + n
		}
		got = append(got, line+": "+a.GetReason())
	}
	for _, h := range held {
		got = append(got, "held "+h.GetAction()+" "+h.GetObject().GetName()+": "+h.GetReason())
	}
	for i, line := range got {
		if i < len(want) && strings.HasPrefix(line, want[i]) {
			got[i] = want[i]
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the plan says (-want +got):\n%s", d)
	}
}

func TestARolloutSaysWhatItDoesAndWhy(t *testing.T) {
	w := &world{d: deployment(2, "v1", 1, 0), now: start}
	hashed := func(set int) string { return w.sets[set].GetMetadata().GetName() }
	says := func(want ...string) {
		t.Helper()
		p := w.step()
		agree(t, want, p.Actions(), p.Held)
	}
	p := w.step()
	agree(t, []string{"CreateReplicaSet " + hashed(0) + " to 2: no replica set has the present template"}, p.Actions(),
		p.Held)
	says("held UpdateReplicaSet " + hashed(0) +
		": 0 of its 2 pods are available, 2 pods of the deployment must be, and 3 may be there at once")
	w.sets[0] = settle(w.sets[0], 2)
	says()
	w.d.Spec.Template = template("v2")
	p = w.step()
	agree(t, []string{"CreateReplicaSet " + hashed(1) + " to 1: no replica set has the present template"}, p.Actions(),
		p.Held)
	w.sets[1] = settle(w.sets[1], 1)
	says("UpdateReplicaSet " + hashed(0) + " to 1: it is of a former template, and 2 pods stay available without these")
	w.d.Spec.Paused = proto.Bool(true)
	says("held UpdateReplicaSet web: the deployment is paused")
	w.d.Spec.Paused, w.d.Spec.Replicas = proto.Bool(false), proto.Int32(4)
	if p := w.step(); len(p.Actions()) == 0 || !strings.Contains(p.Actions()[0].GetReason(), "was given the size 4") {
		t.Errorf("another size: %v", p.Actions())
	}
}
