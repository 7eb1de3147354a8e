// Package plan decides the next change of the etcd cluster's membership: who joins, who votes, who leaves, and which
// hooks come and go with that. It does no I/O and reads no clock: the same View always gives the same Plan. The View
// has no times of day that a decision depends on, only durations that its caller measured by a monotonic clock, so a
// step of the host's clock changes nothing.
//
// It promises that none of its actions leaves fewer healthy voters than a majority, given that the View is true. A
// healthy voter leaves only after its replacement votes and is healthy; a dead one whose machine is being deleted
// leaves first, if the rest have a healthy majority. In doubt it waits and says why. It decides from nothing but the
// members and the machines there are, so that it goes on correctly wherever its caller was interrupted.
package plan

import (
	"net/url"
	"slices"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/controlplane"
)

const (
	// HookName and HookOwner are those of the preDrain hook by which the guardian holds a control-plane machine.
	HookName  = "EtcdQuorumOperator"
	HookOwner = "clusteroperator/etcd"
	// BootstrapName is the name of the member that the guardian itself runs until others have taken over.
	BootstrapName = "bootstrap"
	// ReplacementReason is the reason of a permit that a replacement holds.
	ReplacementReason = "replacement"
	// DefragmentationReason is that of one that is held while a member is defragmented.
	DefragmentationReason = "defragmentation"
	// RotationReason is that of one that is held while a member is started again for other authorities.
	RotationReason = "rotation of an authority"
	// QuotaReason is that of one that is held while a member is started again with another quota.
	QuotaReason = "another quota"
	// VersionReason is that of one that is held while a member is started again with another version of etcd.
	VersionReason = "another version of etcd"

	roleLabel  = "machine.openshift.io/cluster-api-machine-role"
	masterRole = "master"
)

// Settings are the plan's patience. Zero fields mean the defaults.
type Settings struct {
	PromoteLag int64 // log entries that a learner may be behind when it is promoted; default 200
	// the first learner of a machine is removed after so long without progress, each further one after twice as long;
	// default 60 s
	LearnerStall time.Duration
	AgentAbsence time.Duration // a learner that is silent and without an agent for so long is removed; default 15 s
	DeadAfter    time.Duration // a voter that leaves anyway counts as dead after this silence; default 5 s
	OrphanAfter  time.Duration // the same for a voter without a machine; default 30 s
	// from publishing the addresses until a member stops; clients poll each second; default 1.2 s
	EndpointsRest time.Duration
	StopPatience  time.Duration // for a stopping member to end; default 2 s
	RestartAgain  time.Duration // until the command to restart a member is sent again; default 10 s
}

func (s Settings) complete() Settings {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&s.LearnerStall, 60 * time.Second},
		{&s.AgentAbsence, 15 * time.Second},
		{&s.DeadAfter, 5 * time.Second},
		{&s.OrphanAfter, 30 * time.Second},
		{&s.EndpointsRest, 1200 * time.Millisecond},
		{&s.StopPatience, 2 * time.Second},
		{&s.RestartAgain, 10 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if s.PromoteLag == 0 {
		s.PromoteLag = 200
	}
	return s
}

// View is everything that a decision depends on.
type View struct {
	Fresh            bool   // the members were listed by a linearizable read just now; without it nothing is changed
	Trouble          string // why the list is not fresh
	MachinesKnown    bool   // the machines were read completely at least once
	Members          []Member
	NoLeader         bool      // members run, and none of them knows a leader
	Machines         []Machine // of the control plane
	NodesKnown       bool      // the nodes were read completely at least once
	Nodes            []string  // names of the nodes that exist
	RollOut          string    // what is being rolled out over the control plane by others; empty if nothing is
	Offers           []Offer   // agents that attend now
	Permit           *Permit   // nil if it is free
	Desired          int       // desired number of voters; at least 1
	BootstrapRetired bool      // it is on disk that the bootstrap member has left for good
	// the bootstrap member's process is another host's, where this guardian cannot end it
	BootstrapElsewhere bool
	Endpoints          []string      // addresses last published, sorted
	EndpointsAge       time.Duration // since that was seen to be so
	Acted              time.Duration // since this process changed something last
	AddRefused         bool          // etcd just now refused to add a member, as it does for 5 s after a promotion
	NoSpace            bool          // etcd refuses writes: a database has reached its quota
	NoSpaceSince       string        // the time of day when that was first seen, for people; empty if unknown
	Compacted          bool          // old revisions were dropped for that, and
	CompactedFor       time.Duration // so long ago
	Trust              string        // hash of the authorities that members have to trust; empty if not known now
	Quota              int64         // that members have to have, in bytes; 0 if any will do
	Settings           Settings
}

