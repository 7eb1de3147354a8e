package controller

import (
	"fmt"
	"strings"
	"testing"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"google.golang.org/protobuf/types/known/structpb"
)

// creationsBegun waits until that many creations have reached the provider.
func (w *world) creationsBegun(n int) {
	w.t.Helper()
	eventually(w.t, func() error {
		w.cloud.mu.Lock()
		defer w.cloud.mu.Unlock()
		if w.cloud.calls < n {
			return fmt.Errorf("%d creations have begun, want %d", w.cloud.calls, n)
		}
		return nil
	})
}

// condition waits for the reason of a machine's condition InstanceExists.
func (w *world) condition(name, reason string) {
	w.t.Helper()
	eventually(w.t, func() error {
		c := object.FindCondition(w.machine(name).GetStatus().GetConditions(), plan.InstanceExists)
		if c.GetReason() != reason {
			return fmt.Errorf("condition of %s is %v, want reason %s", name, c, reason)
		}
		return nil
	})
}

func TestHangingCreationsDelayNoDeletion(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.create(newMachine("runs"))
	w.phase("runs", plan.PhaseRunning)
	w.cloud.set(func(c *cloud) { c.hang = func(name string) bool { return strings.HasPrefix(name, "hangs") } })
	for i := range 200 {
		w.create(newMachine(fmt.Sprintf("hangs-%d", i)))
	}
	w.creationsBegun(2)
	w.delete("runs")
	w.gone("runs")
	// A machine whose creation hangs goes as well: its token is used up.
	w.delete("hangs-0")
	w.gone("hangs-0")
	if n := w.cloud.creations(); n != 1 {
		t.Errorf("%d instances were made, want 1", n)
	}
	close(w.cloud.hanging)
}

func TestACreationUnderWayDoesNotOutliveItsMachine(t *testing.T) {
	w := newWorld(t)
	w.cloud.set(func(c *cloud) { c.hang = func(string) bool { return true } })
	w.start()
	m := w.create(newMachine("m"))
	w.creationsBegun(1)
	if p := w.machine("m").GetMetadata().GetAnnotations()[plan.AnnotationProvider]; p != "provider-test" {
		t.Errorf("provider %q is noted when it is called, want provider-test", p)
	}
	w.stop() // the leader ends, and the next one has seen nothing of the creation
	w.start()
	w.delete("m")
	w.gone("m")
	close(w.cloud.hanging) // the provider carries it out now
	eventually(t, func() error {
		w.cloud.mu.Lock()
		defer w.cloud.mu.Unlock()
		if !w.cloud.used[m.GetMetadata().GetUid()] {
			return fmt.Errorf("the token is not used up: %v", w.cloud.used)
		}
		return nil
	})
	if n := w.cloud.creations(); n != 0 {
		t.Errorf("%d instances were made for a machine that is gone", n)
	}
}

func TestAMissingProviderFailsNothing(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.create(newMachine("runs"))
	w.phase("runs", plan.PhaseRunning)
	foreign := func(m *machinev1.Machine) {
		m.Spec.ProviderSpec.Value.Fields["kind"] = structpb.NewStringValue("OtherSpec")
	}
	w.create(newMachine("waits", foreign))
	eventually(t, func() error {
		c := object.FindCondition(w.machine("waits").GetStatus().GetConditions(), plan.InstanceExists)
		if !strings.Contains(c.GetMessage(), `"OtherSpec": no provider understands it`) {
			return fmt.Errorf("condition = %v", c)
		}
		return nil
	})
	w.stop()
	// An earlier version did not note the provider, and now there is none for the machines' kind.
	w.change("runs", func(m *machinev1.Machine) { delete(m.Metadata.Annotations, plan.AnnotationProvider) })
	w.cloud.set(func(c *cloud) { c.kinds = []string{"YetAnotherSpec"} })
	w.start()
	w.condition("runs", "NoProvider")
	if p := w.machine("runs").GetStatus().GetPhase(); p != plan.PhaseRunning {
		t.Errorf("phase of a machine without a provider = %s, want Running", p)
	}
	w.delete("runs")
	w.phase("runs", plan.PhaseDeleting)
	w.condition("runs", "NoProvider")
	w.delete("waits") // no provider was ever asked for its instance
	w.gone("waits")
	w.stop()
	w.cloud.set(func(c *cloud) { c.kinds = []string{"TestSpec", "OtherSpec"} })
	w.start()
	w.gone("runs")
	if n := w.cloud.count(); n != 0 {
		t.Errorf("%d instances are left", n)
	}
}
