package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/machine-api/kinds"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// reconcileSet brings a machine set to its number of machines.
func (c *Controller) reconcileSet(ctx context.Context, key string) (time.Time, error) {
	k := object.ParseKey(key)
	s, ok := c.Tables.Sets.Lookup(k.Namespace, k.Name)
	if !ok {
		return time.Time{}, nil
	}
	if object.Deleting(s) {
		return time.Time{}, nil // the collector releases its machines, or deletes them once it is gone
	}
	v, ok := c.ViewSet(s)
	if !ok {
		return c.Now().Add(retryUnseen), nil
	}
	p, current, err := c.scalePlan(ctx, s, v)
	if err != nil || !current {
		return time.Time{}, err
	}
	if !proto.Equal(s.GetStatus(), p.Status) {
		if _, err := modify(ctx, c.Tables.Sets, s, func(obj *machinev1.MachineSet) { obj.Status = p.Status }); err != nil {
			return time.Time{}, err
		}
		for _, e := range p.Events {
			c.Events.Event(s, e.Type, e.Reason, e.Message)
		}
	}
	errs := c.adopt(ctx, p.Adopt, s)
	errs = append(errs, inParallel(make([]struct{}, p.CreateNow), func(struct{}) error {
		return c.createMachine(ctx, s, plan.FromTemplate(s), func() (string, error) {
			return resource.GenerateName(s.GetMetadata().GetName() + "-"), nil
		})
	})...)
	errs = append(errs,
		inParallel(p.Delete[:p.DeleteNow], func(d plan.Deletion) error {
			return c.deleteMachine(ctx, s, d.Machine, d.Reason)
		})...)
	return p.Wake, errors.Join(errs...)
}

// scalePlan returns the plan of a set. One transaction may delete a machine and shrink its set, and the copies of the
// two kinds receive it at different times: before a deletion the machines catch up with the set, or a second machine
// would go, and before a creation the set with the machines, or the machine would be replaced. current is false if the
// set has changed: that change is decided on next.
func (c *Controller) scalePlan(ctx context.Context, s *machinev1.MachineSet, v plan.SetView) (p plan.SetPlan,
	current bool, err error,
) {
	p = plan.Scale(v)
	if p.DeleteNow > 0 {
		if err := c.Tables.Machines.CatchUp(ctx); err != nil {
			return p, false, err
		}
		v, _ = c.ViewSet(s)
		p = plan.Scale(v)
	}
	if p.CreateNow > 0 {
		if err := c.Tables.Sets.CatchUp(ctx); err != nil {
			return p, false, err
		}
		now, ok := c.Tables.Sets.Lookup(s.GetMetadata().GetNamespace(), s.GetMetadata().GetName())
		if !ok || now.GetMetadata().GetResourceVersion() != s.GetMetadata().GetResourceVersion() {
			return p, false, nil
		}
	}
	return p, true, nil
}

// ViewSet returns everything that a set's plan depends on; false while it is not known which nodes there are. Its work
// depends on the machines of the set, and not on how many others there are.
func (c *Controller) ViewSet(s *machinev1.MachineSet) (plan.SetView, bool) {
	ns, uid := s.GetMetadata().GetNamespace(), s.GetMetadata().GetUid()
	v := plan.SetView{
		Now: c.Now(), Set: s, Machines: c.Tables.Machines.ByIndex(kinds.Unowned, ns), Nodes: map[string]*nodev1.Node{},
	}
	if len(v.Machines) > 0 {
		v.Sets = slices.Collect(c.Tables.Sets.In(ns))
	}
	if uid != "" {
		v.Machines = append(v.Machines, c.Tables.Machines.ByIndex(resource.ByOwner, uid)...)
	}
	for _, m := range v.Machines {
		if n, ok := c.Nodes.Lookup("", m.GetStatus().GetNodeRef().GetName()); ok {
			v.Nodes[n.GetMetadata().GetName()] = n
		}
	}
	return v, c.Nodes.IsSynced()
}

// nameTries is how many random names are tried for a machine: among 10,000 machines of a set some get a name that is
// taken.
const nameTries = 5