// Member is one member of the etcd cluster, and how it answered just now.
type Member struct {
	ID          uint64
	Name        string // empty until it has started for the first time
	PeerURLs    []string
	ClientURLs  []string // empty until it has started for the first time
	Learner     bool
	Leader      bool
	Healthy     bool // a voter: came through with a linearizable read; a learner: its status answers
	Runs        bool // its own status answers, though perhaps no majority confirms it
	Message     string
	Applied     int64         // index in the log up to which it has applied everything
	Silent      time.Duration // for how long it has not been healthy; 0 if it is
	SilentSince string        // the time of day when that began, for people; empty if unknown
	Idle        time.Duration // of a learner: since it last applied something, or was first seen
	Failed      int           // of a learner: members on its machine that did not catch up before
	DBSize      int64         // of its database, as a file, in bytes
	DBInUse     int64         // part of that which is in use
	Quota       int64         // size at which it refuses writes; 0 if unknown
	Defragments bool          // it is being defragmented, and may not answer
	Tries       int           // defragmentations in a row after which its database was not smaller
	TriedFor    time.Duration // since the last of these ended
	Stopping    bool          // it was commanded to stop, because it leaves
	StoppingFor time.Duration // since then
	MachineUID  string        // of the machine that it was added for; empty while that is not written down
	Trust       string        // hash of the authorities that it trusts since its start; empty if it did not say
	Version     string        // of etcd; empty if unknown
	NextVersion string        // of etcd, that it would run after a restart; empty if its agent did not say
	Other       bool          // it runs from another executable than it would be started from
	Restarting  bool          // its agent was commanded to restart it, and it is not current yet
	RestartFor  time.Duration // since then
}

// Bootstrap reports whether m is the member that the guardian itself runs.
func (m Member) Bootstrap() bool { return m.Name == BootstrapName }

// beside reports whether m and o are on one host, by their peer addresses.
func (m Member) beside(o Member) bool {
	return slices.ContainsFunc(m.PeerURLs, func(a string) bool {
		return slices.ContainsFunc(o.PeerURLs, func(b string) bool { return hostOf(a) != "" && hostOf(a) == hostOf(b) })
	})
}

// Machine is a machine of the control plane.
type Machine struct {
	Namespace, Name, UID, ResourceVersion string
	Node                                  string // name of its node; that of the machine until it has one
	Phase                                 string
	Deleting                              bool
	DeletionTime                          time.Time // orders deletions, is compared with nothing else
	Index                                 int       // its index in the control plane, -1 if its name has none
	Addresses                             []string  // inside the cluster
	Hooked                                bool      // it carries our hook
	Misowned                              bool      // it carries a hook of our name with another owner
}

// Offer is an agent that offers to run a member.
type Offer struct {
	Node               string
	MachineUID         string // of the machine whose certificate the agent has; empty if it is not known
	PeerURL, ClientURL string
	HasData            bool          // a member's data is on its disk
	Wait               time.Duration // its last member did not catch up: no new one for so long
}

// Permit is the right to take one voter down. Machine is empty for the bootstrap member.
type Permit struct {
	Machine  *metav1.ObjectReference
	Reason   string
	Holder   string
	Ours     bool // held by the guardian itself
	Released bool // the work is done; it ends when the member is healthy
}

// controlPlane reports whether a machine is one of the control plane.
func controlPlane(m *machinev1.Machine) bool {
	return m.GetMetadata().GetLabels()[roleLabel] == masterRole
}

// MachineOf returns what the plan needs to know of a machine.
func MachineOf(m *machinev1.Machine) Machine {
	meta := m.GetMetadata()
	out := Machine{
		Namespace: meta.GetNamespace(), Name: meta.GetName(), UID: meta.GetUid(), ResourceVersion: meta.GetResourceVersion(),
		Node: meta.GetName(), Phase: m.GetStatus().GetPhase(), Deleting: meta.GetDeletionTimestamp() != nil,
		Index: controlplane.Index(meta.GetName()),
	}
	if out.Deleting {
		out.DeletionTime = meta.GetDeletionTimestamp().AsTime()
	}
	if n := m.GetStatus().GetNodeRef().GetName(); n != "" {
		out.Node = n
	}
	for _, a := range m.GetStatus().GetAddresses() {
		if a.GetType() == "InternalIP" { // one from outside may be shared, so a member's certificate must not follow from it
			out.Addresses = append(out.Addresses, a.GetAddress())
		}
	}
	for _, h := range m.GetSpec().GetLifecycleHooks().GetPreDrain() {
		if h.GetName() == HookName {
			out.Hooked, out.Misowned = h.GetOwner() == HookOwner, h.GetOwner() != HookOwner
		}
	}
	return out
}

