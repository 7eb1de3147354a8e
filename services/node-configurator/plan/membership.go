package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/nodeid"
	"github.com/windlass-dev/windlass/kit/object"
	"k8s.io/apimachinery/pkg/labels"
)

// osLabel says what a node runs; nodes with windows belong to no pool.
const osLabel = "kubernetes.io/os"

// chooser finds the pool of a node; selectors are read once for many nodes.
type chooser struct {
	pools []*configv1.MachineConfigPool
	sels  []labels.Selector
}

func newChooser(pools []*configv1.MachineConfigPool) chooser {
	var c chooser
	for _, p := range pools {
		sel, bad := object.LabelSelector(p.GetSpec().GetNodeSelector(), "spec.nodeSelector")
		if len(bad) == 0 {
			c.pools, c.sels = append(c.pools, p), append(c.sels, sel)
		}
	}
	return c
}

// poolOf returns the name of the pool that a node belongs to; empty for none. The pool "master" wins over all,
// "arbiter" over the others, one custom pool wins over "worker". A node that two custom pools select belongs to none:
// disputed names them, by name. Source: MCO. Labels alone neither bring the node of a worker machine into the pools of
// the control plane nor that of a control-plane machine out of them.
func (c chooser) poolOf(node *nodev1.Node) (pool string, disputed []string) {
	if node.GetMetadata().GetLabels()[osLabel] == "windows" {
		return "", nil
	}
	role := node.GetMetadata().GetAnnotations()[nodeid.MachineRole]
	master, arbiter, worker := "", "", ""
	var custom []string
	for i, p := range c.pools {
		if !c.sels[i].Matches(labels.Set(node.GetMetadata().GetLabels())) {
			continue
		}
		switch name := p.GetMetadata().GetName(); name {
		case MasterPool:
			if role != workerPool {
				master = name
			}
		case arbiterPool:
			if role != workerPool {
				arbiter = name
			}
		case workerPool:
			worker = name
		default:
			custom = append(custom, name)
		}
	}
	switch {
	case len(custom) > 1:
		slices.Sort(custom)
		return "", custom
	case master != "":
		return master, nil
	case arbiter != "":
		return arbiter, nil
	case role == MasterPool:
		return "", nil
	case len(custom) == 1:
		return custom[0], nil
	}
	return worker, nil
}

// PoolOf returns the pool that a node belongs to; nil if there is none.
func PoolOf(node *nodev1.Node, pools []*configv1.MachineConfigPool) *configv1.MachineConfigPool {
	name, _ := newChooser(pools).poolOf(node)
	for _, p := range pools {
		if p.GetMetadata().GetName() == name {
			return p
		}
	}
	return nil
}

// Members are the nodes of one pool.
type Members struct {
	Nodes    []*nodev1.Node // by name
	Disputed []string       // one line for each node that the pool and another custom one select
	Others   []*OtherNode   // that the pool selects and that do not belong to it, by name
	Wait     string         // why no node that serves may begin, whatever the others of the pool do; empty for nothing
}

// OtherNode is a node that a pool selects and that does not belong to it.
type OtherNode = configv1.PlanMachineConfigPoolResponse_OtherNode

// MembersOf returns the nodes of a pool among all, at now.
func MembersOf(pool string, pools []*configv1.MachineConfigPool, nodes []*nodev1.Node, now time.Time) Members {
	var m Members
	targets := map[string]string{} // of pools whose nodes may begin
	for _, p := range pools {
		if Paused(p, now) == nil {
			targets[p.GetMetadata().GetName()] = p.GetSpec().GetConfiguration().GetName()
		}
	}
	c := newChooser(pools)
	for _, n := range nodes {
		name, disputed := c.poolOf(n)
		if name != pool && c.selects(pool, n) {
			m.Others = append(m.Others, &OtherNode{
				Node: n.GetMetadata().GetName(), Pool: name, Reason: whyElsewhere(n, pool, name, disputed),
			})
		}
		switch {
		case slices.Contains(disputed, pool):
			m.Disputed = append(m.Disputed, fmt.Sprintf("Node %s is in no pool: the pools %s select it",
				n.GetMetadata().GetName(), strings.Join(disputed, " and ")))
		case name == pool:
			m.Nodes = append(m.Nodes, n)
		case m.Wait != "":
		case pool == MasterPool && name == arbiterPool && unavailable(n) && !bare(n):
			m.Wait = fmt.Sprintf("the arbiter %s is unavailable", n.GetMetadata().GetName())
		case pool == arbiterPool && name == MasterPool && unavailable(n) && !bare(n):
			m.Wait = fmt.Sprintf("the master %s is unavailable", n.GetMetadata().GetName())
		case pool == arbiterPool && name == MasterPool && targets[name] != "" && mark(n, DesiredConfig) != targets[name]:
			m.Wait = fmt.Sprintf("the master %s is to change first", n.GetMetadata().GetName())
		}
	}
	slices.SortFunc(m.Others, func(a, b *OtherNode) int { return strings.Compare(a.GetNode(), b.GetNode()) })
	slices.SortFunc(m.Nodes, func(a, b *nodev1.Node) int {
		return strings.Compare(a.GetMetadata().GetName(), b.GetMetadata().GetName())
	})
	return m
}

