package controller

import (
	"slices"
	"time"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/informer"
	"github.com/windlass-dev/windlass/kit/object"

	"github.com/windlass-dev/windlass/services/hook-broker/kinds"
	"github.com/windlass-dev/windlass/services/hook-broker/plan"
	"github.com/windlass-dev/windlass/services/hook-broker/presence"
)

// Views shows what decisions depend on. The controller and the methods of the server both read it, so that they decide
// about the same state. All methods may be called concurrently; what they return must not be modified.
type Views struct {
	tables   *kinds.Tables
	machines *informer.Informer[*machinev1.Machine]
	presence *presence.Tracker
	now      func() time.Time
}

// NewViews returns views of the tables, the machines and the connected owners. now is the clock.
func NewViews(tables *kinds.Tables, machines *informer.Informer[*machinev1.Machine], there *presence.Tracker,
	now func() time.Time,
) *Views {
	return &Views{tables: tables, machines: machines, presence: there, now: now}
}

// Machine returns what decides about the tasks of a machine.
func (v *Views) Machine(k object.Key) plan.View {
	m, _ := v.machines.Lookup(k.Namespace, k.Name)
	return v.view(k, m)
}

// Given returns what decides about the tasks of a machine of a request.
func (v *Views) Given(m *machinev1.Machine) plan.View { return v.view(object.KeyOf(m), m) }

func (v *Views) view(k object.Key, m *machinev1.Machine) plan.View {
	out := plan.View{Now: v.now().UTC(), Machine: m, Owners: map[string]plan.OwnerFacts{}}
	out.Tasks = v.tables.TasksOf(func(t *hookv1.HookTask) bool { return machineOf(t) == k })
	for _, h := range plan.Holding(out.Machine) {
		out.Owners[h.Owner] = v.Facts(h.Owner)
	}
	return out
}

// Owner returns what decides about the object of an owner, as hooks name it.
func (v *Views) Owner(owner string) plan.OwnerView {
	out := plan.OwnerView{Now: v.now().UTC(), Owner: owner, Tasks: v.tasksOf(owner)}
	out.Connected, out.LastSeen, _ = v.presence.Of(owner)
	var ok bool
	if out.Object, ok = v.tables.Owner(owner); !ok {
		out.Object, out.Named = nil, v.named(owner)
	}
	return out
}

// Facts returns what tasks depend on of their owner. A process that does not lead knows only what the leader stored.
func (v *Views) Facts(owner string) plan.OwnerFacts {
	o, _ := v.tables.Owner(owner)
	f := plan.StoredFacts(o)
	connected, seen, leads := v.presence.Of(owner)
	if leads {
		f.Connected = connected
	}
	if seen.After(f.LastSeen) {
		f.LastSeen = seen
	}
	return f
}

// tasksOf returns the tasks of an owner.
func (v *Views) tasksOf(owner string) []*hookv1.HookTask {
	return v.tables.TasksOf(func(t *hookv1.HookTask) bool { return t.GetSpec().GetOwner() == owner })
}

// named reports whether a hook of any machine names an owner.
func (v *Views) named(owner string) bool {
	for m := range v.machines.Objects() {
		if slices.ContainsFunc(plan.Hooks(m), func(h plan.Hook) bool { return h.Owner == owner }) {
			return true
		}
	}
	return false
}

// machineOf returns the machine of a task.
func machineOf(t *hookv1.HookTask) object.Key {
	ref := t.GetSpec().GetMachineRef()
	return object.Key{Namespace: ref.GetNamespace(), Name: ref.GetName()}
}
