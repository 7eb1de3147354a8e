package server

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/machine-api/kinds"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// maxObjects bounds the machines and the nodes that a plan request may have; it is that of the largest machine set.
const maxObjects = 10_000

// sets is the part of MachineSetService that is no standard method.
type sets struct {
	machinev1.UnimplementedMachineSetServiceServer
	server
}

// PlanMachineSet says what a set would do.
func (s sets) PlanMachineSet(ctx context.Context, req *machinev1.PlanMachineSetRequest) (
	*machinev1.PlanMachineSetResponse, error,
) {
	if err := bounded(req.GetMachines(), req.GetNodes()); err != nil {
		return nil, err
	}
	if bad := append(givenSpecFaults(req.GetMachines()), kinds.GivenSpecFaults(
		req.GetMachineSet().GetSpec().GetTemplate().GetSpec().GetProviderSpec(),
		"machineSet.spec.template.spec.providerSpec.value")...); len(bad) > 0 {
		return nil, rpcerr.Invalid(bad...)
	}
	set, err := s.machineSet(ctx, req)
	if err != nil {
		return nil, err
	}
	v, seen := s.views.ViewSet(set)
	if req.GetMachines() != nil {
		v.Now, v.Sets = given(req.GetNow(), v.Now), nil
		v.Machines = givenMachines(req.GetMachines(), set.GetMetadata().GetNamespace())
		v.Nodes = givenNodes(req.GetNodes(), req.GetReadyNodes(), v.Now)
	} else if !seen {
		return nil, rpcerr.Unavailable("it is not known yet which nodes there are")
	}
	return setAnswer(plan.Scale(v)), nil
}

// machineSet returns the set to plan for. A set that is given, but not its machines, owns those of the live set of its
// name.
func (s sets) machineSet(ctx context.Context, req *machinev1.PlanMachineSetRequest) (*machinev1.MachineSet, error) {
	set, typ := req.GetMachineSet(), s.tables.Sets.Type()
	if set == nil {
		if req.GetName() == "" {
			return nil, missingObject("machine set")
		}
		var err error
		if set, err = s.tables.Sets.Get(ctx, namespaceOr(req.GetNamespace(), typ.GetDefaultNamespace()),
			req.GetName()); err != nil {
			return nil, err
		}
	}
	set = inNamespace(set, req.GetNamespace(), typ)
	live, ok := s.tables.Sets.Lookup(set.Metadata.Namespace, set.Metadata.Name)
	if m := live.GetMetadata(); ok && set.Metadata.Uid == "" && req.GetMachines() == nil {
		set.Metadata.Uid, set.Metadata.CreationTimestamp = m.GetUid(), m.GetCreationTimestamp()
	}
	if set.Spec == nil {
		set.Spec = &machinev1.MachineSetSpec{}
	}
	if req.Replicas != nil {
		set.Spec.Replicas = req.Replicas
	}
	if req.MinReadySeconds != nil {
		set.Spec.MinReadySeconds = req.MinReadySeconds
	}
	return set, nil
}

