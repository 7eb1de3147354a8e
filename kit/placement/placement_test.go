package placement_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
)

func taint(key, value, effect string) *nodev1.Taint {
	return &nodev1.Taint{Key: key, Value: proto.String(value), Effect: effect}
}

func toleration(key, operator, value, effect string) *schedulingv1.Toleration {
	return &schedulingv1.Toleration{Key: key, Operator: operator, Value: proto.String(value), Effect: effect}
}

func TestTolerates(t *testing.T) {
	dedicated := taint("dedicated", "groupName", placement.NoSchedule)
	tests := []struct {
		name       string
		toleration *schedulingv1.Toleration
		taint      *nodev1.Taint
		want       bool
	}{
		{"equal key, value and effect bear it", toleration("dedicated", "Equal", "groupName", "NoSchedule"), dedicated, true},
		{"no operator means Equal", toleration("dedicated", "", "groupName", "NoSchedule"), dedicated, true},
		{"another value does not", toleration("dedicated", "Equal", "other", "NoSchedule"), dedicated, false},
		{"another key does not", toleration("other", "Equal", "groupName", "NoSchedule"), dedicated, false},
		{"another effect does not", toleration("dedicated", "Equal", "groupName", "NoExecute"), dedicated, false},
		{"Exists bears any value", toleration("dedicated", "Exists", "", "NoSchedule"), dedicated, true},
		{"no effect bears every effect", toleration("dedicated", "Exists", "", ""), dedicated, true},
		{"no key with Exists bears everything", toleration("", "Exists", "", ""), dedicated, true},
		{"an unknown operator bears nothing", toleration("dedicated", "Gt", "groupName", "NoSchedule"), dedicated, false},
		{"the documents' former key bears the taint of today", toleration("node.alpha.kubernetes.io/notReady", "Exists", "",
			"NoExecute"), taint(placement.NotReadyTaint, "", "NoExecute"), true},
		{
			"today's key bears the former taint", toleration(placement.UnreachableTaint, "Exists", "", ""),
			taint("node.alpha.kubernetes.io/unreachable", "", "NoExecute"), true,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := placement.Tolerates([]*schedulingv1.Toleration{tt.toleration}, tt.taint); got != tt.want {
				t.Errorf("Tolerates = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestOfThreeTaintsTheOneWithoutTolerationIsFound(t *testing.T) {
	taints := []*nodev1.Taint{
		taint("key1", "value1", "NoSchedule"), taint("key1", "value1", "NoExecute"),
		taint("key2", "value2", "NoSchedule"),
	}
	bears := []*schedulingv1.Toleration{
		toleration("key1", "Equal", "value1", "NoSchedule"),
		toleration("key1", "Equal", "value1", "NoExecute"),
	}
	if got := placement.Untolerated(bears, taints, placement.NoSchedule, placement.NoExecute); got != taints[2] {
		t.Errorf("Untolerated = %v, want key2", got)
	}
	if got := placement.Untolerated(bears, taints, placement.NoExecute); got != nil {
		t.Errorf("Untolerated of NoExecute = %v, want none: a pod that runs stays", got)
	}
	if got := placement.FirstTolerating(bears, taints[1]); got != bears[1] {
		t.Errorf("FirstTolerating = %v, want the second", got)
	}
}

func TestValidateTolerations(t *testing.T) {
	tests := []struct {
		name       string
		toleration *schedulingv1.Toleration
		paths      []string
		warnings   int
	}{
		{"a document's toleration is right", toleration("key1", "Equal", "value1", "NoExecute"), nil, 0},
		{"an empty key needs Exists", toleration("", "Equal", "", ""), []string{"t[0].operator"}, 0},
		{"Exists has no value", toleration("key1", "Exists", "v", ""), []string{"t[0].value"}, 0},
		{"a key is a qualified name", toleration("<key>", "Exists", "", ""), []string{"t[0].key"}, 0},
		{"an effect is one of three", toleration("key1", "Exists", "", "Never"), []string{"t[0].effect"}, 0},
		{"seconds beside NoSchedule are accepted with a warning", &schedulingv1.Toleration{
			Key: "disktype", Value: proto.String("ssd"), Effect: "NoSchedule", TolerationSeconds: proto.Int32(3600),
		}, nil, 1},
		{"seconds beside an empty effect, which includes NoExecute, mean something", &schedulingv1.Toleration{
			Key: "key1", Operator: "Exists", TolerationSeconds: proto.Int32(3600),
		}, nil, 0},
		{"negative seconds are right", &schedulingv1.Toleration{
			Key: "a", Operator: "Exists", Effect: "NoExecute",
			TolerationSeconds: proto.Int32(-1),
		}, nil, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fields, warnings := placement.ValidateTolerations("t", []*schedulingv1.Toleration{tt.toleration})
			if diff := cmp.Diff(tt.paths, paths(fields)); diff != "" || len(warnings) != tt.warnings {
				t.Errorf("wrong fields (-want +got):\n%s\nwarnings: %q", diff, warnings)
			}
		})
	}
}

func paths(fields []object.Fault) (out []string) {
	for _, f := range fields {
		out = append(out, f.Path)
	}
	return out
}

func expression(key, operator string, values ...string) *schedulingv1.NodeSelectorRequirement {
	return &schedulingv1.NodeSelectorRequirement{Key: key, Operator: operator, Values: values}
}

func expressions(list ...*schedulingv1.NodeSelectorRequirement) *schedulingv1.NodeSelectorTerm {
	return &schedulingv1.NodeSelectorTerm{MatchExpressions: list}
}

func requiring(terms ...*schedulingv1.NodeSelectorTerm) *schedulingv1.PodSpec {
	return &schedulingv1.PodSpec{Affinity: &schedulingv1.Affinity{NodeAffinity: &schedulingv1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &schedulingv1.NodeSelector{NodeSelectorTerms: terms},
	}}}
}

func TestMatchesNode(t *testing.T) {
	node := &nodev1.Node{
		Metadata: &metav1.ObjectMeta{Name: "node1", Labels: map[string]string{"zone": "us", "cores": "8", "empty": ""}},
	}
	named := &schedulingv1.NodeSelectorTerm{MatchFields: []*schedulingv1.NodeSelectorRequirement{
		expression("metadata.name", "In", "node1"),
	}}
	both := requiring(expressions(expression("zone", "In", "us")))
	both.NodeSelector = map[string]string{"zone": "emea"}
	tests := []struct {
		name string
		spec *schedulingv1.PodSpec
		want bool
	}{
		{"a pod that asks for nothing goes anywhere", &schedulingv1.PodSpec{}, true},
		{"every pair of the selector must be there", &schedulingv1.PodSpec{
			NodeSelector: map[string]string{"zone": "us", "rack": "1"},
		}, false},
		{"an empty value must be there as empty", &schedulingv1.PodSpec{NodeSelector: map[string]string{"empty": ""}}, true},
		{"an empty value is not a missing label", &schedulingv1.PodSpec{NodeSelector: map[string]string{"rack": ""}}, false},
		{"a matching expression", requiring(expressions(expression("zone", "In", "us", "emea"))), true},
		{"one of two terms is enough", requiring(expressions(expression("zone", "In", "emea")),
			expressions(expression("zone", "Exists"))), true},
		{
			"all expressions of a term must hold",
			requiring(expressions(expression("zone", "In", "us"), expression("rack", "Exists"))), false,
		},
		{"selector and affinity must both hold", both, false},
		{"NotIn holds where the label is missing", requiring(expressions(expression("rack", "NotIn", "1"))), true},
		{"DoesNotExist holds where the label is missing", requiring(expressions(expression("rack", "DoesNotExist"))), true},
		{"Gt is strict", requiring(expressions(expression("cores", "Gt", "8"))), false},
		{"Lt compares numbers, not strings", requiring(expressions(expression("cores", "Lt", "16"))), true},
		{"a label that is no number is not greater", requiring(expressions(expression("zone", "Gt", "1"))), false},
		{"no terms match nothing", requiring(), false},
		{"an empty term matches nothing", requiring(expressions()), false},
		{"a term that cannot be read is left out, the others count", requiring(expressions(expression("zone", "In")),
			expressions(expression("zone", "In", "us"))), true},
		{"a term that cannot be read matches nothing", requiring(expressions(expression("zone", "Gt", "a"))), false},
		{"the node's name", requiring(named), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := placement.MatchesNode(tt.spec, node); got != tt.want {
				t.Errorf("MatchesNode = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestValidateNodeAffinity(t *testing.T) {
	affinity := requiring(expressions(expression("zone", "In")), expressions(expression("zone", "Gt", "a")),
		expressions(expression("zone", "In", "us"))).Affinity.NodeAffinity
	affinity.PreferredDuringSchedulingIgnoredDuringExecution = []*schedulingv1.PreferredSchedulingTerm{
		{Weight: 0, Preference: expressions()},
	}
	want := []string{
		"a.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0]",
		"a.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[1].matchExpressions[0]",
		"a.preferredDuringSchedulingIgnoredDuringExecution[0].weight",
	}
	if diff := cmp.Diff(want, paths(placement.ValidateNodeAffinity("a", affinity))); diff != "" {
		t.Errorf("wrong fields (-want +got):\n%s", diff)
	}
}

func list(pairs ...any) map[string]*structpb.Value {
	out := map[string]*structpb.Value{}
	for i := 0; i < len(pairs); i += 2 {
		v, err := structpb.NewValue(pairs[i+1])
		if err != nil {
			panic(err)
		}
		out[pairs[i].(string)] = v
	}
	return out
}

func container(requests, limits map[string]*structpb.Value) *schedulingv1.Container {
	return &schedulingv1.Container{Name: "c", Resources: &schedulingv1.ResourceRequirements{
		Requests: requests, Limits: limits,
	}}
}

func TestRequestsAreTheSumOrTheLargestInitContainer(t *testing.T) {
	spec := &schedulingv1.PodSpec{
		Containers: []*schedulingv1.Container{
			container(list("cpu", "250m", "memory", "1Gi"), nil),
			container(list("cpu", 0.5, "nvidia.com/gpu", 1), list("memory", "9Gi")),
		},
		InitContainers: []*schedulingv1.Container{
			container(list("cpu", "2", "memory", "100M"), nil),
			container(list("ephemeral-storage", "1Ki"), nil),
		},
	}
	want := placement.Resources{MilliCPU: 2000, Memory: 1 << 30, EphemeralStorage: 1024, Scalar: map[string]int64{
		"nvidia.com/gpu": 1,
	}}
	if diff := cmp.Diff(want, placement.RequestsOf(spec)); diff != "" {
		t.Errorf("RequestsOf (-want +got):\n%s", diff)
	}
	cpu, memory := placement.NonZeroRequestsOf(spec)
	if cpu != 750 || memory != 1<<30+200<<20 {
		t.Errorf("NonZeroRequestsOf = %d, %d: a container that does not say counts for 100m and 200Mi", cpu, memory)
	}
	zero := &schedulingv1.PodSpec{Containers: []*schedulingv1.Container{container(list("cpu", 0, "memory", "0"), nil)}}
	if cpu, memory := placement.NonZeroRequestsOf(zero); cpu != 0 || memory != 0 {
		t.Errorf("NonZeroRequestsOf of explicit zeros = %d, %d", cpu, memory)
	}
}

func TestAllocatableFallsBackToCapacity(t *testing.T) {
	node := &nodev1.Node{Status: &nodev1.NodeStatus{
		Capacity:    list("cpu", "4", "memory", "8Gi", "pods", "20"),
		Allocatable: list("cpu", "3500m"),
	}}
	has, pods := placement.Allocatable(node)
	if diff := cmp.Diff(placement.Resources{MilliCPU: 3500, Memory: 8 << 30}, has); diff != "" || pods != 20 {
		t.Errorf("Allocatable (-want +got):\n%s\npods: %d", diff, pods)
	}
	if _, pods := placement.Allocatable(&nodev1.Node{}); pods != 110 {
		t.Errorf("a node that says nothing takes %d pods, want 110", pods)
	}
}

func TestQOSClass(t *testing.T) {
	tests := []struct {
		name       string
		containers []*schedulingv1.Container
		want       string
	}{
		{"nothing said is best effort", []*schedulingv1.Container{container(nil, nil)}, "BestEffort"},
		{
			"extended resources alone are best effort",
			[]*schedulingv1.Container{container(list("nvidia.com/gpu", 1), nil)},
			"BestEffort",
		},
		{"requests alone are burstable", []*schedulingv1.Container{container(list("cpu", "1"), nil)}, "Burstable"},
		{"equal requests and limits are guaranteed", []*schedulingv1.Container{
			container(list("cpu", "1", "memory", "1Gi"), list("cpu", "1000m", "memory", "1024Mi")),
		}, "Guaranteed"},
		{
			"limits alone are guaranteed",
			[]*schedulingv1.Container{container(nil, list("cpu", "1", "memory", "1Gi"))},
			"Guaranteed",
		},
		{"one container without limits makes it burstable", []*schedulingv1.Container{
			container(nil, list("cpu", "1", "memory", "1Gi")), container(nil, nil),
		}, "Burstable"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := placement.QOSClass(&schedulingv1.PodSpec{Containers: tt.containers}); got != tt.want {
				t.Errorf("QOSClass = %s, want %s", got, tt.want)
			}
		})
	}
}

func TestValidateQuantities(t *testing.T) {
	spec := &schedulingv1.PodSpec{Containers: []*schedulingv1.Container{container(
		list("cpu", "two", "memory", "2Gi", "nvidia.com/gpu", -1, "ephemeral-storage", "1Ei"), list("memory", "1Gi"),
	)}}
	want := []object.Fault{
		{
			Path:        "spec.containers[0].resources.requests['cpu']",
			Description: `"two" is no quantity: write a number or a string such as 500m or 2Gi`,
		},
		{Path: "spec.containers[0].resources.requests['ephemeral-storage']", Description: "is beyond all measure"},
		{Path: "spec.containers[0].resources.requests['nvidia.com/gpu']", Description: "must not be negative"},
		{Path: "spec.containers[0].resources.requests['memory']", Description: "must not be more than the limit: 2Gi of 1Gi"},
	}
	if diff := cmp.Diff(want, placement.ValidateQuantities("spec", spec)); diff != "" {
		t.Errorf("ValidateQuantities (-want +got):\n%s", diff)
	}
}

func TestOfTheInitContainersOnlySidecarsTakePorts(t *testing.T) {
	ports := []*schedulingv1.ContainerPort{{HostPort: 8080, ContainerPort: 80}}
	spec := &schedulingv1.PodSpec{InitContainers: []*schedulingv1.Container{{Name: "a", Ports: ports}}}
	if got := placement.HostPorts(spec); len(got) > 0 {
		t.Errorf("an init container takes %v", got)
	}
	spec.InitContainers[0].RestartPolicy = new("Always")
	if got := placement.HostPorts(spec); len(got) != 1 || got[0].Port != 8080 {
		t.Errorf("a sidecar takes %v", got)
	}
}

func TestSidecarsCountBesideContainers(t *testing.T) {
	of := func(policy *string, cpu string) *schedulingv1.Container {
		return &schedulingv1.Container{RestartPolicy: policy, Resources: &schedulingv1.ResourceRequirements{
			Requests: map[string]*structpb.Value{placement.CPU: structpb.NewStringValue(cpu)},
		}}
	}
	spec := &schedulingv1.PodSpec{
		InitContainers: []*schedulingv1.Container{of(new("Always"), "100m"), of(nil, "900m"), of(new("Always"), "50m")},
		Containers:     []*schedulingv1.Container{of(nil, "200m")},
	}
	// the init container runs beside the first sidecar, and needs more than all that runs later
	if got := placement.RequestsOf(spec).MilliCPU; got != 1000 {
		t.Errorf("%dm, want 1000m", got)
	}
	spec.InitContainers[1] = of(nil, "100m")
	if got := placement.RequestsOf(spec).MilliCPU; got != 350 {
		t.Errorf("%dm, want 350m", got)
	}
}

func TestHostPortsClash(t *testing.T) {
	port := func(ip, protocol string, number int32) []placement.HostPort {
		return placement.HostPorts(&schedulingv1.PodSpec{Containers: []*schedulingv1.Container{{
			Ports: []*schedulingv1.ContainerPort{{HostIp: ip, Protocol: protocol, HostPort: number, ContainerPort: 80}},
		}}})
	}
	tests := []struct {
		name string
		a, b []placement.HostPort
		want bool
	}{
		{"the same port clashes, TCP being the default", port("", "", 8080), port("", "TCP", 8080), true},
		{"another protocol does not", port("", "UDP", 8080), port("", "TCP", 8080), false},
		{"another port does not", port("", "", 8080), port("", "", 8081), false},
		{"all addresses clash with every one", port("", "", 8080), port("10.0.0.1", "", 8080), true},
		{"two addresses do not", port("10.0.0.2", "", 8080), port("10.0.0.1", "", 8080), false},
		{"no host port asks for nothing", port("", "", 0), port("", "", 0), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, got := placement.FirstClash(tt.a, tt.b)
			if _, back := placement.FirstClash(tt.b, tt.a); got != tt.want || back != tt.want {
				t.Errorf("clash = %v and %v, want %v", got, back, tt.want)
			}
		})
	}
}

func TestValidatePorts(t *testing.T) {
	spec := &schedulingv1.PodSpec{HostNetwork: proto.Bool(true), Containers: []*schedulingv1.Container{
		{Ports: []*schedulingv1.ContainerPort{{ContainerPort: 80, HostPort: 80}, {ContainerPort: 81, HostPort: 8081}}},
		{Ports: []*schedulingv1.ContainerPort{{ContainerPort: 80, HostPort: 80}}},
	}}
	want := []string{"spec.containers[0].ports[1].hostPort", "spec.containers[1].ports[0].hostPort"}
	if diff := cmp.Diff(want, paths(placement.ValidatePorts("spec", spec))); diff != "" {
		t.Errorf("wrong fields (-want +got):\n%s", diff)
	}
}

func TestStateOfPods(t *testing.T) {
	yes := true
	pod := &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{OwnerReferences: []*metav1.OwnerReference{
			{Kind: "Job"}, {Kind: "DaemonSet", Controller: &yes},
		}},
		Spec: &schedulingv1.PodSpec{NodeName: "a"},
		Status: &schedulingv1.PodStatus{Phase: proto.String("Running"), Conditions: []*schedulingv1.PodCondition{
			{Type: "Ready", Status: "True"},
		}},
	}
	got := []bool{
		placement.Terminated(pod), placement.Active(pod), placement.Assigned(pod), placement.IsReady(pod),
		placement.IsDaemon(pod),
	}
	if want := []bool{false, true, true, true, true}; !slices.Equal(got, want) {
		t.Errorf("a running pod is terminated, active, assigned, ready, daemon = %v, want %v", got, want)
	}
	pod.Metadata.DeletionTimestamp = timestamppb.Now()
	if placement.Active(pod) || !placement.Assigned(pod) {
		t.Error("a pod that is being deleted still uses its node and counts for no workload")
	}
	pod.Status.Phase = proto.String("Failed")
	if !placement.Terminated(pod) || placement.Assigned(pod) {
		t.Error("a pod that has failed uses nothing")
	}
}

func TestWhatIsAddedAndTakenLeavesNothing(t *testing.T) {
	amounts := rapid.Custom(func(t *rapid.T) placement.Resources {
		n := rapid.Int64Range(0, 1<<40)
		r := placement.Resources{
			MilliCPU: n.Draw(t, "cpu"), Memory: n.Draw(t, "memory"),
			EphemeralStorage: n.Draw(t, "storage"),
		}
		if s := rapid.MapOf(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.Int64Range(1, 9)).Draw(t,
			"scalar"); len(s) > 0 {
			r.Scalar = s
		}
		return r
	})
	rapid.Check(t, func(t *rapid.T) {
		var sum placement.Resources
		all := rapid.SliceOf(amounts).Draw(t, "all")
		for _, r := range all {
			sum.Add(r)
		}
		for _, r := range all {
			sum.Sub(r)
		}
		if !sum.Zero() {
			t.Errorf("left over: %+v", sum)
		}
	})
}

// A few characters can be a number that takes all memory to compare.
func TestExcessiveQuantitiesAreRefused(t *testing.T) {
	for text, ok := range map[string]bool{
		"1e2147483647": false, "1E-2147483647": false, "1e99999999999999999999": false, "1e+20000000": false,
		"1" + strings.Repeat("0", 1<<20): false, "1e100": true, "12E6": true, "1E": true, "2Ei": true, "500m": true,
	} {
		if _, err := placement.Quantity(structpb.NewStringValue(text)); (err == nil) != ok {
			t.Errorf("%.20s: %v", text, err)
		}
	}
}
