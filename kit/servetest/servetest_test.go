package servetest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/servetest"
)

// recorder is a test that keeps its failures to itself.
type recorder struct {
	testing.TB
	failures []string
}

func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func TestAWaitInVainSaysWhatIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{TB: t}
		start := time.Now()
		var group sync.WaitGroup
		group.Go(func() { servetest.Await(r, func() string { return "a node" }) })
		group.Wait()
		if waited := time.Since(start); waited != 2*time.Minute {
			t.Errorf("waited for %v, want 2m0s", waited)
		}
		if diff := cmp.Diff([]string{"waited in vain: a node"}, r.failures); diff != "" {
			t.Errorf("failures (-want +got):\n%s", diff)
		}
	})
}

func TestAProcessThatFailsFailsTheTest(t *testing.T) {
	r := &recorder{TB: t}
	stop := servetest.Run(r, servetest.New(t).Process(serve.Config{Name: "machine-api"}), func(context.Context) error {
		return errors.New("broken")
	})
	stop()
	if diff := cmp.Diff([]string{"Run: broken"}, r.failures); diff != "" {
		t.Errorf("failures (-want +got):\n%s", diff)
	}
}
