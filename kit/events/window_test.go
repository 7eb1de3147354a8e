package events

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"buf.build/go/protovalidate"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/store"
)

// stopped is a recorder whose Run does not run: the test takes and flushes, and has the clock.
func stopped(t *testing.T, st *store.Store) (r *Recorder, clock *time.Time) {
	t.Helper()
	r = New("test", st, protovalidate.GlobalValidator, slog.New(slog.DiscardHandler))
	now := time.Unix(1000, 0)
	r.now = func() time.Time { return now }
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- r.table.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	if err := r.table.WaitSynced(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r, &now
}

func drain(r *Recorder) {
	for len(r.queue) > 0 {
		r.take(<-r.queue)
	}
}

func TestAWordAboutAnObjectIsWrittenOnceInTenSeconds(t *testing.T) {
	r, now := stopped(t, etcdtest.Store(t))
	m := &machinev1.Machine{Metadata: &metav1.ObjectMeta{Name: "a", Namespace: "default", Uid: "u1"}}
	happens := func(n, messages int) {
		for i := range n {
			r.Eventf(m, Warning, "DrainRequeued", "blocked by budget %d", i%messages)
		}
		drain(r)
		r.flush(t.Context())
	}
	// written returns the counts of all events, and by how many writes of etcd they came to be.
	last := int64(0)
	written := func() (string, bool) {
		var counts []int32
		newest := last
		for _, e := range r.table.All() {
			counts = append(counts, e.GetCount())
			rev, err := resource.ParseRevision(e.GetMetadata().GetResourceVersion())
			if err != nil {
				t.Fatal(err)
			}
			newest = max(newest, rev)
		}
		wrote := newest > last
		last = newest
		return fmt.Sprint(counts), wrote
	}
	expect := func(what, counts string, wrote bool) {
		t.Helper()
		if c, w := written(); c != counts || w != wrote {
			t.Errorf("%s: counts %s, written %v; want %s, %v", what, c, w, counts, wrote)
		}
	}
	happens(100, 1)
	expect("the first", "[100]", true)
	*now = now.Add(9 * time.Second)
	happens(100, 2)
	expect("within ten seconds", "[100]", false)
	*now = now.Add(time.Second)
	r.flush(t.Context())
	if c, w := written(); !w || c != "[150 50]" && c != "[50 150]" {
		t.Errorf("after ten seconds: counts %s, written %v", c, w)
	}
	*now = now.Add(writeEvery)
	r.flush(t.Context())
	*now = now.Add(writeEvery)
	r.flush(t.Context())
	if len(r.windows) != 0 || r.waiting != 0 {
		t.Errorf("%d windows and %d events are kept for nothing", len(r.windows), r.waiting)
	}
}

func TestAnUnreadableRecordHasAnEvent(t *testing.T) {
	st := etcdtest.Store(t)
	r, _ := stopped(t, st)
	st.NoteUnreadable(store.Unreadable{
		Key: "machines/default/a", Revision: 7, APIVersion: "v1", Kind: "Machine",
		Namespace: "default", Name: "a", Err: "malformed envelope",
	})
	for range 2 {
		r.unreadable()
		drain(r)
		r.flush(t.Context())
	}
	all := r.table.All()
	if len(all) != 1 || all[0].GetReason() != "UnreadableRecord" || all[0].GetInvolvedObject().GetName() != "a" ||
		all[0].GetCount() != 1 {
		t.Errorf("events = %v, want one of the record", all)
	}
}
