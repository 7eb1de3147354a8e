package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/machine-api/kinds"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const guardianLimit = 10 * time.Second // of one call to etcd-guardian

// reconcileHealthCheck has the unhealthy machines of a health check replaced, as far as its plan allows. The status is
// written first: a crash before a deletion leaves it recorded, and the next look does it.
func (c *Controller) reconcileHealthCheck(ctx context.Context, key string) (time.Time, error) {
	k := object.ParseKey(key)
	h, ok := c.Tables.HealthChecks.Lookup(k.Namespace, k.Name)
	if !ok {
		c.spans.Keep(spansOfCheck(key), nil, c.Now())
		return time.Time{}, nil
	}
	p := c.PlanHealthCheck(ctx, h)
	c.spans.Keep(spansOfCheck(key), p.States, c.Now())
	if !proto.Equal(h.GetStatus(), p.Status) {
		out, err := modify(ctx, c.Tables.HealthChecks, h, func(obj *machinev1.MachineHealthCheck) { obj.Status = p.Status })
		if err != nil {
			return time.Time{}, err
		}
		for _, e := range p.Events {
			if e.Machine != nil {
				c.Events.Event(e.Machine, e.Type, e.Reason, e.Message)
			} else {
				c.Events.Event(out, e.Type, e.Reason, e.Message)
			}
		}
	}
	errs := inParallel(p.Remediate, func(u plan.UnhealthyMachine) error { return c.remediate(ctx, h, u) })
	return p.Wake, errors.Join(errs...)
}

func spansOfCheck(key string) string { return "machinehealthcheck " + key }

// remediate deletes a machine that is still as it was when that was decided. Another health check may have done so.
func (c *Controller) remediate(ctx context.Context, h *machinev1.MachineHealthCheck, u plan.UnhealthyMachine) error {
	meta := u.Machine.GetMetadata()
	_, err := c.Tables.Machines.Delete(ctx, meta.GetNamespace(), meta.GetName(), &metav1.Preconditions{
		Uid: meta.GetUid(), ResourceVersion: meta.GetResourceVersion(),
	}, resource.WriteOptions{Reason: u.Reason, Decider: h})
	switch status.Code(err) {
	case codes.OK:
		text := fmt.Sprintf("Deleted machine %s of health check %s: %s", meta.GetName(), h.GetMetadata().GetName(), u.Reason)
		c.Events.Event(u.Machine, events.Normal, "MachineDeleted", text)
		c.Events.Event(h, events.Normal, "MachineDeleted", text)
		return nil
	case codes.NotFound:
		return nil
	case codes.Aborted:
		return err // decided again with the machine as it is now
	}
	c.Events.Event(u.Machine, events.Warning, "MachineDeletionFailed", fmt.Sprintf("Health check %s: %s",
		h.GetMetadata().GetName(), describe(err)))
	return err
}

// PlanHealthCheck returns the plan of a health check for the live machines and nodes. Nothing is remediated by a copy
// alone, which keeps its last state while its service does not answer: both copies catch up first. About
// machines of the control plane it asks etcd-guardian.
func (c *Controller) PlanHealthCheck(ctx context.Context, h *machinev1.MachineHealthCheck) plan.HealthCheckPlan {
	v := c.viewHealthCheck(h)
	p := plan.HealthCheck(v)
	if len(p.Remediate)+len(p.Ask) == 0 {
		return p
	}
	err := c.catchUp(ctx)
	if v = c.viewHealthCheck(h); err != nil {
		v.Unseen = err.Error()
	}
	p = plan.HealthCheck(v)
	if len(p.Ask) > 0 {
		v.Guardian = c.askGuardian(ctx, p.Ask)
		p = plan.HealthCheck(v)
	}
	return p
}

func (c *Controller) viewHealthCheck(h *machinev1.MachineHealthCheck) plan.HealthCheckView {
	nodes, seen := c.nodesByName()
	now := c.Now()
	v := plan.HealthCheckView{
		Now: now, Check: h, Machines: c.machinesIn(h.GetMetadata().GetNamespace()), Nodes: nodes,
		Seen: c.spans.Clock(spansOfCheck(object.KeyOf(h).String()), now).Seen,
	}
	for _, r := range c.Tables.Revocations.ByIndex(kinds.ByRemediator, object.KeyOf(h).String()) {
		if noted := plan.NotedRemediation(r); noted != nil {
			v.Earlier = append(v.Earlier, noted)
		}
	}
	if !seen {
		v.Unseen = "eviction-controller has not sent them yet"
	}
	return v
}

// catchUp waits until the copies of machines and nodes are as their services have them now.
func (c *Controller) catchUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, evictionLimit)
	defer cancel()
	if err := c.Tables.Machines.CatchUp(ctx); err != nil {
		return errors.New("etcd does not answer")
	}
	if err := c.CatchUpNodes(ctx); err != nil {
		return errors.New("eviction-controller does not answer")
	}
	return nil
}

// askGuardian asks whether the voters of machines may be taken down. A machine without an answer may not.
func (c *Controller) askGuardian(ctx context.Context, machines []*machinev1.Machine) map[string]plan.GuardianAnswer {
	out := map[string]plan.GuardianAnswer{}
	why := "it has no address, so it cannot be asked"
	var answers []*etcdv1.Disruption
	if c.Guardian != nil {
		why = "it does not know the machine"
		ctx, cancel := context.WithTimeout(ctx, guardianLimit)
		defer cancel()
		resp, err := etcdv1.NewQuorumServiceClient(c.Guardian).PlanQuorum(ctx, &etcdv1.PlanQuorumRequest{})
		if err != nil {
			why = "it cannot be asked: " + describe(err)
		}
		answers = resp.GetDisruptions()
	}
	for _, m := range machines {
		uid := m.GetMetadata().GetUid()
		out[uid] = plan.GuardianAnswer{Why: why}
		for _, d := range answers {
			if d.GetMachine().GetUid() == uid {
				out[uid] = plan.GuardianAnswer{Allowed: d.GetAllowed(), Why: d.GetMessage()}
			}
		}
	}
	return out
}

// healthChecksOf enqueues the health checks of a namespace.
func (c *Controller) healthChecksOf(namespace string) {
	for h := range c.Tables.HealthChecks.In(namespace) {
		c.healthChecks.Add(object.KeyOf(h).String())
	}
}
