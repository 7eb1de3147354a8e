package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// checkWorkers creates a health check of the set workers.
func (w *world) checkWorkers(name string, change ...func(*machinev1.MachineHealthCheck)) {
	w.t.Helper()
	h := &machinev1.MachineHealthCheck{
		Metadata: &metav1.ObjectMeta{Name: name, Namespace: "openshift-machine-api"},
		Spec: &machinev1.MachineHealthCheckSpec{
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"set": "workers"}},
			MaxUnhealthy: structpb.NewStringValue("40%"),
			UnhealthyConditions: []*machinev1.UnhealthyCondition{
				{Type: "Ready", Status: "False", Timeout: "300s"}, {Type: "Ready", Status: "Unknown", Timeout: "300s"},
			},
		},
	}
	for _, f := range change {
		f(h)
	}
	_, err := w.tables.HealthChecks.Create(w.t.Context(), h)
	must(w.t, err)
}

// workers creates a set of three machines and waits until they run.
func (w *world) workers(change ...func(*machinev1.MachineTemplateSpec)) []string {
	w.t.Helper()
	labels := map[string]string{"set": "workers"}
	template := &machinev1.MachineTemplateSpec{
		Metadata: &metav1.ObjectMeta{Labels: labels},
		Spec:     &machinev1.MachineSpec{ProviderSpec: &machinev1.ProviderSpec{Value: settings("a")}},
	}
	for _, f := range change {
		f(template)
	}
	_, err := w.tables.Sets.Create(w.t.Context(), &machinev1.MachineSet{
		Metadata: &metav1.ObjectMeta{Name: "workers", Namespace: "openshift-machine-api"},
		Spec: &machinev1.MachineSetSpec{
			Replicas: proto.Int32(3), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template,
		},
	})
	must(w.t, err)
	return w.runningNames(3)
}

// runningNames waits until exactly so many machines run, and no others exist, and returns their names.
func (w *world) runningNames(n int) []string {
	w.t.Helper()
	var out []string
	eventually(w.t, func() error {
		all := w.tables.Machines.All()
		out = names(all)
		for _, m := range all {
			if m.GetStatus().GetPhase() != plan.PhaseRunning || m.GetStatus().GetNodeRef() == nil {
				return fmt.Errorf("machine %s is %v", m.GetMetadata().GetName(), m.GetStatus())
			}
		}
		if len(all) != n {
			return fmt.Errorf("machines %v, want %d", out, n)
		}
		return nil
	})
	return out
}

// ready sets the condition Ready of a node, since so long ago that no clock is wrong by more.
func (w *world) ready(node, status string) {
	w.t.Helper()
	w.readySince(node, status, 5*time.Hour)
}

// readySince sets the condition Ready of a node, since so long ago.
func (w *world) readySince(node, status string, ago time.Duration) {
	w.t.Helper()
	_, err := w.nodes.Modify(w.t.Context(), object.Key{Name: node}, func(n *nodev1.Node) error {
		n.Status.Conditions = []*nodev1.NodeCondition{{
			Type: "Ready", Status: status, LastTransitionTime: timestamppb.New(time.Now().Add(-ago)),
		}}
		return nil
	})
	must(w.t, err)
}

// allowed waits until the health check says whether it may remediate, for a reason.
func (w *world) allowed(name, status, reason string) *machinev1.MachineHealthCheck {
	w.t.Helper()
	var h *machinev1.MachineHealthCheck
	eventually(w.t, func() error {
		h, _ = w.tables.HealthChecks.Lookup("openshift-machine-api", name)
		c := object.FindCondition(h.GetStatus().GetConditions(), "RemediationAllowed")
		if c.GetStatus() != status || c.GetReason() != reason {
			return fmt.Errorf("health check: %v", h.GetStatus())
		}
		return nil
	})
	return h
}

func TestAHealthCheckReplacesALostWorker(t *testing.T) {
	w := newWorld(t)
	w.start()
	before := w.workers()
	w.checkWorkers("one")
	w.checkWorkers("another") // of the same machines
	w.allowed("one", "True", "")
	w.ready(before[0], "False")
	w.gone(before[0])
	after := w.runningNames(3)
	if strings.Contains(strings.Join(after, " "), before[0]) || w.cloud.creations() != 4 {
		t.Errorf("machines %v after %v, %d instances made; want one replaced", after, before, w.cloud.creations())
	}
	h := w.allowed("one", "True", "")
	eventually(t, func() error {
		h, _ = w.tables.HealthChecks.Lookup("openshift-machine-api", "one")
		if h.GetStatus().GetCurrentHealthy() != 3 || len(h.GetStatus().GetUnhealthy()) != 0 {
			return fmt.Errorf("health check: %v", h.GetStatus())
		}
		return nil
	})
}

