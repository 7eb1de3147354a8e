package controller

import (
	"fmt"
	"strings"
	"sync"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"

	"github.com/windlass-dev/windlass/services/node-configurator/kinds"
	"github.com/windlass-dev/windlass/services/node-configurator/plan"
)

// Observer gathers what decisions depend on. It is safe for concurrent use.
type Observer struct {
	tables *kinds.Tables
	peer   *Peer
	now    func() time.Time

	mu       sync.Mutex
	rendered map[string]memo // by pool
}

// memo is what the last rendering of a pool gave; it holds while nothing that went into it changes.
type memo struct {
	inputs string
	out    plan.Rendered
	err    error
}

// NewObserver returns an observer of the tables and the peer.
func NewObserver(tables *kinds.Tables, peer *Peer, now func() time.Time) *Observer {
	return &Observer{tables: tables, peer: peer, now: now, rendered: map[string]memo{}}
}

// Render returns what the machine configurations of a pool make together.
func (o *Observer) Render(pool *configv1.MachineConfigPool) (plan.Rendered, error) {
	configs := o.tables.Configs.All()
	inputs := inputsOf(pool, configs)
	name := pool.GetMetadata().GetName()
	o.mu.Lock()
	defer o.mu.Unlock()
	if m, ok := o.rendered[name]; ok && m.inputs == inputs {
		return m.out, m.err
	}
	out, err := plan.Render(pool, configs)
	o.rendered[name] = memo{inputs, out, err}
	return out, err
}

// Forget drops what is remembered of a pool that is gone.
func (o *Observer) Forget(pool string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.rendered, pool)
}

// inputsOf names everything that goes into a rendering.
func inputsOf(pool *configv1.MachineConfigPool, configs []*configv1.MachineConfig) string {
	var b strings.Builder
	fmt.Fprint(&b, pool.GetMetadata().GetName(), pool.GetSpec().GetMachineConfigSelector().String())
	for _, c := range configs {
		if m := c.GetMetadata(); !plan.IsRendered(m.GetName()) {
			fmt.Fprint(&b, "\x00", m.GetName(), "@", m.GetResourceVersion())
		}
	}
	return b.String()
}

// View returns what decides about a pool, given its nodes; nil means the live ones.
func (o *Observer) View(pool *configv1.MachineConfigPool, nodes []*nodev1.Node) plan.View {
	pools := []*configv1.MachineConfigPool{pool}
	for p := range o.tables.Pools.Objects() {
		if p.GetMetadata().GetName() != pool.GetMetadata().GetName() && p.GetMetadata().GetDeletionTimestamp() == nil {
			pools = append(pools, p)
		}
	}
	if nodes == nil {
		nodes = o.peer.Nodes.All()
	}
	v := plan.View{
		Now: o.now().UTC(), Pool: pool, Drains: map[string]*nodev1.Drain{},
		Members: plan.MembersOf(pool.GetMetadata().GetName(), pools, nodes),
	}
	for _, n := range v.Members.Nodes {
		if d := o.peer.Drain(n.GetMetadata().GetName()); d != nil {
			v.Drains[n.GetMetadata().GetName()] = d
		}
	}
	return v
}

// Node returns what decides about one node.
func (o *Observer) Node(name string) plan.NodeView {
	v := plan.NodeView{Drain: o.peer.Drain(name)}
	v.Node, _ = o.peer.Nodes.Lookup("", name)
	marks := v.Node.GetMetadata().GetAnnotations()
	v.Current, _ = o.tables.Configs.Lookup("", marks[plan.CurrentConfig])
	if cfg, ok := o.tables.Configs.Lookup("", marks[plan.DesiredConfig]); ok &&
		plan.ForNode(cfg, v.Node, o.tables.Pools.All()) {
		v.Desired = cfg
	}
	return v
}
