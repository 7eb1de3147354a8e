package plan

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

func TestRecord(t *testing.T) {
	at, later := timestamppb.New(noon()), timestamppb.New(noon().Add(time.Hour))
	begun := &updatev1.UpdateHistory{
		State: statePartial, StartedTime: at, Version: proto.String("1.0.0"),
		Image: proto.String("a"), Verified: proto.Bool(false),
	}
	with := func(change func(*updatev1.UpdateHistory)) *updatev1.UpdateHistory {
		h := proto.CloneOf(begun)
		change(h)
		return h
	}
	done := with(func(h *updatev1.UpdateHistory) { h.State, h.CompletionTime = StateCompleted, later })
	second := &updatev1.UpdateHistory{
		State: statePartial, StartedTime: later, Version: proto.String("1.1.0"),
		Image: proto.String("b"), Verified: proto.Bool(true), AcceptedRisks: "waived",
	}
	tests := map[string]struct {
		history []*updatev1.UpdateHistory
		reached Reached
		want    []*updatev1.UpdateHistory
	}{
		"no image is not recorded": {reached: Reached{Version: "1.0.0"}},
		"the first": {
			reached: Reached{Version: "1.0.0", Image: "a"},
			want:    []*updatev1.UpdateHistory{with(func(h *updatev1.UpdateHistory) { h.StartedTime = later })},
		},
		"completed": {history: []*updatev1.UpdateHistory{begun}, reached: Reached{
			Version: "1.0.0", Image: "a",
			Completed: true,
		}, want: []*updatev1.UpdateHistory{done}},
		"completed again": {
			history: []*updatev1.UpdateHistory{
				with(func(h *updatev1.UpdateHistory) { h.State, h.CompletionTime = StateCompleted, at }),
			},
			reached: Reached{Version: "1.0.0", Image: "a", Completed: true},
			want: []*updatev1.UpdateHistory{
				with(func(h *updatev1.UpdateHistory) { h.State, h.CompletionTime = StateCompleted, at }),
			},
		},
		"what is completed stays so": {
			history: []*updatev1.UpdateHistory{done},
			reached: Reached{Version: "1.0.0", Image: "a"}, want: []*updatev1.UpdateHistory{done},
		},
		"a version that was not known is filled in": {
			history: []*updatev1.UpdateHistory{with(func(h *updatev1.UpdateHistory) { h.Version = nil })},
			reached: Reached{Version: "1.0.0", Image: "a"}, want: []*updatev1.UpdateHistory{begun},
		},
		"another release ends the one before, which stays partial": {
			history: []*updatev1.UpdateHistory{begun}, reached: Reached{
				Version: "1.1.0", Image: "b", Verified: true,
				AcceptedRisks: "waived",
			},
			want: []*updatev1.UpdateHistory{second, with(func(h *updatev1.UpdateHistory) { h.CompletionTime = later })},
		},
		"another release after a completed one": {
			history: []*updatev1.UpdateHistory{done}, reached: Reached{
				Version: "1.1.0", Image: "b", Verified: true,
				AcceptedRisks: "waived",
			},
			want: []*updatev1.UpdateHistory{second, done},
		},
		"the same version with another image is another release": {
			history: []*updatev1.UpdateHistory{done}, reached: Reached{Version: "1.0.0", Image: "c"},
			want: []*updatev1.UpdateHistory{
				with(func(h *updatev1.UpdateHistory) { h.StartedTime, h.Image = later, proto.String("c") }), done,
			},
		},
		"what was waived is not forgotten": {
			history: []*updatev1.UpdateHistory{second}, reached: Reached{Version: "1.1.0", Image: "b"},
			want: []*updatev1.UpdateHistory{second},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, Record(tt.history, tt.reached, later.AsTime()), protocmp.Transform()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestRecordKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var history []*updatev1.UpdateHistory
		now := noon()
		for range rapid.IntRange(1, 160).Draw(t, "changes") {
			now = now.Add(time.Hour)
			n := rapid.IntRange(0, 30).Draw(t, "release")
			r := Reached{
				Version: fmt.Sprintf("1.%d.%d", n/5, n%5), Image: fmt.Sprint("i", n),
				Completed: rapid.Bool().Draw(t, "completed"),
			}
			before := history
			history = Record(before, r, now)
			if len(history) > maxHistory {
				t.Fatalf("%d entries", len(history))
			}
			if history[0].GetVersion() != r.Version {
				t.Fatal("the newest is not the first")
			}
			if len(before) == maxHistory && !proto.Equal(before[maxHistory-1], history[len(history)-1]) {
				t.Fatal("the oldest entry is gone")
			}
			if last := lastCompleted(before); last != "" && lastCompleted(history) == "" {
				t.Fatal("the last completed entry is gone")
			}
			for i, h := range history {
				if i > 0 && h.GetCompletionTime() == nil {
					t.Fatalf("entry %d has not ended", i)
				}
				if i > 0 && h.GetVersion() == history[i-1].GetVersion() && len(history) < maxHistory {
					t.Fatalf("entries %d and %d are the same", i-1, i)
				}
			}
		}
	})
}

