package plan

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// TestScenarios plays the files of testdata: each describes what happens to a cluster, what this service does about it
// and what it waits for. Run it with -rewrite to write the current results into the files. What happens is one of
// these, a line each:
//
//	config c role=worker path=content     a machine configuration of one file, or new content for it; remove c deletes it
//	clashing c role=worker                a machine configuration that cannot be rendered with any other
//	kernel c role=worker type=realtime   a machine configuration that no machine can be given
//	pool p [max=2], gone p                a pool of the nodes with that role; the pool no longer exists
//	pause p, resume p                     spec.paused of a pool; pause p for=10m is spec.pause with an end
//	window w at=HH:MM for=1h [zone=z]     a maintenance window that opens each day; gone w: it no longer exists
//	unknown                               maintenance windows are not known any more; a window makes them known
//	waive p                               the waiver of windows of a pool, for the configuration that it has
//	wave p name nodes=1 soak=5m           one more wave of a pool; tier=x instead of nodes selects nodes by that label
//	node n role=worker [tier=x] [zone=z]           a node; role=master makes it one of a control-plane machine
//	lost n, back n                        a node is not ready, and ready again
//	cordon n, uncordon n                  a user makes a node unschedulable, and schedulable again
//	stuck n, unstuck n                    the drain of a node does not succeed, and does
//	fails n, works n                      whether the agent of a node can apply a configuration
//	permit granted, permit refused: …     what etcd-guardian answers from now on
//
// "pass 30s" lets time pass, and "held" shows what is held back, since when, and what resolves it. Times are minutes
// and seconds since the start. A drain takes 2 s, a restart 20 s; several changes within 1 s make one roll-out.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if !strings.HasSuffix(path, ".txt") {
			return // such as the corpus of a fuzz test
		}
		s := &scenario{
			clock: epoch(), configs: map[string]*configv1.MachineConfig{}, pools: map[string]*configv1.MachineConfigPool{},
			nodes: map[string]*nodev1.Node{}, drains: map[string]*nodev1.Drain{}, sent: map[string]*Order{},
			owed: map[string]bool{}, stuck: map[string]bool{}, fails: map[string]bool{}, later: map[string]event{},
			waits: map[string]string{}, alias: map[string]string{},
		}
		datadriven.RunTest(t, path, s.run)
	})
}

// event is something that happens at some time.
type event struct {
	at time.Time
	do func()
}

// scenario plays all that is around the plans: the objects, eviction-controller, the agents and the controller.
type scenario struct {
	clock   time.Time
	configs map[string]*configv1.MachineConfig
	pools   map[string]*configv1.MachineConfigPool
	nodes   map[string]*nodev1.Node
	drains  map[string]*nodev1.Drain // by node
	sent    map[string]*Order        // what each agent was ordered last
	owed    map[string]bool
	stuck   map[string]bool
	fails   map[string]bool
	refusal string    // why the permit is refused
	changed time.Time // when a machine configuration changed last
	later   map[string]event
	waits   map[string]string // what each object was last said to wait for
	windows Windows
	alias   map[string]string // short names of rendered configurations
	out     strings.Builder
}

const (
	scenarioSettle = time.Second
	drainTakes     = 2 * time.Second
	restartTakes   = 20 * time.Second
)

