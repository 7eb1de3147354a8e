package plan

import (
	"cmp"
	"fmt"
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
	switch p := c.progress(); {
	case c.fault != "":
		return condition(Progressing, conditionFalse, "", "OperatorDegraded", "")
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

// templateChanges returns the parts of a template that a machine was not created with and that do not lead to its
// replacement: labels, annotations, taints and hooks. What a machine has beyond them was set by others.
func templateChanges(t *machinev1.OpenShiftMachineV1Beta1MachineTemplate, m *machinev1.Machine) []string {
	var out []string
	add := func(changed bool, part string) {
		if changed {
			out = append(out, part)
		}
	}
	lacks := func(have, want map[string]string) bool {
		for k, v := range want {
			if got, ok := have[k]; (!ok || got != v) && k != AnnotationRestart {
				return true
			}
		}
		return false
	}
	tm, mm, ts, ms := t.GetMetadata(), m.GetMetadata(), t.GetSpec(), m.GetSpec()
	add(lacks(mm.GetLabels(), tm.GetLabels()), "metadata.labels")
	add(lacks(mm.GetAnnotations(), tm.GetAnnotations()), "metadata.annotations")
	add(lacks(ms.GetMetadata().GetLabels(), ts.GetMetadata().GetLabels()), "spec.metadata.labels")
	add(lacks(ms.GetMetadata().GetAnnotations(), ts.GetMetadata().GetAnnotations()), "spec.metadata.annotations")
	add(!slices.Equal(taintTexts(ts.GetTaints()), taintTexts(ms.GetTaints())), "spec.taints")
	add(lacksHooks(ms.GetLifecycleHooks().GetPreDrain(), ts.GetLifecycleHooks().GetPreDrain()) ||
		lacksHooks(ms.GetLifecycleHooks().GetPreTerminate(), ts.GetLifecycleHooks().GetPreTerminate()),
		"spec.lifecycleHooks")
	return out
}

// TemplateChanges returns the parts of a template that differ between two and apply to new machines only.
func TemplateChanges(old, now *machinev1.OpenShiftMachineV1Beta1MachineTemplate) []string {
	return templateChanges(now, &machinev1.Machine{Metadata: old.GetMetadata(), Spec: old.GetSpec()})
}

func taintTexts(list []*nodev1.Taint) []string {
	var out []string
	for _, t := range list {
		out = append(out, t.GetKey()+"="+t.GetValue()+":"+t.GetEffect())
	}
	slices.Sort(out)
	return out
}

func lacksHooks(have, want []*machinev1.LifecycleHook) bool {
	for _, w := range want {
		if !slices.ContainsFunc(have, func(h *machinev1.LifecycleHook) bool {
			return h.GetName() == w.GetName() && h.GetOwner() == w.GetOwner()
		}) {
			return true
		}
	}
	return false
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
