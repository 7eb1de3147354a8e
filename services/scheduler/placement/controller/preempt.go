package controller

import (
	"context"
	"errors"
	"fmt"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
)

// evictionsAtOnce is how many victims are evicted concurrently: each is two writes, one after the other.
const evictionsAtOnce = 16

// evictVictims deletes the pods whose room others get, with their grace period. A pod whose nomination could not be
// stored gets none: its victims would leave without a record of the reason.
func (s *Scheduler) evictVictims(ctx context.Context, p plan.Plan, refused map[object.Key]plan.Result) {
	var outcomes []plan.Outcome
	for _, a := range p.Do {
		if a.Verb != plan.EvictVictims {
			continue
		}
		o := plan.Outcome{Action: a}
		if result, is := refused[object.KeyOf(a.Pod)]; is {
			o.Result = result
		} else if err := s.evictAll(ctx, a); err != nil {
			o.Result = plan.Unwritten
			s.log.WarnContext(ctx, "victims not evicted", "pod", object.KeyOf(a.Pod).String(), "node", a.Preempts.Node,
				"error", err)
		}
		outcomes = append(outcomes, o)
	}
	if len(outcomes) > 0 {
		s.done(outcomes)
	}
}

func (s *Scheduler) evictAll(ctx context.Context, a plan.Action) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(evictionsAtOnce)
	for _, v := range a.Preempts.Victims {
		group.Go(func() error { return s.evict(ctx, v, a) })
	}
	return group.Wait()
}

// evict stores on a pod why it goes, and deletes it. A pod that is gone, or terminates already, is no error.
func (s *Scheduler) evict(ctx context.Context, v plan.Victim, a plan.Action) error {
	by := fmt.Sprintf("Preempted by pod %s (priority %d) on node %s", object.KeyOf(a.Pod), a.Pod.GetSpec().GetPriority(),
		a.Preempts.Node)
	own := resource.WriteOptions{Own: true}
	victim, err := s.tables.Pods.Modify(ctx, v.Key, func(pod *schedulingv1.Pod) error {
		if pod.GetMetadata().GetUid() != v.UID || object.Deleting(pod) || pod.GetSpec().GetNodeName() != a.Preempts.Node {
			return errSettled
		}
		s.tables.SetPodCondition(pod, &schedulingv1.PodCondition{
			Type: placement.DisruptionTarget, Status: "True", Reason: proto.String("PreemptionByScheduler"), Message: &by,
		})
		return nil
	}, own)
	if err == nil {
		_, err = s.tables.Pods.Delete(ctx, v.Key.Namespace, v.Key.Name, &metav1.Preconditions{Uid: v.UID}, own)
	}
	switch reason := rpcerr.Reason(err); {
	case err == nil:
		s.events.Event(victim, "Normal", "Preempted", by)
		return nil
	case errors.Is(err, errSettled), reason == metav1.ErrorReason_ERROR_REASON_NOT_FOUND:
		return nil
	}
	return fmt.Errorf("evict pod %s: %w", v.Key, err)
}
