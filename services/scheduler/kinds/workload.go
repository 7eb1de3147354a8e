package kinds

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
	workload "github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

// Restart policies.
const (
	restartAlways    = "Always"
	restartOnFailure = "OnFailure"
	restartNever     = "Never"
)

// allPercent is the percentage of all pods.
const allPercent = 100

// defaultPart is how many pods of a deployment may be missing or too many while it rolls.
const defaultPart = "25%"

func (t *Tables) now() *timestamppb.Timestamp {
	return &timestamppb.Timestamp{Seconds: t.cfg.Now().Unix()}
}

func defaultReplicaSet(s *schedulingv1.ReplicaSet) {
	if s.Spec == nil {
		s.Spec = &schedulingv1.ReplicaSetSpec{}
	}
	numberOr(&s.Spec.Replicas, 1)
	defaultTemplate(s.Spec.GetTemplate())
}

func validateReplicaSet(s *schedulingv1.ReplicaSet) []object.Fault {
	return append(selectorFaults(s.GetSpec().GetSelector(), s.GetSpec().GetTemplate()),
		templateFaults(s.GetSpec().GetTemplate(), restartAlways)...)
}

func validateReplicaSetUpdate(old, s *schedulingv1.ReplicaSet) []object.Fault {
	return unchanged("spec.selector", old.GetSpec().GetSelector(), s.GetSpec().GetSelector())
}

func defaultReplicationController(c *schedulingv1.ReplicationController) {
	if c.Spec == nil {
		c.Spec = &schedulingv1.ReplicationControllerSpec{}
	}
	numberOr(&c.Spec.Replicas, 1)
	defaultTemplate(c.Spec.GetTemplate())
	if of := c.Spec.GetTemplate().GetMetadata().GetLabels(); len(of) > 0 {
		if len(c.Spec.Selector) == 0 {
			c.Spec.Selector = maps.Clone(of)
		}
		if len(c.GetMetadata().GetLabels()) == 0 {
			c.Metadata.Labels = maps.Clone(of)
		}
	}
}

func validateReplicationController(c *schedulingv1.ReplicationController) []object.Fault {
	bad := templateFaults(c.GetSpec().GetTemplate(), restartAlways)
	selector := c.GetSpec().GetSelector()
	switch {
	case len(selector) == 0:
		bad = append(bad, object.Fault{Path: "spec.selector", Description: "must be given"})
	case !labels.SelectorFromSet(selector).Matches(labels.Set(c.GetSpec().GetTemplate().GetMetadata().GetLabels())):
		bad = append(bad, object.Fault{
			Path:        "spec.template.metadata.labels",
			Description: "the selector does not match them",
		})
	}
	return bad
}

func defaultDeployment(d *schedulingv1.Deployment) {
	if d.Spec == nil {
		d.Spec = &schedulingv1.DeploymentSpec{}
	}
	s := d.Spec
	numberOr(&s.Replicas, 1)
	numberOr(&s.RevisionHistoryLimit, 10)
	numberOr(&s.ProgressDeadlineSeconds, 600)
	if s.Strategy == nil {
		s.Strategy = &schedulingv1.DeploymentStrategy{}
	}
	orElse(&s.Strategy.Type, "RollingUpdate")
	if s.Strategy.Type == "RollingUpdate" {
		if s.Strategy.RollingUpdate == nil {
			s.Strategy.RollingUpdate = &schedulingv1.RollingUpdateDeployment{}
		}
		valueOr(&s.Strategy.RollingUpdate.MaxUnavailable, structpb.NewStringValue(defaultPart))
		valueOr(&s.Strategy.RollingUpdate.MaxSurge, structpb.NewStringValue(defaultPart))
	}
	defaultTemplate(s.GetTemplate())
}

