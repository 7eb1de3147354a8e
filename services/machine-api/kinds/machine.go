package kinds

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// servicePrefix begins the user names of Windlass' own services.
const servicePrefix = "system:windlass:"

// defaultMachine says to which cluster a machine belongs. While that is not known the machine goes without, and gets it
// with a later write.
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

func validateMachine(m *machinev1.Machine) []object.Fault {
	bad := plan.DuplicateHooks(m.GetSpec().GetLifecycleHooks(), "")
	bad = append(bad, plan.NameFaults(m.GetMetadata().GetName())...)
	bad = append(bad, plan.TimeoutFaults(m.GetSpec(), "spec.")...)
	return append(bad, plan.NodeRoleFaults(plan.Role(m), m.GetSpec().GetMetadata().GetLabels(), "spec.metadata.labels")...)
}

// machineClaims are what no two machines of any namespaces share: the name, which is the node's too, the instance, and
// its address.
func machineClaims(m *machinev1.Machine) []resource.Claim {
	return []resource.Claim{
		{What: "name", Value: m.GetMetadata().GetName(), Path: "metadata.name"},
		{What: "providerID", Value: m.GetSpec().GetProviderId(), Path: "spec.providerID"},
		{What: "address", Value: plan.HeldAddress(m), Path: "status.addresses"},
	}
}

func validateMachineUpdate(old, changed *machinev1.Machine) []object.Fault {
	out := plan.FixedFaults(old, changed)
	if !object.Deleting(old) {
		return out
	}
	for _, f := range plan.HookChange(old, changed) {
		if !slices.Contains(validateMachine(changed), f) {
			out = append(out, f)
		}
	}
	return out
}

// admitMachine lets only a hook's owner and administrators take the hook off a machine that is being deleted, and only
// machine-api say which instance a machine has.
func (t *Tables) admitMachine(w *resource.Write[*machinev1.Machine]) error {
	old, changed := w.Old, w.New
	if w.Own || w.Deletes() {
		return nil
	}
	if was, is := old.GetSpec().GetProviderId(), changed.GetSpec().GetProviderId(); was != is {
		return rpcerr.Invalid(object.Fault{
			Path:        "spec.providerID",
			Description: fmt.Sprintf("cannot be set to %q: machine-api takes it over from the provider", is),
		})
	}
	was, is := old.GetMetadata().GetAnnotations()[plan.AnnotationProvider],
		changed.GetMetadata().GetAnnotations()[plan.AnnotationProvider]
	if was != is {
		return rpcerr.Invalid(object.Fault{
			Path: fmt.Sprintf("metadata.annotations['%s']", plan.AnnotationProvider),
			Description: fmt.Sprintf("cannot be changed from %q to %q: machine-api notes there which provider it asked", was,
				is),
		})
	}
	if err := mayOwn(t, w, "machines"); err != nil {
		return err
	}
	if err := checkSpec(t, w, "spec.providerSpec.value", func(m *machinev1.Machine) *structpb.Struct {
		return m.GetSpec().GetProviderSpec().GetValue()
	}); err != nil {
		return err
	}
	if bad := newMachineFaults(w); len(bad) > 0 {
		return rpcerr.Invalid(bad...)
	}
	if old == nil {
		return nil
	}
	if !plan.SameNodeRoles(old, changed) {
		if ok, reason := t.policy.Allowed(w.By, identity.Attributes{
			Verb: "update", Resource: "nodes/role",
			Name: changed.GetMetadata().GetName(),
		}); !ok {
			return rpcerr.Forbidden("spec.metadata.labels: roles of nodes: " + reason)
		}
	}
	for _, r := range plan.GuardedRemovals(old, changed) {
		if allowed, _ := t.MayComplete(w.By, r.Hook.GetOwner()); !allowed {
			return rpcerr.Forbidden(
				fmt.Sprintf("user %q may not remove hook %s from %s: it belongs to %s, and the machine is being deleted",
					w.By.User, r.Hook.GetName(), r.Field, r.Hook.GetOwner()))
		}
	}
	return nil
}

// newMachineFaults returns what the node of a machine could not have. Machines that were stored before a rule existed
// may still be changed otherwise.
func newMachineFaults(w *resource.Write[*machinev1.Machine]) []object.Fault {
	var bad []object.Fault
	if w.Creates() {
		bad = plan.LongNameFaults(w.New.GetMetadata().GetName())
	}
	old, now := w.Old.GetSpec(), w.New.GetSpec()
	bad = append(bad, plan.ManyHooksFaults(now.GetLifecycleHooks(), old.GetLifecycleHooks(), "")...)
	bad = append(bad, plan.QuorumHookFaults(now.GetLifecycleHooks(), old.GetLifecycleHooks(),
		w.New.GetMetadata().GetLabels(), "")...)
	same := slices.EqualFunc(old.GetTaints(), now.GetTaints(), func(a, b *nodev1.Taint) bool { return proto.Equal(a, b) })
	if !w.Creates() && same && proto.Equal(old.GetMetadata(), now.GetMetadata()) {
		return bad
	}
	return append(bad, plan.NodeFaults(now, "spec")...)
}

// markDeletion records in a machine what requested its deletion, and why.
func markDeletion(w *resource.Write[*machinev1.Machine], marked *machinev1.Machine) {
	d := &machinev1.MachineDeletion{Reason: w.Reason, RequestTime: marked.GetMetadata().GetDeletionTimestamp()}
	switch owner := object.ControllerOf(marked); {
	case w.Decider != nil:
		d.Trigger, d.RequestedBy = object.TypeOf(w.Decider.ProtoReflect().Descriptor()).GetKind(),
			w.Decider.GetMetadata().GetName()
	case strings.HasPrefix(w.By.User, servicePrefix):
		d.Trigger, d.RequestedBy = "Service", w.By.User
	case w.By.User != "":
		d.Trigger, d.RequestedBy = "User", w.By.User
	case owner != nil: // the collector deletes what a deleted set owns
		d.Trigger, d.RequestedBy = owner.GetKind(), owner.GetName()
		d.Reason = cmp.Or(d.Reason, "its owner was deleted")
	default:
		d.Trigger, d.RequestedBy = "Service", servicePrefix+"machine-api"
	}
	if marked.Status == nil {
		marked.Status = &machinev1.MachineStatus{}
	}
	marked.Status.Deletion = d
}

// MayComplete reports whether a caller may answer for an owner of hooks, and why.
func (t *Tables) MayComplete(c identity.Caller, owner string) (bool, string) {
	return t.policy.Allowed(c, identity.Attributes{
		Verb: "complete", Group: "windlass.dev", Resource: "hooks",
		Name: owner,
	})
}
