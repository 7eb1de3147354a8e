package plan

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"google.golang.org/protobuf/types/known/structpb"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// Graph is a checked answer of an update service.
type Graph struct {
	Nodes       []Node
	Edges       [][2]int // from and to, as indexes into Nodes
	Conditional []ConditionalEdges
}

// Node is a release of a graph.
type Node struct {
	Version  string            // SemVer
	Payload  string            // image, by digest
	Metadata map[string]string // such as url
	semver   *semver.Version
}

// ConditionalEdges are edges that share their risks.
type ConditionalEdges struct {
	Edges []ConditionalEdge
	Risks []*updatev1.ConditionalUpdateRisk
}

// ConditionalEdge is an edge with risks, between versions.
type ConditionalEdge struct{ From, To string }

// graphVersion is the version of the form of answers that is understood; an answer need not name it.
const graphVersion = 1

// ParseGraph reads and checks the answer of an update service. Its error is a Problem with the path of what is wrong.
func ParseGraph(raw []byte) (*Graph, error) {
	var doc any
	if err := json.Unmarshal(raw, &doc); err != nil {
		return nil, Problem{Path: "$", Reason: "is no JSON: " + err.Error()}
	}
	return checked(doc)
}

// GraphOf is ParseGraph for an answer that came as a message.
func GraphOf(s *structpb.Struct) (*Graph, error) { return checked(s.AsMap()) }

func checked(doc any) (*Graph, error) {
	g, err := readGraph(value{doc, "$"})
	if err != nil {
		return nil, err
	}
	if err := g.acyclic(); err != nil {
		return nil, err
	}
	return g, nil
}

// value is a JSON value and its position.
type value struct {
	v    any
	path string
}

func (v value) wrong(format string, args ...any) error {
	return Problem{Path: strings.TrimPrefix(v.path, "$."), Reason: fmt.Sprintf(format, args...)}
}

// field returns a field of an object; its value is nil if it is not there.
func (v value) field(name string) (value, error) {
	m, ok := v.v.(map[string]any)
	if !ok {
		return value{}, v.wrong("must be an object")
	}
	return value{m[name], v.path + "." + name}, nil
}

// list returns the items of a list; a list that is not there is empty.
func (v value) list() ([]value, error) {
	if v.v == nil {
		return nil, nil
	}
	items, ok := v.v.([]any)
	if !ok {
		return nil, v.wrong("must be a list")
	}
	out := make([]value, len(items))
	for i, item := range items {
		out[i] = value{item, fmt.Sprintf("%s[%d]", v.path, i)}
	}
	return out, nil
}

func (v value) text() (string, error) {
	s, ok := v.v.(string)
	if v.v != nil && !ok {
		return "", v.wrong("must be a string")
	}
	return s, nil
}

func (v value) index(below int) (int, error) {
	f, ok := v.v.(float64)
	if !ok || f != math.Trunc(f) {
		return 0, v.wrong("must be a whole number")
	}
	if f < 0 || f >= float64(below) {
		return 0, v.wrong("%v is out of range: there are %d nodes", f, below)
	}
	return int(f), nil
}

// read reads a string field of an object; a field that is not there is empty.
func (v value) read(name string, to *string) error {
	f, err := v.field(name)
	if err != nil {
		return err
	}
	*to, err = f.text()
	return err
}

// version reads a field of an object that must be a semantic version.
func (v value) version(name string, to *string) error {
	if err := v.read(name, to); err != nil {
		return err
	}
	if _, err := semver.StrictNewVersion(*to); err != nil {
		return value{path: v.path + "." + name}.wrong("%q is no semantic version", *to)
	}
	return nil
}

// each calls do with every item of a list field of an object.
func (v value) each(name string, do func(value) error) error {
	f, err := v.field(name)
	if err != nil {
		return err
	}
	items, err := f.list()
	if err != nil {
		return err
	}
	for _, item := range items {
		if err := do(item); err != nil {
			return err
		}
	}
	return nil
}

func readGraph(v value) (*Graph, error) {
	form, err := v.field("version")
	if err != nil {
		return nil, err
	}
	if form.v != nil && form.v != float64(graphVersion) {
		return nil, form.wrong("%v is not understood, only %d is", form.v, graphVersion)
	}
	g := &Graph{}
	at := map[string]string{}
	err = firstOf(
		v.each("nodes", func(n value) error { return g.readNode(n, at) }),
		v.each("edges", g.readEdge),
		v.each("conditionalEdges", g.readConditional),
	)
	return g, err
}

