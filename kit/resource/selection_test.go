package resource

import (
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

func TestASelectionByFields(t *testing.T) {
	pod := &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{Name: "a", Labels: map[string]string{"app.io/x": "web"}},
		Spec:     &schedulingv1.PodSpec{NodeName: "n1"},
	}
	for selector, want := range map[string]bool{
		"":                                        true,
		"spec.nodeName=n1":                        true,
		"spec.nodeName==n1,metadata.name!=b":      true,
		"spec.nodeName=n1,metadata.name=b":        false,
		"spec.nodeName!=n1":                       false,
		"status.phase=":                           true,
		"status.phase!=":                          false,
		"metadata.labels['app.io/x']=web":         true,
		"metadata.labels['app.io/x=web":           false, // a malformed path matches nothing
		"metadata.labels['app.io/x!=web":          true,
		"metadata.labels['app.io/x=,spec..name!=": false,
	} {
		sel, err := ParseSelection("", selector)
		if err != nil {
			t.Errorf("%q: %v", selector, err)
		} else if got := sel.Matches(pod); got != want {
			t.Errorf("%q matches: %t, want %t", selector, got, want)
		}
	}
}

// BenchmarkMatches is one object against a selector of one field, as a watch does it for each change.
func BenchmarkMatches(b *testing.B) {
	pod := &schedulingv1.Pod{Spec: &schedulingv1.PodSpec{NodeName: "n1"}}
	sel, err := ParseSelection("", "spec.nodeName=n1")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if !sel.Matches(pod) {
			b.Fatal("does not match")
		}
	}
}
