package plan

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/types/known/structpb"
)

// AnnotationRestart of a control-plane machine set's template is when a user last asked for all machines to be
// replaced, as kubectl rollout restart writes it for deployments.
const AnnotationRestart = "kubectl.kubernetes.io/restartedAt"

// Reasons of the condition Progressing.
const (
	reasonNeedsUpdate     = "NeedsUpdateReplicas"
	reasonExcess          = "ExcessReplicas"
	reasonUnready         = "UnreadyReplicas"
	reasonFailedReplicas  = "FailedReplicas"
	reasonUpdated         = "AllReplicasUpdated"
	reasonInactive        = "Inactive"
	replaceByDeletion     = "delete the machine to have it replaced"
	replaceByRestart      = "windlass rollout restart controlplanemachineset cluster"
	controlPlaneTemplate  = "spec.template.machines_v1beta1_machine_openshift_io"
	failureDomainsOfATmpl = controlPlaneTemplate + ".failureDomains"
)

// progress counts what is left to do in the indexes of a control plane.
type progress struct {
	missing, outdated, old int
	failed, unready        []*member // up to date, in an index without a ready machine that is
}

func (c *controlPlane) progress() progress {
	var p progress
	for _, list := range c.byIndex {
		staying := c.filter(list, func(m *member) bool { return !m.deleting })
		fresh := c.filter(staying, func(m *member) bool { return m.updated })
		ready := slices.ContainsFunc(fresh, func(m *member) bool { return m.ready })
		switch {
		case len(staying) == 0:
			p.missing++
		case len(fresh) == 0, !ready && len(fresh) < len(staying):
			p.outdated++
		case ready:
			p.old += len(list) - 1
		default:
			p.old += len(list) - len(fresh)
			for _, m := range fresh {
				if m.failed {
					p.failed = append(p.failed, m)
				} else {
					p.unready = append(p.unready, m)
				}
			}
		}
	}
	for _, l := range [][]*member{p.failed, p.unready} {
		slices.SortFunc(l, func(a, b *member) int { return cmp.Compare(a.name(), b.name()) })
	}
	return p
}

// progressing says what is left to do. Every reason but the last means that the control plane is not as requested.
func (c *controlPlane) progressing() *metav1.Condition {
	is := func(reason, format string, args ...any) *metav1.Condition {
		return condition(Progressing, conditionTrue, "", reason, fmt.Sprintf(format, args...))
	}
	p := c.progress()
	switch {
	case c.fault != "":
		return condition(Progressing, conditionFalse, "", "OperatorDegraded", "")
	case c.v.Set.GetSpec().GetState() != stateActive:
		return condition(Progressing, conditionFalse, "", reasonInactive, inactiveMessage(p))
	case len(p.failed) > 0:
		return is(reasonFailedReplicas, "%d up-to-date replica(s) failed permanently: %s; %s", len(p.failed),
			c.list(p.failed), replaceByDeletion)
	case p.missing > 0:
		return is(reasonNeedsUpdate, "Observed %d missing replica(s)", p.missing)
	case p.outdated > 0 && c.v.Set.GetSpec().GetStrategy().GetType() == strategyOnDelete:
		return is(reasonNeedsUpdate, "Observed %d replica(s) in need of update; the strategy is OnDelete: %s", p.outdated,
			replaceByDeletion)
	case p.outdated > 0:
		return is(reasonNeedsUpdate, "Observed %d replica(s) in need of update", p.outdated)
	case len(p.unready) > 0:
		return is(reasonUnready, "Waiting for %d up-to-date replica(s) to become ready: %s; if that does not happen, %s",
			len(p.unready), c.list(p.unready), replaceByDeletion)
	case p.old > 0:
		return is(reasonExcess, "Waiting for %d old replica(s) to be removed", p.old)
	}
	return condition(Progressing, conditionFalse, "", reasonUpdated, c.changed())
}

// inactiveMessage says that nothing is done, and what an activation would change.
func inactiveMessage(p progress) string {
	text := "spec.state is not Active: nothing is done"
	var left []string
	for _, l := range []struct {
		n    int
		what string
	}{{p.missing, "missing"}, {p.outdated, "in need of update"}, {p.old, "to be removed"}} {
		if l.n > 0 {
			left = append(left, fmt.Sprintf("%d replica(s) %s", l.n, l.what))
		}
	}
	if len(left) > 0 {
		text += "; once it is Active: " + strings.Join(left, ", ")
	}
	return text
}

