package controller

import (
	"fmt"
	"strings"
	"sync"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/informer"

	"github.com/windlass-dev/windlass/services/node-configurator/kinds"
	"github.com/windlass-dev/windlass/services/node-configurator/plan"
)

// Views shows what decisions depend on. The controller and the server both read it, so that they decide about the same
// state. All methods may be called concurrently; what they return must not be modified.
type Views struct {
	tables *kinds.Tables
	peer   *Peer
	window *informer.Informer[*updatev1.MaintenanceWindow]
	settle time.Duration // how long after a change of machine configurations they are rendered
	now    func() time.Time

	mu       sync.Mutex
	rendered map[string]memo       // by pool
	repaired map[string]repairMemo // by configuration
	changed  time.Time             // when a machine configuration changed last
}

// memo is the last rendering of a pool; it is valid while nothing that went into it changes.
type memo struct {
	inputs  string
	out     plan.Rendered
	failure string
}

// maxRepaired bounds what is remembered; there are a few configurations for each pool.
const maxRepaired = 64

// repairMemo is what is put back of a configuration by some settings.
type repairMemo struct {
	inputs string
	out    []*configv1.PathRepair
}

// NewViews returns views of the tables, the peer and the maintenance windows. now is the clock.
func NewViews(tables *kinds.Tables, peer *Peer, windows *informer.Informer[*updatev1.MaintenanceWindow],
	settle time.Duration, now func() time.Time,
) *Views {
	return &Views{
		tables: tables, peer: peer, window: windows, settle: settle, now: now, rendered: map[string]memo{},
		repaired: map[string]repairMemo{},
	}
}

// configChanged notes that a machine configuration changed just now.
func (o *Views) configChanged() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.changed = o.now().UTC()
}

// render returns what the machine configurations of a pool make together, or why its nodes cannot have that.
func (o *Views) render(pool *configv1.MachineConfigPool, nodes []*nodev1.Node) (plan.Rendered, string) {
	configs, present := o.tables.Configs.All(), o.present(pool, nodes)
	inputs := inputsOf(pool, configs, present)
	name := pool.GetMetadata().GetName()
	o.mu.Lock()
	m, ok := o.rendered[name]
	o.mu.Unlock()
	if ok && m.inputs == inputs {
		return m.out, m.failure
	}
	out, failure := rendered(plan.TargetOf(pool, configs, present))
	o.mu.Lock()
	defer o.mu.Unlock()
	o.rendered[name] = memo{inputs, out, failure}
	return out, failure
}

func rendered(out plan.Rendered, err error) (plan.Rendered, string) {
	if err != nil {
		return plan.Rendered{}, err.Error()
	}
	return out, ""
}

// inputsOf names everything that goes into a rendering.
func inputsOf(pool *configv1.MachineConfigPool, configs, present []*configv1.MachineConfig) string {
	var b strings.Builder
	pin := pool.GetSpec().GetPin().GetConfiguration()
	fmt.Fprint(&b, pool.GetMetadata().GetName(), pool.GetSpec().GetMachineConfigSelector().String(),
		pin)
	for _, c := range configs {
		if m := c.GetMetadata(); !plan.IsRendered(m.GetName()) || m.GetName() == pin {
			fmt.Fprint(&b, "\x00", m.GetName(), "@", m.GetResourceVersion())
		}
	}
	for _, c := range present {
		fmt.Fprint(&b, "\x00", c.GetMetadata().GetName()) // its content does not change
	}
	return b.String()
}

// Pool returns what decides about a live pool, given its nodes; nil means the live ones.
func (o *Views) Pool(pool *configv1.MachineConfigPool, nodes []*nodev1.Node) plan.View {
	v := o.members(pool, nil, nodes)
	name := pool.GetMetadata().GetName()
	o.mu.Lock()
	v.Settled = o.changed.Add(o.settle)
	o.mu.Unlock()
	if !v.Settling() {
		v.Rendered, v.Failure = o.render(pool, v.Members.Nodes)
		_, v.Stored = o.tables.Configs.Lookup("", v.Rendered.Config.GetMetadata().GetName())
	}
	v.Unused = o.tables.Unused(name)
	return v
}

// Gone returns what decides about a pool that is gone or being deleted.
func (o *Views) Gone(pool string) plan.View {
	o.mu.Lock()
	delete(o.rendered, pool)
	o.mu.Unlock()
	return plan.View{Now: o.now().UTC(), Unused: o.tables.Unused(pool)}
}

// Given returns what decides about a pool that a request gives, with the other pools and the nodes; nil means the live
// ones. Without a configuration it gets the one that the live machine configurations make.
func (o *Views) Given(pool *configv1.MachineConfigPool, others []*configv1.MachineConfigPool, nodes []*nodev1.Node,
) plan.View {
	v := o.members(pool, others, nodes)
	if pool.GetSpec().GetConfiguration().GetName() == "" {
		v.Rendered, v.Failure = rendered(plan.TargetOf(pool, o.tables.Configs.All(), o.present(pool, v.Members.Nodes)))
	}
	return v
}

