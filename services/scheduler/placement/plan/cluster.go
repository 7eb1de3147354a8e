package plan

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
)

// avoidAnnotation of a node names the controllers whose pods had better go elsewhere.
const avoidAnnotation = "scheduler.alpha.kubernetes.io/preferAvoidPods"

// Cluster is what placing depends on: the nodes, the pods that are bound to them, and the selectors of services and
// controllers, in a form that is quick to query. It is kept up to date by its methods, which may be called in any
// order: a pod counts as soon as its node is there too. It keeps the messages that it is given and never modifies
// them. It may not be used concurrently.
type Cluster struct {
	nodes  []*node // by name
	byName map[string]*node
	slots  []*node // nil where a node has gone
	pods   map[podKey]*bound
	lost   map[string]map[*bound]struct{} // pods whose node is not known, by its name
	affine map[*bound]struct{}            // pods that want to be near to, or away from, others
	spaces map[string]*space
	zones  map[string]int32 // 1 and up
	groups map[string]*group

	grouped uint64 // counts the changes of groups
	dropped uint64 // counts how often groups were dropped
	budgets map[object.Key]guard
	ranks   map[int32]int  // pods by their priority
	avoided map[string]int // by controller: how many nodes its pods had better avoid
	boards  []*board       // by their last use; none until pods are placed
	limits  limits         // of each board
	stock   stock
}

// maxGroups bounds the groups whose counts are kept current; beyond it they are recounted.
const maxGroups = 1024

type podKey struct{ namespace, name string }

// space is a namespace.
type space struct {
	pods      map[string]*bound
	selectors map[selectorKey]labels.Selector
}

type selectorKey struct{ kind, name string }

// node is a node as placing sees it.
type node struct {
	msg     *nodev1.Node
	name    string
	labels  labels.Set
	slot    int
	at      int    // index in Cluster.nodes while there is a board
	changed uint32 // counts the changes of the node and its pods while there is a board
	has     placement.Resources
	maxPods int64
	zone    int32           // 0 if it says neither region nor zone
	hard    []*nodev1.Taint // NoSchedule and NoExecute
	mild    []*nodev1.Taint // PreferNoSchedule
	avoid   map[string]bool // kind/uid of controllers
	images  map[string]int64

	pods        map[*bound]struct{}
	used        placement.Resources
	cpu, memory int64 // as ranking counts them
	ports       []placement.HostPort
	shared      []placement.HostPort // what its pods take where they have the node's address
}

// bound is a pod that is bound to a node and has not ended.
type bound struct {
	key         podKey
	uid         string
	labels      labels.Set
	nodeName    string
	node        *node // nil while the node is not known
	requests    placement.Resources
	cpu, memory int64
	ports       []placement.HostPort
	shared      []placement.HostPort // what it takes of a node whose pods have the node's address
	disks       []disk
	claims      []object.Key
	leaving     bool
	nominated   bool // it does not run: the room that others leave for it is reserved
	priority    int32
	started     int64    // Unix time in nanoseconds
	terms       *terms   // nil if it does not care about other pods
	members     *members // nil if it is not known which groups select it
}

// members are the groups that select the pods of a class.
type members struct {
	groups  []*group
	grouped uint64 // the cluster's count that they are of; 0: not known
}

// group is the number of pods on each node that some selectors of a namespace select.
type group struct {
	namespace string
	selectors []labels.Selector
	counts    []int32 // by the slot of the node
}

// NewCluster returns a cluster without nodes.
func NewCluster() *Cluster {
	return &Cluster{
		byName: map[string]*node{}, pods: map[podKey]*bound{}, lost: map[string]map[*bound]struct{}{},
		affine: map[*bound]struct{}{},
		spaces: map[string]*space{}, zones: map[string]int32{}, groups: map[string]*group{}, avoided: map[string]int{},
		budgets: map[object.Key]guard{}, ranks: map[int32]int{},
		grouped: 1, limits: defaultLimits(), stock: newStock(),
	}
}

// Nodes returns the number of nodes.
func (c *Cluster) Nodes() int { return len(c.nodes) }

