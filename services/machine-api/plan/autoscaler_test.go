package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/spans"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"
)

const scaledNamespace = "openshift-machine-api"

// crowd is a cluster with autoscaled sets, and a scheduler that knows resources, selectors and taints.
type crowd struct {
	now  time.Time
	v    AutoscalerView
	next int
}

func newCrowd(change ...func(*machinev1.ClusterAutoscalerSpec)) *crowd {
	spec := &machinev1.ClusterAutoscalerSpec{ScaleDown: &machinev1.ClusterAutoscalerScaleDown{Enabled: true}}
	for _, f := range change {
		f(spec)
	}
	return &crowd{
		now: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC),
		v: AutoscalerView{
			Cluster: &machinev1.ClusterAutoscaler{Metadata: &metav1.ObjectMeta{Name: "default"}, Spec: spec},
			Nodes:   map[string]*nodev1.Node{}, Exact: true,
		},
	}
}

// set adds a set of nodes with so many CPUs, with machines that have joined, and its autoscaler.
func (f *crowd) set(name, cpus string, replicas, low, high int) *machinev1.MachineSet {
	labels := map[string]string{"set": name}
	s := &machinev1.MachineSet{
		Metadata: &metav1.ObjectMeta{
			Namespace: scaledNamespace, Name: name, Uid: "uid-" + name,
			Annotations: map[string]string{
				annotationVCPU: cpus, annotationMemory: "4096",
			},
		},
		Spec: &machinev1.MachineSetSpec{
			Replicas: proto.Int32(int32(replicas)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: &machinev1.MachineTemplateSpec{
				Metadata: &metav1.ObjectMeta{Labels: labels},
				Spec:     &machinev1.MachineSpec{Metadata: &metav1.ObjectMeta{Labels: labels}},
			},
		},
	}
	f.v.Sets = append(f.v.Sets, s)
	f.v.Autoscalers = append(f.v.Autoscalers, &machinev1.MachineAutoscaler{
		Metadata: &metav1.ObjectMeta{Namespace: scaledNamespace, Name: name},
		Spec: &machinev1.MachineAutoscalerSpec{
			MinReplicas: int32(low), MaxReplicas: int32(high),
			ScaleTargetRef: &machinev1.MachineAutoscalerTarget{Kind: "MachineSet", Name: name},
		},
	})
	f.settle()
	f.join()
	return s
}

// settle does what the machine sets do: it creates machines that are missing.
func (f *crowd) settle() {
	for _, s := range f.v.Sets {
		have := 0
		for _, m := range f.v.Machines {
			if object.ControllerOf(m).GetName() == s.Metadata.Name && !object.Deleting(m) {
				have++
			}
		}
		for ; have < wantedReplicas(s); have++ {
			f.next++
			m := FromTemplate(s)
			m.Metadata.Name = fmt.Sprintf("%s-%d", s.Metadata.Name, f.next)
			m.Metadata.Uid, m.Metadata.CreationTimestamp = "uid-"+m.Metadata.Name, seconds(f.now)
			m.Metadata.OwnerReferences[0].ApiVersion, m.Metadata.OwnerReferences[0].Kind = "v", "MachineSet"
			f.v.Machines = append(f.v.Machines, m)
		}
	}
}

// join gives every machine a ready node, and places the pods that fit.
func (f *crowd) join() {
	for _, m := range f.v.Machines {
		name := m.Metadata.Name
		if object.Deleting(m) || f.v.Nodes[name] != nil || m.GetStatus().GetPhase() == PhaseFailed {
			continue
		}
		var capacity map[string]*structpb.Value
		for _, s := range f.v.Sets {
			if object.ControllerOf(m).GetName() == s.Metadata.Name {
				capacity = statedCapacity(s.Metadata.Annotations, nil)
			}
		}
		m.Status = &machinev1.MachineStatus{NodeRef: &metav1.ObjectReference{Name: name}, Phase: proto.String("Running")}
		f.v.Nodes[name] = &nodev1.Node{
			Metadata: &metav1.ObjectMeta{Name: name, Labels: m.GetSpec().GetMetadata().GetLabels()}, Spec: &nodev1.NodeSpec{},
			Status: &nodev1.NodeStatus{Capacity: capacity, Conditions: []*nodev1.NodeCondition{{
				Type: "Ready", Status: "True", LastTransitionTime: seconds(f.now),
			}}},
		}
	}
	f.schedule()
}

// schedule binds the pending pods that fit, and says of the others that they are unschedulable.
func (f *crowd) schedule() {
	for _, at := range f.place(&schedulingv1.PlanPlacementRequest_Variation{Place: f.unbound()}).GetPlacements() {
		p := f.pod(at.GetNamespace() + "/" + at.GetName())
		p.Spec.NodeName = at.GetNode()
		if at.GetNode() == "" {
			p.Status = &schedulingv1.PodStatus{Phase: proto.String("Pending"), Conditions: []*schedulingv1.PodCondition{{
				Type: "PodScheduled", Status: "False", Reason: proto.String("Unschedulable"),
			}}}
		} else {
			p.Status = &schedulingv1.PodStatus{Phase: proto.String("Running"), Conditions: []*schedulingv1.PodCondition{{
				Type: "Ready", Status: "True",
			}}}
		}
	}
}

func (f *crowd) unbound() []*schedulingv1.PlanPlacementRequest_PodName {
	var out []*schedulingv1.PlanPlacementRequest_PodName
	for _, p := range f.v.Pods {
		if p.GetSpec().GetNodeName() == "" {
			out = append(out, &schedulingv1.PlanPlacementRequest_PodName{
				Namespace: p.Metadata.Namespace, Name: p.Metadata.Name,
			})
		}
	}
	return out
}

func (f *crowd) pod(key string) *schedulingv1.Pod {
	i := slices.IndexFunc(f.v.Pods, func(p *schedulingv1.Pod) bool { return object.KeyOf(p).String() == key })
	return f.v.Pods[i]
}

// add adds pods of a replica set that ask for so much CPU.
func (f *crowd) add(n int, cpu string, change ...func(*schedulingv1.Pod)) {
	for range n {
		f.next++
		yes := true
		p := &schedulingv1.Pod{
			Metadata: &metav1.ObjectMeta{
				Namespace: "default", Name: fmt.Sprintf("pod-%d", f.next), Labels: map[string]string{"app": "a"},
				OwnerReferences: []*metav1.OwnerReference{{Kind: "ReplicaSet", Name: "a", Controller: &yes}},
			},
			Spec: &schedulingv1.PodSpec{Containers: []*schedulingv1.Container{{
				Resources: &schedulingv1.ResourceRequirements{
					Requests: map[string]*structpb.Value{"cpu": structpb.NewStringValue(cpu)},
				},
			}}},
		}
		for _, c := range change {
			c(p)
		}
		f.v.Pods = append(f.v.Pods, p)
	}
	f.schedule()
}

// place answers a question as a scheduler does.
func (f *crowd) place(v *schedulingv1.PlanPlacementRequest_Variation) *schedulingv1.PlanPlacementResponse_Result {
	nodes := maps.Clone(f.v.Nodes)
	for _, name := range v.GetRemove() {
		delete(nodes, name)
	}
	for _, add := range v.GetAdd() {
		for i := range add.GetCount() {
			nodes[fmt.Sprintf("~%s-%03d", add.GetNode().GetMetadata().GetName(), i)] = add.GetNode()
		}
	}
	moves := map[string]bool{}
	for _, p := range v.GetPlace() {
		moves[p.GetNamespace()+"/"+p.GetName()] = true
	}
	left := map[string]placement.Resources{}
	for name, n := range nodes {
		left[name], _ = placement.Allocatable(n)
	}
	for _, p := range f.v.Pods {
		if has, ok := left[p.GetSpec().GetNodeName()]; ok && !moves[object.KeyOf(p).String()] {
			has.Sub(placement.RequestsOf(p.GetSpec()))
			left[p.GetSpec().GetNodeName()] = has
		}
	}
	out := &schedulingv1.PlanPlacementResponse_Result{}
	for _, p := range v.GetPlace() {
		pod := f.pod(p.GetNamespace() + "/" + p.GetName())
		asks, at := placement.RequestsOf(pod.GetSpec()), ""
		for _, name := range slices.Sorted(maps.Keys(nodes)) {
			n, has := nodes[name], left[name]
			if placement.MatchesNode(pod.GetSpec(), n) && asks.MilliCPU <= has.MilliCPU && asks.Memory <= has.Memory &&
				placement.Untolerated(pod.GetSpec().GetTolerations(), n.GetSpec().GetTaints(), "NoSchedule") == nil {
				has.Sub(asks)
				left[name], at = has, name
				break
			}
		}
		message := ""
		if at == "" {
			message = "0 nodes are available"
		}
		out.Placements = append(out.Placements, &schedulingv1.PlanPlacementResponse_Placement{
			Namespace: p.GetNamespace(), Name: p.GetName(), Node: at, Message: message,
		})
	}
	return out
}

// plan decides, with the scheduler's answers.
func (f *crowd) plan() AutoscalerPlan {
	f.v.Now, f.v.Answers = f.now, map[string]*schedulingv1.PlanPlacementResponse_Result{}
	slices.SortFunc(f.v.Machines, func(a, b *machinev1.Machine) int {
		return strings.Compare(a.Metadata.Name, b.Metadata.Name)
	})
	p := Autoscale(f.v)
	for len(p.Ask) > 0 {
		for _, q := range p.Ask {
			f.v.Answers[q.ID] = f.place(q.Variation)
		}
		p = Autoscale(f.v)
	}
	return p
}

// act decides and does it; machines join at once unless stuck.
func (f *crowd) act() AutoscalerPlan {
	p := f.plan()
	f.v.Cluster.Status = p.Status
	for _, s := range p.Sets {
		s.Autoscaler.Status = s.Status
		if s.Set != nil {
			s.Set.Spec.Replicas = proto.Int32(int32(s.Desired))
		}
		for _, r := range s.Remove {
			f.v.Machines = slices.DeleteFunc(f.v.Machines, func(m *machinev1.Machine) bool { return m == r.Machine })
			delete(f.v.Nodes, r.Machine.GetMetadata().GetName())
			for _, pod := range f.v.Pods {
				if pod.GetSpec().GetNodeName() == r.Machine.GetMetadata().GetName() {
					pod.Spec.NodeName = ""
				}
			}
		}
	}
	f.settle()
	f.schedule()
	return p
}

func (f *crowd) replicas(name string) int {
	for _, s := range f.v.Sets {
		if s.Metadata.Name == name {
			return wantedReplicas(s)
		}
	}
	return -1
}

func (f *crowd) status(name string) *machinev1.MachineAutoscalerStatus {
	for _, a := range f.v.Autoscalers {
		if a.Metadata.Name == name {
			return a.GetStatus()
		}
	}
	return nil
}

func (f *crowd) want(t *testing.T, what string, want map[string]int) {
	t.Helper()
	for name, n := range want {
		if got := f.replicas(name); got != n {
			t.Errorf("%s: set %s has %d replicas, want %d", what, name, got, n)
		}
	}
}

func says(t *testing.T, list []*metav1.Condition, typ, status, reason string) {
	t.Helper()
	if c := object.FindCondition(list, typ); c.GetStatus() != status || c.GetReason() != reason {
		t.Errorf("condition %v, want %s=%s because of %s", c, typ, status, reason)
	}
}

func TestASetGrowsByAsManyMachinesAsThePodsNeed(t *testing.T) {
	f := newCrowd()
	f.set("a", "2", 1, 1, 10)
	f.add(7, "1")
	p := f.act()
	f.want(t, "five of seven pods wait, two to a node", map[string]int{"a": 4})
	if s := p.Sets[0]; !strings.HasPrefix(s.Reason, "5 unschedulable pods fit on 3 more: default/pod-") ||
		len(s.Pods) != 5 {
		t.Errorf("the reason is %q for %v", s.Reason, s.Pods)
	}
	f.now = f.now.Add(time.Minute)
	if f.act(); f.status("a").GetUnderwayMachines() != 3 {
		t.Errorf("the status is %v", f.status("a"))
	}
	f.want(t, "the machines are under way", map[string]int{"a": 4})
	f.add(2, "1")
	f.act()
	f.want(t, "one of two more pods fits on the machines under way", map[string]int{"a": 5})
}

func TestFromZeroAndToZero(t *testing.T) {
	f := newCrowd()
	s := f.set("a", "2", 0, 0, 3)
	f.add(1, "1")
	s.Metadata.Annotations = nil
	f.act()
	f.want(t, "what a node has is not known", map[string]int{"a": 0})
	says(t, f.status("a").GetConditions(), "AbleToScale", "False", "CapacityUnknown")
	value, err := structpb.NewStruct(map[string]any{"capacity": map[string]any{"cpu": "2", "memory": "4Gi"}})
	if err != nil {
		t.Fatal(err)
	}
	s.Spec.Template.Spec.ProviderSpec = &machinev1.ProviderSpec{Value: value}
	f.act()
	f.want(t, "the provider spec says it", map[string]int{"a": 1})
	s.Metadata.Annotations = map[string]string{annotationVCPU: "2", annotationMemory: "4096"}
	f.join()
	f.v.Pods = nil
	f.act()
	f.now = f.now.Add(11 * time.Minute)
	f.act()
	f.want(t, "nothing is on the node", map[string]int{"a": 0})
}

func TestLimitsHoldGrowth(t *testing.T) {
	for name, c := range map[string]struct {
		rules  func(*machinev1.ClusterAutoscalerSpec)
		high   int
		want   int
		reason string
	}{
		"maxReplicas": {func(*machinev1.ClusterAutoscalerSpec) {}, 2, 2, "TooManyReplicas"},
		"maxNodesTotal": {func(s *machinev1.ClusterAutoscalerSpec) {
			s.ResourceLimits = &machinev1.ClusterAutoscalerLimits{MaxNodesTotal: 3}
		}, 10, 3, "ClusterLimit"},
		"cores": {func(s *machinev1.ClusterAutoscalerSpec) {
			s.ResourceLimits = &machinev1.ClusterAutoscalerLimits{Cores: &machinev1.ClusterAutoscalerRange{Max: 9}}
		}, 10, 4, "ClusterLimit"},
		"memory": {func(s *machinev1.ClusterAutoscalerSpec) {
			s.ResourceLimits = &machinev1.ClusterAutoscalerLimits{Memory: &machinev1.ClusterAutoscalerRange{Max: 8}}
		}, 10, 2, "ClusterLimit"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newCrowd(c.rules)
			f.set("a", "2", 1, 1, c.high)
			f.add(20, "1")
			f.act()
			f.want(t, "first", map[string]int{"a": c.want})
			f.join()
			p := f.act()
			f.want(t, "then", map[string]int{"a": c.want})
			says(t, f.status("a").GetConditions(), "ScalingLimited", "True", c.reason)
			if p.Status.GetUnhelpedPodCount() != int32(20-2*c.want) {
				t.Errorf("%d pods are without help: %v", p.Status.GetUnhelpedPodCount(), p.Status.GetUnhelpedPods())
			}
		})
	}
}

