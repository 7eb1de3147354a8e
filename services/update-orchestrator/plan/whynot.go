package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// WhyNot says in a sentence why a version is offered or not: the missing edge and the way round it, the risk, or that
// the channel does not have it.
func WhyNot(q Query, version string) string {
	if _, err := semver.StrictNewVersion(version); err != nil {
		return fmt.Sprintf("%q is no semantic version.", version)
	}
	u := Evaluate(q)
	if u.Retrieved.GetStatus() != True {
		return u.Retrieved.GetMessage()
	}
	to := q.Graph.find(version)
	switch {
	case to == q.Graph.find(q.Version) && q.ToMulti:
		return fmt.Sprintf("The %s release of %s is offered: it is an available update.", Multi, version)
	case to == q.Graph.find(q.Version):
		return fmt.Sprintf("%s is the version that is reconciled now.", version)
	case to < 0:
		return fmt.Sprintf("%s is not offered: it is not in the %q channel.", version, q.Channel)
	}
	if q.ToMulti {
		return fmt.Sprintf("%s is not offered: the cluster moves to the %s release of %s first.", version, Multi, q.Version)
	}
	node := q.Graph.Nodes[to]
	if slices.ContainsFunc(q.undigested(q.Graph.find(q.Version)), func(n Node) bool { return n.Version == node.Version }) {
		return fmt.Sprintf("%s is not offered: %s.", version, noDigest(node))
	}
	for _, c := range u.Conditional {
		if c.GetRelease().GetVersion() == node.Version {
			return aboutRisks(c)
		}
	}
	if slices.ContainsFunc(u.Available, func(r *updatev1.ReleaseReference) bool {
		return r.GetVersion() == node.Version
	}) {
		return fmt.Sprintf("%s is offered: it is an available update.", version)
	}
	if q.withheld(node.Version) {
		return fmt.Sprintf(
			"%s is not offered: its risks are unknown, since the graph states them twice or by rules of unknown types.",
			version)
	}
	return q.aboutEdges(to)
}

// aboutRisks says what the risks make of an update.
func aboutRisks(c *updatev1.ConditionalUpdate) string {
	r := Find(c.GetConditions(), Recommended)
	version := c.GetRelease().GetVersion()
	switch r.GetStatus() {
	case True:
		return fmt.Sprintf("%s is offered: it has risks, and is recommended all the same (%s). %s", version, r.GetReason(),
			r.GetMessage())
	case False:
		return fmt.Sprintf("%s is supported but not recommended (%s): %s", version, r.GetReason(), r.GetMessage())
	}
	return fmt.Sprintf("Whether %s is recommended is not known (%s): %s", version, r.GetReason(), r.GetMessage())
}

// withheld reports whether there is a conditional edge to a version.
func (q Query) withheld(to string) bool {
	for _, group := range q.Graph.Conditional {
		if slices.Contains(group.Edges, ConditionalEdge{From: q.Version, To: to}) {
			return true
		}
	}
	return false
}

// aboutEdges says of a version to which no edge leads how it could be reached.
func (q Query) aboutEdges(to int) string {
	version := q.Graph.Nodes[to].Version
	lead := fmt.Sprintf("%s is not offered: the %q channel has no edge from %s to %s", version, q.Channel, q.Version,
		version)
	if compareVersions(version, q.Version) < 0 {
		return lead + ", which is older."
	}
	hops, _ := Path(q, version)
	if len(hops) < 2 {
		return lead + ", and no way round."
	}
	var way []string
	for _, h := range hops[:len(hops)-1] {
		way = append(way, h.GetRelease().GetVersion())
	}
	return lead + "; it can be reached by way of " + strings.Join(way, ", ") + "."
}