// Pods returns the number of pods that are bound, be their node known or not.
func (c *Cluster) Pods() int { return len(c.pods) }

// AddNode adds a node, or replaces the one of that name.
func (c *Cluster) AddNode(msg *nodev1.Node) {
	name := msg.GetMetadata().GetName()
	n := c.byName[name]
	fresh := n == nil
	if fresh {
		n = &node{name: name, pods: map[*bound]struct{}{}, slot: c.freeSlot()}
		c.slots[n.slot] = n
		c.byName[name] = n
		at, _ := slices.BinarySearchFunc(c.nodes, name, byName)
		c.nodes = slices.Insert(c.nodes, at, n)
		for b := range c.lost[name] {
			c.attach(b, n)
		}
		delete(c.lost, name)
	}
	had, zone := n.labels, n.zone
	c.avoid(n, -1)
	n.read(msg)
	n.zone = c.zoneOf(msg)
	c.avoid(n, 1)
	if fresh || zone != n.zone || !maps.Equal(had, n.labels) {
		c.boards = nil
	} else {
		c.note(change{node: n})
	}
}

// avoid counts the controllers whose pods had better go elsewhere than to a node.
func (c *Cluster) avoid(n *node, by int) {
	for owner := range n.avoid {
		if c.avoided[owner] += by; c.avoided[owner] == 0 {
			delete(c.avoided, owner)
		}
	}
}

// RemoveNode takes a node away; pods that are bound to it count again should it come back.
func (c *Cluster) RemoveNode(name string) {
	n := c.byName[name]
	if n == nil {
		return
	}
	c.boards = nil
	c.avoid(n, -1)
	for b := range n.pods {
		c.detach(b)
		c.lose(b)
	}
	delete(c.byName, name)
	c.slots[n.slot] = nil
	at, _ := slices.BinarySearchFunc(c.nodes, name, byName)
	c.nodes = slices.Delete(c.nodes, at, at+1)
}

// lose keeps a pod whose node is not known.
func (c *Cluster) lose(b *bound) {
	if c.lost[b.nodeName] == nil {
		c.lost[b.nodeName] = map[*bound]struct{}{}
	}
	c.lost[b.nodeName][b] = struct{}{}
}

func byName(n *node, name string) int { return strings.Compare(n.name, name) }

func (c *Cluster) freeSlot() int {
	if i := slices.Index(c.slots, nil); i >= 0 {
		return i
	}
	c.slots = append(c.slots, nil)
	return len(c.slots) - 1
}

func (c *Cluster) zoneOf(msg *nodev1.Node) int32 {
	region, zone := placement.Domain(msg)
	if region == "" && zone == "" {
		return 0
	}
	key := region + "\x00" + zone
	id, ok := c.zones[key]
	if !ok {
		id = int32(len(c.zones) + 1)
		c.zones[key] = id
	}
	return id
}

// read takes over what a node says of itself.
func (n *node) read(msg *nodev1.Node) {
	n.msg, n.labels = msg, msg.GetMetadata().GetLabels()
	n.has, n.maxPods = placement.Allocatable(msg)
	n.hard, n.mild = nil, nil
	for _, t := range msg.GetSpec().GetTaints() {
		if t.GetEffect() == placement.PreferNoSchedule {
			n.mild = append(n.mild, t)
		} else {
			n.hard = append(n.hard, t)
		}
	}
	n.images = nil
	for _, image := range msg.GetStatus().GetImages() {
		for _, name := range image.GetNames() {
			if n.images == nil {
				n.images = map[string]int64{}
			}
			n.images[imageName(name)] = int64(image.GetSizeBytes())
		}
	}
	n.avoid = avoided(msg.GetMetadata().GetAnnotations()[avoidAnnotation])
}

// avoided reads the annotation that names controllers whose pods had better go elsewhere; what cannot be read names
// none.
func avoided(annotation string) map[string]bool {
	if annotation == "" {
		return nil
	}
	var list struct {
		PreferAvoidPods []struct {
			PodSignature struct {
				PodController struct{ Kind, UID string } `json:"podController"`
			} `json:"podSignature"`
		} `json:"preferAvoidPods"`
	}
	if json.Unmarshal([]byte(annotation), &list) != nil {
		return nil
	}
	out := map[string]bool{}
	for _, p := range list.PreferAvoidPods {
		out[p.PodSignature.PodController.Kind+"/"+p.PodSignature.PodController.UID] = true
	}
	return out
}

