// Package kinds defines the rules of nodes and drains beyond the shape of their messages: which writes are refused, and
// what else a write changes.
package kinds

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"buf.build/go/protovalidate"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/nodeid"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/windlass-dev/windlass/services/eviction-controller/liveness"
	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// Tables are the records of this service.
type Tables struct {
	Nodes  *resource.Table[*nodev1.Node]
	Drains *resource.Table[*nodev1.Drain]
	policy *identity.Policy
}

// New returns the tables over a store. policy decides who may set the roles of nodes. Nothing is read before they run.
func New(st *store.Store, validator protovalidate.Validator, policy *identity.Policy, log *slog.Logger) *Tables {
	t := &Tables{policy: policy}
	t.Drains = resource.NewTable(st, validator, resource.Config[*nodev1.Drain]{
		Validate: namesNode, ValidateUpdate: sameNode, Admit: t.admitDrain, Finalizers: []string{plan.Finalizer}, Log: log,
		Indexes: map[string]func(*nodev1.Drain) []string{
			byNode: func(d *nodev1.Drain) []string { return []string{d.GetSpec().GetNodeName()} },
		},
	})
	// A node is created together with the status that its agent reports.
	t.Nodes = resource.NewTable(st, validator, resource.Config[*nodev1.Node]{
		Validate: taints, ValidateUpdate: sameInstance, Admit: t.admitNode, KeepStatus: true, Log: log,
	})
	return t
}

const byNode = "spec.nodeName" // an index of drains

// DrainsNaming returns the drains that name a node, ordered by name, including those of a previous node with that name.
// They must not be modified.
func (t *Tables) DrainsNaming(node string) []*nodev1.Drain { return t.Drains.ByIndex(byNode, node) }

// DrainsOf returns the drains of a node, ordered by name. They must not be modified.
func (t *Tables) DrainsOf(name string) []*nodev1.Drain {
	node, _ := t.Nodes.Lookup("", name)
	return slices.DeleteFunc(t.DrainsNaming(name), func(d *nodev1.Drain) bool { return !plan.Drains(d, node) })
}

// OtherDrains returns the drains of the same node as d, without d, ordered by name. They must not be modified.
func (t *Tables) OtherDrains(d *nodev1.Drain) []*nodev1.Drain {
	return slices.DeleteFunc(t.DrainsOf(d.GetSpec().GetNodeName()), func(o *nodev1.Drain) bool {
		return o.GetMetadata().GetName() == d.GetMetadata().GetName()
	})
}

// admitNode checks a node that a caller writes. It also keeps the user's cordon up to date and this service's taints as
// they are, and records when a NoExecute taint was set.
func (t *Tables) admitNode(w *resource.Write[*nodev1.Node]) error {
	if w.Own {
		return nil
	}
	old, node, caller := w.Old, w.New, w.By
	if name, ok := caller.Node(); ok {
		return rpcerr.Forbidden(fmt.Sprintf("the agent of node %q may change it only through NodeAgentService", name))
	}
	if node == nil {
		return nil
	}
	if err := foreignStatus("node", old, old.GetStatus(), node.GetStatus()); err != nil {
		return err
	}
	if old == nil {
		node.Status = nil
	}
	if err := t.admitIdentity(caller, old, node); err != nil {
		return err
	}
	if err := t.admitMarks(caller, old, node); err != nil {
		return err
	}
	plan.Taint(old, node, time.Now().UTC())
	plan.Observe(node, liveness.Uptime())
	plan.Cordon(old, node, t.DrainsOf(node.GetMetadata().GetName()), caller.User)
	return nil
}

func (t *Tables) admitDrain(w *resource.Write[*nodev1.Drain]) error {
	if w.Own || w.Deletes() {
		return nil
	}
	old, drain := w.Old, w.New
	if node, ok := t.Nodes.Lookup("", drain.GetSpec().GetNodeName()); ok && old == nil &&
		drain.GetSpec().GetNodeUid() == "" {
		drain.Spec.NodeUid = node.GetMetadata().GetUid()
	}
	return foreignStatus("drain", old, old.GetStatus(), drain.GetStatus())
}

// configurator is the service whose annotations record the configuration of a node.
const configurator = "node-configurator"

// admitMarks allows only node-configurator, and callers with the right to update nodes/config, to change the
// configuration annotations of a node.
func (t *Tables) admitMarks(caller identity.Caller, old, node *nodev1.Node) error {
	if service, _ := caller.Service(); service == configurator {
		return nil
	}
	for _, key := range nodeid.Configuration() {
		if old.GetMetadata().GetAnnotations()[key] == node.GetMetadata().GetAnnotations()[key] {
			continue
		}
		right := identity.Attributes{Verb: "update", Resource: "nodes/config", Name: node.GetMetadata().GetName()}
		if ok, reason := t.policy.Allowed(caller, right); !ok {
			return rpcerr.Forbidden(fmt.Sprintf("metadata.annotations['%s']: is written by node-configurator: %s", key, reason))
		}
	}
	return nil
}

