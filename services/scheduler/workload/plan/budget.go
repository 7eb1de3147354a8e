package plan

import (
	"fmt"
	"slices"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/labels"
)

const (
	// DisruptionAllowed is the condition of a budget that says whether a pod may be evicted now, with these reasons.
	DisruptionAllowed = "DisruptionAllowed"
	sufficientPods    = "SufficientPods"
	insufficientPods  = "InsufficientPods"
	syncFailed        = "SyncFailed"

	// disruptedFor is how long an eviction that was allowed is waited for before its pod counts as staying.
	disruptedFor = 2 * time.Minute
)

// BudgetView is everything that the status of a disruption budget is decided on.
type BudgetView struct {
	Now    time.Time
	Budget *schedulingv1.PodDisruptionBudget
	Pods   []*schedulingv1.Pod // of the namespace
	// Scales are the numbers of pods wanted, by the uid of the owner that manages pods. Replica sets of a deployment share
	// the scale of that.
	Scales map[string]Scale
}

// Scale is how many pods an owner wants.
type Scale struct {
	Name string // of the object that is scaled: owners of the same name count once
	Pods int
}

// BudgetPlan is what is done for a budget.
type BudgetPlan struct {
	Status *schedulingv1.PodDisruptionBudgetStatus
	Wake   time.Time // when to decide again even if nothing changes; zero means never
	Tell   []Event
}

// Budget counts what a disruption budget is for, and says how many pods may go.
func Budget(v BudgetView) BudgetPlan {
	sel := placement.PodSelector(v.Budget.GetSpec().GetSelector())
	var pods []*schedulingv1.Pod
	for _, pod := range v.Pods {
		if sel.Matches(labels.Set(pod.GetMetadata().GetLabels())) && !placement.Terminated(pod) {
			pods = append(pods, pod)
		}
	}
	p := BudgetPlan{}
	disrupted := p.disrupted(v, pods)
	healthy := 0
	for _, pod := range pods {
		if _, leaving := disrupted[pod.GetMetadata().GetName()]; !leaving && placement.Active(pod) && placement.IsReady(pod) {
			healthy++
		}
	}
	p.Status = &schedulingv1.PodDisruptionBudgetStatus{
		ObservedGeneration: proto.Int32(v.Budget.GetMetadata().GetGeneration()), DisruptedPods: disrupted,
		CurrentHealthy: number(healthy),
	}
	expected, desired, err := goals(v, pods)
	if err != nil {
		p.fail(v, err)
		return p
	}
	allowed := max(0, healthy-desired)
	if expected <= 0 {
		allowed = 0
	}
	p.Status.ExpectedPods, p.Status.DesiredHealthy, p.Status.DisruptionsAllowed = number(expected), number(desired),
		number(allowed)
	p.judge(v, expected, desired)
	return p
}