func TestPodsThatFitNowhereAddNoMachine(t *testing.T) {
	f := newCrowd()
	f.set("a", "2", 1, 1, 10)
	f.add(1, "1")
	f.add(1, "3")
	f.add(1, "1", func(p *schedulingv1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "fast"} })
	f.add(1, "2", func(p *schedulingv1.Pod) { p.Spec.Priority = proto.Int32(-11) })
	p := f.act()
	f.want(t, "too large, elsewhere, and too unimportant", map[string]int{"a": 1})
	if p.Status.GetUnhelpedPodCount() != 2 {
		t.Errorf("without help are %v", p.Status.GetUnhelpedPods())
	}
}

func TestTheSetThatLeavesTheLeastFreeGrows(t *testing.T) {
	f := newCrowd()
	f.set("large", "16", 1, 1, 5)
	f.set("small", "2", 1, 1, 5)
	f.add(20, "1")
	f.v.Pods = f.v.Pods[:18]
	f.add(2, "1")
	f.act()
	f.want(t, "two pods wait", map[string]int{"large": 1, "small": 2})
	g := newCrowd()
	g.set("b", "2", 1, 1, 5)
	g.set("a", "2", 1, 1, 5)
	g.add(5, "1")
	g.act()
	g.want(t, "two alike", map[string]int{"a": 2, "b": 1})
	h := newCrowd(func(s *machinev1.ClusterAutoscalerSpec) { s.BalanceSimilarNodeGroups = proto.Bool(true) })
	h.set("b", "2", 1, 1, 5)
	h.set("a", "2", 1, 1, 5)
	for _, s := range h.v.Sets {
		s.Spec.Template.Spec.Metadata.Labels = nil
	}
	for _, n := range h.v.Nodes {
		n.Metadata.Labels = nil
	}
	h.add(8, "1")
	h.act()
	h.want(t, "two that are balanced", map[string]int{"a": 2, "b": 2})
}

