package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// checked waits until a machine is gone while it is checked as often as the test can: in place of the check that its
// plan has every 30 s.
func (w *world) checked(c *Controller, name string) {
	w.t.Helper()
	eventually(w.t, func() error {
		c.machines.Add("openshift-machine-api/" + name)
		if m := w.machine(name); m != nil {
			return fmt.Errorf("machine %s is still there: %v", name, m.GetStatus())
		}
		return nil
	})
}

// failing waits for a failure of a machine's step.
func (w *world) failing(name string, step plan.Action, attempts int32) *machinev1.StepFailure {
	w.t.Helper()
	var out *machinev1.StepFailure
	eventually(w.t, func() error {
		for _, f := range w.machine(name).GetStatus().GetStepFailures() {
			if f.GetStep() == string(step) && f.GetAttempts() >= attempts {
				out = f
				return nil
			}
		}
		return fmt.Errorf("no failure of %s: %v", step, w.machine(name).GetStatus())
	})
	return out
}

func TestAMachineGoesAlthoughNoChangeOfItsInstanceIsSeen(t *testing.T) {
	w := newWorld(t)
	c := w.start()
	w.create(newMachine("m"))
	w.phase("m", plan.PhaseRunning)
	w.cloud.set(func(c *cloud) { c.mute = true })
	w.delete("m")
	w.checked(c, "m")
	if w.cloud.count() != 0 {
		t.Error("its instance is still there")
	}
}

