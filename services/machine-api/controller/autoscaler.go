package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/machine-api/kinds"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	schedulerLimit  = 20 * time.Second // of one call to scheduler
	scaleEvery      = time.Second      // between two decisions: pods often come together
	longestScale    = 30 * time.Second // the longest time between two decisions because they take long
	scaleShare      = 10               // decisions take at most one part in so many of the time
	questionsAtOnce = 64               // in one call to scheduler
	questionRounds  = 4                // of one decision, which needs two
)

// Follower is a copy of another service's objects that is filled while Run runs.
type Follower[T object.Object] interface {
	Copy[T]
	All() []T
	WaitSynced(ctx context.Context) error
	Run(ctx context.Context) error
	CatchUp(ctx context.Context) error
	// Refusal returns why the other service refuses to send the objects for want of rights; empty if it does not.
	Refusal() string
}

// scaling is what the autoscaler keeps between its decisions.
type scaling struct {
	mu   sync.Mutex
	next time.Time // no decision before

	refusal atomic.Pointer[string] // of a question of the last decision, by scheduler; nil or empty if there was none
}

// Refused returns what scheduler refuses to the autoscaler for want of rights; empty if it refuses nothing, or if there
// is no cluster autoscaler. A cluster whose policy is older than the autoscaler has no rules for it.
func (c *Controller) Refused() string {
	if _, ok := c.Tables.ClusterAutoscalers.Lookup("", kinds.AutoscalerName); !ok {
		return ""
	}
	if c.Pods == nil {
		return ""
	}
	why := cmp.Or(c.Pods.Refusal(), c.Budgets.Refusal())
	if asked := c.scaling.refusal.Load(); why == "" && asked != nil {
		why = *asked
	}
	return lacksRights(why)
}

// lacksRights says of a refusal what causes it; empty if there is none.
func lacksRights(refusal string) string {
	if refusal == "" {
		return ""
	}
	return "the policy lacks rights that the autoscaler needs: " + refusal
}

// FollowPods fills the copies of pods and disruption budgets from the time on when there is a cluster autoscaler:
// without one they are not needed.
func (c *Controller) FollowPods(ctx context.Context) error {
	if c.Pods == nil {
		return nil
	}
	select {
	case <-c.autoscaled:
	case <-ctx.Done():
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.Pods.Run(ctx) })
	group.Go(func() error { return c.Budgets.Run(ctx) })
	return group.Wait()
}

// followSizes has the sizes of sets decided again when something changes that they depend on.
func (c *Controller) followSizes() {
	again := func() { c.sizes.Add(kinds.AutoscalerName) }
	c.Tables.ClusterAutoscalers.Subscribe(func(ch resource.Change[*machinev1.ClusterAutoscaler]) {
		if !ch.Deleted {
			c.startPods()
		}
		again()
	})
	c.Tables.Autoscalers.Subscribe(func(resource.Change[*machinev1.MachineAutoscaler]) { again() })
	ifAny := func() {
		if len(c.Tables.Autoscalers.Keys()) > 0 {
			again()
		}
	}
	c.Tables.Sets.Subscribe(func(resource.Change[*machinev1.MachineSet]) { ifAny() })
	c.Tables.Machines.Subscribe(func(resource.Change[*machinev1.Machine]) { ifAny() })
	if c.Pods != nil {
		c.Pods.Subscribe(func(resource.Change[*schedulingv1.Pod]) { ifAny() })
		c.Budgets.Subscribe(func(resource.Change[*schedulingv1.PodDisruptionBudget]) { ifAny() })
	}
}

// reconcileSizes decides about the sizes of all autoscaled sets, at most once in a second, and less often if decisions
// take long: nodes and pods of a large cluster change all the time.
func (c *Controller) reconcileSizes(ctx context.Context, _ string) (time.Time, error) {
	c.scaling.mu.Lock()
	defer c.scaling.mu.Unlock()
	began := c.Now()
	if c.scaling.next.After(began) {
		return c.scaling.next, nil
	}
	wake, err := c.scale(ctx)
	took := c.Now().Sub(began)
	c.scaling.next = c.Now().Add(min(longestScale, max(scaleEvery, took*scaleShare)))
	return wake, err
}

