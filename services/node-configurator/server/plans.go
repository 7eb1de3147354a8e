// Package server answers the custom methods of machine configurations and pools, and orders the agents of nodes to
// apply their configurations.
package server

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/machineconfig"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/services/node-configurator/kinds"
	"github.com/windlass-dev/windlass/services/node-configurator/plan"
)

// Views shows what the controller decides with.
type Views interface {
	// Pool returns what decides about a live pool, and Given about one of a request; nil nodes and nil others mean the
	// live ones.
	Pool(pool *configv1.MachineConfigPool, nodes []*nodev1.Node) plan.View
	Given(pool *configv1.MachineConfigPool, others []*configv1.MachineConfigPool, nodes []*nodev1.Node) plan.View
	Node(name string) plan.NodeView
	// Way returns what decides about the way of a node to a configuration.
	Way(node *nodev1.Node, config string) plan.NodeView
	// Policy returns the policies in force.
	Policy() *configv1.NodeDisruptionPolicy
	// Present returns the configurations that the live nodes of a pool have.
	Present(pool *configv1.MachineConfigPool) []*configv1.MachineConfig
}

// Configs serves what MachineConfigService has beyond the standard methods.
type Configs struct {
	configv1.UnimplementedMachineConfigServiceServer
	tables *kinds.Tables
	views  Views
}

// NewConfigs returns the custom methods of MachineConfigService.
func NewConfigs(tables *kinds.Tables, views Views) *Configs {
	return &Configs{tables: tables, views: views}
}

// RenderMachineConfig returns what the machine configurations of a pool make together, and what that means for its
// nodes.
func (s *Configs) RenderMachineConfig(ctx context.Context, r *configv1.RenderMachineConfigRequest) (
	*configv1.RenderMachineConfigResponse, error,
) {
	pool, err := poolOf(ctx, s.tables, r.GetPoolName(), r.GetPool(), "poolName")
	if err != nil {
		return nil, err
	}
	configs := r.GetMachineConfigs().GetItems()
	if r.GetMachineConfigs() == nil {
		// A caller who has changed one is not answered about the time before.
		if err := s.tables.Configs.CatchUp(ctx); err != nil {
			return nil, err
		}
		configs = s.tables.Configs.All()
	} else if bad := faults(configs); len(bad) > 0 {
		return nil, rpcerr.Invalid(bad...)
	}
	if bad := given(r); len(bad) > 0 {
		return nil, rpcerr.Invalid(bad...)
	}
	present := s.views.Present(pool)
	if r.GetBefore() != nil {
		present = []*configv1.MachineConfig{r.GetBefore()}
	}
	out, obstacles, err := plan.Preview(pool, configs, present)
	if len(obstacles) > 0 && r.GetMachineConfigs() == nil && r.GetPool() == nil && r.GetBefore() == nil {
		// It is what the controller renders, and its nodes do not get it.
		out, err = plan.Render(pool, configs, present)
	}
	if err != nil {
		return nil, notRendered(pool, err)
	}
	before := r.GetBefore()
	if before == nil {
		before, _ = s.tables.Configs.Lookup("", pool.GetSpec().GetConfiguration().GetName())
	}
	policy := s.views.Policy()
	if r.GetNodeDisruptionPolicy() != nil {
		policy = plan.Policies(&configv1.MachineConfiguration{
			Spec: &configv1.MachineConfigurationSpec{NodeDisruptionPolicy: r.GetNodeDisruptionPolicy()},
		})
	}
	changes := plan.Diff(before, out.Config, policy)
	action, why := plan.Needed(changes)
	switch {
	case before != nil:
	case machineconfig.SystemOf(out.Config).Equal(machineconfig.System{}):
		action, why = plan.None, "the pool has no configuration yet: a first one is applied at once"
	default:
		action, why = plan.Reboot, "the operating system of a first configuration"
	}
	resp := &configv1.RenderMachineConfigResponse{
		MachineConfig: out.Config, Sources: out.Sources, Action: action.String(), ActionReason: why,
		Reconcilable: proto.Bool(len(obstacles) == 0), UnreconcilableReasons: obstacles,
	}
	for _, c := range changes {
		resp.Differences = append(resp.Differences, c.String())
		resp.Changes = append(resp.Changes, &configv1.RenderMachineConfigResponse_Change{
			Item: c.Item, How: c.How, Action: c.Action.String(), Services: c.Services, Reason: c.Why,
			Added: c.Added, Removed: c.Removed,
		})
	}
	resp.Held = plan.Held(pool, out.Config.GetMetadata().GetName(), time.Now())
	if before != nil {
		resp.Services = plan.Services(changes)
	}
	return resp, nil
}

// given returns what is wrong with what nodes have before, and with the policies of a request.
func given(r *configv1.RenderMachineConfigRequest) []object.Fault {
	bad := plan.PolicyFaults(r.GetNodeDisruptionPolicy(), "nodeDisruptionPolicy")
	for _, f := range plan.Faults(r.GetBefore()) {
		f.Path = "before." + f.Path
		bad = append(bad, f)
	}
	return bad
}

