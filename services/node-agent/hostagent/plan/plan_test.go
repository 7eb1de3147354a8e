package plan_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/services/node-agent/hostagent/plan"
)

func TestNext(t *testing.T) {
	running := &plan.Record{State: plan.Running, UID: "u1", Name: "m1"}
	wiping := &plan.Record{State: plan.Wiping, UID: "u1", Name: "m1"}
	order := func(typ hostv1.HostOrder_Type, uid string) *hostv1.HostOrder {
		o := &hostv1.HostOrder{Id: "o", Type: typ, Bootstrap: &hostv1.HostBootstrap{Token: "t"}}
		if uid != "" {
			o.MachineRef = &metav1.ObjectReference{Name: "m" + uid[1:], Uid: uid}
		}
		return o
	}
	const claim, wipe, fence = hostv1.HostOrder_TYPE_CLAIM, hostv1.HostOrder_TYPE_WIPE, hostv1.HostOrder_TYPE_FENCE
	empty := order(claim, "u1")
	empty.Bootstrap = nil
	for _, c := range []struct {
		name   string
		record *plan.Record
		order  *hostv1.HostOrder
		want   plan.Plan
	}{
		{"nothing", nil, nil, plan.Plan{}},
		{"after a start the machine runs again, without an order", running, nil, plan.Plan{Run: true}},
		{"a wipe that was cut off goes on, without an order", wiping, nil, plan.Plan{Erase: true}},
		{"whatever is ordered now", wiping, order(claim, "u2"), plan.Plan{Erase: true}},
		{
			"a claim", nil, order(claim, "u2"),
			plan.Plan{Clear: true, Run: true, Write: &plan.Record{State: plan.Running, UID: "u2", Name: "m2"}},
		},
		{"that is repeated", running, order(claim, "u1"), plan.Plan{Run: true}},
		{"by another machine", running, order(claim, "u2"), plan.Plan{Run: true, Refuse: "the host has machine m1"}},
		{
			"by none", nil, order(claim, ""),
			plan.Plan{Refuse: "the order names no machine, or nothing to join the cluster with"},
		},
		{
			"without a token", nil, empty,
			plan.Plan{Refuse: "the order names no machine, or nothing to join the cluster with"},
		},
		{"a wipe is written down first", running, order(wipe, "u1"), plan.Plan{Write: wiping, Erase: true}},
		{"of what no machine has", running, order(wipe, ""), plan.Plan{Write: wiping, Erase: true}},
		{"of a fenced host, whichever machine it had", running, order(fence, "u9"), plan.Plan{Write: wiping, Erase: true}},
		{"a wipe that is repeated", nil, order(wipe, "u1"), plan.Plan{Clear: true}},
		{
			"an order of a later version", running, order(9, "u1"),
			plan.Plan{Run: true, Refuse: "order 9 is of an unknown type: update the agent"},
		},
	} {
		if diff := cmp.Diff(c.want, plan.Next(plan.View{Record: c.record, Order: c.order})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}
