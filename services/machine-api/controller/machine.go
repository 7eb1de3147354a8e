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
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/kit/trace"
	"github.com/windlass-dev/windlass/services/machine-api/kinds"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"github.com/windlass-dev/windlass/services/machine-api/provider"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const evictionLimit = 10 * time.Second // of one call to eviction-controller

// reconcileMachine moves one machine one step further. Calls to its provider are only begun: their answers, like every
// change, have it called again.
func (c *Controller) reconcileMachine(ctx context.Context, key string) (time.Time, error) {
	k := object.ParseKey(key)
	m, ok := c.Tables.Machines.Lookup(k.Namespace, k.Name)
	if !ok {
		c.spans.Keep(spansOfMachine(key), nil, c.Now())
		return time.Time{}, nil
	}
	ctx = trace.Continue(ctx, m.GetMetadata())
	v := c.observe(ctx, m)
	c.countFaults(&v)
	p := plan.Next(v)
	c.spans.Keep(spansOfMachine(key), p.States, c.Now())
	c.memory.keep(m, p.Failures)
	m, err := c.writeMachine(ctx, m, p)
	if err != nil {
		return time.Time{}, err
	}
	for _, a := range p.Actions {
		if err := c.act(ctx, m, v, a); err != nil {
			v.Machine, v.Failures = m, p.Failures
			return time.Time{}, errors.Join(fmt.Errorf("%s: %w", a, err), c.reportFailure(ctx, v, a, err))
		}
	}
	if slices.Contains(p.Actions, plan.RemoveFinalizer) {
		c.memory.forget(m)
		return p.Wake, nil
	}
	// A call to a provider is only begun here; its answer ends the failure.
	left := plan.EndFailure(p.Failures, slices.DeleteFunc(slices.Clone(p.Actions), atProvider)...)
	c.memory.settle(m, left)
	if len(left) < len(p.Failures) {
		return c.Now(), nil // to store that it ended
	}
	return p.Wake, nil
}

func spansOfMachine(key string) string { return "machine " + key }

// atProvider reports whether an action is a call to a provider, whose answer arrives later.
func atProvider(a plan.Action) bool {
	return a == plan.CreateInstance || a == plan.GetInstance || a == plan.DeleteInstance
}

// countFaults adds what failed since the last time to the failures of a view.
func (c *Controller) countFaults(v *plan.MachineView) {
	for range c.memory.failedCalls(v.Machine, v.Deletion.Failed) {
		v.Failures = plan.AddFailure(v.Failures, plan.Fault{Step: plan.DeleteInstance, Message: v.Deletion.Err}, v.Now)
	}
	for _, f := range v.Faults {
		if f.Step != plan.DeleteInstance {
			v.Failures = plan.AddFailure(v.Failures, f, v.Now)
		}
	}
}

// reportFailure notes on a machine that a step failed.
func (c *Controller) reportFailure(ctx context.Context, v plan.MachineView, a plan.Action, cause error) error {
	if ctx.Err() != nil || isConflict(cause) && !c.memory.conflicts(v.Machine) {
		return nil
	}
	v.Now = c.Now()
	v.Failures = plan.AddFailure(v.Failures, plan.Fault{Step: a, Message: describe(cause)}, v.Now)
	c.memory.keep(v.Machine, v.Failures)
	_, err := c.writeMachine(ctx, v.Machine, plan.Next(v))
	return except(err, codes.NotFound)
}

func isConflict(err error) bool {
	return errors.Is(err, store.ErrConflict) || status.Code(err) == codes.Aborted
}

// observe returns everything that the next step of a machine depends on, without asking its provider.
func (c *Controller) observe(ctx context.Context, m *machinev1.Machine) plan.MachineView {
	now := c.Now()
	v := plan.MachineView{
		Now: now, Machine: m, Failures: c.memory.failures(m),
		Seen: c.spans.Clock(spansOfMachine(object.KeyOf(m).String()), now).Seen,
	}
	c.viewInstance(&v)
	if object.Deleting(m) && v.Deletion.Err != "" {
		v.Faults = append(v.Faults, plan.Fault{Step: plan.DeleteInstance, Message: v.Deletion.Err})
	}
	c.viewNode(ctx, &v)
	c.viewDrain(ctx, &v)
	return v
}