// admitIdentity refuses changes of the annotations that link a node to its machine, and allows changes of its roles
// only to callers with the right to update nodes/role.
func (t *Tables) admitIdentity(caller identity.Caller, old, node *nodev1.Node) error {
	for _, key := range []string{nodeid.MachineUID, nodeid.MachineRole} {
		if was, is := old.GetMetadata().GetAnnotations()[key], node.GetMetadata().GetAnnotations()[key]; was != is {
			return rpcerr.Forbidden(
				fmt.Sprintf("metadata.annotations['%s']: is written only by eviction-controller, when the node's agent registers",
					key))
		}
	}
	if slices.Equal(nodeid.Roles(old.GetMetadata().GetLabels()), nodeid.Roles(node.GetMetadata().GetLabels())) {
		return nil
	}
	right := identity.Attributes{Verb: "update", Resource: "nodes/role", Name: node.GetMetadata().GetName()}
	if ok, reason := t.policy.Allowed(caller, right); !ok {
		return rpcerr.Forbidden(fmt.Sprintf("metadata.labels: labels %s*: %s", nodeid.RolePrefix, reason))
	}
	return nil
}

// sameInstance refuses a change of a node's instance: the instance decides which machine's deletion also deletes the
// node.
func sameInstance(old, node *nodev1.Node) []object.Fault {
	was, is := old.GetSpec().GetProviderId(), node.GetSpec().GetProviderId()
	if was == is || was == "" && node.GetMetadata().GetAnnotations()[nodeid.MachineUID] != "" {
		return nil
	}
	return []object.Fault{
		{
			Path: "spec.providerID",
			Description: fmt.Sprintf(
				"cannot be changed from %q to %q: it is fixed when the node is created or its agent registers", was, is),
		},
	}
}

// foreignStatus refuses a status that another caller writes. The status in a creation is ignored, as for every kind.
func foreignStatus(what string, old proto.Message, was, is protoreflect.ProtoMessage) error {
	if !old.ProtoReflect().IsValid() || proto.Equal(was, is) {
		return nil
	}
	return rpcerr.Forbidden(fmt.Sprintf("the status of a %s is written only by eviction-controller", what))
}

// namesNode requires a spec: the rules of the message require spec.nodeName only if there is one.
func namesNode(drain *nodev1.Drain) []object.Fault {
	if drain.GetSpec() == nil {
		return []object.Fault{{Path: "spec.nodeName", Description: "must be given"}}
	}
	return nil
}

func sameNode(old, drain *nodev1.Drain) []object.Fault {
	if was, is := old.GetSpec().GetNodeName(), drain.GetSpec().GetNodeName(); was != is {
		return []object.Fault{{Path: "spec.nodeName", Description: fmt.Sprintf("cannot be changed from %q to %q", was, is)}}
	}
	if was, is := old.GetSpec().GetNodeUid(), drain.GetSpec().GetNodeUid(); was != is {
		return []object.Fault{{Path: "spec.nodeUID", Description: fmt.Sprintf("cannot be changed from %q to %q", was, is)}}
	}
	return nil
}

// taints returns what is wrong with a node's taints. Source: Kubernetes' validation of nodes.
func taints(node *nodev1.Node) []object.Fault {
	type id struct{ key, effect string }
	seen := map[id]bool{}
	var bad []object.Fault
	for i, t := range node.GetSpec().GetTaints() {
		path := fmt.Sprintf("spec.taints[%d]", i)
		if t.GetKey() != "" { // the rules of the message report a missing one
			for _, msg := range validation.IsQualifiedName(t.GetKey()) {
				bad = append(bad, object.Fault{Path: path + ".key", Description: fmt.Sprintf("invalid value %q: %s", t.GetKey(),
					msg)})
			}
		}
		for _, msg := range validation.IsValidLabelValue(t.GetValue()) {
			bad = append(bad, object.Fault{Path: path + ".value", Description: fmt.Sprintf("invalid value %q: %s", t.GetValue(),
				msg)})
		}
		this := id{t.GetKey(), t.GetEffect()}
		if seen[this] {
			bad = append(bad, object.Fault{Path: path, Description: fmt.Sprintf("duplicate key %q with effect %s",
				t.GetKey(), t.GetEffect())})
		}
		seen[this] = true
	}
	return bad
}
