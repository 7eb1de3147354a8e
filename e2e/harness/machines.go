package harness

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
)

// Namespace of the machine kinds.
const Namespace = "openshift-machine-api"

const roleLabel = "machine.openshift.io/cluster-api-machine-role"

// Machines returns the machines with a role, "master" or "worker", or all if it is empty, ordered by name.
func (c *Cluster) Machines(ctx context.Context, role string) ([]*machinev1.Machine, error) {
	selector := ""
	if role != "" {
		selector = roleLabel + "=" + role
	}
	list, err := machinev1.NewMachineServiceClient(c.Conn()).ListMachines(ctx, &machinev1.ListMachinesRequest{
		LabelSelector: selector,
	})
	return list.GetItems(), err
}

// MustMachines is Machines, asked until there is an answer.
func (c *Cluster) MustMachines(role string) []*machinev1.Machine {
	c.t.Helper()
	var out []*machinev1.Machine
	c.Wait(callPatience, "a list of machines", func(ctx context.Context) (done bool, _ string, err error) {
		out, err = c.Machines(ctx, role)
		return err == nil, "", err
	})
	return out
}

// Machine returns one machine.
func (c *Cluster) Machine(ctx context.Context, name string) (*machinev1.Machine, error) {
	return machinev1.NewMachineServiceClient(c.Conn()).GetMachine(ctx, &machinev1.GetMachineRequest{
		Namespace: Namespace,
		Name:      name,
	})
}

// Nodes returns all nodes, ordered by name.
func (c *Cluster) Nodes(ctx context.Context) ([]*nodev1.Node, error) {
	list, err := nodev1.NewNodeServiceClient(c.Conn()).ListNodes(ctx, &nodev1.ListNodesRequest{})
	return list.GetItems(), err
}

// Quorum returns what the guardian says of the quorum.
func (c *Cluster) Quorum(ctx context.Context) (*etcdv1.Quorum, error) {
	return etcdv1.NewQuorumServiceClient(c.Conn()).GetQuorum(ctx, &etcdv1.GetQuorumRequest{})
}

// Events returns all events of all services.
func (c *Cluster) Events(ctx context.Context) ([]*eventv1.Event, error) {
	list, err := eventv1.NewEventServiceClient(c.Conn()).ListEvents(ctx, &eventv1.ListEventsRequest{})
	return list.GetItems(), err
}

// DeleteMachine asks for a machine's deletion until it is acknowledged.
func (c *Cluster) DeleteMachine(name string) {
	c.t.Helper()
	c.Wait(callPatience, "the deletion of "+name+" to be accepted", func(ctx context.Context) (bool, string, error) {
		_, err := machinev1.NewMachineServiceClient(c.Conn()).DeleteMachine(ctx, &machinev1.DeleteMachineRequest{
			Namespace: Namespace, Name: name,
		})
		return err == nil, "", err
	})
}

// Settle waits until the cluster is settled: as many machines as wanted, all Running and none being deleted, their
// nodes Ready and schedulable, a healthy voter on each control-plane machine, and a free disruption permit. A shared
// cluster that does not become whole is given up: the tests after this one fail at once.
func (c *Cluster) Settle(patience time.Duration) {
	c.t.Helper()
	patience = max(patience, leastPatience)
	saw, ok := await(context.Background(), patience, func(ctx context.Context) (bool, string, error) {
		missing, err := c.missing(ctx)
		return err == nil && len(missing) == 0, strings.Join(missing, "; "), err
	})
	if !ok {
		c.mu.Lock()
		c.broken = c.t.Name()
		c.mu.Unlock()
		c.t.Fatalf("after %s still waiting for a whole cluster: %s", patience, saw)
	}
}

// missing returns what keeps the cluster from being settled.
func (c *Cluster) missing(ctx context.Context) ([]string, error) {
	machines, err := c.Machines(ctx, "")
	if err != nil {
		return nil, err
	}
	wanted, err := c.wanted(ctx)
	if err != nil {
		return nil, err
	}
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	q, err := c.Quorum(ctx)
	if err != nil {
		return nil, err
	}
	out := append(machineFaults(machines, wanted), nodeFaults(nodes, machines)...)
	return append(out, quorumFaults(q, machines)...), nil
}