func TestAHealthCheckStopsAtTooMany(t *testing.T) {
	w := newWorld(t)
	w.start()
	list := w.workers()
	w.ready(list[0], "False")
	w.ready(list[1], "False")
	w.checkWorkers("workers")
	h := w.allowed("workers", "False", "TooManyUnhealthy")
	if len(h.GetStatus().GetUnhealthy()) != 2 || len(h.GetStatus().GetRemediations()) != 0 {
		t.Errorf("status %v", h.GetStatus())
	}
	w.ready(list[1], "True")
	w.gone(list[0])
	w.running(3)
}

// The copy of the nodes keeps its last state while eviction-controller does not answer. Nothing is deleted by it.
func TestAHealthCheckDoesNotTrustACopy(t *testing.T) {
	w := newWorld(t)
	leader := w.start()
	list := w.workers()
	c, parts := w.controllers() // of a process that does not lead, whose plan is the same
	background(t, parts...)
	w.ready(list[0], "False")
	eventually(t, func() error {
		for _, copied := range []*Controller{leader, c} {
			if n, ok := copied.Nodes.Lookup("", list[0]); !ok || n.GetStatus().GetConditions()[0].GetStatus() != "False" {
				return errors.New("the copies do not have it yet")
			}
		}
		return nil
	})
	w.servers["eviction"].Stop()
	w.checkWorkers("workers")
	h := w.allowed("workers", "False", "NodesNotSeen")
	if w.machine(list[0]) == nil || object.Deleting(w.machine(list[0])) {
		t.Error("the machine was deleted")
	}
	p := c.PlanHealthCheck(t.Context(), h)
	if p.Allowed || !strings.Contains(p.Message, "eviction-controller does not answer") {
		t.Errorf("plan: allowed %t, %s", p.Allowed, p.Message)
	}
}

