package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/windlass-dev/windlass/kit/disruption"
)

// retryEviction is when a refused eviction is worth another try, as Kubernetes answers it.
const retryEviction = 10 * time.Second

// errNothingToPay ends a change of a budget that need not change after all.
var errNothingToPay = errors.New("nothing to pay")

// evictTries is how often an eviction is decided again because the pod changed while it was decided.
const evictTries = 5

// EvictPod deletes a pod if the disruption budgets allow it. The budget pays in one compare-and-swap before the pod is
// touched, so that two evictions can never share what is there for one.
func (s *Pods) EvictPod(ctx context.Context, r *schedulingv1.EvictPodRequest) (*schedulingv1.EvictPodResponse, error) {
	if err := s.mayCause(ctx, r); err != nil {
		return nil, err
	}
	key := keyOf(r.GetNamespace(), r.GetName())
	uid := r.GetPreconditions().GetUid()
	for try := 1; ; try++ {
		pod, err := s.Tables.Pods.Get(ctx, key.Namespace, key.Name)
		if err != nil {
			return nil, err
		}
		if try > 1 && pod.GetMetadata().GetUid() != uid {
			return &schedulingv1.EvictPodResponse{}, nil // it went, and another has its name
		}
		if err := holds(pod, r.GetPreconditions()); err != nil {
			return nil, err
		}
		uid = pod.GetMetadata().GetUid()
		err = s.evict(ctx, pod, r)
		if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_CONFLICT && try < evictTries {
			continue
		}
		if err != nil && rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
			return nil, err
		}
		return &schedulingv1.EvictPodResponse{}, nil
	}
}

// evict has a budget pay for a pod, says in the pod's status why it goes, and deletes it. A conflict means that the pod
// changed since.
func (s *Pods) evict(ctx context.Context, pod *schedulingv1.Pod, r *schedulingv1.EvictPodRequest) error {
	dry := r.GetDryRun() == "All"
	pre, err := &metav1.Preconditions{Uid: pod.GetMetadata().GetUid()}, error(nil)
	reason, message := placement.EvictedByTaint, "Taint manager: deleting due to NoExecute taint"
	if r.GetCause() == "" {
		reason, message = evictedByRequest, "Eviction API: evicting"
		pre, err = s.pay(ctx, pod, dry)
	}
	if err != nil || dry {
		return err
	}
	runs := !disruption.Free(pod) || r.GetCause() != "" && !placement.Terminated(pod)
	if pod.GetSpec().GetNodeName() != "" && runs {
		marked, err := s.markTarget(ctx, pod, pre, reason, message)
		if err != nil {
			return err
		}
		if pre.GetResourceVersion() != "" {
			pre.ResourceVersion = marked.GetMetadata().GetResourceVersion()
		}
	}
	_, err = s.Tables.Pods.Delete(ctx, pod.GetMetadata().GetNamespace(), pod.GetMetadata().GetName(), pre,
		resource.WriteOptions{Grace: graceOf(r)})
	return err
}

// evictedByRequest is the reason of the condition DisruptionTarget of a pod that is evicted. Source: Kubernetes.
const evictedByRequest = "EvictionByEvictionAPI"

// mayCause refuses an eviction that budgets do not limit to callers who may delete the pod, which they do not limit
// either.
func (s *Pods) mayCause(ctx context.Context, r *schedulingv1.EvictPodRequest) error {
	if r.GetCause() == "" {
		return nil
	}
	caller, _ := identity.CallerFrom(ctx)
	key := keyOf(r.GetNamespace(), r.GetName())
	_, err := s.Policy.Require(caller, identity.Attributes{
		Verb: "delete", Resource: "pods", Namespace: key.Namespace, Name: key.Name,
	})
	return err
}

// leastGrace is the grace period, in seconds, that replaces 0: with 0 the object would be removed before the
// processes of the pod have ended.
const leastGrace = 1

// graceOf returns the grace period of an eviction, in seconds; nil means the pod's own.
func graceOf(r *schedulingv1.EvictPodRequest) *int32 {
	if r.GracePeriodSeconds != nil && !r.GetForce() {
		return proto.Int32(max(r.GetGracePeriodSeconds(), leastGrace))
	}
	return r.GracePeriodSeconds
}