// An instance vanishes and its address is given to another machine's. What the provider says of the first instance
// later, an error or that it is there again, does not claim the address again.
func TestAMachineWhoseAddressAnotherHasGoes(t *testing.T) {
	for name, later := range map[string]func(*world, *machinev1.Machine, *providerv1.Instance){
		"an error": func(w *world, _ *machinev1.Machine, _ *providerv1.Instance) {
			w.cloud.set(func(c *cloud) { c.away = status.Error(codes.Unavailable, "the account was closed") })
			w.delete("m")
			w.failing("m", plan.DeleteInstance, 2)
			w.cloud.set(func(c *cloud) { c.away = nil })
		},
		"it is there again": func(w *world, m *machinev1.Machine, i *providerv1.Instance) {
			w.change("m", func(m *machinev1.Machine) {
				m.Spec.LifecycleHooks = &machinev1.LifecycleHooks{
					PreTerminate: []*machinev1.LifecycleHook{{Name: "wait", Owner: "test"}},
				}
			})
			w.delete("m")
			w.cloud.set(func(c *cloud) {
				c.instances[m.GetMetadata().GetUid()] = i
				c.tell(&providerv1.WatchInstancesResponse{Instance: i})
			})
			w.condition("m", "InstanceReappeared")
			w.change("m", func(m *machinev1.Machine) { m.Spec.LifecycleHooks = nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.start()
			m := w.create(newMachine("m"))
			w.phase("m", plan.PhaseRunning)
			uid := m.GetMetadata().GetUid()
			var i *providerv1.Instance
			w.cloud.set(func(c *cloud) { i = c.instances[uid]; c.vanish(uid) })
			w.phase("m", plan.PhaseFailed)
			w.cloud.set(func(c *cloud) { c.address = i.GetAddresses()[0].GetAddress() })
			w.create(newMachine("other"))
			w.phase("other", plan.PhaseRunning)
			later(w, m, i)
			w.gone("m")
			w.phase("other", plan.PhaseRunning)
		})
	}
}

func TestAMachineGoesAlthoughNoChangeOfItsDrainIsSeen(t *testing.T) {
	w := newWorld(t)
	lost := resource.NewCache[*nodev1.Drain]() // no message reaches it
	lost.Replace(nil, 1)
	c := w.start(func(cfg *Config) { cfg.Drains = lost })
	w.create(newMachine("m"))
	w.phase("m", plan.PhaseRunning)
	w.delete("m")
	w.checked(c, "m")
}

// A user deletes the drain of a machine, and that message is lost.
func TestADrainThatWasDeletedIsMadeAgain(t *testing.T) {
	w := newWorld(t)
	stale := resource.NewCache[*nodev1.Drain]()
	stale.Replace(nil, 1)
	c := w.start(func(cfg *Config) { cfg.Drains = stale })
	w.cloud.set(func(c *cloud) { c.stuck = "a pod does not end" })
	m := w.create(newMachine("m"))
	w.phase("m", plan.PhaseRunning)
	w.delete("m")
	var first *nodev1.Drain
	eventually(t, func() error {
		d, ok := w.drains.Lookup("", drainName(m))
		if first = d; !ok || d.GetStatus().GetPhase() != "Failed" {
			return fmt.Errorf("drain %v", d)
		}
		return nil
	})
	stale.Replace([]*nodev1.Drain{object.Clone(first)}, 2) // the last that is seen of it
	w.cloud.set(func(c *cloud) { c.stuck = "" })
	_, err := w.drains.Delete(t.Context(), "", drainName(m), nil)
	must(t, err)
	w.checked(c, "m")
}

func TestAProviderThatIsAwayIsReportedOverAChangeOfLeader(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.create(newMachine("m"))
	w.phase("m", plan.PhaseRunning)
	w.cloud.set(func(c *cloud) { c.away = status.Error(codes.Unavailable, "the account was closed") })
	w.delete("m")
	before := w.failing("m", plan.DeleteInstance, 4)
	if !strings.Contains(before.GetMessage(), "the account was closed") || before.GetResolution() == "" {
		t.Errorf("failure %v", before)
	}
	w.stop()
	c := w.start()
	after := w.failing("m", plan.DeleteInstance, before.GetAttempts()+1)
	if !after.GetSince().AsTime().Equal(before.GetSince().AsTime()) {
		t.Errorf("failing since %v, and since %v after a change of leader", before.GetSince(), after.GetSince())
	}
	if v := c.ViewMachine(t.Context(), w.machine("m")); !strings.Contains(plan.Next(v).WaitsFor,
		"the account was closed") {
		t.Errorf("it waits for %q", plan.Next(v).WaitsFor)
	}
	w.cloud.set(func(c *cloud) { c.away = nil })
	w.checked(c, "m")
}

func TestErrorsOfEveryStepOfADeletionAreReported(t *testing.T) {
	for method, step := range map[string]plan.Action{
		"CreateDrain": plan.CreateDrain, "GetDrain": plan.GetDrain, "DeleteNode": plan.DeleteNode,
		"DeleteDrain": plan.DeleteDrain,
	} {
		t.Run(method, func(t *testing.T) {
			w := newWorld(t)
			c := w.start()
			w.create(newMachine("m"))
			w.phase("m", plan.PhaseRunning)
			w.refuse(method, status.Error(codes.PermissionDenied, "not allowed to do "+method))
			w.delete("m")
			if f := w.failing("m", step, 1); f.GetMessage() != "not allowed to do "+method {
				t.Errorf("failure %v", f)
			}
			w.refuse(method, nil)
			w.checked(c, "m")
		})
	}
}

func TestAnErrorOfUpdateNodeIsReportedUntilItSucceeds(t *testing.T) {
	w := newWorld(t)
	c := w.start()
	w.refuse("PatchNode", status.Error(codes.Aborted, "changed since it was read")) // and so each time
	w.create(newMachine("m"))
	w.failing("m", plan.UpdateNode, 1)
	w.refuse("PatchNode", nil)
	eventually(t, func() error {
		c.machines.Add("openshift-machine-api/m")
		if f := w.machine("m").GetStatus().GetStepFailures(); len(f) > 0 {
			return fmt.Errorf("failures %v", f)
		}
		return nil
	})
}

type noTokens struct{ Bootstrap }

func (noTokens) Forget(context.Context, string) error { return errors.New("etcd does not answer") }

func TestAnErrorOfTheLastStepIsReported(t *testing.T) {
	w := newWorld(t)
	w.start(func(cfg *Config) { cfg.Bootstrap = noTokens{cfg.Bootstrap} })
	w.create(newMachine("m"))
	w.phase("m", plan.PhaseRunning)
	w.delete("m")
	if f := w.failing("m", plan.RemoveFinalizer, 2); f.GetMessage() != "etcd does not answer" {
		t.Errorf("failure %v", f)
	}
}

func TestTheCauseOfADeletionIsRecorded(t *testing.T) {
	w := newWorld(t)
	hold := func(m *machinev1.Machine) {
		m.Spec.LifecycleHooks = &machinev1.LifecycleHooks{
			PreDrain: []*machinev1.LifecycleHook{{Name: "hold", Owner: "a-test"}},
		}
	}
	c := w.start()
	deletion := func(name string) string {
		d := w.machine(name).GetStatus().GetDeletion()
		if !d.GetRequestTime().AsTime().Equal(w.machine(name).GetMetadata().GetDeletionTimestamp().AsTime()) {
			t.Errorf("machine %s: deletion requested at %v", name, d.GetRequestTime())
		}
		return fmt.Sprintf("%s %s: %s", d.GetTrigger(), d.GetRequestedBy(), d.GetReason())
	}
	w.create(newMachine("user", hold))
	ada := identity.WithCaller(t.Context(), identity.Caller{User: "ada"})
	_, err := w.tables.Machines.Delete(ada, "openshift-machine-api", "user", nil,
		resource.WriteOptions{Reason: "its disk is slow"})
	must(t, err)
	_, err = w.tables.Machines.Delete(t.Context(), "openshift-machine-api", "user", nil) // the first request counts
	must(t, err)
	w.phase("user", plan.PhaseDeleting)
	if got := deletion("user"); got != "User ada: its disk is slow" {
		t.Errorf("the cause of the first is %q", got)
	}
	of := func(name string) *metav1.ObjectMeta { return newMachine(name).GetMetadata() }
	for name, tt := range map[string]struct {
		decider object.Object
		reason  string
		want    string
	}{
		"set": {
			&machinev1.MachineSet{Metadata: of("workers")}, "scaled down to 2", "MachineSet workers: scaled down to 2",
		},
		"control-plane": {
			&machinev1.ControlPlaneMachineSet{Metadata: of("cluster")}, "it does not match the template",
			"ControlPlaneMachineSet cluster: it does not match the template",
		},
		"check": {
			&machinev1.MachineHealthCheck{Metadata: of("workers-check")}, "its node is not ready",
			"MachineHealthCheck workers-check: its node is not ready",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w.create(newMachine(name, hold))
			eventually(t, func() error { // it may change concurrently
				return c.deleteMachine(t.Context(), tt.decider, w.machine(name), tt.reason)
			})
			w.phase(name, plan.PhaseDeleting)
			if got := deletion(name); got != tt.want {
				t.Errorf("the cause is %q, want %q", got, tt.want)
			}
		})
	}
}
