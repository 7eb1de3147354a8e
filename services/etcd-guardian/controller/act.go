package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/protobuf/types/known/timestamppb"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/trace"
	"github.com/windlass-dev/windlass/services/etcd-guardian/agents"
	"github.com/windlass-dev/windlass/services/etcd-guardian/members"
	"github.com/windlass-dev/windlass/services/etcd-guardian/plan"
)

// ClusterToken goes into the ids of the first member and its cluster; members join by their addresses, so it only has
// to be the same everywhere.
const ClusterToken = "windlass"

// act does what the plan says and reports whether something was changed.
func (c *Controller) act(ctx context.Context, o *Observation) bool {
	if next := o.Plan.Next; next != nil && next.Kind == plan.StartMember {
		c.start(ctx, next.Member) // needs no leadership: without a majority there is none
		return true
	}
	if next := o.Plan.Next; next != nil && next.Kind == plan.RetireBootstrap {
		return c.step(ctx, ctx, o, *next) // neither does this: it is about this guardian's own disk
	}
	l := c.leading.Load()
	if l == nil {
		// While etcd refuses writes there is no election either. What gives space back harms nothing if two do it.
		return o.View.NoSpace && !c.Led() && o.Plan.Next != nil && o.Plan.Next.ForSpace() && c.step(ctx, ctx, o, *o.Plan.Next)
	}
	run := ctx
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	var group sync.WaitGroup
	c.bind(ctx, o.View)
	var hooked bool
	group.Go(func() { hooked = c.hooks(ctx, o.Plan.Hooks) })
	acted := o.Plan.Next != nil && c.step(run, ctx, o, *o.Plan.Next)
	group.Wait()
	return acted || hooked
}

// bind writes down which machines members are on, and forgets members that have left.
func (c *Controller) bind(ctx context.Context, v plan.View) {
	m := &c.memory
	limited, cancel := context.WithTimeout(ctx, hookLimit)
	defer cancel()
	for id, machine := range v.Unbound() {
		err := c.Records.Bind(limited, id, machine.UID)
		c.say(ctx, "record of a member's machine", err)
		m.recorded = 0 // it is read again
	}
	if !v.Fresh {
		return
	}
	for id := range m.records.Machines {
		if !slices.ContainsFunc(v.Members, func(o plan.Member) bool { return o.ID == id }) {
			c.say(ctx, "record of a member that has left", c.Records.Unbind(limited, id))
			m.recorded = 0
		}
	}
}

