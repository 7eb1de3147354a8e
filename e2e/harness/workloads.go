package harness

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// Pods returns the pods with a label such as app=hello, or all if it is empty, of all namespaces.
func (c *Cluster) Pods(ctx context.Context, selector string) ([]*schedulingv1.Pod, error) {
	list, err := schedulingv1.NewPodServiceClient(c.Conn()).ListPods(ctx, &schedulingv1.ListPodsRequest{
		LabelSelector: selector,
	})
	return list.GetItems(), err
}

// Pool returns a pool of nodes.
func (c *Cluster) Pool(ctx context.Context, name string) (*configv1.MachineConfigPool, error) {
	return configv1.NewMachineConfigPoolServiceClient(c.Conn()).GetMachineConfigPool(ctx,
		&configv1.GetMachineConfigPoolRequest{Name: name})
}

// Version returns the version of the cluster.
func (c *Cluster) Version(ctx context.Context) (*updatev1.ClusterVersion, error) {
	return updatev1.NewClusterVersionServiceClient(c.Conn()).GetClusterVersion(ctx, &updatev1.GetClusterVersionRequest{
		Name: "version",
	})
}

// SettleAll is Settle, and beside that everything runs that must: the pods of deployments and daemon sets are there
// and ready, the nodes of all pools have their configuration, no drain and no update goes on.
func (c *Cluster) SettleAll(patience time.Duration) {
	c.t.Helper()
	c.Settle(patience)
	patience = max(patience, leastPatience)
	saw, ok := await(context.Background(), patience, func(ctx context.Context) (bool, string, error) {
		faults, err := c.unfinished(ctx)
		return err == nil && len(faults) == 0, strings.Join(faults, "; "), err
	})
	if !ok {
		c.mu.Lock()
		c.broken = c.t.Name()
		c.mu.Unlock()
		c.t.Fatalf("after %s still waiting for all to be done: %s", patience, saw)
	}
}

// unfinished says what is still going on.
func (c *Cluster) unfinished(ctx context.Context) ([]string, error) {
	var out []string
	drains, err := nodev1.NewDrainServiceClient(c.Conn()).ListDrains(ctx, &nodev1.ListDrainsRequest{})
	if err != nil {
		return nil, err
	}
	for _, d := range drains.GetItems() {
		out = append(out, fmt.Sprintf("drain %s is %s: %s", d.GetMetadata().GetName(), d.GetStatus().GetPhase(),
			d.GetStatus().GetMessage()))
	}
	pools, err := configv1.NewMachineConfigPoolServiceClient(c.Conn()).ListMachineConfigPools(ctx,
		&configv1.ListMachineConfigPoolsRequest{})
	if err != nil {
		return nil, err
	}
	for _, p := range pools.GetItems() {
		if done, text := updated(p); !done {
			out = append(out, fmt.Sprintf("pool %s: %s", p.GetMetadata().GetName(), text))
		}
	}
	version, err := c.Version(ctx)
	if err != nil {
		return nil, err
	}
	if is, text := Condition(version.GetStatus().GetConditions(), "Progressing"); is != "False" {
		out = append(out, "version: "+text)
	}
	pods, err := c.podFaults(ctx)
	return append(out, pods...), err
}

// updated reports whether all nodes of a pool have its configuration.
func updated(p *configv1.MachineConfigPool) (bool, string) {
	is, text := Condition(p.GetStatus().GetConditions(), "Updated")
	return is == "True" && p.GetStatus().GetConfiguration().GetName() == p.GetSpec().GetConfiguration().GetName(), text
}

// Condition returns the status of a condition, empty if it is not there, and what it says.
func Condition(list []*metav1.Condition, typ string) (is, text string) {
	for _, c := range list {
		if c.GetType() == typ {
			return c.GetStatus(), c.GetMessage()
		}
	}
	return "", "there is no condition " + typ
}

// podFaults says which pods are missing, too many or not ready.
func (c *Cluster) podFaults(ctx context.Context) ([]string, error) {
	var out []string
	deployments, err := schedulingv1.NewDeploymentServiceClient(c.Conn()).ListDeployments(ctx,
		&schedulingv1.ListDeploymentsRequest{})
	if err != nil {
		return nil, err
	}
	for _, d := range deployments.GetItems() {
		s := d.GetStatus()
		if want := d.GetSpec().GetReplicas(); s.GetReadyReplicas() != want || s.GetUpdatedReplicas() != want ||
			s.GetReplicas() != want {
			out = append(out, fmt.Sprintf("deployment %s: of %d pods %d ready, %d as wanted, %d in all",
				d.GetMetadata().GetName(), want, s.GetReadyReplicas(), s.GetUpdatedReplicas(), s.GetReplicas()))
		}
	}
	sets, err := schedulingv1.NewDaemonSetServiceClient(c.Conn()).ListDaemonSets(ctx,
		&schedulingv1.ListDaemonSetsRequest{})
	if err != nil {
		return nil, err
	}
	for _, d := range sets.GetItems() {
		if s := d.GetStatus(); s.GetNumberReady() != s.GetDesiredNumberScheduled() {
			out = append(out, fmt.Sprintf("daemon set %s: %d of %d pods ready", d.GetMetadata().GetName(), s.GetNumberReady(),
				s.GetDesiredNumberScheduled()))
		}
	}
	pods, err := c.Pods(ctx, "")
	for _, d := range deployments.GetItems() { // its status may not know yet of pods that are just gone
		want, there := d.GetSpec().GetReplicas(), int32(0)
		sel, _ := object.LabelSelector(d.GetSpec().GetSelector(), "")
		for _, p := range pods {
			if p.GetMetadata().GetNamespace() == d.GetMetadata().GetNamespace() &&
				sel.Matches(labels.Set(p.GetMetadata().GetLabels())) {
				there++
			}
		}
		if there != want {
			out = append(out, fmt.Sprintf("deployment %s: %d of %d pods are there", d.GetMetadata().GetName(), there, want))
		}
	}
	for _, p := range pods {
		if p.GetMetadata().GetDeletionTimestamp() != nil || !podReady(p) {
			out = append(out, fmt.Sprintf("pod %s on %s: %s, leaving: %t", p.GetMetadata().GetName(), p.GetSpec().GetNodeName(),
				p.GetStatus().GetPhase(), p.GetMetadata().GetDeletionTimestamp() != nil))
		}
	}
	return out, err
}

// Play starts a program of the repository that acts as the administrator, such as example-operators, until the test
// ends.
func (c *Cluster) Play(name string, args ...string) {
	c.t.Helper()
	path, err := Tool(name)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := c.Admin().Program(ctx, path, args...)
	if err := cmd.Start(); err != nil {
		cancel()
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // its end is our doing
	})
}
