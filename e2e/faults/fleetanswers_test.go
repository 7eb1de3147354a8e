package faults

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// fleetCheck replaces machines of the fleet whose nodes are silent, at most three.
const fleetCheck = `
apiVersion: machine.openshift.io/v1beta1
kind: MachineHealthCheck
metadata: {name: fleet, namespace: openshift-machine-api, annotations: {windlass.dev/remediation-budget: 3/1h}}
spec:
  selector: {matchLabels: {set: fleet}}
  maxUnhealthy: 80%
  unhealthyConditions: [{type: Ready, status: Unknown, timeout: 1s}]
`

const fleetBudget = 3

func TestFaultsAFleetWhileAnswersAreLost(t *testing.T) { fleetBetween(t, harness.LostAnswers) }

func TestFaultsAFleetWhileEtcdIsSlow(t *testing.T) {
	if os.Getenv("WINDLASS_FAULTS") != "all" {
		t.Skip("skipped: make test-faults runs it")
	}
	fleetBetween(t, harness.SlowAnswers)
}

// fleetBetween has silent machines of a fleet remediated and then all of them deleted, each with a hook at both points,
// with a proxy before etcd. Some nodes of the simulated provider fall silent.
func fleetBetween(t *testing.T, fault harness.Fault) {
	shared.Cluster(t) // no cluster of another package runs at the same time
	c := harness.Second(t)
	p := c.Provide("provider-simulated", "--call-time", "1ms-20ms", "--create-time", "10ms-500ms", "--delete-time",
		"100ms-1s", "--silent", "0.4", "--silent-after", "5s-15s")
	c.Up("--set", "machine-api.peer=provider-simulated="+p.Address())
	f := newFleet(t, c, p, 14)
	record, b := c.Record(), c.Between(fault)
	f.mu.Lock()
	f.released[preDrain], f.released[preTerminate] = true, true
	f.mu.Unlock()

	apply(t, c, fleetCheck)
	checks := machinev1.NewMachineHealthCheckServiceClient(c.Conn())
	c.Wait(fleetPatience, "a remediation, and what holds the others", func(ctx context.Context) (bool, string, error) {
		h, err := checks.GetMachineHealthCheck(ctx, &machinev1.GetMachineHealthCheckRequest{
			Namespace: harness.Namespace, Name: "fleet",
		})
		for _, u := range h.GetStatus().GetUnhealthy() {
			if u.GetHeldBy() == "" {
				return false, u.GetMachine() + " is unhealthy: " + u.GetReason(), nil
			}
		}
		n := remediations(record.Steps())
		return err == nil && n > 0, fmt.Sprintf("%d remediations; %v", n, h.GetStatus()), err
	})
	c.Hold(10*time.Second, "the budget", func(context.Context) (string, error) {
		if n := remediations(record.Steps()); n > fleetBudget {
			return fmt.Sprintf("%d machines were remediated", n), nil
		}
		return "", nil
	})
	insist(c, "delete", "machinehealthcheck", "fleet", "--ignore-not-found")
	f.settle()
	insist(c, "delete", "machines", "-l", "set=fleet", "--wait=false")
	c.Wait(fleetPatience, "all machines to be replaced", func(context.Context) (bool, string, error) {
		left := 0
		for _, m := range f.machines() {
			if f.old[m.GetMetadata().GetUid()] != "" {
				left++
			}
		}
		return left == 0, fmt.Sprintf("%d are left", left), nil
	})
	f.settle()
	if n := remediations(record.Steps()); n > fleetBudget {
		t.Errorf("%d machines were remediated, the budget is %d", n, fleetBudget)
	}
	for _, fault := range harness.BrokenDeletions(record.Steps()) {
		t.Error(fault)
	}
	f.check()
	c.Wait(patience, "an answer to be lost", func(context.Context) (bool, string, error) {
		return fault != harness.LostAnswers || b.Lost() > 0, "", nil
	})
}

// insist runs the command line as the administrator until it succeeds.
func insist(c *harness.Cluster, args ...string) {
	c.Wait(patience, fmt.Sprintf("windlass %v", args), func(context.Context) (bool, string, error) {
		err := run(c, args...)
		return err == nil, "", err
	})
}

// remediations returns how many machines a health check had deleted.
func remediations(steps []harness.Step) int {
	by := map[string]bool{}
	for _, s := range steps {
		if m, ok := s.Object.(*machinev1.Machine); ok && m.GetStatus().GetDeletion().GetTrigger() == "MachineHealthCheck" {
			by[m.GetMetadata().GetUid()] = true
		}
	}
	return len(by)
}
