// Package server holds the methods of machine-api beyond the standard ones: plans, which run the very functions that
// the controllers run, and the check of a change of hooks.
package server

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/machine-api/kinds"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// maxObjects bounds the objects that a plan request may bring.
const maxObjects = 5000

// Views observes live objects, as the controllers do.
type Views interface {
	ViewMachine(ctx context.Context, m *machinev1.Machine) plan.MachineView
	ViewSet(s *machinev1.MachineSet) (plan.SetView, bool)
	ViewControlPlane(s *machinev1.ControlPlaneMachineSet) (plan.ControlPlaneView, bool)
}

// server answers from tables and views; each kind's service is a type of its own around it.
type server struct {
	tables *kinds.Tables
	views  Views
	now    func() time.Time
}

func namespaceOr(ns, otherwise string) string {
	if ns == "" {
		return otherwise
	}
	return ns
}

func missingObject(kind string) error {
	return rpcerr.Invalid(object.Fault{Path: "name", Description: "must be given, or else the " + kind})
}

// machines is the part of MachineService that is no standard method.
type machines struct {
	machinev1.UnimplementedMachineServiceServer
	server
}

// PlanMachine says what the next step of a machine is.
func (s machines) PlanMachine(ctx context.Context, req *machinev1.PlanMachineRequest) (*machinev1.PlanMachineResponse,
	error,
) {
	v := plan.MachineView{
		Now: s.now(), Machine: req.GetMachine(), Instance: req.GetInstance(), InstanceGone: req.GetInstance() == nil,
		Node: req.GetNode(), NodesSeen: true, Drain: req.GetDrain(),
	}
	if v.Machine == nil {
		m, err := s.live(ctx, req.GetNamespace(), req.GetName())
		if err != nil {
			return nil, err
		}
		v = s.views.ViewMachine(ctx, m)
	}
	p := plan.Next(v)
	out := &machinev1.PlanMachineResponse{
		Phase: p.Status.GetPhase(), Conditions: p.Status.GetConditions(), WaitsFor: p.WaitsFor,
		WakeTime: object.Timestamp(p.Wake),
	}
	for _, a := range p.Actions {
		out.Actions = append(out.Actions, &metav1.PlannedAction{
			Action: string(a), Object: object.Reference(v.Machine),
			Reason: reasonFor(a),
		})
	}
	return out, nil
}

func reasonFor(a plan.Action) string {
	switch a {
	case plan.CreateInstance:
		return "the machine has no instance yet"
	case plan.UpdateNode:
		return "the node lacks labels, annotations or taints of the machine's spec, or was not linked yet"
	case plan.CreateDrain:
		return "no hook holds the drain, and the node is not drained yet"
	case plan.DeleteInstance:
		return "the node is drained, and no hook holds the instance"
	case plan.DeleteNode, plan.DeleteDrain:
		return "the instance is gone"
	}
	return "everything else is gone"
}

func (s server) live(ctx context.Context, namespace, name string) (*machinev1.Machine, error) {
	if name == "" {
		return nil, missingObject("machine")
	}
	return s.tables.Machines.Get(ctx, namespaceOr(namespace, s.tables.Machines.Type().GetDefaultNamespace()), name)
}

// ValidateHooks says whether a change of lifecycle hooks is allowed.
func (s machines) ValidateHooks(ctx context.Context, req *machinev1.ValidateHooksRequest) (
	*machinev1.ValidateHooksResponse, error,
) {
	old := req.GetOldMachine()
	if old == nil && req.GetName() != "" {
		m, err := s.live(ctx, req.GetNamespace(), req.GetName())
		if err != nil {
			return nil, err
		}
		old = m
	}
	if old == nil {
		old = &machinev1.Machine{}
	}
	out := &machinev1.ValidateHooksResponse{}
	for _, v := range s.hookViolations(ctx, old, req) {
		out.Violations = append(out.Violations, &machinev1.ValidateHooksResponse_Violation{
			Field: v.Path, Description: v.Description,
		})
	}
	out.Allowed = len(out.Violations) == 0
	return out, nil
}