// createMachine creates a machine for a set, with the first name that is free.
func (c *Controller) createMachine(ctx context.Context, owner object.Object, m *machinev1.Machine,
	name func() (string, error),
) error {
	var out *machinev1.Machine
	err := status.Error(codes.AlreadyExists, "no name tried")
	for try := 0; try < nameTries && status.Code(err) == codes.AlreadyExists; try++ {
		if m.Metadata.Name, err = name(); err != nil {
			return err
		}
		out, err = c.Tables.Machines.Create(ctx, m)
	}
	if err != nil {
		c.Events.Event(owner, events.Warning, "FailedCreate", fmt.Sprintf("Machine %s: %s", m.GetMetadata().GetName(),
			describe(err)))
		return err
	}
	c.Events.Event(owner, events.Normal, "SuccessfulCreate",
		fmt.Sprintf("Created machine %s", out.GetMetadata().GetName()))
	return nil
}

// deleteMachine asks for the deletion of a machine that is still as it was when that was decided.
func (c *Controller) deleteMachine(ctx context.Context, owner object.Object, m *machinev1.Machine,
	reason string,
) error {
	meta := m.GetMetadata()
	_, err := c.Tables.Machines.Delete(ctx, meta.GetNamespace(), meta.GetName(), &metav1.Preconditions{
		Uid: meta.GetUid(), ResourceVersion: meta.GetResourceVersion(),
	}, resource.WriteOptions{Reason: reason, Decider: owner})
	if err = except(err, codes.NotFound); err != nil {
		return err
	}
	c.Events.Event(owner, events.Normal, "SuccessfulDelete", fmt.Sprintf("Deleted machine %s: %s", meta.GetName(), reason))
	return nil
}

// adopt makes machines belong to a set. One that changed concurrently is decided on again when that change is noticed.
func (c *Controller) adopt(ctx context.Context, machines []*machinev1.Machine, owner object.Object) []error {
	return inParallel(machines, func(m *machinev1.Machine) error {
		_, err := modify(ctx, c.Tables.Machines, m, func(obj *machinev1.Machine) {
			obj.Metadata.OwnerReferences = append(obj.Metadata.OwnerReferences, object.OwnedBy(owner))
		})
		if err = except(err, codes.NotFound); err != nil {
			return fmt.Errorf("adopt machine %s: %w", m.GetMetadata().GetName(), err)
		}
		return nil
	})
}

// reconcileControlPlane moves the control plane one step further.
func (c *Controller) reconcileControlPlane(ctx context.Context, key string) (time.Time, error) {
	k := object.ParseKey(key)
	s, ok := c.Tables.ControlPlanes.Lookup(k.Namespace, k.Name)
	if !ok {
		return time.Time{}, nil
	}
	if object.Deleting(s) {
		return time.Time{}, nil // the collector releases its machines
	}
	v, ok := c.ViewControlPlane(s)
	if !ok {
		return c.Now().Add(retryUnseen), nil
	}
	p, current, err := c.controlPlanePlan(ctx, s, v)
	if err != nil || !current {
		return time.Time{}, err
	}
	if !proto.Equal(s.GetStatus(), p.Status) {
		if _, err := modify(ctx, c.Tables.ControlPlanes, s, func(obj *machinev1.ControlPlaneMachineSet) {
			obj.Status = p.Status
		}); err != nil {
			return time.Time{}, err
		}
		for _, e := range p.Events {
			c.Events.Event(s, e.Type, e.Reason, e.Message)
		}
	}
	errs := c.adopt(ctx, p.Adopt, s)
	errs = append(errs,
		inParallel(p.Delete, func(d plan.Replaced) error { return c.deleteMachine(ctx, s, d.Machine, d.Reason) })...)
	errs = append(errs, inParallel(p.Create, func(w plan.Creation) error {
		return c.createMachine(ctx, s, object.Clone(w.Machine), func() (string, error) {
			return c.controlPlaneName(s, w.Index)
		})
	})...)
	return p.Wake, errors.Join(errs...)
}