// hasty starts controllers whose clock is an hour ahead, and returns how to let time pass for them. Everything is
// decided again and again: after a decision that was held up, as by a service that did not answer in time, a loop waits
// until a time by that clock, which is an hour by the loop's own.
func (w *world) hasty() func(time.Duration) {
	var ahead atomic.Int64
	ahead.Store(int64(time.Hour))
	c := w.start(func(c *Config) {
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	background(w.t, func(ctx context.Context) error {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
			c.sets.Add(c.Tables.Sets.Keys()...)
			c.machines.Add(c.Tables.Machines.Keys()...)
			c.healthChecks.Add(c.Tables.HealthChecks.Keys()...)
		}
	})
	return func(d time.Duration) { ahead.Add(int64(d)) }
}

// healthy waits until the health check has found so many machines healthy.
func (w *world) healthy(name string, n int32) {
	w.t.Helper()
	eventually(w.t, func() error {
		h, _ := w.tables.HealthChecks.Lookup("openshift-machine-api", name)
		if h.GetStatus().GetExpectedMachines() != 3 || h.GetStatus().GetCurrentHealthy() != n {
			return fmt.Errorf("health check: %v", h.GetStatus())
		}
		return nil
	})
}

// stays reports a machine that is being deleted.
func (w *world) stays(name string) {
	w.t.Helper()
	if m := w.machine(name); m == nil || object.Deleting(m) {
		w.t.Fatalf("machine %s was deleted: %v", name, m.GetStatus().GetDeletion())
	}
}

func TestALeaderWhoseClockIsAheadRemediatesNothingEarly(t *testing.T) {
	w := newWorld(t)
	pass := w.hasty()
	list := w.workers()
	w.checkWorkers("workers")
	w.healthy("workers", 3)
	w.readySince(list[0], "False", 10*time.Second)
	w.healthy("workers", 2)
	w.stays(list[0])
	pass(4 * time.Minute)
	w.readySince(list[1], "False", 0) // so that it is decided again
	w.healthy("workers", 1)
	w.stays(list[0])
	w.readySince(list[1], "True", 0)
	w.healthy("workers", 2)
	pass(time.Minute + time.Second)
	w.gone(list[0])
	w.running(3)
}

// The budget is spent by one leader; the next one, whose clock is an hour ahead, knows that.
func TestTheBudgetOutlivesALeader(t *testing.T) {
	w := newWorld(t)
	w.start()
	list := w.workers()
	w.checkWorkers("workers", func(h *machinev1.MachineHealthCheck) {
		h.Metadata.Annotations = map[string]string{"windlass.dev/remediation-budget": "1/1h"}
	})
	w.ready(list[0], "False")
	w.gone(list[0])
	w.runningNames(3)
	w.healthy("workers", 3) // so that only the next leader can find less
	w.stop()
	pass := w.hasty()
	w.ready(list[1], "False")
	w.healthy("workers", 2)
	pass(6 * time.Minute) // a machine that was created in the second of the first remediation counts as a replacement
	w.heldBy("workers", "the budget of 1 remediations within 1h0m0s is used up")
	w.stays(list[1])
	pass(time.Hour + time.Minute)
	w.gone(list[1])
	w.running(3)
}

// A health check that is created again knows by the revocations what the one before it had deleted.
func TestTheBudgetOutlivesItsHealthCheck(t *testing.T) {
	w := newWorld(t)
	w.start()
	list := w.workers()
	budget := func(h *machinev1.MachineHealthCheck) {
		h.Metadata.Annotations = map[string]string{"windlass.dev/remediation-budget": "1/1h"}
	}
	w.checkWorkers("workers", budget)
	w.ready(list[0], "False")
	w.gone(list[0])
	w.runningNames(3)
	_, err := w.tables.HealthChecks.Delete(t.Context(), "openshift-machine-api", "workers", nil)
	must(t, err)
	w.ready(list[1], "False")
	w.checkWorkers("workers", budget)
	w.heldBy("workers", "the budget of 1 remediations within 1h0m0s is used up")
	w.stays(list[1])
}

func TestTheBackOffOutlivesALeader(t *testing.T) {
	w := newWorld(t)
	w.start()
	before := w.workers()
	w.checkWorkers("workers")
	w.ready(before[0], "False")
	w.gone(before[0])
	var fresh string
	for _, name := range w.runningNames(3) {
		if !slices.Contains(before, name) {
			fresh = name
		}
	}
	w.stop()
	pass := w.hasty()
	w.ready(fresh, "False")
	w.heldBy("workers", "replacements of MachineSet workers were unhealthy, too")
	w.stays(fresh)
	pass(6 * time.Minute)
	w.gone(fresh)
	w.running(3)
}

// A leader that cannot reach eviction-controller has never seen a node, and claims nothing of them.
func TestALeaderWithoutNodesReportsNoneAsGone(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.workers()
	w.checkWorkers("workers")
	w.healthy("workers", 3)
	w.stop()
	w.servers["eviction"].Stop()
	w.start()
	h := w.allowed("workers", "False", "NodesNotSeen")
	if h.GetStatus().GetCurrentHealthy() != 3 || len(h.GetStatus().GetUnhealthy()) > 0 {
		t.Errorf("status %v, want what the last leader found", h.GetStatus())
	}
}

// guard is etcd-guardian: it answers whether voters may be disrupted.
type guard struct {
	etcdv1.UnimplementedQuorumServiceServer
	w *world

	mu  sync.Mutex
	why string // why no voter may be
}

func (g *guard) PlanQuorum(context.Context, *etcdv1.PlanQuorumRequest) (*etcdv1.PlanQuorumResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := &etcdv1.PlanQuorumResponse{}
	for _, m := range g.w.tables.Machines.All() {
		out.Disruptions = append(out.Disruptions, &etcdv1.Disruption{
			Machine: object.Reference(m), Allowed: g.why == "", Message: g.why,
		})
	}
	return out, nil
}

func TestAHealthCheckAsksTheGuardian(t *testing.T) {
	w := newWorld(t)
	g := &guard{w: w, why: "member m9 does not answer"}
	w.serve("guardian", func(s *grpc.Server) { etcdv1.RegisterQuorumServiceServer(s, g) })
	w.start() // without the guardian's address
	list := w.workers(func(s *machinev1.MachineTemplateSpec) { s.Metadata.Labels[plan.LabelRole] = plan.RoleMaster })
	w.ready(list[0], "False")
	w.checkWorkers("masters")
	w.heldBy("masters", "it has no address")
	w.stop()
	w.guardian = w.conns["guardian"]
	w.start()
	w.heldBy("masters", "member m9 does not answer")
	if m := w.machine(list[0]); m == nil || object.Deleting(m) {
		t.Fatal("the machine was deleted against the guardian's word")
	}
	g.mu.Lock()
	g.why = ""
	g.mu.Unlock()
	w.ready(list[0], "Unknown") // so that it is decided again now, not 30 s later
	w.gone(list[0])
	w.running(3)
}

// heldBy waits until the health check says that its only unhealthy machine is held by something.
func (w *world) heldBy(name, text string) {
	w.t.Helper()
	eventually(w.t, func() error {
		h, _ := w.tables.HealthChecks.Lookup("openshift-machine-api", name)
		list := h.GetStatus().GetUnhealthy()
		if len(list) != 1 || !strings.Contains(list[0].GetHeldBy(), text) {
			return fmt.Errorf("unhealthy: %v", list)
		}
		return nil
	})
}
