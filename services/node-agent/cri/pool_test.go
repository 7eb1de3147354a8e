package cri_test

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/kit/critest"
	"github.com/windlass-dev/windlass/services/node-agent/cri"
)

func TestPoolsEndAtOnceAndOthersAreSpared(t *testing.T) {
	c := critest.Start(t)
	b := newBench(t, c)
	r := begin(t, c)
	stubborn := b.spec("pod.a", "stubborn", "ignore", "/notes/stubborn")
	stubborn.Grace = time.Hour
	left := b.spec("pod.b", "left", "wait", "/notes/left")
	left.Grace = time.Hour // it ends at once nevertheless
	ensure(t, r, stubborn)
	ensure(t, r, left)
	awaitStatus(t, r, stubborn.Name, runs)
	awaitStatus(t, r, left.Name, runs)
	await(t, "starts", func() bool { return b.starts("stubborn") == 1 && b.starts("left") == 1 })

	other, err := cri.New(cri.Config{Endpoint: c.Endpoint, Owner: "other", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- other.Run(ctx) }()
	<-other.Active()
	if got, err := other.Recorded(ctx); err != nil || len(got) > 0 {
		t.Errorf("of another owner: %v, %v", got, err)
	}
	for _, pool := range []string{"pod.a", "pod.b"} {
		if err := other.EndPool(ctx, pool); err != nil {
			t.Error(err)
		}
	}
	if err := other.Stop(ctx, left.Name); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := has(t, c); !slices.Equal(got, []string{"pod.a.stubborn 1 RUNNING", "pod.b.left 1 RUNNING"}) {
		t.Fatalf("the runtime has %v", got)
	}

	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := r.Stop(short, stubborn.Name); err == nil { // its grace period has begun
		t.Error("a container that ignores SIGTERM was stopped")
	}
	if err := r.EndPool(t.Context(), "pod.a"); err != nil {
		t.Error(err)
	}
	r.end()
	r = begin(t, c)
	<-r.Active()
	if got, err := r.Recorded(t.Context()); err != nil || !slices.Equal(got, []string{left.Name}) {
		t.Errorf("recorded: %v, %v", got, err)
	}
	if err := r.Stop(t.Context(), left.Name); err != nil {
		t.Error(err)
	}
	if err := r.Stop(t.Context(), "pod.none.main"); err != nil {
		t.Error(err)
	}
	if err := r.EndPool(t.Context(), "pod.b"); err != nil {
		t.Error(err)
	}
	if got, err := r.Recorded(t.Context()); err != nil || len(got) > 0 {
		t.Errorf("recorded: %v, %v", got, err)
	}
	// What was stopped can be ensured again, with the same serial.
	ensure(t, r, left)
	awaitStatus(t, r, left.Name, runs)
	await(t, "second start", func() bool { return b.starts("left") == 2 })
	now, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Stop(now, left.Name); err == nil {
		t.Error("it has ended at once")
	}
	ensure(t, r, left)
	await(t, "third start", func() bool { return b.starts("left") == 3 })
	awaitStatus(t, r, left.Name, runs)
}

func TestASandboxThatCannotBeMadeIsWaitedFor(t *testing.T) {
	c := critest.Start(t)
	b := newBench(t, c)
	r := begin(t, c)
	spec := b.spec("pod.a", "main", "wait")
	spec.Sandbox.LogDir = "/proc/self/none"
	ensure(t, r, spec)
	st := awaitStatus(t, r, spec.Name, func(st cri.Status) bool { return st.Waiting != "" })
	if st.Final || st.Running {
		t.Errorf("status %+v", st)
	}
	begun := time.Now()
	if err := r.Stop(t.Context(), spec.Name); err != nil || time.Since(begun) > 2*time.Second {
		t.Errorf("%v after %v", err, time.Since(begun))
	}
	if err := r.EndPool(t.Context(), spec.Pool); err != nil {
		t.Error(err)
	}
	awaitNoGroup(t, c, spec.Pool)
}

// TestAContainerThatIsNotStartedYetCanEnd has a pod go whose sandbox the runtime cannot make.
func TestAContainerThatIsNotStartedYetCanEnd(t *testing.T) {
	c := critest.Start(t)
	b := newBench(t, c)
	r := begin(t, c)
	for name, end := range map[string]func(string) error{"pod.a": r.Ask, "pod.b": r.Kill} {
		spec := b.spec(name, "main", "wait")
		spec.Sandbox.LogDir = "/proc/self/none"
		ensure(t, r, spec)
		awaitStatus(t, r, spec.Name, func(st cri.Status) bool { return st.Waiting != "" })
		if err := end(spec.Name); !isNoContainer(err) {
			t.Errorf("%s: %v", spec.Name, err)
		}
		if st := awaitStatus(t, r, spec.Name, final); st.LastError != nil || st.Exit.Code != 137 || st.Waiting != "" {
			t.Errorf("status %+v", st)
		}
	}
	late := b.spec("pod.c", "main", "wait", "/notes/late")
	c.Freeze()
	ensure(t, r, late)
	if err := r.Kill(late.Name); !isNoContainer(err) {
		t.Errorf("%s: %v", late.Name, err)
	}
	c.Thaw()
	awaitStatus(t, r, late.Name, final)
	if n := b.starts("late"); n != 0 || len(has(t, c)) != 0 {
		t.Errorf("%d starts, the runtime has %v", n, has(t, c))
	}
	late.Serial = 2
	ensure(t, r, late)
	awaitStatus(t, r, late.Name, runs)
}
