package kinds

import (
	"context"
	"slices"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
)

// Operations of Rehearse.
const (
	UpdatePod = "UPDATE"
	DeletePod = "DELETE"
)

// Rehearse returns a pod as it would be stored for the caller of ctx, and what is odd about it and yet accepted. The
// operation is UpdatePod, or DeletePod of the pod of that name, and otherwise a creation.
func (t *Tables) Rehearse(ctx context.Context, operation string, pod *schedulingv1.Pod) (*schedulingv1.Pod, []string,
	error,
) {
	var warnings []string
	dry := resource.WriteOptions{DryRun: true, Warn: func(text string) {
		warnings = append(warnings, text)
		rpcerr.Warn(ctx, text)
	}}
	switch operation {
	case UpdatePod:
		out, err := t.Pods.Update(ctx, pod, dry)
		return out, warnings, err
	case DeletePod:
		out, err := t.Pods.Delete(ctx, pod.GetMetadata().GetNamespace(), pod.GetMetadata().GetName(), nil, dry)
		return out, warnings, err
	}
	out, err := t.Pods.Create(ctx, pod, dry)
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
		Pod: pod, Namespace: ns, Classes: slices.Collect(t.PriorityClasses.Objects()), Admission: admission, Master: master,
		MayBind: w.Own || t.MayBind(w.By, pod), MayBeCritical: w.Own || t.MayBeCritical(w.By, m.GetNamespace(),
			pod.GetSpec()),
	})
	for _, text := range a.Warnings {
		w.Warn(text)
	}
	if err := admitted(a); err != nil {
		return err
	}
	pod.Spec, pod.Status = a.Pod.GetSpec(), a.Pod.GetStatus()
	return t.admitAccount(pod)
}

// MayBind reports whether a caller may choose the node of a pod.
func (t *Tables) MayBind(by identity.Caller, pod *schedulingv1.Pod) bool {
	return t.cfg.MayBind(by, pod.GetMetadata().GetNamespace(), pod.GetMetadata().GetName())
}

// MayBeCritical reports whether a caller may create pods of the system's priority class that a spec names; true if it
// names none.
func (t *Tables) MayBeCritical(by identity.Caller, namespace string, spec *schedulingv1.PodSpec) bool {
	class := plan.SystemClass(spec)
	return class == "" || t.cfg.MayUseClass != nil && t.cfg.MayUseClass(by, namespace, class)
}

// checkClass refuses a template with a priority class of the system that the writer may not use.
func checkClass[T object.Object](t *Tables, w *resource.Write[T], path string,
	template *schedulingv1.PodTemplateSpec,
) error {
	spec := template.GetSpec()
	may := w.Own || t.MayBeCritical(w.By, w.New.GetMetadata().GetNamespace(), spec)
	if why := plan.Reserved(path+".spec.", spec, may); why != "" {
		return rpcerr.Forbidden(why)
	}
	return nil
}

// checkTemplate refuses a template with fields that are not in force, and says what is odd about it and yet accepted.
func checkTemplate(warn func(string), path string, template *schedulingv1.PodTemplateSpec) error {
	_, warnings := plan.ValidateSpec(path+".spec", template.GetSpec())
	fields, more := plan.SpecNotInForce(path+".spec", template.GetSpec())
	for _, text := range append(warnings, more...) {
		warn(text)
	}
	if len(fields) > 0 {
		return rpcerr.Invalid(fields...)
	}
	return nil
}

func (t *Tables) admission() (*schedulingv1.AdmissionConfig, *schedulingv1.KubernetesMasterConfig) {
	a, _ := t.AdmissionConfigs.Lookup("", t.AdmissionConfigs.Type().GetSingleton())
	m, _ := t.MasterConfigs.Lookup("", t.MasterConfigs.Type().GetSingleton())
	return a, m
}

// templates returns a rule for a kind whose template get returns: a caller who may not bind pods may not go around the
// scheduler by a template. A template that does not change was checked before.
func templates[T object.Object](t *Tables, get func(T) *schedulingv1.PodTemplateSpec) func(*resource.Write[T]) error {
	return templatesAt(t, templatePath, get)
}

// templatePath is where most kinds have their template.
const templatePath = "spec.template"

// templatesAt is templates for a kind that has its template at another path.
func templatesAt[T object.Object](t *Tables, path string, get func(T) *schedulingv1.PodTemplateSpec,
) func(*resource.Write[T]) error {
	return func(w *resource.Write[T]) error {
		if w.Deletes() || !w.Creates() && proto.Equal(get(w.Old), get(w.New)) {
			return nil
		}
		if err := checkTemplate(w.Warn, path, get(w.New)); err != nil {
			return err
		}
		if err := checkClass(t, w, path, get(w.New)); err != nil {
			return err
		}
		if w.Own || t.cfg.MayBind(w.By, w.New.GetMetadata().GetNamespace(), "") {
			return nil
		}
		admission, master := t.admission()
		if why := plan.Constrain(admission, master, get(w.New).GetSpec(), false); why != "" {
			return rpcerr.Forbidden(path + ": " + why)
		}
		return nil
	}
}

// admitDaemonSet does not constrain the nodes of its pods: a daemon set chooses them itself.
func (t *Tables) admitDaemonSet(w *resource.Write[*schedulingv1.DaemonSet]) error {
	old, d := w.Old, w.New
	if d == nil {
		return nil
	}
	if !proto.Equal(old.GetSpec().GetTemplate(), d.GetSpec().GetTemplate()) {
		if err := checkTemplate(w.Warn, templatePath, d.GetSpec().GetTemplate()); err != nil {
			return err
		}
		if err := checkClass(t, w, templatePath, d.GetSpec().GetTemplate()); err != nil {
			return err
		}
	}
	return nil
}
