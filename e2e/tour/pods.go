package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// placed is how long it may take until pods run somewhere.
const placed = time.Minute

// podIs reports whether a condition of a pod is true.
func podIs(p *schedulingv1.Pod, condition string) bool {
	for _, c := range p.GetStatus().GetConditions() {
		if c.GetType() == condition {
			return c.GetStatus() == "True"
		}
	}
	return false
}

// serves reports whether a pod is ready and its deletion was not requested.
func serves(p *schedulingv1.Pod) bool {
	return podIs(p, "Ready") && p.GetMetadata().GetDeletionTimestamp() == nil
}

// asked returns when a pod's deletion was requested; the zero time if it was not.
func asked(p *schedulingv1.Pod) time.Time {
	m := p.GetMetadata()
	if m.GetDeletionTimestamp() == nil {
		return time.Time{}
	}
	return m.GetDeletionTimestamp().AsTime().Add(-time.Duration(m.GetDeletionGracePeriodSeconds()) * time.Second)
}

// running waits until just so many pods of an app are ready, besides those that are leaving, and returns them.
func (t *tour) running(ctx context.Context, app string, n int) ([]*schedulingv1.Pod, error) {
	var pods []*schedulingv1.Pod
	err := within(ctx, placed, fmt.Sprintf("%d pods of %s ready", n, app), func(ctx context.Context) (bool, string,
		error,
	) {
		all, err := t.cluster.listPods(ctx, "app="+app)
		var seen []string
		for _, p := range all {
			seen = append(seen, fmt.Sprintf("%s on %q %s", p.GetMetadata().GetName(), p.GetSpec().GetNodeName(), p.GetStatus()))
		}
		pods = slices.DeleteFunc(all, func(p *schedulingv1.Pod) bool { return p.GetMetadata().GetDeletionTimestamp() != nil })
		return len(pods) == n && !slices.ContainsFunc(pods, func(p *schedulingv1.Pod) bool { return !serves(p) }),
			strings.Join(seen, "\n"), err
	})
	return pods, err
}

// nodesOf returns the names of the nodes that pods are on, each once, in order.
func nodesOf(pods []*schedulingv1.Pod) []string {
	var out []string
	for _, p := range pods {
		out = append(out, p.GetSpec().GetNodeName())
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// workerNodes returns the names of the workers' nodes that take pods, in order.
func (t *tour) workerNodes(ctx context.Context) ([]string, error) {
	nodes, err := t.cluster.listNodes(ctx)
	nodes = slices.DeleteFunc(nodes, func(n *nodev1.Node) bool {
		_, worker := n.GetMetadata().GetLabels()[workerLabel]
		return !worker || !isReady(n) || n.GetSpec().GetUnschedulable() || len(n.GetSpec().GetTaints()) > 0
	})
	return names(nodes), err
}

// podWatch records what happens to some pods from its beginning on.
type podWatch struct {
	mu     sync.Mutex
	pods   map[string]*schedulingv1.Pod // that there are, by uid
	asked  map[string]time.Time         // when a pod's deletion was first requested, by uid
	gone   map[string]bool              // by uid
	fewest map[string]int               // fewest pods that were ready at any time, of the apps that are guarded
}

// watchPods watches the pods that a selector of labels matches until ctx ends. The ready pods of some apps are counted
// all the time.
func (t *tour) watchPods(ctx context.Context, g *errgroup.Group, selector string, guarded ...string) (*podWatch,
	error,
) {
	list, err := t.cluster.pods.ListPods(ctx, &schedulingv1.ListPodsRequest{
		Namespace:     podNamespace,
		LabelSelector: selector,
	}, patient)
	if err != nil {
		return nil, err
	}
	w := &podWatch{
		pods: map[string]*schedulingv1.Pod{}, asked: map[string]time.Time{}, gone: map[string]bool{},
		fewest: map[string]int{},
	}
	for _, p := range list.GetItems() {
		w.add(p, false)
	}
	for _, app := range guarded {
		w.fewest[app] = w.ready(app)
	}
	g.Go(func() error {
		return follow(ctx, "pods", list.GetMetadata().GetResourceVersion(),
			func(ctx context.Context, after string) (grpc.ServerStreamingClient[schedulingv1.WatchPodsResponse], error) {
				return t.cluster.pods.WatchPods(ctx, &schedulingv1.WatchPodsRequest{
					Namespace: podNamespace, LabelSelector: selector,
					ResourceVersion: after,
				}, patient)
			}, w.handle)
	})
	return w, nil
}

// handle takes what came at one moment: only after all of it the pods are counted.
func (w *podWatch) handle(r *schedulingv1.WatchPodsResponse) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range r.GetEvents() {
		w.add(e.GetObject(), e.GetType() == gone)
	}
	for app, n := range w.fewest {
		w.fewest[app] = min(n, w.ready(app))
	}
	return r.GetResourceVersion()
}

func (w *podWatch) add(p *schedulingv1.Pod, gone bool) {
	uid := p.GetMetadata().GetUid()
	if _, known := w.asked[uid]; !known && !asked(p).IsZero() {
		w.asked[uid] = asked(p)
	}
	if gone {
		w.gone[uid] = true
		delete(w.pods, uid)
		return
	}
	w.pods[uid] = p
}

// ready counts the pods of an app that serve.
func (w *podWatch) ready(app string) int {
	n := 0
	for _, p := range w.pods {
		if p.GetMetadata().GetLabels()["app"] == app && serves(p) {
			n++
		}
	}
	return n
}

// leaving returns when a pod's deletion was first requested, the zero time if it was not, and whether it is gone.
func (w *podWatch) leaving(p *schedulingv1.Pod) (asked time.Time, gone bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	uid := p.GetMetadata().GetUid()
	return w.asked[uid], w.gone[uid]
}

// leftAfter waits until a pod's deletion is requested and returns how long that was after a time. Objects are marked in
// whole seconds, so the time is cut to such: who leaves at least three seconds after it is then never found to leave
// earlier.
func (w *podWatch) leftAfter(ctx context.Context, p *schedulingv1.Pod, limit time.Duration,
	since time.Time,
) (time.Duration, error) {
	var at time.Time
	err := within(ctx, limit, "pod "+p.GetMetadata().GetName()+" being deleted",
		func(context.Context) (bool, string, error) {
			at, _ = w.leaving(p)
			return !at.IsZero(), "it was not", nil
		})
	return at.Sub(since.Truncate(time.Second)), err
}

// disappears waits until a pod is gone.
func (w *podWatch) disappears(ctx context.Context, p *schedulingv1.Pod, limit time.Duration) error {
	return within(ctx, limit, "pod "+p.GetMetadata().GetName()+" gone", func(context.Context) (bool, string, error) {
		_, gone := w.leaving(p)
		return gone, "it is there", nil
	})
}

// never says that an app never had fewer ready pods than n.
func (w *podWatch) never(app string, n int) fact {
	w.mu.Lock()
	defer w.mu.Unlock()
	return expect(w.fewest[app] >= n, fmt.Sprintf("never fewer than %d ready pods of %s", n, app), "%d at some time",
		w.fewest[app])
}
