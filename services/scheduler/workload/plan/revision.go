package plan

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// Annotations that number the templates of a deployment.
const (
	RevisionAnnotation = "deployment.kubernetes.io/revision"
	revisionHistory    = "deployment.kubernetes.io/revision-history"
)

// maxHistory bounds the history in an annotation, in characters: the oldest go. Source: Kubernetes' deployments.
const maxHistory = 2000

// ErrNoRevision means that a deployment has no replica set to go back to.
var ErrNoRevision = errors.New("no such revision")

// notCopied are annotations of a deployment that its replica sets do not get.
var notCopied = []string{
	"kubectl.kubernetes.io/last-applied-configuration", RevisionAnnotation, revisionHistory, desiredReplicas, maxReplicas,
	"deprecated.deployment.rollback.to",
}

// Revision returns the number of a replica set's template; 0 if it has none.
func Revision(set *schedulingv1.ReplicaSet) int64 {
	n, err := strconv.ParseInt(set.GetMetadata().GetAnnotations()[RevisionAnnotation], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// noteRevision gives the set of the present template the annotations of its deployment, and the highest revision; the
// one that it had is kept in its history. The deployment gets the same.
func (r *rollout) noteRevision() {
	m := r.current.next.GetMetadata()
	for k, v := range r.d.GetMetadata().GetAnnotations() {
		if !slices.Contains(notCopied, k) && !strings.HasPrefix(k, object.AppliedPrefix) {
			m.Annotations = label(m.GetAnnotations(), k, v)
		}
	}
	last := int64(0)
	for _, s := range r.old() {
		last = max(last, Revision(s.was))
	}
	if had := Revision(r.current.next); had <= last {
		if had > 0 {
			history := strings.Trim(m.GetAnnotations()[revisionHistory]+","+strconv.FormatInt(had, 10), ",")
			for len(history) > maxHistory {
				_, history, _ = strings.Cut(history, ",")
			}
			m.Annotations = label(m.GetAnnotations(), revisionHistory, history)
		}
		m.Annotations = label(m.GetAnnotations(), RevisionAnnotation, strconv.FormatInt(last+1, 10))
	}
	if now := m.GetAnnotations()[RevisionAnnotation]; now != r.d.GetMetadata().GetAnnotations()[RevisionAnnotation] {
		r.p.Revision = now
	}
}

// Rollback returns the template of an older revision of a deployment, from any replica sets of its namespace. Revision
// 0 means the one before the present one. The error wraps ErrNoRevision if there is none.
func Rollback(d *schedulingv1.Deployment, sets []*schedulingv1.ReplicaSet,
	revision int64,
) (*schedulingv1.PodTemplateSpec, error) {
	var own []*schedulingv1.ReplicaSet
	for _, s := range sets {
		if object.ControllerOf(s).GetUid() == d.GetMetadata().GetUid() && Revision(s) > 0 {
			own = append(own, s)
		}
	}
	slices.SortFunc(own, func(a, b *schedulingv1.ReplicaSet) int { return int(Revision(b) - Revision(a)) })
	name := d.GetMetadata().GetName()
	if revision == 0 {
		if len(own) < 2 {
			return nil, fmt.Errorf("deployment %q: no rollout history to go back to: %w", name, ErrNoRevision)
		}
		return withoutHash(own[1].GetSpec().GetTemplate()), nil
	}
	for _, s := range own {
		if Revision(s) == revision {
			return withoutHash(s.GetSpec().GetTemplate()), nil
		}
	}
	return nil, fmt.Errorf("deployment %q: unable to find revision %d in its history: %w", name, revision, ErrNoRevision)
}
