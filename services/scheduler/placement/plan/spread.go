package plan

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"
	kmeta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	operator "k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
)

// hostnameLabel is the topology key of single nodes.
const hostnameLabel = "kubernetes.io/hostname"

// Values of whenUnsatisfiable and of the policies about nodes.
const (
	doNotSchedule  = "DoNotSchedule"
	scheduleAnyway = "ScheduleAnyway"
	honor          = "Honor"
	ignore         = "Ignore"
)

// spreadRule is an element of topologySpreadConstraints. Source: Kubernetes' TopologySpreadConstraint.
type spreadRule struct {
	MaxSkew            int32                `json:"maxSkew"`
	TopologyKey        string               `json:"topologyKey"`
	WhenUnsatisfiable  string               `json:"whenUnsatisfiable"`
	LabelSelector      *kmeta.LabelSelector `json:"labelSelector"`
	MatchLabelKeys     []string             `json:"matchLabelKeys"`
	MinDomains         *int32               `json:"minDomains"`
	NodeAffinityPolicy string               `json:"nodeAffinityPolicy"`
	NodeTaintsPolicy   string               `json:"nodeTaintsPolicy"`
}

// readSpreadRule reads an element; a fault that is no nil is what of it below path cannot be read.
func readSpreadRule(path string, in *structpb.Struct) (out spreadRule, fault *object.Fault) {
	for _, name := range slices.Sorted(maps.Keys(in.GetFields())) {
		switch name {
		case "maxSkew", "topologyKey", "whenUnsatisfiable", "labelSelector", "matchLabelKeys", "minDomains",
			"nodeAffinityPolicy", "nodeTaintsPolicy":
		default:
			return out, &object.Fault{Path: path + "." + name, Description: "unknown field"}
		}
	}
	text, err := in.MarshalJSON()
	if err == nil {
		decoder := json.NewDecoder(strings.NewReader(string(text)))
		decoder.DisallowUnknownFields()
		err = decoder.Decode(&out)
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return out, &object.Fault{
			Path: path + "." + wrong.Field, Description: fmt.Sprintf("must be of type %v, not %s", wrong.Type, wrong.Value),
		}
	}
	if err != nil {
		return out, &object.Fault{Path: path, Description: strings.TrimPrefix(err.Error(), "json: ")}
	}
	return out, nil
}

// validateSpread returns the wrong fields of topologySpreadConstraints.
func validateSpread(path string, constraints []*structpb.Struct) (fields []object.Fault) {
	seen := map[[2]string]bool{}
	for i, in := range constraints {
		at := fmt.Sprintf("%s[%d]", path, i)
		c, fault := readSpreadRule(at, in)
		if fault != nil {
			fields = append(fields, *fault)
			continue
		}
		fields = append(fields, c.validate(at)...)
		id := [2]string{c.TopologyKey, c.WhenUnsatisfiable}
		if seen[id] {
			fields = append(fields, object.Fault{
				Path: at, Description: "there is another constraint with this topologyKey and whenUnsatisfiable",
			})
		}
		seen[id] = true
	}
	return fields
}

func (c spreadRule) validate(at string) (fields []object.Fault) {
	bad := func(field, format string, a ...any) {
		fields = append(fields, object.Fault{Path: at + "." + field, Description: fmt.Sprintf(format, a...)})
	}
	if c.MaxSkew <= 0 {
		bad("maxSkew", "must be 1 or more")
	}
	if c.TopologyKey == "" {
		bad("topologyKey", "must be given: the label whose values are the domains")
	} else if why := validation.IsQualifiedName(c.TopologyKey); len(why) > 0 {
		bad("topologyKey", "%s", strings.Join(why, "; "))
	}
	if w := c.WhenUnsatisfiable; w != doNotSchedule && w != scheduleAnyway {
		bad("whenUnsatisfiable", "must be DoNotSchedule or ScheduleAnyway, not %q", w)
	}
	if c.MinDomains != nil && *c.MinDomains <= 0 {
		bad("minDomains", "must be 1 or more")
	}
	if c.MinDomains != nil && c.WhenUnsatisfiable != doNotSchedule {
		bad("minDomains", "may only be given with whenUnsatisfiable DoNotSchedule")
	}
	for _, p := range []struct{ field, is string }{
		{"nodeAffinityPolicy", c.NodeAffinityPolicy}, {"nodeTaintsPolicy", c.NodeTaintsPolicy},
	} {
		if p.is != "" && p.is != honor && p.is != ignore {
			bad(p.field, "must be Honor or Ignore, not %q", p.is)
		}
	}
	if _, err := kmeta.LabelSelectorAsSelector(c.LabelSelector); err != nil {
		bad("labelSelector", "%v", err)
	}
	if len(c.MatchLabelKeys) > 0 && c.LabelSelector == nil {
		bad("matchLabelKeys", "may only be given with labelSelector")
	}
	for i, key := range c.MatchLabelKeys {
		field := fmt.Sprintf("matchLabelKeys[%d]", i)
		for _, why := range validation.IsQualifiedName(key) {
			bad(field, "%s", why)
		}
		if selectsBy(c.LabelSelector, key) {
			bad(field, "labelSelector selects by %q too", key)
		}
	}
	return fields
}

