package kinds

import (
	"context"
	"fmt"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
)

// defaultMachine says to which cluster a machine belongs. While that is not known the machine goes without, and gets it with a later write.
func (t *Tables) defaultMachine(m *machinev1.Machine) {
	if name := t.InfrastructureName(); name != "" && m.GetMetadata().GetLabels()[plan.LabelCluster] == "" {
		setLabel(&m.Metadata.Labels, plan.LabelCluster, name)
	}
}

func setLabel(labels *map[string]string, key, value string) {
	if *labels == nil {
		*labels = map[string]string{}
	}
	(*labels)[key] = value
}

func validateMachine(m *machinev1.Machine) []rpcerr.Field {
	bad := plan.DuplicateHooks(m.GetSpec().GetLifecycleHooks(), "")
	bad = append(bad, plan.NameFaults(m.GetMetadata().GetName())...)
	return fields(append(bad, plan.NodeRoleFaults(plan.Role(m), m.GetSpec().GetMetadata().GetLabels(), "spec.metadata.labels")...))
}

// machineClaims are what no two machines of any namespaces share: the name, which is the node's too, the instance, and its address.
func machineClaims(m *machinev1.Machine) []resource.Claim {
	return []resource.Claim{
		{What: "name", Value: m.GetMetadata().GetName(), Path: "metadata.name"},
		{What: "providerID", Value: m.GetSpec().GetProviderId(), Path: "spec.providerID"},
		{What: "address", Value: plan.HeldAddress(m), Path: "status.addresses"},
	}
}

func validateMachineUpdate(old, changed *machinev1.Machine) []rpcerr.Field {
	out := fields(plan.FixedFaults(old, changed))
	if !resource.Deleting(old) {
		return out
	}
	for _, f := range fields(plan.HookChange(old, changed)) {
		duplicate := false
		for _, known := range validateMachine(changed) {
			duplicate = duplicate || known == f
		}
		if !duplicate {
			out = append(out, f)
		}
	}
	return out
}

// admitMachine lets only a hook's owner and administrators take the hook off a machine that is being deleted, and only machine-api say which
// instance a machine has.
func (t *Tables) admitMachine(ctx context.Context, old, changed *machinev1.Machine) error {
	caller, called := identity.CallerFrom(ctx)
	if changed == nil || !called {
		return nil // a deletion, or a write of this service itself
	}
	if was, is := old.GetSpec().GetProviderId(), changed.GetSpec().GetProviderId(); was != is {
		return rpcerr.Invalid(rpcerr.Field{Path: "spec.providerID", Description: fmt.Sprintf("cannot be set to %q: machine-api takes it over from the provider", is)})
	}
	if old == nil {
		return nil
	}
	if !plan.SameNodeRoles(old, changed) {
		if ok, reason := t.policy.Allowed(caller, identity.Attributes{Verb: "update", Resource: "nodes/role", Name: changed.GetMetadata().GetName()}); !ok {
			return rpcerr.Forbidden("spec.metadata.labels: roles of nodes: " + reason)
		}
	}
	for _, r := range plan.GuardedRemovals(old, changed) {
		if allowed, _ := t.MayComplete(caller, r.Hook.GetOwner()); !allowed {
			return rpcerr.Forbidden(fmt.Sprintf("user %q may not remove hook %s from %s: it belongs to %s, and the machine is being deleted",
				caller.User, r.Hook.GetName(), r.Field, r.Hook.GetOwner()))
		}
	}
	return nil
}

// MayComplete reports whether a caller may answer for an owner of hooks, and why.
func (t *Tables) MayComplete(c identity.Caller, owner string) (bool, string) {
	return t.policy.Allowed(c, identity.Attributes{Verb: "complete", Group: "windlass.dev", Resource: "hooks", Name: owner})
}
