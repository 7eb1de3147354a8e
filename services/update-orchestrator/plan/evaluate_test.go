package plan

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

func TestARequestSaysWhatIsEvaluated(t *testing.T) {
	type request = updatev1.EvaluateClusterVersionRequest
	live := func(desired *updatev1.DesiredUpdate, architecture string) *updatev1.ClusterVersion {
		return &updatev1.ClusterVersion{
			Spec: &updatev1.ClusterVersionSpec{Channel: "stable", DesiredUpdate: desired},
			Status: &updatev1.ClusterVersionStatus{Desired: &updatev1.ReleaseReference{
				Version: proto.String("1.0.0"), Architecture: architecture,
			}},
		}
	}
	accepting := live(&updatev1.DesiredUpdate{AcceptRisks: []*updatev1.AcceptedRisk{{Name: "A"}, {Name: "B"}}}, "")
	for name, tt := range map[string]struct {
		request *request
		live    *updatev1.ClusterVersion
		accept  []string
		toMulti bool
		arch    string
	}{
		"by default the cluster's": {&request{}, accepting, []string{"A", "B"}, false, "amd64"},
		"names replace what the cluster accepts": {
			&request{AcceptRisks: []string{"C"}}, accepting, []string{"C"}, false, "amd64",
		},
		"another channel of the same upstream": {
			&request{Channel: "fast"}, accepting, []string{"A", "B"}, false, "amd64",
		},
		"what the cluster accepts is not accepted for a given version": {
			&request{Version: "1.0.0"}, accepting, nil, false, "amd64",
		},
		"nor in a given graph": {&request{Graph: &structpb.Struct{}}, accepting, nil, false, "amd64"},
		"names for a given graph and version": {
			&request{Graph: &structpb.Struct{}, Version: "3.0.0", AcceptRisks: []string{"B"}}, accepting,
			[]string{"B"},
			false,
			"amd64",
		},
		"an architecture":              {&request{Architecture: "arm64"}, accepting, []string{"A", "B"}, false, "arm64"},
		"a cluster for all processors": {&request{}, live(nil, Multi), nil, false, "multi"},
		"an architecture for a cluster for all of them": {
			&request{Architecture: "arm64"}, live(nil, Multi), nil, false,
			"arm64",
		},
		"a cluster that is to move to all processors": {
			&request{}, live(&updatev1.DesiredUpdate{Architecture: proto.String(Multi)}, ""), nil, true, "multi",
		},
		"an architecture in spite of that": {
			&request{Architecture: "amd64"}, live(&updatev1.DesiredUpdate{Architecture: proto.String(Multi)}, ""), nil, false,
			"amd64",
		},
	} {
		t.Run(name, func(t *testing.T) {
			q, arch := Requested(tt.request, tt.live, "amd64")
			want := Query{Version: "1.0.0", Channel: "stable", ToMulti: tt.toMulti, Accept: tt.accept}
			if diff := cmp.Diff(want, q); diff != "" || arch != tt.arch {
				t.Errorf("architecture %q, want %q (-want +got):\n%s", arch, tt.arch, diff)
			}
		})
	}
}

func TestARequestThatMakesNoSenseNamesItsFields(t *testing.T) {
	got := EvaluateFaults(&updatev1.EvaluateClusterVersionRequest{
		Graph: &structpb.Struct{}, Architecture: "amd64", AcceptRisks: []string{"A", "B", "A"},
		RiskResults: map[string]string{"C": "perhaps", "B": "True", "A": ""},
	})
	want := []object.Fault{
		{Path: "riskResults['A']", Description: "must be True, False or Unknown"},
		{Path: "riskResults['C']", Description: "must be True, False or Unknown"},
		{Path: "architecture", Description: "is not allowed together with a graph: only an upstream is asked for it"},
		{Path: "acceptRisks[2]", Description: `"A" is a duplicate`},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := EvaluateFaults(&updatev1.EvaluateClusterVersionRequest{
		Architecture: "sparc", AcceptRisks: []string{"A", "B"},
	}); got != nil {
		t.Errorf("a request that makes sense: %v", got)
	}
}

func TestAQueryIsTriedAsARule(t *testing.T) {
	at := timestamppb.New(noon())
	for name, tt := range map[string]struct {
		applies bool
		failed  error
		want    *updatev1.RuleOutcome
	}{
		"it applies":       {true, nil, &updatev1.RuleOutcome{Status: True, Evaluated: at}},
		"it does not":      {false, nil, &updatev1.RuleOutcome{Status: False, Evaluated: at}},
		"it has no result": {false, errors.New("no sample"), &updatev1.RuleOutcome{Status: Unknown, Message: "no sample"}},
	} {
		tt.want.Type, tt.want.Promql, tt.want.Version, tt.want.Attempted = "PromQL", "q", "1.0.0", at
		got := Tried("q", "1.0.0", NewAnswer(tt.applies, tt.failed, noon()))
		if diff := cmp.Diff(tt.want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