func validateDeployment(d *schedulingv1.Deployment) []object.Fault {
	s := d.GetSpec()
	bad := append(selectorFaults(s.GetSelector(), s.GetTemplate()), templateFaults(s.GetTemplate(), restartAlways)...)
	rolling := s.GetStrategy().GetRollingUpdate()
	bad = append(bad, limitFaults("spec.strategy.rollingUpdate.maxUnavailable", rolling.GetMaxUnavailable(),
		allPercent)...)
	bad = append(bad, limitFaults("spec.strategy.rollingUpdate.maxSurge", rolling.GetMaxSurge(), math.MaxInt32)...)
	switch {
	case s.GetStrategy().GetType() == "Recreate" && rolling != nil:
		bad = append(bad, object.Fault{
			Path:        "spec.strategy.rollingUpdate",
			Description: "must be left out when spec.strategy.type is Recreate",
		})
	case rolling != nil && isZero(rolling.GetMaxUnavailable()) && isZero(rolling.GetMaxSurge()):
		bad = append(bad, object.Fault{
			Path:        "spec.strategy.rollingUpdate.maxUnavailable",
			Description: "cannot be 0 when maxSurge is 0: nothing could ever move",
		})
	}
	if s.GetProgressDeadlineSeconds() <= s.GetMinReadySeconds() {
		bad = append(bad, object.Fault{
			Path:        "spec.progressDeadlineSeconds",
			Description: "must be greater than minReadySeconds",
		})
	}
	return bad
}

func validateDeploymentUpdate(old, d *schedulingv1.Deployment) []object.Fault {
	return unchanged("spec.selector", old.GetSpec().GetSelector(), d.GetSpec().GetSelector())
}

func defaultDaemonSet(d *schedulingv1.DaemonSet) {
	if d.Spec == nil {
		d.Spec = &schedulingv1.DaemonSetSpec{}
	}
	s := d.Spec
	numberOr(&s.RevisionHistoryLimit, 10)
	if s.UpdateStrategy == nil {
		s.UpdateStrategy = &schedulingv1.DaemonSetUpdateStrategy{}
	}
	orElse(&s.UpdateStrategy.Type, "RollingUpdate")
	if s.UpdateStrategy.Type == "RollingUpdate" {
		if s.UpdateStrategy.RollingUpdate == nil {
			s.UpdateStrategy.RollingUpdate = &schedulingv1.RollingUpdateDaemonSet{}
		}
		valueOr(&s.UpdateStrategy.RollingUpdate.MaxUnavailable, structpb.NewNumberValue(1))
		valueOr(&s.UpdateStrategy.RollingUpdate.MaxSurge, structpb.NewNumberValue(0))
	}
	defaultTemplate(s.GetTemplate())
}

func validateDaemonSet(d *schedulingv1.DaemonSet) []object.Fault {
	s := d.GetSpec()
	bad := append(selectorFaults(s.GetSelector(), s.GetTemplate()), templateFaults(s.GetTemplate(), restartAlways)...)
	rolling := s.GetUpdateStrategy().GetRollingUpdate()
	bad = append(bad, limitFaults("spec.updateStrategy.rollingUpdate.maxUnavailable", rolling.GetMaxUnavailable(),
		allPercent)...)
	bad = append(bad, limitFaults("spec.updateStrategy.rollingUpdate.maxSurge", rolling.GetMaxSurge(), allPercent)...)
	switch missing, surge := rolling.GetMaxUnavailable(), rolling.GetMaxSurge(); {
	case rolling == nil:
	case !given(missing) && !given(surge):
		bad = append(bad, object.Fault{
			Path:        "spec.updateStrategy.rollingUpdate.maxUnavailable",
			Description: "cannot be 0 when maxSurge is 0: nothing could ever move",
		})
	case given(missing) && given(surge):
		bad = append(bad, object.Fault{
			Path:        "spec.updateStrategy.rollingUpdate.maxSurge",
			Description: "cannot be set when maxUnavailable is not 0, which is 1 by default: set maxUnavailable to 0",
		})
	}
	if err := workload.TemplateFault(s.GetTemplate()); err != nil {
		bad = append(bad, object.Faultf("spec.template", "cannot be stored as a revision: %v", err))
	}
	return bad
}

func validateDaemonSetUpdate(old, d *schedulingv1.DaemonSet) []object.Fault {
	return unchanged("spec.selector", old.GetSpec().GetSelector(), d.GetSpec().GetSelector())
}

func validateBudget(b *schedulingv1.PodDisruptionBudget) []object.Fault {
	s := b.GetSpec()
	_, bad := placement.ParsePodSelector(s.GetSelector(), "spec.selector")
	bad = append(bad, limitFaults("spec.minAvailable", s.GetMinAvailable(), allPercent)...)
	bad = append(bad, limitFaults("spec.maxUnavailable", s.GetMaxUnavailable(), allPercent)...)
	switch {
	case s.GetMinAvailable() != nil && s.GetMaxUnavailable() != nil:
		bad = append(bad, object.Fault{Path: "spec", Description: "minAvailable and maxUnavailable cannot both be given"})
	case s.GetMinAvailable() == nil && s.GetMaxUnavailable() == nil:
		bad = append(bad, object.Fault{Path: "spec", Description: "one of minAvailable and maxUnavailable must be given"})
	}
	return bad
}