// ViewMachine returns everything that the next step of a machine depends on. An instance that only the provider can
// speak of is asked for, since a process that does not lead has no answers.
func (c *Controller) ViewMachine(ctx context.Context, m *machinev1.Machine) plan.MachineView {
	v := c.observe(ctx, m)
	if v.Instance != nil || v.InstanceGone || v.InstanceErr != "" || v.NoProvider != "" || plan.IsForgotten(m) ||
		!plan.MayHaveInstance(m) {
		return v
	}
	i, absent, err := c.Providers.Look(ctx, m)
	v.Instance, v.InstanceGone = i, absent && !object.Deleting(m)
	if err != nil {
		v.InstanceErr = describe(err)
	}
	c.doubtInstance(&v)
	return v
}

// viewInstance returns what is known of a machine's instance: the copy says that there is one, but that there is none
// decides between life and death, so only an answer of the provider says that.
func (c *Controller) viewInstance(v *plan.MachineView) {
	m := v.Machine
	if plan.IsForgotten(m) {
		return // a provider that is gone would be waited for
	}
	if spec := m.GetSpec().GetProviderSpec().GetValue(); spec == nil && !plan.MayHaveInstance(m) {
		return
	}
	p, err := c.Providers.Of(m)
	if err != nil {
		v.NoProvider = err.Error()
		return
	}
	v.Provider = p.Name
	creation, lookup, deletion := c.Providers.Answered(provider.Create, m), c.Providers.Answered(provider.Look, m),
		c.Providers.Answered(provider.Delete, m)
	v.Creation, v.Lookup, v.Deletion = call(creation), call(lookup), call(deletion)
	v.Instance = c.Providers.Instance(m)
	switch {
	case object.Deleting(m):
		v.InstanceErr = v.Deletion.Err
		if deletion.Absent {
			v.Instance, v.InstanceGone = nil, true
		}
	case v.Instance != nil:
		c.Providers.Drop(provider.Look, m) // what it said before no longer holds
		c.Providers.Drop(provider.Create, m)
	case status.Code(creation.Err) == codes.InvalidArgument:
		v.Refused = v.Creation.Err
	case m.GetSpec().GetProviderId() != "":
		v.InstanceErr, v.InstanceGone = v.Lookup.Err, lookup.Absent
	default:
		v.CreateErr = v.Creation.Err
	}
	c.doubtInstance(v)
}

// call returns what the plan takes into account of the calls to a provider.
func call(h provider.Answer) plan.Call {
	out := plan.Call{Busy: h.Busy, At: h.At, Failed: h.Failed, Since: h.Since, There: h.Instance != nil}
	if h.Err != nil {
		out.Err = describe(h.Err)
		if status.Code(h.Err) == codes.ResourceExhausted { // else the provider itself is in trouble
			out.Retry = rpcerr.Retry(h.Err)
		}
	}
	return out
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
		v.Instance, v.InstanceErr, v.Doubted = nil, fault, true
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
	if name == "" {
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
		v.Faults = append(v.Faults, plan.Fault{Step: plan.GetNode, Message: describe(err)})
	}
}

// viewDrain asks eviction-controller for the drain if the next step depends on it: the copy may have missed that it
// ended, or that a user deleted it.
func (c *Controller) viewDrain(ctx context.Context, v *plan.MachineView) {
	v.Drain, _ = c.Drains.Lookup("", drainName(v.Machine))
	if v.Node == nil || !plan.AsksDrain(v.Machine) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, evictionLimit)
	defer cancel()
	drain, err := c.drains.GetDrain(ctx, &nodev1.GetDrainRequest{Name: drainName(v.Machine)})
	switch {
	case err == nil:
		v.Drain = drain
	case status.Code(err) == codes.NotFound:
		v.Drain = nil
	default:
		v.Faults = append(v.Faults, plan.Fault{Step: plan.GetDrain, Message: describe(err)})
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
		return c.Providers.Begin(provider.Create, m)
	case plan.GetInstance:
		return c.Providers.Begin(provider.Look, m)
	case plan.DeleteInstance:
		return c.Providers.Begin(provider.Delete, m)
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
	if err := except(err, codes.NotFound); err != nil {
		return err
	}
	c.Providers.Forget(m)
	return nil
}
