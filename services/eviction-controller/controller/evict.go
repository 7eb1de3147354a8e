package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/reconcile"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/trace"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

const (
	// evictionsAtOnce is how many pods of one node are made to leave at once.
	evictionsAtOnce = 8
	// unseen is how long an eviction that was accepted may take to be seen on the pod before it is asked for again.
	unseen = 10 * time.Second
	// schedulerAway is how soon a scheduler that did not answer is asked again.
	schedulerAway = time.Second
)

// tried is what became of an eviction of one pod.
type tried struct {
	plan.Try
	uid, node string
}

// evict makes the pods of one node leave that must, for its taints and for its drains, and returns when to look again.
func (c *Controller) evict(ctx context.Context, name string) (time.Time, error) {
	if wait := c.Tracker.Settling(); wait > 0 {
		return time.Now().Add(wait), nil
	}
	node, ok := c.Tables.Nodes.Lookup("", name)
	if !ok {
		return time.Time{}, nil
	}
	wake, err := c.evictForTaints(ctx, node)
	for _, d := range c.Tables.DrainsOf(name) {
		w, failed := c.evictForDrain(ctx, d)
		wake, err = reconcile.Earliest(wake, w), errors.Join(err, failed)
	}
	return wake, err
}

// evictForTaints deletes the pods whose time on a node is over.
func (c *Controller) evictForTaints(ctx context.Context, node *nodev1.Node) (time.Time, error) {
	if !plan.NoExecutes(node) {
		return time.Time{}, nil
	}
	name := node.GetMetadata().GetName()
	v := plan.EvictionView{Now: time.Now().UTC(), Node: node, Pods: c.Pods.On(name), Doubt: c.doubt(name)}
	evictions, wake := plan.Evictions(v)
	var leaving []*schedulingv1.Pod
	for _, e := range evictions {
		if e.Verdict != plan.Evict {
			continue
		}
		if t := c.try(e.Pod); t.Accepted && t.Next.After(v.Now) {
			wake = reconcile.Earliest(wake, t.Next)
			continue
		}
		leaving = append(leaving, e.Pod)
	}
	w, err := each(leaving, func(pod *schedulingv1.Pod) error {
		if !c.due(ctx, pod) {
			return errNotNow
		}
		if err := c.Evictor.Delete(ctx, pod); err != nil {
			return fmt.Errorf("delete pod %q: %w", plan.PodName(pod), err)
		}
		c.accepted(pod)
		c.Log.InfoContext(ctx, "pod evicted", "node", name, "pod", plan.PodName(pod))
		c.Events.Event(pod, "Normal", "TaintManagerEviction", "Marking for deletion Pod "+plan.PodName(pod))
		return nil
	})
	return reconcile.Earliest(wake, w), err
}

// due reports whether a pod still has to leave for the taints of its node. Many pods are made to leave one after the other, and each may wait
// for the scheduler: what was decided for all of them may not hold for the last.
func (c *Controller) due(ctx context.Context, pod *schedulingv1.Pod) bool {
	name, key := pod.GetSpec().GetNodeName(), resource.KeyOf(pod)
	node, known := c.Tables.Nodes.Lookup("", name)
	now, there := c.Pods.cache.Lookup(key.Namespace, key.Name)
	if ctx.Err() != nil || c.Tracker.Settling() > 0 || !known || !there || now.GetMetadata().GetUid() != pod.GetMetadata().GetUid() {
		return false
	}
	v := plan.EvictionView{Now: time.Now().UTC(), Node: node, Pods: []*schedulingv1.Pod{now}, Doubt: c.doubt(name)}
	evictions, _ := plan.Evictions(v)
	return evictions[0].Verdict == plan.Evict
}

// doubt returns until when nobody is evicted for the silence of a node's agent; see plan.Doubt.
func (c *Controller) doubt(node string) time.Time {
	return plan.Doubt(time.Now().UTC(), c.Tracker.Agent(node), c.Tracker.Grace(), c.fullDisruption)
}

// evictForDrain has the pods leave that a drain wants to leave now. What comes of it is written by drain.
func (c *Controller) evictForDrain(ctx context.Context, d *nodev1.Drain) (time.Time, error) {
	ctx = trace.Continue(ctx, d.GetMetadata())
	v := c.viewOfDrain(d)
	p := plan.Drain(v)
	if p.Gone || p.Status.GetPhase() != plan.Draining {
		return time.Time{}, nil
	}
	var leaving []plan.PodVerdict
	for _, pod := range p.Pods {
		if pod.Verdict == plan.Evict {
			leaving = append(leaving, pod)
		}
	}
	if len(leaving) == 0 {
		return p.Wake, nil
	}
	w, err := each(leaving, func(pod plan.PodVerdict) error { return c.leaveFor(ctx, d, v, pod) })
	c.loop.Add(d.GetSpec().GetNodeName())
	return reconcile.Earliest(p.Wake, w), err
}