func setAnswer(p plan.SetPlan) *machinev1.PlanMachineSetResponse {
	out := &machinev1.PlanMachineSetResponse{
		Creations: int32(p.Create), CreationsNow: int32(p.CreateNow), DeletionsNow: int32(p.DeleteNow),
		AdoptionReferences: references(p.Adopt), Status: p.Status, HeldBack: p.Held, Events: events(p.Events),
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

func references(machines []*machinev1.Machine) []*metav1.ObjectReference {
	var out []*metav1.ObjectReference
	for _, m := range machines {
		out = append(out, object.Reference(m))
	}
	return out
}

func events(list []plan.Event) []*metav1.PlannedEvent {
	var out []*metav1.PlannedEvent
	for _, e := range list {
		out = append(out, &metav1.PlannedEvent{Type: e.Type, Reason: e.Reason, Message: e.Message})
	}
	return out
}

func bounded(machines *machinev1.MachineList, nodes *nodev1.NodeList) error {
	var bad []object.Fault
	for what, n := range map[string]int{"machines": len(machines.GetItems()), "nodes": len(nodes.GetItems())} {
		if n > maxObjects {
			bad = append(bad, object.Faultf(what+".items", "has %d %s, at most %d can be planned for", n, what, maxObjects))
		}
	}
	if len(bad) > 0 {
		return rpcerr.Invalid(bad...)
	}
	return nil
}

// givenSpecFaults returns what is wrong with the provider specs of the machines of a plan request.
func givenSpecFaults(machines *machinev1.MachineList) []object.Fault {
	var bad []object.Fault
	for i, m := range machines.GetItems() {
		bad = append(bad, kinds.GivenSpecFaults(m.GetSpec().GetProviderSpec(),
			fmt.Sprintf("machines.items[%d].spec.providerSpec.value", i))...)
	}
	return bad
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

// given returns the time of a request, or otherwise.
func given(t *timestamppb.Timestamp, otherwise time.Time) time.Time {
	if t == nil {
		return otherwise
	}
	return t.AsTime()
}

// givenMachines returns the machines of a request by name; one without a namespace is in that of its set.
func givenMachines(l *machinev1.MachineList, namespace string) []*machinev1.Machine {
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
		return cmp.Compare(a.GetMetadata().GetName(), b.GetMetadata().GetName())
	})
	return out
}

// givenNodes returns the nodes of a request by name, and nodes of the ready names that have been ready for a day.
func givenNodes(l *nodev1.NodeList, ready []string, now time.Time) map[string]*nodev1.Node {
	out := map[string]*nodev1.Node{}
	for _, name := range ready {
		out[name] = &nodev1.Node{
			Metadata: &metav1.ObjectMeta{Name: name},
			Status: &nodev1.NodeStatus{Conditions: []*nodev1.NodeCondition{{
				Type: "Ready", Status: "True", LastTransitionTime: timestamppb.New(now.Add(-24 * time.Hour)),
			}}},
		}
	}
	for _, n := range l.GetItems() {
		out[n.GetMetadata().GetName()] = n
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
	if err := bounded(req.GetMachines(), req.GetNodes()); err != nil {
		return nil, err
	}
	if bad := append(givenSpecFaults(req.GetMachines()), kinds.GivenControlPlaneFaults(req.GetControlPlaneMachineSet(),
		"controlPlaneMachineSet")...); len(bad) > 0 {
		return nil, rpcerr.Invalid(bad...)
	}
	set, err := s.controlPlane(ctx, req)
	if err != nil {
		return nil, err
	}
	v, seen := s.views.ViewControlPlane(set)
	if req.GetMachines() != nil {
		v.Now, v.Platform = given(req.GetNow(), v.Now), "" // the machines may be of another cluster
		v.Machines = givenMachines(req.GetMachines(), set.GetMetadata().GetNamespace())
		v.Nodes = givenNodes(req.GetNodes(), req.GetReadyNodes(), v.Now)
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
		Actions: p.Actions(), HeldBack: p.Held, Status: p.Status, AdoptionReferences: references(p.Adopt),
		ErrorReason: p.Reason, ErrorMessage: p.Fault, Events: events(p.Events), WakeTime: object.Timestamp(p.Wake),
	}
	for _, i := range p.Indexes {
		index := &machinev1.PlanControlPlaneMachineSetResponse_Index{Index: int32(i.Index), FailureDomain: string(i.Domain)}
		for _, m := range i.Machines {
			index.Machines = append(index.Machines, m.GetMetadata().GetName())
		}
		out.Indexes = append(out.Indexes, index)
	}
	for _, m := range p.Members {
		out.Machines = append(out.Machines, &machinev1.PlanControlPlaneMachineSetResponse_MachineState{
			Name: m.Machine.GetMetadata().GetName(), Index: int32(m.Index), FailureDomain: string(m.Domain),
			NeedsUpdate: m.Outdated != "", Reason: m.Outdated, TemplateChanges: m.Changes, Ready: m.Ready,
			Deleting:    object.Deleting(m.Machine),
			ErrorReason: m.Machine.GetStatus().GetErrorReason(), ErrorMessage: m.Machine.GetStatus().GetErrorMessage(),
		})
		if m.Domain != "" {
			out.ObservedFailureDomains = append(out.ObservedFailureDomains, string(m.Domain))
		}
	}
	slices.Sort(out.ObservedFailureDomains)
	out.ObservedFailureDomains = slices.Compact(out.ObservedFailureDomains)
	return out
}