func TestASetWhoseMachinesFailWaitsAndAnotherGrows(t *testing.T) {
	f := newCrowd()
	f.set("a", "2", 1, 1, 5)
	f.set("b", "4", 1, 1, 5)
	f.add(7, "1")
	f.act()
	f.want(t, "a is the better one", map[string]int{"a": 2, "b": 1})
	f.now = f.now.Add(16 * time.Minute)
	f.act()
	f.want(t, "the machine of a is late", map[string]int{"a": 1, "b": 2})
	says(t, f.status("a").GetConditions(), "AbleToScale", "False", "BackOff")
	f.join()
	f.add(2, "1")
	f.add(3, "1")
	f.act()
	f.want(t, "a still waits", map[string]int{"a": 1, "b": 3})
	f.join()
	f.now = f.now.Add(6 * time.Minute)
	f.add(4, "1")
	f.act()
	f.want(t, "a does not wait any more", map[string]int{"a": 2, "b": 3})
}

func TestANodeThatIsNotNeededGoesAfterItsTime(t *testing.T) {
	f := newCrowd()
	f.set("a", "2", 3, 1, 5)
	f.act()
	f.want(t, "not yet", map[string]int{"a": 3})
	if c := f.status("a").GetScaleDownCandidates(); len(c) != 3 ||
		c[0].GetHeldBy() != "unneededTime (10m0s) ends at 12:10:00" {
		t.Errorf("candidates %v", c)
	}
	f.now = f.now.Add(10 * time.Minute)
	if p := f.act(); p.Wake.Sub(f.now) != 10*time.Second {
		t.Errorf("decides again after %v", p.Wake.Sub(f.now))
	}
	f.want(t, "one at a time", map[string]int{"a": 2})
	f.act()
	f.want(t, "delayAfterDelete", map[string]int{"a": 2})
	f.now = f.now.Add(10 * time.Second)
	f.act()
	f.want(t, "the next", map[string]int{"a": 1})
	f.now = f.now.Add(time.Hour)
	f.act()
	f.want(t, "never below minReplicas", map[string]int{"a": 1})
}