// drains reports whether a drain still wants pods to leave; see due.
func (c *Controller) drains(ctx context.Context, d *nodev1.Drain) bool {
	now, ok := c.Tables.Drains.Lookup("", d.GetMetadata().GetName())
	return ok && now.GetMetadata().GetUid() == d.GetMetadata().GetUid() && !resource.Deleting(now) &&
		now.GetStatus().GetPhase() == plan.Draining && ctx.Err() == nil && c.Tracker.Settling() == 0
}

// leaveFor has one pod leave for a drain and remembers the answer. No answer is an error: each has its own time of trying again.
func (c *Controller) leaveFor(ctx context.Context, d *nodev1.Drain, v plan.DrainView, pod plan.PodVerdict) error {
	if !c.drains(ctx, d) {
		return errNotNow
	}
	var err error
	if pod.Delete {
		err = c.Evictor.Delete(ctx, pod.Pod)
	} else {
		err = c.Evictor.Evict(ctx, pod.Pod, d.GetSpec().GracePeriodSeconds)
	}
	if ctx.Err() != nil {
		return nil
	}
	if err == nil {
		c.accepted(pod.Pod)
		c.Log.InfoContext(ctx, "pod evicted", "node", d.GetSpec().GetNodeName(), "pod", plan.PodName(pod.Pod), "drain", d.GetMetadata().GetName())
		return nil
	}
	why, retry := status.Convert(err).Message(), c.Retry
	if away(err) {
		why, retry = "the scheduler does not answer: "+why, schedulerAway
	}
	v.Now = time.Now().UTC()
	c.remember(pod.Pod, c.try(pod.Pod).Again(v, pod.Pod, why, retry))
	return nil
}

// errNotNow means that a pod was not made to leave, since what was decided does not hold any more: it is decided anew.
var errNotNow = errors.New("not now")

// each does f for every pod, some at once and each for itself. It returns when to decide again if the scheduler does not answer, or where a
// decision was too old, and what else failed.
func each[T any](list []T, f func(T) error) (time.Time, error) {
	var group errgroup.Group
	group.SetLimit(evictionsAtOnce)
	failed := make([]error, len(list))
	for i, pod := range list {
		group.Go(func() error { failed[i] = f(pod); return nil })
	}
	_ = group.Wait() // what failed stands in failed
	wake := time.Time{}
	for i, err := range failed {
		if away(err) || errors.Is(err, errNotNow) {
			wake, failed[i] = time.Now().Add(schedulerAway), nil
		}
	}
	return wake, errors.Join(failed...)
}

// away reports whether an error says that the scheduler does not answer.
func away(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded:
		return true
	}
	return false
}

// viewOfDrain returns everything that is known here about a drain. The other drains of its node are those of now: one of them may have taken
// the permit a moment ago.
func (c *Controller) viewOfDrain(d *nodev1.Drain) plan.DrainView {
	name := d.GetSpec().GetNodeName()
	node, _ := c.Tables.Nodes.Lookup("", name)
	if !plan.Drains(d, node) {
		node = nil // the one to drain is gone, and this one only has its name
	}
	v := plan.DrainView{
		Now: time.Now().UTC(), Drain: d, Node: node, Others: c.Tables.OtherDrains(d),
		Pods: c.Pods.On(name), Known: c.Pods.Known(), Budgets: c.Budgets.All(), Tries: map[string]plan.Try{},
	}
	for _, pod := range v.Pods {
		if t := c.try(pod); !t.Next.IsZero() {
			v.Tries[pod.GetMetadata().GetUid()] = t
		}
	}
	return v
}

// confirmed returns a view with the pods that the scheduler names now: the copy of them may lag behind, and it does not show whether
// the scheduler is there.
func (c *Controller) confirmed(ctx context.Context, v plan.DrainView) plan.DrainView {
	pods, err := c.Evictor.On(ctx, v.Drain.GetSpec().GetNodeName())
	if err != nil {
		v.Away = status.Convert(err).Message()
		return v
	}
	v.Pods, v.Fresh = pods, true
	return v
}

// try returns what became of the eviction of a pod so far; the zero Try if it was not asked for.
func (c *Controller) try(pod *schedulingv1.Pod) plan.Try {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.tries[resource.KeyOf(pod)]; t.uid == pod.GetMetadata().GetUid() {
		return t.Try
	}
	return plan.Try{}
}

func (c *Controller) accepted(pod *schedulingv1.Pod) {
	c.remember(pod, plan.Try{Accepted: true, Next: time.Now().Add(unseen)})
}

func (c *Controller) remember(pod *schedulingv1.Pod, t plan.Try) {
	key := resource.KeyOf(pod)
	c.mu.Lock()
	c.tries[key] = tried{Try: t, uid: pod.GetMetadata().GetUid(), node: pod.GetSpec().GetNodeName()}
	c.mu.Unlock()
	if _, there := c.Pods.cache.Lookup(key.Namespace, key.Name); !there {
		c.drop(key) // it went before the answer came, and podChanged with it
	}
}

func (c *Controller) drop(key resource.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.tries, key)
}

// forget drops what was refused to the drains of a node.
func (c *Controller) forget(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, t := range c.tries {
		if t.node == node && !t.Accepted {
			delete(c.tries, k)
		}
	}
}