// disrupted returns the evictions that were allowed and are still waited for.
func (p *BudgetPlan) disrupted(v BudgetView, pods []*schedulingv1.Pod) map[string]*timestamppb.Timestamp {
	out := map[string]*timestamppb.Timestamp{}
	for _, pod := range pods {
		name := pod.GetMetadata().GetName()
		at := v.Budget.GetStatus().GetDisruptedPods()[name]
		if at == nil || object.Deleting(pod) {
			continue
		}
		end := at.AsTime().Add(disruptedFor)
		if !v.Now.Before(end) {
			p.Tell = append(p.Tell, Event{
				"Warning", "NotDeleted", fmt.Sprintf("Pod %s was expected to be deleted by an eviction and was not", name),
			})
			continue
		}
		out[name] = at
		p.Wake = sooner(p.Wake, end)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// goals returns how many pods there should be, and how many of them must be healthy.
func goals(v BudgetView, pods []*schedulingv1.Pod) (expected, desired int, err error) {
	spec := v.Budget.GetSpec()
	least, most := spec.GetMinAvailable(), spec.GetMaxUnavailable()
	if most == nil && least != nil && !percentage(least) {
		return len(pods), share(least, len(pods), true), nil
	}
	if expected, err = wantedPods(v, pods); err != nil {
		return 0, 0, err
	}
	if most != nil {
		return expected, max(0, expected-share(most, expected, true)), nil
	}
	return expected, share(least, expected, true), nil
}

// wantedPods adds up what the owners of the pods want. Pods without a controller count for nothing.
func wantedPods(v BudgetView, pods []*schedulingv1.Pod) (int, error) {
	sum := 0
	var seen []string
	for _, pod := range pods {
		owner := object.ControllerOf(pod)
		if owner == nil {
			continue
		}
		scale, ok := v.Scales[owner.GetUid()]
		if !ok {
			return 0, fmt.Errorf("%s %q, which manages pod %q, is not known or has no number of pods",
				owner.GetKind(), owner.GetName(), pod.GetMetadata().GetName())
		}
		if !slices.Contains(seen, scale.Name) {
			seen = append(seen, scale.Name)
			sum += scale.Pods
		}
	}
	return sum, nil
}

// judge sets the condition. A budget that can never allow anything says so: a drain would wait for it without end.
func (p *BudgetPlan) judge(v BudgetView, expected, desired int) {
	status, reason, message := "True", sufficientPods, ""
	if p.Status.GetDisruptionsAllowed() == 0 {
		status, reason = "False", insufficientPods
		message = fmt.Sprintf("%d of %d pods are healthy and %d must be", p.Status.GetCurrentHealthy(), expected, desired)
		if expected > 0 && desired >= expected {
			message += fmt.Sprintf("; with %s this budget never allows a disruption, even when all are healthy",
				limitInWords(v.Budget.GetSpec()))
		}
	}
	p.setCondition(v, status, reason, message)
}

func limitInWords(spec *schedulingv1.PodDisruptionBudgetSpec) string {
	if m := spec.GetMaxUnavailable(); m != nil {
		return "maxUnavailable " + inWords(m)
	}
	return "minAvailable " + inWords(spec.GetMinAvailable())
}

// fail says that the numbers are not known, and allows nothing.
func (p *BudgetPlan) fail(v BudgetView, err error) {
	was := v.Budget.GetStatus()
	p.Status.ExpectedPods, p.Status.DesiredHealthy = number(int(was.GetExpectedPods())),
		number(int(was.GetDesiredHealthy()))
	p.Status.DisruptionsAllowed = number(0)
	message := "Failed to calculate the number of expected pods: " + err.Error()
	p.setCondition(v, "False", syncFailed, message)
	p.Tell = append(p.Tell, Event{"Warning", "CalculateExpectedPodCountFailed", message})
}

func (p *BudgetPlan) setCondition(v BudgetView, status, reason, message string) {
	p.Status.Conditions = object.SetCondition(v.Budget.GetStatus().GetConditions(), &metav1.Condition{
		Type: DisruptionAllowed, Status: status, Reason: proto.String(reason), Message: proto.String(message),
		ObservedGeneration: proto.Int32(v.Budget.GetMetadata().GetGeneration()),
	}, v.Now)
}

// ScaleOfSet returns how many pods a replica set wants.
func ScaleOfSet(s *schedulingv1.ReplicaSet) Scale {
	return Scale{"replicaset/" + s.GetMetadata().GetName(), orOne(s.GetSpec().Replicas)}
}

// ScaleOfDeployment returns how many pods a deployment wants.
func ScaleOfDeployment(d *schedulingv1.Deployment) Scale {
	return Scale{"deployment/" + d.GetMetadata().GetName(), orOne(d.GetSpec().Replicas)}
}

// ScaleOfReplicationController returns how many pods a replication controller wants.
func ScaleOfReplicationController(rc *schedulingv1.ReplicationController) Scale {
	return Scale{"replicationcontroller/" + rc.GetMetadata().GetName(), orOne(rc.GetSpec().Replicas)}
}

// ScaleOfStatefulSet returns how many pods a stateful set wants.
func ScaleOfStatefulSet(s *schedulingv1.StatefulSet) Scale {
	return Scale{"statefulset/" + s.GetMetadata().GetName(), orOne(s.GetSpec().Replicas)}
}

// ScaleOfDaemonSet returns how many pods a daemon set wants: one on each of its nodes.
func ScaleOfDaemonSet(s *schedulingv1.DaemonSet) Scale {
	return Scale{"daemonset/" + s.GetMetadata().GetName(), int(s.GetStatus().GetDesiredNumberScheduled())}
}

// ScaleOfJob returns how many pods a job runs at once.
func ScaleOfJob(j *schedulingv1.Job) Scale {
	return Scale{"job/" + j.GetMetadata().GetName(), orOne(j.GetSpec().Parallelism)}
}
