package controller

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/windlass-dev/windlass/services/etcd-guardian/agents"
	"github.com/windlass-dev/windlass/services/etcd-guardian/members"
	"github.com/windlass-dev/windlass/services/etcd-guardian/plan"
	"github.com/windlass-dev/windlass/services/etcd-guardian/store"
)

var errNoAddress = errors.New("its address is not known yet")

// observe asks every member by itself and gathers what else the plan depends on.
func (c *Controller) observe(ctx context.Context) (plan.View, store.State) {
	c.collect(ctx)
	m := &c.memory
	away := m.looked != 0 && c.Elapsed()-m.looked > ownPause
	offers := c.offers()
	asked, answers := c.probe(ctx, offers)
	list, trouble := c.newest(ctx, answers)
	fresh := list != nil
	if fresh {
		learned := len(m.members) == 0
		m.listed(list)
		if learned {
			c.reach()
		}
		c.keepNote(ctx, answers)
	} else if m.bootstrap != nil {
		trouble = m.bootstrap.Error()
	} else if len(m.members) == 0 && !c.Bootstrap.Elsewhere {
		trouble = "the bootstrap member: " + trouble
	}
	m.answers = map[uint64]members.Answer{}
	for _, e := range m.members {
		a, ok := answers[e.ID]
		if !ok { // listed just now for the first time
			a.Err = errNoAddress
			if u := c.address(e, offers); u != "" && !slices.Contains(asked, u) {
				a = c.ask(ctx, u, e.Learner, 0)
			}
		}
		if a.Err == nil {
			a.Err = c.mismatch(e, a)
		}
		m.answers[e.ID] = a
		m.track(e, a, c.Elapsed(), c.Now())
	}
	// A guardian that begins to lead has no offers yet: no learner is without an agent for that.
	term := c.leading.Load()
	if away || fresh && !m.fresh || term != nil && term != m.term {
		m.awake(c.Elapsed())
	}
	m.term = term
	records, known := c.readRecords(ctx, fresh)
	if fresh && !known {
		fresh, trouble = false, "its own records cannot be read"
	}
	m.looked, m.fresh = c.Elapsed(), fresh
	v := c.view(fresh, trouble, offers, records)
	return v, records
}

// offers returns the agents that attend now, but those with the certificate of another machine than those that have
// their node's name: when they came it was perhaps not known yet which machines there are.
func (c *Controller) offers() []agents.Offer {
	v := plan.View{Machines: plan.Machines(c.Machines.All())}
	return slices.DeleteFunc(c.Agents.Offers(), func(o agents.Offer) bool {
		_, own := v.MachineOfUID(o.MachineUID)
		_, others := v.MachineOfNode(o.Node)
		return others && !own
	})
}

// probe asks all known members at once; before any is known, the bootstrap member, as number 0.
func (c *Controller) probe(ctx context.Context, offers []agents.Offer) ([]string, map[uint64]members.Answer) {
	known := c.memory.members
	if len(known) == 0 {
		// Nothing is known of a cluster: the bootstrap member knows it, those that this guardian was given when its host
		// joined, or members that agents have on their disks.
		known = []store.NoteMember{{ClientURLs: []string{c.BootstrapURL}}}
		for _, u := range c.Endpoints() {
			if u != c.BootstrapURL {
				known = append(known, store.NoteMember{ClientURLs: []string{u}})
			}
		}
		for _, o := range offers {
			if o.HasData {
				known = append(known, store.NoteMember{ClientURLs: []string{o.ClientURL}})
			}
		}
	}
	answers := make([]members.Answer, len(known))
	var group sync.WaitGroup
	var urls []string
	for i, e := range known {
		u := c.address(e, offers)
		if u == "" {
			answers[i].Err = errNoAddress
			continue
		}
		urls = append(urls, u)
		before := c.memory.answers[e.ID].Latency
		group.Go(func() { answers[i] = c.ask(ctx, u, e.Learner, before) })
	}
	c.Members.Keep(urls)
	group.Wait()
	out := map[uint64]members.Answer{}
	for i, e := range known {
		out[e.ID] = answers[i]
		if e.ID == 0 && answers[i].Status != nil {
			out[answers[i].Status.GetHeader().GetMemberId()] = answers[i]
		}
	}
	return urls, out
}

// reach points our own client at the members that were just learned.
func (c *Controller) reach() {
	var urls []string
	for _, e := range c.memory.members {
		if !e.Learner {
			urls = append(urls, e.ClientURLs...)
		}
	}
	if len(urls) > 0 {
		c.Reach(urls)
	}
}

