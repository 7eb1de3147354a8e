package controller

import (
	"context"
	"slices"
	"time"

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
	seen     *sightings
}

// NewViews returns views of the tables, the machines and the connected owners. now is the clock, and elapsed the time
// since the process started, by a monotonic clock. It must be called before machines are read.
func NewViews(tables *kinds.Tables, machines *informer.Informer[*machinev1.Machine], there *presence.Tracker,
	now func() time.Time, elapsed func() time.Duration,
) *Views {
	machines.Index(byHookOwner, hookOwners)
	return &Views{
		tables: tables, machines: machines, presence: there, now: now,
		seen: &sightings{elapsed: elapsed, tasks: map[string]sighting{}},
	}
}

// byHookOwner is the index of machines by the owners that their hooks name.
const byHookOwner = "hook owner"

func hookOwners(m *machinev1.Machine) []string {
	var out []string
	for _, h := range plan.Hooks(m) {
		if !slices.Contains(out, h.Owner) {
			out = append(out, h.Owner)
		}
	}
	return out
}

// Now returns the time that decisions are made at.
func (v *Views) Now() time.Time { return v.now().UTC() }

// WaitSynced waits until the machines are known, or ctx ends.
func (v *Views) WaitSynced(ctx context.Context) error { return v.machines.WaitSynced(ctx) }

// Machine returns what decides about the tasks of a machine.
func (v *Views) Machine(k object.Key) plan.View {
	m, _ := v.machines.Lookup(k.Namespace, k.Name)
	out := plan.View{Now: v.Now(), Machine: m, Owners: map[string]plan.OwnerFacts{}}
	out.Tasks = v.tables.TasksOfMachine(k)
	out.Seen = v.seen.look(out.Tasks, func(name string) bool {
		_, ok := v.tables.Tasks.Lookup("", name)
		return ok
	})
	for _, h := range plan.Holding(out.Machine) {
		out.Owners[h.Owner] = v.Facts(h.Owner)
	}
	return out
}

// Owner returns what decides about the object of an owner, as hooks name it.
func (v *Views) Owner(owner string) plan.OwnerView {
	out := plan.OwnerView{Now: v.Now(), Owner: owner, Tasks: v.tables.TasksOfOwner(owner)}
	out.Connected, out.LastSeen, _ = v.presence.Of(owner)
	out.Named = len(v.machines.ByIndex(byHookOwner, owner)) > 0
	var ok bool
	if out.Object, ok = v.tables.Owner(owner); !ok {
		out.Object = nil
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
