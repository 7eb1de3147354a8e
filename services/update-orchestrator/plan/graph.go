package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"google.golang.org/protobuf/types/known/structpb"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// Graph is a checked answer of an update service, as far as it makes sense.
type Graph struct {
	Nodes       []Node
	Edges       [][2]int // from and to, as indexes into Nodes; they may make cycles
	Conditional []ConditionalEdges
	// How much makes no sense and is left out, since it concerns neither the version that the graph was asked for nor
	// its targets, and the first of it.
	Skipped      int
	FirstSkipped Problem
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

// Limits of a graph: some hundred times what the largest public ones have. A graph beyond them is refused.
const (
	maxNodes = 10_000
	maxEdges = 100_000 // plain ones
)

// ParseGraph reads and checks the answer of an update service to a version. Its error is a Problem with the path of
// what is wrong: the form of the answer, or something that concerns the version or a target of it.
func ParseGraph(raw []byte, version string) (*Graph, error) {
	var doc any
	if err := json.Unmarshal(raw, &doc); err != nil {
		return nil, Problem{Path: "$", Reason: "is no JSON: " + err.Error()}
	}
	return readGraph(value{doc, "$"}, version)
}

// GraphOf is ParseGraph for an answer that came as a message.
func GraphOf(s *structpb.Struct, version string) (*Graph, error) {
	return readGraph(value{s.AsMap(), "$"}, version)
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

func (v value) whole() (float64, error) {
	f, ok := v.v.(float64)
	if !ok || f != math.Trunc(f) {
		return 0, v.wrong("must be a whole number")
	}
	return f, nil
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

// items returns the items of a list field of an object.
func (v value) items(name string, most int) ([]value, error) {
	f, err := v.field(name)
	if err != nil {
		return nil, err
	}
	items, err := f.list()
	if err == nil && len(items) > most {
		err = f.wrong("has %d items, more than %d", len(items), most)
	}
	return items, err
}

// each calls do with every item of a list field of an object.
func (v value) each(name string, do func(value) error) error {
	items, err := v.items(name, math.MaxInt)
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

// firstOf returns the first error: one is enough to refuse an answer.
func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// reader reads a graph for one version.
type reader struct {
	*Graph
	version string
	given   int              // nodes of the answer
	index   map[int]int      // of the nodes that make sense, by their index in the answer
	faults  map[int]error    // of the others
	broken  map[string]error // the same, by version where that is known
	twice   map[string]error // versions that several nodes have
	at      int              // index of the node of the version in the answer, -1 if there is none
}

func readGraph(v value, version string) (*Graph, error) {
	form, err := v.field("version")
	if err != nil {
		return nil, err
	}
	if form.v != nil && form.v != float64(graphVersion) {
		return nil, form.wrong("%v is not understood, only %d is", form.v, graphVersion)
	}
	r := &reader{
		Graph: &Graph{}, version: version, at: -1,
		index: map[int]int{}, faults: map[int]error{}, broken: map[string]error{}, twice: map[string]error{},
	}
	if err := firstOf(r.readNodes(v), r.readEdges(v), v.each("conditionalEdges", r.readConditional)); err != nil {
		return nil, err
	}
	return r.Graph, nil
}

// skip notes what is left out.
func (r *reader) skip(err error) {
	if err == nil {
		return
	}
	if r.Skipped == 0 {
		errors.As(err, &r.FirstSkipped)
	}
	r.Skipped++
}

func (r *reader) readNodes(v value) error {
	items, err := v.items("nodes", maxNodes)
	if err != nil {
		return err
	}
	r.given = len(items)
	want, _ := semver.StrictNewVersion(r.version)
	paths := map[string]string{} // by version
	for i, item := range items {
		n, err := readNode(item)
		if n.semver != nil && want != nil && r.at < 0 && n.semver.Equal(want) {
			r.at = i
		}
		if before, twice := paths[n.Version]; twice && n.semver != nil {
			err = value{path: item.path + ".version"}.wrong("%s is there twice: see %s", n.Version, before)
			r.twice[n.Version] = err
		}
		paths[n.Version] = strings.TrimPrefix(item.path+".version", "$.")
		if err != nil {
			r.faults[i], r.broken[n.Version] = err, err
			continue
		}
		r.index[i] = len(r.Nodes)
		r.Nodes = append(r.Nodes, n)
	}
	if r.at >= 0 {
		if err := r.fault(r.at); err != nil {
			return err
		}
	}
	for i := range items {
		r.skip(r.faults[i])
	}
	return nil
}

// fault returns what is wrong with a node that is concerned.
func (r *reader) fault(node int) error {
	if err := r.faults[node]; err != nil {
		return err
	}
	return r.twice[r.Nodes[r.index[node]].Version]
}

func readNode(v value) (Node, error) {
	var n Node
	if err := v.version("version", &n.Version); err != nil {
		return n, err
	}
	var err error
	if n.semver, err = semver.StrictNewVersion(n.Version); err != nil {
		return n, err
	}
	if err := v.read("payload", &n.Payload); err != nil {
		return n, err
	}
	n.Metadata, err = readMetadata(v)
	return n, err
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

func (r *reader) readEdges(v value) error {
	items, err := v.items("edges", maxEdges)
	if err != nil {
		return err
	}
	for _, item := range items {
		if err := r.readEdge(item); err != nil {
			return err
		}
	}
	return nil
}

// readEdge reads an edge. One of which it is not known where it begins invalidates the graph.
func (r *reader) readEdge(v value) error {
	ends, err := v.list()
	if err != nil {
		return err
	}
	if len(ends) != 2 {
		return v.wrong("must be a pair of indexes")
	}
	var e [2]int
	from, err := ends[0].whole()
	if err != nil {
		return err
	}
	concerned := r.at >= 0 && from == float64(r.at)
	for i := range e {
		end, err := ends[i].whole()
		if err == nil && (end < 0 || end >= float64(r.given)) {
			err = ends[i].wrong("%v is out of range: there are %d nodes", end, r.given)
		}
		if err == nil && concerned {
			err = r.fault(int(end))
		}
		switch {
		case err != nil && concerned:
			return err
		case err != nil:
			r.skip(err)
			return nil
		}
		node, ok := r.index[int(end)]
		if !ok {
			return nil // the node was skipped
		}
		e[i] = node
	}
	r.Edges = append(r.Edges, e)
	return nil
}

// readConditional reads edges that share their risks. Those of other versions are left out if they make no sense.
func (r *reader) readConditional(v value) error {
	var c ConditionalEdges
	concerned := false
	err := v.each("edges", func(v value) error {
		var e ConditionalEdge
		if err := v.read("from", &e.From); err != nil {
			return err
		}
		from := e.From == r.version
		err := firstOf(v.version("from", &e.From), v.version("to", &e.To))
		switch {
		case err == nil && e.From == e.To:
			err = v.wrong("leads from %s to itself", e.From)
		case err == nil && from:
			err = r.faultOf(e.To)
		}
		switch {
		case err != nil && from:
			return err
		case err != nil:
			r.skip(err)
			return nil
		}
		concerned = concerned || from
		c.Edges = append(c.Edges, e)
		return nil
	})
	if err != nil || len(c.Edges) == 0 {
		return err
	}
	err = v.each("risks", func(v value) error {
		risk, err := readRisk(v)
		c.Risks = append(c.Risks, risk)
		return err
	})
	if err == nil && len(c.Risks) == 0 {
		err = (value{path: v.path + ".risks"}).wrong("must not be empty")
	}
	switch {
	case err == nil:
		r.Conditional = append(r.Conditional, c)
	case concerned:
		return err
	default:
		r.skip(err)
	}
	return nil
}

// faultOf is fault for a version.
func (r *reader) faultOf(version string) error {
	if err := r.twice[version]; err != nil {
		return err
	}
	return r.broken[version]
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
