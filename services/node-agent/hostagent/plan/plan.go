// Package plan decides what the agent of a host does with an order of the inventory, and with what its disk says of a
// machine. It does no I/O and reads no clock.
package plan

import (
	"fmt"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
)

// States of a machine on the disk of its host.
const (
	Running = "Running" // its agent is wanted
	Wiping  = "Wiping"  // it has to go; nothing else may happen before it is gone
)

// Record is what the disk says of the host's machine. It is written before anything is done.
type Record struct {
	State string `json:"state"`
	UID   string `json:"uid"`
	Name  string `json:"name"`
}

// View is everything that a decision depends on.
type View struct {
	Record *Record           // nil if the host has no machine
	Order  *hostv1.HostOrder // nil if there is none
}

// Plan is what to do, in this order. The zero Plan means nothing.
type Plan struct {
	Clear  bool    // remove what a machine left that has no record
	Write  *Record // to the disk, before the rest; with the bootstrap of the order if the machine is a new one
	Erase  bool    // end everything of the machine, remove its files, and then the record; then decide again
	Run    bool    // keep the machine's agent running
	Refuse string  // why the order is not carried out; empty if it is
}

// Next decides what to do now.
func Next(v View) Plan {
	machine, o := v.Order.GetMachineRef(), v.Order
	switch {
	case v.Record != nil && v.Record.State == Wiping:
		return Plan{Erase: true}
	case o == nil:
		return Plan{Run: v.Record != nil}
	case o.GetType() == hostv1.HostOrder_TYPE_WIPE || o.GetType() == hostv1.HostOrder_TYPE_FENCE:
		if v.Record == nil {
			return Plan{Clear: true}
		}
		next := *v.Record
		next.State = Wiping
		return Plan{Write: &next, Erase: true}
	case o.GetType() != hostv1.HostOrder_TYPE_CLAIM:
		return Plan{Run: v.Record != nil, Refuse: fmt.Sprintf("order %s is of an unknown type: update the agent",
			o.GetType())}
	case machine.GetUid() == "" || o.GetBootstrap() == nil:
		return Plan{Run: v.Record != nil, Refuse: "the order names no machine, or nothing to join the cluster with"}
	case v.Record == nil:
		return Plan{
			Clear: true, Run: true,
			Write: &Record{State: Running, UID: machine.GetUid(), Name: machine.GetName()},
		}
	case v.Record.UID != machine.GetUid():
		return Plan{Run: true, Refuse: fmt.Sprintf("the host has machine %s", v.Record.Name)}
	}
	return Plan{Run: true}
}
