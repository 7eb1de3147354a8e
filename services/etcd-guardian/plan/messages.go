package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"google.golang.org/protobuf/types/known/durationpb"
)

// GuardianUser is who the guardian is among the callers of Windlass, and so the holder of its own permits.
const GuardianUser = "system:windlass:etcd-guardian"

// Given is the state of a Plan request, used instead of the live state.
type Given struct {
	Quorum          *etcdv1.Quorum
	Machines        []*machinev1.Machine
	MachinesUnknown bool     // it is not known which machines exist
	Nodes           []string // names
	Offers          []string // names of nodes
	Trouble         string   // why the members were not listed by a linearizable read; empty if they were
	RollOut         string   // what is being rolled out; empty if nothing is
	Now             time.Time
}

// GivenBy returns what a Plan request gives.
func GivenBy(r *etcdv1.PlanQuorumRequest) Given {
	g := Given{
		Quorum: r.GetQuorum(), Machines: r.GetMachines().GetItems(), MachinesUnknown: r.GetMachinesUnknown(),
		Nodes: NodeNames(r.GetNodes().GetItems()), Offers: r.GetOffers(), Trouble: r.GetTrouble(), RollOut: r.GetRollOut(),
	}
	if now := cmp.Or(r.GetNow(), r.GetQuorum().GetObserveTime()); now != nil {
		g.Now = now.AsTime()
	}
	return g
}

// NodeNames returns the names of nodes, sorted.
func NodeNames(nodes []*nodev1.Node) []string {
	out := make([]string, 0, len(nodes))
	for _, n := range nodes {
		out = append(out, n.GetMetadata().GetName())
	}
	slices.Sort(out)
	return out
}

// View returns the View that a given quorum means. A member that is not healthy there and does not say since when
// counts as silent for long, and addresses count as published long ago.
func (g Given) View() View {
	q := g.Quorum
	v := View{
		Fresh: g.Trouble == "", Trouble: g.Trouble, EndpointsAge: long, MachinesKnown: !g.MachinesUnknown,
		BootstrapRetired: q.GetBootstrapRetired(), NodesKnown: true, Nodes: g.Nodes, RollOut: g.RollOut,
		Endpoints: slices.Sorted(slices.Values(q.GetEndpoints())), Trust: q.GetTrust(), Machines: Machines(g.Machines),
		Permit: PermitOf(q.GetPermit()),
	}
	for i, m := range q.GetMembers() {
		member := memberOf(m, i, g.Now)
		if _, ok := v.MachineOfUID(m.GetMachine().GetUid()); ok {
			member.MachineUID = m.GetMachine().GetUid()
		}
		v.Members = append(v.Members, member)
	}
	v.NoLeader = !slices.ContainsFunc(v.Members, func(m Member) bool { return m.Leader })
	v.NoSpace = slices.ContainsFunc(q.GetMembers(), func(m *etcdv1.Member) bool {
		return slices.Contains(m.GetAlarms(), "NOSPACE")
	})
	for _, node := range g.Offers {
		o := Offer{Node: node}
		if m, ok := v.MachineOfNode(node); ok && len(m.Addresses) > 0 {
			o.PeerURL, o.ClientURL = "https://"+m.Addresses[0]+":2380", "https://"+m.Addresses[0]+":2379"
		}
		v.Offers = append(v.Offers, o)
	}
	// A quorum that still has its bootstrap member, or never says, has not written down its retirement.
	if !slices.ContainsFunc(v.Members, Member.Bootstrap) && len(v.Members) > 0 {
		v.BootstrapRetired = true
	}
	v.Desired = Desired(int(q.GetDesiredVoters()), v.Machines, v.Members)
	return v
}

// long is how long ago everything is that a given quorum says of the past.
const long = time.Hour