func TestWhatHoldsANode(t *testing.T) {
	budget := &schedulingv1.PodDisruptionBudget{
		Metadata: &metav1.ObjectMeta{Namespace: "default", Name: "b"},
		Spec: &schedulingv1.PodDisruptionBudgetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}},
		},
		Status: &schedulingv1.PodDisruptionBudgetStatus{
			DesiredHealthy: proto.Int32(1), CurrentHealthy: proto.Int32(1), DisruptionsAllowed: proto.Int32(0),
		},
	}
	for name, c := range map[string]struct {
		change func(*crowd, *schedulingv1.Pod)
		held   string // part of it; empty if the node goes
	}{
		"nothing": {func(*crowd, *schedulingv1.Pod) {}, ""},
		"a budget": {
			func(f *crowd, _ *schedulingv1.Pod) { f.v.Budgets = append(f.v.Budgets, budget) },
			"budget b needs 1",
		},
		"no controller": {func(_ *crowd, p *schedulingv1.Pod) { p.Metadata.OwnerReferences = nil }, "no controller"},
		"local storage": {func(_ *crowd, p *schedulingv1.Pod) {
			p.Spec.Volumes = []*schedulingv1.Volume{{EmptyDir: &schedulingv1.EmptyDirVolumeSource{}}}
		}, "local storage"},
		"an annotation of the pod": {func(_ *crowd, p *schedulingv1.Pod) {
			p.Metadata.Annotations = map[string]string{annotationSafeToEvict: "false"}
		}, "safe-to-evict=false"},
		"no other node": {func(_ *crowd, p *schedulingv1.Pod) {
			p.Spec.NodeSelector = map[string]string{"set": "a"}
		}, "fits on no other node"},
		"an annotation of the node": {func(f *crowd, p *schedulingv1.Pod) {
			f.v.Nodes[p.GetSpec().GetNodeName()].Metadata.Annotations = map[string]string{annotationNoScaleDown: "true"}
		}, "scale-down-disabled"},
		"too much is requested": {func(f *crowd, p *schedulingv1.Pod) {
			p.Spec.Containers[0].Resources.Requests["cpu"] = structpb.NewStringValue("1")
		}, "-"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newCrowd()
			f.set("a", "2", 1, 0, 5)
			f.add(1, "500m")
			f.set("b", "2", 1, 1, 5)
			c.change(f, f.v.Pods[0])
			f.act()
			f.now = f.now.Add(10 * time.Minute)
			p := f.act()
			switch want := f.status("a").GetScaleDownCandidates(); c.held {
			case "":
				f.want(t, name, map[string]int{"a": 0, "b": 1})
			case "-":
				if len(want) > 0 {
					t.Errorf("candidates %v", want)
				}
			default:
				if len(want) != 1 || !strings.Contains(want[0].GetHeldBy(), c.held) || want[0].GetSinceTime() != nil {
					t.Errorf("candidates %v, want it held by %q", want, c.held)
				}
			}
			if c.held != "" {
				f.want(t, name, map[string]int{"a": 1, "b": 1})
			}
			if len(p.Ask) > 0 {
				t.Errorf("it still asks %v", p.Ask)
			}
		})
	}
}

