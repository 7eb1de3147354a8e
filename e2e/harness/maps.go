package harness

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

const (
	mapEvery   = 50 * time.Millisecond
	mapLimit   = 20 * time.Second // of one call
	moreMaps   = 20               // that Progress waits for
	mapsInside = "default"        // namespace
)

// MapWriter creates a ConfigMap every 50 ms at one gateway, each by one call that is not repeated, and notes what was
// acknowledged and which calls failed.
type MapWriter struct {
	t    *testing.T
	maps schedulingv1.ConfigMapServiceClient
	stop context.CancelFunc
	done chan struct{}

	mu      sync.Mutex
	made    []string
	failed  []string
	longest time.Duration
	last    time.Time     // when the last object was acknowledged
	gap     time.Duration // the longest time between two acknowledgements
}

// WriteMaps starts a writer at the gateway of a connection. The names of its objects begin with prefix. It stops with
// End, or when the test ends.
func WriteMaps(t *testing.T, conn grpc.ClientConnInterface, prefix string) *MapWriter {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &MapWriter{t: t, maps: schedulingv1.NewConfigMapServiceClient(conn), stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		tick := time.NewTicker(mapEvery)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			w.create(fmt.Sprintf("%s-%d", prefix, i))
		}
	}()
	return w
}

func (w *MapWriter) create(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), mapLimit) // a call that was begun is finished
	defer cancel()
	began := time.Now()
	_, err := w.maps.CreateConfigMap(ctx, &schedulingv1.CreateConfigMapRequest{
		ConfigMap: &schedulingv1.ConfigMap{Metadata: &metav1.ObjectMeta{Name: name, Namespace: mapsInside}},
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.longest = max(w.longest, time.Since(began))
	if err != nil {
		w.failed = append(w.failed, fmt.Sprintf("%s: %v", name, err))
		return
	}
	now := time.Now()
	if !w.last.IsZero() {
		w.gap = max(w.gap, now.Sub(w.last))
	}
	w.last = now
	w.made = append(w.made, name)
}

// Gap returns the longest time between two acknowledgements so far, some 50 ms of which are the writer's pause.
func (w *MapWriter) Gap() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last.IsZero() {
		return 0
	}
	return max(w.gap, time.Since(w.last))
}

func (w *MapWriter) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.made)
}

// Progress waits until 20 more objects are acknowledged.
func (w *MapWriter) Progress() {
	w.t.Helper()
	from := w.count()
	saw, ok := await(w.t.Context(), leastPatience, func(context.Context) (bool, string, error) {
		n := w.count() - from
		return n >= moreMaps, fmt.Sprintf("%d of %d", n, moreMaps), nil
	})
	if !ok {
		w.t.Fatalf("after %s still waiting for %d more objects: %s", leastPatience, moreMaps, saw)
	}
}

// End stops the writer, logs how long its longest call took, and returns what was acknowledged and which calls failed.
func (w *MapWriter) End() (made, failed []string) {
	w.t.Helper()
	w.stop()
	<-w.done
	w.t.Logf("%d objects made, %d calls failed, the longest call took %d ms", len(w.made), len(w.failed),
		w.longest.Milliseconds())
	return w.made, w.failed
}

// HasMaps fails the test unless the gateway of a connection, that of a host, has all that was acknowledged.
func HasMaps(t *testing.T, host string, conn grpc.ClientConnInterface, made []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), mapLimit)
	defer cancel()
	list, err := schedulingv1.NewConfigMapServiceClient(conn).ListConfigMaps(ctx,
		&schedulingv1.ListConfigMapsRequest{Namespace: mapsInside})
	if err != nil {
		t.Fatalf("list at %s: %v", host, err)
	}
	have := map[string]bool{}
	for _, m := range list.GetItems() {
		have[m.GetMetadata().GetName()] = true
	}
	for _, name := range made {
		if !have[name] {
			t.Errorf("%s was acknowledged and is not at %s", name, host)
		}
	}
}