// list names machines, each with why it is not ready.
func (c *controlPlane) list(members []*member) string {
	var out []string
	for _, m := range members {
		s := m.m.GetStatus()
		node := linkedNode(c.v.Nodes, m.m)
		_, since := readySince(node)
		switch {
		case m.failed:
			out = append(out, withCause(m.name(), s.GetErrorMessage()))
		case s.GetPhase() != PhaseRunning:
			out = append(out, m.name()+": it is "+cmp.Or(s.GetPhase(), "new"))
		case node == nil:
			out = append(out, m.name()+": its node is not registered")
		case since.Unix() > 0:
			out = append(out, fmt.Sprintf("%s: its node is not ready since %s", m.name(), since.UTC().Format("15:04:05 UTC")))
		default:
			out = append(out, m.name()+": its node is not ready")
		}
	}
	return names(out)
}

// changed says which changes of the template apply to new machines only, and how to have them everywhere; empty if
// there are none.
func (c *controlPlane) changed() string {
	var parts, machines []string
	for _, m := range c.members {
		if len(m.changes) > 0 && !m.deleting {
			machines = append(machines, m.name())
			parts = append(parts, m.changes...)
		}
	}
	if len(parts) == 0 {
		return ""
	}
	slices.Sort(parts)
	return fmt.Sprintf("The template's %s changed since %s were created and apply to new machines only; %s replaces all, "+
		"one at a time", strings.Join(slices.Compact(parts), ", "), names(machines), replaceByRestart)
}

// item is one setting of a template, or of a machine, whose change leads to no replacement.
type item struct{ part, name string }

// hash identifies an item in a machine's record.
func (i item) hash() string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(i.part + "\x00" + i.name)) // never fails
	return fmt.Sprintf("%08x", h.Sum32())
}

// parts are those of a template that apply to new machines only, in the order of the messages.
func parts() []string {
	return []string{
		"metadata.labels", "metadata.annotations", "spec.metadata.labels", "spec.metadata.annotations", partTaints,
		"spec.lifecycleHooks", "spec.nodeDrainTimeout", "spec.nodeVolumeDetachTimeout", "spec.nodeTimeoutPolicy",
	}
}

const partTaints = "spec.taints"

// itemsOf returns the items of a template or a machine with their values.
func itemsOf(meta *metav1.ObjectMeta, spec *machinev1.MachineSpec) map[item]string {
	out := map[item]string{}
	for part, values := range map[string]map[string]string{
		"metadata.labels": meta.GetLabels(), "metadata.annotations": meta.GetAnnotations(),
		"spec.metadata.labels":      spec.GetMetadata().GetLabels(),
		"spec.metadata.annotations": spec.GetMetadata().GetAnnotations(),
	} {
		for k, v := range values {
			out[item{part, k}] = v
		}
	}
	delete(out, item{"metadata.annotations", AnnotationRestart})
	delete(out, item{"metadata.annotations", AnnotationTemplate})
	for _, text := range taintTexts(spec.GetTaints()) {
		out[item{partTaints, text}] = ""
	}
	for _, p := range points() {
		for _, h := range p.get(spec.GetLifecycleHooks()) {
			out[item{"spec.lifecycleHooks", p.word + " " + h.GetName()}] = h.GetOwner()
		}
	}
	for part, value := range map[string]string{
		"spec.nodeDrainTimeout":        spec.GetNodeDrainTimeout(),
		"spec.nodeVolumeDetachTimeout": spec.GetNodeVolumeDetachTimeout(),
		"spec.nodeTimeoutPolicy":       spec.GetNodeTimeoutPolicy(),
	} {
		if value != "" {
			out[item{part: part}] = value
		}
	}
	return out
}

func taintTexts(list []*nodev1.Taint) []string {
	var out []string
	for _, t := range list {
		out = append(out, t.GetKey()+"="+t.GetValue()+":"+t.GetEffect())
	}
	slices.Sort(out)
	return out
}