// imageName returns the name of an image with its tag: latest if it has neither tag nor digest.
func imageName(name string) string {
	if strings.Contains(name, "@") || strings.LastIndex(name, ":") > strings.LastIndex(name, "/") {
		return name
	}
	return name + ":latest"
}

// Effect is what a change of a pod means to the pods that find no node.
type Effect int

const (
	// none means that nothing changed that placing reads.
	none Effect = iota
	// company means that a pod came, or is another to those that want to be near it or away from it: to them alone it may
	// matter.
	company
	// room means that a pod is gone, and what it had is free.
	room
)

// AddPod adds a pod that is bound to a node, or replaces the one of that name. A pod that is not bound or has ended
// uses nothing and is taken away instead.
func (c *Cluster) AddPod(pod *schedulingv1.Pod) Effect {
	m, node := pod.GetMetadata(), pod.GetSpec().GetNodeName()
	old := c.pods[podKey{m.GetNamespace(), m.GetName()}]
	switch {
	case placeable(pod) && pod.GetStatus().GetNominatedNodeName() != "":
		if old != nil && old.nominated && old.nodeName == pod.GetStatus().GetNominatedNodeName() {
			return none
		}
		c.reserve(pod, pod.GetStatus().GetNominatedNodeName())
		if old == nil {
			return none
		}
		return room
	case !placement.Assigned(pod):
		return c.RemovePod(m.GetNamespace(), m.GetName())
	case old == nil:
		c.bind(pod, node)
		return company
	case old.uid != m.GetUid() || old.nodeName != node:
		c.bind(pod, node)
		return room
	// What else a bound pod's spec says of placing cannot change. A pod without a uid is hypothetical.
	case old.uid != "" && old.leaving == (m.GetDeletionTimestamp() != nil) && maps.Equal(old.labels, m.GetLabels()):
		return none
	}
	c.bind(pod, node)
	return company
}

// bind adds a pod as if it were bound to a node.
func (c *Cluster) bind(pod *schedulingv1.Pod, nodeName string) {
	b := newBound(pod, nodeName)
	c.RemovePod(b.key.namespace, b.key.name)
	c.put(b)
}

func newBound(pod *schedulingv1.Pod, nodeName string) *bound {
	m, spec := pod.GetMetadata(), pod.GetSpec()
	b := &bound{
		key: podKey{m.GetNamespace(), m.GetName()}, uid: m.GetUid(), labels: m.GetLabels(), nodeName: nodeName,
		requests: placement.RequestsOf(spec), ports: placement.HostPorts(spec),
		shared: placement.SharedPorts(spec), leaving: m.GetDeletionTimestamp() != nil,
		disks: disksOf(spec), claims: claimsOf(m.GetNamespace(), spec), terms: newTerms(pod), priority: spec.GetPriority(),
		started: started(pod),
	}
	b.cpu, b.memory = placement.NonZeroRequestsOf(spec)
	return b
}

// bindAs adds a pod of a class as if it were bound to a node.
func (c *Cluster) bindAs(k *class, pod *schedulingv1.Pod, n *node) {
	m := pod.GetMetadata()
	c.RemovePod(m.GetNamespace(), m.GetName())
	c.put(&bound{
		key: podKey{m.GetNamespace(), m.GetName()}, uid: m.GetUid(), labels: m.GetLabels(), nodeName: n.name,
		requests: k.requests, cpu: k.cpu, memory: k.memory, ports: k.ports, shared: k.shared,
		leaving: m.GetDeletionTimestamp() != nil,
		disks:   k.disks, claims: k.demand.keys, terms: k.terms, members: k.members, priority: pod.GetSpec().GetPriority(),
		started: started(pod),
	})
}

// started returns when a pod began to run, or was created.
func started(pod *schedulingv1.Pod) int64 {
	at := pod.GetStatus().GetStartTime()
	if at == nil {
		at = pod.GetMetadata().GetCreationTimestamp()
	}
	return at.AsTime().UnixNano()
}