// selectsBy reports whether a selector reads a label.
func selectsBy(s *kmeta.LabelSelector, key string) bool {
	if s == nil {
		return false
	}
	_, is := s.MatchLabels[key]
	return is || slices.ContainsFunc(s.MatchExpressions, func(e kmeta.LabelSelectorRequirement) bool {
		return e.Key == key
	})
}

// spread is how the pods that the constraints of a class select are distributed over the nodes.
type spread struct {
	hard, soft []*constraint
	tuples     [][]int32 // of counts; a trait of nodes. The first is of nodes that soft constraints do not distinguish
	numbers    map[string]int32
	moved      []domain // whose nodes have other traits than before, or fit where they did not
	shifted    bool     // whether that holds of places
}

// constraint is a rule with what is known of the nodes about it. A node counts if it has the topology keys of all
// constraints of the same whenUnsatisfiable, and as the policies about nodes say; its domain exists then.
type constraint struct {
	spreadRule
	selector labels.Selector
	self     int32 // 1 if the pods of the class are among those that it selects
	column   *column
	coarse   bool    // whether all nodes of a place have the same value
	matching []int32 // by the index of the node: pods
	counted  []bool  // by the index of the node
	counts   []int32 // by the number of the value: pods on the nodes that count
	nodes    []int32 // by the number of the value: nodes that count
	open     []bool  // by the number of the value, if hard: whether one more pod keeps to the skew
	stale    bool    // whether open must be computed again
}

// newSpread returns the distribution for the constraints of the pods of a class; nil without constraints.
func newSpread(k *class, constraints []*structpb.Struct) *spread {
	var s spread
	for _, in := range constraints {
		rule, fault := readSpreadRule("", in)
		if fault != nil {
			continue // it was stored before constraints were in force
		}
		c := &constraint{spreadRule: rule, selector: rule.selectorFor(k.labels), stale: true}
		if c.selector.Matches(k.labels) {
			c.self = 1
		}
		if rule.WhenUnsatisfiable == doNotSchedule {
			s.hard = append(s.hard, c)
		} else if k.profile.reads&readsSpread != 0 {
			s.soft = append(s.soft, c)
		}
	}
	if len(s.hard)+len(s.soft) == 0 {
		return nil
	}
	s.reset()
	for _, list := range [][]*constraint{s.hard, s.soft} {
		for _, c := range list {
			c.coarse = k.board.coarse(c.TopologyKey) && (c.WhenUnsatisfiable == doNotSchedule || c.TopologyKey != hostnameLabel)
			c.column = k.board.column(c.TopologyKey)
			c.matching, c.counted = make([]int32, len(k.cluster.nodes)), make([]bool, len(k.cluster.nodes))
			c.counts, c.nodes = make([]int32, len(c.column.numbers)+1), make([]int32, len(c.column.numbers)+1)
			c.open = make([]bool, len(c.counts))
		}
	}
	for _, n := range k.cluster.nodes {
		s.recount(k, n)
	}
	if space := k.cluster.spaces[k.key.namespace]; space != nil {
		for _, b := range space.pods {
			if b.node != nil {
				s.see(k, change{b.node, b, 1})
			}
		}
	}
	return &s
}

// selectorFor returns which pods count for a pod with some labels. A missing selector selects no pod.
func (c spreadRule) selectorFor(have labels.Set) labels.Selector {
	selector, err := kmeta.LabelSelectorAsSelector(c.LabelSelector)
	if err != nil {
		return labels.Nothing()
	}
	for _, key := range c.MatchLabelKeys {
		if value, ok := have[key]; ok {
			if same, err := labels.NewRequirement(key, operator.In, []string{value}); err == nil {
				selector = selector.Add(*same)
			}
		}
	}
	return selector
}