// scale decides once. The statuses are written before the sets: a crash in between leaves only a time in them.
func (c *Controller) scale(ctx context.Context) (time.Time, error) {
	p, err := c.PlanAutoscaler(ctx, c.ViewAutoscaler(), nil)
	if err == nil && slices.ContainsFunc(p.Sets, func(s plan.AutoscaledSet) bool { return s.Desired != s.Current }) {
		v := c.ViewAutoscaler()
		if err := c.catchUpSizes(ctx); err != nil {
			v.Unseen = err.Error()
		} else {
			v = c.ViewAutoscaler()
		}
		p, err = c.PlanAutoscaler(ctx, v, nil)
	}
	if err != nil {
		return time.Time{}, err
	}
	c.spans.Keep(kinds.AutoscalerName, p.States, c.Now())
	if err := c.storeSizes(ctx, p); err != nil {
		return time.Time{}, err
	}
	var errs []error
	for _, s := range p.Sets {
		if err := c.resize(ctx, s); err != nil {
			errs = append(errs, err, c.unscaled(ctx, s, err))
		}
	}
	return p.Wake, errors.Join(errs...)
}

// storeSizes writes the statuses of a plan.
func (c *Controller) storeSizes(ctx context.Context, p plan.AutoscalerPlan) error {
	if ca, ok := c.Tables.ClusterAutoscalers.Lookup("", kinds.AutoscalerName); ok &&
		!proto.Equal(ca.GetStatus(), p.Status) {
		if _, err := modify(ctx, c.Tables.ClusterAutoscalers, ca, func(o *machinev1.ClusterAutoscaler) {
			o.Status = p.Status
		}); err != nil {
			return err
		}
	}
	for _, s := range p.Sets {
		if proto.Equal(s.Autoscaler.GetStatus(), s.Status) {
			continue
		}
		if _, err := modify(ctx, c.Tables.Autoscalers, s.Autoscaler, func(o *machinev1.MachineAutoscaler) {
			o.Status = s.Status
		}); err != nil {
			return err
		}
	}
	return nil
}

// resize changes the replicas of a set that is still as it was when that was decided.
func (c *Controller) resize(ctx context.Context, s plan.AutoscaledSet) error {
	if s.Desired > s.Current {
		if _, err := modify(ctx, c.Tables.Sets, s.Set, func(o *machinev1.MachineSet) {
			o.Spec.Replicas = proto.Int32(int32(s.Desired))
		}); err != nil {
			return err
		}
		text := fmt.Sprintf("Scaled up from %d to %d: %s", s.Current, s.Desired, s.Reason)
		c.Events.Event(s.Set, events.Normal, "ScaledUpGroup", text)
		c.Events.Event(s.Autoscaler, events.Normal, "SuccessfulUpdate", text)
		return nil
	}
	ca, _ := c.Tables.ClusterAutoscalers.Lookup("", kinds.AutoscalerName)
	seen := s.Set.GetMetadata().GetResourceVersion()
	for _, r := range s.Remove {
		m := r.Machine.GetMetadata()
		_, set, err := c.Tables.DeleteAndShrink(ctx, object.KeyOf(r.Machine),
			&metav1.Preconditions{Uid: m.GetUid(), ResourceVersion: m.GetResourceVersion()}, seen,
			resource.WriteOptions{Reason: r.Reason, Decider: ca})
		if err != nil {
			return fmt.Errorf("machine %s: %w", m.GetName(), err)
		}
		seen = set.GetMetadata().GetResourceVersion()
		text := fmt.Sprintf("Removed machine %s, replicas are %d: %s", m.GetName(), set.GetSpec().GetReplicas(), r.Reason)
		c.Events.Event(s.Set, events.Normal, "ScaledDownGroup", text)
		c.Events.Event(s.Autoscaler, events.Normal, "SuccessfulUpdate", text)
	}
	return nil
}

// unscaled takes back what the status says of a change that failed. A removal that failed for another reason than a
// concurrent change delays the next one.
func (c *Controller) unscaled(ctx context.Context, s plan.AutoscaledSet, cause error) error {
	was, failed := s.Autoscaler.GetStatus(), s.Desired < s.Current && !isConflict(cause)
	if failed {
		c.Events.Event(s.Autoscaler, events.Warning, "FailedScaleDown", describe(cause))
	}
	_, err := c.Tables.Autoscalers.Modify(ctx, object.KeyOf(s.Autoscaler), func(o *machinev1.MachineAutoscaler) error {
		if o.GetMetadata().GetUid() != s.Autoscaler.GetMetadata().GetUid() || o.Status == nil {
			return nil
		}
		o.Status.DesiredReplicas, o.Status.LastScaleReason = o.Status.CurrentReplicas, was.GetLastScaleReason()
		o.Status.LastScaleUpTime, o.Status.LastScaleDownTime = was.GetLastScaleUpTime(), was.GetLastScaleDownTime()
		o.Status.ScaleDownCandidates = was.GetScaleDownCandidates()
		if failed {
			o.Status.LastScaleDownFailureTime = object.Timestamp(c.Now())
		}
		return nil
	})
	return except(err, codes.NotFound)
}