// put counts a pod from now on.
func (c *Cluster) put(b *bound) {
	c.pods[b.key] = b
	c.ranks[b.priority]++
	c.space(b.key.namespace).pods[b.key.name] = b
	if b.terms != nil {
		c.affine[b] = struct{}{}
	}
	c.use(b, true)
	if n := c.byName[b.nodeName]; n != nil {
		c.attach(b, n)
	} else {
		c.lose(b)
	}
}

// RemovePod takes a pod away; it is no error if it is not there.
func (c *Cluster) RemovePod(namespace, name string) Effect {
	b := c.pods[podKey{namespace, name}]
	if b == nil {
		return none
	}
	c.take(b)
	return room
}

// take counts a pod no more.
func (c *Cluster) take(b *bound) {
	c.detach(b)
	if left := c.lost[b.nodeName]; left != nil {
		if delete(left, b); len(left) == 0 {
			delete(c.lost, b.nodeName)
		}
	}
	delete(c.pods, b.key)
	if c.ranks[b.priority]--; c.ranks[b.priority] == 0 {
		delete(c.ranks, b.priority)
	}
	delete(c.affine, b)
	c.use(b, false)
	delete(c.spaces[b.key.namespace].pods, b.key.name)
	c.sweep(b.key.namespace)
}

func (c *Cluster) attach(b *bound, n *node) {
	b.node = n
	n.pods[b] = struct{}{}
	n.used.Add(b.requests)
	n.cpu += b.cpu
	n.memory += b.memory
	n.ports, n.shared = append(n.ports, b.ports...), append(n.shared, b.shared...)
	c.count(b, 1)
	c.note(change{n, b, 1})
}

func (c *Cluster) detach(b *bound) {
	n := b.node
	if n == nil {
		return
	}
	c.count(b, -1)
	b.node = nil
	delete(n.pods, b)
	n.used.Sub(b.requests)
	n.cpu -= b.cpu
	n.memory -= b.memory
	if len(b.shared) > 0 { // a pod with host ports has these too
		n.ports, n.shared = nil, nil
		for other := range n.pods {
			n.ports, n.shared = append(n.ports, other.ports...), append(n.shared, other.shared...)
		}
	}
	c.note(change{n, b, -1})
}

// count keeps the groups in sync with a pod that comes to its node (1) or leaves it (-1).
func (c *Cluster) count(b *bound, by int32) {
	if b.leaving || b.nominated {
		return
	}
	m := b.members
	if m == nil {
		m = &members{}
	}
	if m.grouped != c.grouped {
		m.groups, m.grouped = m.groups[:0], c.grouped
		for _, g := range c.groups {
			if g.selects(b) {
				m.groups = append(m.groups, g)
			}
		}
	}
	for _, g := range m.groups {
		g.add(b.node.slot, by)
	}
}

func (g *group) selects(b *bound) bool {
	return g.namespace == b.key.namespace && slices.ContainsFunc(g.selectors, func(s labels.Selector) bool {
		return s.Matches(b.labels)
	})
}

func (g *group) add(slot int, by int32) {
	if more := slot + 1 - len(g.counts); more > 0 {
		g.counts = append(g.counts, make([]int32, more)...)
	}
	g.counts[slot] += by
}

func (g *group) on(n *node) int64 {
	if g == nil || n.slot >= len(g.counts) {
		return 0
	}
	return int64(g.counts[n.slot])
}

func (c *Cluster) space(namespace string) *space {
	s := c.spaces[namespace]
	if s == nil {
		s = &space{pods: map[string]*bound{}, selectors: map[selectorKey]labels.Selector{}}
		c.spaces[namespace] = s
	}
	return s
}

// sweep forgets a namespace in which nothing is left.
func (c *Cluster) sweep(namespace string) {
	if s := c.spaces[namespace]; s != nil && len(s.pods) == 0 && len(s.selectors) == 0 {
		delete(c.spaces, namespace)
	}
}

