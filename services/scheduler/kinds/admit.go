package kinds

import (
	"context"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
)

// Rehearse returns a pod as it would be stored for the caller of ctx, and what is odd about it and yet accepted.
func (t *Tables) Rehearse(ctx context.Context, pod *schedulingv1.Pod) (*schedulingv1.Pod, []string, error) {
	var warnings []string
	out, err := t.Pods.Create(ctx, pod, resource.WriteOptions{DryRun: true, Warn: func(text string) {
		warnings = append(warnings, text)
		rpcerr.Warn(ctx, text)
	}})
	if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
		// Its name is taken, which admission does not ask about.
		warnings, err = append(warnings, "metadata.name: a pod of that name is there already"), nil
	}
	return out, warnings, err
}

// admitNew gives a new pod what admission gives it, or refuses it.
func (t *Tables) admitNew(w *resource.Write[*schedulingv1.Pod]) error {
	pod, m := w.New, w.New.GetMetadata()
	ns, _ := t.Namespaces.Lookup("", m.GetNamespace())
	admission, master := t.admission()
	a := plan.Admit(plan.AdmissionView{
		Pod: pod, Namespace: ns, Admission: admission, Master: master, MayBind: w.Own ||
			t.cfg.MayBind(w.By, m.GetNamespace(), m.GetName()),
	})
	for _, text := range a.Warnings {
		w.Warn(text)
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

// warnOfTemplate says what is odd about a template and yet accepted.
func warnOfTemplate(warn func(string), template *schedulingv1.PodTemplateSpec) {
	_, warnings := plan.ValidateSpec("spec.template.spec", template.GetSpec())
	for _, text := range warnings {
		warn(text)
	}
}

func (t *Tables) admission() (*schedulingv1.AdmissionConfig, *schedulingv1.KubernetesMasterConfig) {
	a, _ := t.AdmissionConfigs.Lookup("", t.AdmissionConfigs.Type().GetSingleton())
	m, _ := t.MasterConfigs.Lookup("", t.MasterConfigs.Type().GetSingleton())
	return a, m
}

// templates returns a rule for a kind whose template get returns: a caller who may not bind pods may not go around the
// scheduler by a template. A template that does not change was checked before.
func templates[T object.Object](t *Tables, get func(T) *schedulingv1.PodTemplateSpec) func(*resource.Write[T]) error {
	return func(w *resource.Write[T]) error {
		if w.Deletes() || !w.Creates() && proto.Equal(get(w.Old), get(w.New)) {
			return nil
		}
		warnOfTemplate(w.Warn, get(w.New))
		if w.Own || t.cfg.MayBind(w.By, w.New.GetMetadata().GetNamespace(), "") {
			return nil
		}
		admission, master := t.admission()
		if why := plan.Constrain(admission, master, get(w.New).GetSpec(), false); why != "" {
			return rpcerr.Forbidden("spec.template: " + why)
		}
		return nil
	}
}

// admitDaemonSet refuses nothing: a daemon set chooses the nodes of its pods itself.
func admitDaemonSet(w *resource.Write[*schedulingv1.DaemonSet]) error {
	old, d := w.Old, w.New
	if d == nil {
		return nil
	}
	if !proto.Equal(old.GetSpec().GetTemplate(), d.GetSpec().GetTemplate()) {
		warnOfTemplate(w.Warn, d.GetSpec().GetTemplate())
	}
	surge := d.GetSpec().GetUpdateStrategy().GetRollingUpdate().GetMaxSurge()
	if surge != nil && !isZero(surge) && !proto.Equal(old.GetSpec().GetUpdateStrategy().GetRollingUpdate().GetMaxSurge(),
		surge) {
		w.Warn(
			"spec.updateStrategy.rollingUpdate.maxSurge: stored and not built yet: a pod goes before the next one of its node comes")
	}
	return nil
}