// Many nodes that must stay, for whatever reason, do not keep another from going.
func TestNodesThatStayHideNoneThatMayGo(t *testing.T) {
	for name, tt := range map[string]struct {
		stay func(*schedulingv1.Pod)
		n    int
	}{
		"pods that must not be moved fill the status": {
			func(p *schedulingv1.Pod) { p.Metadata.Annotations = map[string]string{annotationSafeToEvict: "false"} },
			mostListed + 10,
		},
		"pods that fit nowhere else fill the decision": {
			func(p *schedulingv1.Pod) { p.Spec.NodeSelector = map[string]string{"own": p.Metadata.Name} },
			2*mostCandidates + 5,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newCrowd()
			f.set("a", "2", tt.n, 0, 100)
			f.add(tt.n, "600m")
			for i, p := range f.v.Pods {
				p.Spec.NodeName = f.v.Machines[i].Metadata.Name
				tt.stay(p)
			}
			last := f.v.Machines[tt.n-1].Metadata.Name // the last one in the order of names has to be it as well
			for _, m := range f.v.Machines {
				last = max(last, m.Metadata.Name)
			}
			for _, p := range f.v.Pods {
				if p.GetSpec().GetNodeName() == last {
					p.Metadata.Annotations, p.Spec.NodeSelector = nil, nil
				}
			}
			f.set("b", "2", 1, 1, 5) // where its pod fits
			for range 100 {
				f.act()
				f.now = f.now.Add(10 * time.Second)
			}
			f.want(t, name, map[string]int{"a": tt.n - 1, "b": 1})
			if f.v.Nodes[last] != nil {
				t.Errorf("node %s is still there", last)
			}
		})
	}
}

