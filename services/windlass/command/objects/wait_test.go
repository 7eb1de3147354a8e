package objects

import (
	"testing"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
)

func TestStatesToWaitForAreRead(t *testing.T) {
	for _, bad := range []string{"condition=", "luck", "jsonpath={.a}3", "jsonpath={.a"} {
		if _, err := parseState(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	m := &machinev1.Machine{Metadata: &metav1.ObjectMeta{Generation: 2}, Status: &machinev1.MachineStatus{
		Conditions: []*metav1.Condition{
			{Type: "Drained", Status: "True"}, {Type: "Old", Status: "True", ObservedGeneration: new(int32)},
		},
	}}
	*m.Status.Conditions[1].ObservedGeneration = 1
	for spelled, want := range map[string]bool{
		"condition=Drained": true, "condition=drained=true": true, "condition=Drained=False": false, "condition=Other": false,
		"condition=Old":                     false,
		"jsonpath={.metadata.generation}=2": true, "jsonpath='{.metadata.generation}'=3": false, "jsonpath={.spec}": false,
		"jsonpath=.metadata.generation=2":                                   true,
		"jsonpath={.status.conditions[?(@.type==\"Drained\")].status}=True": true,
	} {
		s, err := parseState(spelled)
		if err != nil {
			t.Errorf("%s: %v", spelled, err)
			continue
		}
		if got, why, err := s.met(m); got != want || err != nil {
			t.Errorf("%s is %t (%s, %v), want %t", spelled, got, why, err, want)
		}
	}
}
