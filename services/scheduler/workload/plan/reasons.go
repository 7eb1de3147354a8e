package plan

import (
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// reasons say why something is done, by the object that it is done to.
type reasons map[object.Object]string

func note[T object.Object](r reasons, why string, objects ...T) {
	for _, o := range objects {
		r[o] = why
	}
}

// planned returns one action for each object, for people. Of a pod that has no name yet they see where its name begins,
// and of a daemon's its node.
func planned[T object.Object](action string, objects []T, why reasons) []*metav1.PlannedAction {
	var out []*metav1.PlannedAction
	for _, o := range objects {
		a := &metav1.PlannedAction{Action: action, Object: object.Reference(o), Reason: why[o]}
		if m := o.GetMetadata(); m.GetName() == "" {
			a.Details = map[string]string{"generateName": m.GetGenerateName()}
			if pod, ok := object.Object(o).(*schedulingv1.Pod); ok && TargetNode(pod) != "" {
				a.Details["node"] = TargetNode(pod)
			}
		}
		out = append(out, a)
	}
	return out
}

// transfers returns the actions by which objects change hands.
func transfers[T object.Object](adopt, release []T) []*metav1.PlannedAction {
	why := reasons{}
	note(why, "it matches the selector, and no controller manages it", adopt...)
	note(why, "it does not match the selector any more", release...)
	kind := ""
	for _, o := range append(adopt[:len(adopt):len(adopt)], release...) {
		kind = object.TypeOf(o.ProtoReflect().Descriptor()).GetKind()
	}
	return append(planned("Adopt"+kind, adopt, why), planned("Release"+kind, release, why)...)
}

func held(action string, on object.Object, why, unblock string) []*metav1.HeldBack {
	return []*metav1.HeldBack{{Action: action, Object: object.Reference(on), Reason: why, Unblock: unblock}}
}