// A set at its minimum has nothing to be checked: its nodes do not use up the checks of a decision.
func TestASetAtItsMinimumUsesUpNoChecks(t *testing.T) {
	f := newCrowd()
	f.set("a", "2", mostCandidates+5, mostCandidates+5, 100)
	f.add(mostCandidates+5, "600m")
	for i, p := range f.v.Pods {
		p.Spec.NodeName = f.v.Machines[i].Metadata.Name
	}
	f.set("b", "2", 2, 1, 5)
	f.add(1, "600m")
	for _, m := range f.v.Machines {
		if object.ControllerOf(m).GetName() == "b" {
			f.v.Pods[len(f.v.Pods)-1].Spec.NodeName = m.Metadata.Name
		}
	}
	f.plan()
	asked := slices.Sorted(maps.Keys(f.v.Answers))
	if len(asked) == 0 || slices.ContainsFunc(asked, func(id string) bool { return !strings.HasPrefix(id, "node b-") }) {
		t.Errorf("it asks about %v, want nodes of b only", asked)
	}
	f.act()
	f.now = f.now.Add(10 * time.Minute)
	f.act()
	f.want(t, "b has a node that is not needed", map[string]int{"a": mostCandidates + 5, "b": 1})
}

// A leader whose clock is an hour ahead removes no machine that is under way, and no node before its time; one whose
// clock was far ahead has not stopped a set from growing for so long.
func TestAWrongClockScalesNothingEarly(t *testing.T) {
	seen := func(f *crowd, d time.Duration) {
		f.v.Exact, f.v.Seen = false, nil
		f.v.Seen = spans.Seen{}
		for s := range f.plan().States {
			f.v.Seen[s] = d
		}
	}
	t.Run("a machine under way", func(t *testing.T) {
		f := newCrowd()
		f.set("a", "2", 1, 0, 5)
		f.add(3, "1")
		f.act()
		f.want(t, "it grows", map[string]int{"a": 2})
		seen(f, time.Minute)
		f.now = f.now.Add(time.Hour)
		f.act()
		f.want(t, "the new machine has a minute", map[string]int{"a": 2})
		seen(f, 16*time.Minute)
		f.act()
		f.want(t, "it is late", map[string]int{"a": 1})
		until := f.status("a").GetBackOff()
		if until == nil {
			t.Fatal("no back-off")
		}
		seen(f, time.Minute)
		f.now = f.now.Add(time.Hour)
		says(t, f.act().Sets[0].Status.GetConditions(), "AbleToScale", "False", "BackOff")
		f.now = f.now.Add(-1000 * time.Hour) // the back-off is dated far ahead now
		seen(f, 6*time.Minute)
		says(t, f.act().Sets[0].Status.GetConditions(), "AbleToScale", "True", "Ready")
	})
	t.Run("a node that is not needed", func(t *testing.T) {
		f := newCrowd()
		f.set("a", "2", 3, 1, 5)
		f.act()
		seen(f, 9*time.Minute)
		f.now = f.now.Add(time.Hour)
		f.act()
		f.want(t, "nine minutes", map[string]int{"a": 3})
		seen(f, 10*time.Minute)
		f.act()
		f.want(t, "ten minutes", map[string]int{"a": 2})
		seen(f, 9*time.Second)
		for s := range f.v.Seen {
			if strings.Contains(s, "unneeded") {
				f.v.Seen[s] = time.Hour
			}
		}
		f.now = f.now.Add(time.Hour)
		f.act()
		f.want(t, "delayAfterDelete", map[string]int{"a": 2})
	})
}