// pay has the budget of a pod pay for its eviction, if there is one and it must. What comes back must hold when the pod
// is deleted: one that has a budget and goes without its paying, since it is not ready say, must still be as it is
// here.
func (s *Pods) pay(ctx context.Context, pod *schedulingv1.Pod, dry bool) (*metav1.Preconditions, error) {
	asItIs := &metav1.Preconditions{
		Uid:             pod.GetMetadata().GetUid(),
		ResourceVersion: pod.GetMetadata().GetResourceVersion(),
	}
	whatever := &metav1.Preconditions{Uid: asItIs.GetUid()}
	budgets := s.budgetsOf(pod)
	if len(budgets) == 0 {
		return whatever, nil
	}
	if v, why := disruption.Evict(pod, budgets); v != disruption.Spend && v != disruption.Refuse {
		return asItIs, s.refused(v, why)
	}
	key := object.KeyOf(budgets[0])
	if dry {
		b, err := s.Tables.Budgets.Get(ctx, key.Namespace, key.Name)
		if err != nil {
			return nil, err
		}
		return nil, s.refused(disruption.Evict(pod, []*schedulingv1.PodDisruptionBudget{b}))
	}
	_, err := s.Tables.Budgets.Modify(ctx, key, func(b *schedulingv1.PodDisruptionBudget) error {
		v, why := disruption.Evict(pod, []*schedulingv1.PodDisruptionBudget{b})
		switch v {
		case disruption.Delete:
			return errNothingToPay
		case disruption.Spend:
			disruption.Spent(b, pod.GetMetadata().GetName(), s.Now())
			return nil
		}
		return s.refused(v, why)
	}, resource.WriteOptions{Own: true})
	switch {
	case errors.Is(err, errNothingToPay):
		return asItIs, nil
	case rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_NOT_FOUND:
		return whatever, nil // the budget is gone, and with it its rule
	case rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_CONFLICT:
		err = rpcerr.TooMany(
			fmt.Sprintf(
				"Cannot evict pod as it would violate the pod's disruption budget. The disruption budget %s changes too fast.",
				key.Name), retryEviction)
	}
	return whatever, err
}

func (s *Pods) refused(v disruption.Verdict, why string) error {
	switch v {
	case disruption.Refuse:
		return rpcerr.TooMany(why, retryEviction)
	case disruption.Ambiguous:
		return rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION, "", why)
	}
	return nil
}

// budgetsOf returns all budgets that are for a pod.
func (s *Pods) budgetsOf(pod *schedulingv1.Pod) []*schedulingv1.PodDisruptionBudget {
	budgets := slices.Collect(s.Tables.Budgets.In(pod.GetMetadata().GetNamespace()))
	return slices.DeleteFunc(budgets, func(b *schedulingv1.PodDisruptionBudget) bool {
		sel, bad := placement.ParsePodSelector(b.GetSpec().GetSelector(), "")
		return len(bad) > 0 || !sel.Matches(labels.Set(pod.GetMetadata().GetLabels()))
	})
}

// markTarget says in a pod's status why it goes, if it is the one that pre names.
func (s *Pods) markTarget(ctx context.Context, pod *schedulingv1.Pod, pre *metav1.Preconditions, reason,
	message string,
) (*schedulingv1.Pod, error) {
	return s.Tables.Pods.Modify(ctx, object.KeyOf(pod), func(have *schedulingv1.Pod) error {
		if err := holds(have, pre); err != nil {
			return err
		}
		s.Tables.SetPodCondition(have, &schedulingv1.PodCondition{
			Type: placement.DisruptionTarget, Status: "True",
			Reason: &reason, Message: &message,
		})
		return nil
	}, resource.WriteOptions{Own: true})
}

func holds(pod *schedulingv1.Pod, pre *metav1.Preconditions) error {
	m := pod.GetMetadata()
	if u := pre.GetUid(); u != "" && u != m.GetUid() {
		return rpcerr.Conflict("Pod", m.GetName(), fmt.Sprintf("uid is %s, not %s", m.GetUid(), u))
	}
	if v := pre.GetResourceVersion(); v != "" && v != m.GetResourceVersion() {
		return rpcerr.Conflict("Pod", m.GetName(), fmt.Sprintf("resourceVersion is %s, not %s", m.GetResourceVersion(), v))
	}
	return nil
}
