package updategraph

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Release is a release of which a graph may have a node.
type Release struct {
	Version  string            // SemVer
	Payload  string            // image, by digest
	Arch     string            // as in requests, such as amd64 or multi; empty: it is one of every architecture
	Previous []string          // versions that can be updated to it
	Metadata map[string]string // such as url
}

// Graph is the answer of an update service.
type Graph struct {
	Version          int           `json:"version"`
	Nodes            []Node        `json:"nodes"`
	Edges            [][2]int      `json:"edges"`
	ConditionalEdges []Conditional `json:"conditionalEdges"`
}

// Node is a release of a graph.
type Node struct {
	Version  string            `json:"version"`
	Payload  string            `json:"payload"`
	Metadata map[string]string `json:"metadata"`
}

// Conditional is a set of updates that have the same risks.
type Conditional struct {
	Edges []Edge `json:"edges"`
	Risks []Risk `json:"risks"`
}

// Edge is an update between versions.
type Edge struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// metadataChannels lists the channels that have a release.
const metadataChannels = "io.openshift.upgrades.graph.release.channels"

// Graph returns the graph of a channel for an architecture: the releases that are there and that the channel has, the
// oldest first, and the updates between them. Of a version a release of the architecture counts before one of every
// architecture. ok is false if there is no such channel. An error means that two releases claim one version, or that a
// version has build metadata, which in graph data are architectures.
func (d *Data) Graph(channel, arch string, releases []Release) (g *Graph, ok bool, err error) {
	listed, ok := d.channels[channel]
	if !ok {
		return nil, false, nil
	}
	g = &Graph{Version: 1, Nodes: []Node{}, Edges: [][2]int{}, ConditionalEdges: []Conditional{}}
	found := map[string]Release{}
	for _, r := range releases {
		if strings.Contains(r.Version, "+") {
			return nil, true, fmt.Errorf("%s: version %s has build metadata", r.Payload, r.Version)
		}
		if r.Arch != "" && r.Arch != arch || !has(listed, r.Version, arch) {
			continue
		}
		other, twice := found[r.Version]
		if twice && other.Arch == r.Arch && other.Payload != r.Payload {
			return nil, true, fmt.Errorf("%s and %s are both version %s", other.Payload, r.Payload, r.Version)
		}
		if !twice || r.Arch == arch {
			found[r.Version] = r
		}
	}
	versions := slices.SortedFunc(maps.Keys(found), compareVersions)
	index := map[string]int{}
	for i, v := range versions {
		index[v] = i
		metadata := maps.Clone(found[v].Metadata)
		if metadata == nil {
			metadata = map[string]string{}
		}
		metadata[metadataChannels] = strings.Join(d.channelsOf(v, arch), ",")
		g.Nodes = append(g.Nodes, Node{Version: v, Payload: found[v].Payload, Metadata: metadata})
	}
	groups := map[string]*Conditional{} // by the names of the files of their risks
	var order []string
	for _, to := range versions {
		sources := slices.Clone(found[to].Previous)
		slices.SortFunc(sources, compareVersions)
		for _, from := range slices.Compact(sources) {
			at, there := index[from]
			if !there || from == to {
				continue
			}
			risks, key, offered := d.risksOf(from, to, arch)
			switch {
			case !offered:
			case len(risks) == 0:
				g.Edges = append(g.Edges, [2]int{at, index[to]})
			default:
				if groups[key] == nil {
					groups[key], order = &Conditional{Risks: risks}, append(order, key)
				}
				groups[key].Edges = append(groups[key].Edges, Edge{from, to})
			}
		}
	}
	for _, key := range order {
		g.ConditionalEdges = append(g.ConditionalEdges, *groups[key])
	}
	return g, true, nil
}

// has reports whether a list has a version for an architecture.
func has(listed []string, version, arch string) bool {
	return slices.Contains(listed, version) || slices.Contains(listed, version+"+"+arch)
}

func (d *Data) channelsOf(version, arch string) (names []string) {
	for _, name := range d.Channels() {
		if has(d.channels[name], version, arch) {
			names = append(names, name)
		}
	}
	return names
}

// risksOf returns the risks of an update, a key that is the same for the same risks, and whether it is offered at all.
func (d *Data) risksOf(from, to, arch string) (risks []Risk, key string, offered bool) {
	var keys strings.Builder
	for _, b := range d.blocked[to] {
		if b.arch != "" && b.arch != arch || !b.from.MatchString(from+"+"+arch) {
			continue
		}
		if b.risk == nil {
			return nil, "", false
		}
		risks = append(risks, *b.risk)
		keys.WriteString(b.key + "\n")
	}
	return risks, keys.String(), true
}

// describe returns all that a risk says as one text.
func describe(r Risk) string {
	text := fmt.Sprintf("%q %q %q", r.Name, r.URL, r.Message)
	for _, rule := range r.MatchingRules {
		text += fmt.Sprintf(" %q", rule.Type)
		if rule.PromQL != nil {
			text += fmt.Sprintf(" %q", rule.PromQL.PromQL)
		}
	}
	return text
}
