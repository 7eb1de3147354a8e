package plan

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func ts(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(epoch().Add(d)) }

func TestWhoPausesAPoolIsNotTheUsersToSay(t *testing.T) {
	type spec = configv1.MachineConfigPoolSpec
	plain := &spec{Paused: proto.Bool(true), PausedBy: "alice", PausedSince: ts(0)}
	reasoned := &spec{Pause: &Pause{Reason: "fair", By: "alice", Since: ts(0)}}
	for name, tt := range map[string]struct{ old, next, want *spec }{
		"paused": {
			nil, &spec{Paused: proto.Bool(true), PausedBy: "eve"},
			&spec{Paused: proto.Bool(true), PausedBy: "carol", PausedSince: ts(time.Hour)},
		},
		"still paused": {plain, &spec{Paused: proto.Bool(true)}, plain},
		"no longer paused": {
			plain, &spec{Paused: proto.Bool(false), PausedBy: "alice"},
			&spec{Paused: proto.Bool(false)},
		},
		"the same from a file":  {reasoned, &spec{Pause: &Pause{Reason: "fair"}}, reasoned},
		"in the name of others": {reasoned, &spec{Pause: &Pause{Reason: "fair", By: "eve", Since: ts(5)}}, reasoned},
		"another reason": {
			reasoned, &spec{Pause: &Pause{Reason: "audit", By: "alice", Since: ts(0)}},
			&spec{Pause: &Pause{Reason: "audit", By: "carol", Since: ts(time.Hour)}},
		},
		"another end": {
			reasoned, &spec{Pause: &Pause{Reason: "fair", Until: ts(2 * time.Hour)}},
			&spec{Pause: &Pause{Reason: "fair", Until: ts(2 * time.Hour), By: "carol", Since: ts(time.Hour)}},
		},
		"resumed": {reasoned, &spec{}, &spec{}},
	} {
		if bad := Pausing(tt.old, tt.next, "carol", epoch().Add(time.Hour)); len(bad) > 0 {
			t.Errorf("%s: %v", name, bad)
		}
		if d := cmp.Diff(tt.want, tt.next, protocmp.Transform()); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	bad := Pausing(nil, &spec{Pause: &Pause{Reason: "fair", Until: ts(time.Hour)}}, "carol", epoch().Add(time.Hour))
	if len(bad) != 1 || bad[0].Path != "spec.pause.until" {
		t.Errorf("a pause that has ended already: %v", bad)
	}
	ended := &spec{Pause: &Pause{Reason: "fair", Until: ts(time.Hour), By: "alice", Since: ts(0)}}
	if bad := Pausing(ended, proto.CloneOf(ended), "carol", epoch().Add(2*time.Hour)); len(bad) > 0 {
		t.Errorf("a pool whose pause has ended cannot be written any more: %v", bad)
	}
}

func TestAPauseOfAPool(t *testing.T) {
	ends := &Pause{Reason: "trade fair", By: "alice", Since: ts(0), Until: ts(time.Hour)}
	for name, tt := range map[string]struct {
		spec  *configv1.MachineConfigPoolSpec
		after time.Duration
		text  string // empty: it is not paused
	}{
		"none": {&configv1.MachineConfigPoolSpec{}, 0, ""},
		"before its end": {
			&configv1.MachineConfigPoolSpec{Pause: ends}, time.Hour - 1,
			"pool worker is paused by alice since 2026-01-01T00:00:00Z until 2026-01-01T01:00:00Z: trade fair",
		},
		"at its end": {&configv1.MachineConfigPoolSpec{Pause: ends}, time.Hour, ""},
		"paused has no end": {
			&configv1.MachineConfigPoolSpec{Pause: ends, Paused: proto.Bool(true), PausedBy: "bob"}, 0,
			"pool worker is paused by bob until resumed",
		},
		"paused before that was noted, with a pause": {
			&configv1.MachineConfigPoolSpec{Pause: ends, Paused: proto.Bool(true)}, 0,
			"pool worker is paused by alice since 2026-01-01T00:00:00Z until resumed: trade fair",
		},
		"paused after the end of another one": {
			&configv1.MachineConfigPoolSpec{Pause: ends, Paused: proto.Bool(true), PausedBy: "bob", PausedSince: ts(60)},
			time.Hour, "pool worker is paused by bob since 2026-01-01T00:00:00Z until resumed",
		},
		"paused before that was noted": {
			&configv1.MachineConfigPoolSpec{Paused: proto.Bool(true)}, 0, "pool worker is paused until resumed",
		},
	} {
		pool := poolOf("worker", "worker")
		pool.Spec = tt.spec
		text := ""
		if p := Paused(pool, epoch().Add(tt.after)); p != nil {
			text = PauseText(pool, p)
		}
		if text != tt.text {
			t.Errorf("%s: %q, want %q", name, text, tt.text)
		}
	}
}

// While a pool is paused, its status says what piles up behind that; when the pause ends, the nodes begin.
func TestWhatWaitsBehindAPauseIsSaid(t *testing.T) {
	pool := target(poolOf("worker", "worker"), "b", nil)
	pool.Spec.Pause = &Pause{Reason: "trade fair", By: "alice", Since: ts(0), Until: ts(time.Hour)}
	v := View{Now: epoch().Add(time.Minute), Pool: pool, Members: Members{Nodes: []*nodev1.Node{
		node("n1", "a", "a", stateDone), node("n2", "a", "a", stateDone), node("n3", "b", "b", stateDone),
	}}}
	p, r := Pool(v)
	const text = "pool worker is paused by alice since 2026-01-01T00:00:00Z until 2026-01-01T01:00:00Z: trade fair"
	if want := "True: Paused: " + text + "; 2 of 3 nodes wait for b since 2026-01-01T00:01:00Z"; condMessage(
		p.StatusAfter(pool), ConditionPaused) != want {
		t.Errorf("the status says %q, want %q", condMessage(p.StatusAfter(pool), ConditionPaused), want)
	}
	if len(r.Next) > 0 || r.Capacity > 0 || !p.Wake.Equal(epoch().Add(time.Hour)) {
		t.Errorf("%v begin; decided again at %v", r.Next, p.Wake)
	}
	if len(p.Held) != 2 || p.Held[0].GetReason() != text || !proto.Equal(p.Held[0].GetSinceTime(), ts(time.Minute)) ||
		p.Held[0].GetUnblock() != "windlass rollout resume machineconfigpool/worker" {
		t.Errorf("held back are %v", p.Held)
	}
	// Since when is said of what waits, not of the moment.
	pool.Status = p.StatusAfter(pool)
	v.Now = epoch().Add(2 * time.Minute)
	if again, _ := Pool(v); !proto.Equal(again.StatusAfter(pool), pool.Status) {
		t.Errorf("nothing happened, but the status is %v", again.StatusAfter(pool))
	}
	v.Now = p.Wake
	p, r = Pool(v)
	if got := condMessage(p.StatusAfter(pool), ConditionPaused); len(r.Next) != 1 ||
		got != condMessage(nil, ConditionPaused) {
		t.Errorf("after its end %v begin, and the status says %q", r.Next, got)
	}
}
