package plan

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

func classOfValue(name string, value int32, more ...func(*schedulingv1.PriorityClass)) *schedulingv1.PriorityClass {
	c := &schedulingv1.PriorityClass{Metadata: &metav1.ObjectMeta{Name: name}, Value: value}
	for _, f := range more {
		f(c)
	}
	return c
}

func forAll(c *schedulingv1.PriorityClass) { c.GlobalDefault = proto.Bool(true) }

func patient(c *schedulingv1.PriorityClass) { c.PreemptionPolicy = preemptNever }

func TestAPodHasThePriorityOfItsClass(t *testing.T) {
	of := func(name string) func(*schedulingv1.Pod) {
		return func(p *schedulingv1.Pod) { p.Spec.PriorityClassName = name }
	}
	asking := func(priority int32) func(*schedulingv1.Pod) {
		return func(p *schedulingv1.Pod) { p.Spec.Priority = proto.Int32(priority) }
	}
	high, usual := classOfValue("high", 1000, patient), classOfValue("usual", 5, forAll)
	for _, tt := range []struct {
		name     string
		classes  []*schedulingv1.PriorityClass
		pod      *schedulingv1.Pod
		class    string
		priority int32
		policy   string
		field    string // that is wrong
	}{
		{"without classes", nil, newPod("p"), "", 0, PreemptLowerPriority, ""},
		{"without a default", []*schedulingv1.PriorityClass{high}, newPod("p"), "", 0, PreemptLowerPriority, ""},
		{"the default", []*schedulingv1.PriorityClass{high, usual}, newPod("p"), "usual", 5, PreemptLowerPriority, ""},
		{
			"of two defaults the lower one",
			[]*schedulingv1.PriorityClass{
				usual, classOfValue("less", 4, forAll),
				classOfValue("more", 6, forAll),
			},
			newPod("p"), "less", 4, PreemptLowerPriority, "",
		},
		{
			"a class that does not preempt",
			[]*schedulingv1.PriorityClass{usual, high},
			newPod("p", of("high")), "high", 1000,
			preemptNever, "",
		},
		{
			"a class of the system", nil, newPod("p", of("system-node-critical")), "system-node-critical", 2_000_001_000,
			PreemptLowerPriority, "",
		},
		{
			"an unknown class",
			[]*schedulingv1.PriorityClass{usual},
			newPod("p", of("high")), "", 0, "",
			"spec.priorityClassName",
		},
		{
			"a priority without a class", nil, newPod("p", asking(2_000_000_000)), "", 0, PreemptLowerPriority, "spec.priority",
		},
		{
			"another priority",
			[]*schedulingv1.PriorityClass{high},
			newPod("p", of("high"), asking(1001)), "high", 1000,
			preemptNever, "spec.priority",
		},
		{
			"the priority that it has",
			[]*schedulingv1.PriorityClass{high},
			newPod("p", of("high"), asking(1000)), "high", 1000,
			preemptNever, "",
		},
		{
			"another preemption policy", []*schedulingv1.PriorityClass{high}, newPod("p", of("high"), func(p *schedulingv1.Pod) {
				p.Spec.PreemptionPolicy = proto.String(PreemptLowerPriority)
			}), "high", 1000, preemptNever, "spec.preemptionPolicy",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := Admit(AdmissionView{Pod: tt.pod, Classes: tt.classes})
			var fields, want []string
			for _, f := range a.Fields {
				fields = append(fields, f.Path)
			}
			if tt.field != "" {
				want = []string{tt.field}
			}
			if diff := cmp.Diff(want, fields); diff != "" {
				t.Fatalf("wrong fields (-want +got):\n%s", diff)
			}
			s := a.Pod.GetSpec()
			if tt.policy != "" && (s.GetPriorityClassName() != tt.class || s.GetPriority() != tt.priority ||
				s.GetPreemptionPolicy() != tt.policy) {
				t.Errorf("%q, %d, %s", s.GetPriorityClassName(), s.GetPriority(), s.GetPreemptionPolicy())
			}
		})
	}
}

func TestWhichClassesMayBeCreated(t *testing.T) {
	for _, tt := range []struct {
		name   string
		class  *schedulingv1.PriorityClass
		others []*schedulingv1.PriorityClass
		field  string
	}{
		{"a reserved name", classOfValue("system-mine", 1), nil, "metadata.name"},
		{
			"a second default", classOfValue("a", 1, forAll),
			[]*schedulingv1.PriorityClass{classOfValue("b", 1, forAll)},
			"globalDefault",
		},
		{"the default itself", classOfValue("a", 1, forAll), []*schedulingv1.PriorityClass{classOfValue("a", 1, forAll)}, ""},
		{"another than the default", classOfValue("a", 1), []*schedulingv1.PriorityClass{classOfValue("b", 1, forAll)}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			for _, f := range CheckPriorityClass(tt.class, tt.others) {
				got += f.Path
			}
			if got != tt.field {
				t.Errorf("wrong field %q, want %q", got, tt.field)
			}
		})
	}
}

func TestAClassOfTheSystemNeedsARight(t *testing.T) {
	for _, class := range []string{"system-node-critical", "system-cluster-critical"} {
		pod := newPod("p", func(p *schedulingv1.Pod) { p.Spec.PriorityClassName = class })
		for may, want := range map[bool]string{true: "", false: "spec.priorityClassName: only who may use priorityclasses/" +
			class} {
			got := Admit(AdmissionView{Pod: pod, MayBeCritical: may}).Forbidden
			if (got == "") != may || !strings.HasPrefix(got, want) {
				t.Errorf("%s, with the right %v: %q", class, may, got)
			}
		}
	}
	class := classOfValue("mine", 7)
	mine := newPod("p", func(p *schedulingv1.Pod) { p.Spec.PriorityClassName = "mine" })
	if a := Admit(AdmissionView{Pod: mine, Classes: []*schedulingv1.PriorityClass{class}}); !a.Allowed() {
		t.Errorf("another class: %s", a.Reason())
	}
}
