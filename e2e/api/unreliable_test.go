package api

import (
	"context"
	"fmt"
	"testing"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// simulatedSet is a set of instances that exist in the provider's memory alone.
const simulatedSet = `
apiVersion: machine.openshift.io/v1beta1
kind: MachineSet
metadata: {name: simulated, namespace: openshift-machine-api}
spec:
  replicas: 5000
  selector: {matchLabels: {set: simulated}}
  template:
    metadata: {labels: {set: simulated}}
    spec: {providerSpec: {value: {apiVersion: windlass.dev/v1, kind: SimulatedMachineProviderSpec}}}
`

// A provider whose calls are slow, fail, lose their answers and hang, and which forgets everything: a scale-up is
// called off, no instance is made twice or left, and machines whose instances it forgot are Failed and are replaced
// once they are deleted.
func TestFaultsAnUnreliableProvider(t *testing.T) {
	shared.Cluster(t) // no cluster of another package runs at the same time
	c := harness.Second(t)
	p := c.Provide("provider-simulated", "--call-time", "1ms-50ms", "--create-time", "10ms-1s", "--delete-time",
		"10ms-500ms", "--fail", "0.1", "--lose", "0.1", "--hang", "0.01")
	c.Up("--set", "machine-api.peer=provider-simulated="+p.Address())
	c.Wait(time.Minute, "the provider to be known", func(context.Context) (bool, string, error) {
		r, err := c.Admin().CLI(simulatedSet, "apply", "-f", "-")
		return err == nil && r.Code == 0, r.Stderr, err
	})
	c.Wait(2*time.Minute, "200 machines", func(ctx context.Context) (bool, string, error) {
		all, err := simulated(ctx, c)
		return len(all) >= 200, fmt.Sprint(len(all)), err
	})
	const few = 10
	c.MustCLI("scale", "machineset", "simulated", fmt.Sprintf("--replicas=%d", few))
	calledOff := 0
	c.Wait(time.Minute, "the number of machines then", func(ctx context.Context) (bool, string, error) {
		all, err := simulated(ctx, c)
		calledOff = len(all)
		return err == nil, "", err
	})
	most := calledOff
	settled := func(phase string) func(context.Context) (bool, string, error) {
		return func(ctx context.Context) (bool, string, error) {
			all, err := simulated(ctx, c)
			if err != nil {
				return false, "", err
			}
			instances, orphans, err := instances(ctx, c)
			most = max(most, len(all))
			in := 0
			for _, m := range all {
				if m.GetStatus().GetPhase() == phase && m.GetMetadata().GetDeletionTimestamp() == nil {
					in++
				}
			}
			return err == nil && in == few && len(all) == few && orphans == 0 && (phase == "Failed" || instances == few),
				fmt.Sprintf("%d machines, %d %s, %d instances, %d of them orphans", len(all), in, phase, instances, orphans), err
		}
	}
	c.Wait(5*time.Minute, "10 machines, each with its instance and node", settled("Running"))
	// Machines are made in batches of at most 50. One may be under way, and the next one may have begun before that.
	if most > calledOff+200 {
		t.Errorf("there were %d machines after the scale-up of 5,000 was called off at %d", most, calledOff)
	}
	p.Kill()
	p.Ended()
	p.Start()
	c.Wait(2*time.Minute, "10 machines whose instances are forgotten", settled("Failed"))
	c.MustCLI("delete", "machines", "-l", "set=simulated", "--wait=false") // a call may hang
	c.Wait(2*time.Minute, "10 machines in their place", settled("Running"))
	c.MustCLI("delete", "machineset", "simulated")
	c.Wait(2*time.Minute, "no machine and no instance", func(ctx context.Context) (bool, string, error) {
		all, err := simulated(ctx, c)
		if err != nil {
			return false, "", err
		}
		n, _, err := instances(ctx, c)
		return err == nil && len(all)+n == 0, fmt.Sprintf("%d machines, %d instances", len(all), n), err
	})
}

// simulated returns the machines of the simulated provider.
func simulated(ctx context.Context, c *harness.Cluster) ([]*machinev1.Machine, error) {
	list, err := machinev1.NewMachineServiceClient(c.Conn()).ListMachines(ctx, &machinev1.ListMachinesRequest{
		Namespace: harness.Namespace, LabelSelector: "set=simulated",
	})
	return list.GetItems(), err
}

// instances returns how many instances the simulated provider has, and how many of them have no machine.
func instances(ctx context.Context, c *harness.Cluster) (n, orphans int, err error) {
	list, err := machinev1.NewInstanceServiceClient(c.Conn()).ListInstances(ctx, &machinev1.ListInstancesRequest{})
	if err == nil && len(list.GetUnknown()) > 0 {
		err = fmt.Errorf("unknown: %v", list.GetUnknown())
	}
	for _, i := range list.GetItems() {
		if i.GetProvider() != "provider-simulated" {
			continue
		}
		n++
		if i.GetOrphan() {
			orphans++
		}
	}
	return n, orphans, err
}