func (s *scenario) run(t *testing.T, d *datadriven.TestData) string {
	s.out.Reset()
	for _, line := range strings.Split(d.Input, "\n") {
		if words := strings.Fields(line); len(words) > 0 {
			s.command(t, words)
		}
	}
	switch d.Cmd {
	case "happens":
		s.settle(t)
	case "pass":
		s.pass(t, must(time.ParseDuration(d.CmdArgs[0].Key)))
	case "held":
		s.held()
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	out := s.out.String()
	for name, short := range s.alias {
		out = strings.ReplaceAll(out, name, short)
	}
	if out == "" {
		return "nothing\n"
	}
	return out
}

func (s *scenario) printf(format string, args ...any) {
	fmt.Fprintf(&s.out, "%s %s\n", clockText(s.clock), fmt.Sprintf(format, args...))
}

func clockText(at time.Time) string {
	d := at.Sub(epoch())
	return fmt.Sprintf("%02d:%02d", int(d.Minutes()), int(d.Seconds())%60)
}

// command carries out one line of what happens.
func (s *scenario) command(t *testing.T, words []string) {
	t.Helper()
	args := map[string]string{}
	for _, w := range words[1:] {
		k, v, _ := strings.Cut(w, "=")
		args[k] = v
	}
	name, _, _ := strings.Cut(append(words, "")[1], ":")
	switch words[0] {
	case "config":
		path, content, _ := strings.Cut(words[3], "=")
		s.configs[name], s.changed = mc(name, args["role"], ign(fileDoc(path, content))), s.clock
	case "clashing":
		cfg := mc(name, args["role"], ign(fileDoc("/etc/x", "x")))
		cfg.Spec.Extensions, cfg.Spec.KernelType = []string{"kernel-devel"}, "realtime"
		s.configs[name], s.changed = cfg, s.clock
	case "kernel":
		s.configs[name], s.changed = mc(name, args["role"], nil, func(c *configv1.MachineConfigSpec) {
			c.KernelType = args["type"]
		}), s.clock
	case "remove":
		delete(s.configs, name)
		s.changed = s.clock
	case "pool":
		pool := poolOf(name, name)
		if most, err := strconv.Atoi(args["max"]); err == nil {
			pool.Spec.MaxUnavailable = structpb.NewNumberValue(float64(most))
		}
		s.pools[name] = pool
	case "pause", "resume":
		s.pools[name].Spec.Paused, s.pools[name].Spec.Pause = proto.Bool(words[0] == "pause"), nil
		if length := args["for"]; length != "" {
			s.pools[name].Spec.Paused, s.pools[name].Spec.Pause = nil, &Pause{
				Reason: "trade fair", By: "alice", Since: timestamppb.New(s.clock),
				Until: timestamppb.New(s.clock.Add(must(time.ParseDuration(length)))),
			}
		}
	case "gone":
		delete(s.pools, name)
		s.windows.List = slices.DeleteFunc(s.windows.List, func(w *updatev1.MaintenanceWindow) bool {
			return w.GetMetadata().GetName() == name
		})
	case "wave":
		w := &configv1.MachineConfigPoolWave{Name: words[2], Soak: args["soak"]}
		if most, err := strconv.Atoi(args["nodes"]); err == nil {
			w.Nodes = structpb.NewNumberValue(float64(most))
		} else {
			w.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"tier": args["tier"]}}
		}
		s.pools[name].Spec.Waves = append(s.pools[name].Spec.Waves, w)
	case "window":
		hour, minute, _ := strings.Cut(args["at"], ":")
		s.windows.Unknown = ""
		s.windows.List = append(s.windows.List, &updatev1.MaintenanceWindow{
			Metadata: &metav1.ObjectMeta{Name: name}, Spec: &updatev1.MaintenanceWindowSpec{
				Schedule: fmt.Sprintf("%s %s * * *", minute, hour), TimeZone: proto.String(args["zone"]), Duration: args["for"],
			},
		})
	case "unknown":
		s.windows.Unknown = "update-orchestrator does not answer"
	case "waive":
		s.pools[name].Spec.WindowWaiver = &configv1.MachineConfigPoolWindowWaiver{
			Configuration: s.pools[name].GetSpec().GetConfiguration().GetName(), Reason: "CVE-2026-1",
		}
	case "node":
		n := placed(node(name), args["zone"], 0)
		n.Metadata.Labels = map[string]string{"node-role.kubernetes.io/" + args["role"]: "", "tier": args["tier"]}
		s.nodes[name], s.owed[name] = n, true
	case "lost", "back":
		s.ready(name, words[0] == "back")
	case "cordon", "uncordon":
		s.hold(name, words[0] == "cordon")
	case "stuck", "unstuck":
		if s.stuck[name] = words[0] == "stuck"; !s.stuck[name] && s.drains[name] != nil {
			s.drained(name)
		}
	case "fails", "works":
		if s.fails[name] = words[0] == "fails"; !s.fails[name] && s.sent[name] != nil {
			s.apply(name, *s.sent[name])
		}
	case "permit":
		s.refusal = map[bool]string{true: strings.Join(words[2:], " ")}[name == "refused"]
	default:
		t.Fatalf("unknown: %v", words)
	}
}

