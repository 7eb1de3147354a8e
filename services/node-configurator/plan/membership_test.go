package plan

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/nodeid"
)

func TestNodesThatAPoolSelectsAndThatBelongElsewhere(t *testing.T) {
	selecting := func(name string) *configv1.MachineConfigPool {
		return &configv1.MachineConfigPool{
			Metadata: &metav1.ObjectMeta{Name: name},
			Spec: &configv1.MachineConfigPoolSpec{
				NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"role/" + name: ""}},
			},
		}
	}
	pools := []*configv1.MachineConfigPool{
		selecting(MasterPool), selecting(arbiterPool), selecting(workerPool), selecting("infra"), selecting("storage"),
	}
	node := func(role string, of ...string) *nodev1.Node {
		n := &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: "n", Labels: map[string]string{}}}
		if role != "" {
			n.Metadata.Annotations = map[string]string{nodeid.MachineRole: role}
		}
		for _, pool := range of {
			n.Metadata.Labels["role/"+pool] = ""
		}
		return n
	}
	windows := node("", "infra")
	windows.Metadata.Labels[osLabel] = "windows"
	for name, tt := range map[string]struct {
		pool string
		node *nodev1.Node
		want string
	}{
		"a node of the pool":             {"infra", node("", "infra", workerPool), ""},
		"a node that it does not select": {"infra", node("", workerPool), ""},
		"a custom pool wins": {
			workerPool, node("", "infra", workerPool),
			"infra: the custom pool infra wins over worker",
		},
		"the control plane wins": {
			"infra", node("", "infra", MasterPool),
			"master: the pool master wins over all others",
		},
		"the arbiter wins": {
			workerPool, node("", workerPool, arbiterPool),
			"arbiter: the pool arbiter wins over all others but master",
		},
		"two custom pools": {
			"infra", node("", "infra", "storage"),
			": the pools infra and storage select it",
		},
		"a machine of the control plane": {
			"infra", node(MasterPool, "infra"),
			": its machine is one of the control plane",
		},
		"a worker machine among masters": {
			MasterPool, node(workerPool, MasterPool, workerPool),
			"worker: its machine is a worker",
		},
		"a worker machine with that label":  {MasterPool, node(workerPool, MasterPool), ": its machine is a worker"},
		"a node with another operating one": {"infra", windows, ": nodes with windows"},
	} {
		got := ""
		for _, o := range MembersOf(tt.pool, pools, []*nodev1.Node{tt.node}, epoch()).Others {
			got = o.GetPool() + ": " + o.GetReason()
		}
		if !strings.HasPrefix(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func TestWhatIsWrongWithOtherPools(t *testing.T) {
	named := func(name string) *configv1.MachineConfigPool {
		return &configv1.MachineConfigPool{Metadata: &metav1.ObjectMeta{Name: name}}
	}
	list := func(of ...*configv1.MachineConfigPool) *configv1.MachineConfigPoolList {
		return &configv1.MachineConfigPoolList{Items: of}
	}
	bad := named("c")
	bad.Spec = &configv1.MachineConfigPoolSpec{
		NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"not a label": ""}},
	}
	for name, tt := range map[string]struct {
		pool   *configv1.MachineConfigPool
		others *configv1.MachineConfigPoolList
		want   []string
	}{
		"a live pool":             {nil, nil, nil},
		"a live pool with others": {nil, list(), []string{"otherPools"}},
		"others":                  {named("a"), list(named("b")), nil},
		"wrong ones": {named("a"), list(named("a"), named(""), named("b"), named("b"), bad), []string{
			"otherPools.items[0].metadata.name", "otherPools.items[1].metadata.name", "otherPools.items[3].metadata.name",
			"otherPools.items[4].spec.nodeSelector",
		}},
	} {
		var paths []string
		for _, f := range OtherPoolFaults(tt.pool, tt.others) {
			at, _, _ := strings.Cut(f.Path, ".matchLabels")
			paths = append(paths, at)
		}
		if diff := cmp.Diff(tt.want, paths); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestFirstConfigurationsOfMastersAndArbitersDoNotWaitForEachOther(t *testing.T) {
	member := func(name, role string, marks ...string) *nodev1.Node {
		n := node(name, marks...)
		n.Metadata.Labels = map[string]string{"node-role.kubernetes.io/" + role: ""}
		return n
	}
	pools := []*configv1.MachineConfigPool{poolOf(MasterPool, MasterPool), poolOf(arbiterPool, arbiterPool)}
	nodes := []*nodev1.Node{member("m", MasterPool), member("a", arbiterPool)}
	for _, pool := range []string{MasterPool, arbiterPool} {
		if m := MembersOf(pool, pools, nodes, epoch()); m.Wait != "" || len(m.Nodes) != 1 {
			t.Errorf("pool %s: %d nodes, it waits: %q", pool, len(m.Nodes), m.Wait)
		}
	}
	nodes[0] = member("m", MasterPool, "", "b", working)
	if m := MembersOf(arbiterPool, pools, nodes, epoch()); m.Wait != "the master m is unavailable" {
		t.Errorf("the master has its first configuration: %q", m.Wait)
	}
}
