package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"k8s.io/apimachinery/pkg/util/validation"
)

// longestName is the longest name of a machine: it is the node's name too, which is the value of the node's label
// kubernetes.io/hostname.
const longestName = validation.LabelValueMaxLength

// What a set adds to its name, or to the prefix that it is given, for the name of a machine.
const (
	suffixOfSet          = len("-xxxxx")
	suffixOfControlPlane = len("-xxxxx-0")
)

// LongNameFaults returns a fault if a new machine's name is too long for its node.
func LongNameFaults(name string) []object.Fault {
	return longFaults("metadata.name", name, longestName, "it is also the node's name, and the value of a label")
}

// LongSetNameFaults returns a fault if the machines of a new set would have too long names.
func LongSetNameFaults(name string) []object.Fault {
	return longFaults("metadata.name", name, longestName-suffixOfSet, "the names of the set's machines begin with it")
}

// LongPrefixFaults returns a fault if control-plane machines with a prefix would have too long names.
func LongPrefixFaults(prefix string) []object.Fault {
	return longFaults("spec.machineNamePrefix", prefix, longestName-suffixOfControlPlane,
		"the names of the machines begin with it")
}

func longFaults(path, text string, most int, why string) []object.Fault {
	if len(text) <= most {
		return nil
	}
	return []object.Fault{object.Faultf(path, "must have at most %d characters, not %d: %s", most, len(text), why)}
}

// TemplateFaults returns what the template of a set has that no machine can have, or that is not the template's to
// give: no machine could be created from it. path is that of the template.
func TemplateFaults(meta *metav1.ObjectMeta, spec *machinev1.MachineSpec, path string) []object.Fault {
	bad := mapFaults(meta, path+".metadata")
	if by, ok := meta.GetAnnotations()[AnnotationProvider]; ok {
		bad = append(bad, object.Faultf(fmt.Sprintf("%s.metadata.annotations['%s']", path, AnnotationProvider),
			"cannot be set to %q: machine-api notes there which provider it asked", by))
	}
	if id := spec.GetProviderId(); id != "" {
		bad = append(bad, object.Faultf(path+".spec.providerID",
			"cannot be set to %q: machine-api takes it over from the provider", id))
	}
	bad = append(bad, ManyHooksFaults(spec.GetLifecycleHooks(), nil, path+".")...)
	bad = append(bad, QuorumHookFaults(spec.GetLifecycleHooks(), nil, meta.GetLabels(), path+".")...)
	return append(bad, NodeFaults(spec, path+".spec")...)
}

// mostHooks is how many hooks a machine may have at one point. Each is a task of its own, and may wait for others.
const mostHooks = 64

// The hook by which etcd-guardian holds a control-plane machine, and its owner.
const (
	quorumHook  = "EtcdQuorumOperator"
	quorumOwner = "clusteroperator/etcd"
)

// QuorumHookFaults returns the hooks that a change adds for etcd-guardian and that it would never complete. labels are
// those of the machine, and prefix precedes the paths of the points.
func QuorumHookFaults(now, before *machinev1.LifecycleHooks, labels map[string]string, prefix string) []object.Fault {
	role := labels[LabelRole]
	var bad []object.Fault
	for i, p := range points() {
		had := byName(p.get(before))
		for j, h := range p.get(now) {
			first := i == 0 && h.GetName() == quorumHook && (role == "" || role == RoleMaster)
			if h.GetOwner() != quorumOwner || first || had[h.GetName()].GetOwner() == quorumOwner {
				continue
			}
			bad = append(bad, object.Faultf(fmt.Sprintf("%s%s[%d].owner", prefix, p.path, j),
				"%s completes only the preDrain hook %s of control-plane machines: this hook would hold the machine permanently",
				quorumOwner, quorumHook))
		}
	}
	return bad
}

// ManyHooksFaults returns the points that have too many hooks, and more than they had before. prefix precedes the paths
// of the points.
func ManyHooksFaults(now, before *machinev1.LifecycleHooks, prefix string) []object.Fault {
	var bad []object.Fault
	for _, p := range points() {
		if n := len(p.get(now)); n > mostHooks && n > len(p.get(before)) {
			bad = append(bad, object.Faultf(prefix+p.path, "has %d hooks, must have at most %d", n, mostHooks))
		}
	}
	return bad
}

// NodeFaults returns the labels, annotations and taints of a machine's spec that its node cannot have. path is that of
// the spec.
func NodeFaults(spec *machinev1.MachineSpec, path string) []object.Fault {
	bad := mapFaults(spec.GetMetadata(), path+".metadata")
	for i, t := range spec.GetTaints() {
		at := fmt.Sprintf("%s.taints[%d]", path, i)
		for _, msg := range validation.IsQualifiedName(t.GetKey()) {
			bad = append(bad, object.Faultf(at+".key", "invalid value %q: %s", t.GetKey(), msg))
		}
		for _, msg := range validation.IsValidLabelValue(t.GetValue()) {
			bad = append(bad, object.Faultf(at+".value", "invalid value %q: %s", t.GetValue(), msg))
		}
	}
	return bad
}

// mapFaults returns what is wrong with labels and annotations.
func mapFaults(m *metav1.ObjectMeta, path string) []object.Fault {
	var bad []object.Fault
	for _, k := range slices.Sorted(maps.Keys(m.GetLabels())) {
		at := fmt.Sprintf("%s.labels['%s']", path, k)
		for _, msg := range validation.IsQualifiedName(k) {
			bad = append(bad, object.Faultf(at, "invalid key: %s", msg))
		}
		for _, msg := range validation.IsValidLabelValue(m.GetLabels()[k]) {
			bad = append(bad, object.Faultf(at, "invalid value %q: %s", m.GetLabels()[k], msg))
		}
	}
	for _, k := range slices.Sorted(maps.Keys(m.GetAnnotations())) {
		for _, msg := range validation.IsQualifiedName(strings.ToLower(k)) {
			bad = append(bad, object.Faultf(fmt.Sprintf("%s.annotations['%s']", path, k), "invalid key: %s", msg))
		}
	}
	return bad
}
