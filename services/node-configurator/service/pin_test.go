package service

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/servetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/services/node-configurator/plan"
)

// pin holds a pool at a configuration; empty releases it.
func (c *cluster) pin(pool, config string) error {
	p := c.pool(pool)
	p.Spec.Pin = nil
	if config != "" {
		p.Spec.Pin = &configv1.MachineConfigPoolPin{Configuration: config, Reason: "test", By: "another"}
	}
	_, err := c.pools().UpdateMachineConfigPool(c.t.Context(), &configv1.UpdateMachineConfigPoolRequest{
		Name: pool, MachineConfigPool: p,
	})
	return err
}

func said(err error) string {
	if err != nil {
		return err.Error()
	}
	return ""
}

func TestAPoolGoesBackToItsLastGoodConfigurationAndStaysThere(t *testing.T) {
	c := start(t)
	var agents []*agent
	for i := range 2 {
		agents = append(agents, c.join(fmt.Sprintf("worker-%d", i), "worker"))
	}
	c.apply(machineConfig("50-base", "worker", "/etc/base", "1"))
	c.applyPool(poolFor("worker"))
	good := c.awaitUpdated("worker", 2, "")

	// One that no node can apply stops the pool.
	for _, a := range agents {
		a.fail("/etc/bad")
	}
	c.apply(machineConfig("60-bad", "worker", "/etc/bad", "1"))
	c.awaitPool("worker", func(p *configv1.MachineConfigPool) bool {
		return object.IsTrue(p.GetStatus().GetConditions(), plan.ConditionDegraded)
	})
	for _, bad := range []string{"50-base", "rendered-worker-0", "rendered-master-1"} {
		if err := c.pin("worker", bad); status.Code(err) != codes.InvalidArgument ||
			!strings.Contains(err.Error(), "spec.pin.configuration: ") {
			t.Errorf("held at %s: %v", bad, err)
		}
	}
	servetest.Await(t, func() string { return said(c.pin("worker", good)) })
	back := func() *configv1.MachineConfigPool {
		return c.awaitPool("worker", func(p *configv1.MachineConfigPool) bool {
			conditions := p.GetStatus().GetConditions()
			return p.GetSpec().GetConfiguration().GetName() == good && object.IsTrue(conditions, plan.ConditionUpdated) &&
				p.GetStatus().GetObservedGeneration() == p.GetMetadata().GetGeneration()
		})
	}
	p := back()
	if pinned := object.FindCondition(p.GetStatus().GetConditions(), plan.ConditionPinned); pinned.GetStatus() != "True" ||
		p.GetSpec().GetPin().GetBy() == "another" || p.GetSpec().GetPin().GetBy() == "" {
		t.Errorf("%v by %q", pinned, p.GetSpec().GetPin().GetBy())
	}
	for _, a := range agents {
		if a.restarts() != 0 {
			t.Errorf("node %s was restarted to go back to what it has", a.node)
		}
		a.fail("")
	}
	_, err := c.configs().DeleteMachineConfig(t.Context(), &configv1.DeleteMachineConfigRequest{Name: good})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("what the pool is held at was deleted: %v", err)
	}

	// What changes is for later.
	c.apply(machineConfig("70-more", "worker", "/etc/more", "1"))
	preview, err := c.configs().RenderMachineConfig(t.Context(), &configv1.RenderMachineConfigRequest{PoolName: "worker"})
	if err != nil || preview.GetMachineConfig().GetMetadata().GetName() == good {
		t.Errorf("preview %v, %v", preview, err)
	}
	c.restart()
	back()
	servetest.Await(t, func() string { return said(c.pin("worker", "")) })
	want := preview.GetMachineConfig().GetMetadata().GetName()
	p = c.awaitPool("worker", func(p *configv1.MachineConfigPool) bool {
		return p.GetStatus().GetConfiguration().GetName() == want
	})
	var history []string
	for _, h := range p.GetStatus().GetHistory() {
		history = append(history, h.GetName())
	}
	if !slices.Equal(history, []string{want, good}) {
		t.Errorf("all nodes had %v, want %v", history, []string{want, good})
	}
	if object.FindCondition(p.GetStatus().GetConditions(), plan.ConditionPinned) != nil {
		t.Error("it is still said to be held")
	}
}
