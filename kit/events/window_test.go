package events

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	"github.com/prometheus/client_golang/prometheus"

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

// flush writes what is due.
func flush(t *testing.T, r *Recorder) {
	t.Helper()
	r.flush(t.Context())
	r.wrote()
}

func drain(r *Recorder) {
	for _, e := range r.queue.take() {
		r.take(e)
	}
}

func TestAnEventNamesWhoDidWhatItReports(t *testing.T) {
	r, _ := stopped(t, etcdtest.Store(t))
	m := &machinev1.Machine{Metadata: &metav1.ObjectMeta{Name: "a", Namespace: "default", Uid: "u1"}}
	From(r, "my-scheduler").Event(m, Normal, "Scheduled", "assigned")
	From(r, "").Event(m, Normal, "Other", "by the service")
	drain(r)
	flush(t, r)
	if err := r.table.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, e := range r.table.All() {
		got[e.GetReason()] = e.GetSource().GetComponent() + " " + e.GetReportingComponent()
	}
	if got["Scheduled"] != "my-scheduler my-scheduler" || got["Other"] != "test test" {
		t.Errorf("events by %v", got)
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
		flush(t, r)
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
	flush(t, r)
	if c, w := written(); !w || c != "[150 50]" && c != "[50 150]" {
		t.Errorf("after ten seconds: counts %s, written %v", c, w)
	}
	*now = now.Add(writeEvery)
	flush(t, r)
	*now = now.Add(writeEvery)
	flush(t, r)
	if len(r.windows) != 0 || r.waiting != 0 {
		t.Errorf("%d windows and %d events are kept for nothing", len(r.windows), r.waiting)
	}
}

// An event occurs again while old ones are removed, after it was found to be old.
func TestAnEventThatOccursAgainIsNotSwept(t *testing.T) {
	r, now := stopped(t, etcdtest.Store(t))
	m := &machinev1.Machine{Metadata: &metav1.ObjectMeta{Name: "a", Namespace: "default", Uid: "u1"}}
	for _, reason := range []string{"Again", "Old"} {
		r.Event(m, Normal, reason, "it happened")
	}
	drain(r)
	flush(t, r)
	*now = now.Add(keepFor + time.Minute)
	old := r.old()
	r.Event(m, Normal, "Again", "it happened")
	drain(r)
	flush(t, r)
	if len(old) != 2 {
		t.Fatalf("%d events are old, want 2", len(old))
	}
	for _, e := range old {
		if err := r.remove(t.Context(), e); err != nil {
			t.Error(err)
		}
	}
	if err := r.table.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all := r.table.All(); len(all) != 1 || all[0].GetReason() != "Again" || all[0].GetCount() != 2 {
		t.Errorf("the events are %v, want the one that occurred again", all)
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
		flush(t, r)
	}
	all := r.table.All()
	if len(all) != 1 || all[0].GetReason() != "UnreadableRecord" || all[0].GetInvolvedObject().GetName() != "a" ||
		all[0].GetCount() != 1 {
		t.Errorf("events = %v, want one of the record", all)
	}
}

// lostOf returns what the metric of a recorder counts.
func lostOf(t *testing.T, r *Recorder) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(r)
	families, err := registry.Gather()
	if err != nil || len(families) != 1 {
		t.Fatalf("%d metrics (%v), want one", len(families), err)
	}
	out := map[string]float64{}
	for _, m := range families[0].GetMetric() {
		out[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
	}
	return out
}

func TestLostEventsAreCountedAndLoggedOnceAMinute(t *testing.T) {
	r, now := stopped(t, etcdtest.Store(t))
	var out strings.Builder
	r.log = slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn}))
	machine := func(name string) *machinev1.Machine {
		return &machinev1.Machine{Metadata: &metav1.ObjectMeta{Name: name, Namespace: "default", Uid: name}}
	}
	for i := range perReason + 3 {
		r.Eventf(machine("talks"), Normal, "Step", "step %d", i)
	}
	drain(r)
	r.reportLost()
	if out.Len() > 0 {
		t.Errorf("the limit of an object is logged: %s", out.String())
	}
	for i := range queueMost + 7 {
		r.Event(machine(fmt.Sprint("m-", i)), Normal, "Made", "made")
	}
	drain(r) // perReason of them are beyond waitingMost
	r.reportLost()
	r.reportLost()
	if want := fmt.Sprintf("count=%d total=%[1]d", 7+perReason); strings.Count(out.String(), "\n") != 1 ||
		!strings.Contains(out.String(), want) {
		t.Errorf("logged %q, want %s once", out.String(), want)
	}
	r.flush(canceled()) // etcd takes nothing
	r.wrote()
	*now = now.Add(logEvery)
	r.reportLost()
	if n := strings.Count(out.String(), "\n"); n != 2 {
		t.Errorf("logged %d times, want twice: %s", n, out.String())
	}
	want := map[string]float64{"limit": 3, "overload": 7 + perReason, "unwritten": waitingMost}
	if got := lostOf(t, r); !maps.Equal(got, want) {
		t.Errorf("lost %v, want %v", got, want)
	}
}

// Events come faster than etcd takes them: those of a burst are stored all the same.
func TestABurstOfEventsIsStoredWhileOthersAreWritten(t *testing.T) {
	const n = 3000
	r := New("test", etcdtest.Store(t), protovalidate.GlobalValidator, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	for i := range n {
		r.Event(&machinev1.Machine{Metadata: &metav1.ObjectMeta{
			Name: fmt.Sprint("m-", i), Namespace: "default", Uid: fmt.Sprint("u-", i),
		}}, Normal, "Made", "made")
	}
	tick := time.NewTicker(5 * time.Millisecond) // asking all the time would take the processor from the recorder
	defer tick.Stop()
	for end := time.Now().Add(2 * time.Minute); len(r.table.All()) < n; <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%d of %d events were stored; lost: %v", len(r.table.All()), n, lostOf(t, r))
		}
	}
	if lost := lostOf(t, r); lost["overload"] != 0 {
		t.Errorf("lost %v", lost)
	}
}

func TestARecorderOfManyObjectsIsBounded(t *testing.T) {
	r, now := stopped(t, etcdtest.Store(t))
	for i := range wordsMost + 5000 {
		r.Event(&machinev1.Machine{Metadata: &metav1.ObjectMeta{Name: fmt.Sprint("m-", i), Namespace: "default"}},
			Normal, "Made", "made")
		if i%1000 == 0 {
			drain(r)
			*now = now.Add(time.Millisecond)
			r.flush(canceled()) // etcd takes nothing
			r.wrote()
		}
	}
	drain(r)
	if len(r.windows) > wordsMost || len(r.budgets) > wordsMost || r.waiting > waitingMost {
		t.Errorf("%d windows, %d budgets and %d events are kept", len(r.windows), len(r.budgets), r.waiting)
	}
	if len(r.pending) == 0 {
		t.Error("nothing waits")
	}
}

// canceled returns a context in which nothing is written.
func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