// withTemplateRecord returns annotations with the record of the template that a machine is created from.
func withTemplateRecord(annotations map[string]string, t *machinev1.OpenShiftMachineV1Beta1MachineTemplate,
) map[string]string {
	var hashes []string
	for i := range itemsOf(t.GetMetadata(), t.GetSpec()) {
		hashes = append(hashes, i.hash())
	}
	slices.Sort(hashes)
	out := map[string]string{AnnotationTemplate: strings.Join(hashes, ",")}
	for k, v := range annotations {
		if k != AnnotationTemplate {
			out[k] = v
		}
	}
	return out
}

// templateChanges returns the parts of a template that a machine was not created with and that do not lead to its
// replacement: labels, annotations, taints, hooks and deadlines. What a machine has beyond them was set by others,
// unless its record says that it came from the template. A machine without a record was not created by its set, or by
// an earlier version: of these, taints are compared as they are.
func templateChanges(t *machinev1.OpenShiftMachineV1Beta1MachineTemplate, m *machinev1.Machine) []string {
	record, recorded := m.GetMetadata().GetAnnotations()[AnnotationTemplate]
	hashes := strings.Split(record, ",")
	return changedParts(itemsOf(t.GetMetadata(), t.GetSpec()), itemsOf(m.GetMetadata(), m.GetSpec()),
		func(i item) bool {
			return recorded && slices.Contains(hashes, i.hash()) || !recorded && i.part == partTaints
		})
}

// changedParts returns the parts of which have lacks an item of want, or has another value, or has an item that want
// does not have and that came from the template.
func changedParts(want, have map[item]string, came func(item) bool) []string {
	changed := map[string]bool{}
	for i, v := range want {
		if got, ok := have[i]; !ok || got != v {
			changed[i.part] = true
		}
	}
	for i := range have {
		if _, ok := want[i]; !ok && came(i) {
			changed[i.part] = true
		}
	}
	var out []string
	for _, p := range parts() {
		if changed[p] {
			out = append(out, p)
		}
	}
	return out
}

// TemplateChanges returns the parts of a template that differ between two and apply to new machines only.
func TemplateChanges(old, now *machinev1.OpenShiftMachineV1Beta1MachineTemplate) []string {
	return changedParts(itemsOf(now.GetMetadata(), now.GetSpec()), itemsOf(old.GetMetadata(), old.GetSpec()),
		func(item) bool { return true })
}

// Move is a control-plane machine that is to be replaced by one in another failure domain.
type Move struct {
	Machine  string
	From, To Domain
}

func (m Move) String() string { return fmt.Sprintf("%s from %s to %s", m.Machine, m.From, m.To) }

// Moves returns the machines of a control plane that its failure domains move, by name. Where no domains are listed,
// all machines belong into that of the template.
func Moves(v ControlPlaneView) []Move {
	c := newControlPlane(v)
	var out []Move
	template := c.t.GetSpec().GetProviderSpec().GetValue()
	where := c.domains.withSettings(template)
	for _, m := range c.members {
		from, to := where.Of(m.m.GetSpec().GetProviderSpec().GetValue()), c.mapping[m.index]
		if len(c.domains.list) == 0 {
			to = where.Of(template)
		}
		if !m.deleting && m.index != noIndex && from != to {
			out = append(out, Move{m.name(), from, to})
		}
	}
	return out
}

// ActivationFaults returns why a control-plane machine set must not be created or activated: machines that it would
// move because its failure domains are fewer than those in use, or others.
func ActivationFaults(v ControlPlaneView) []object.Fault {
	var list []string
	for _, m := range Moves(v) {
		list = append(list, m.String())
	}
	if len(list) == 0 {
		return nil
	}
	return []object.Fault{object.Faultf(failureDomainsOfATmpl,
		"are not those in use: it would move %s. List the failure domains in use; others can be added once it is Active",
		names(list))}
}

// PlatformFaults returns what is wrong with failure domains on a cluster of a platform; any will do if that is unknown.
func PlatformFaults(raw *structpb.Struct, platform, path string) []object.Fault {
	is := raw.GetFields()["platform"].GetStringValue()
	if _, known := platforms()[platform]; !known || is == "" || is == platform {
		return nil
	}
	return []object.Fault{object.Faultf(path+".platform", "is %q, must be %q, the platform of the cluster", is, platform)}
}
