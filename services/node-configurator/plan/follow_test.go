package plan

import (
	"testing"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"google.golang.org/protobuf/proto"
)

// TestAnOrderToRestartNeedsThePermit follows a control-plane node that is drained for a configuration.
func TestAnOrderToRestartNeedsThePermit(t *testing.T) {
	a, b := mc("a", "", ign(fileDoc("/etc/x", "1"))), mc("b", "", ign(fileDoc("/etc/x", "2")))
	n := cordoned(node("n", "a", "b", working))
	n.Metadata.Labels["node-role.kubernetes.io/control-plane"] = ""
	view := FollowView{
		Now: epoch(), NodeView: NodeView{Node: n, Current: a, Desired: b, Drain: &nodev1.Drain{
			Spec: &nodev1.DrainSpec{NodeName: "n"}, Status: &nodev1.DrainStatus{Phase: proto.String(drained)},
		}},
	}
	if p := Follow(view); len(p.Ask) != 1 || p.Ask[0].Verb != AcquirePermit || len(p.Do) > 0 {
		t.Errorf("before the permit: %+v", p)
	}
	refused := view
	refused.Permit = Answer{Code: Refused, Why: "voter m does not answer"}
	p := Follow(refused)
	if len(p.Do) != 2 || p.Do[0].Verb != ReleasePermit ||
		!p.Do[1].Order.equal(Order{Config: b, Reboot: true, From: "a"}) ||
		p.WaitsFor != "voter m does not answer" || !p.Wake.Equal(epoch().Add(permitAgain)) {
		t.Errorf("refused: %+v", p)
	}
	granted := view
	granted.Permit = Answer{Code: Granted}
	if p := Follow(granted); len(p.Do) != 1 ||
		!p.Do[0].Order.equal(Order{Config: b, Apply: true, Reboot: true, From: "a"}) ||
		!p.Wake.IsZero() {
		t.Errorf("granted: %+v", p)
	}
	sent := view
	sent.Sent, sent.Now = &Order{Config: b, Apply: true, Reboot: true, From: "a"}, epoch().Add(time.Minute)
	if p := Follow(sent); len(p.Do)+len(p.Ask) > 0 {
		t.Errorf("after the order: %+v", p)
	}
	worker := view
	worker.Node = cordoned(node("n", "a", "b", working))
	if p := Follow(worker); len(p.Ask) > 0 || len(p.Do) != 1 || !p.Do[0].Order.Apply {
		t.Errorf("a worker: %+v", p)
	}
}

func TestAnOrderSaysForWhichConfigurationItIs(t *testing.T) {
	a, b := mc("a", "", ign(fileDoc("/etc/x", "1"))), mc("b", "", ign(fileDoc("/etc/x", "2")))
	for current, n := range map[string]*nodev1.Node{"": node("n", "", "b", working), "a": node("n", "a", "b", working)} {
		if got := order(NodeView{Node: n, Current: a, Desired: b}).From; got != current {
			t.Errorf("order for %q, want %q", got, current)
		}
	}
}

func TestAnAgentOfAnEarlierReleaseIsNotOrderedToRestartServices(t *testing.T) {
	units := map[string]string{"x.service": "[Service]\nExecStart=/bin/x\n"}
	a, b := withUnits("a", map[string]string{"/etc/x": "1"}, units), withUnits("b", map[string]string{"/etc/x": "2"},
		units)
	view := FollowView{Now: epoch(), NodeView: NodeView{
		Node: node("n", "a", "b", working), Current: a, Desired: b, Policy: Policies(settings(
			`{"files":[{"path":"/etc/x","actions":[{"type":"Restart","restart":{"serviceName":"x.service"}}]}]}`)),
	}}
	if p := Follow(view); len(p.Do) != 1 || p.Do[0].Order.Apply ||
		p.WaitsFor != "its agent is of a release that does not restart services" {
		t.Errorf("an earlier one: %+v", p)
	}
	view.Renews = true
	if p := Follow(view); len(p.Do) != 1 || !p.Do[0].Order.Apply || len(p.Do[0].Order.Services) != 1 || p.WaitsFor != "" {
		t.Errorf("one of this release: %+v", p)
	}
}