// firstOf returns the first error: one is enough to refuse an answer.
func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// readNode reads a node; at is the paths of the versions so far.
func (g *Graph) readNode(v value, at map[string]string) error {
	var n Node
	if err := firstOf(v.version("version", &n.Version), v.read("payload", &n.Payload)); err != nil {
		return err
	}
	path := value{path: v.path + ".version"}
	var err error
	if n.semver, err = semver.StrictNewVersion(n.Version); err != nil {
		return path.wrong("%v", err)
	}
	if before, twice := at[n.Version]; twice {
		return path.wrong("%s is there twice: see %s", n.Version, before)
	}
	at[n.Version] = strings.TrimPrefix(path.path, "$.")
	n.Metadata, err = readMetadata(v)
	g.Nodes = append(g.Nodes, n)
	return err
}

func readMetadata(v value) (map[string]string, error) {
	f, err := v.field("metadata")
	if err != nil || f.v == nil {
		return nil, err
	}
	fields, ok := f.v.(map[string]any)
	if !ok {
		return nil, f.wrong("must be an object")
	}
	out := make(map[string]string, len(fields))
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if out[name], err = (value{fields[name], f.path + "." + name}).text(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (g *Graph) readEdge(v value) error {
	ends, err := v.list()
	if err != nil {
		return err
	}
	if len(ends) != 2 {
		return v.wrong("must be a pair of indexes")
	}
	var e [2]int
	for i := range e {
		if e[i], err = ends[i].index(len(g.Nodes)); err != nil {
			return err
		}
	}
	g.Edges = append(g.Edges, e)
	return nil
}

func (g *Graph) readConditional(v value) error {
	var c ConditionalEdges
	err := v.each("edges", func(v value) error {
		var e ConditionalEdge
		if err := firstOf(v.version("from", &e.From), v.version("to", &e.To)); err != nil {
			return err
		}
		if e.From == e.To {
			return v.wrong("leads from %s to itself", e.From)
		}
		c.Edges = append(c.Edges, e)
		return nil
	})
	if err != nil {
		return err
	}
	err = v.each("risks", func(v value) error {
		r, err := readRisk(v)
		c.Risks = append(c.Risks, r)
		return err
	})
	if err == nil && len(c.Edges) > 0 && len(c.Risks) == 0 {
		err = (value{path: v.path + ".risks"}).wrong("must not be empty")
	}
	g.Conditional = append(g.Conditional, c)
	return err
}

func readRisk(v value) (*updatev1.ConditionalUpdateRisk, error) {
	r := &updatev1.ConditionalUpdateRisk{}
	if err := firstOf(v.read("url", &r.Url), v.read("name", &r.Name), v.read("message", &r.Message)); err != nil {
		return nil, err
	}
	if r.Name == "" {
		return nil, (value{path: v.path + ".name"}).wrong("must not be empty")
	}
	err := v.each("matchingRules", func(v value) error {
		rule := &updatev1.ClusterCondition{}
		if err := v.read("type", &rule.Type); err != nil {
			return err
		}
		query, err := v.field("promql")
		if err != nil {
			return err
		}
		if query.v != nil {
			rule.Promql = &updatev1.PromQLClusterCondition{}
			err = query.read("promql", &rule.Promql.Promql)
		}
		r.MatchingRules = append(r.MatchingRules, rule)
		return err
	})
	return r, err
}

// next returns the targets of every node's plain edges and their indexes in Edges.
func (g *Graph) next() [][][2]int {
	out := make([][][2]int, len(g.Nodes))
	for i, e := range g.Edges {
		out[e[0]] = append(out[e[0]], [2]int{e[1], i})
	}
	return out
}

// acyclic refuses a graph whose plain edges lead from a version back to itself.
func (g *Graph) acyclic() error {
	const (
		unseen = iota
		open
		done
	)
	next, state := g.next(), make([]int, len(g.Nodes))
	var visit func(node int) error
	visit = func(node int) error {
		state[node] = open
		for _, e := range next[node] {
			to, edge := e[0], e[1]
			if state[to] == open {
				return Problem{fmt.Sprintf("edges[%d]", edge), fmt.Sprintf("makes a cycle: %s leads back to %s",
					g.Nodes[node].Version, g.Nodes[to].Version)}
			}
			if state[to] == unseen {
				if err := visit(to); err != nil {
					return err
				}
			}
		}
		state[node] = done
		return nil
	}
	for i := range g.Nodes {
		if state[i] == unseen {
			if err := visit(i); err != nil {
				return err
			}
		}
	}
	return nil
}

// find returns the index of the node of a version, or -1. Versions are equal as semantic versions are: what follows a
// "+" does not count.
func (g *Graph) find(version string) int {
	want, err := semver.StrictNewVersion(version)
	if err != nil || g == nil {
		return -1
	}
	for i, n := range g.Nodes {
		if n.semver.Equal(want) {
			return i
		}
	}
	return -1
}
