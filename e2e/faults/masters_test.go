package faults

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// A master stops for good while another one is replaced, and is deleted then: both are replaced, one after the other,
// and nothing that was acknowledged is lost.
func TestFaultsAMasterIsLostDuringAnothersReplacement(t *testing.T) {
	c := shared.Cluster(t)
	c.Settle(patience)
	writers := c.Write()
	masters := c.MustMachines("master")
	old, lost := masters[0].GetMetadata().GetName(), masters[1].GetMetadata().GetName()
	c.DeleteMachine(old)
	c.Wait(patience, "the member of the machine that replaces "+old, func(ctx context.Context) (bool, string, error) {
		q, err := c.Quorum(ctx)
		return len(q.GetMembers()) > len(masters), fmt.Sprint(q.GetMembers()), err
	})
	for _, p := range []string{harness.Agent(lost), harness.Member(lost)} {
		if err := c.Pause(p); err != nil {
			t.Fatal(err)
		}
	}
	c.Wait(patience, lost+" said to be unhealthy", func(ctx context.Context) (bool, string, error) {
		q, err := c.Quorum(ctx)
		for _, m := range q.GetMembers() {
			if m.GetName() == lost {
				return !m.GetHealthy(), fmt.Sprint(m), err
			}
		}
		return false, fmt.Sprint(q.GetMembers()), err
	})
	c.DeleteMachine(lost)
	c.Wait(2*patience, old+" and "+lost+" to go", func(ctx context.Context) (bool, string, error) {
		now, err := c.Machines(ctx, "master")
		var text []string
		left := false
		for _, m := range now {
			text = append(text, fmt.Sprint(m.GetMetadata().GetName(), ": ", m.GetStatus().GetConditions()))
			left = left || m.GetMetadata().GetName() == old || m.GetMetadata().GetName() == lost
		}
		return err == nil && !left, strings.Join(text, "\n"), err
	})
	c.Settle(patience)
	writers.Check()
}

// Seed 000 advises a health check of the control plane with maxUnhealthy 1: with two unhealthy masters it does nothing,
// and says why.
func TestFaultsTwoUnhealthyMastersAreLeftAlone(t *testing.T) {
	c := shared.Cluster(t)
	c.Settle(patience)
	checks := machinev1.NewMachineHealthCheckServiceClient(c.Conn())
	before := c.MustMachines("master")
	var paused []string
	for _, m := range before[:2] {
		paused = append(paused, harness.Agent(m.GetMetadata().GetName()))
	}
	for _, p := range paused {
		if err := c.Pause(p); err != nil {
			t.Fatal(err)
		}
	}
	awake := func() {
		for _, p := range paused {
			if err := c.Continue(p); err != nil {
				t.Error(err)
			}
		}
		paused = nil
	}
	t.Cleanup(awake)
	// Both are silent before the check is made, or it would find one after the other.
	c.Wait(patience, "two masters whose nodes are Unknown", func(ctx context.Context) (bool, string, error) {
		nodes, err := c.Nodes(ctx)
		unknown := 0
		for _, n := range nodes {
			for _, cond := range n.GetStatus().GetConditions() {
				if cond.GetType() == "Ready" && cond.GetStatus() == "Unknown" {
					unknown++
				}
			}
		}
		return unknown == len(paused), fmt.Sprint(unknown), err
	})
	const name = "control-plane-health"
	if _, err := checks.CreateMachineHealthCheck(t.Context(), &machinev1.CreateMachineHealthCheckRequest{
		MachineHealthCheck: &machinev1.MachineHealthCheck{
			Metadata: &metav1.ObjectMeta{Name: name, Namespace: harness.Namespace},
			Spec: &machinev1.MachineHealthCheckSpec{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{
					"machine.openshift.io/cluster-api-machine-role": "master",
				}},
				UnhealthyConditions: []*machinev1.UnhealthyCondition{{Type: "Ready", Status: "Unknown", Timeout: "1s"}},
				MaxUnhealthy:        structpb.NewNumberValue(1),
			},
		},
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := checks.DeleteMachineHealthCheck(context.Background(), &machinev1.DeleteMachineHealthCheckRequest{
			Namespace: harness.Namespace, Name: name,
		}); err != nil {
			t.Error(err)
		}
	})
	const why = "exceeds maxUnhealthy (total: 3, unhealthy: 2, maxUnhealthy: 1)"
	c.Wait(patience, "a health check that says why it does nothing", func(ctx context.Context) (bool, string, error) {
		h, err := checks.GetMachineHealthCheck(ctx, &machinev1.GetMachineHealthCheckRequest{
			Namespace: harness.Namespace, Name: name,
		})
		is, text := harness.Condition(h.GetStatus().GetConditions(), "RemediationAllowed")
		held := 0
		for _, u := range h.GetStatus().GetUnhealthy() {
			if strings.Contains(u.GetHeldBy(), why) {
				held++
			}
		}
		return is == "False" && strings.Contains(text, why) && held == 2, fmt.Sprint(h.GetStatus()), err
	})
	plan, err := checks.PlanMachineHealthCheck(t.Context(), &machinev1.PlanMachineHealthCheckRequest{
		Namespace: harness.Namespace, Name: name,
	})
	if err != nil || plan.GetRemediationAllowed() || len(plan.GetUnhealthy()) != 2 {
		t.Errorf("the plan is %v, %v; want 2 unhealthy and no remediation", plan, err)
	}
	r, err := c.Admin().CLI("", "events", "--for", "machinehealthcheck/"+name)
	if err != nil || !strings.Contains(r.Stdout, "RemediationRestricted") {
		t.Errorf("events: %v\n%s%s", err, r.Stdout, r.Stderr)
	}
	awake()
	c.Settle(patience)
	for i, m := range c.MustMachines("master") {
		if len(before) <= i || m.GetMetadata().GetUid() != before[i].GetMetadata().GetUid() ||
			m.GetMetadata().GetDeletionTimestamp() != nil {
			t.Errorf("master %s was replaced, or goes", m.GetMetadata().GetName())
		}
	}
}
