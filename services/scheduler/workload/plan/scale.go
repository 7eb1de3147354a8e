package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Annotations of a replica set that say for which size of the deployment its own was chosen.
const (
	desiredReplicas = "deployment.kubernetes.io/desired-replicas"
	maxReplicas     = "deployment.kubernetes.io/max-replicas"
)

func (r *rollout) noteSize(s *set) {
	m := s.next.GetMetadata()
	m.Annotations = label(m.GetAnnotations(), desiredReplicas, strconv.Itoa(r.want))
	m.Annotations[maxReplicas] = strconv.Itoa(r.want + r.surge)
}

// scaling reports whether the deployment was given another size since its sets got theirs.
func (r *rollout) scaling() bool {
	for _, s := range r.all {
		noted, err := strconv.Atoi(s.next.GetMetadata().GetAnnotations()[desiredReplicas])
		if err == nil && s.size() > 0 && noted != r.want {
			return true
		}
	}
	return false
}

// scale gives the sets sizes for the deployment's: one set all of it, several in proportion, so that a rollout goes on
// where it is.
func (r *rollout) scale() {
	active := slices.DeleteFunc(slices.Clone(r.all), func(s *set) bool { return s.size() == 0 })
	switch {
	case len(active) == 0 && r.current != nil:
		r.resize(r.current, r.want, r.given())
	case len(active) == 0 && len(r.all) > 0:
		r.resize(r.all[len(r.all)-1], r.want, r.given())
	case len(active) == 1:
		r.resize(active[0], r.want, r.given())
	case len(active) > 1 && r.saturated():
		for _, s := range active {
			if s != r.current {
				r.resize(s, 0, "it is of a former template, and the present one has all pods that are wanted")
			}
		}
		r.noteSize(r.current)
	case len(active) > 1:
		r.spread(active)
	}
}

// given says why sets get other sizes although nothing is rolled.
func (r *rollout) given() string {
	return fmt.Sprintf("the deployment was given the size %d", r.want)
}

// saturated reports whether the set of the present template has all pods that are wanted, and all are available.
func (r *rollout) saturated() bool {
	return r.current != nil && r.current.size() == r.want && r.current.available() == r.want &&
		r.current.next.GetMetadata().GetAnnotations()[desiredReplicas] == strconv.Itoa(r.want)
}

// spread shares the growth or loss of the deployment among sets in proportion to their sizes, the largest first.
func (r *rollout) spread(active []*set) {
	allowed := 0
	if r.want > 0 {
		allowed = r.want + r.surge
	}
	left := allowed - r.pods()
	slices.SortStableFunc(active, func(a, b *set) int {
		younger := byAge(b.next, a.next)
		if left < 0 {
			younger = -younger
		}
		return cmp.Or(cmp.Compare(b.size(), a.size()), younger)
	})
	sizes := make([]int, len(active))
	for i, s := range active {
		part := r.part(s)
		if left > 0 {
			part = max(0, min(part, left))
		} else {
			part = min(0, max(part, left, -s.size()))
		}
		sizes[i] = s.size() + part
		left -= part
	}
	for i, s := range active {
		take := max(left, -sizes[i])
		sizes[i] += take
		left -= take
		r.resize(s, sizes[i], r.given())
	}
}

// part returns by how many pods a set grows, or shrinks, to have the same part of the new size as it had of the old.
func (r *rollout) part(s *set) int {
	before, err := strconv.Atoi(s.next.GetMetadata().GetAnnotations()[maxReplicas])
	if err != nil || before <= 0 {
		before = int(r.status.GetReplicas())
	}
	if r.want == 0 || before <= 0 {
		return -s.size()
	}
	return int(math.Round(float64(s.size())*float64(r.want+r.surge)/float64(before))) - s.size()
}