func TestTheClusterKeepsItsLeast(t *testing.T) {
	for name, limits := range map[string]*machinev1.ClusterAutoscalerLimits{
		"cores":  {Cores: &machinev1.ClusterAutoscalerRange{Min: 5}},
		"memory": {Memory: &machinev1.ClusterAutoscalerRange{Min: 9}},
	} {
		f := newCrowd(func(s *machinev1.ClusterAutoscalerSpec) { s.ResourceLimits = limits })
		f.set("a", "2", 3, 1, 5)
		for range 3 {
			f.act()
			f.now = f.now.Add(10 * time.Minute)
		}
		f.want(t, name, map[string]int{"a": 3})
		if c := f.status("a").GetScaleDownCandidates(); len(c) != 3 || !strings.Contains(c[0].GetHeldBy(), name) {
			t.Errorf("%s: candidates %v", name, c)
		}
	}
}

// Pods of a node that is going need places, too: the last node that has room for them stays.
func TestPodsThatStillMoveAreCounted(t *testing.T) {
	f := newCrowd(func(s *machinev1.ClusterAutoscalerSpec) {
		s.ScaleDown.DelayAfterDelete, s.ScaleDown.UtilizationThreshold = "0s", "1"
	})
	f.set("a", "2", 1, 0, 5)
	f.add(1, "1500m")
	f.set("b", "2", 1, 0, 5)
	f.add(1, "1")
	f.set("c", "2", 1, 1, 5)
	f.act()
	f.now = f.now.Add(10 * time.Minute)
	f.v.Machines[0].Metadata.DeletionTimestamp = seconds(f.now) // that of a is drained
	f.v.Sets[0].Spec.Replicas = proto.Int32(0)
	f.act()
	f.want(t, "the pods of a and b do not both fit on c", map[string]int{"b": 1, "c": 1})
}

func TestASetDoesNotFlap(t *testing.T) {
	f := newCrowd(func(s *machinev1.ClusterAutoscalerSpec) { s.ScaleDown.DelayAfterAdd = "0s" })
	f.set("a", "2", 1, 1, 5)
	f.add(3, "1")
	for range 100 {
		f.act()
		f.join()
		f.now = f.now.Add(time.Minute)
	}
	f.want(t, "one pod is alone on its node", map[string]int{"a": 2})
	if up := f.status("a").GetLastScaleUpTime().AsTime(); !up.Equal(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)) {
		t.Errorf("it grew again at %v", up)
	}
}

