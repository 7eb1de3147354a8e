package plan

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// TestScenarios plays the files of testdata/course: each lists what happens to machines and their sets, and what this
// service does about it and waits for. Run it with -rewrite to write what it does now into them. What happens is one of
// these, a line each:
//
//	machine m [preDrain=Name:owner] [preTerminate=Name:owner] [orphan]   orphan: it has a set's labels
//	delete m, annotate m, unhook m                 unhook removes the hooks that block the deletion now
//	forget m reason                                a user deletes it without its provider
//	provider away, provider answers, provider full, provider refuses     the last two are errors of a creation
//	vanish m                                       its instance ends, not by machine-api
//	agent m away, agent m back
//	drains blocked, drains continue
//	restart                                        the copy of the provider's instances is lost
//	machineset 3 [Oldest], scale 2, control-plane, template large, strategy OnDelete
//
// "pass 30s" lets time pass. Instances run 2 s after their creation, their nodes join after 4 s, and are ready after
// 5 s; a drain lasts 3 s, the deletion of an instance 2 s. Of the machines of a set only the phases are shown.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/course", func(t *testing.T, path string) {
		c := newCourse()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			c.out.Reset()
			switch d.Cmd {
			case "happens":
				for line := range strings.Lines(d.Input) {
					if err := c.happens(strings.Fields(line)); err != nil {
						t.Fatalf("%s: %v", strings.TrimSpace(line), err)
					}
				}
			case "pass":
				span, err := time.ParseDuration(d.CmdArgs[0].Key)
				if err != nil {
					t.Fatal(err)
				}
				for range span / time.Second {
					c.tick()
				}
			default:
				t.Fatalf("unknown command %q", d.Cmd)
			}
			return c.out.String()
		})
	})
}

// course is what is around the plans: objects, provider, agents, eviction-controller and etcd-guardian.
type course struct {
	now       time.Time
	set       *machinev1.MachineSet
	control   *machinev1.ControlPlaneMachineSet
	machines  map[string]*machinev1.Machine
	instances map[string]*providerv1.Instance
	copies    map[string]*providerv1.Instance // as the provider last reported them
	nodes     map[string]*nodev1.Node
	drains    map[string]*nodev1.Drain
	at        map[string]time.Time // when an instance was created, or its deletion, or a drain was requested
	createErr map[string]string
	away      map[string]bool // agents
	provider  string          // "answers", "away", "full" or "refuses"
	blocked   bool            // drains
	made      map[string]int
	said      map[string]string
	out       strings.Builder
}

func newCourse() *course {
	return &course{
		now: noon(), machines: map[string]*machinev1.Machine{}, instances: map[string]*providerv1.Instance{},
		nodes: map[string]*nodev1.Node{}, drains: map[string]*nodev1.Drain{}, at: map[string]time.Time{},
		createErr: map[string]string{}, away: map[string]bool{}, provider: "answers", made: map[string]int{},
		said: map[string]string{},
	}
}

func (c *course) happens(what []string) error {
	name := what[min(1, len(what)-1)]
	m := c.machines[name]
	switch what[0] {
	case "machine":
		c.create(name, newMachine(), what[2:])
		return nil
	case "machineset":
		c.set = newSet(0, func(s *machinev1.MachineSet) { s.Spec.DeletePolicy = strings.Join(what[2:], "") })
		c.set.Spec.MinReadySeconds = proto.Int32(10)
		return c.happens([]string{"scale", name})
	case "scale":
		_, err := fmt.Sscan(name, c.set.Spec.Replicas)
		return err
	case "control-plane":
		c.control = newControlPlaneSet()
	case "template":
		t := c.control.Spec.Template.MachinesV1Beta1MachineOpenshiftIo
		t.Spec.ProviderSpec.Value.Fields["instanceType"] = structpb.NewStringValue(name)
	case "strategy":
		c.control.Spec.Strategy.Type = name
	case "provider":
		c.provider = name
	case "drains":
		c.blocked = name == "blocked"
	case "restart":
		c.copies = nil
	case "agent":
		c.away[name] = what[2] == "away"
	case "delete", "annotate", "unhook", "forget", "vanish":
		if m == nil {
			return errors.New("no such machine")
		}
		c.change(m, what)
	default:
		return errors.New("unknown event")
	}
	return nil
}

func (c *course) change(m *machinev1.Machine, what []string) {
	switch what[0] {
	case "forget":
		Forget(m, "alice", what[2], c.now)
		fallthrough
	case "delete":
		m.Metadata.DeletionTimestamp = seconds(c.now)
	case "annotate":
		annotated(m)
	case "unhook":
		if h := ensureHooks(m); len(h.PreDrain) > 0 {
			h.PreDrain = nil
		} else {
			h.PreTerminate = nil
		}
	case "vanish":
		delete(c.instances, what[1])
	}
}

