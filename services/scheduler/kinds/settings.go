package kinds

import (
	"fmt"
	"maps"
	"slices"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"

	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
)

func (t *Tables) defaultPolicy(p *schedulingv1.Policy) {
	_, missing := plan.CheckPolicy(p)
	if p.Status == nil {
		p.Status = &schedulingv1.PolicyStatus{}
	}
	p.Status.Conditions = t.setInForce(p.Status.Conditions, missing)
}

func validatePolicy(p *schedulingv1.Policy) []object.Fault {
	fields, _ := plan.CheckPolicy(p)
	return fields
}

// admitPolicy warns of what of a policy is stored alone.
func admitPolicy(w *resource.Write[*schedulingv1.Policy]) error {
	if w.Deletes() {
		return nil
	}
	if _, missing := plan.CheckPolicy(w.New); len(missing) > 0 {
		w.Warn(plan.InForce(missing).GetMessage())
	}
	return nil
}

func (t *Tables) defaultAdmissionConfig(c *schedulingv1.AdmissionConfig) {
	missing := plan.AdmissionNotInForce(c.GetAdmissionConfig())
	if c.Status == nil {
		c.Status = &schedulingv1.AdmissionConfigStatus{}
	}
	c.Status.Conditions = t.setInForce(c.Status.Conditions, missing)
}

func (t *Tables) defaultMasterConfig(c *schedulingv1.KubernetesMasterConfig) {
	s := c.GetKubernetesMasterConfig()
	missing := plan.AdmissionNotInForce(s.GetAdmissionConfig())
	for _, flag := range slices.Sorted(maps.Keys(s.GetControllerArguments())) {
		missing = append(missing, fmt.Sprintf("controllerArguments['%s']", flag))
	}
	for _, flag := range slices.Sorted(maps.Keys(s.GetApiServerArguments())) {
		missing = append(missing, fmt.Sprintf("apiServerArguments['%s']", flag))
	}
	for _, flag := range slices.Sorted(maps.Keys(s.GetSchedulerArguments())) {
		missing = append(missing, fmt.Sprintf("schedulerArguments['%s']", flag))
	}
	if s.GetSchedulerConfigFile() != "" {
		missing = append(missing, "schedulerConfigFile")
	}
	if c.Status == nil {
		c.Status = &schedulingv1.KubernetesMasterConfigStatus{}
	}
	c.Status.Conditions = t.setInForce(c.Status.Conditions, missing)
}

func validateAdmissionConfig(c *schedulingv1.AdmissionConfig) []object.Fault {
	return plan.CheckAdmission("admissionConfig.pluginConfig", c.GetAdmissionConfig())
}

func validateMasterConfig(c *schedulingv1.KubernetesMasterConfig) []object.Fault {
	return plan.CheckAdmission("kubernetesMasterConfig.admissionConfig.pluginConfig",
		c.GetKubernetesMasterConfig().GetAdmissionConfig())
}

// setInForce returns conditions that say whether everything is in force, and if not, what is stored alone.
func (t *Tables) setInForce(have []*metav1.Condition, missing []string) []*metav1.Condition {
	return object.SetCondition(have, plan.InForce(missing), t.cfg.Now())
}
