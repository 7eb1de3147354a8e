package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/trace"
	"github.com/windlass-dev/windlass/services/machine-api/kinds"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"github.com/windlass-dev/windlass/services/machine-api/provider"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	evictionLimit = 10 * time.Second // of one call to eviction-controller
	passes        = 3                // that one look may make at once: create, take over what came of it, and one to spare
)

// reconcileMachine moves one machine one step further.
func (c *Controller) reconcileMachine(ctx context.Context, key string) (time.Time, error) {
	k := object.ParseKey(key)
	for range passes {
		m, ok := c.Tables.Machines.Lookup(k.Namespace, k.Name)
		if !ok {
			return time.Time{}, nil
		}
		again, wake, err := c.pass(trace.Continue(ctx, m.GetMetadata()), m)
		if err != nil || !again {
			return wake, err
		}
	}
	return c.Now(), nil
}

// pass observes, plans, writes and acts once. again says that there is more to do at once.
func (c *Controller) pass(ctx context.Context, m *machinev1.Machine) (again bool, wake time.Time, err error) {
	v := c.ViewMachine(ctx, m)
	p := plan.Next(v)
	m, err = c.writeMachine(ctx, m, p)
	if err != nil {
		return false, time.Time{}, err
	}
	for _, a := range p.Actions {
		if err := c.act(ctx, m, v, a); err != nil {
			return false, time.Time{}, fmt.Errorf("%s: %w", a, err)
		}
		again = again || a == plan.CreateInstance
	}
	return again, p.Wake, nil
}

// ViewMachine returns everything that the next step of a machine depends on.
func (c *Controller) ViewMachine(ctx context.Context, m *machinev1.Machine) plan.MachineView {
	v := plan.MachineView{Now: c.Now(), Machine: m, CreateErr: c.createError(m)}
	c.viewInstance(ctx, &v)
	c.viewNode(ctx, &v)
	v.Drain, _ = c.Drains.Lookup("", drainName(m))
	return v
}

func (c *Controller) viewInstance(ctx context.Context, v *plan.MachineView) {
	if plan.IsForgotten(v.Machine) {
		return // a provider that is gone would be waited for
	}
	defer c.doubtInstance(v)
	if v.Instance = c.Providers.Instance(v.Machine); v.Instance != nil {
		return
	}
	existed := v.Machine.GetSpec().GetProviderId() != "" && v.Machine.GetStatus().GetPhase() != plan.PhaseFailed
	if !existed && !object.Deleting(v.Machine) {
		c.viewProvider(v)
		return
	}
	// That there is none decides between life and death, so a copy's word is not enough.
	i, absent, err := c.Providers.Look(ctx, v.Machine)
	v.Instance, v.InstanceGone = i, absent
	if err != nil {
		v.InstanceErr = describe(err)
	}
}

// doubtInstance refuses an instance that cannot be the machine's. One whose machine is being deleted is deleted all the
// same.
func (c *Controller) doubtInstance(v *plan.MachineView) {
	if v.Instance == nil || object.Deleting(v.Machine) {
		return
	}
	fault := plan.InstanceFault(plan.InstanceView{
		Machine: v.Machine, Instance: v.Instance, Machines: c.rivals(v.Instance), Reserved: c.Reserved,
	})
	if fault != "" {
		v.Instance, v.InstanceErr = nil, fault
	}
}

// rivals returns the machines that have the instance, or one of its addresses: all that plan.InstanceFault compares.
func (c *Controller) rivals(i *providerv1.Instance) []*machinev1.Machine {
	var out []*machinev1.Machine
	if id := i.GetProviderId(); id != "" {
		out = c.Tables.Machines.ByIndex(kinds.ByInstance, id)
	}
	for _, a := range plan.InternalAddresses(i.GetAddresses()) {
		out = append(out, c.Tables.Machines.ByIndex(kinds.ByAddress, a)...)
	}
	return out
}

// viewProvider returns whether a provider can create the instance.
func (c *Controller) viewProvider(v *plan.MachineView) {
	spec := v.Machine.GetSpec().GetProviderSpec().GetValue()
	if spec == nil {
		return
	}
	_, err := c.Providers.For(spec)
	switch {
	case errors.Is(err, provider.ErrUnknownKind):
		v.Refused = err.Error()
	case err != nil:
		v.CreateErr = err.Error()
	}
}