// faults returns what is wrong with the configurations of a request.
func faults(configs []*configv1.MachineConfig) []object.Fault {
	var bad []object.Fault
	for i, c := range configs {
		for _, f := range plan.Faults(c) {
			f.Path = fmt.Sprintf("machineConfigs.items[%d].%s", i, f.Path)
			bad = append(bad, f)
		}
	}
	return bad
}

func notRendered(pool *configv1.MachineConfigPool, err error) error {
	return rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION, "machineconfigpools/"+
		pool.GetMetadata().GetName(), err.Error())
}

// poolOf returns the pool that a request gives, or the live one that it names.
func poolOf(ctx context.Context, tables *kinds.Tables, name string, given *configv1.MachineConfigPool,
	field string,
) (*configv1.MachineConfigPool, error) {
	switch {
	case given == nil && name == "":
		return nil, rpcerr.Invalid(object.Fault{Path: field, Description: "give a name or a pool"})
	case given == nil:
		return tables.Pools.Get(ctx, "", name)
	case given.GetMetadata().GetName() == "":
		return nil,
			rpcerr.Invalid(object.Fault{
				Path:        "pool.metadata.name",
				Description: "must be given: names of rendered configurations have it in them",
			})
	}
	_, bad := object.LabelSelector(given.GetSpec().GetMachineConfigSelector(), "pool.spec.machineConfigSelector")
	_, more := object.LabelSelector(given.GetSpec().GetNodeSelector(), "pool.spec.nodeSelector")
	if bad = append(bad, more...); len(bad) > 0 {
		return nil, rpcerr.Invalid(bad...)
	}
	return given, nil
}

// Pools serves what MachineConfigPoolService has beyond the standard methods.
type Pools struct {
	configv1.UnimplementedMachineConfigPoolServiceServer
	tables *kinds.Tables
	views  Views
}

// NewPools returns the custom methods of MachineConfigPoolService.
func NewPools(tables *kinds.Tables, views Views) *Pools { return &Pools{tables: tables, views: views} }

// PlanMachineConfigPool returns what is decided about a pool. One that is given without a configuration gets the one
// that the live machine configurations make.
func (s *Pools) PlanMachineConfigPool(ctx context.Context, r *configv1.PlanMachineConfigPoolRequest) (
	*configv1.PlanMachineConfigPoolResponse, error,
) {
	pool, err := poolOf(ctx, s.tables, r.GetName(), r.GetPool(), "name")
	if err != nil {
		return nil, err
	}
	var nodes []*nodev1.Node
	if r.GetNodes() != nil {
		nodes = append([]*nodev1.Node{}, r.GetNodes().GetItems()...)
	}
	for i, n := range nodes {
		if n.GetMetadata().GetName() == "" {
			return nil, rpcerr.Invalid(object.Fault{
				Path:        fmt.Sprintf("nodes.items[%d].metadata.name", i),
				Description: "must be given",
			})
		}
	}
	if bad := plan.OtherPoolFaults(r.GetPool(), r.GetOtherPools()); len(bad) > 0 {
		return nil, rpcerr.Invalid(bad...)
	}
	if bad := plan.WindowFaults(r.GetMaintenanceWindows()); len(bad) > 0 {
		return nil, rpcerr.Invalid(bad...)
	}
	var v plan.View
	switch {
	case r.GetPool() == nil:
		v = s.views.Pool(pool, nodes)
	case r.GetOtherPools() == nil:
		v = s.views.Given(pool, nil, nodes)
	default:
		v = s.views.Given(pool, append([]*configv1.MachineConfigPool{}, r.GetOtherPools().GetItems()...), nodes)
	}
	if r.GetMaintenanceWindows() != nil {
		v.Windows = plan.Windows{List: r.GetMaintenanceWindows().GetItems()}
	}
	p, now, status := plan.Foresee(v)
	s.ways(v, now.Nodes)
	out := &configv1.PlanMachineConfigPoolResponse{
		MaxUnavailable: int32(now.MaxUnavailable), Unavailable: int32(now.Unavailable), Capacity: int32(now.Capacity),
		Next: now.Next, Nodes: now.Nodes, Actions: p.Steps(), HeldBack: p.Held, Status: status,
		OtherNodes: v.Members.Others,
	}
	if !p.Wake.IsZero() {
		out.WakeTime = timestamppb.New(p.Wake)
	}
	return out, nil
}

// ways adds to the plans of nodes what their way to the configuration of the pool requires, and how far their drains
// are.
func (s *Pools) ways(v plan.View, of []*configv1.PlanMachineConfigPoolResponse_NodePlan) {
	nodes := map[string]*nodev1.Node{}
	for _, n := range v.Members.Nodes {
		nodes[n.GetMetadata().GetName()] = n
	}
	for _, n := range of {
		if d := v.Drains[n.GetNode()]; d != nil {
			n.Drain = strings.TrimSuffix(cmp.Or(d.GetStatus().GetPhase(), "Pending")+": "+d.GetStatus().GetMessage(), ": ")
		}
		view := s.views.Way(nodes[n.GetNode()], v.Pool.GetSpec().GetConfiguration().GetName())
		if v.Rendered.Config != nil {
			view.Desired = v.Rendered.Config // maybe not stored yet
		}
		if way := plan.Way(view); way != nil {
			n.Action, n.ActionReason, n.Services = way.Action.String(), way.Item, way.Services
		}
	}
}
