package attend_test

import (
	"context"
	"testing"
	"time"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/kit/store"

	"github.com/windlass-dev/windlass/services/provider-inventory/attend"
)

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestOnlyALeaderKnowsAgents(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	r := attend.New(func() time.Time { return now })
	if _, ok := r.Join("h"); ok {
		t.Error("an agent attends at a replica that does not lead")
	}
	if _, ok := r.Fenced(t.Context()); ok {
		t.Error("a replica that does not lead has a fence")
	}
	r.Received("h") // without effect
	fence := store.Fence{Key: "election", CreateRevision: 7}
	var changed []string
	end := r.Lead(store.WithFence(t.Context(), fence), func(host string) { changed = append(changed, host) })
	if last, since := r.Of("h"); !last.IsZero() || !since.Equal(now) {
		t.Errorf("at the beginning of a term: %v, %v", last, since)
	}
	now = now.Add(time.Second)
	r.Received("h")
	if last, since := r.Of("h"); !last.Equal(now) || now.Sub(since) != time.Second {
		t.Errorf("after a message: %v, %v", last, since)
	}
	v, ok := r.Join("h")
	if !ok || len(changed) != 1 || changed[0] != "h" {
		t.Fatalf("joined: %v, changed %q", ok, changed)
	}
	ctx, ok := r.Fenced(t.Context())
	if got, _ := store.FenceFrom(ctx); !ok || got != fence {
		t.Errorf("the fence is %v, %v", got, ok)
	}
	end()
	if !closed(v.Over()) {
		t.Error("the term is over, and a visit of it is not")
	}
	v.Leave()
	end = r.Lead(context.Background(), func(string) {})
	defer end()
	if last, _ := r.Of("h"); !last.IsZero() {
		t.Errorf("the next term knows a message of the former one: %v", last)
	}
}

func TestAnOrderIsSentOnceOnEachStream(t *testing.T) {
	r := attend.New(time.Now)
	defer r.Lead(t.Context(), func(string) {})()
	order := &hostv1.HostOrder{Id: "u-1"}
	r.Send("h", order) // no agent attends
	for range 2 {
		v, _ := r.Join("h")
		if v.Take() != nil {
			t.Error("a new stream has an order of the former one")
		}
		r.Send("h", order)
		if !closed(v.Wake()) || v.Take().GetId() != "u-1" {
			t.Error("the order is not sent")
		}
		r.Send("h", order)
		if closed(v.Wake()) || v.Take() != nil {
			t.Error("the order is sent twice on a stream")
		}
	}
	former, _ := r.Join("h")
	newer, _ := r.Join("h")
	former.Leave()
	r.Send("h", order)
	if !closed(former.Ousted()) || closed(newer.Ousted()) || former.Take() != nil || newer.Take() == nil {
		t.Error("the order goes to a former stream")
	}
	newer.Leave()
}

func TestAnAgentHasLittleStored(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	r := attend.New(func() time.Time { return now })
	if r.Stores("h") {
		t.Error("a replica that does not lead stores messages")
	}
	defer r.Lead(t.Context(), func(string) {})()
	stored := 0
	for range 100 {
		if r.Stores("h") {
			stored++
		}
	}
	if stored != 20 || !r.Stores("other") {
		t.Errorf("%d of 100 messages of one agent are stored at once", stored)
	}
	for i, want := range []bool{false, true, false, true} {
		now = now.Add(time.Second)
		if got := r.Stores("h"); got != want {
			t.Errorf("after %d s a message is stored: %t", i+1, got)
		}
	}
}
