// Package kinds says what tasks and owners of hooks are beyond the shape of their messages: which writes are refused.
package kinds

import (
	"log/slog"

	"buf.build/go/protovalidate"
	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/hook-broker/plan"
)

// Tables are the records of this service.
type Tables struct {
	Tasks  *resource.Table[*hookv1.HookTask]
	Owners *resource.Table[*hookv1.HookOwner]
}

// New returns the tables over a store. Nothing is read before they run. webhooks are the addresses that webhooks may
// have; see plan.WebhookFaults.
func New(st *store.Store, validator protovalidate.Validator, webhooks []string, log *slog.Logger) *Tables {
	t := &Tables{
		// No method of the API writes a task directly, so no write has to be refused.
		Tasks: resource.NewTable(st, validator, resource.Config[*hookv1.HookTask]{KeepStatus: true, Log: log}),
		Owners: resource.NewTable(st, validator, resource.Config[*hookv1.HookOwner]{
			Validate: plan.OwnerFaults,
			Admit:    func(w *resource.Write[*hookv1.HookOwner]) error { return admitOwner(w, webhooks) },
			Log:      log,
		}),
	}
	t.Tasks.Index(byMachine, func(task *hookv1.HookTask) []string { return []string{MachineOf(task).String()} })
	t.Tasks.Index(byOwner, func(task *hookv1.HookTask) []string { return []string{task.GetSpec().GetOwner()} })
	return t
}

// Indexes of tasks.
const (
	byMachine = "machine" // namespace/name
	byOwner   = "spec.owner"
)

// MachineOf returns the machine of a task.
func MachineOf(t *hookv1.HookTask) object.Key {
	ref := t.GetSpec().GetMachineRef()
	return object.Key{Namespace: ref.GetNamespace(), Name: ref.GetName()}
}

// Owner returns the object of an owner, as hooks name it; it must not be modified.
func (t *Tables) Owner(owner string) (*hookv1.HookOwner, bool) {
	return t.Owners.Lookup("", plan.OwnerName(owner))
}

// TasksOfMachine returns the tasks that name a machine, ordered by name; they must not be modified.
func (t *Tables) TasksOfMachine(k object.Key) []*hookv1.HookTask {
	return t.Tasks.ByIndex(byMachine, k.String())
}

// TasksOfOwner returns the tasks of an owner, as hooks name it, ordered by name; they must not be modified.
func (t *Tables) TasksOfOwner(owner string) []*hookv1.HookTask {
	return t.Tasks.ByIndex(byOwner, owner)
}

// Subject returns what events about a task are about: its machine, where people look.
func Subject(t *hookv1.HookTask) object.Object {
	ref := t.GetSpec().GetMachineRef()
	return &machinev1.Machine{Metadata: &metav1.ObjectMeta{
		Namespace: ref.GetNamespace(), Name: ref.GetName(),
		Uid: ref.GetUid(),
	}}
}

// admitOwner refuses webhooks that are not allowed, when a user writes one: hook-broker's own writes go on after an
// administrator changed what is allowed.
func admitOwner(w *resource.Write[*hookv1.HookOwner], webhooks []string) error {
	switch {
	case w.Own || w.Deletes():
		return nil
	case !w.Creates() && !proto.Equal(w.Old.GetStatus(), w.New.GetStatus()):
		return rpcerr.Forbidden("the status of a hook owner is written by hook-broker alone")
	}
	if bad := plan.WebhookFaults(w.New.GetSpec(), webhooks); len(bad) > 0 {
		return rpcerr.Invalid(bad...)
	}
	return nil
}
