package manifest_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
)

// A policy distinguishes a list that is empty from one that is left out, which protobuf does not.
func TestAnEmptyListIsKeptWhereItDiffersFromNone(t *testing.T) {
	some := []*schedulingv1.PredicatePolicy{{Name: "HostName"}}
	tests := []struct {
		name, document, written string
		want                    *schedulingv1.Policy
	}{
		{"left out", `{}`, `{}`, &schedulingv1.Policy{}},
		{"null", `{"predicates":null}`, `{}`, &schedulingv1.Policy{}},
		{"empty", `{"predicates":[]}`, `{"predicates":[]}`, &schedulingv1.Policy{NoPredicates: true}},
		{
			"both empty", `{"priorities":[],"predicates":[]}`, `{"predicates":[],"priorities":[]}`,
			&schedulingv1.Policy{NoPredicates: true, NoPriorities: true},
		},
		{
			"with an element", `{"predicates":[{"name":"HostName"}]}`, `{"predicates":[{"name":"HostName"}]}`,
			&schedulingv1.Policy{Predicates: some},
		},
		{"an ordinary list", `{"extenders":[]}`, `{}`, &schedulingv1.Policy{}},
		{"marked", `{"noPriorities":true}`, `{"priorities":[]}`, &schedulingv1.Policy{NoPriorities: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := &schedulingv1.Policy{}
			if err := manifest.Decode([]byte(tt.document), got); err != nil || !proto.Equal(got, tt.want) {
				t.Fatalf("Decode = %v, %v, want %v", got, err, tt.want)
			}
			if text, err := manifest.Encode(got); err != nil || string(text) != tt.written {
				t.Errorf("Encode = %s, %v, want %s", text, err, tt.written)
			}
		})
	}
}

// An object is stored, and changed, by way of its document.
func TestAPatchEmptiesAndFillsAPolicy(t *testing.T) {
	of := (&schedulingv1.Policy{}).ProtoReflect().Descriptor()
	const some = `{"predicates":[{"name":"HostName"}]}`
	for _, tt := range [][3]string{
		{some, `{"predicates":[]}`, `{"predicates":[]}`},
		{some, `{"predicates":null}`, `{}`},
		{`{"predicates":[]}`, some, some},
		{`{"predicates":[]}`, `{"predicates":null}`, `{}`},
	} {
		for _, media := range []string{manifest.MergePatch, manifest.StrategicPatch} {
			doc, err := manifest.Patch([]byte(tt[0]), media, []byte(tt[1]), of)
			if err != nil {
				t.Fatal(err)
			}
			policy := &schedulingv1.Policy{}
			if err := manifest.Decode(doc, policy); err != nil {
				t.Fatal(err)
			}
			if got, err := manifest.Encode(policy); err != nil || string(got) != tt[2] {
				t.Errorf("%s: %s patched by %s is %s, %v, want %s", media, tt[0], tt[1], got, err, tt[2])
			}
		}
	}
}