// Kinds whose selectors count for spreading.
const (
	kindService               = "Service"
	kindReplicationController = "ReplicationController"
	kindReplicaSet            = "ReplicaSet"
	kindStatefulSet           = "StatefulSet"
)

// AddService adds a service, or replaces the one of that name. One without a selector selects nothing.
func (c *Cluster) AddService(s *schedulingv1.Service) {
	c.setSelector(kindService, s.GetMetadata(), ofPairs(s.GetSpec().GetSelector()))
}

// AddReplicationController adds a replication controller, or replaces the one of that name.
func (c *Cluster) AddReplicationController(r *schedulingv1.ReplicationController) {
	c.setSelector(kindReplicationController, r.GetMetadata(), ofPairs(r.GetSpec().GetSelector()))
}

// AddReplicaSet adds a replica set, or replaces the one of that name.
func (c *Cluster) AddReplicaSet(r *schedulingv1.ReplicaSet) {
	c.setSelector(kindReplicaSet, r.GetMetadata(), ofSelector(r.GetSpec().GetSelector()))
}

// AddStatefulSet adds a stateful set, or replaces the one of that name.
func (c *Cluster) AddStatefulSet(s *schedulingv1.StatefulSet) {
	c.setSelector(kindStatefulSet, s.GetMetadata(), ofSelector(s.GetSpec().GetSelector()))
}

// RemoveSelector takes a service, replication controller, replica set or stateful set away, by its kind and name.
func (c *Cluster) RemoveSelector(kind, namespace, name string) {
	s := c.spaces[namespace]
	if s == nil {
		return
	}
	delete(s.selectors, selectorKey{kind, name})
	c.forget(namespace)
	c.sweep(namespace)
}

func (c *Cluster) setSelector(kind string, m *metav1.ObjectMeta, selector labels.Selector) {
	s := c.space(m.GetNamespace())
	if old := s.selectors[selectorKey{kind, m.GetName()}]; old != nil && old.String() == selector.String() {
		return
	}
	s.selectors[selectorKey{kind, m.GetName()}] = selector
	c.forget(m.GetNamespace())
}

// forget drops the groups of a namespace whose selectors have changed, and the classes that know the selectors.
func (c *Cluster) forget(namespace string) {
	maps.DeleteFunc(c.groups, func(_ string, g *group) bool { return g.namespace == namespace })
	c.grouped++
	for _, b := range c.boards {
		b.classes.drop(func(k *class) bool { return k.key.namespace == namespace })
	}
}

func ofPairs(pairs map[string]string) labels.Selector {
	if len(pairs) == 0 {
		return labels.Nothing()
	}
	return labels.SelectorFromSet(pairs)
}

func ofSelector(s *metav1.LabelSelector) labels.Selector {
	selector, _ := object.LabelSelector(s, "")
	return selector
}

// selecting returns which selectors of a namespace select a pod, ordered by kind and name.
func (c *Cluster) selecting(namespace string, have labels.Set) []selectorKey {
	var out []selectorKey
	if s := c.spaces[namespace]; s != nil {
		for k, selector := range s.selectors {
			if selector.Matches(have) {
				out = append(out, k)
			}
		}
	}
	slices.SortFunc(out, func(a, b selectorKey) int { return strings.Compare(a.kind+"/"+a.name, b.kind+"/"+b.name) })
	return out
}

// group returns the counts of the pods that some selectors of a namespace select; nil without selectors.
func (c *Cluster) group(namespace string, keys []selectorKey) *group {
	if len(keys) == 0 {
		return nil
	}
	id := namespace
	for _, k := range keys {
		id += "\x00" + k.kind + "/" + k.name
	}
	if g := c.groups[id]; g != nil {
		return g
	}
	if len(c.groups) >= maxGroups {
		clear(c.groups)
		c.dropped++
	}
	g := &group{namespace: namespace}
	for _, k := range keys {
		g.selectors = append(g.selectors, c.spaces[namespace].selectors[k])
	}
	for _, b := range c.spaces[namespace].pods {
		if b.node != nil && !b.leaving && g.selects(b) {
			g.add(b.node.slot, 1)
		}
	}
	c.groups[id] = g
	c.grouped++
	return g
}