// wanted returns how many machines the sets want.
func (c *Cluster) wanted(ctx context.Context) (int, error) {
	// The writers' sets, which want nothing, are thousands.
	set, err := machinev1.NewMachineSetServiceClient(c.Conn()).GetMachineSet(ctx, &machinev1.GetMachineSetRequest{
		Namespace: Namespace, Name: "workers",
	})
	if err != nil {
		return 0, err
	}
	plane, err := machinev1.NewControlPlaneMachineSetServiceClient(c.Conn()).GetControlPlaneMachineSet(ctx,
		&machinev1.GetControlPlaneMachineSetRequest{Namespace: Namespace, Name: "cluster"})
	return int(set.GetSpec().GetReplicas()) + int(plane.GetSpec().GetReplicas()), err
}

func machineFaults(machines []*machinev1.Machine, wanted int) []string {
	var out []string
	if len(machines) != wanted {
		out = append(out, fmt.Sprintf("%d machines of %d", len(machines), wanted))
	}
	for _, m := range machines {
		switch {
		case m.GetMetadata().GetDeletionTimestamp() != nil:
			out = append(out, fmt.Sprintf("machine %s is being deleted: %s", m.GetMetadata().GetName(), conditions(m)))
		case m.GetStatus().GetPhase() != "Running":
			out = append(out, fmt.Sprintf("machine %s is %s", m.GetMetadata().GetName(), m.GetStatus().GetPhase()))
		}
	}
	return out
}

func conditions(m *machinev1.Machine) string {
	var out []string
	for _, c := range m.GetStatus().GetConditions() {
		if c.GetStatus() != "True" {
			out = append(out, fmt.Sprintf("%s=%s %s", c.GetType(), c.GetStatus(), c.GetMessage()))
		}
	}
	return strings.Join(out, ", ")
}

func nodeFaults(nodes []*nodev1.Node, machines []*machinev1.Machine) []string {
	var out []string
	if len(nodes) != len(machines) {
		out = append(out, fmt.Sprintf("%d nodes of %d machines", len(nodes), len(machines)))
	}
	for _, n := range nodes {
		if !Ready(n) {
			out = append(out, "node "+n.GetMetadata().GetName()+" is not Ready")
		}
		if n.GetSpec().GetUnschedulable() {
			out = append(out, "node "+n.GetMetadata().GetName()+" is cordoned")
		}
	}
	return out
}

// Ready reports whether a node is.
func Ready(n *nodev1.Node) bool {
	return slices.ContainsFunc(n.GetStatus().GetConditions(), func(c *nodev1.NodeCondition) bool {
		return c.GetType() == "Ready" && c.GetStatus() == "True"
	})
}

func quorumFaults(q *etcdv1.Quorum, machines []*machinev1.Machine) []string {
	var out []string
	if !q.GetBootstrapRetired() {
		out = append(out, "the bootstrap member is not retired")
	}
	if q.GetPermit().GetHeld() {
		out = append(out, fmt.Sprintf("%s holds the permit for %s", q.GetPermit().GetHolder(),
			q.GetPermit().GetMachine().GetName()))
	}
	on := map[string]bool{}
	for _, m := range q.GetMembers() {
		if !m.GetLearner() && m.GetHealthy() {
			on[m.GetName()] = true
		}
	}
	if len(q.GetMembers()) != len(on) {
		out = append(out, fmt.Sprintf("%d of %d members are healthy voters (%s)", len(on), len(q.GetMembers()),
			q.GetWaitsFor()))
	}
	for _, m := range machines {
		if m.GetMetadata().GetLabels()[roleLabel] == "master" && !on[m.GetMetadata().GetName()] {
			out = append(out, fmt.Sprintf("no healthy voter on %s (%s)", m.GetMetadata().GetName(), q.GetWaitsFor()))
		}
	}
	return out
}