func (c *course) create(name string, m *machinev1.Machine, options []string) {
	m.Metadata.Name, m.Metadata.Uid, m.Metadata.CreationTimestamp = name, "uid-"+name, seconds(c.now)
	for _, o := range options {
		key, hook, _ := strings.Cut(o, "=")
		hookName, owner, _ := strings.Cut(hook, ":")
		h := []*machinev1.LifecycleHook{{Name: hookName, Owner: owner}}
		switch key {
		case "preDrain":
			ensureHooks(m).PreDrain = h
		case "preTerminate":
			ensureHooks(m).PreTerminate = h
		case "orphan":
			m.Metadata.Labels = map[string]string{"set": "workers"}
		}
	}
	c.machines[name] = m
}

func (c *course) print(format string, args ...any) {
	fmt.Fprintf(&c.out, "%4.0f %s\n", c.now.Sub(noon()).Seconds(), fmt.Sprintf(format, args...))
}

// state prints what is so of something, if that changed.
func (c *course) state(of, is string) {
	if c.said[of] != is && is != "" {
		c.print("%s %s", of, is)
	}
	c.said[of] = is
}

// quiet says that only the phases of machines are shown, as a set has them.
func (c *course) quiet() bool { return c.set != nil || c.control != nil }

// tick lets all do what is due, and then a second pass.
func (c *course) tick() {
	c.live()
	if c.set != nil {
		c.reconcileSet()
	}
	if c.control != nil {
		c.guard()
		c.reconcileControlPlane()
	}
	for _, name := range slices.Sorted(maps.Keys(c.machines)) {
		for range 3 { // as often as the controller, so that it takes over what it has just created
			c.reconcileMachine(name)
		}
	}
	for _, m := range c.list() {
		if c.quiet() {
			c.state("machine "+m.Metadata.Name, m.Status.GetPhase())
		}
	}
	c.now = c.now.Add(time.Second)
}

// live is what provider, agents and eviction-controller do.
func (c *course) live() {
	for name, i := range c.instances {
		if end, ok := c.at["end of "+name]; ok && !c.now.Before(end) {
			delete(c.instances, name)
			continue
		}
		age := c.now.Sub(c.at["instance "+name])
		if age >= 2*time.Second {
			i.State = "Running"
		}
		if n := c.nodes[name]; age >= 4*time.Second && n == nil && !c.away[name] {
			c.nodes[name] = newNode(name, "False", c.now)
			c.nodes[name].Metadata.Uid = "uid-node-" + name
			c.nodes[name].Spec.Taints = []*nodev1.Taint{{Key: taintUninitialized, Effect: "NoSchedule"}}
		}
	}
	for name, n := range c.nodes {
		ready, is := n.Status.Conditions[0], conditionTrue
		if c.away[name] || c.instances[name] == nil {
			is = conditionUnknown
		}
		if due := c.now.Sub(c.at["instance "+name]) >= 5*time.Second; due && ready.Status != is {
			ready.Status, ready.LastTransitionTime = is, seconds(c.now)
		}
	}
	for name, d := range c.drains {
		if c.blocked {
			d.Status = newDrain("Running", "budget web allows no eviction").Status
		} else if c.now.Sub(c.at["drain "+name]) >= 3*time.Second {
			d.Status = newDrain("Succeeded", "").Status
		}
	}
	if c.provider != "away" {
		c.copies = maps.Clone(c.instances)
	}
}

// guard is what etcd-guardian does: a control-plane machine is drained once three others have a node.
func (c *course) guard() {
	for _, name := range slices.Sorted(maps.Keys(c.machines)) {
		m, others := c.machines[name], 0
		for _, o := range c.machines {
			if o.GetStatus().GetNodeRef() != nil && !object.Deleting(o) {
				others++
			}
		}
		switch {
		case !object.Deleting(m):
			preDrain(m)
		case len(ensureHooks(m).PreDrain) > 0 && others >= 3:
			m.Spec.LifecycleHooks = nil
			c.print("%s: etcd-guardian removes its hook", name)
		}
	}
}

func (c *course) list() []*machinev1.Machine {
	return slices.SortedFunc(maps.Values(c.machines), func(a, b *machinev1.Machine) int {
		return cmp.Compare(a.Metadata.Name, b.Metadata.Name)
	})
}

func (c *course) reconcileSet() {
	p := Scale(SetView{Now: c.now, Set: c.set, Machines: c.list(), Nodes: c.nodes})
	c.set.Status = p.Status
	c.state("workers", fmt.Sprintf("%d replicas, %d ready, %d available", p.Status.GetReplicas(),
		p.Status.GetReadyReplicas(), p.Status.GetAvailableReplicas()))
	for _, m := range p.Adopt {
		c.print("AdoptMachine %s", m.Metadata.Name)
		m.Metadata.OwnerReferences = append(m.Metadata.OwnerReferences, object.OwnedBy(c.set))
	}
	for range p.CreateNow {
		c.made["workers"]++
		name := fmt.Sprintf("workers-%c", 'a'+c.made["workers"]-1)
		m := FromTemplate(c.set)
		c.create(name, m, nil)
		c.print("CreateMachine %s", name)
	}
	for _, d := range p.Delete[:p.DeleteNow] {
		c.print("DeleteMachine %s", d)
		d.Machine.Metadata.DeletionTimestamp = seconds(c.now)
	}
}

