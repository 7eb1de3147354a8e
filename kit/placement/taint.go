package placement

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/util/validation"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// Effects of a taint.
const (
	NoSchedule       = "NoSchedule"
	PreferNoSchedule = "PreferNoSchedule"
	NoExecute        = "NoExecute"
)

// Taints that the node's state puts on it.
const (
	NotReadyTaint           = "node.kubernetes.io/not-ready"
	UnreachableTaint        = "node.kubernetes.io/unreachable"
	UnschedulableTaint      = "node.kubernetes.io/unschedulable"
	MemoryPressureTaint     = "node.kubernetes.io/memory-pressure"
	DiskPressureTaint       = "node.kubernetes.io/disk-pressure"
	PIDPressureTaint        = "node.kubernetes.io/pid-pressure"
	NetworkUnavailableTaint = "node.kubernetes.io/network-unavailable"
)

// TaintKey returns the present spelling of a taint's key: the documents' node.alpha.kubernetes.io/notReady and
// unreachable became node.kubernetes.io/not-ready and unreachable. A toleration in either spelling bears a taint in
// either.
func TaintKey(key string) string {
	switch key {
	case "node.alpha.kubernetes.io/notReady":
		return NotReadyTaint
	case "node.alpha.kubernetes.io/unreachable":
		return UnreachableTaint
	}
	return key
}

// Tolerates reports whether one of the tolerations matches a taint, whatever its tolerationSeconds.
func Tolerates(tolerations []*schedulingv1.Toleration, taint *nodev1.Taint) bool {
	return FirstTolerating(tolerations, taint) != nil
}

// FirstTolerating returns the first toleration of the list that bears a taint; nil if none does. Its tolerationSeconds
// are the ones that count.
func FirstTolerating(tolerations []*schedulingv1.Toleration, taint *nodev1.Taint) *schedulingv1.Toleration {
	for _, t := range tolerations {
		if bears(t, taint) {
			return t
		}
	}
	return nil
}

func bears(t *schedulingv1.Toleration, taint *nodev1.Taint) bool {
	if e := t.GetEffect(); e != "" && e != taint.GetEffect() {
		return false
	}
	if k := t.GetKey(); k != "" && TaintKey(k) != TaintKey(taint.GetKey()) {
		return false
	}
	switch t.GetOperator() {
	case "", "Equal":
		return t.GetValue() == taint.GetValue()
	case "Exists":
		return true
	}
	return false
}

// Untolerated returns the first taint that none of the tolerations bears, of those with one of the effects; of all if
// no effect is given. It is nil if there is none.
func Untolerated(tolerations []*schedulingv1.Toleration, taints []*nodev1.Taint, effects ...string) *nodev1.Taint {
	for _, taint := range taints {
		if len(effects) > 0 && !slices.Contains(effects, taint.GetEffect()) {
			continue
		}
		if FirstTolerating(tolerations, taint) == nil {
			return taint
		}
	}
	return nil
}

// ValidateTolerations returns the wrong fields of the tolerations below path, and what is odd and yet accepted:
// tolerationSeconds beside another effect than NoExecute mean nothing, but a document shows them so. An empty effect
// means all of them, NoExecute included.
func ValidateTolerations(path string, tolerations []*schedulingv1.Toleration) (fields []object.Fault,
	warnings []string,
) {
	for i, t := range tolerations {
		at := fmt.Sprintf("%s[%d]", path, i)
		bad := func(field, description string) {
			fields = append(fields, object.Fault{Path: at + field, Description: description})
		}
		if t.GetKey() == "" {
			if t.GetOperator() != "Exists" {
				bad(".operator", "must be Exists when the key is empty, which bears every taint")
			}
		} else {
			for _, why := range validation.IsQualifiedName(t.GetKey()) {
				bad(".key", why)
			}
		}
		switch t.GetOperator() {
		case "", "Equal":
			for _, why := range validation.IsValidLabelValue(t.GetValue()) {
				bad(".value", why)
			}
		case "Exists":
			if t.GetValue() != "" {
				bad(".value", "must be empty when the operator is Exists")
			}
		default:
			bad(".operator", fmt.Sprintf("must be Equal or Exists, not %q", t.GetOperator()))
		}
		switch t.GetEffect() {
		case "", NoSchedule, PreferNoSchedule, NoExecute:
		default:
			bad(".effect", fmt.Sprintf("must be NoSchedule, PreferNoSchedule or NoExecute, not %q", t.GetEffect()))
		}
		if e := t.GetEffect(); t.TolerationSeconds != nil && e != "" && e != NoExecute {
			warnings = append(warnings, at+".tolerationSeconds: means nothing with the effect "+e)
		}
	}
	return fields, warnings
}

// TolerateAsDaemon adds to a spec what the pods of a daemon set bear: what goes wrong with a node does not keep them
// away, nor does a drain.
func TolerateAsDaemon(spec *schedulingv1.PodSpec) {
	bear := func(effect string, keys ...string) {
		for _, key := range keys {
			t := &schedulingv1.Toleration{Key: key, Operator: "Exists", Effect: effect}
			if !slices.ContainsFunc(spec.GetTolerations(), func(o *schedulingv1.Toleration) bool { return proto.Equal(o, t) }) {
				spec.Tolerations = append(spec.Tolerations, t)
			}
		}
	}
	bear(NoExecute, NotReadyTaint, UnreachableTaint)
	bear(NoSchedule, DiskPressureTaint, MemoryPressureTaint, PIDPressureTaint, UnschedulableTaint)
	if spec.GetHostNetwork() {
		bear(NoSchedule, NetworkUnavailableTaint)
	}
}
