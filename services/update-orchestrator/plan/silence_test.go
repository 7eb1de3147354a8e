package plan

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"
)

func TestSilence(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	reported := func(status, reason string) *updatev1.ClusterOperator {
		return &updatev1.ClusterOperator{Status: &updatev1.ClusterOperatorStatus{Conditions: []*metav1.Condition{
			{Type: "Degraded", Status: False, LastTransitionTime: timestamppb.New(noon.Add(-time.Hour))},
			{Type: Available, Status: status, Reason: &reason, LastTransitionTime: timestamppb.New(noon.Add(-time.Hour))},
		}}}
	}
	unknown := &metav1.Condition{
		Type: Available, Status: Unknown, Reason: proto.String(ServiceSilent), LastTransitionTime: timestamppb.New(noon),
		Message: proto.String("scheduler has not answered since 2026-03-01T11:59:45Z: connection refused"),
	}
	silent := Contact{Since: noon.Add(-15 * time.Second), Open: 3, Last: "connection refused"}
	tests := []struct {
		name string
		v    SilenceView
		want *metav1.Condition
	}{
		{"a service that answered its last question is not silent", SilenceView{
			Contact:  Contact{Since: noon.Add(-time.Hour)},
			Operator: reported(True, "AsExpected"),
		}, nil},
		{"a restart is no silence", SilenceView{
			Contact:  Contact{Since: noon.Add(-14 * time.Second), Open: 7},
			Operator: reported(True, "AsExpected"),
		}, nil},
		{
			"a long time with few questions says more about the one who asks",
			SilenceView{Contact: Contact{Since: noon.Add(-time.Hour), Open: 2}, Operator: reported(True, "AsExpected")},
			nil,
		},
		{
			"a silent service is unknown, with the reason and since when",
			SilenceView{Contact: silent, Operator: reported(True, "AsExpected")},
			unknown,
		},
		{
			"what it said of itself last does not matter",
			SilenceView{Contact: silent, Operator: reported(False, "NotReady")},
			unknown,
		},
		{"one that never reported is unknown too", SilenceView{Contact: silent}, unknown},
		{"a service that cannot reach itself judges no other", SilenceView{
			Contact: silent, Deaf: true,
			Operator: reported(True, "AsExpected"),
		}, nil},
		{
			"what is said already is not said again",
			SilenceView{Contact: silent, Operator: reported(Unknown, ServiceSilent)},
			nil,
		},
		{
			"an Unknown of the operator's own is replaced, and keeps its time",
			SilenceView{Contact: silent, Operator: reported(Unknown, "Starting")},
			func() *metav1.Condition {
				c := proto.CloneOf(unknown)
				c.LastTransitionTime = timestamppb.New(noon.Add(-time.Hour))
				return c
			}(),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.v.Now, tt.v.Service = noon, "scheduler"
			before := proto.CloneOf(tt.v.Operator)
			got := Silence(tt.v)
			if diff := cmp.Diff(tt.want, got, protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
			if got == nil {
				return
			}
			st := Silenced(tt.v.Operator.GetStatus(), got)
			if diff := cmp.Diff(got, Find(st.GetConditions(), Available), protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
			if again := Silence(SilenceView{
				Now: noon.Add(time.Hour), Service: "scheduler", Contact: silent,
				Operator: &updatev1.ClusterOperator{Status: st},
			}); again != nil {
				t.Errorf("said again: %v", again)
			}
			if g := operatorGate(gateView{
				Operator: "scheduler", Declared: []*updatev1.OperandVersion{{Name: "operator", Version: "1"}},
				Live: &updatev1.ClusterOperator{Status: st},
			}); g.Effect != Fail || g.Reason != operatorNotAvailable {
				t.Errorf("an update passes an operator that is unknown: %+v", g)
			}
			if !proto.Equal(before, tt.v.Operator) {
				t.Error("the operator was changed")
			}
		})
	}
}

// TestAServiceThatAnswersIsNeverSilent has questions come at any pace, with pauses of this program in between.
func TestAServiceThatAnswersIsNeverSilent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		var h Contact
		last, open := now, 0
		for range rapid.IntRange(1, 40).Draw(t, "questions") {
			now = now.Add(time.Duration(rapid.IntRange(0, 60).Draw(t, "seconds")) * time.Second)
			problem := rapid.SampledFrom([]string{"", "no answer"}).Draw(t, "problem")
			if h.Since.IsZero() {
				last = now
			}
			h = h.Called(now, problem)
			if problem == "" {
				last, open = now, 0
			} else {
				open++
			}
			silent := Silence(SilenceView{Now: now, Service: "a", Contact: h}) != nil
			if want := open >= silentQuestions && now.Sub(last) >= silentAfter; silent != want {
				t.Fatalf("silent %t after %v and %d questions", silent, now.Sub(last), open)
			}
		}
	})
}