// Present returns the configurations that the live nodes of a pool have.
func (o *Views) Present(pool *configv1.MachineConfigPool) []*configv1.MachineConfig {
	return o.present(pool, o.members(pool, nil, nil).Members.Nodes)
}

// present returns the configurations that nodes of a pool have, as far as they are known.
func (o *Views) present(pool *configv1.MachineConfigPool, nodes []*nodev1.Node) []*configv1.MachineConfig {
	var out []*configv1.MachineConfig
	for _, name := range plan.Present(pool.GetMetadata().GetName(), nodes) {
		if cfg, ok := o.tables.Configs.Lookup("", name); ok {
			out = append(out, cfg)
		}
	}
	return out
}

func (o *Views) members(pool *configv1.MachineConfigPool, others []*configv1.MachineConfigPool, nodes []*nodev1.Node,
) plan.View {
	pools := []*configv1.MachineConfigPool{pool}
	if others == nil {
		others = o.tables.Pools.All()
	}
	for _, p := range others {
		if p.GetMetadata().GetName() != pool.GetMetadata().GetName() && p.GetMetadata().GetDeletionTimestamp() == nil {
			pools = append(pools, p)
		}
	}
	if nodes == nil {
		nodes = o.peer.Nodes.All()
	}
	now := o.now().UTC()
	v := plan.View{
		Now: now, Pool: pool, Drains: map[string]*nodev1.Drain{}, Windows: o.windows(),
		Members: plan.MembersOf(pool.GetMetadata().GetName(), pools, nodes, now),
	}
	v.Target, _ = o.tables.Configs.Lookup("", pool.GetSpec().GetConfiguration().GetName())
	for _, n := range v.Members.Nodes {
		if d := o.peer.Drain(n.GetMetadata().GetName()); d != nil {
			v.Drains[n.GetMetadata().GetName()] = d
		}
	}
	return v
}

// windows returns the maintenance windows. There are none while update-orchestrator serves none, as one of an earlier
// release, or this service has no right to read them, as by the policy of one.
func (o *Views) windows() plan.Windows {
	switch {
	case o.window.IsSynced():
		return plan.Windows{List: o.window.All()}
	case o.window.Absent() != "":
		return plan.Windows{}
	}
	return plan.Windows{Unknown: "update-orchestrator does not answer"}
}

// Policy returns the policies in force.
func (o *Views) Policy() *configv1.NodeDisruptionPolicy {
	c, _ := o.tables.Settings.Lookup("", plan.Settings)
	return plan.Policies(c)
}

// Way returns what decides about the way of a node to a configuration.
func (o *Views) Way(node *nodev1.Node, config string) plan.NodeView {
	v := plan.NodeView{Node: node, Policy: o.Policy()}
	v.Current, _ = o.tables.Configs.Lookup("", node.GetMetadata().GetAnnotations()[plan.CurrentConfig])
	v.Desired, _ = o.tables.Configs.Lookup("", config)
	return v
}

// repairs returns what agents of a configuration put back. It is the same for all nodes of a pool.
func (o *Views) repairs(cfg *configv1.MachineConfig, settings *configv1.MachineConfiguration,
	policy *configv1.NodeDisruptionPolicy,
) []*configv1.PathRepair {
	name, inputs := cfg.GetMetadata().GetName(), settings.GetMetadata().GetUid()+"@"+
		fmt.Sprint(settings.GetMetadata().GetGeneration())
	o.mu.Lock()
	defer o.mu.Unlock()
	m, ok := o.repaired[name]
	if !ok || m.inputs != inputs {
		if len(o.repaired) >= maxRepaired {
			clear(o.repaired)
		}
		m = repairMemo{inputs, plan.Repairs(cfg, policy)}
		o.repaired[name] = m
	}
	return m.out
}

// Node returns what decides about one node.
func (o *Views) Node(name string) plan.NodeView {
	settings, _ := o.tables.Settings.Lookup("", plan.Settings)
	v := plan.NodeView{Drain: o.peer.Drain(name), Policy: plan.Policies(settings)}
	v.Node, _ = o.peer.Nodes.Lookup("", name)
	marks := v.Node.GetMetadata().GetAnnotations()
	v.Current, _ = o.tables.Configs.Lookup("", marks[plan.CurrentConfig])
	cfg, ok := o.tables.Configs.Lookup("", marks[plan.DesiredConfig])
	if pool := plan.PoolOf(v.Node, o.tables.Pools.All()); ok && pool != nil &&
		plan.OfPool(cfg, pool.GetMetadata().GetName()) {
		now := o.now().UTC()
		repairs, from := plan.Repairing(pool, now)
		if marks[plan.CurrentConfig] != marks[plan.DesiredConfig] {
			v.Window = o.windows().For(pool, cfg.GetMetadata().GetName(), now)
		}
		if v.Desired, v.Repair = cfg, from; repairs {
			v.Repairs = o.repairs(cfg, settings, v.Policy)
		}
	}
	return v
}
