package plan_test

import (
	"strings"
	"testing"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

const mi = 1 << 20

func TestPressure(t *testing.T) {
	for _, tc := range []struct {
		name                        string
		usage                       plan.Usage
		memory, disk, pids, network string
	}{
		{"nothing is known", plan.Usage{Memory: 1 << 40, Disk: 1 << 40}, "False", "False", "False", "False"},
		{
			"enough is left",
			plan.Usage{
				Memory: 900 * mi, MemoryCapacity: 1000 * mi, Disk: 85 * mi, DiskCapacity: 100 * mi,
				HostMemory: 100 * mi, HostMemoryTotal: 1000 * mi, FreeDisk: 10 * mi, DiskSize: 100 * mi,
				FreeInodes: 5, Inodes: 100, Processes: 950, MostProcesses: 1000,
			},
			"False", "False", "False", "False",
		},
		{
			"too little is left of what the machine was given",
			plan.Usage{Memory: 901 * mi, MemoryCapacity: 1000 * mi, Disk: 86 * mi, DiskCapacity: 100 * mi},
			"True", "True", "False", "False",
		},
		{"a tiny machine is empty", plan.Usage{MemoryCapacity: 50 * mi}, "False", "False", "False", "False"},
		{
			"a tiny machine is more than half full",
			plan.Usage{Memory: 26 * mi, MemoryCapacity: 50 * mi},
			"True", "False", "False", "False",
		},
		{
			"the host has no memory left",
			plan.Usage{MemoryCapacity: 1000 * mi, HostMemory: 99 * mi, HostMemoryTotal: 8000 * mi},
			"True", "False", "False", "False",
		},
		{"the file system is full", plan.Usage{FreeDisk: 9 * mi, DiskSize: 100 * mi}, "False", "True", "False", "False"},
		{
			"a large file system has enough below a tenth",
			plan.Usage{FreeDisk: 512 * mi, DiskSize: 1_000_000 * mi},
			"False", "False", "False", "False",
		},
		{
			"a large file system has too little",
			plan.Usage{FreeDisk: 511 * mi, DiskSize: 1_000_000 * mi},
			"False", "True", "False", "False",
		},
		{"no inodes are left", plan.Usage{FreeInodes: 4, Inodes: 100}, "False", "True", "False", "False"},
		{"no processes are left", plan.Usage{Processes: 951, MostProcesses: 1000}, "False", "False", "True", "False"},
		{"the address is gone", plan.Usage{Address: "10.0.0.1", AddressMissing: true}, "False", "False", "False", "True"},
	} {
		tc.usage.Now = time.Now()
		list := plan.Conditions(tc.usage, plan.Observe(tc.usage, plan.Pressures{}))
		got := map[string]string{}
		for _, c := range list {
			got[c.GetType()] = c.GetStatus()
			if (c.GetStatus() == "True") != (c.GetMessage() != "") {
				t.Errorf("%s: %v", tc.name, c)
			}
		}
		want := map[string]string{
			"MemoryPressure": tc.memory, "DiskPressure": tc.disk, "PIDPressure": tc.pids, "NetworkUnavailable": tc.network,
		}
		for typ, status := range want {
			if got[typ] != status {
				t.Errorf("%s: %s is %s, want %s", tc.name, typ, got[typ], status)
			}
		}
	}
}

// A pod that leaves frees memory and comes back: the condition must last longer than that.
func TestAPressureEndsFiveMinutesAfterTheShortage(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	low := func(at time.Duration) plan.Usage {
		return plan.Usage{Now: begin.Add(at), Memory: 950 * mi, MemoryCapacity: 1000 * mi}
	}
	enough := func(at time.Duration) plan.Usage {
		return plan.Usage{Now: begin.Add(at), Memory: 500 * mi, MemoryCapacity: 1000 * mi}
	}
	var p plan.Pressures
	for i, step := range []struct {
		usage      plan.Usage
		under, low bool
	}{
		{enough(0), false, false},
		{low(time.Minute), true, true},
		{enough(2 * time.Minute), true, false},
		{low(6 * time.Minute), true, true}, // before the end: it counts again
		{enough(7 * time.Minute), true, false},
		{enough(12*time.Minute - time.Second), true, false},
		{enough(12 * time.Minute), false, false},
	} {
		p = plan.Observe(step.usage, p)
		if p.Memory.Under() != step.under || p.Memory.Low != step.low {
			t.Errorf("step %d: %+v", i, p.Memory)
		}
		c := plan.Conditions(step.usage, p)[0]
		if waits := strings.Contains(c.GetMessage(), "the condition ends 5m0s after that"); waits != (step.under &&
			!step.low) {
			t.Errorf("step %d: message %q", i, c.GetMessage())
		}
	}
}

func asking(memory string, priority int32) *schedulingv1.Pod {
	return &schedulingv1.Pod{Spec: &schedulingv1.PodSpec{
		Priority: &priority,
		Containers: []*schedulingv1.Container{{Name: "main", Resources: &schedulingv1.ResourceRequirements{
			Requests: map[string]*structpb.Value{"memory": structpb.NewStringValue(memory)},
		}}},
	}}
}

func TestWhichPodLeavesAShortNode(t *testing.T) {
	low := plan.Pressures{Memory: plan.Pressure{
		Low: true, Since: time.Now(), Available: 50 * mi, Threshold: 100 * mi, Of: plan.Memory,
	}}
	modest := plan.PodUse{UID: "modest", Pod: asking("500Mi", 0), Memory: 400 * mi}
	over := plan.PodUse{UID: "over", Pod: asking("100Mi", 10), Memory: 150 * mi}
	farOver := plan.PodUse{UID: "far over", Pod: asking("100Mi", 10), Memory: 300 * mi}
	low1 := plan.PodUse{UID: "low priority", Pod: asking("100Mi", 1), Memory: 101 * mi}
	critical := plan.PodUse{UID: "critical", Pod: asking("1Mi", 2_000_000_000), Memory: 900 * mi}
	idle := plan.PodUse{UID: "idle", Pod: asking("0", -5)}
	ending := plan.PodUse{UID: "ending", Pod: asking("1Mi", 0), Memory: mi, Ends: true}
	for _, tc := range []struct {
		name string
		p    plan.Pressures
		pods []plan.PodUse
		want string
	}{
		{"nothing is short", plan.Pressures{}, []plan.PodUse{farOver}, ""},
		{
			"it was short, and the condition lasts",
			plan.Pressures{Memory: plan.Pressure{Since: time.Now(), Enough: time.Now(), Of: plan.Memory}},
			[]plan.PodUse{farOver},
			"",
		},
		{
			"the lowest priority of those over their request", low,
			[]plan.PodUse{modest, over, farOver, low1, critical},
			"low priority",
		},
		{"the furthest of one priority", low, []plan.PodUse{modest, over, farOver}, "far over"},
		{"one below its request, if there is no other", low, []plan.PodUse{critical, modest, idle}, "modest"},
		{"none that is critical or uses nothing", low, []plan.PodUse{critical, idle}, ""},
		{"none while another one ends", low, []plan.PodUse{farOver, ending}, ""},
	} {
		got := plan.Evictions(tc.p, tc.pods)
		if tc.want == "" {
			if len(got) > 0 {
				t.Errorf("%s: %v", tc.name, got)
			}
			continue
		}
		if len(got) != 1 || got[0].UID != tc.want || got[0].Verdict.Reason != plan.Evicted {
			t.Errorf("%s: %v, want %s", tc.name, got, tc.want)
		}
	}
	const message = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. " +
		"The pod was using 300Mi, its request is 100Mi."
	if got := plan.Evictions(low, []plan.PodUse{farOver})[0].Verdict.Message; got != message {
		t.Errorf("message %q", got)
	}
}

func TestLimitsOfTheDisk(t *testing.T) {
	limit := func(text string) *schedulingv1.ResourceRequirements {
		return &schedulingv1.ResourceRequirements{
			Limits: map[string]*structpb.Value{"ephemeral-storage": structpb.NewStringValue(text)},
		}
	}
	pod := &schedulingv1.Pod{Spec: &schedulingv1.PodSpec{
		Containers: []*schedulingv1.Container{{Name: "a", Resources: limit("10Mi")}, {Name: "b", Resources: limit("5Mi")}},
		Volumes: []*schedulingv1.Volume{{
			Name: "v", EmptyDir: &schedulingv1.EmptyDirVolumeSource{SizeLimit: structpb.NewStringValue("8Mi")},
		}},
	}}
	unbounded := &schedulingv1.Pod{Spec: &schedulingv1.PodSpec{
		Containers: []*schedulingv1.Container{{Name: "a", Resources: limit("10Mi")}, {Name: "b"}},
	}}
	for _, tc := range []struct {
		name string
		pod  *schedulingv1.Pod
		use  plan.DiskUse
		want string
	}{
		{
			"at each limit", pod,
			plan.DiskUse{
				Total: 15 * mi, Containers: map[string]int64{"a": 10 * mi, "b": 5 * mi}, Volumes: map[string]int64{"v": 8 * mi},
			},
			"",
		},
		{"a container", pod, plan.DiskUse{Containers: map[string]int64{"b": 5*mi + 1}}, "Container b exceeded"},
		{"a volume", pod, plan.DiskUse{Volumes: map[string]int64{"v": 8*mi + 1}}, `EmptyDir volume "v" exceeds`},
		{"all together", pod, plan.DiskUse{Total: 15*mi + 1}, "Pod ephemeral local storage usage exceeds"},
		{"all of a pod with a container that has no limit", unbounded, plan.DiskUse{Total: 1 << 40}, ""},
		{"not measured yet", pod, plan.DiskUse{}, ""},
	} {
		got := plan.Evictions(plan.Pressures{}, []plan.PodUse{{Pod: tc.pod, Disk: tc.use}})
		if tc.want == "" && len(got) > 0 || tc.want != "" &&
			(len(got) != 1 || !strings.Contains(got[0].Verdict.Message, tc.want)) {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}
