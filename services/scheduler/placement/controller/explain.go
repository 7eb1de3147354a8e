package controller

import (
	"context"
	"strconv"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"

	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
)

// explainPatience is how long an explanation waits for the state that includes the pod as its caller knows it. While
// etcd does not take writes, the state before is explained.
const explainPatience = time.Second

// Explain evaluates a pod by the state that pods are placed by. supposed is a policy to use in place of the live one,
// nil for none. ask has the extenders of the pod answer an inquiry; if it is nil, they are not asked. leads is false if
// this process does not place pods. Pods are placed all the time but for the evaluation of the nodes; one explanation
// is made at a time, so that many of them do not hold placements up, and none waits for the extenders of another.
func (s *Scheduler) Explain(ctx context.Context, supposed *plan.Profile, pod *schedulingv1.Pod,
	ask func(*plan.Inquiry),
) (out *schedulingv1.ExplainPodResponse, leads bool, err error) {
	if !s.catchUp(ctx, pod) {
		return nil, false, nil
	}
	var in *plan.Inquiry
	if ask != nil {
		leads, err = s.alone(ctx, func() bool {
			return s.locked(func() { in = s.queue.Inquire(supposed, pod) })
		})
		if !leads || err != nil {
			return nil, leads, err
		}
	}
	if in != nil {
		ask(in)
	}
	leads, err = s.alone(ctx, func() bool {
		var e *plan.Explanation
		var seen int64
		if !s.locked(func() { e, seen = s.queue.Explain(supposed, pod, in), s.seen }) {
			return false
		}
		out = e.Response()
		out.ComputedFrom, out.ResourceVersion = "Leader", strconv.FormatInt(seen, 10)
		return true
	})
	return out, leads, err
}

// alone returns what f does, which is called while no other call of it runs.
func (s *Scheduler) alone(ctx context.Context, f func() (leads bool)) (leads bool, err error) {
	select {
	case s.explaining <- struct{}{}:
		defer func() { <-s.explaining }()
		return f(), nil
	case <-ctx.Done():
		return true, ctx.Err()
	}
}

// locked calls f while no pod is placed, unless this process does not place pods.
func (s *Scheduler) locked(f func()) (leads bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queue != nil {
		f()
	}
	return s.queue != nil
}

// catchUp waits until pods are placed with a pod as it is, and with the changes of other objects so far, for some time.
// It reports whether this process places pods.
func (s *Scheduler) catchUp(ctx context.Context, pod *schedulingv1.Pod) (leads bool) {
	revision, err := resource.ParseRevision(pod.GetMetadata().GetResourceVersion())
	stored := err == nil // a pod that is not stored has no revision
	caughtUp := false
	leads = s.locked(func() {
		caughtUp = !stored || s.seen >= revision && !s.queue.Settling(object.KeyOf(pod))
	})
	if !leads || caughtUp && !s.news.waits() {
		return leads
	}
	ctx, cancel := context.WithTimeout(ctx, explainPatience)
	defer cancel()
	if !stored || s.tables.Pods.WaitRevision(ctx, revision) == nil {
		_ = s.observed(ctx) // or the answer says the revision that it is of
	}
	return leads
}