// step carries out the one change of membership. What takes long goes on beside the loop until run ends.
func (c *Controller) step(run, ctx context.Context, o *Observation, a plan.Action) bool {
	begin := c.Elapsed()
	limit := callLimit
	if a.Kind == plan.Compact {
		limit = spaceLimit
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	err := c.confirm(limited, o.View, a)
	if err == nil {
		err = c.do(limited, o, a)
	}
	cancel()
	switch {
	case errors.Is(err, errChanged):
		c.Log.DebugContext(ctx, "decided again", "action", a.String(), "error", err)
		return true // look again at once
	case errors.Is(err, members.ErrNotNow):
		c.Log.DebugContext(ctx, "not accepted yet", "action", a.String(), "error", err)
		return false
	case errors.Is(err, members.ErrDone):
		return true
	case err != nil:
		c.say(ctx, "action "+a.String(), err)
		return false
	}
	if a.Kind == plan.Defragment {
		c.defragment(run, a)
		return true
	}
	c.say(ctx, "action "+a.String(), nil)
	c.finish(ctx, a, begin)
	c.event(a)
	return true
}

// finish logs an action that is done.
func (c *Controller) finish(ctx context.Context, a plan.Action, begin time.Duration) {
	c.Log.InfoContext(ctx, "done", "action", string(a.Kind), "member", a.Member.Name, "machine", a.Machine.Name,
		"reason", a.Reason, "elapsed_ms", (c.Elapsed() - begin).Milliseconds())
}

// errChanged means that what an action was decided from is not so any more.
var errChanged = errors.New("the quorum changed since it was observed")

// confirm compares, right before a voter goes down or the membership changes, what that was decided from: that this
// process still leads the guardians, and the leader, the members and the health of the voters that have to stay. etcd
// itself cannot compare any of these.
func (c *Controller) confirm(ctx context.Context, v plan.View, a plan.Action) error {
	switch a.Kind {
	case plan.AddLearner, plan.Promote, plan.MoveLeader, plan.StopMember, plan.RestartMember, plan.RemoveMember,
		plan.Defragment:
	default:
		return nil // these compare the records that they change
	}
	if err := c.Records.Fenced(ctx); err != nil {
		return fmt.Errorf("leadership of the guardians: %w", err)
	}
	var group sync.WaitGroup
	answers := make([]members.Answer, len(v.Members))
	for i, m := range v.Members {
		if m.Healthy && !m.Learner && len(m.ClientURLs) > 0 {
			before := c.memory.answers[m.ID].Latency
			group.Go(func() { answers[i] = c.ask(ctx, m.ClientURLs[0], false, before) })
		}
	}
	group.Wait()
	for i, m := range v.Members {
		if answer := answers[i]; m.Healthy && !m.Learner && len(m.ClientURLs) > 0 && (m.ID != a.Member.ID || m.Leader) {
			if err := same(v, m, answer); err != nil {
				return err
			}
		}
	}
	return nil
}

// same returns errChanged unless a member answers as it did when v was observed.
func same(v plan.View, m plan.Member, answer members.Answer) error {
	switch {
	case answer.Err != nil:
		return fmt.Errorf("%w: member %s: %w", errChanged, m.Name, answer.Err)
	case (answer.Status.GetLeader() == m.ID) != m.Leader:
		return fmt.Errorf("%w: another member leads", errChanged)
	case len(answer.List.GetMembers()) != len(v.Members):
		return fmt.Errorf("%w: other members are listed", errChanged)
	}
	for _, listed := range answer.List.GetMembers() {
		if !slices.ContainsFunc(v.Members, func(o plan.Member) bool {
			return o.ID == listed.GetID() &&
				o.Learner == listed.GetIsLearner()
		}) {
			return fmt.Errorf("%w: member %x is listed otherwise", errChanged, listed.GetID())
		}
	}
	return nil
}

func (c *Controller) do(ctx context.Context, o *Observation, a plan.Action) error {
	m := &c.memory
	switch a.Kind {
	case plan.AddLearner:
		return c.addLearner(ctx, o, a)
	case plan.Promote:
		delete(m.failures, a.Machine.Node)
		return c.Members.Promote(ctx, leaderURL(o.View), a.Member.ID)
	case plan.PublishEndpoints:
		return c.Records.Publish(ctx, a.Endpoints, c.Now())
	case plan.AcquirePermit:
		return c.Records.Acquire(ctx, &etcdv1.DisruptionPermit{
			Machine: a.Subject(), Reason: a.Permit, Holder: plan.GuardianUser, AcquireTime: timestamppb.New(c.Now()), Held: true,
		})
	case plan.FreePermit:
		clear(m.restarts) // what was ordered under it is not ordered any more
		return c.Records.Free(ctx, *o.Permit)
	case plan.MoveLeader:
		return c.Members.MoveLeader(ctx, leaderURL(o.View), a.Target.ID)
	case plan.StopMember:
		c.stop(ctx, a.Member)
		return nil
	case plan.RestartMember:
		m.restarts[a.Member.ID] = c.Elapsed()
		c.Agents.Forget(a.Machine.Node) // the last command had no effect; direct sends it again
		return nil
	case plan.RemoveMember:
		return c.remove(ctx, o, a)
	case plan.Compact:
		m.compact = c.Elapsed()
		return c.Members.Compact(ctx, leaderURL(o.View))
	case plan.Defragment:
		return c.reserve(ctx, o, a)
	case plan.Disarm:
		return c.Members.Disarm(ctx, leaderURL(o.View))
	case plan.RetireBootstrap:
		err := c.Bootstrap.Retire()
		c.clean.Add(all)
		return err
	}
	return fmt.Errorf("unknown action %q", a.Kind)
}

// reserve takes the permit for a defragmentation; the plan frees it when that has ended. Without space no client can
// write it.
func (c *Controller) reserve(ctx context.Context, o *Observation, a plan.Action) error {
	if len(a.Member.ClientURLs) == 0 {
		return errNoAddress
	}
	if o.View.NoSpace {
		return nil
	}
	return c.Records.Acquire(ctx, &etcdv1.DisruptionPermit{
		Machine: a.Subject(), Reason: plan.DefragmentationReason, Holder: plan.GuardianUser,
		AcquireTime: timestamppb.New(c.Now()), Held: true,
	})
}

// ended is a defragmentation that has ended.
type ended struct {
	action plan.Action
	begin  time.Duration
	err    error
}

// defragment has one member give its free space back, in a goroutine of its own: observation continues.
func (c *Controller) defragment(run context.Context, a plan.Action) {
	e := ended{action: a, begin: c.Elapsed()}
	c.memory.defragments[a.Member.ID] = defragmentation{running: true, size: a.Member.DBSize, tries: a.Member.Tries + 1}
	c.beside.Go(func() {
		ctx, cancel := context.WithTimeout(run, defragLimit)
		defer cancel()
		e.err = c.Members.Defragment(ctx, a.Member.ClientURLs[0])
		c.mu.Lock()
		c.ended = append(c.ended, e)
		c.mu.Unlock()
		c.Wake()
	})
}

// collect takes note of the defragmentations that have ended.
func (c *Controller) collect(ctx context.Context) {
	c.mu.Lock()
	list := c.ended
	c.ended = nil
	c.mu.Unlock()
	for _, e := range list {
		d := c.memory.defragments[e.action.Member.ID]
		d.running, d.at = false, c.Elapsed()
		c.memory.defragments[e.action.Member.ID] = d
		c.say(ctx, "action "+e.action.String(), e.err)
		if e.err == nil {
			c.finish(ctx, e.action, e.begin)
		}
	}
}

// addLearner asks the bootstrap member while there is one: there etcd's own check is off, which elsewhere refuses every
// add for 5 s after a promotion.
func (c *Controller) addLearner(ctx context.Context, o *Observation, a plan.Action) error {
	at := leaderURL(o.View)
	for _, m := range o.View.Members {
		if m.Bootstrap() && m.Healthy {
			at = m.ClientURLs[0]
		}
	}
	resp, err := c.Members.AddLearner(ctx, at, a.Offer.PeerURL)
	c.memory.refused = errors.Is(err, members.ErrNotNow)
	if err != nil {
		return err
	}
	c.memory.listed(resp.GetMembers())
	c.memory.progress[resp.GetMember().GetID()] = progress{at: c.Elapsed()}
	return nil
}

func (c *Controller) remove(ctx context.Context, o *Observation, a plan.Action) error {
	at := leaderURL(o.View)
	if a.Member.Leader || at == "" {
		at = ""
		for _, m := range o.View.Members {
			if m.ID != a.Member.ID && m.Healthy && !m.Learner {
				at = m.ClientURLs[0]
			}
		}
	}
	if at == "" {
		return errors.New("no other member answers")
	}
	err := c.Members.Remove(ctx, at, a.Member.ID)
	if err == nil && a.Member.Learner {
		if machine, ok := o.View.MachineOfMember(a.Member); ok {
			c.memory.failed(machine.Node, c.Elapsed())
		}
	}
	return err
}

func (c *Controller) stop(ctx context.Context, m plan.Member) {
	c.memory.stopped[m.ID] = c.Elapsed()
	if m.Bootstrap() {
		c.Bootstrap.Stop(ctx)
	}
}

func (c *Controller) start(ctx context.Context, m plan.Member) {
	c.Log.InfoContext(ctx, "member is started again", "member", m.Name)
	delete(c.memory.stopped, m.ID)
	if m.Bootstrap() {
		c.memory.bootstrap = c.Bootstrap.Start()
		c.say(ctx, "bootstrap", c.memory.bootstrap)
	}
}

func leaderURL(v plan.View) string {
	for _, m := range v.Members {
		if m.Leader && len(m.ClientURLs) > 0 {
			return m.ClientURLs[0]
		}
	}
	return ""
}

// direct sends each agent the command for its member. Only a linearizable list of members proves that a member was
// removed, so that its data may be deleted.
func (c *Controller) direct(v plan.View) {
	for _, o := range c.offers() {
		member, listed := memberOf(v, o)
		switch {
		case !listed && runs(v, o):
			// The agent changed its address while its member did not: nothing of it may be lost.
		case !listed && v.Fresh && c.leading.Load() != nil && (o.HasData || o.Told == agents.Start || o.Told == agents.Stop):
			c.Agents.Send(o.Node, &etcdv1.AttendMemberResponse{Command: agents.Wipe, Name: o.Node})
		case !listed:
		case member.Stopping:
			c.Agents.Send(o.Node, c.command(agents.Stop, v, o))
		case o.HasData || member.Name == "":
			start := c.command(agents.Start, v, o)
			if member.Restarting {
				start.Trust, start.RenewExecutable = v.Trust, true
			}
			c.Agents.Send(o.Node, start)
			// Else the agent lost the data of a member that has voted or followed: empty it would break its promises to the
			// others. It stays silent until its machine is replaced, or as a learner is removed.
		}
	}
}

// runs reports whether a member of an agent's machine is listed, wherever.
func runs(v plan.View, o agents.Offer) bool {
	return slices.ContainsFunc(v.Members, func(m plan.Member) bool { return m.Name == o.Node && theirs(m, o) })
}

// theirs reports whether a member may be that of an agent's machine.
func theirs(m plan.Member, o agents.Offer) bool {
	return m.MachineUID == "" || m.MachineUID == o.MachineUID
}

func memberOf(v plan.View, o agents.Offer) (plan.Member, bool) {
	for _, m := range v.Members {
		for _, u := range m.PeerURLs {
			if u == o.PeerURL && (m.Name == "" || m.Name == o.Node) && theirs(m, o) {
				return m, true
			}
		}
	}
	return plan.Member{}, false
}

func (c *Controller) command(command string, v plan.View, o agents.Offer) *etcdv1.AttendMemberResponse {
	return &etcdv1.AttendMemberResponse{
		Command: command, Name: o.Node, InitialCluster: initialCluster(v.Members, o), InitialClusterToken: ClusterToken,
		QuotaBackendBytes: c.Quota,
	}
}

// initialCluster returns the members as the member of an agent is started with. The other members have their ids as
// names: two members of one name would be taken for one with two addresses, and the member would not start. etcd
// compares the addresses only.
func initialCluster(list []plan.Member, o agents.Offer) string {
	var cluster []string
	for _, m := range list {
		name := fmt.Sprintf("%x", m.ID)
		if slices.Contains(m.PeerURLs, o.PeerURL) {
			name = o.Node
		}
		for _, u := range m.PeerURLs {
			cluster = append(cluster, name+"="+u)
		}
	}
	return strings.Join(cluster, ",")
}

// hooks adds and removes our hook, and reports whether it changed any machine.
func (c *Controller) hooks(ctx context.Context, list []plan.Action) bool {
	const again = 300 * time.Millisecond // a change shows in our copy of the machines well before
	var changed atomic.Bool
	var group sync.WaitGroup // at once, so that many machines hold the look up no longer than one
	maps.DeleteFunc(c.memory.hooked, func(_ string, at time.Duration) bool { return c.Elapsed()-at > again })
	for _, a := range list {
		key := string(a.Kind) + a.Machine.UID + a.Machine.ResourceVersion
		if _, ok := c.memory.hooked[key]; ok {
			continue
		}
		c.memory.hooked[key] = c.Elapsed()
		group.Go(func() {
			limited, cancel := context.WithTimeout(ctx, hookLimit)
			defer cancel()
			err := c.patchHook(limited, a)
			c.say(ctx, "hook of machine "+a.Machine.Name, err)
			if err == nil {
				changed.Store(true)
				c.Log.InfoContext(ctx, "done", "action", string(a.Kind), "machine", a.Machine.Name, "reason", a.Reason)
				c.event(a)
			}
		})
	}
	group.Wait()
	return changed.Load()
}

// patchHook writes the machine's preDrain hooks with or without ours, if the machine is still as it was read.
func (c *Controller) patchHook(ctx context.Context, a plan.Action) error {
	machine, ok := c.Machines.Lookup(a.Machine.Namespace, a.Machine.Name)
	if !ok || machine.GetMetadata().GetResourceVersion() != a.Machine.ResourceVersion {
		return nil // the next look sees another machine
	}
	type hook struct {
		Name  string `json:"name"`
		Owner string `json:"owner"`
	}
	hooks := []hook{}
	for _, h := range machine.GetSpec().GetLifecycleHooks().GetPreDrain() {
		if h.GetName() != plan.HookName {
			hooks = append(hooks, hook{h.GetName(), h.GetOwner()})
		}
	}
	if a.Kind == plan.AddHook {
		hooks = append(hooks, hook{plan.HookName, plan.HookOwner})
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": a.Machine.UID, "resourceVersion": a.Machine.ResourceVersion},
		"spec":     map[string]any{"lifecycleHooks": map[string]any{"preDrain": hooks}},
	})
	if err != nil {
		return err
	}
	_, err = c.MachineAPI.PatchMachine(trace.Continue(ctx, machine.GetMetadata()), &machinev1.PatchMachineRequest{
		Namespace: a.Machine.Namespace, Name: a.Machine.Name,
		Patch: &httpbody.HttpBody{ContentType: "application/merge-patch+json", Data: patch},
	})
	return err
}

// event records a change at the machine that it is about.
func (c *Controller) event(a plan.Action) {
	reasons := map[plan.Kind]string{
		plan.AddHook: "QuorumHookAdded", plan.RemoveHook: "QuorumHookRemoved", plan.AddLearner: "MemberAdded",
		plan.Promote:    "MemberPromoted",
		plan.MoveLeader: "LeaderMoved", plan.StopMember: "MemberStopped", plan.RestartMember: "MemberRestarted",
		plan.RemoveMember: "MemberRemoved",
	}
	reason, ok := reasons[a.Kind]
	machine, found := c.Machines.Lookup(a.Machine.Namespace, a.Machine.Name)
	if ok && found {
		c.Events.Event(machine, "Normal", reason, a.Reason)
	}
}
