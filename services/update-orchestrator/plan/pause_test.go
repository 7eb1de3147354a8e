package plan

import (
	"testing"
	"time"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func TestWhoPausesUpdatesIsNotTheUsersToSay(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	later := now.Add(time.Hour)
	first := Pausing(nil, &Pause{Reason: "fair", By: "bob", Since: timestamppb.New(later)}, "alice", now)
	if first.GetBy() != "alice" || !first.GetSince().AsTime().Equal(now) {
		t.Fatalf("the first pause is %v", first)
	}
	for name, tt := range map[string]struct {
		next  *Pause
		by    string
		since time.Time
	}{
		"the same":                        {proto.CloneOf(first), "alice", now},
		"the same, applied from a file":   {&Pause{Reason: "fair"}, "alice", now},
		"the same, in the name of others": {&Pause{Reason: "fair", By: "eve"}, "alice", now},
		"another reason":                  {&Pause{Reason: "audit", By: "alice", Since: first.GetSince()}, "carol", later},
		"another end":                     {&Pause{Reason: "fair", Until: timestamppb.New(later)}, "carol", later},
	} {
		if got := Pausing(first, tt.next, "carol", later); got.GetBy() != tt.by || !got.GetSince().AsTime().Equal(tt.since) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestPaused(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		pause *Pause
		want  bool
	}{
		"no pause":       {nil, false},
		"without an end": {&Pause{Reason: "r"}, true},
		"before its end": {&Pause{Reason: "r", Until: timestamppb.New(now.Add(1))}, true},
		"at its end":     {&Pause{Reason: "r", Until: timestamppb.New(now)}, false},
	} {
		cv := &updatev1.ClusterVersion{Spec: &updatev1.ClusterVersionSpec{Pause: tt.pause}}
		if got := Paused(cv, now) != nil; got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
		if check := PauseCheck(cv, now); (check != nil) != tt.want {
			t.Errorf("%s: %v", name, check)
		}
	}
}