// controlPlanePlan returns the plan of the control plane. What is created or deleted is decided by nothing but the
// present: machines and set catch up with etcd, or a machine would be made twice, and the nodes with their service,
// whose copy shows a replacement as ready after it was lost. current is false if the set has changed: that change is
// decided on next.
func (c *Controller) controlPlanePlan(ctx context.Context, s *machinev1.ControlPlaneMachineSet,
	v plan.ControlPlaneView,
) (p plan.ControlPlanePlan, current bool, err error) {
	p = plan.ControlPlane(v)
	if len(p.Create)+len(p.Delete) == 0 {
		return p, true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, evictionLimit)
	defer cancel()
	if err := errors.Join(c.Tables.Machines.CatchUp(ctx), c.Tables.ControlPlanes.CatchUp(ctx)); err != nil {
		return p, false, err
	}
	meta := s.GetMetadata()
	now, ok := c.Tables.ControlPlanes.Lookup(meta.GetNamespace(), meta.GetName())
	if !ok || now.GetMetadata().GetResourceVersion() != meta.GetResourceVersion() {
		return p, false, nil
	}
	unseen := ""
	if len(p.Delete) > 0 && c.CatchUpNodes(ctx) != nil {
		unseen = "eviction-controller does not answer"
	}
	v, ok = c.ViewControlPlane(s)
	v.Unseen = unseen
	return plan.ControlPlane(v), ok, nil
}

// ViewControlPlane returns everything that the control plane's plan depends on; false while it is not known which nodes
// there are, or where the provider has a machine's failure domain. Its work depends on the machines and nodes of the
// control plane, and not on how many others there are, if the set's selector names the role.
func (c *Controller) ViewControlPlane(s *machinev1.ControlPlaneMachineSet) (plan.ControlPlaneView, bool) {
	spec := s.GetSpec().GetTemplate().GetMachinesV1Beta1MachineOpenshiftIo().GetSpec().GetProviderSpec().GetValue()
	domainFields, known := c.Providers.DomainFields(spec)
	infrastructure, _ := c.Tables.Infrastructure.Lookup("", kinds.ClusterName)
	v := plan.ControlPlaneView{
		Now: c.Now(), Set: s, Nodes: map[string]*nodev1.Node{},
		DomainFields: domainFields, Platform: infrastructure.GetStatus().GetPlatform(),
	}
	byUID := map[string]*machinev1.Machine{}
	ns := s.GetMetadata().GetNamespace()
	add := func(list ...*machinev1.Machine) {
		for _, m := range list {
			if m.GetMetadata().GetNamespace() == ns {
				byUID[m.GetMetadata().GetUid()] = m
			}
		}
	}
	sel, _ := object.LabelSelector(s.GetSpec().GetSelector(), "spec.selector")
	if role, ok := sel.RequiresExactMatch(plan.LabelRole); ok && role == plan.RoleMaster {
		add(c.Tables.Machines.ByIndex(kinds.Masters, ns)...)
	} else {
		add(c.machinesIn(ns)...)
	}
	for _, n := range c.Nodes.ByIndex(controlPlane, controlPlane) {
		v.Nodes[n.GetMetadata().GetName()] = n
		add(c.machinesOf(n)...)
	}
	for _, m := range byUID {
		v.Machines = append(v.Machines, m)
		if n, ok := c.Nodes.Lookup("", m.GetStatus().GetNodeRef().GetName()); ok {
			v.Nodes[n.GetMetadata().GetName()] = n
		}
	}
	slices.SortFunc(v.Machines, func(a, b *machinev1.Machine) int {
		return cmp.Compare(a.GetMetadata().GetName(), b.GetMetadata().GetName())
	})
	return v, c.Nodes.IsSynced() && known
}

// controlPlaneName makes a name for a new machine of an index.
func (c *Controller) controlPlaneName(s *machinev1.ControlPlaneMachineSet, index int) (string, error) {
	prefix := s.GetSpec().GetMachineNamePrefix()
	if prefix == "" {
		cluster := c.Tables.InfrastructureName()
		if cluster == "" {
			return "", errors.New("the name of the cluster is not known yet")
		}
		prefix = cluster + "-" + plan.RoleMaster
	}
	return fmt.Sprintf("%s-%d", resource.GenerateName(prefix+"-"), index), nil
}