func (s *scenario) change(name string, f func(n *nodev1.Node)) {
	n := object.Clone(s.nodes[name])
	f(n)
	s.nodes[name] = n
}

func (s *scenario) ready(name string, is bool) {
	s.change(name, func(n *nodev1.Node) {
		n.Status.Conditions[0].Status = map[bool]string{true: "True", false: "Unknown"}[is]
	})
}

func (s *scenario) hold(name string, is bool) {
	s.change(name, func(n *nodev1.Node) { n.Spec.Unschedulable = proto.Bool(is) })
}

func (s *scenario) mark(name string, marks Marks) {
	s.change(name, func(n *nodev1.Node) {
		if n.Metadata.Annotations == nil {
			n.Metadata.Annotations = map[string]string{}
		}
		for k, v := range marks {
			if n.Metadata.Annotations[k] = v; v == "" {
				delete(n.Metadata.Annotations, k)
			}
		}
	})
}

// report has the agent of a node report.
func (s *scenario) report(name string, r *configv1.ReportConfigRequest) {
	s.mark(name, Reported(s.nodes[name], r))
}

// drained ends the drain of a node with success.
func (s *scenario) drained(name string) {
	d := object.Clone(s.drains[name])
	d.Status = &nodev1.DrainStatus{Phase: proto.String(drained)}
	s.drains[name] = d
	s.printf("node %s is drained", name)
}

// apply has the agent of a node carry out an order.
func (s *scenario) apply(name string, o Order) {
	current, desired := mark(s.nodes[name], CurrentConfig), o.Config.GetMetadata().GetName()
	switch {
	case !o.Apply || done(s.nodes[name]):
	case current == desired:
		s.applied(name, desired, "1")
	case s.fails[name]:
		s.printf("the agent of %s cannot apply %s", name, desired)
		s.report(name, &configv1.ReportConfigRequest{
			CurrentConfig: current, DesiredConfig: desired, State: degraded, Reason: "no space",
		})
	case o.Reboot:
		s.report(name, &configv1.ReportConfigRequest{CurrentConfig: current, State: rebooting, BootId: "1"})
		s.ready(name, false)
		s.later["restart "+name] = event{s.clock.Add(restartTakes), func() {
			s.ready(name, true)
			s.applied(name, desired, "2")
		}}
	default:
		s.applied(name, desired, "1")
	}
}

func (s *scenario) applied(name, config, boot string) {
	s.printf("node %s has %s", name, config)
	s.report(name, &configv1.ReportConfigRequest{
		CurrentConfig: config, DesiredConfig: config, State: stateDone, BootId: boot,
	})
}

func sorted[T any](m map[string]T) []T {
	var out []T
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[k])
	}
	return out
}