// describe returns an error as people should read it, without the trappings of gRPC.
func describe(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

func (c *Controller) viewNode(ctx context.Context, v *plan.MachineView) {
	v.NodesSeen = c.Nodes.IsSynced()
	if v.Node = c.nodeOf(v.Machine, v.Instance); v.Node != nil || !object.Deleting(v.Machine) {
		return
	}
	name := v.Machine.GetStatus().GetNodeRef().GetName()
	if name == "" && (v.InstanceGone || plan.IsForgotten(v.Machine)) {
		name = v.Machine.GetMetadata().GetName() // its agent may have registered at the last moment
	}
	if name == "" || !v.NodesSeen {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, evictionLimit)
	defer cancel()
	node, err := c.nodes.GetNode(ctx, &nodev1.GetNodeRequest{Name: name})
	switch {
	case err == nil && plan.IsNodeOf(node, v.Machine, v.Machine.GetSpec().GetProviderId()):
		v.Node = node
	case err != nil && status.Code(err) != codes.NotFound:
		v.NodesSeen = false
	}
}

// nodeOf finds the node of a machine among those that are known: the one it was linked to, or else one that
// plan.IsNodeOf says is its own. One that registered for the machine goes before one that only names its instance.
func (c *Controller) nodeOf(m *machinev1.Machine, i *providerv1.Instance) *nodev1.Node {
	id := m.GetSpec().GetProviderId()
	if id == "" {
		id = i.GetProviderId()
	}
	for _, name := range []string{m.GetStatus().GetNodeRef().GetName(), m.GetMetadata().GetName()} {
		if n, ok := c.Nodes.Lookup("", name); ok && name != "" && plan.IsNodeOf(n, m, id) {
			return n
		}
	}
	for _, n := range c.nodesOf(m, id) {
		if plan.IsNodeOf(n, m, id) {
			return n
		}
	}
	return nil
}

// nodesOf returns the nodes that registered for a machine, followed by those of its instance.
func (c *Controller) nodesOf(m *machinev1.Machine, providerID string) []*nodev1.Node {
	var out []*nodev1.Node
	if uid := m.GetMetadata().GetUid(); uid != "" {
		out = c.Nodes.ByIndex(byMachineUID, uid)
	}
	if providerID != "" {
		out = append(out, c.Nodes.ByIndex(byProviderID, providerID)...)
	}
	return out
}

// writeMachine stores what a plan says of the machine itself, and records its events.
func (c *Controller) writeMachine(ctx context.Context, m *machinev1.Machine, p plan.MachinePlan) (*machinev1.Machine,
	error,
) {
	if proto.Equal(m.GetStatus(), p.Status) && p.Labels == nil && p.Annotations == nil &&
		m.GetSpec().GetProviderId() == p.ProviderID {
		return m, nil
	}
	out, err := modify(ctx, c.Tables.Machines, m, func(obj *machinev1.Machine) {
		obj.Status = p.Status
		merge(&obj.Metadata.Labels, p.Labels)
		merge(&obj.Metadata.Annotations, p.Annotations)
		if p.ProviderID != "" {
			if obj.Spec == nil {
				obj.Spec = &machinev1.MachineSpec{}
			}
			obj.Spec.ProviderId = p.ProviderID
		}
	})
	if err != nil {
		return nil, err
	}
	for _, e := range p.Events {
		c.Events.Event(out, e.Type, e.Reason, e.Message)
	}
	return out, nil
}

func merge(into *map[string]string, more map[string]string) {
	if len(more) == 0 {
		return
	}
	if *into == nil {
		*into = map[string]string{}
	}
	maps.Copy(*into, more)
}

func (c *Controller) act(ctx context.Context, m *machinev1.Machine, v plan.MachineView, a plan.Action) error {
	switch a {
	case plan.CreateInstance:
		return c.createInstance(ctx, m, v)
	case plan.DeleteInstance:
		return c.Providers.Delete(ctx, m)
	case plan.RevokeMachine:
		return c.Tables.RevokeMachine(ctx, m, "the machine was deleted")
	case plan.RemoveFinalizer:
		return c.removeFinalizer(ctx, m)
	}
	ctx, cancel := context.WithTimeout(ctx, evictionLimit)
	defer cancel()
	switch a {
	case plan.UpdateNode:
		return c.updateNode(ctx, m, v.Node)
	case plan.CreateDrain:
		_, err := c.drains.CreateDrain(ctx, &nodev1.CreateDrainRequest{Drain: newDrain(m, v.Node)})
		return except(err, codes.AlreadyExists)
	case plan.DeleteNode:
		node := v.Node.GetMetadata()
		_,
			err := c.nodes.DeleteNode(ctx, &nodev1.DeleteNodeRequest{Name: node.GetName(), Preconditions: &metav1.Preconditions{
			Uid: node.GetUid(),
		}})
		return except(err, codes.NotFound)
	case plan.DeleteDrain:
		_, err := c.drains.DeleteDrain(ctx, &nodev1.DeleteDrainRequest{Name: drainName(m)})
		return except(err, codes.NotFound)
	}
	return fmt.Errorf("unknown action %q", a)
}

// except returns err unless it has a code that says that the work is done already.
func except(err error, done codes.Code) error {
	if status.Code(err) == done {
		return nil
	}
	return err
}

// createInstance has the provider make the instance. If the provider says that this can never work, the machine has
// failed.
func (c *Controller) createInstance(ctx context.Context, m *machinev1.Machine, v plan.MachineView) error {
	p, err := c.Providers.For(m.GetSpec().GetProviderSpec().GetValue())
	if err != nil {
		return err
	}
	boot, err := c.Bootstrap.For(ctx, m)
	if err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	_, err = p.Create(ctx, &providerv1.CreateInstanceRequest{
		RequestToken: m.GetMetadata().GetUid(), Machine: object.Reference(m),
		ProviderSpec: m.GetSpec().GetProviderSpec().GetValue(), Bootstrap: boot,
	})
	if err == nil {
		c.setCreateError(m, "")
		return nil
	}
	v.Machine = m
	if status.Code(err) == codes.InvalidArgument {
		v.Refused = describe(err)
		_, err = c.writeMachine(ctx, m, plan.Next(v))
		return err
	}
	c.setCreateError(m, describe(err))
	v.CreateErr = describe(err)
	_, told := c.writeMachine(ctx, m, plan.Next(v))
	return errors.Join(err, told)
}

func (c *Controller) createError(m *machinev1.Machine) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.createErrors[m.GetMetadata().GetUid()]
}

