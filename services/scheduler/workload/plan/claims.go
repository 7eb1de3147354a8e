package plan

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/proto"
)

// deleteClaims is the value of a retention policy by which claims are deleted.
const deleteClaims = "Delete"

func claimName(set *schedulingv1.StatefulSet, template *schedulingv1.PersistentVolumeClaim, n int) string {
	return template.GetMetadata().GetName() + "-" + set.GetMetadata().GetName() + "-" + strconv.Itoa(n)
}

// ClaimOrdinal returns the ordinal of the pod of a set that a claim is for; false if its name is none of the set's.
func ClaimOrdinal(set *schedulingv1.StatefulSet, claim string) (int, bool) {
	for _, t := range set.GetSpec().GetVolumeClaimTemplates() {
		text, ok := strings.CutPrefix(claim, t.GetMetadata().GetName()+"-"+set.GetMetadata().GetName()+"-")
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(text, 10, 32)
		if err == nil && n >= 0 && strconv.FormatInt(n, 10) == text {
			return int(n), true
		}
	}
	return 0, false
}

// former reports whether a claim belongs to an earlier stateful set of the same name, with which it is deleted.
func (s *stateful) former(c *schedulingv1.PersistentVolumeClaim) bool {
	was, is := object.ControllerOf(c), object.OwnedBy(s.v.Set)
	return was.GetKind() == is.GetKind() && was.GetName() == is.GetName() && was.GetUid() != is.GetUid()
}

// claim creates the claims of the pod of an ordinal that do not exist. False means that the pod has to wait; the action
// is what waits.
func (s *stateful) claim(n int, action string) bool {
	var create []*schedulingv1.PersistentVolumeClaim
	for _, t := range s.spec.GetVolumeClaimTemplates() {
		name := claimName(s.v.Set, t, n)
		switch have := s.claims[name]; {
		case have == nil:
			create = append(create, s.newClaim(t, name))
		case object.Deleting(have):
			s.hold(action, have, "the claim of "+s.podName(n)+" is being deleted", "it is gone")
			return false
		case s.former(have):
			s.hold(action, have, "the claim of "+s.podName(n)+" is deleted with the former stateful set of this name",
				"it is gone, or its ownerReferences are removed")
			return false
		}
	}
	note(s.p.why, "the pod "+s.podName(n)+" needs it", create...)
	s.p.CreateClaims = append(s.p.CreateClaims, create...)
	return true
}

// reclaim creates the claims that pods without a node have lost: no node takes them without.
func (s *stateful) reclaim() {
	for n := s.start; n < s.end; n++ {
		pod := s.pods[n]
		if pod != nil && pod.GetSpec().GetNodeName() == "" && placement.Active(pod) && !s.leaving[pod] {
			s.claim(n, "CreatePersistentVolumeClaim")
		}
	}
}

// newClaim returns a claim as its template has it. The labels of the selector are those by which it is the set's.
func (s *stateful) newClaim(t *schedulingv1.PersistentVolumeClaim, name string) *schedulingv1.PersistentVolumeClaim {
	labels := maps.Clone(t.GetMetadata().GetLabels())
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, s.spec.GetSelector().GetMatchLabels())
	out := &schedulingv1.PersistentVolumeClaim{
		Metadata: &metav1.ObjectMeta{
			Name: name, Namespace: s.v.Set.GetMetadata().GetNamespace(), Labels: labels,
			Annotations: maps.Clone(t.GetMetadata().GetAnnotations()),
		},
		Spec: proto.CloneOf(t.GetSpec()),
	}
	if s.spec.GetPersistentVolumeClaimRetentionPolicy().GetWhenDeleted() == deleteClaims {
		out.Metadata.OwnerReferences = []*metav1.OwnerReference{object.OwnedBy(s.v.Set)}
	}
	return out
}

// mountClaims gives a pod its claims as volumes, in place of volumes of the same names.
func (s *stateful) mountClaims(pod *schedulingv1.Pod, n int) {
	for _, t := range s.spec.GetVolumeClaimTemplates() {
		name := t.GetMetadata().GetName()
		pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v *schedulingv1.Volume) bool {
			return v.GetName() == name
		})
		pod.Spec.Volumes = append(pod.Spec.Volumes, &schedulingv1.Volume{
			Name:                  name,
			PersistentVolumeClaim: &schedulingv1.PersistentVolumeClaimVolumeSource{ClaimName: claimName(s.v.Set, t, n)},
		})
	}
}

// retainClaims deletes the claims of ordinals that are not wanted and whose pods are gone, if the set says so, and has
// the others be deleted with the set, or not. Claims of another origin, without the labels of the selector, stay as
// they are.
func (s *stateful) retainClaims() {
	policy := s.spec.GetPersistentVolumeClaimRetentionPolicy()
	for _, c := range s.v.Claims {
		n, ours := ClaimOrdinal(s.v.Set, c.GetMetadata().GetName())
		if !ours || object.Deleting(c) ||
			!SelectorMatches(s.spec.GetSelector(), c.GetMetadata().GetLabels()) {
			continue
		}
		if (n < s.start || n >= s.end) && policy.GetWhenScaled() == deleteClaims && s.pods[n] == nil {
			s.p.DeleteClaims = append(s.p.DeleteClaims, c)
			note(s.p.why, fmt.Sprintf("its ordinal is not one of the %d wanted ones, and its pod is gone", s.end-s.start), c)
			continue
		}
		owner := object.ControllerOf(c)
		switch owned := owner.GetUid() == s.v.Set.GetMetadata().GetUid(); {
		case policy.GetWhenDeleted() == deleteClaims && owner == nil:
			s.p.OwnClaims = append(s.p.OwnClaims, c)
			note(s.p.why, "the set's claims are deleted with it", c)
		case policy.GetWhenDeleted() != deleteClaims && owner != nil && owned:
			s.p.DisownClaims = append(s.p.DisownClaims, c)
			note(s.p.why, "the set's claims are kept when it is deleted", c)
		}
	}
}
