package systemd

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// writer creates a ConfigMap every 50 ms at the gateway of a host, and notes what was acknowledged and what failed.
type writer struct {
	t    *testing.T
	maps schedulingv1.ConfigMapServiceClient
	stop context.CancelFunc
	done chan struct{}

	mu     sync.Mutex
	made   []string
	failed []string
}

func (h *host) write(prefix string) *writer {
	h.t.Helper()
	ctx, cancel := context.WithCancel(h.t.Context())
	w := &writer{
		t: h.t, maps: schedulingv1.NewConfigMapServiceClient(h.conn), stop: cancel, done: make(chan struct{}),
	}
	go func() {
		defer close(w.done)
		tick := time.NewTicker(50 * time.Millisecond)
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

func (w *writer) create(name string) {
	ctx, cancel := call()
	defer cancel()
	_, err := w.maps.CreateConfigMap(ctx, &schedulingv1.CreateConfigMapRequest{
		ConfigMap: &schedulingv1.ConfigMap{Metadata: &metav1.ObjectMeta{Name: name, Namespace: "default"}},
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.failed = append(w.failed, fmt.Sprintf("%s: %v", name, err))
		return
	}
	w.made = append(w.made, name)
}

func (w *writer) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.made)
}

// progress waits until 20 more objects are made.
func (w *writer) progress() {
	w.t.Helper()
	from := w.count()
	await(w.t, "20 more objects", func() string {
		if n := w.count(); n < from+20 {
			return fmt.Sprintf("%d of 20", n-from)
		}
		return ""
	})
}

// end stops the writer and returns what was acknowledged, and which calls failed.
func (w *writer) end() (made, failed []string) {
	w.stop()
	<-w.done
	return w.made, w.failed
}

// has fails the test unless the gateway of the host has all that was acknowledged.
func (h *host) has(made []string) {
	h.t.Helper()
	ctx, cancel := call()
	defer cancel()
	list, err := schedulingv1.NewConfigMapServiceClient(h.conn).ListConfigMaps(ctx,
		&schedulingv1.ListConfigMapsRequest{Namespace: "default"})
	if err != nil {
		h.t.Fatalf("list at %s: %v", h.name, err)
	}
	have := map[string]bool{}
	for _, m := range list.GetItems() {
		have[m.GetMetadata().GetName()] = true
	}
	for _, name := range made {
		if !have[name] {
			h.t.Errorf("%s was acknowledged and is not at %s", name, h.name)
		}
	}
}