// reset forgets the tuples.
func (s *spread) reset() { s.tuples, s.numbers = [][]int32{nil}, map[string]int32{} }

// recount finds out whether a node counts.
func (s *spread) recount(k *class, n *node) {
	for _, list := range [][]*constraint{s.hard, s.soft} {
		everywhere := !slices.ContainsFunc(list, func(c *constraint) bool { return c.column.values[n.at] == 0 })
		for _, c := range list {
			is := everywhere && (c.NodeAffinityPolicy == ignore || k.matcher.Matches(n.msg)) &&
				(c.NodeTaintsPolicy != honor || placement.Untolerated(k.spec.GetTolerations(), n.hard, placement.NoSchedule,
					placement.NoExecute) == nil)
			if c.counted[n.at] == is {
				continue
			}
			by, v := int32(1), c.column.values[n.at]
			if !is {
				by = -1
			}
			c.counted[n.at] = is
			c.nodes[v] += by
			s.add(c, v, by*c.matching[n.at])
		}
	}
}

// see takes a change into account.
func (s *spread) see(k *class, ch change) {
	if ch.pod == nil {
		s.recount(k, ch.node) // its taints may be others
		return
	}
	if ch.pod.leaving || ch.pod.key.namespace != k.key.namespace {
		return
	}
	for _, list := range [][]*constraint{s.hard, s.soft} {
		for _, c := range list {
			// A selector without requirements selects the pod itself, but none that run: as in Kubernetes.
			if c.selector.Empty() || !c.selector.Matches(ch.pod.labels) {
				continue
			}
			c.matching[ch.node.at] += ch.by
			if c.counted[ch.node.at] {
				s.add(c, c.column.values[ch.node.at], ch.by)
			}
		}
	}
}

// add counts pods on nodes of a value that count.
func (s *spread) add(c *constraint, value, by int32) {
	c.counts[value] += by
	c.stale = true
	if c.WhenUnsatisfiable == scheduleAnyway && !c.coarse && c.TopologyKey != hostnameLabel && by != 0 {
		s.moved = append(s.moved, domain{c.TopologyKey, c.column.names[value]})
	}
}

// settle finds out which domains are open, after changes.
func (s *spread) settle() {
	for _, c := range s.hard {
		if !c.stale {
			continue
		}
		c.stale = false
		least := c.least()
		for v := 1; v < len(c.open); v++ {
			is := c.counts[v]+c.self-least <= c.MaxSkew
			if is == c.open[v] {
				continue
			}
			c.open[v] = is
			if c.coarse {
				s.shifted = true
			} else {
				s.moved = append(s.moved, domain{c.TopologyKey, c.column.names[v]})
			}
		}
	}
}

// least is the number of pods in the domain that has the fewest; 0 if there are fewer domains than there must be.
func (c *constraint) least() int32 {
	least, domains := int32(math.MaxInt32), int32(0)
	for v := 1; v < len(c.counts); v++ {
		if c.nodes[v] > 0 {
			least, domains = min(least, c.counts[v]), domains+1
		}
	}
	if domains < max(1, c.minDomains()) {
		return 0
	}
	return least
}

func (c *constraint) minDomains() int32 {
	if c.MinDomains == nil {
		return 1
	}
	return *c.MinDomains
}

// plain reports whether the class judges the nodes of a place as its shape does.
func (s *spread) plain() bool {
	return s == nil || !slices.ContainsFunc(s.hard, (*constraint).fine) && !slices.ContainsFunc(s.soft, (*constraint).fine)
}

func (c *constraint) fine() bool { return !c.coarse }

// evenly returns EvenPodsSpread for the keys by which places differ, or for the other ones.
func evenly(coarse bool) check {
	return func(k *class, _ *predicate, n *node, r *report) bool {
		if k.spread == nil {
			return true
		}
		for _, c := range k.spread.hard {
			if v := c.column.values[n.at]; c.coarse == coarse && !c.open[v] {
				return r != nil && r.uneven(c, v)
			}
		}
		return true
	}
}

