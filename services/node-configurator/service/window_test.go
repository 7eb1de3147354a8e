package service

import (
	"fmt"
	"strings"
	"testing"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/node-configurator/plan"
)

// later returns a window that opens in some hours, each day.
func later() *updatev1.MaintenanceWindow {
	return &updatev1.MaintenanceWindow{
		Metadata: &metav1.ObjectMeta{Name: "nights"}, Spec: &updatev1.MaintenanceWindowSpec{
			Schedule: fmt.Sprintf("0 %d * * *", time.Now().UTC().Add(12*time.Hour).Hour()), Duration: "2h",
		},
	}
}

func TestAPoolWaitsForAMaintenanceWindow(t *testing.T) {
	c := start(t)
	for i := range 2 {
		c.join(fmt.Sprintf("worker-%d", i), "worker")
	}
	w, err := c.windows.Create(t.Context(), later())
	if err != nil {
		t.Fatal(err)
	}
	c.apply(machineConfig("50-base", "worker", "/etc/base", "1"))
	c.applyPool(poolFor("worker"))
	first := c.awaitUpdated("worker", 2, "") // it waits for no window
	c.apply(machineConfig("60-more", "worker", "/etc/more", "1"))
	waits := func(p *configv1.MachineConfigPool) bool {
		return strings.Contains(object.FindCondition(p.GetStatus().GetConditions(), plan.ConditionUpdating).GetMessage(),
			"waits for maintenance window nights, which opens at ")
	}
	p := c.awaitPool("worker", waits)
	resp, err := c.pools().PlanMachineConfigPool(t.Context(), &configv1.PlanMachineConfigPoolRequest{Name: "worker"})
	if err != nil || len(resp.GetNext()) != 0 || len(resp.GetHeldBack()) != 2 || len(c.drains.All()) != 0 ||
		resp.GetWakeTime() == nil {
		t.Errorf("plan %v, %v, drains %v", resp, err, c.drains.All())
	}
	resp, err = c.pools().PlanMachineConfigPool(t.Context(), &configv1.PlanMachineConfigPoolRequest{
		Name: "worker", MaintenanceWindows: &updatev1.MaintenanceWindowList{},
	})
	if err != nil || len(resp.GetNext()) != 1 {
		t.Errorf("without windows, the plan is %v, %v", resp, err)
	}
	bad := proto.CloneOf(w)
	bad.Spec.Duration = "0h"
	if _, err = c.pools().PlanMachineConfigPool(t.Context(), &configv1.PlanMachineConfigPoolRequest{
		Name: "worker", MaintenanceWindows: &updatev1.MaintenanceWindowList{Items: []*updatev1.MaintenanceWindow{bad}},
	}); !strings.Contains(fmt.Sprint(err), "maintenanceWindows.items[0].spec.duration") {
		t.Errorf("a window of no length: %v", err)
	}
	// A waiver for this configuration, and for no other one.
	p.Spec.WindowWaiver = &configv1.MachineConfigPoolWindowWaiver{
		Configuration: p.GetSpec().GetConfiguration().GetName(), Reason: "CVE-2026-1", By: "eve",
	}
	waived := poolFor("worker")
	waived.Spec.WindowWaiver = p.Spec.WindowWaiver
	c.applyPool(waived)
	second := c.awaitUpdated("worker", 2, first)
	now, err := c.pools().GetMachineConfigPool(t.Context(), &configv1.GetMachineConfigPoolRequest{Name: "worker"})
	if w := now.GetSpec().GetWindowWaiver(); err != nil || w.GetBy() == "eve" || w.GetSince() == nil {
		t.Errorf("the waiver is %v, %v", w, err)
	}
	c.apply(machineConfig("70-others", "worker", "/etc/others", "1"))
	if p := c.awaitPool("worker", waits); p.GetSpec().GetWindowWaiver() != nil {
		t.Errorf("the waiver of a former configuration is left: %v", p.GetSpec().GetWindowWaiver())
	}
	c.restart() // another process finds the window
	c.awaitPool("worker", waits)
	// A window that is suspended holds nothing back.
	suspended := proto.CloneOf(w)
	suspended.Spec.Suspend = proto.Bool(true)
	if _, err := c.windows.Update(t.Context(), suspended); err != nil {
		t.Fatal(err)
	}
	c.awaitUpdated("worker", 2, second)
}

// While update-orchestrator is of a release without maintenance windows, there are none.
func TestAnEarlierUpdateOrchestratorHoldsNothingBack(t *testing.T) {
	c := start(t)
	c.stop()
	c.startUpdates(false)
	c.startConfigurator()
	c.join("worker-0", "worker")
	c.apply(machineConfig("50-base", "worker", "/etc/base", "1"))
	c.applyPool(poolFor("worker"))
	first := c.awaitUpdated("worker", 1, "")
	c.apply(machineConfig("60-more", "worker", "/etc/more", "1"))
	c.awaitUpdated("worker", 1, first)
}