// Reference returns a reference to the machine.
func (m Machine) Reference() *metav1.ObjectReference {
	return &metav1.ObjectReference{
		ApiVersion: "machine.openshift.io/v1beta1", Kind: "Machine", Namespace: m.Namespace, Name: m.Name, Uid: m.UID,
	}
}

// is reports whether a reference means the machine; a uid decides where there is one.
func (m Machine) is(ref *metav1.ObjectReference) bool {
	if ref.GetUid() != "" && m.UID != "" {
		return ref.GetUid() == m.UID
	}
	return ref.GetName() == m.Name && ref.GetNamespace() == m.Namespace
}

// Owns reports whether a member with these peer addresses is the machine's, by its addresses.
func (m Machine) Owns(peerURLs []string) bool {
	return slices.ContainsFunc(peerURLs, func(u string) bool { return m.Has(hostOf(u)) })
}

// Has reports whether an address is one of the machine's.
func (m Machine) Has(address string) bool { return slices.Contains(m.Addresses, address) }

func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// Desired returns the desired number of voters: as many as the control plane's set has replicas (0 if there is no
// set); without one 3, or 5 as soon as there were five machines or voters.
func Desired(replicas int, machines []Machine, members []Member) int {
	if replicas > 0 {
		return replicas
	}
	staying := 0
	for _, m := range machines {
		if !m.Deleting {
			staying++
		}
	}
	voters := 0
	for _, m := range members {
		if !m.Learner && !m.Bootstrap() {
			voters++
		}
	}
	if max(staying, voters) >= 5 {
		return 5
	}
	return 3
}

// MachineOfMember returns the machine that a member is on: by the uid that was written down, so that no other machine
// of the same name is taken for it; before that by the node's name, or by an address while the member has no name yet.
// The bootstrap member is on none.
func (v View) MachineOfMember(m Member) (Machine, bool) {
	if m.Bootstrap() {
		return Machine{}, false
	}
	if m.MachineUID != "" {
		return v.MachineOfUID(m.MachineUID)
	}
	if m.Name != "" { // an address may have gone over to another machine
		return v.MachineOfNode(m.Name)
	}
	for _, machine := range v.Machines {
		if machine.Owns(m.PeerURLs) {
			return machine, true
		}
	}
	if o, ok := v.offerOf(m); ok {
		return v.machineOfOffer(o)
	}
	return Machine{}, false
}

// MachineOfUID returns the machine with a uid.
func (v View) MachineOfUID(uid string) (Machine, bool) {
	i := slices.IndexFunc(v.Machines, func(m Machine) bool { return m.UID == uid })
	if i < 0 {
		return Machine{}, false
	}
	return v.Machines[i], true
}

func (v View) machineOfOffer(o Offer) (Machine, bool) {
	if o.MachineUID != "" {
		return v.MachineOfUID(o.MachineUID)
	}
	return v.MachineOfNode(o.Node)
}

// Unbound returns the members whose machine is certain and not written down yet, with that machine: the machine's own
// agent offers the member's address, and either runs it or was asked to.
func (v View) Unbound() map[uint64]Machine {
	out := map[uint64]Machine{}
	for _, m := range v.Members {
		machine, ok := v.MachineOfMember(m)
		if !ok || m.MachineUID != "" || !v.Fresh || !v.MachinesKnown {
			continue
		}
		if slices.ContainsFunc(v.Offers, func(o Offer) bool {
			return o.MachineUID == machine.UID && slices.Contains(m.PeerURLs, o.PeerURL) && (m.Name == "" || o.HasData)
		}) {
			out[m.ID] = machine
		}
	}
	return out
}

// MachineOfNode returns the machine of a node, by the name of either.
func (v View) MachineOfNode(node string) (Machine, bool) {
	for _, m := range v.Machines {
		if m.Node == node || m.Name == node {
			return m, true
		}
	}
	return Machine{}, false
}

// offerOf returns the agent that attends a member.
func (v View) offerOf(m Member) (Offer, bool) {
	for _, o := range v.Offers {
		if m.MachineUID != "" && o.MachineUID != "" {
			if m.MachineUID == o.MachineUID {
				return o, true
			}
			continue
		}
		if m.Name == o.Node || m.Name == "" && slices.Contains(m.PeerURLs, o.PeerURL) {
			return o, true
		}
	}
	return Offer{}, false
}

// MemberOfMachine returns the member on a machine; a voter goes before a learner.
func (v View) MemberOfMachine(machine Machine) (Member, bool) {
	var found Member
	for _, m := range v.Members {
		if on, ok := v.MachineOfMember(m); ok && on.Name == machine.Name && on.Namespace == machine.Namespace {
			if found.ID == 0 || found.Learner {
				found = m
			}
		}
	}
	return found, found.ID != 0
}

// Majority returns how many votes of n a majority needs.
func Majority(n int) int { return n/2 + 1 }