// catchUpSizes waits until all copies are as their services have them now.
func (c *Controller) catchUpSizes(ctx context.Context) error {
	if err := c.catchUp(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, evictionLimit)
	defer cancel()
	if err := c.Tables.Sets.CatchUp(ctx); err != nil {
		return errors.New("etcd does not answer")
	}
	if c.Pods.CatchUp(ctx) != nil || c.Budgets.CatchUp(ctx) != nil {
		return errors.New("scheduler does not answer")
	}
	return nil
}

// ViewAutoscaler returns what the sizes of the live sets depend on.
func (c *Controller) ViewAutoscaler() plan.AutoscalerView {
	nodes, seen := c.nodesByName()
	now := c.Now()
	v := plan.AutoscalerView{
		Now: now, Seen: c.spans.Clock(kinds.AutoscalerName, now).Seen, Autoscalers: c.Tables.Autoscalers.All(),
		Sets:     c.Tables.Sets.All(),
		Machines: c.Tables.Machines.All(), Nodes: nodes,
	}
	if ca, ok := c.Tables.ClusterAutoscalers.Lookup("", kinds.AutoscalerName); ok {
		v.Cluster = ca
	}
	switch {
	case c.Pods == nil:
		v.Unseen = "scheduler has no address, so pods are not known"
		return v
	case !seen:
		v.Unseen = "eviction-controller has not sent the nodes yet"
	case c.Pods.Refusal() != "" || c.Budgets.Refusal() != "":
		v.Unseen = lacksRights(cmp.Or(c.Pods.Refusal(), c.Budgets.Refusal()))
	case !c.Pods.IsSynced() || !c.Budgets.IsSynced():
		v.Unseen = "scheduler has not sent the pods yet"
	}
	v.Pods, v.Budgets = c.Pods.All(), c.Budgets.All()
	return v
}

// PreviewAutoscaler is ViewAutoscaler for a cluster autoscaler that need not exist: pods are followed from now on.
func (c *Controller) PreviewAutoscaler(ctx context.Context) plan.AutoscalerView {
	if c.Pods != nil {
		c.startPods()
		ctx, cancel := context.WithTimeout(ctx, evictionLimit)
		defer cancel()
		// The view says so if they are not known in time.
		_, _ = c.Pods.WaitSynced(ctx), c.Budgets.WaitSynced(ctx)
	}
	return c.ViewAutoscaler()
}

// PlanAutoscaler returns the plan for a view, with the scheduler's answers to its questions: about the live nodes and
// pods, or the given ones. A scheduler that does not answer is in the plan.
func (c *Controller) PlanAutoscaler(ctx context.Context, v plan.AutoscalerView,
	given *schedulingv1.PlanPlacementRequest) (
	plan.AutoscalerPlan, error,
) {
	v.Answers = map[string]*schedulingv1.PlanPlacementResponse_Result{}
	refusal := ""
	if given == nil {
		defer func() { c.scaling.refusal.Store(&refusal) }()
	}
	p := plan.Autoscale(v)
	for round := 0; len(p.Ask) > 0; round++ {
		if round == questionRounds {
			return p, fmt.Errorf("the plan asked scheduler %d times", round)
		}
		for some := range slices.Chunk(p.Ask, questionsAtOnce) {
			if err := c.askScheduler(ctx, some, given, v.Answers); err != nil {
				v.Unseen = "scheduler does not answer: " + describe(err)
				if status.Code(err) == codes.PermissionDenied {
					refusal = describe(err)
					v.Unseen = lacksRights(refusal)
				}
				return plan.Autoscale(v), nil
			}
		}
		p = plan.Autoscale(v)
	}
	return p, nil
}

// askScheduler adds the answers to some questions.
func (c *Controller) askScheduler(ctx context.Context, questions []plan.PlacementQuestion,
	given *schedulingv1.PlanPlacementRequest, answers map[string]*schedulingv1.PlanPlacementResponse_Result,
) error {
	if c.Scheduler == nil {
		return errors.New("it has no address")
	}
	req := &schedulingv1.PlanPlacementRequest{Nodes: given.GetNodes(), Pods: given.GetPods()}
	for _, q := range questions {
		req.Variations = append(req.Variations, q.Variation)
	}
	ctx, cancel := context.WithTimeout(ctx, schedulerLimit)
	defer cancel()
	resp, err := schedulingv1.NewPodServiceClient(c.Scheduler).PlanPlacement(ctx, req)
	if err != nil {
		return err
	}
	if len(resp.GetResults()) != len(questions) {
		return fmt.Errorf("it answered %d of %d questions", len(resp.GetResults()), len(questions))
	}
	for i, q := range questions {
		answers[q.ID] = resp.GetResults()[i]
	}
	return nil
}