// ask asks one member, which needed the time before for its last answer.
func (c *Controller) ask(ctx context.Context, address string, learner bool, before time.Duration) members.Answer {
	ctx, cancel := context.WithTimeout(ctx, min(max(probeLimit, 3*before), probeLimits))
	defer cancel()
	return c.Members.Probe(ctx, address, learner)
}

// address returns where clients reach a member; before it has said so itself, what its agent says.
func (c *Controller) address(e store.NoteMember, offers []agents.Offer) string {
	if len(e.ClientURLs) > 0 {
		return e.ClientURLs[0]
	}
	for _, o := range offers {
		if slices.Contains(e.PeerURLs, o.PeerURL) {
			return o.ClientURL
		}
	}
	return ""
}

// newest returns the members as a linearizable read listed them, the leader's if it answered; nil and why if there is
// none.
func (c *Controller) newest(ctx context.Context, answers map[uint64]members.Answer) ([]*etcdserverpb.Member, string) {
	var found []*etcdserverpb.Member
	var troubles []string
	cluster := c.Note.Get().ClusterID
	for id, a := range answers {
		switch {
		case a.Err != nil:
			troubles = append(troubles, a.Err.Error())
		case a.List == nil:
		case cluster != 0 && a.List.GetHeader().GetClusterId() != cluster:
			troubles = append(troubles, fmt.Sprintf("member %x belongs to another cluster", id))
		case found == nil || a.Status.GetLeader() == id:
			found = a.List.GetMembers()
		}
	}
	slices.Sort(troubles)
	trouble := "no member answers"
	if len(troubles) > 0 {
		trouble = strings.Join(slices.Compact(troubles), "; ")
	}
	if found == nil {
		c.Log.DebugContext(ctx, "no list of members", "error", trouble)
	}
	return found, trouble
}

// mismatch returns why an answer is not that of the member that was asked.
func (c *Controller) mismatch(e store.NoteMember, a members.Answer) error {
	h := a.Status.GetHeader()
	switch {
	case c.Note.Get().ClusterID != 0 && h.GetClusterId() != c.Note.Get().ClusterID:
		return errors.New("it belongs to another cluster")
	case h.GetMemberId() != e.ID:
		return fmt.Errorf("member %x answers at its address", h.GetMemberId())
	case !e.Learner && a.Status.GetLeader() == 0:
		return errors.New("it knows no leader")
	case !e.Learner && a.List == nil:
		return errors.New("it votes and does not know it yet")
	}
	return nil
}

// keepNote updates the note on disk from the list of members.
func (c *Controller) keepNote(ctx context.Context, answers map[uint64]members.Answer) {
	var cluster uint64
	for _, a := range answers {
		if a.List != nil {
			cluster = a.List.GetHeader().GetClusterId()
		}
	}
	c.say(ctx, "note of the cluster", c.Note.Change(func(n *store.Note) {
		if n.ClusterID == 0 {
			n.ClusterID = cluster
		}
		n.Members = c.memory.members
	}))
}

// readRecords returns our own records. If they cannot be read now, those read before do: changing them compares
// revisions. While nothing happens they are read now and then only, since only this process changes them.
func (c *Controller) readRecords(ctx context.Context, fresh bool) (store.State, bool) {
	m := &c.memory
	if due := c.woken.Swap(false) || m.records.Permit != nil || c.Elapsed()-m.acted < recordsRest ||
		c.Elapsed()-m.recorded > recordsRest; fresh && due {
		ctx, cancel := context.WithTimeout(ctx, readLimit)
		defer cancel()
		s, err := c.Records.Read(ctx)
		if err == nil {
			m.records, m.recorded = s, c.Elapsed()
		}
		c.say(ctx, "read records", err)
	}
	return m.records, m.recorded != 0
}