func (s machines) hookViolations(ctx context.Context, old *machinev1.Machine,
	req *machinev1.ValidateHooksRequest,
) []object.Fault {
	bad := plan.HookChange(old, req.GetNewMachine()) // the shape was checked with the request
	caller, _ := identity.CallerFrom(ctx)
	if u := req.GetUser(); u != "" && u != caller.User {
		caller = identity.Caller{User: u, Groups: []string{identity.GroupAuthenticated}}
	}
	for _, r := range plan.GuardedRemovals(old, req.GetNewMachine()) {
		if ok, _ := s.tables.MayComplete(caller, r.Hook.GetOwner()); !ok {
			bad = append(bad, object.Fault{Path: r.Field, Description: "hook " + r.Hook.GetName() +
				" can be removed only by its owner " + r.Hook.GetOwner() + " or an administrator"})
		}
	}
	return bad
}

// sets is the part of MachineSetService that is no standard method.
type sets struct {
	machinev1.UnimplementedMachineSetServiceServer
	server
}

// PlanMachineSet says what a set would do.
func (s sets) PlanMachineSet(ctx context.Context, req *machinev1.PlanMachineSetRequest) (
	*machinev1.PlanMachineSetResponse, error,
) {
	if err := bounded(req.GetMachines()); err != nil {
		return nil, err
	}
	set := req.GetMachineSet()
	if set == nil {
		if req.GetName() == "" {
			return nil, missingObject("machine set")
		}
		var err error
		if set, err = s.tables.Sets.Get(ctx, namespaceOr(req.GetNamespace(), s.tables.Sets.Type().GetDefaultNamespace()),
			req.GetName()); err != nil {
			return nil, err
		}
	}
	set = inNamespace(set, req.GetNamespace(), s.tables.Sets.Type())
	if req.Replicas != nil {
		if set.Spec == nil {
			set.Spec = &machinev1.MachineSetSpec{}
		}
		set.Spec.Replicas = req.Replicas
	}
	v, seen := s.views.ViewSet(set)
	if req.GetMachines() != nil {
		v.Machines, v.Nodes = given(req.GetMachines(), set.GetMetadata().GetNamespace()),
			readyNodes(req.GetReadyNodes(), v.Now)
	} else if !seen {
		return nil, rpcerr.Unavailable("it is not known yet which nodes there are")
	}
	return setAnswer(plan.Scale(v)), nil
}

func setAnswer(p plan.SetPlan) *machinev1.PlanMachineSetResponse {
	out := &machinev1.PlanMachineSetResponse{
		Creations: int32(p.Create), Status: p.Status, HeldBack: p.Held,
		WakeTime: object.Timestamp(p.Wake),
	}
	for _, m := range p.Adopt {
		out.Adoptions = append(out.Adoptions, m.GetMetadata().GetName())
	}
	for _, d := range p.Delete {
		out.Deletions = append(out.Deletions, &machinev1.PlanMachineSetResponse_Deletion{
			Machine: d.Machine.GetMetadata().GetName(), Priority: d.Priority, Reason: d.Reason,
		})
	}
	return out
}

func bounded(l *machinev1.MachineList) error {
	if n := len(l.GetItems()); n > maxObjects {
		return rpcerr.Invalid(object.Fault{Path: "machines.items", Description: "has " + strconv.Itoa(n) +
			" machines, at most " + strconv.Itoa(maxObjects) + " can be planned for"})
	}
	return nil
}

// inNamespace returns a copy of an object; one without a namespace is in that of the request, or in the default one.
func inNamespace[T object.Object](obj T, namespace string, t *metav1.ResourceType) T {
	obj = object.Clone(obj)
	r := obj.ProtoReflect()
	r.Mutable(r.Descriptor().Fields().ByName("metadata"))
	m := obj.GetMetadata()
	m.Namespace = cmp.Or(m.Namespace, namespace, t.GetDefaultNamespace())
	return obj
}

