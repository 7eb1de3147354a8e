package plan

import (
	"cmp"
	"container/heap"
	"fmt"
	"slices"

	"github.com/Masterminds/semver/v3"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// Path returns the updates that lead from the version of a query to another one, in order: among all ways one with the
// fewest updates that are not recommended, then the fewest of which that is not known, then the fewest updates. The
// risks of later updates are judged as they are now: they are judged again when it is their turn. Updates that
// ClusterVersionGiantHop refuses are left out. If there is no way, it says why.
func Path(q Query, version string) (hops []*updatev1.UpdateHop, none string) {
	if _, err := semver.StrictNewVersion(version); err != nil {
		return nil, fmt.Sprintf("%q is no semantic version.", version)
	}
	from, to := q.Graph.find(q.Version), q.Graph.find(version)
	switch {
	case from < 0:
		return nil, fmt.Sprintf("%s is not in the %q channel.", q.Version, q.Channel)
	case to < 0:
		return nil, fmt.Sprintf("%s is not in the %q channel.", version, q.Channel)
	case from == to:
		return nil, fmt.Sprintf("%s is the version that is reconciled now.", version)
	case q.ToMulti:
		return nil, fmt.Sprintf("The cluster moves to the %s release of %s first.", Multi, q.Version)
	}
	if u := Evaluate(q); u.Retrieved.GetStatus() != True { // nothing is offered then
		return nil, u.Retrieved.GetMessage()
	}
	found := q.ways(from, false)
	if found[to] == nil {
		none := fmt.Sprintf("The %q channel has no way from %s to %s", q.Channel, q.Version, version)
		if q.ways(from, true)[to] != nil {
			none += " without an update that " + preconditionGiantHop + " refuses"
		}
		return nil, none + "."
	}
	for way := found[to]; way.node != from; way = found[way.from] {
		release, err := q.Graph.Nodes[way.node].reference()
		if err != nil {
			return nil, err.Error() + "."
		}
		hops = append(hops, &updatev1.UpdateHop{
			Release: release, Recommended: way.said.status, Reason: way.said.reason, Message: way.said.text(),
		})
	}
	slices.Reverse(hops)
	return hops, ""
}

// way is the best way to a node: its last update, and what it costs.
type way struct {
	node, from int
	said       *opinion // of the update between them
	cost
}

// cost orders ways.
type cost struct{ refused, unknown, hops int }

func (c cost) compare(other cost) int {
	return cmp.Or(cmp.Compare(c.refused, other.refused), cmp.Compare(c.unknown, other.unknown),
		cmp.Compare(c.hops, other.hops))
}

// step is an update between two nodes of a graph.
type step struct {
	to   int
	said *opinion // nil: it is not known whether it is recommended, and it is not offered
}

// ways returns the best way from a node to each other one that can be reached, by Dijkstra's algorithm. giants: also
// over updates that ClusterVersionGiantHop refuses.
func (q Query) ways(from int, giants bool) map[int]*way {
	steps := q.steps(giants)
	done := map[int]*way{}
	queue := &ways{graph: q.Graph, list: []*way{{node: from, from: from}}}
	for queue.Len() > 0 {
		w := heap.Pop(queue).(*way) //nolint:forcetypeassert // it holds nothing else
		if done[w.node] != nil {
			continue
		}
		done[w.node] = w
		for _, s := range steps[w.node] {
			if done[s.to] != nil {
				continue
			}
			next := &way{node: s.to, from: w.node, said: s.said, cost: w.cost}
			next.hops++
			switch s.said.status {
			case False:
				next.refused++
			case Unknown:
				next.unknown++
			}
			heap.Push(queue, next)
		}
	}
	return done
}

// steps returns the updates that a graph offers from each node, as Evaluate does: an update that is plain and
// conditional is conditional, also if the releases only share their image; one whose risks are stated twice, or whose
// target has no digest, is not offered. One to an older release is refused without a waiver, and left out; so is one
// that ClusterVersionGiantHop refuses, unless giants is true.
func (q Query) steps(giants bool) map[int][]step {
	index := map[string]int{} // of the first node of a version, as find has it
	for i, n := range q.Graph.Nodes {
		if _, twice := index[number(n.semver)]; !twice {
			index[number(n.semver)] = i
		}
	}
	at := func(version string) (int, bool) {
		v, err := semver.StrictNewVersion(version)
		if err != nil {
			return 0, false
		}
		i, ok := index[number(v)]
		return i, ok
	}
	type source struct {
		from  int
		image string // or version
	}
	risky := map[source][]step{}
	for _, group := range q.Graph.Conditional {
		said := q.opinionOf(group.Risks)
		for _, e := range group.Edges {
			a, okA := at(e.From)
			b, okB := at(e.To)
			if !okA || !okB || !digested(q.Graph.Nodes[b].Payload) {
				continue
			}
			of := source{a, cmp.Or(q.Graph.Nodes[b].Payload, q.Graph.Nodes[b].Version)}
			risky[of] = append(risky[of], step{b, said})
		}
	}
	out := map[int][]step{}
	add := func(from int, s step) {
		source, target := q.Graph.Nodes[from].semver, q.Graph.Nodes[s.to]
		if _, err := target.reference(); err == nil && s.said != nil && digested(target.Payload) &&
			target.semver.Compare(source) > 0 && (giants || giantHop(source, target.semver) == "") {
			out[from] = append(out[from], s)
		}
	}
	plain := newOpinion()
	for _, e := range q.Graph.Edges {
		if len(risky[source{e[0], cmp.Or(q.Graph.Nodes[e[1]].Payload, q.Graph.Nodes[e[1]].Version)}]) == 0 {
			add(e[0], step{e[1], &plain})
		}
	}
	for of, list := range risky {
		if len(list) == 1 {
			add(of.from, list[0])
		}
	}
	return out
}

// number is a version without its build metadata, which do not count where versions are compared.
func number(v *semver.Version) string {
	return fmt.Sprintf("%d.%d.%d-%s", v.Major(), v.Minor(), v.Patch(), v.Prerelease())
}

// opinionOf says what risks make of an update; nil if one of them has no rule that is understood.
func (q Query) opinionOf(risks []*updatev1.ConditionalUpdateRisk) *opinion {
	u, ok := q.assess(&updatev1.ConditionalUpdate{Risks: risks})
	if !ok {
		return nil
	}
	c := Find(u.GetConditions(), Recommended)
	return &opinion{status: c.GetStatus(), reason: c.GetReason(), messages: []string{c.GetMessage()}}
}

// ways is a heap.Interface, the best way first; of equal ones the one to the newest version, so that the result is
// always the same.
type ways struct {
	graph *Graph
	list  []*way
}

func (w *ways) Len() int { return len(w.list) }

func (w *ways) Less(i, j int) bool {
	a, b := w.list[i], w.list[j]
	return cmp.Or(a.cost.compare(b.cost), compareVersions(w.graph.Nodes[b.node].Version, w.graph.Nodes[a.node].Version),
		compareVersions(w.graph.Nodes[b.from].Version, w.graph.Nodes[a.from].Version)) < 0
}

func (w *ways) Swap(i, j int) { w.list[i], w.list[j] = w.list[j], w.list[i] }
func (w *ways) Push(x any)    { w.list = append(w.list, x.(*way)) } //nolint:forcetypeassert // only ways pushes

func (w *ways) Pop() any {
	last := w.list[len(w.list)-1]
	w.list = w.list[:len(w.list)-1]
	return last
}
