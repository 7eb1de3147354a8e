package harness

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/audit"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func aPod(name, node string, change func(*schedulingv1.Pod)) *schedulingv1.Pod {
	p := &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{Name: name, Namespace: "default", Uid: "uid-" + name, Labels: map[string]string{
			"app": "hello",
		}},
		Spec:   &schedulingv1.PodSpec{NodeName: node},
		Status: &schedulingv1.PodStatus{Conditions: []*schedulingv1.PodCondition{{Type: "Ready", Status: "True"}}},
	}
	if change != nil {
		change(p)
	}
	return p
}

// leavingAt has a pod deleted at a time, with ten seconds to end.
func leavingAt(at time.Time) func(*schedulingv1.Pod) {
	return func(p *schedulingv1.Pod) {
		p.Metadata.DeletionTimestamp, p.Metadata.DeletionGracePeriodSeconds = timestamppb.New(at.Add(10*time.Second)),
			proto.Int32(10)
	}
}

func aNode(name string, change func(*nodev1.Node)) *nodev1.Node {
	n := &nodev1.Node{
		Metadata: &metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"node-role.kubernetes.io/worker": ""}, Annotations: map[string]string{
				desiredConfig: "rendered-1",
			},
		},
		Spec: &nodev1.NodeSpec{},
		Status: &nodev1.NodeStatus{
			Conditions: []*nodev1.NodeCondition{{Type: "Ready", Status: "True"}}, NodeInfo: &nodev1.NodeSystemInfo{
				BootId: "boot-1",
			},
		},
	}
	if change != nil {
		change(n)
	}
	return n
}

func cordoned(n *nodev1.Node) { n.Spec.Unschedulable = proto.Bool(true) }

func tainted(n *nodev1.Node) {
	n.Spec.Taints = []*nodev1.Taint{{Key: "k", Effect: "NoExecute", TimeAdded: timestamppb.New(noon)}}
}

func rebooted(n *nodev1.Node) { n.Status.NodeInfo.BootId = "boot-2" }

func bearsTen(p *schedulingv1.Pod) {
	p.Spec.Tolerations = []*schedulingv1.Toleration{{Key: "k", Operator: "Exists", TolerationSeconds: proto.Int32(10)}}
}

func both(a, b func(*schedulingv1.Pod)) func(*schedulingv1.Pod) {
	return func(p *schedulingv1.Pod) {
		a(p)
		b(p)
	}
}

func aVersion(entries ...*updatev1.UpdateHistory) *updatev1.ClusterVersion {
	v := &updatev1.ClusterVersion{Status: &updatev1.ClusterVersionStatus{History: entries}}
	if len(entries) > 0 {
		v.Status.Desired = &updatev1.ReleaseReference{Version: entries[0].Version}
	}
	return v
}

func entry(version, state string) *updatev1.UpdateHistory {
	return &updatev1.UpdateHistory{Version: proto.String(version), State: state, StartedTime: timestamppb.New(noon)}
}

func operatorAt(name, version string) *updatev1.ClusterOperator {
	return &updatev1.ClusterOperator{
		Metadata: &metav1.ObjectMeta{Name: name},
		Status:   &updatev1.ClusterOperatorStatus{Versions: []*updatev1.OperandVersion{{Name: "operator", Version: version}}},
	}
}

