package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func snapshotOf(phase string, at time.Time) *etcdv1.Snapshot {
	return &etcdv1.Snapshot{
		Metadata: &metav1.ObjectMeta{Name: "s", CreationTimestamp: timestamppb.New(at)},
		Status:   &etcdv1.SnapshotStatus{Phase: proto.String(phase)},
	}
}

func TestNextOfSnapshot(t *testing.T) {
	leaving := snapshotOf("Failed", noon())
	leaving.Metadata.DeletionTimestamp = timestamppb.New(noon())
	tests := map[string]struct {
		live *etcdv1.Snapshot
		ours bool
		want SnapshotStep
	}{
		"there is none":                    {nil, false, TakeSnapshot},
		"it is gone again":                 {nil, true, TakeSnapshot},
		"it is new":                        {snapshotOf("", noon()), true, AwaitSnapshot},
		"it waits":                         {snapshotOf("Pending", noon().Add(-time.Hour)), false, AwaitSnapshot},
		"it is taken":                      {snapshotOf("Running", noon()), true, AwaitSnapshot},
		"it was checked":                   {snapshotOf("Completed", noon()), true, HaveSnapshot},
		"it was checked for another":       {snapshotOf("Completed", noon().Add(-9*time.Minute)), false, HaveSnapshot},
		"it is old":                        {snapshotOf("Completed", noon().Add(-time.Hour)), false, RetakeSnapshot},
		"ours, by a clock that is behind":  {snapshotOf("Completed", noon().Add(-time.Hour)), true, HaveSnapshot},
		"it failed":                        {snapshotOf("Failed", noon()), true, LackSnapshot},
		"it failed, by a clock behind":     {snapshotOf("Failed", noon().Add(-time.Hour)), true, LackSnapshot},
		"it failed for another":            {snapshotOf("Failed", noon().Add(-time.Second)), false, RetakeSnapshot},
		"it failed, by a clock that leads": {snapshotOf("Failed", noon().Add(time.Hour)), false, RetakeSnapshot},
		"the failed one is removed":        {leaving, false, AwaitSnapshot},
	}
	for name, tt := range tests {
		if got := NextOfSnapshot(tt.live, noon(), tt.ours); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

func TestOldSnapshots(t *testing.T) {
	var all []*etcdv1.Snapshot
	for i := range 6 {
		s := snapshotOf("Completed", noon().Add(time.Duration(i)*time.Hour))
		s.Metadata.Name, s.Metadata.Labels = fmt.Sprint("s", i), map[string]string{SnapshotLabel: "1.0.0"}
		all = append(all, s)
	}
	all[1].Metadata.Labels = nil // a user's
	all[2].Metadata.DeletionTimestamp = timestamppb.New(noon())
	names := func(list []*etcdv1.Snapshot) string {
		var out []string
		for _, s := range list {
			out = append(out, s.GetMetadata().GetName())
		}
		return strings.Join(out, " ")
	}
	if got := names(OldSnapshots(all, "s0")); got != "" {
		t.Errorf("beside the present one: %s", got)
	}
	if got := names(OldSnapshots(all, "")); got != "s0" {
		t.Errorf("old are %q, want s0", got)
	}
}