// selects reports whether the node selector of a pool matches a node.
func (c chooser) selects(pool string, node *nodev1.Node) bool {
	for i, p := range c.pools {
		if p.GetMetadata().GetName() == pool {
			return c.sels[i].Matches(labels.Set(node.GetMetadata().GetLabels()))
		}
	}
	return false
}

// whyElsewhere says why a node does not belong to a pool that selects it, asked, but to another one, or to none.
func whyElsewhere(node *nodev1.Node, asked, pool string, disputed []string) string {
	role := node.GetMetadata().GetAnnotations()[nodeid.MachineRole]
	switch {
	case node.GetMetadata().GetLabels()[osLabel] == "windows":
		return "nodes with windows belong to no pool"
	case len(disputed) > 0:
		return "the pools " + strings.Join(disputed, " and ") + " select it, and a node belongs to one custom pool only"
	case role == MasterPool && pool == "":
		return "its machine is one of the control plane, and labels alone do not bring it out of its pools"
	case pool == "", role == workerPool && (asked == MasterPool || asked == arbiterPool):
		return "its machine is a worker, and labels alone do not bring it into the pools of the control plane"
	case pool == MasterPool:
		return "the pool " + MasterPool + " wins over all others"
	case pool == arbiterPool:
		return "the pool " + arbiterPool + " wins over all others but " + MasterPool
	case pool == workerPool:
		return "its machine is a worker, and labels alone do not bring it into the pools of the control plane"
	}
	return "the custom pool " + pool + " wins over " + workerPool
}

// OtherPoolFaults returns what is wrong with the pools that a request gives beside a pool.
func OtherPoolFaults(pool *configv1.MachineConfigPool, others *configv1.MachineConfigPoolList) []object.Fault {
	if others != nil && pool == nil {
		return []object.Fault{{Path: "otherPools", Description: "is only allowed together with pool"}}
	}
	const mostPools = 1000 // each is compared with each node
	if len(others.GetItems()) > mostPools {
		return []object.Fault{{Path: "otherPools.items", Description: fmt.Sprintf("must have at most %d pools", mostPools)}}
	}
	var out []object.Fault
	names := map[string]bool{pool.GetMetadata().GetName(): true}
	for i, p := range others.GetItems() {
		path := fmt.Sprintf("otherPools.items[%d]", i)
		switch name := p.GetMetadata().GetName(); {
		case name == "":
			out = append(out, object.Fault{Path: path + ".metadata.name", Description: "must be given"})
		case names[name]:
			out = append(out, object.Fault{Path: path + ".metadata.name", Description: "there is a pool of that name already"})
		default:
			names[name] = true
		}
		_, bad := object.LabelSelector(p.GetSpec().GetNodeSelector(), path+".spec.nodeSelector")
		out = append(out, bad...)
	}
	return out
}

// Present returns the names of the configurations that the nodes of a pool have, in order. A node that came from
// another pool with a configuration of that one counts only while no node has one of this pool: it alone does not keep
// the pool from changing.
func Present(pool string, nodes []*nodev1.Node) []string {
	var own, others []string
	for _, n := range nodes {
		name := mark(n, CurrentConfig)
		digest := strings.LastIndex(name, "-")
		switch {
		case name == "":
		case digest > 0 && name[:digest] == RenderedPrefix+pool:
			own = append(own, name)
		default:
			others = append(others, name)
		}
	}
	if len(own) == 0 {
		own = others
	}
	slices.Sort(own)
	return slices.Compact(own)
}