func TestWhatIsNotScaledSaysWhy(t *testing.T) {
	f := newCrowd()
	f.set("a", "2", 1, 1, 5)
	f.set("b", "2", 1, 1, 5).Spec.AuthoritativeApi = "ClusterAPI"
	f.set("c", "2", 1, 1, 5).Spec.Template.Metadata.Labels[LabelRole] = RoleMaster
	other := proto.Clone(f.v.Autoscalers[0]).(*machinev1.MachineAutoscaler)
	other.Metadata.Name, other.Metadata.CreationTimestamp = "z", timestamppb.New(f.now)
	missing := proto.Clone(other).(*machinev1.MachineAutoscaler)
	missing.Metadata.Name, missing.Spec.ScaleTargetRef.Name = "y", "none"
	f.v.Autoscalers = append(f.v.Autoscalers, other, missing)
	f.add(20, "1")
	f.act()
	f.want(t, "only a grows", map[string]int{"a": 5, "b": 1, "c": 1})
	for name, reason := range map[string]string{
		"b": "TargetPaused", "c": "ControlPlane", "z": "AmbiguousTarget", "y": "TargetNotFound",
	} {
		says(t, f.status(name).GetConditions(), "AbleToScale", "False", reason)
	}
	f.v.Unseen = "scheduler does not answer"
	f.join()
	p := f.act()
	f.want(t, "the pods are not known", map[string]int{"a": 5})
	says(t, p.Status.GetConditions(), "Active", "False", "ClusterUnknown")
	f.v.Cluster = nil
	f.v.Unseen = ""
	p = f.plan()
	says(t, p.Sets[0].Status.GetConditions(), "AbleToScale", "False", "NoClusterAutoscaler")
}

// Sets that are within their bounds stay there, and no decision both adds and removes needed machines.
func TestSizesStayWithinTheirBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newCrowd(func(s *machinev1.ClusterAutoscalerSpec) {
			s.ScaleDown.DelayAfterAdd, s.ScaleDown.UnneededTime = "1m", "2m"
			s.ResourceLimits = &machinev1.ClusterAutoscalerLimits{
				MaxNodesTotal: int32(rapid.IntRange(0, 12).Draw(t, "nodes")),
			}
		})
		for _, name := range []string{"a", "b"} {
			low := rapid.IntRange(0, 2).Draw(t, "low")
			f.set(name, rapid.SampledFrom([]string{"1", "2", "4"}).Draw(t, "cpu"), low, low,
				low+rapid.IntRange(1, 4).Draw(t, "more"))
		}
		for range 40 {
			switch rapid.IntRange(0, 5).Draw(t, "event") {
			case 0:
				f.add(rapid.IntRange(1, 6).Draw(t, "pods"), rapid.SampledFrom([]string{"200m", "1", "3"}).Draw(t, "asks"))
			case 1:
				f.v.Pods = f.v.Pods[:len(f.v.Pods)-rapid.IntRange(0, len(f.v.Pods)).Draw(t, "ended")]
			case 2, 3:
				f.join()
			}
			was := map[string]int{"a": f.replicas("a"), "b": f.replicas("b")}
			before := len(f.v.Nodes)
			p := f.act()
			up, down := false, false
			for i, s := range p.Sets {
				low, high := int(s.Autoscaler.Spec.MinReplicas), int(s.Autoscaler.Spec.MaxReplicas)
				if s.Desired < low || s.Desired > high {
					t.Fatalf("set %d has %d replicas, outside of %d to %d", i, s.Desired, low, high)
				}
				up = up || s.Desired > s.Current
				for _, r := range s.Remove {
					down = down || !strings.HasPrefix(r.Reason, "it has")
				}
			}
			if up && down {
				t.Fatalf("it adds and removes: %v", p.Actions())
			}
			most := int(f.v.Cluster.Spec.ResourceLimits.MaxNodesTotal)
			if up && most > 0 && f.replicas("a")+f.replicas("b") > most {
				t.Fatalf("%d replicas after %v and %d nodes, with maxNodesTotal %d", f.replicas("a")+f.replicas("b"), was, before,
					most)
			}
			f.now = f.now.Add(time.Duration(rapid.IntRange(1, 300).Draw(t, "seconds")) * time.Second)
		}
	})
}

func TestAMachineThatDidNotJoinCountsForTheLimitOfNodes(t *testing.T) {
	f := newCrowd(func(s *machinev1.ClusterAutoscalerSpec) {
		s.ResourceLimits = &machinev1.ClusterAutoscalerLimits{MaxNodesTotal: 2}
	})
	f.set("a", "4", 1, 1, 2)
	f.set("b", "4", 0, 0, 2)
	clear(f.v.Nodes)
	for _, m := range f.v.Machines {
		m.Status = nil // it has not joined
	}
	f.now = f.now.Add(16 * time.Minute) // later than a machine may take to join
	f.add(4, "3")
	for range 3 {
		f.act()
		if n := f.replicas("a") + f.replicas("b"); n > 2 {
			t.Fatalf("%d replicas, want at most 2: maxNodesTotal is 2, and one machine may still join", n)
		}
	}
}
