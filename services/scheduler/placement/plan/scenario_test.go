package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// TestScenarios plays the files of testdata/queue: each lists what happens to pods and nodes, and which pods are placed
// when. Run it with -rewrite to update what is done. What happens is one of these, a line each:
//
//	node a [cpu=2]                    a node with 4 cores or as many as it says; "gone node a" removes it
//	pod p [cpu=1] [priority=5] [app=x] [near=x] [apart=x]   a pod, or another spec of it, near or apart from other pods
//	status p                          the agent or a user changes the status of a pod
//	label p y                         the label app of a pod changes
//	ends p                            a pod has ended; "gone pod p" removes it
//	etcd refuses, etcd accepts        whether writes succeed from now on
//	stale p                           p changes while its next binding is written
//	elsewhere p b                     another client binds p to b while its next binding is written
//	invalid p                         no write of p succeeds any more
//
// "pass 200ms" lets time pass. Times are in milliseconds since the begin.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/queue", func(t *testing.T, path string) {
		s := &scenario{
			clock: start, queue: NewQueue(NewCluster(), only(nil)), pods: map[string]*schedulingv1.Pod{},
			meets: map[string]string{},
		}
		datadriven.RunTest(t, path, s.run)
	})
}

var start = time.Unix(1_700_000_000, 0)

// scenario plays all that is around the queue: the objects, etcd and the controller.
type scenario struct {
	clock time.Time
	wake  time.Time
	queue *Queue
	pods  map[string]*schedulingv1.Pod // as they are stored
	down  bool                         // etcd refuses writes
	meets map[string]string            // what the next binding of a pod meets
	waits string                       // what was printed last
	out   strings.Builder
}

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
		length, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		for end := s.clock.Add(length); ; s.settle(t) {
			if s.wake.IsZero() || s.wake.After(end) {
				s.clock = end
				break
			}
			s.clock = s.wake
		}
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	if s.out.Len() == 0 {
		return "nothing\n"
	}
	return s.out.String()
}

func (s *scenario) printf(format string, args ...any) {
	fmt.Fprintf(&s.out, "%4d %s\n", s.clock.Sub(start).Milliseconds(), fmt.Sprintf(format, args...))
}

// command carries out one line of what happens.
func (s *scenario) command(t *testing.T, words []string) {
	t.Helper()
	name, args := words[1], map[string]string{}
	for _, w := range words[2:] {
		k, v, _ := strings.Cut(w, "=")
		args[k] = v
	}
	switch words[0] {
	case "node":
		n := newNode(name)
		if cpu, ok := args["cpu"]; ok {
			having("cpu", cpu)(n)
		}
		s.queue.AddNode(n)
	case "pod":
		s.addPod(t, name, args)
	case "status":
		s.change(name, func(p *schedulingv1.Pod) {
			p.Status = &schedulingv1.PodStatus{Conditions: append(p.GetStatus().GetConditions(),
				&schedulingv1.PodCondition{Type: "Ready", Status: "False"})}
		})
	case "label":
		s.change(name, carrying("app", words[2]))
	case "ends":
		s.change(name, func(p *schedulingv1.Pod) { p.Status = &schedulingv1.PodStatus{Phase: proto.String("Succeeded")} })
	case "gone":
		if name = words[2]; words[1] == "node" {
			s.queue.RemoveNode(name)
			return
		}
		s.queue.RemovePod(object.KeyOf(s.pods[name]))
		delete(s.pods, name)
	case "etcd":
		s.down = name == "refuses"
	case "stale", "elsewhere", "invalid":
		s.meets[name] = words[0] + strings.Join(words[2:], "")
	default:
		t.Fatalf("unknown: %v", words)
	}
}

