package plan

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func TestWhatIsPutBackNeedsNeitherDrainNorReboot(t *testing.T) {
	config := withUnits("a", map[string]string{"/etc/boot": "1", "/etc/drain": "1", "/etc/x": "1", "/etc/y": "1"},
		map[string]string{"x.service": "[Service]\nExecStart=/bin/x\n"})
	policy := Policies(settings(`{"files":[{"path":"/etc/drain","actions":[{"type":"Drain"}]},` +
		`{"path":"/etc/x","actions":[{"type":"Restart","restart":{"serviceName":"x.service"}}]},` +
		`{"path":"/etc/y","actions":[{"type":"None"}]}]}`))
	want := []*configv1.PathRepair{
		{Paths: []string{
			"/etc/systemd/system/x.service", "/etc/y", "/etc/systemd/system/multi-user.target.wants/x.service",
		}},
		{Paths: []string{"/etc/x"}, Services: []*configv1.ServiceAction{{Name: "x.service"}}},
	}
	got := Repairs(config, policy)
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("repairs (-want +got):\n%s", diff)
	}
	view := NodeView{Node: node("n", "a", "a", stateDone), Current: config, Desired: config, Policy: policy, Repairs: got}
	if len(order(view).Repairs) != len(want) {
		t.Error("they are not ordered")
	}
	drifted := view
	drifted.Node = node("n", "a", "a", degraded)
	if len(order(drifted).Repairs) != len(want) {
		t.Error("a node that differs is not repaired")
	}
	for name, change := range map[string]func(*NodeView){
		"another one is its target":   func(v *NodeView) { v.Node = node("n", "a", "b", working) },
		"a first one is applied":      func(v *NodeView) { v.Node = node("n", "", "a", working) },
		"its target is not known":     func(v *NodeView) { v.Desired = nil },
		"it goes back to what it has": func(v *NodeView) { v.Node = node("n", "a", "a", working) },
	} {
		v := view
		if change(&v); len(order(v).Repairs) > 0 {
			t.Errorf("%s: it is repaired", name)
		}
	}
}

func TestAPausedPoolRepairsNothing(t *testing.T) {
	p := poolOf("worker", "worker")
	repairing := func(p *configv1.MachineConfigPool) bool {
		is, _ := Repairing(p, epoch())
		return is
	}
	if repairing(p) {
		t.Error("without being asked for")
	}
	p.Spec.DriftPolicy = driftRepair
	if !repairing(p) {
		t.Error("not although it is asked for")
	}
	if p.Spec.Paused = proto.Bool(true); repairing(p) {
		t.Error("while it is paused")
	}
	p.Spec.Paused, p.Spec.Pause = nil, &Pause{Reason: "fair", Until: timestamppb.New(epoch().Add(time.Hour))}
	if is, from := Repairing(p, epoch()); is || !from.Equal(epoch().Add(time.Hour)) {
		t.Errorf("during a pause with an end: %v, from %v", is, from)
	}
	if is, _ := Repairing(p, epoch().Add(time.Hour)); !is {
		t.Error("not although the pause has ended")
	}
	v := FollowView{Now: epoch()}
	if v.Node, v.Repair = node("n", "a", "a", stateDone), epoch().Add(time.Hour); !Follow(v).Wake.Equal(v.Repair) {
		t.Errorf("the order is decided again at %v, not when the pause ends", Follow(v).Wake)
	}
}