// given returns the machines of a request by name; one that says no namespace is in that of its set.
func given(l *machinev1.MachineList, namespace string) []*machinev1.Machine {
	var out []*machinev1.Machine
	for _, m := range l.GetItems() {
		m = object.Clone(m)
		if m.Metadata == nil {
			m.Metadata = &metav1.ObjectMeta{}
		}
		if m.Metadata.Namespace == "" {
			m.Metadata.Namespace = namespace
		}
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b *machinev1.Machine) int {
		return compareNames(a.GetMetadata().GetName(), b.GetMetadata().GetName())
	})
	return out
}

func compareNames(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// readyNodes returns nodes of these names that have been ready for a long time.
func readyNodes(list []string, now time.Time) map[string]*nodev1.Node {
	out := map[string]*nodev1.Node{}
	for _, name := range list {
		out[name] = &nodev1.Node{
			Metadata: &metav1.ObjectMeta{Name: name},
			Status: &nodev1.NodeStatus{Conditions: []*nodev1.NodeCondition{{
				Type: "Ready", Status: "True", LastTransitionTime: timestamppb.New(now.Add(-24 * time.Hour)),
			}}},
		}
	}
	return out
}

// controlPlanes is the part of ControlPlaneMachineSetService that is no standard method.
type controlPlanes struct {
	machinev1.UnimplementedControlPlaneMachineSetServiceServer
	server
}

// PlanControlPlaneMachineSet says what a control-plane machine set would do.
func (s controlPlanes) PlanControlPlaneMachineSet(ctx context.Context,
	req *machinev1.PlanControlPlaneMachineSetRequest,
) (*machinev1.PlanControlPlaneMachineSetResponse, error) {
	if err := bounded(req.GetMachines()); err != nil {
		return nil, err
	}
	set, err := s.controlPlane(ctx, req)
	if err != nil {
		return nil, err
	}
	v, seen := s.views.ViewControlPlane(set)
	if req.GetMachines() != nil {
		v.Machines, v.Nodes = given(req.GetMachines(), set.GetMetadata().GetNamespace()),
			readyNodes(req.GetReadyNodes(), v.Now)
	} else if !seen {
		return nil, rpcerr.Unavailable("it is not known yet which nodes there are, or what the provider understands")
	}
	return controlPlaneAnswer(plan.ControlPlane(v)), nil
}

// controlPlane returns the set to plan for. A set that is given, but not its machines, is the live one: it is taken to
// be the owner of that one's machines.
func (s controlPlanes) controlPlane(ctx context.Context, req *machinev1.PlanControlPlaneMachineSetRequest) (
	*machinev1.ControlPlaneMachineSet, error,
) {
	set, typ := req.GetControlPlaneMachineSet(), s.tables.ControlPlanes.Type()
	if set == nil {
		return s.tables.ControlPlanes.Get(ctx, namespaceOr(req.GetNamespace(), typ.GetDefaultNamespace()),
			namespaceOr(req.GetName(), kinds.ClusterName))
	}
	set = inNamespace(set, req.GetNamespace(), typ)
	set.Metadata.Name = cmp.Or(set.Metadata.Name, kinds.ClusterName)
	if live, ok := s.tables.ControlPlanes.Lookup(set.Metadata.Namespace, kinds.ClusterName); ok && set.Metadata.Uid == "" {
		set.Metadata.Uid = live.GetMetadata().GetUid()
	}
	return set, nil
}

func controlPlaneAnswer(p plan.ControlPlanePlan) *machinev1.PlanControlPlaneMachineSetResponse {
	out := &machinev1.PlanControlPlaneMachineSetResponse{
		Actions: p.Actions(), HeldBack: p.Held, Status: p.Status,
		WakeTime: object.Timestamp(p.Wake),
	}
	for _, i := range p.Indexes {
		index := &machinev1.PlanControlPlaneMachineSetResponse_Index{Index: int32(i.Index), FailureDomain: string(i.Domain)}
		for _, m := range i.Machines {
			index.Machines = append(index.Machines, m.GetMetadata().GetName())
		}
		out.Indexes = append(out.Indexes, index)
	}
	return out
}