func (s *scenario) addPod(t *testing.T, name string, args map[string]string) {
	t.Helper()
	p := newPod(name, func(p *schedulingv1.Pod) {
		p.Metadata.Uid, p.Metadata.Generation = "uid-"+name, s.pods[name].GetMetadata().GetGeneration()+1
		p.Metadata.CreationTimestamp = timestamppb.New(s.clock)
		p.Spec.SchedulerName, p.Spec.PreemptionPolicy = DefaultScheduler, proto.String(preemptNever)
	})
	if before := s.pods[name]; before != nil {
		p.Metadata.CreationTimestamp, p.Status = before.Metadata.CreationTimestamp, before.Status
	}
	terms := func(app string) []*schedulingv1.PodAffinityTerm {
		return []*schedulingv1.PodAffinityTerm{{
			TopologyKey:   "kubernetes.io/hostname",
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		}}
	}
	for k, v := range args {
		switch k {
		case "cpu":
			asking("cpu", v)(p)
		case "app":
			carrying("app", v)(p)
		case "priority":
			var n int32
			if _, err := fmt.Sscan(v, &n); err != nil {
				t.Fatal(err)
			}
			p.Spec.Priority = proto.Int32(n)
		case "preempts":
			p.Spec.PreemptionPolicy = nil
		case "near":
			p.Spec.Affinity = &schedulingv1.Affinity{
				PodAffinity: &schedulingv1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms(v)},
			}
		case "apart":
			p.Spec.Affinity = &schedulingv1.Affinity{
				PodAntiAffinity: &schedulingv1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms(v)},
			}
		default:
			t.Fatalf("unknown argument %s", k)
		}
	}
	s.pods[name] = p
	s.queue.AddPod(p)
}

// change stores a pod with a change, and has the queue take it in.
func (s *scenario) change(name string, f func(*schedulingv1.Pod)) *schedulingv1.Pod {
	p := object.Clone(s.pods[name])
	f(p)
	s.pods[name] = p
	s.queue.AddPod(p)
	return p
}

// settle decides and carries out until the plan is to wait, as the controller does.
func (s *scenario) settle(t *testing.T) {
	t.Helper()
	for range 50 {
		p := s.queue.Next(s.clock)
		var outcomes []Outcome
		for _, a := range p.Do {
			outcomes = append(outcomes, s.do(a))
		}
		s.queue.Done(s.clock, outcomes)
		if p.Wake.IsZero() || p.Wake.After(s.clock) {
			s.wake = p.Wake
			s.sayWaits(p)
			return
		}
	}
	t.Fatalf("it does not settle:\n%s", s.out.String())
}

// sayWaits prints what a plan waits for, if that changed.
func (s *scenario) sayWaits(p Plan) {
	waits := p.WaitsFor
	if !p.Wake.IsZero() {
		waits += fmt.Sprintf(", again at %d", p.Wake.Sub(start).Milliseconds())
	}
	if waits != s.waits && waits != "" {
		s.printf("waits for %s", waits)
	}
	s.waits = waits
}

// do does one action, as the controller does.
func (s *scenario) do(a Action) Outcome {
	name := a.Pod.GetMetadata().GetName()
	what, o := name+" to "+a.Node, Outcome{Action: a}
	if a.Verb == StorePending {
		what, _, _ = strings.Cut(a.Message, ".")
		what = name + " pending: " + what
	}
	if a.Verb == EvictVictims {
		what = name + " evicts on " + outline(a.Preempts)
	}
	meets := s.meets[name]
	switch {
	case s.down:
		o.Result = Unwritten
		s.printf("%s: etcd refuses", what)
		return o
	case meets == "invalid":
		o.Result = Invalid
		s.printf("%s: invalid", what)
		return o
	case a.Verb == BindPod && meets != "":
		delete(s.meets, name)
		p := object.Clone(s.pods[name])
		if node, bound := strings.CutPrefix(meets, "elsewhere"); bound {
			p.Spec.NodeName = node
		} else {
			p.Metadata.Labels = map[string]string{"app": "changed"}
		}
		s.pods[name] = p
		o.Result, o.Now = Changed, p
		s.printf("%s: changed", what)
		return o
	}
	s.printf("%s", what)
	if a.Verb == EvictVictims {
		for _, v := range a.Preempts.Victims {
			s.change(v.Key.Name, func(p *schedulingv1.Pod) { p.Metadata.DeletionTimestamp = timestamppb.New(s.clock) })
		}
		return o
	}
	p := object.Clone(s.pods[name])
	if a.Verb == BindPod {
		p.Spec.NodeName = a.Node
	} else {
		p.Status = &schedulingv1.PodStatus{NominatedNodeName: a.Nominated(), Conditions: []*schedulingv1.PodCondition{
			{Type: PodScheduled, Status: "False", Message: proto.String(a.Message)},
		}}
		s.queue.AddPod(p) // its watch event
	}
	s.pods[name], o.Now = p, p
	return o
}
