package plan

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"
)

func admit(p *schedulingv1.Pod) Admission { return Admit(AdmissionView{Pod: p}) }

// bears lists the tolerations of a pod.
func bears(p *schedulingv1.Pod) (out []string) {
	for _, t := range p.GetSpec().GetTolerations() {
		s := t.GetKey() + " " + t.GetOperator() + " " + t.GetEffect()
		if t.TolerationSeconds != nil {
			s += " for a while"
		}
		out = append(out, s)
	}
	return out
}

func TestAPodGetsItsDefaults(t *testing.T) {
	before := pod(t, "004-59")
	kept := proto.Clone(before)
	got := admit(before)
	if !got.Allowed() || len(got.Warnings) > 0 {
		t.Fatalf("refused: %s; %v", got.Reason(), got.Warnings)
	}
	want := proto.Clone(before).(*schedulingv1.Pod)
	want.Spec.RestartPolicy, want.Spec.SchedulerName, want.Spec.TerminationGracePeriodSeconds = "Always",
		"default-scheduler", proto.Int32(30)
	want.Spec.Tolerations = []*schedulingv1.Toleration{
		{Key: "node.kubernetes.io/not-ready", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: proto.Int32(300)},
		{Key: "node.kubernetes.io/unreachable", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: proto.Int32(300)},
	}
	want.Spec.Priority, want.Spec.PreemptionPolicy = proto.Int32(0), proto.String(PreemptLowerPriority)
	want.Status = &schedulingv1.PodStatus{Phase: proto.String("Pending"), QosClass: "BestEffort"}
	if diff := cmp.Diff(want, got.Pod, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !proto.Equal(kept, before) {
		t.Error("the pod that was given has changed")
	}
}

func TestDefaultTolerations(t *testing.T) {
	off := &schedulingv1.AdmissionConfig{AdmissionConfig: &schedulingv1.AdmissionPlugins{
		PluginConfig: map[string]*schedulingv1.AdmissionPluginConfig{
			"DefaultTolerationSeconds": {
				Configuration: &structpb.Struct{Fields: map[string]*structpb.Value{"disable": structpb.NewBoolValue(true)}},
			},
		},
	}}
	daemon := func(p *schedulingv1.Pod) {
		p.Metadata.OwnerReferences = []*metav1.OwnerReference{{Kind: "DaemonSet", Controller: proto.Bool(true)}}
	}
	const notReady, unreachable = "node.kubernetes.io/not-ready Exists NoExecute",
		"node.kubernetes.io/unreachable Exists NoExecute"
	tests := []struct {
		name   string
		pod    *schedulingv1.Pod
		config *schedulingv1.AdmissionConfig
		want   []string
	}{
		{"five minutes for both", newPod("p"), nil, []string{notReady + " for a while", unreachable + " for a while"}},
		{
			"who bears one of them keeps to it", newPod("p", bearing("node.kubernetes.io/unreachable", "NoExecute")), nil,
			[]string{unreachable, notReady + " for a while"},
		},
		{
			"the former key of the document counts", newPod("p", bearing("node.alpha.kubernetes.io/unreachable", "NoExecute")),
			nil,
			[]string{"node.alpha.kubernetes.io/unreachable Exists NoExecute", notReady + " for a while"},
		},
		{"who bears everything gets nothing", newPod("p", bearing("", "")), nil, []string{" Exists "}},
		{
			"another effect does not count", newPod("p", bearing("", "NoSchedule")), nil,
			[]string{" Exists NoSchedule", notReady + " for a while", unreachable + " for a while"},
		},
		{"nothing where the plugin is disabled", newPod("p"), off, nil},
		{"the pods of a daemon set bear them permanently", newPod("p", daemon), off, []string{
			notReady, unreachable, "node.kubernetes.io/disk-pressure Exists NoSchedule",
			"node.kubernetes.io/memory-pressure Exists NoSchedule",
			"node.kubernetes.io/pid-pressure Exists NoSchedule", "node.kubernetes.io/unschedulable Exists NoSchedule",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, bears(Admit(AdmissionView{Pod: tt.pod, Admission: tt.config}).Pod)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestShortMemoryKeepsAwayOnlyWhoIsPromisedNothing goes from admission to a node, whose condition and taint both speak
// of short memory.
func TestShortMemoryKeepsAwayOnlyWhoIsPromisedNothing(t *testing.T) {
	limited := func(p *schedulingv1.Pod) {
		p.Spec.Containers[0].Resources.Limits = map[string]*structpb.Value{"cpu": text("1"), "memory": text("1Gi")}
	}
	for name, tt := range map[string]struct {
		pod  *schedulingv1.Pod
		want string
	}{
		"BestEffort": {newPod("p"), ""},
		"Burstable":  {newPod("p", asking("memory", "1Mi")), "a"},
		"Guaranteed": {newPod("p", limited), "a"},
	} {
		got := admit(tt.pod)
		if class := got.Pod.GetStatus().GetQosClass(); class != name {
			t.Errorf("%s: class is %s", name, class)
		}
		c := clusterOf(newNode("a", condition("MemoryPressure", "True"), tainted(placement.MemoryPressureTaint, "",
			"NoSchedule")))
		if d := place(c, got.Pod); d.Node != tt.want {
			t.Errorf("%s: placed on %q, want %q: %s", name, d.Node, tt.want, d.Message)
		}
	}
	bears := newPod("p", asking("memory", "1Mi"), bearing(placement.MemoryPressureTaint, ""))
	if got := admit(bears).Pod.GetSpec().GetTolerations(); len(got) != 3 {
		t.Errorf("who bears it already gets %v", got)
	}
}

func TestCheckAdmission(t *testing.T) {
	const at = "admissionConfig.pluginConfig"
	for name, tt := range map[string]struct {
		plugin, configuration string
		want                  []string
	}{
		"a list is no text": {"PodNodeConstraints", `{"nodeSelectorLabelBlacklist": "kubernetes.io/hostname"}`, []string{
			at + "['PodNodeConstraints'].configuration.nodeSelectorLabelBlacklist: must be a list of labels",
		}},
		"labels are texts": {"PodNodeConstraints", `{"nodeSelectorLabelBlacklist": ["kubernetes.io/hostname", 1]}`, []string{
			at + "['PodNodeConstraints'].configuration.nodeSelectorLabelBlacklist[1]: must be a label",
		}},
		"an empty list is right": {"PodNodeConstraints", `{"nodeSelectorLabelBlacklist": []}`, nil},
		"selectors are pairs": {
			"PodNodeSelector",
			`{"podNodeSelectorPluginConfig": {"ns2": "region", "clusterDefaultNodeSelector": 3, "ns1": "region=west, env=test"}}`,
			[]string{
				at +
					"['PodNodeSelector'].configuration.podNodeSelectorPluginConfig['clusterDefaultNodeSelector']: must be a text such as region=west,env=test",
				at + `['PodNodeSelector'].configuration.podNodeSelectorPluginConfig['ns2']: "region" is not key=value`,
			},
		},
		"selectors are below names": {
			"PodNodeSelector", `{"podNodeSelectorPluginConfig": "k=v"}`,
			[]string{at + "['PodNodeSelector'].configuration.podNodeSelectorPluginConfig: must be selectors by namespace"},
		},
		"disabled is so or not so": {
			"DefaultTolerationSeconds", `{"disable": "yes"}`,
			[]string{at + "['DefaultTolerationSeconds'].configuration.disable: must be true or false"},
		},
		"what is not built is not checked": {"ImagePolicy", `{"disable": "yes"}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := &structpb.Struct{}
			if err := c.UnmarshalJSON([]byte(tt.configuration)); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range CheckAdmission(at, &schedulingv1.AdmissionPlugins{
				PluginConfig: map[string]*schedulingv1.AdmissionPluginConfig{tt.plugin: {Configuration: c}},
			}) {
				got = append(got, f.String())
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestEveryAdmissionConfigurationOfTheDocumentIsRight(t *testing.T) {
	for _, name := range []string{"004-47", "004-50", "004-52"} {
		if fields := CheckAdmission("", load(t, name, &schedulingv1.AdmissionConfig{}).GetAdmissionConfig()); len(
			fields) > 0 {
			t.Errorf("%s: %v", name, fields)
		}
	}
	for _, name := range []string{"004-48", "004-51"} {
		if fields := CheckAdmission("",
			load(t, name, &schedulingv1.KubernetesMasterConfig{}).GetKubernetesMasterConfig().GetAdmissionConfig()); len(
			fields) > 0 {
			t.Errorf("%s: %v", name, fields)
		}
	}
}

func TestEveryPodOfTheDocumentIsAdmittedOrRefusedForWhatItLacks(t *testing.T) {
	for _, name := range []string{
		"004-45", "004-56", "004-59", "004-60", "004-63", "004-64", "004-65", "004-66", "004-67",
		"004-69", "004-71", "004-72", "004-73", "004-74", "004-75", "004-76",
	} {
		if got := admit(pod(t, name)); !got.Allowed() {
			t.Errorf("%s: %s", name, got.Reason())
		}
	}
	for _, name := range []string{"004-46", "004-49", "004-77"} { // parts of pods, with placeholders
		p := load(t, name, &schedulingv1.Pod{})
		if got := admit(p); got.Allowed() ||
			!strings.HasPrefix(got.Reason(), "spec.containers: must have at least one container") {
			t.Errorf("%s: %s", name, got.Reason())
		}
	}
}

func TestWhatIsWrongWithAPod(t *testing.T) {
	mount := &schedulingv1.VolumeMount{Name: "data"}
	tests := []struct {
		name   string
		change func(*schedulingv1.Pod)
		want   string
	}{
		{"two containers of one name", func(p *schedulingv1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, p.Spec.Containers[0])
		}, `spec.containers[1].name: there is another container "c"`},
		{
			"a quantity that is none", asking("cpu", "two"),
			`spec.containers[0].resources.requests['cpu']: "two" is no quantity: write a number or a string such as 500m or 2Gi`,
		},
		{
			"no image and no command", func(p *schedulingv1.Pod) { p.Spec.Containers[0].Image = "" },
			"spec.containers[0].image: must be given, or else a command",
		},
		{
			"a mount of no volume", func(p *schedulingv1.Pod) {
				p.Spec.Containers[0].VolumeMounts = []*schedulingv1.VolumeMount{
					mount,
				}
			},
			`spec.containers[0].volumeMounts[0].name: there is no volume "data"; spec.containers[0].volumeMounts[0].mountPath: must be given`,
		},
		{
			"affinity to pods without a topology", func(p *schedulingv1.Pod) {
				p.Spec.Affinity = &schedulingv1.Affinity{
					PodAffinity: &schedulingv1.PodAffinity{
						RequiredDuringSchedulingIgnoredDuringExecution: []*schedulingv1.PodAffinityTerm{{}},
					},
				}
			},
			"spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey: must be given: the label that says which nodes are near each other",
		},
		{
			"an unknown restart policy", func(p *schedulingv1.Pod) { p.Spec.RestartPolicy = "Sometimes" },
			`spec.restartPolicy: must be Always, OnFailure or Never, not "Sometimes"`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := admit(newPod("p", tt.change)).Reason(); got != tt.want {
				t.Errorf("reason\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

func TestSecondsBesideNoScheduleAreAcceptedWithAWarning(t *testing.T) {
	p := newPod("p")
	p.Spec.Tolerations = []*schedulingv1.Toleration{{
		Key: "disktype", Operator: "Equal", Value: proto.String("ssd"),
		Effect: "NoSchedule", TolerationSeconds: proto.Int32(3600),
	}}
	got := admit(p)
	want := []string{"spec.tolerations[0].tolerationSeconds: means nothing with the effect NoSchedule"}
	if diff := cmp.Diff(want, got.Warnings); diff != "" || !got.Allowed() {
		t.Errorf("(-want +got):\n%s\n%s", diff, got.Reason())
	}
}

func TestLimitsAloneAreRequestsToo(t *testing.T) {
	p := newPod("p")
	p.Spec.Containers[0].Resources.Limits = map[string]*structpb.Value{"cpu": text("1"), "memory": text("1Gi")}
	Default(p.Spec)
	if placement.RequestsOf(p.Spec).MilliCPU != 1000 || placement.QOSClass(p.Spec) != "Guaranteed" {
		t.Errorf("%v", p)
	}
}

func TestPodNodeSelector(t *testing.T) {
	config := load(t, "004-52", &schedulingv1.AdmissionConfig{})
	ns1 := load(t, "004-55", &schedulingv1.Namespace{})
	other := &schedulingv1.Namespace{Metadata: &metav1.ObjectMeta{Name: "other"}}
	tests := []struct {
		name      string
		namespace *schedulingv1.Namespace
		pod       *schedulingv1.Pod
		want      map[string]string
		refused   string
	}{
		{
			"the namespace's labels are added, as in the document", ns1, pod(t, "004-56"),
			map[string]string{"env": "test", "infra": "fedora", "os": "fedora"},
			"",
		},
		{"a namespace that says nothing gets the labels for all", other, newPod("p"), map[string]string{"k3": "v3"}, ""},
		{
			"another value is refused", ns1, newPod("p", selecting("env", "production")), nil,
			`spec.nodeSelector['env']: is "production", but the namespace's node selector says "test"`,
		},
		{
			"a label that the namespace does not permit is refused", ns1, newPod("p", selecting("rack", "1")), nil,
			"spec.nodeSelector['rack']: rack=1 is not among the labels that namespace \"ns1\" permits: region=west,env=test,infra=fedora,os=fedora",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Admit(AdmissionView{Pod: tt.pod, Namespace: tt.namespace, Admission: config})
			if got.Forbidden != tt.refused {
				t.Fatalf("refused %q, want %q", got.Forbidden, tt.refused)
			}
			if diff := cmp.Diff(tt.want, got.Pod.GetSpec().GetNodeSelector()); tt.refused == "" && diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestPodNodeConstraints(t *testing.T) {
	plain := load(t, "004-48", &schedulingv1.KubernetesMasterConfig{})
	listed := load(t, "004-51", &schedulingv1.KubernetesMasterConfig{})
	hostname := selecting("kubernetes.io/hostname", "a")
	tests := []struct {
		name    string
		master  *schedulingv1.KubernetesMasterConfig
		pod     *schedulingv1.Pod
		mayBind bool
		want    string
	}{
		{"nothing is guarded without the plugin", nil, newPod("p", on("a")), false, ""},
		{"nodeName is guarded", plain, newPod("p", on("a")), false, "spec.nodeName"},
		{"who may bind may", plain, newPod("p", on("a")), true, ""},
		{
			"the host name is on the list that is meant", plain, newPod("p", hostname), false,
			"spec.nodeSelector['kubernetes.io/hostname']",
		},
		{"another label is not", plain, newPod("p", selecting("region", "us-east")), false, ""},
		{
			"a label of the list that is given", listed, newPod("p", selecting("<label_1>", "x")), false,
			"spec.nodeSelector['<label_1>']",
		},
		{
			"both are named", plain, newPod("p", hostname, on("a")), false,
			"spec.nodeName and spec.nodeSelector['kubernetes.io/hostname']",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Admit(AdmissionView{Pod: tt.pod, Master: tt.master, MayBind: tt.mayBind}).Forbidden
			if (got == "") != (tt.want == "") || !strings.HasPrefix(got, tt.want) {
				t.Errorf("forbidden %q, want %q", got, tt.want)
			}
		})
	}
}

func TestPluginsThatAreNotInForceAreNamed(t *testing.T) {
	plugins := load(t, "004-52", &schedulingv1.AdmissionConfig{}).GetAdmissionConfig()
	plugins.PluginConfig["PodTolerationRestriction"] = &schedulingv1.AdmissionPluginConfig{}
	plugins.PluginConfig["PodNodeConstraints"] = &schedulingv1.AdmissionPluginConfig{Location: "file"}
	if diff := cmp.Diff([]string{"PodNodeConstraints.location", "PodTolerationRestriction"},
		AdmissionNotInForce(plugins, nil)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestCheckUpdate(t *testing.T) {
	before := newPod("p", asking("cpu", "1"), bearing("k", ""))
	tests := []struct {
		name   string
		change func(*schedulingv1.Pod)
		ok     bool
	}{
		{"an image may change", func(p *schedulingv1.Pod) { p.Spec.Containers[0].Image = "other" }, true},
		{"a toleration may go", func(p *schedulingv1.Pod) { p.Spec.Tolerations = nil }, true},
		{"a pod may be bound", on("a"), true},
		{"requests may not change", asking("cpu", "2"), false},
		{"a container may not come", func(p *schedulingv1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, &schedulingv1.Container{Name: "d"})
		}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			after := proto.Clone(before).(*schedulingv1.Pod)
			tt.change(after)
			if got := checkUpdate(before, after); (len(got) == 0) != tt.ok {
				t.Errorf("checkUpdate = %v", got)
			}
		})
	}
	bound := newPod("p", on("a"))
	if got := checkUpdate(bound, newPod("p", on("b"))); len(got) == 0 {
		t.Error("a bound pod may be bound elsewhere")
	}
}