func TestPruneTakesAPartialEntryWithinAMinorVersionBeforeOlderCompletedOnes(t *testing.T) {
	var history []*updatev1.UpdateHistory
	for i := range maxHistory + 1 {
		state := StateCompleted
		if i == 90 {
			state = statePartial
		}
		history = append(history, entry(state, fmt.Sprintf("1.0.%d", 200-i), fmt.Sprint(i)))
	}
	out := prune(history)
	for _, h := range out {
		if h.GetState() == statePartial {
			t.Fatal("the partial entry is still there")
		}
	}
	if len(out) != maxHistory {
		t.Errorf("%d entries", len(out))
	}
}

func TestModeOf(t *testing.T) {
	partial, done := entry(statePartial, "1.1.0", "b"), entry(StateCompleted, "1.0.0", "a")
	tests := map[string]struct {
		history []*updatev1.UpdateHistory
		image   string
		want    Mode
		more    bool // of it is being applied
	}{
		"nothing yet":              {nil, "a", Initializing, false},
		"nothing complete":         {[]*updatev1.UpdateHistory{partial}, "b", Initializing, false},
		"on the way":               {[]*updatev1.UpdateHistory{partial, done}, "b", Updating, false},
		"reached":                  {[]*updatev1.UpdateHistory{done}, "a", Reconciling, false},
		"reached, but for more":    {[]*updatev1.UpdateHistory{done}, "a", Updating, true},
		"another image is wanted":  {[]*updatev1.UpdateHistory{done}, "b", Updating, false},
		"back to what was reached": {[]*updatev1.UpdateHistory{partial, done}, "a", Updating, false},
	}
	for name, tt := range tests {
		st := &updatev1.ClusterVersionStatus{History: tt.history}
		if tt.more {
			st.Progress = &updatev1.UpdateProgress{}
		}
		if got := ModeOf(st, tt.image); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

func TestKept(t *testing.T) {
	partial, c := entry(statePartial, "1.1.0", "r@b"), entry(StateCompleted, "1.2.0", "r@c")
	a := entry(StateCompleted, "1.0.0", "mirror/r@a")
	tests := map[string]struct {
		present string
		history []*updatev1.UpdateHistory
		want    []string
	}{
		"the first release":          {"r@a", []*updatev1.UpdateHistory{entry(statePartial, "1.0.0", "r@a")}, []string{"a"}},
		"during an update":           {"r@b", []*updatev1.UpdateHistory{partial, a}, []string{"b", "a"}},
		"after it":                   {"r@c", []*updatev1.UpdateHistory{c, partial, a}, []string{"c", "a"}},
		"back, by another name":      {"r@a", []*updatev1.UpdateHistory{a, c, a}, []string{"a", "c"}},
		"a cluster without a digest": {"", []*updatev1.UpdateHistory{a}, []string{"a"}},
	}
	for name, tt := range tests {
		if got := Kept(tt.present, tt.history); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func TestForgotten(t *testing.T) {
	of := func(name, image string) *updatev1.Release {
		return &updatev1.Release{Metadata: &metav1.ObjectMeta{Name: name}, Spec: &updatev1.ReleaseSpec{Image: image}}
	}
	history := []*updatev1.UpdateHistory{{Image: proto.String("c")}, {Image: proto.String("a")}}
	if have := Forgotten([]*updatev1.Release{of("3", "c"), of("2", "b"), of("1", "a"), of("0", "")},
		history); !slices.Equal(have, []string{"2", "0"}) {
		t.Errorf("forgotten are %v", have)
	}
}