// poolView is what the controller decides about a pool with.
func (s *scenario) poolView(name string) View {
	v := View{Now: s.clock, Pool: s.pools[name], Drains: s.drains, Windows: s.windows}
	used := map[string]bool{}
	for _, p := range s.pools {
		used[p.GetSpec().GetConfiguration().GetName()], used[p.GetStatus().GetConfiguration().GetName()] = true, true
	}
	for _, n := range s.nodes {
		used[mark(n, CurrentConfig)], used[mark(n, DesiredConfig)] = true, true
	}
	for _, c := range sorted(s.configs) {
		if n := c.GetMetadata().GetName(); strings.HasPrefix(n, RenderedPrefix+name+"-") && !used[n] {
			v.Unused = append(v.Unused, c)
		}
	}
	if v.Pool == nil {
		return v
	}
	v.Members = MembersOf(name, sorted(s.pools), sorted(s.nodes), s.clock)
	if v.Settled = s.changed.Add(scenarioSettle); !v.Settling() {
		var present []*configv1.MachineConfig
		for _, name := range Present(name, v.Members.Nodes) {
			present = append(present, s.configs[name])
		}
		var err error
		if v.Rendered, err = Render(v.Pool, sorted(s.configs), present); err != nil {
			v.Rendered, v.Failure = Rendered{}, err.Error()
		}
		v.Stored = s.configs[v.Rendered.Config.GetMetadata().GetName()] != nil
	}
	return v
}

func (s *scenario) nodeView(name string) NodeView {
	n := s.nodes[name]
	return NodeView{
		Window: s.windows.For(PoolOf(n, sorted(s.pools)), mark(n, DesiredConfig), s.clock),
		Node:   n, Drain: s.drains[name], Current: s.configs[mark(n, CurrentConfig)],
		Desired: s.configs[mark(n, DesiredConfig)], Policy: defaults(),
	}
}

// follow decides about the agent of a node, as the server does.
func (s *scenario) follow(name string) Plan {
	v := FollowView{NodeView: s.nodeView(name), Now: s.clock, Sent: s.sent[name], Owed: s.owed[name]}
	p := Follow(v)
	if len(p.Ask) == 0 {
		return p
	}
	if v.Permit = (Answer{Code: Granted}); s.refusal != "" {
		v.Permit = Answer{Code: Refused, Why: s.refusal}
		s.printf("agent of %s: %s? no: %s", name, AcquirePermit, s.refusal)
	} else {
		s.printf("agent of %s: %s? yes", name, AcquirePermit)
	}
	return Follow(v)
}

// settle carries out all decisions until nothing is to be done, and returns when to decide again.
func (s *scenario) settle(t *testing.T) time.Time {
	t.Helper()
	for range 50 {
		busy, wakes := false, Plan{}
		decide := func(about string, p Plan) {
			busy = s.do(p) || busy
			s.say(about, p.WaitsFor)
			if !p.Wake.IsZero() {
				wakes.wake(p.Wake)
			}
		}
		for _, name := range s.poolNames() {
			p, _ := Pool(s.poolView(name))
			decide("pool "+name, p)
		}
		for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
			decide("", Node(s.nodeView(name)))
			decide("agent of "+name, s.follow(name))
		}
		if !busy {
			return wakes.Wake
		}
	}
	t.Fatalf("it does not settle:\n%s", s.out.String())
	return time.Time{}
}

