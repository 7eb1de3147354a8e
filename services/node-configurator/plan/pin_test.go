package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func TestAPinIsSignedAndDated(t *testing.T) {
	forged := &configv1.MachineConfigPoolPin{Configuration: "rendered-worker-1", Reason: "slow", By: "another"}
	first := Pinning(nil, forged, "admin", epoch())
	if first.GetBy() != "admin" || !first.GetSince().AsTime().Equal(epoch().Truncate(time.Second)) {
		t.Errorf("set: %v", first)
	}
	if again := Pinning(first, forged, "guest", epoch().Add(time.Hour)); !proto.Equal(again, first) {
		t.Errorf("unchanged: %v, want %v", again, first)
	}
	reason := proto.CloneOf(forged)
	reason.Reason = "very slow"
	if next := Pinning(first, reason, "guest", epoch().Add(time.Hour)); next.GetBy() != "guest" ||
		!proto.Equal(next.GetSince(), first.GetSince()) {
		t.Errorf("another reason: %v", next)
	}
	other := proto.CloneOf(forged)
	other.Configuration = "rendered-worker-2"
	if next := Pinning(first, other, "guest", epoch().Add(time.Hour)); next.GetBy() != "guest" {
		t.Errorf("changed: %v", next)
	}
	if Pinning(first, nil, "guest", epoch()) != nil {
		t.Error("it stays")
	}
}

func TestAPoolThatIsHeldDoesNotFollowItsConfigurations(t *testing.T) {
	pool := poolOf("worker", "worker")
	old := must(Render(pool, []*configv1.MachineConfig{mc("50-a", "worker", ign(fileDoc("/etc/x", "1")))}, nil))
	old.Config.Metadata.OwnerReferences = []*metav1.OwnerReference{object.OwnedBy(pool)}
	now := []*configv1.MachineConfig{mc("50-a", "worker", ign(fileDoc("/etc/x", "2"))), old.Config}
	name := old.Config.GetMetadata().GetName()
	pool.Spec.Pin = Pinning(nil, &configv1.MachineConfigPoolPin{Configuration: name, Reason: "2 is slow"}, "admin",
		epoch())
	pool.Status = &configv1.MachineConfigPoolStatus{Configuration: &configv1.MachineConfigPoolConfiguration{
		Name: name, Source: []*metav1.ObjectReference{{Kind: "MachineConfig", Name: "50-a"}},
	}}
	r, err := TargetOf(pool, now, nil)
	if err != nil || r.Config.GetMetadata().GetName() != name || !slices.Equal(r.Sources, []string{"50-a"}) {
		t.Fatalf("TargetOf = %v, %v", r, err)
	}
	v := View{Now: epoch(), Pool: pool, Rendered: r, Stored: true}
	p, _ := Pool(v)
	if p.Aimed().GetSpec().GetConfiguration().GetName() != name {
		t.Fatalf("it is not aimed: %+v", p)
	}
	_, _, st := Foresee(v)
	want := "pool worker is held at " + name + " by admin since "
	if c := object.FindCondition(st.GetConditions(), ConditionPinned); c.GetStatus() != "True" ||
		!strings.HasPrefix(c.GetMessage(), want) || !strings.Contains(c.GetMessage(), ": 2 is slow; changes of") {
		t.Errorf("condition %v", c)
	}
	if _, err := TargetOf(pool, now[:1], nil); err == nil || !strings.Contains(err.Error(), "not stored any more") {
		t.Errorf("the configuration is gone: %v", err)
	}
	going := object.Clone(old.Config)
	going.Metadata.DeletionTimestamp = timestamppb.New(epoch())
	if _, err := TargetOf(pool, []*configv1.MachineConfig{now[0], going}, nil); err == nil || PinFault(pool, going) == "" {
		t.Errorf("the configuration is being deleted: %v", err)
	}
	waits := v
	waits.Settled = epoch().Add(time.Hour)
	if p, _ := Pool(waits); p.Aimed() == nil {
		t.Error("it waits for changes of machine configs to settle")
	}
	if why := Held(pool, "rendered-worker-2", epoch()); !strings.HasPrefix(why, "pool worker is to be held at "+name) {
		t.Errorf("what is rendered: %q", why)
	}
	if why := Held(pool, name, epoch()); why != "" {
		t.Errorf("what it is held at: %q", why)
	}
	impossible := View{Now: epoch(), Pool: pool, Failure: "cannot be put in force"}
	_, _, st = Foresee(impossible)
	if c := object.FindCondition(st.GetConditions(), ConditionUpdated); c.GetStatus() != "False" {
		t.Errorf("it is not aimed at what it is to be held at: %v", c)
	}
	pool.Spec.Pin = nil
	if r, err := TargetOf(pool, now, nil); err != nil || r.Config.GetMetadata().GetName() == name {
		t.Errorf("released: %v, %v", r, err)
	}
}

func TestWhatAPoolCannotBeHeldAt(t *testing.T) {
	pool, other := poolOf("worker", "worker"), poolOf("infra", "infra")
	pool.Spec.Pin = &configv1.MachineConfigPoolPin{Configuration: "x"}
	foreign := mc("rendered-infra-1", "", nil)
	foreign.Metadata.OwnerReferences = []*metav1.OwnerReference{object.OwnedBy(other)}
	for name, cfg := range map[string]*configv1.MachineConfig{
		"nothing": nil, "one that users wrote": mc("50-a", "worker", nil), "of another pool": foreign,
	} {
		if PinFault(pool, cfg) == "" {
			t.Errorf("%s: it is accepted", name)
		}
	}
}

func TestTheHistoryOfAPoolIsWhatAllNodesHad(t *testing.T) {
	names := func(list []*configv1.MachineConfigPoolHistory) string {
		var out []string
		for _, h := range list {
			out = append(out, h.GetName())
		}
		return strings.Join(out, " ")
	}
	one := &configv1.MachineConfigPoolConfiguration{Name: "one"}
	pool := target(poolOf("worker", "worker"), "two", nil)
	// of an earlier release
	pool.Status = &configv1.MachineConfigPoolStatus{Configuration: one, MachineCount: proto.Int32(1)}
	v := View{Now: epoch(), Pool: pool, Members: Members{Nodes: []*nodev1.Node{node("a", "one", "two", working)}}}
	if pool.Status = statusOf(v); names(pool.GetStatus().GetHistory()) != "one" {
		t.Errorf("while a node changes: %v", pool.GetStatus().GetHistory())
	}
	v.Members.Nodes = []*nodev1.Node{node("a", "two", "two", stateDone)}
	for range 2 {
		if pool.Status = statusOf(v); names(pool.GetStatus().GetHistory()) != "two one" {
			t.Errorf("then: %v", pool.GetStatus().GetHistory())
		}
	}
	v.Members.Nodes = nil
	pool.Spec.Configuration = &configv1.MachineConfigPoolConfiguration{Name: "never"}
	if pool.Status = statusOf(v); names(pool.GetStatus().GetHistory()) != "two one" {
		t.Errorf("without nodes: %v", pool.GetStatus().GetHistory())
	}
	for i := range 2 * maxHistory {
		pool.Status.History = had(pool.Status.History, fmt.Sprint(i), epoch())
	}
	if n := len(pool.GetStatus().GetHistory()); n != maxHistory || pool.GetStatus().GetHistory()[0].GetName() != "19" {
		t.Errorf("%d are remembered: %v", n, pool.GetStatus().GetHistory())
	}
}