func (r *report) uneven(c *constraint, value int32) bool {
	const rule = "EvenPodsSpread"
	if value == 0 {
		return r.fail(rule, "node(s) didn't match pod topology spread constraints (missing required label)",
			func() (string, string) {
				return "it lacks " + c.TopologyKey, "the node gets the label " + c.TopologyKey
			})
	}
	count, least, domain := c.counts[value], c.least(), c.column.names[value]
	return r.fail(rule, "node(s) didn't match pod topology spread constraints", func() (string, string) {
		return fmt.Sprintf("%d matching pods run where %s=%s and %d where the fewest do, one more would exceed maxSkew %d",
				count, c.TopologyKey, domain, least, c.MaxSkew),
			"pods are placed in the domains with fewer, or leave this one"
	})
}

// tuple returns the trait of a node by which soft constraints distinguish the nodes of a place.
func (s *spread) tuple(n *node) int32 {
	tuple, plain := make([]int32, len(s.soft)), true
	for i, c := range s.soft {
		switch v := c.column.values[n.at]; {
		case c.coarse:
			continue
		case v == 0:
			tuple[i] = -1
		case c.TopologyKey == hostnameLabel: // by node, be there another node of this name
			tuple[i] = c.matching[n.at]
		default:
			tuple[i] = c.counts[v]
		}
		plain = false
	}
	if plain {
		return 0
	}
	id := make([]byte, 0, 5*len(tuple))
	for _, count := range tuple {
		id = binary.AppendVarint(id, int64(count))
	}
	number, ok := s.numbers[string(id)]
	if !ok {
		number = int32(len(s.tuples))
		s.numbers[string(id)] = number
		s.tuples = append(s.tuples, tuple)
	}
	return number
}

// crowd is how many pods the soft constraints count for the nodes of a bunch, weighted; negative if a node lacks one of
// the labels.
func (s *spread) crowd(weights []float64, b *bunch, example *node) int64 {
	var sum float64
	for i, c := range s.soft {
		var count int32
		if v := c.column.values[example.at]; !c.coarse {
			count = s.tuples[b.spread][i]
		} else if count = c.counts[v]; v == 0 {
			count = -1
		}
		if count < 0 {
			return -1
		}
		if weights != nil {
			sum += float64(count)*weights[i] + float64(c.MaxSkew-1)
		}
	}
	return int64(math.Round(sum))
}

// lookEven weighs each soft constraint by how many domains it has among the nodes that fit and have all labels.
func (k *class) lookEven(_ *priority, b *bunches) (m norm) {
	s := k.spread
	if m.flat = s == nil || len(s.soft) == 0; m.flat {
		return m
	}
	seen := make([]map[int32]bool, len(s.soft))
	for i := range seen {
		seen[i] = map[int32]bool{}
	}
	size := 0
	k.each(b, func(one *bunch, example *node) {
		if s.crowd(nil, one, example) < 0 {
			return
		}
		size += one.size
		for i, c := range s.soft {
			if c.coarse {
				seen[i][c.column.values[example.at]] = true
			}
		}
	})
	m.weights = make([]float64, len(s.soft))
	for i, c := range s.soft {
		domains := len(seen[i])
		switch {
		case c.TopologyKey == hostnameLabel:
			domains = size
		case !c.coarse:
			domains = k.valuesOf(c, b)
		}
		m.weights[i] = math.Log(float64(domains + 2))
	}
	m.min = math.MaxInt64
	k.each(b, func(one *bunch, example *node) {
		if crowd := s.crowd(m.weights, one, example); crowd >= 0 {
			m.min, m.max = min(m.min, crowd), max(m.max, crowd)
		}
	})
	return m
}

// valuesOf counts the values of a constraint's label on the nodes that fit and have the labels of all.
func (k *class) valuesOf(c *constraint, b *bunches) int {
	seen := map[int32]bool{}
	for at, of := range b.of {
		if of == nowhere || k.shutOut(&b.list[of]) || k.spread.crowd(nil, &b.list[of], k.cluster.nodes[at]) < 0 {
			continue
		}
		seen[c.column.values[at]] = true
	}
	return len(seen)
}

func (k *class) compareEven(m *norm, b *bunch) int64 {
	crowd := k.spread.crowd(m.weights, b, k.board.places.example[b.place])
	switch {
	case crowd < 0:
		return 0
	case m.max == 0:
		return best
	}
	return best * (m.max + m.min - crowd) / m.max
}