func memberOf(m *etcdv1.Member, index int, now time.Time) Member {
	id, err := strconv.ParseUint(strings.TrimPrefix(m.GetId(), "0x"), 16, 64)
	if err != nil || id == 0 {
		id = uint64(index) + 1 // only the name matters then
	}
	out := Member{
		ID: id, Name: m.GetName(), PeerURLs: m.GetPeerUrls(), ClientURLs: m.GetClientUrls(),
		Learner: m.GetLearner(), Leader: m.GetLeader(), Healthy: m.GetHealthy(), Runs: m.GetHealthy(),
		Message: m.GetMessage(), Applied: m.GetAppliedIndex(), Trust: m.GetTrust(),
		Version: m.GetVersion(), NextVersion: m.GetNextVersion(), Other: m.GetOtherExecutable(),
		DBSize: m.GetDbSizeBytes(), DBInUse: m.GetDbSizeInUseBytes(), Quota: m.GetDbQuotaBytes(),
	}
	if m.GetBootstrap() {
		out.Name = BootstrapName
	}
	if !out.Healthy {
		out.Silent = long
		if m.GetSilentTime() != nil {
			out.SilentSince = m.GetSilentTime().AsTime().Format(time.RFC3339)
			if !now.IsZero() {
				out.Silent = max(now.Sub(m.GetSilentTime().AsTime()), 0)
			}
		}
	}
	return out
}

// Machines returns those of the control plane, ordered by namespace and name.
func Machines(all []*machinev1.Machine) []Machine {
	var out []Machine
	for _, m := range all {
		if controlPlane(m) {
			out = append(out, MachineOf(m))
		}
	}
	slices.SortFunc(out, func(a, b Machine) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// PermitOf returns the permit in a message; nil for none.
func PermitOf(p *etcdv1.DisruptionPermit) *Permit {
	if p == nil {
		return nil
	}
	return &Permit{
		Machine: p.GetMachine(), Reason: p.GetReason(), Holder: p.GetHolder(),
		Ours: p.GetHolder() == GuardianUser,
	}
}

// Subject returns what the permit for a member's departure names: its machine, or the bootstrap member itself.
func (a Action) Subject() *metav1.ObjectReference {
	if a.Member.Bootstrap() {
		return &metav1.ObjectReference{Kind: "Member", Name: BootstrapName}
	}
	return a.Machine.Reference()
}

// Message returns the action as Plan answers show it.
func (a Action) Message() *metav1.PlannedAction {
	out := &metav1.PlannedAction{Action: string(a.Kind), Reason: a.Reason, Details: map[string]string{}}
	switch {
	case a.Member.ID != 0:
		out.Object = memberReference(a.Member)
	case a.Machine.Name != "":
		out.Object = a.Machine.Reference()
	}
	if a.Member.ID != 0 && a.Machine.Name != "" {
		out.Details["machine"] = a.Machine.Namespace + "/" + a.Machine.Name
	}
	if a.Target.ID != 0 {
		out.Details["newLeader"] = a.Target.Name
	}
	if a.Offer.PeerURL != "" {
		out.Details["peerURL"] = a.Offer.PeerURL
	}
	if len(a.Endpoints) > 0 {
		out.Details["endpoints"] = strings.Join(a.Endpoints, ",")
	}
	return out
}

// First returns the action that is done next: a hook's first, since hooks wait for nothing; nil if there is none.
func (p Plan) First() *metav1.PlannedAction {
	switch {
	case len(p.Hooks) > 0:
		return p.Hooks[0].Message()
	case p.Next != nil:
		return p.Next.Message()
	}
	return nil
}

// Actions returns all actions that are done now, hooks first.
func (p Plan) Actions() []*metav1.PlannedAction {
	var out []*metav1.PlannedAction
	for _, h := range p.Hooks {
		out = append(out, h.Message())
	}
	if p.Next != nil {
		out = append(out, p.Next.Message())
	}
	return out
}

// Answer returns the plan for v as the answer to a Plan request. q is the quorum that v was made from; it is completed
// by what follows from v and p.
func (p Plan) Answer(v View, q *etcdv1.Quorum) *etcdv1.PlanQuorumResponse {
	Complete(q, v, p)
	return &etcdv1.PlanQuorumResponse{
		Phase: p.Phase, Next: p.First(), WaitsFor: p.WaitsFor, HeldBack: p.HeldBack, Actions: p.Actions(), Quorum: q,
		NextCheckAfter: durationpb.New(p.Wake), Disruptions: disruptions(v),
	}
}

// String names the action and what it is done to, for logs.
func (a Action) String() string {
	switch {
	case a.Member.ID != 0:
		return fmt.Sprintf("%s %s", a.Kind, nameOf(a.Member))
	case a.Machine.Name != "":
		return fmt.Sprintf("%s machine %s", a.Kind, a.Machine.Name)
	}
	return string(a.Kind)
}
