package controller

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"

	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
)

// Bind has the loop that places pods decide on bindings between two of its own decisions, so that they never overcommit
// a node together. The results are in the order of bindings. It fails if this process does not place pods; the error of
// ctx means that the results are not known.
func (s *Scheduler) Bind(ctx context.Context, bindings []plan.Request) ([]resource.Written[*schedulingv1.Pod], error) {
	if len(bindings) == 0 {
		return nil, nil
	}
	a := &asked{ctx: ctx, bindings: bindings, done: make(chan struct{})}
	if !s.asked.add(a) {
		return nil, rpcerr.Unavailable("this process does not place pods, or has too many bindings to decide on")
	}
	s.loop.Add(queueKey)
	select {
	case <-a.done:
		if a.out == nil {
			return nil, rpcerr.Unavailable("this process places pods no more")
		}
		return a.out, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// mostAsked bounds the calls of Bind that wait.
const mostAsked = 4096

// asked is one call of Bind.
type asked struct {
	ctx      context.Context
	bindings []plan.Request
	done     chan struct{}                         // closed when out is set
	out      []resource.Written[*schedulingv1.Pod] // nil if there was no decision
}

// asks holds the calls of Bind until the loop takes them. The zero asks is closed, as that of a process that does not
// lead. It is safe for concurrent use.
type asks struct {
	mu    sync.Mutex
	open  bool
	calls []*asked
}

// add reports whether the call will be answered.
func (a *asks) add(call *asked) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.open || len(a.calls) >= mostAsked {
		return false
	}
	a.calls = append(a.calls, call)
	return true
}

// take returns the calls since the last time, and opens a.
func (a *asks) take() []*asked {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open = true
	out := a.calls
	a.calls = nil
	return out
}

// close ends all calls without a decision.
func (a *asks) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open = false
	for _, call := range a.calls {
		close(call.done)
	}
	a.calls = nil
}

// grant decides on the bindings that were asked for and stores those that are granted.
func (s *Scheduler) grant(ctx context.Context) {
	var calls []*asked
	var requests []plan.Request
	for _, call := range s.asked.take() {
		if call.ctx.Err() != nil { // the caller does not wait any more, and may have asked again
			close(call.done)
			continue
		}
		calls = append(calls, call)
		requests = append(requests, call.bindings...)
	}
	if len(calls) == 0 {
		return
	}
	out := make([]resource.Written[*schedulingv1.Pod], 0, len(requests))
	var granted []plan.Request
	var at []int
	s.mu.Lock()
	refusals := s.queue.Grant(requests)
	s.mu.Unlock()
	for _, call := range calls {
		for _, b := range call.bindings {
			n := len(out)
			out = append(out, resource.Written[*schedulingv1.Pod]{Err: refused(b, refusals[n])})
			if refusals[n].Granted() {
				granted, at = append(granted, b), append(at, n)
			}
		}
	}
	for i, w := range s.writeGranted(ctx, granted) {
		out[at[i]] = w
	}
	for _, call := range calls {
		call.out, out = out[:len(call.bindings)], out[len(call.bindings):]
		close(call.done)
	}
}

// writeGranted stores bindings and gives the queue the outcomes.
func (s *Scheduler) writeGranted(ctx context.Context, granted []plan.Request) []resource.Written[*schedulingv1.Pod] {
	if len(granted) == 0 {
		return nil
	}
	keys := make([]object.Key, len(granted))
	wanted := map[object.Key]plan.Request{} // a pod is granted once
	for i, b := range granted {
		keys[i] = object.KeyOf(b.Pod)
		wanted[keys[i]] = b
	}
	written := s.tables.Pods.ModifyAll(ctx, keys, func(pod *schedulingv1.Pod) error {
		return s.bindAsked(wanted[object.KeyOf(pod)], pod)
	})
	caughtUp := sync.OnceValue(func() error { return s.tables.Pods.CatchUp(ctx) })
	outcomes := make([]plan.Outcome, len(granted))
	for i, w := range written {
		o := plan.Outcome{
			Action: plan.Action{Verb: plan.BindPod, Decision: plan.Decision{Pod: granted[i].Pod, Node: granted[i].Node}},
			Result: resultOf(plan.BindPod, w.Err), Now: w.Object,
		}
		if o.Result != plan.Written {
			if o.Result == plan.Changed && caughtUp() != nil {
				o.Result = plan.Unwritten
			}
			o.Now, _ = s.tables.Pods.Lookup(keys[i].Namespace, keys[i].Name)
		}
		outcomes[i] = o
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue.Bound(time.Now(), outcomes)
	return written
}

// bindAsked binds a pod that still is the one that the binding is for.
func (s *Scheduler) bindAsked(b plan.Request, pod *schedulingv1.Pod) error {
	m := pod.GetMetadata()
	if b.ResourceVersion != "" && b.ResourceVersion != m.GetResourceVersion() {
		return rpcerr.Conflict("Pod", m.GetName(), fmt.Sprintf("resourceVersion is %s, not %s", m.GetResourceVersion(),
			b.ResourceVersion))
	}
	return s.tables.Bind(pod, cmp.Or(b.UID, b.Pod.GetMetadata().GetUid()), b.Node)
}

// refused returns the error of a refusal, or nil.
func refused(b plan.Request, r plan.Refusal) error {
	name := b.Pod.GetMetadata().GetName()
	switch {
	case r.NoNode:
		return rpcerr.NotFoundField("Node", b.Node, "nodeName")
	case r.Stale != "":
		return rpcerr.Conflict("Pod", name, r.Stale)
	case r.Unfit != "":
		return rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION, "nodes/"+b.Node,
			fmt.Sprintf("pod %q does not fit on node %q: %s", name, b.Node, r.Unfit))
	}
	return nil
}