func (c *Controller) setCreateError(m *machinev1.Machine, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if text == "" {
		delete(c.createErrors, m.GetMetadata().GetUid())
	} else {
		c.createErrors[m.GetMetadata().GetUid()] = text
	}
}

func drainName(m *machinev1.Machine) string { return "machine-" + m.GetMetadata().GetUid() }

func newDrain(m *machinev1.Machine, n *nodev1.Node) *nodev1.Drain {
	d := &nodev1.Drain{
		Metadata: &metav1.ObjectMeta{Name: drainName(m)},
		Spec: &nodev1.DrainSpec{
			NodeName: n.GetMetadata().GetName(), NodeUid: n.GetMetadata().GetUid(),
			Reason:     fmt.Sprintf("machine %s is being deleted", m.GetMetadata().GetName()),
			MachineRef: object.Reference(m), IgnoreDaemonSets: proto.Bool(true), Force: proto.Bool(true),
			DeleteEmptyDirData: proto.Bool(true),
		},
	}
	trace.Follow(d.GetMetadata(), m.GetMetadata())
	return d
}

// updateNode puts what the machine's spec wants on its node, if the node is still as it was seen.
func (c *Controller) updateNode(ctx context.Context, m *machinev1.Machine, n *nodev1.Node) error {
	labels, annotations, taints := plan.NodeChange(m, n)
	metadata := map[string]any{"resourceVersion": n.GetMetadata().GetResourceVersion(), "uid": n.GetMetadata().GetUid()}
	if labels != nil {
		metadata["labels"] = labels
	}
	if annotations != nil {
		metadata["annotations"] = annotations
	}
	patch := map[string]any{"metadata": metadata}
	if taints != nil {
		list, err := taintDocuments(taints)
		if err != nil {
			return err
		}
		patch["spec"] = map[string]any{"taints": list}
	}
	data, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	_, err = c.nodes.PatchNode(ctx, &nodev1.PatchNodeRequest{
		Name: n.GetMetadata().GetName(), Patch: &httpbody.HttpBody{ContentType: manifest.MergePatch, Data: data},
	})
	return err
}

func taintDocuments(taints []*nodev1.Taint) ([]json.RawMessage, error) {
	out := make([]json.RawMessage, len(taints))
	for i, t := range taints {
		doc, err := manifest.Encode(t)
		if err != nil {
			return nil, err
		}
		out[i] = doc
	}
	return out, nil
}

// removeFinalizer lets a machine go whose deletion is complete.
func (c *Controller) removeFinalizer(ctx context.Context, m *machinev1.Machine) error {
	if err := c.Bootstrap.Forget(ctx, m.GetMetadata().GetUid()); err != nil {
		return err
	}
	_, err := modify(ctx, c.Tables.Machines, m, func(obj *machinev1.Machine) {
		obj.Metadata.Finalizers = slices.DeleteFunc(obj.Metadata.Finalizers, func(f string) bool {
			return f == plan.FinalizerMachine
		})
	})
	c.setCreateError(m, "")
	return except(err, codes.NotFound)
}