// selectorFaults returns what is wrong with the selector of a set with a template.
func selectorFaults(s *metav1.LabelSelector, template *schedulingv1.PodTemplateSpec) []object.Fault {
	if len(s.GetMatchLabels()) == 0 && len(s.GetMatchExpressions()) == 0 {
		return []object.Fault{{Path: "spec.selector", Description: "must be given, and must not be empty"}}
	}
	sel, bad := placement.ParsePodSelector(s, "spec.selector")
	if len(bad) == 0 && template != nil && !sel.Matches(labels.Set(template.GetMetadata().GetLabels())) {
		bad = append(bad, object.Fault{
			Path:        "spec.template.metadata.labels",
			Description: "the selector does not match them",
		})
	}
	return bad
}

// templateFaults returns what is wrong with a template whose pods may restart in some ways alone.
func templateFaults(t *schedulingv1.PodTemplateSpec, restart ...string) []object.Fault {
	const path = "spec.template"
	if t == nil {
		return []object.Fault{{Path: path, Description: "must be given"}}
	}
	bad := labelPairFaults(path+".metadata.labels", t.GetMetadata().GetLabels())
	if t.GetSpec() == nil {
		return append(bad, object.Fault{Path: path + ".spec", Description: "must be given"})
	}
	wrong, _ := plan.ValidateSpec(path+".spec", t.GetSpec())
	bad = append(bad, wrong...)
	if !slices.Contains(restart, t.GetSpec().GetRestartPolicy()) {
		bad = append(bad, object.Fault{
			Path: path + ".spec.restartPolicy", Description: fmt.Sprintf("is %s, must be %s", t.GetSpec().GetRestartPolicy(),
				strings.Join(restart, " or ")),
		})
	}
	if t.GetSpec().GetActiveDeadlineSeconds() > 0 && slices.Contains(restart, restartAlways) {
		bad = append(bad, object.Fault{Path: path + ".spec.activeDeadlineSeconds", Description: "must be left out here"})
	}
	return bad
}

// defaultTemplate fills in what a template leaves out.
func defaultTemplate(t *schedulingv1.PodTemplateSpec) {
	if t.GetSpec() != nil {
		plan.Default(t.GetSpec())
	}
}

func unchanged(path string, old, now proto.Message) []object.Fault {
	if proto.Equal(old, now) {
		return nil
	}
	return []object.Fault{{Path: path, Description: "cannot be changed"}}
}

// limitFaults returns what is wrong with a number or a percentage of pods, whose shape is right: one that is more than
// can be counted, and a percentage that is more than there can be. most is the greatest percentage.
func limitFaults(path string, v *structpb.Value, most int) []object.Fault {
	text, percent := strings.CutSuffix(v.GetStringValue(), "%")
	n := v.GetNumberValue()
	if text != "" {
		n, _ = strconv.ParseFloat(text, 64) // digits alone
	}
	switch {
	case percent && n > float64(most):
		return []object.Fault{{Path: path, Description: fmt.Sprintf("must not be more than %d%%", most)}}
	case n > math.MaxInt32:
		return []object.Fault{{Path: path, Description: fmt.Sprintf("must not be more than %d", math.MaxInt32)}}
	}
	return nil
}

// given reports whether a number or percentage is there and is not none.
func given(v *structpb.Value) bool { return v != nil && !isZero(v) }

// isZero reports whether a number or percentage is there and is none.
func isZero(v *structpb.Value) bool {
	switch k := v.GetKind().(type) {
	case *structpb.Value_NumberValue:
		return k.NumberValue == 0
	case *structpb.Value_StringValue:
		return strings.Trim(k.StringValue, "0") == "%" || strings.Trim(k.StringValue, "0") == ""
	}
	return false
}

func numberOr(n **int32, value int32) {
	if *n == nil {
		*n = &value
	}
}

func valueOr(v **structpb.Value, value *structpb.Value) {
	if *v == nil {
		*v = value
	}
}

func orElse(s *string, value string) {
	if *s == "" {
		*s = value
	}
}