func (c *course) reconcileControlPlane() {
	p := ControlPlane(ControlPlaneView{Now: c.now, Set: c.control, Machines: c.list(), Nodes: c.nodes})
	c.control.Status = p.Status
	progress := object.FindCondition(p.Status.GetConditions(), Progressing).GetMessage()
	c.state("control plane", withCause(fmt.Sprintf("%d replicas, %d ready, %d updated", p.Status.GetReplicas(),
		p.Status.GetReadyReplicas(), p.Status.GetUpdatedReplicas()), progress))
	held := map[string]bool{}
	for _, h := range p.Held {
		what := fmt.Sprintf("held back: %s %s:", h.GetAction(), h.GetObject().GetName())
		held[what] = true
		c.state(what, h.GetReason())
	}
	maps.DeleteFunc(c.said, func(what, _ string) bool { return strings.HasPrefix(what, "held back:") && !held[what] })
	for _, d := range p.Delete {
		c.print("DeleteMachine %s: %s", d.Machine.Metadata.Name, d.Reason)
		d.Machine.Metadata.DeletionTimestamp = seconds(c.now)
	}
	for _, w := range p.Create {
		index := fmt.Sprint(w.Index)
		c.made[index]++
		name := fmt.Sprintf("%c-%s", 'a'+c.made[index]-1, index)
		c.create(name, w.Machine, nil)
		c.print("CreateMachine %s in %s: %s", name, w.Domain, w.Reason)
	}
}

func (c *course) view(m *machinev1.Machine) MachineView {
	name := m.Metadata.Name
	v := MachineView{
		Now: c.now, Machine: m, Instance: c.copies[name], CreateErr: c.createErr[name], Node: c.nodes[name],
		NodesSeen: true, Drain: c.drains[name],
	}
	existed := m.GetSpec().GetProviderId() != "" && m.GetStatus().GetPhase() != PhaseFailed
	if v.Instance == nil && !IsForgotten(m) && (existed || object.Deleting(m)) {
		v.InstanceGone = c.provider != "away"
		if !v.InstanceGone {
			v.InstanceErr = "connection refused"
		}
	}
	return v
}

func (c *course) reconcileMachine(name string) {
	m := c.machines[name]
	if m == nil {
		return
	}
	v := c.view(m)
	p := Next(v)
	c.write(m, p)
	if !c.quiet() {
		c.state(name, strings.Trim(fmt.Sprint(p.Actions), "[]"))
	}
	for _, a := range p.Actions {
		var ok bool
		if v, ok = c.act(m, v, a); !ok {
			c.write(m, Next(v))
			return
		}
	}
}

// write takes over what a plan says of the machine itself.
func (c *course) write(m *machinev1.Machine, p MachinePlan) {
	name := m.Metadata.Name
	m.Status, m.Spec.ProviderId = p.Status, p.ProviderID
	if c.quiet() {
		return
	}
	for _, e := range p.Events {
		c.state("event of "+name, e.Reason+": "+e.Message)
	}
	is := p.Status.GetPhase()
	if p.WaitsFor != "" {
		is += ", waits for " + p.WaitsFor
	}
	c.state("machine "+name, is)
}

// act does one action, as the controller, the provider and eviction-controller do.
func (c *course) act(m *machinev1.Machine, v MachineView, a Action) (MachineView, bool) {
	name := m.Metadata.Name
	switch a {
	case CreateInstance:
		v.CreateErr = map[string]string{"away": "connection refused", "full": "no room"}[c.provider]
		c.createErr[name] = v.CreateErr
		if c.provider == "refuses" {
			v.Refused = "zone: unknown"
		}
		if c.provider != "answers" {
			return v, false
		}
		i := instance()
		i.MachineName, i.MachineUid, i.ProviderId, i.State = name, m.Metadata.Uid, "local://c/"+name, "Creating"
		c.instances[name], c.at["instance "+name] = i, c.now
		c.copies = maps.Clone(c.instances)
	case UpdateNode:
		n := c.nodes[name]
		labels, annotations, taints := NodeChange(m, n)
		n.Metadata.Labels, n.Metadata.Annotations = labels, annotations
		if taints != nil {
			n.Spec.Taints = taints
		}
	case CreateDrain:
		c.drains[name], c.at["drain "+name] = newDrain("Running", ""), c.now
	case DeleteInstance:
		if c.provider == "away" {
			return v, false
		}
		if _, ok := c.at["end of "+name]; !ok {
			c.at["end of "+name] = c.now.Add(2 * time.Second)
		}
	case DeleteNode:
		delete(c.nodes, name)
	case DeleteDrain:
		delete(c.drains, name)
	case RemoveFinalizer:
		delete(c.machines, name)
		c.print("machine %s is gone", name)
	}
	return v, true
}