func (c *Controller) view(fresh bool, trouble string, offers []agents.Offer, records store.State) plan.View {
	m := &c.memory
	now := c.Elapsed()
	v := plan.View{
		Quota: c.Quota, Fresh: fresh, Trouble: trouble, BootstrapRetired: c.Note.Get().BootstrapRetired,
		BootstrapElsewhere: c.Bootstrap.Elsewhere,
		Endpoints:          records.Endpoints, EndpointsAge: m.addresses(records.Endpoints, now), AddRefused: m.refused,
		Acted:         now - m.acted,
		Settings:      c.Settings,
		MachinesKnown: c.Machines.IsSynced() && c.Sets.IsSynced(),
		Machines:      plan.Machines(c.Machines.All()),
	}
	if c.Nodes != nil {
		v.NodesKnown, v.Nodes = c.Nodes.IsSynced(), c.nodes()
	}
	v.NoLeader = leaderless(m.answers)
	var err error
	v.Trust, err = c.Trust()
	c.say(context.Background(), "authorities of members", err)
	v.Compacted, v.CompactedFor = m.compact != 0, now-m.compact
	for _, list := range alarms(m.answers) {
		v.NoSpace = v.NoSpace || slices.Contains(list, "NOSPACE")
	}
	v.NoSpaceSince = m.full(v.NoSpace, c.Now())
	if records.Permit != nil {
		v.Permit = plan.PermitOf(records.Permit.Message)
		v.Permit.Released = records.Permit.Released
	}
	for _, e := range m.members {
		member := c.member(e, fresh, now)
		member.MachineUID = records.Machines[e.ID]
		for _, o := range offers {
			if slices.Contains(member.PeerURLs, o.PeerURL) && theirs(member, o) {
				member.NextVersion, member.Other = o.NextVersion, o.Other
			}
		}
		if v.Current(member) {
			delete(m.restarts, e.ID)
			member.Restarting, member.RestartFor = false, 0
		}
		if machine, ok := v.MachineOfMember(member); ok && member.Learner {
			member.Failed = m.failures[machine.Node].times
		}
		v.Members = append(v.Members, member)
	}
	for _, o := range offers {
		v.Offers = append(v.Offers, plan.Offer{
			Node: o.Node, MachineUID: o.MachineUID, HasData: o.HasData, PeerURL: o.PeerURL,
			ClientURL: o.ClientURL, Wait: m.failures[o.Node].until - now,
		})
	}
	v.Desired = plan.Desired(c.replicas(), v.Machines, v.Members)
	return v
}

func (c *Controller) member(e store.NoteMember, fresh bool, now time.Duration) plan.Member {
	m := &c.memory
	a := m.answers[e.ID]
	out := planMember(e)
	out.Healthy = a.Err == nil && a.Status != nil && (fresh || e.Learner)
	if a.Err != nil {
		out.Message = a.Err.Error()
	}
	out.Leader = out.Healthy && !e.Learner && a.Status.GetLeader() == e.ID
	out.Applied = int64(a.Status.GetRaftAppliedIndex())
	out.Runs = a.Status != nil
	out.DBSize, out.DBInUse, out.Quota = a.Status.GetDbSize(), a.Status.GetDbSizeInUse(), a.Status.GetDbSizeQuota()
	if s, ok := m.silent[e.ID]; ok {
		out.Silent, out.SilentSince = now-s.at, s.since.UTC().Format(time.RFC3339)
	}
	if p, ok := m.progress[e.ID]; ok {
		out.Idle = now - p.at
	}
	if d, ok := m.defragments[e.ID]; ok {
		if !d.running && a.Status != nil && out.DBSize < d.size {
			delete(m.defragments, e.ID) // it helped
		} else {
			out.Defragments, out.Tries, out.TriedFor = d.running, d.tries, now-d.at
		}
	}
	out.Trust, out.Version = a.Trust, a.Status.GetVersion()
	out.Stopping, out.StoppingFor = since(m.stopped, e.ID, now)
	out.Restarting, out.RestartFor = since(m.restarts, e.ID, now)
	return out
}

// nodes returns the names of members that are those of nodes: the plan needs no others, of which there are many.
func (c *Controller) nodes() []string {
	var out []string
	for _, e := range c.memory.members {
		if _, ok := c.Nodes.Lookup("", e.Name); ok {
			out = append(out, e.Name)
		}
	}
	return out
}

// leaderless reports whether members answered and none of them knows a leader.
func leaderless(answers map[uint64]members.Answer) bool {
	some := false
	for _, a := range answers {
		if a.Status.GetLeader() != 0 {
			return false
		}
		some = some || a.Status != nil
	}
	return some
}

// raised is an alarm in a member's status, which lists those of all members.
var raised = regexp.MustCompile(`^memberID:([0-9]+)\s+alarm:(NOSPACE|CORRUPT)$`)

// alarms returns the alarms that members have raised, by member, as reported by those that answered.
func alarms(answers map[uint64]members.Answer) map[uint64][]string {
	out := map[uint64][]string{}
	for _, a := range answers {
		for _, text := range a.Status.GetErrors() {
			found := raised.FindStringSubmatch(text)
			if found == nil {
				continue
			}
			id, err := strconv.ParseUint(found[1], 10, 64)
			if err == nil && !slices.Contains(out[id], found[2]) {
				out[id] = append(out[id], found[2])
			}
		}
	}
	for _, list := range out {
		slices.Sort(list)
	}
	return out
}

// replicas returns how many machines the control plane's set asks for; 0 if there is none.
func (c *Controller) replicas() int {
	for s := range c.Sets.Objects() {
		if r := s.GetSpec().GetReplicas(); r > 0 {
			return int(r)
		}
	}
	return 0
}
