package controller

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// ask asks the first plan.AtOnce questions concurrently. Every question gets an answer: an error is an answer, too.
func (c *Controller) ask(ctx context.Context, questions []plan.Question) []plan.Answered {
	out := make([]plan.Answered, min(len(questions), plan.AtOnce))
	var group errgroup.Group
	for i := range out {
		group.Go(func() error {
			out[i] = plan.Answered{Question: questions[i], Answer: c.answer(ctx, questions[i])}
			return nil
		})
	}
	_ = group.Wait()
	return out
}

func (c *Controller) answer(ctx context.Context, q plan.Question) plan.Answer {
	a, err := plan.Answer{Code: plan.Granted}, error(nil)
	switch q.Verb {
	case plan.AcquirePermit:
		a.Code, err = c.permit(ctx, q)
	case plan.ListPods:
		a.Pods, err = c.Evictor.On(ctx, q.Object.GetName(), q.Revision)
	case plan.EvictPod:
		err = c.Evictor.Evict(ctx, q.Pod, q.Grace, q.Force)
	case plan.DeletePod:
		err = c.Evictor.Delete(ctx, q.Pod)
	}
	a.At = time.Now().UTC()
	switch status.Code(err) {
	case codes.OK:
		return a
	case codes.Unavailable, codes.DeadlineExceeded:
		a.Code = plan.Away
	default:
		a.Code = plan.Refused
	}
	a.Why = status.Convert(err).Message()
	return a
}

func (c *Controller) permit(ctx context.Context, q plan.Question) (plan.Code, error) {
	held, err := c.Permits.Acquire(ctx, q.Machine, "drain")
	if held {
		return plan.Granted, err
	}
	return plan.NotNeeded, err
}
