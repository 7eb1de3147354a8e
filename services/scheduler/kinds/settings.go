package kinds

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"

	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
)

func (t *Tables) defaultPolicy(p *schedulingv1.Policy) {
	missing := t.policyNotInForce(p)
	if p.Status == nil {
		p.Status = &schedulingv1.PolicyStatus{}
	}
	p.Status.Conditions = t.setInForce(p.Status.Conditions, missing)
}

// policyNotInForce names what of a policy is stored alone. What an administrator allows may have changed since it was
// stored.
func (t *Tables) policyNotInForce(p *schedulingv1.Policy) []string {
	var missing []string
	for _, f := range plan.ExtendersNotAllowed(p, t.cfg.WebhooksAllowed) {
		missing = append(missing, f.Path+" (not allowed by --webhook-allow of scheduler)")
	}
	return missing
}

func validatePolicy(p *schedulingv1.Policy) []object.Fault {
	fields := plan.CheckPolicy(p)
	if p.GetMetadata().GetName() == plan.DefaultScheduler {
		fields = append(fields, object.Fault{
			Path:        "metadata.name",
			Description: `invalid value "default-scheduler": the policy of that scheduler is named "default"`,
		})
	}
	return fields
}

// admitPolicy refuses extenders that are not allowed: pods would wait for them.
func (t *Tables) admitPolicy(w *resource.Write[*schedulingv1.Policy]) error {
	if w.Deletes() || w.Own {
		return nil
	}
	if fields := plan.ExtendersNotAllowed(w.New, t.cfg.WebhooksAllowed); len(fields) > 0 {
		return rpcerr.Invalid(fields...)
	}
	return nil
}

func (t *Tables) defaultAdmissionConfig(c *schedulingv1.AdmissionConfig) {
	if c.Status == nil {
		c.Status = &schedulingv1.AdmissionConfigStatus{}
	}
	c.Status.Files = plan.PluginFiles(c.GetAdmissionConfig(), c.Status.GetFiles(), t.cfg.Now(), t.readFile)
	missing := plan.AdmissionNotInForce(c.GetAdmissionConfig(), c.Status.GetFiles())
	c.Status.Conditions = t.setInForce(c.Status.Conditions, missing)
}

func (t *Tables) defaultMasterConfig(c *schedulingv1.KubernetesMasterConfig) {
	if c.Status == nil {
		c.Status = &schedulingv1.KubernetesMasterConfigStatus{}
	}
	s := c.GetKubernetesMasterConfig()
	c.Status.Files = plan.PluginFiles(s.GetAdmissionConfig(), c.Status.GetFiles(), t.cfg.Now(), t.readFile)
	c.Status.Conditions = t.setInForce(c.Status.Conditions, plan.MasterNotInForce(s, c.Status.GetFiles()))
}

// readFile reads a file that configures an admission plugin.
func (t *Tables) readFile(location string) plan.Content {
	text, object, err := t.cfg.AdmissionFiles.Read(location)
	if err != nil {
		return plan.Content{Fault: err.Error()}
	}
	return plan.Content{SHA256: fmt.Sprintf("%x", sha256.Sum256(text)), Configuration: object}
}

func (t *Tables) validateAdmissionConfig(c *schedulingv1.AdmissionConfig) []object.Fault {
	const path = "admissionConfig.pluginConfig"
	return append(plan.CheckAdmission(path, c.GetAdmissionConfig()), t.unread(path, c.GetStatus().GetFiles())...)
}

func (t *Tables) validateMasterConfig(c *schedulingv1.KubernetesMasterConfig) []object.Fault {
	const path = "kubernetesMasterConfig.admissionConfig.pluginConfig"
	s := c.GetKubernetesMasterConfig()
	return slices.Concat(plan.CheckAdmission(path, s.GetAdmissionConfig()), t.unread(path, c.GetStatus().GetFiles()),
		plan.CheckMaster("kubernetesMasterConfig", s))
}

// unread returns the files that cannot be read, if there is a directory of them: a guard that is not in force would be
// taken for one.
func (t *Tables) unread(path string, files []*schedulingv1.AdmissionPluginFile) []object.Fault {
	if t.cfg.AdmissionFiles.Path == "" {
		return nil
	}
	return plan.Unread(path, files)
}

// RefreshSettings stores what has changed about policies and configurations though they have not: whether they are in
// force, and the files that they name. Objects that break a rule are left as they are.
func (t *Tables) RefreshSettings(ctx context.Context) error {
	return errors.Join(refresh(ctx, t, t.Policies), refresh(ctx, t, t.AdmissionConfigs), refresh(ctx, t, t.MasterConfigs))
}

func refresh[T object.Object](ctx context.Context, t *Tables, table *resource.Table[T]) error {
	for _, o := range table.All() {
		_, err := table.Modify(ctx, object.KeyOf(o), func(T) error { return nil }) // the defaults say what is in force
		switch reason := rpcerr.Reason(err); reason {
		case metav1.ErrorReason_ERROR_REASON_INVALID_FIELD, metav1.ErrorReason_ERROR_REASON_NOT_FOUND:
			// An object of an earlier version that would be refused now says itself that it is not in force.
			t.cfg.Log.DebugContext(ctx, "settings not refreshed", "name", o.GetMetadata().GetName(), "error", err)
		default:
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// setInForce returns conditions that say whether everything is in force, and if not, what is stored alone.
func (t *Tables) setInForce(have []*metav1.Condition, missing []string) []*metav1.Condition {
	return object.SetCondition(have, plan.InForce(missing), t.cfg.Now())
}
