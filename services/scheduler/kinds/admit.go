package kinds

import (
	"context"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/scheduler/plan"
)

type warningsKey struct{}

// Rehearse returns a pod as it would be stored for the caller of ctx, and what is odd about it and yet accepted.
func (t *Tables) Rehearse(ctx context.Context, pod *schedulingv1.Pod) (*schedulingv1.Pod, []string, error) {
	var warnings []string
	out, err := t.Pods.Create(context.WithValue(ctx, warningsKey{}, &warnings), pod, resource.WriteOptions{DryRun: true})
	if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
		// Its name is taken, which admission does not ask about.
		warnings, err = append(warnings, "metadata.name: a pod of that name is there already"), nil
	}
	return out, warnings, err
}

// admitNew gives a new pod what admission gives it, or refuses it.
func (t *Tables) admitNew(ctx context.Context, pod *schedulingv1.Pod) error {
	m := pod.GetMetadata()
	ns, _ := t.Namespaces.Lookup("", m.GetNamespace())
	admission, master := t.admission()
	a := plan.Admit(plan.AdmissionView{
		Pod: pod, Namespace: ns, Admission: admission, Master: master, MayBind: isOwn(ctx) || t.cfg.MayBind(ctx, m.GetNamespace(), m.GetName()),
	})
	if said, ok := ctx.Value(warningsKey{}).(*[]string); ok {
		*said = append(*said, a.Warnings...)
	}
	for _, w := range a.Warnings {
		rpcerr.Warn(ctx, w)
	}
	switch {
	case a.Forbidden != "":
		return rpcerr.Forbidden(a.Forbidden)
	case len(a.Fields) > 0:
		return rpcerr.Invalid(a.Fields...)
	}
	pod.Spec, pod.Status = a.Pod.GetSpec(), a.Pod.GetStatus()
	return nil
}

// admitTemplate refuses a template by which somebody would go around the scheduler who may not.
func (t *Tables) admitTemplate(ctx context.Context, namespace string, template *schedulingv1.PodTemplateSpec) error {
	if isOwn(ctx) || t.cfg.MayBind(ctx, namespace, "") {
		return nil
	}
	admission, master := t.admission()
	if why := plan.Constrain(admission, master, template.GetSpec(), false); why != "" {
		return rpcerr.Forbidden("spec.template: " + why)
	}
	return nil
}

// warnOfTemplate says what is odd about a template and yet accepted.
func warnOfTemplate(ctx context.Context, template *schedulingv1.PodTemplateSpec) {
	_, warnings := plan.ValidateSpec("spec.template.spec", template.GetSpec())
	for _, w := range warnings {
		rpcerr.Warn(ctx, w)
	}
}

func (t *Tables) admission() (*schedulingv1.AdmissionConfig, *schedulingv1.KubernetesMasterConfig) {
	a, _ := t.AdmissionConfigs.Lookup("", t.AdmissionConfigs.Type().GetSingleton())
	m, _ := t.MasterConfigs.Lookup("", t.MasterConfigs.Type().GetSingleton())
	return a, m
}

// templates returns a rule for a kind whose template get returns. A template that does not change was looked at before.
func templates[T resource.Object](t *Tables, get func(T) *schedulingv1.PodTemplateSpec) func(ctx context.Context, old, obj T) error {
	return func(ctx context.Context, old, obj T) error {
		if !obj.ProtoReflect().IsValid() || old.ProtoReflect().IsValid() && proto.Equal(get(old), get(obj)) {
			return nil
		}
		warnOfTemplate(ctx, get(obj))
		return t.admitTemplate(ctx, obj.GetMetadata().GetNamespace(), get(obj))
	}
}

// admitDaemonSet refuses nothing: a daemon set chooses the nodes of its pods itself.
func admitDaemonSet(ctx context.Context, old, d *schedulingv1.DaemonSet) error {
	if d == nil {
		return nil
	}
	if !proto.Equal(old.GetSpec().GetTemplate(), d.GetSpec().GetTemplate()) {
		warnOfTemplate(ctx, d.GetSpec().GetTemplate())
	}
	surge := d.GetSpec().GetUpdateStrategy().GetRollingUpdate().GetMaxSurge()
	if surge != nil && !isZero(surge) && !proto.Equal(old.GetSpec().GetUpdateStrategy().GetRollingUpdate().GetMaxSurge(), surge) {
		rpcerr.Warn(ctx, "spec.updateStrategy.rollingUpdate.maxSurge: stored and not built yet: a pod goes before the next one of its node comes")
	}
	return nil
}