// poolNames returns the pools that exist or have left a rendered configuration.
func (s *scenario) poolNames() []string {
	names := maps.Clone(s.pools)
	for _, c := range s.configs {
		if parts := strings.Split(c.GetMetadata().GetName(), "-"); IsRendered(c.GetMetadata().GetName()) {
			names[parts[1]] = s.pools[parts[1]]
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// do carries out what a plan contains. It reports whether that changes what other decisions depend on.
func (s *scenario) do(p Plan) (changed bool) {
	for _, a := range p.Do {
		changed = true
		switch name := a.Object.GetName(); a.Verb {
		case AimPool:
			if c := a.Config; c != nil {
				c = object.Clone(c)
				c.Metadata.CreationTimestamp = timestamppb.New(s.clock)
				s.configs[c.Metadata.Name] = c
				s.alias[c.Metadata.Name] = fmt.Sprintf("%s%s-%d", RenderedPrefix, name, len(s.alias)+1)
				s.printf("pool %s: %s %s", name, c.Metadata.Name, a.Reason)
			}
			s.printf("pool %s is to have %s", name, a.Pool.GetSpec().GetConfiguration().GetName())
			s.pools[name] = a.Pool
		case SetDesired:
			s.printf("node %s gets target %s: %s", name, a.Target, a.Reason)
			s.mark(name, Target(a.Target))
		case StorePool:
			s.sayPool(s.pools[name], a.Pool)
			s.pools[name] = a.Pool
		case DeleteConfig:
			s.printf("%s is deleted", name)
			delete(s.configs, name)
		case CreateDrain:
			s.createDrain(object.Clone(a.Drain))
		case DeleteDrain:
			node := a.Drain.GetSpec().GetNodeName()
			s.printf("the drain of node %s is deleted", node)
			delete(s.drains, node)
			s.hold(node, false)
		case SendOrder:
			s.sent[name] = &a.Order
			s.printf("agent of %s is ordered: %s apply=%v reboot=%v", name, a.Order.Config.GetMetadata().GetName(),
				a.Order.Apply, a.Order.Reboot)
			s.apply(name, a.Order)
		case ReleasePermit:
			s.owed[name], changed = false, false
		}
	}
	return changed
}

func (s *scenario) createDrain(d *nodev1.Drain) {
	node := d.GetSpec().GetNodeName()
	d.Metadata.CreationTimestamp = timestamppb.New(s.clock)
	d.Status = &nodev1.DrainStatus{Phase: proto.String("Draining"), Message: proto.String("1 pod is left")}
	s.printf("node %s is to be drained: %s", node, d.GetSpec().GetReason())
	s.drains[node] = d
	s.hold(node, true)
	s.later["drain "+node] = event{s.clock.Add(drainTakes), func() {
		if !s.stuck[node] {
			s.drained(node)
		}
	}}
}

// sayPool prints the conditions of a pool that changed.
func (s *scenario) sayPool(before, after *configv1.MachineConfigPool) {
	text := func(c *metav1.Condition) string {
		return fmt.Sprintf("%s=%s: %s", c.GetType(), c.GetStatus(), c.GetMessage())
	}
	for _, c := range after.GetStatus().GetConditions() {
		was := object.FindCondition(before.GetStatus().GetConditions(), c.GetType())
		if c.GetStatus() != was.GetStatus() && (was != nil || c.GetStatus() == "True") {
			s.printf("pool %s is %s", after.GetMetadata().GetName(), text(c))
		}
	}
}

// say prints what an object waits for, if that changed.
func (s *scenario) say(about, waitsFor string) {
	if about != "" && s.waits[about] != waitsFor && waitsFor != "" {
		s.printf("%s waits: %s", about, waitsFor)
	}
	s.waits[about] = waitsFor
}

// pass lets time pass, from one event or decision to the next.
func (s *scenario) pass(t *testing.T, d time.Duration) {
	t.Helper()
	end := s.clock.Add(d)
	for {
		next := Plan{Wake: end}
		if wake := s.settle(t); wake.After(s.clock) {
			next.wake(wake)
		}
		for _, e := range s.later {
			next.wake(e.at)
		}
		if s.clock = next.Wake; !s.clock.Before(end) {
			s.happen()
			s.settle(t)
			return
		}
		s.happen()
	}
}

// happen has what is due happen.
func (s *scenario) happen() {
	for _, k := range slices.Sorted(maps.Keys(s.later)) {
		if e := s.later[k]; !e.at.After(s.clock) {
			delete(s.later, k)
			e.do()
		}
	}
}

// held prints what is held back.
func (s *scenario) held() {
	show := func(p Plan) {
		for _, h := range p.Held {
			since := ""
			if h.GetSinceTime() != nil {
				since = " since " + clockText(h.GetSinceTime().AsTime())
			}
			s.printf("%s %s is held back%s: %s", h.Action, h.Object.GetName(), since, h.Reason)
			if h.Unblock != "" {
				fmt.Fprintf(&s.out, "      until %s\n", h.Unblock)
			}
		}
	}
	for _, name := range s.poolNames() {
		p, _ := Pool(s.poolView(name))
		show(p)
	}
	for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
		show(s.follow(name))
	}
}