func TestABrokenPromiseIsSeenInARecord(t *testing.T) {
	byEvictor := []audit.Record{{User: evictor, Method: podDelete, Namespace: "default", Name: "a"}}
	reconfigured := func(n *nodev1.Node) { n.Metadata.Annotations[desiredConfig] = "rendered-2" }
	for what, c := range map[string]struct {
		audit []audit.Record
		steps []Object
		want  string // empty: nothing is broken
	}{
		"a pod is bound":                 {nil, []Object{aPod("a", "", nil), aPod("a", "n", nil)}, ""},
		"a pod is bound to another node": {nil, []Object{aPod("a", "n", nil), aPod("a", "m", nil)}, "bound to n and then"},
		"one of three pods leaves": {nil, []Object{
			aPod("a", "n", nil), aPod("b", "n", nil), aPod("c", "n", nil),
			aPod("a", "n", leavingAt(noon)),
		}, ""},
		"one of two pods leaves": {
			nil,
			[]Object{aPod("a", "n", nil), aPod("b", "n", nil), aPod("a", "n", leavingAt(noon))},
			"only 1 like it were ready",
		},
		"a taint evicts in time": {byEvictor, []Object{
			aNode("n", tainted), aPod("a", "n", bearsTen),
			aPod("a", "n", both(bearsTen, leavingAt(noon.Add(10*time.Second)))),
		}, ""},
		"a taint evicts, and the audit log names no caller": {
			nil, []Object{
				aNode("n", tainted), aPod("a", "n", bearsTen),
				aPod("a", "n", both(bearsTen, leavingAt(noon.Add(10*time.Second)))),
			}, "",
		},
		"a taint evicts too early": {byEvictor, []Object{
			aNode("n", tainted), aPod("a", "n", bearsTen),
			aPod("a", "n", both(bearsTen, leavingAt(noon.Add(9*time.Second)))),
		}, "its time was"},
		"a pod is evicted for no taint": {
			byEvictor, []Object{aNode("n", nil), aPod("a", "n", nil), aPod("a", "n", leavingAt(noon))}, "had none",
		},
		"one node is cordoned": {nil, []Object{aNode("n", nil), aNode("m", nil), aNode("n", cordoned)}, ""},
		"two nodes are cordoned": {nil, []Object{
			aNode("n", nil), aNode("m", nil), aNode("n", cordoned),
			aNode("m", cordoned),
		}, "unavailable at once"},
		"a drained machine boots": {
			nil, []Object{aNode("n", nil), aNode("n", func(n *nodev1.Node) { cordoned(n); rebooted(n) })}, "",
		},
		"a machine boots and is not held": {nil, []Object{aNode("n", nil), aNode("n", rebooted)}, "nothing kept pods"},
		"a machine boots with a pod": {
			nil,
			[]Object{aNode("n", nil), aPod("a", "n", nil), aNode("n", func(n *nodev1.Node) { cordoned(n); rebooted(n) })},
			"before pod a had left",
		},
		"nodes change after the operators": {nil, []Object{
			aVersion(entry("2", "Partial")), operatorAt("ledger", "2"),
			aNode("n", nil), aNode("n", reconfigured),
		}, ""},
		"nodes change before the operators": {nil, []Object{
			aVersion(entry("2", "Partial")), operatorAt("ledger", "1"),
			aNode("n", nil), aNode("n", reconfigured),
		}, "before operator ledger"},
		"the history grows": {
			nil, []Object{
				aVersion(entry("1", "Completed")), aVersion(entry("2", "Partial"), entry("1", "Completed")),
				aVersion(entry("2", "Completed"), entry("1", "Completed")),
			}, "",
		},
		"the history loses an entry": {nil, []Object{
			aVersion(entry("2", "Completed"), entry("1", "Completed")),
			aVersion(entry("2", "Completed")),
		}, "lost entries"},
		"the history changes": {
			nil, []Object{aVersion(entry("1", "Completed")), aVersion(entry("2", "Completed"))}, "changed",
		},
	} {
		var steps []Step
		for i, o := range c.steps {
			steps = append(steps, Step{Revision: int64(i), Object: o})
		}
		var promises []Promise
		if strings.HasSuffix(what, "leaves") {
			promises = []Promise{{Namespace: "default", Labels: map[string]string{"app": "hello"}, Ready: 2}}
		}
		got := Broken(steps, c.audit, promises)
		if c.want == "" && len(got) > 0 || c.want != "" &&
			!slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, c.want) }) {
			t.Errorf("%s: broken is %q, want %q", what, got, c.want)
		}
	}
}

func TestAContainerThatRunsTwiceIsSeen(t *testing.T) {
	list := []Process{{Name: podPrefix + "m/u-1.web", PID: 1}, {Name: podPrefix + "n/u-2.web", PID: 2}}
	if got := runTwice(list); len(got) > 0 {
		t.Errorf("two pods are taken for one: %q", got)
	}
	if got := fmt.Sprint(runTwice(append(list, Process{Name: podPrefix + "n/u-1.web", PID: 3}))); !strings.Contains(got,
		"u-1.web") {
		t.Errorf("a container with two processes is not seen: %q", got)
	}
}
