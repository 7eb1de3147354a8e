package server

import (
	"fmt"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// Limits of the objects that a request may bring, as in the scheduler: twice the cluster that is aimed at.
const (
	maxNodes = 10_000
	maxPods  = 20_000
)

// nodesToo is the fault of a request that gives something that belongs to given nodes.
var nodesToo = object.Fault{
	Path: "nodes", Description: "give the nodes too: live ones are not mixed with given objects",
}

// misnamed returns the fault of a request that names another object than it gives: the name would have no effect.
func misnamed(name string, given object.Object) []object.Fault {
	if name == "" || name == given.GetMetadata().GetName() {
		return nil
	}
	return []object.Fault{{Path: "name", Description: "is not the name of the given object: give one of them"}}
}

// givenCluster returns nodes of a request, with the states of their agents and what was decided before.
func givenCluster(nodes []*nodev1.Node, agents []*nodev1.AgentState, memory []*nodev1.ZoneMemory, disrupted bool) (
	plan.Given, error,
) {
	fields := atMost("nodes.items", len(nodes), maxNodes)
	names := make(map[string]bool, len(nodes))
	for i, n := range nodes {
		name, path := n.GetMetadata().GetName(), fmt.Sprintf("nodes.items[%d].metadata.name", i)
		switch {
		case name == "":
			fields = append(fields, object.Fault{Path: path, Description: "must be given"})
		case names[name]:
			fields = append(fields, object.Fault{Path: path, Description: fmt.Sprintf("there is another node %q", name)})
		}
		names[name] = true
	}
	g := plan.Given{Nodes: nodes, Agents: map[string]plan.Agent{}, Memory: plan.NewMemory()}
	for i, a := range agents {
		path := fmt.Sprintf("agents[%d].node", i)
		if _, twice := g.Agents[a.GetNode()]; twice {
			fields = append(fields, object.Fault{Path: path, Description: fmt.Sprintf("node %q has another agent", a.GetNode())})
		} else if !names[a.GetNode()] {
			fields = append(fields, object.Fault{Path: path, Description: fmt.Sprintf("there is no node %q", a.GetNode())})
		}
		g.Agents[a.GetNode()] = agentOf(a)
	}
	g.Memory.Remember(memory, disrupted, nodes)
	if len(fields) > mostFaults {
		fields = fields[:mostFaults]
	}
	if len(fields) > 0 {
		return g, rpcerr.Invalid(fields...)
	}
	return g, nil
}

// mostFaults is how many faults of the lists of a request are reported.
const mostFaults = 20

func agentOf(a *nodev1.AgentState) plan.Agent {
	return plan.Agent{Reported: true, Silence: a.GetSilence().AsDuration(), NotReady: a.GetNotReady()}
}

// timeOf returns a time of a request; the present if there is none.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Now().UTC()
	}
	return t.AsTime()
}

func atMost(path string, n, most int) []object.Fault {
	if n <= most {
		return nil
	}
	return []object.Fault{{Path: path, Description: fmt.Sprintf("has %d objects, at most %d can be given", n, most)}}
}
