// Package plan decides what an agent does with the etcd member and the pods on its machine, and when it renews its
// certificates. It does no I/O and reads no clock: the same view always gives the same plan.
package plan

import "errors"

// ErrRefused means that an order, or what the disk says, is not followed because it would harm the cluster.
var ErrRefused = errors.New("refused")

// States of a member as the machine's disk records them.
const (
	memberRunning = "Running" // the process is wanted
	stopped       = "Stopped" // the process is not wanted, the data stays
	wiping        = "Wiping"  // process and data have to go; nothing else may happen before they are gone
)

// Orders of the quorum's guardian.
const (
	Start = "Start"
	Stop  = "Stop"
	Wipe  = "Wipe"
)

// Record is what the disk says of the member. It is written before anything is done.
type Record struct {
	State          string `json:"state"`
	Name           string `json:"name"`
	InitialCluster string `json:"initialCluster"`
	ClusterToken   string `json:"clusterToken"`
	QuotaBytes     int64  `json:"quotaBytes,omitempty"` // 0: etcd-member's own choice
	// HadData is true once the member had data. If that is lost, an empty member in its place would break what it promised
	// to the others.
	HadData bool `json:"hadData,omitempty"`
}

// Order is what the guardian wants; an empty Command means that there was no answer.
type Order struct {
	Command        string
	Name           string
	InitialCluster string
	ClusterToken   string
	// Trust is, of a Start, the hash of the authorities that the member has to trust: it is started again if it trusts
	// others. Empty if it does not matter.
	Trust string
	// RenewExecutable is, of a Start, that a member which runs from another executable than it would be started from is
	// started again.
	RenewExecutable bool
	// QuotaBytes is, of a Start, the size of the database at which the member refuses writes; 0: etcd-member's own choice.
	// A member that runs keeps the quota that it has unless Trust is set, which says that it is its turn to go down.
	QuotaBytes int64
}

// MemberView is everything that decides about the member.
type MemberView struct {
	Record  *Record // nil if there is none
	HasData bool    // a member's data is on the disk
	Removed bool    // the process ended because the cluster removed the member
	Trust   string  // hash of the authorities with which the process was last started; empty if it never was
	Other   bool    // the process runs from another executable than it would be started from
	Order   Order
}

// MemberPlan is what to do with the member, in this order. The zero MemberPlan means nothing.
type MemberPlan struct {
	// Restart has the process end before all else. It is not written down: after a crash the process runs as Write or the
	// disk says, and another order decides whether it is to end once more, so that no member goes down long after its
	// turn.
	Restart bool
	Write   *Record // to the disk, before the rest
	Halt    bool    // end the process
	Erase   bool    // remove the data and then the record
	Run     *Record // keep the process running with these settings
	Refuse  string  // why the order is not followed; empty if it is
}

// Member decides what to do with the member now.
func Member(v MemberView) MemberPlan {
	switch {
	case v.Record != nil && v.Record.State == wiping:
		return MemberPlan{Halt: true, Erase: true}
	case v.Removed || v.Order.Command == Wipe:
		return wipe(v)
	case v.Order.Command == Stop:
		return stop(v)
	case v.Order.Command == Start:
		return start(v)
	case v.Order.Command != "":
		return MemberPlan{Refuse: "unknown command " + v.Order.Command}
	case v.Record == nil:
		return MemberPlan{}
	case v.Record.State == memberRunning:
		return run(v, *v.Record)
	}
	return MemberPlan{}
}

// run keeps the process running with settings, and notes that there is data.
func run(v MemberView, r Record) MemberPlan {
	if r.HadData && !v.HasData {
		return MemberPlan{Refuse: "the data of member " + r.Name + " is lost; it can join again only as a new member"}
	}
	r.State, r.HadData = memberRunning, v.HasData
	p := MemberPlan{Run: &r}
	if v.Record == nil || *v.Record != r {
		p.Write = &r
	}
	return p
}

func wipe(v MemberView) MemberPlan {
	if v.Record == nil && !v.HasData {
		return MemberPlan{}
	}
	return MemberPlan{Write: in(v.Record, wiping), Halt: true, Erase: true}
}

func stop(v MemberView) MemberPlan {
	switch {
	case v.Record == nil:
		return MemberPlan{}
	case v.Record.State == stopped:
		return MemberPlan{Halt: true}
	}
	return MemberPlan{Write: in(v.Record, stopped), Halt: true}
}

// start runs the member. Data is never started under another name or in another cluster: etcd would not notice.
func start(v MemberView) MemberPlan {
	wanted := Record{
		Name: v.Order.Name, InitialCluster: v.Order.InitialCluster, ClusterToken: v.Order.ClusterToken,
		QuotaBytes: v.Order.QuotaBytes,
	}
	switch {
	case v.Record == nil || (!v.HasData && !v.Record.HadData):
		return renew(v, run(v, wanted))
	case v.Record.Name != wanted.Name || v.Record.ClusterToken != wanted.ClusterToken:
		return MemberPlan{Refuse: "there is data of member " + v.Record.Name + ", cluster " + v.Record.ClusterToken}
	}
	// Who the members were at first does not matter any more; other settings would only restart the process.
	r := *v.Record
	if v.Order.Trust != "" && v.Order.QuotaBytes != 0 {
		r.QuotaBytes = v.Order.QuotaBytes
	}
	return renew(v, run(v, r))
}

// renew has the process that p runs start again if it trusts other authorities than it has to, or runs from another
// executable.
func renew(v MemberView, p MemberPlan) MemberPlan {
	p.Restart = p.Run != nil &&
		(v.Order.Trust != "" && v.Order.Trust != v.Trust || v.Order.RenewExecutable && v.Other)
	return p
}

func in(r *Record, state string) *Record {
	out := Record{}
	if r != nil {
		out = *r
	}
	out.State = state
	return &out
}
