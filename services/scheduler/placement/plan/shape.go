package plan

import (
	"encoding/binary"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"
)

// shape is what pods ask of a node by itself, whatever their labels and the pods on other nodes are, and the nodes that
// grant it. Many classes may share one.
type shape struct {
	board   *board
	id      string
	bare    *class // without labels: for the checks that read a node alone
	cells   []cell // by the index of the node
	bunches *bunches
	upTo    uint64 // number of the first change that is not taken in
	placed  uint64 // version of the places
}

// cell is what is known of one node about a shape.
type cell struct {
	wanted   int64 // see traits
	disliked int32
	counted  uint32 // the node's count of changes that its bunch is of
	known    bool   // whether the node's own state was checked
	open     bool   // whether it lets the pod in
}

// shapeOf returns the shape of a pod.
func (b *board) shapeOf(pod *schedulingv1.Pod) *shape {
	spec := pod.GetSpec()
	bare := &class{
		cluster: b.cluster, profile: b.profile, spec: spec, requests: placement.RequestsOf(spec),
		ports: placement.HostPorts(spec), shared: placement.SharedPorts(spec), disks: disksOf(spec),
		bestEffort: placement.BestEffort(spec),
		owner:      b.cluster.avoidedOwner(pod),
	}
	bare.key.namespace = pod.GetMetadata().GetNamespace()
	bare.cpu, bare.memory = placement.NonZeroRequestsOf(spec)
	id := bare.shapeID()
	if s, ok := b.shapes.get(id); ok {
		return s
	}
	spec = proto.CloneOf(spec) // a shape outlives the pod, which may not be stored yet and change
	bare.spec = spec
	bare.demand = b.cluster.demandOf(bare.key.namespace, spec)
	bare.asksNothing = bare.requests.Zero()
	bare.matcher = placement.NewNodeMatcher(spec)
	for _, t := range spec.GetAffinity().GetNodeAffinity().GetPreferredDuringSchedulingIgnoredDuringExecution() {
		if t.GetWeight() > 0 {
			bare.preferences = append(bare.preferences, preference{
				term:   placement.NewTerm(t.GetPreference()),
				weight: int64(t.GetWeight()),
			})
		}
	}
	for _, container := range spec.GetContainers() {
		bare.images = append(bare.images, imageName(container.GetImage()))
	}
	s := &shape{board: b, id: id, bare: bare}
	b.shapes.set(id, s)
	return s
}

// shapeID identifies a shape: it includes everything that the checks and priorities which read a node alone read of a
// pod.
func (k *class) shapeID() string {
	var id idWriter
	id.number(k.requests.MilliCPU)
	id.number(k.requests.Memory)
	id.number(k.requests.EphemeralStorage)
	id.number(int64(len(k.requests.Scalar)))
	for _, name := range slices.Sorted(maps.Keys(k.requests.Scalar)) {
		id.text(name)
		id.number(k.requests.Scalar[name])
	}
	id.number(k.cpu)
	id.number(k.memory)
	for _, ports := range [][]placement.HostPort{k.ports, k.shared} {
		id.number(int64(len(ports)))
		for _, port := range ports {
			id.text(port.String())
		}
	}
	if k.bestEffort {
		id.number(1)
	} else {
		id.number(0)
	}
	id.text(k.owner)
	id.text(k.spec.GetNodeName())
	id.pairs(k.spec.GetNodeSelector())
	id.message(k.spec.GetAffinity().GetNodeAffinity())
	id.number(int64(len(k.spec.GetTolerations())))
	for _, t := range k.spec.GetTolerations() {
		id.message(t)
	}
	id.number(int64(len(k.spec.GetVolumes())))
	for _, v := range k.spec.GetVolumes() {
		id.message(v)
	}
	if len(claimsOf(k.key.namespace, k.spec)) > 0 { // which are not those of another namespace, or of another time
		id.text(k.key.namespace)
		id.number(int64(k.cluster.stock.version))
	}
	if k.profile.images {
		for _, c := range k.spec.GetContainers() {
			id.text(c.GetImage())
		}
	}
	return string(id)
}

// idWriter joins values so that different ones never give the same.
type idWriter []byte

func (w *idWriter) number(n int64) { *w = binary.AppendVarint(*w, n) }

func (w *idWriter) text(s string) {
	w.number(int64(len(s)))
	*w = append(*w, s...)
}

func (w *idWriter) pairs(m map[string]string) {
	w.number(int64(len(m)))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		w.text(k)
		w.text(m[k])
	}
}

func (w *idWriter) message(m proto.Message) {
	if !m.ProtoReflect().IsValid() {
		w.number(-1)
		return
	}
	w.number(int64(proto.Size(m)))
	// A message whose encoding fails, which has text that is not UTF-8, is not accepted by any call.
	*w, _ = proto.MarshalOptions{Deterministic: true}.MarshalAppend(*w, m)
}

// avoidedOwner returns the pod's controller as kind/uid if a node is to be avoided by its pods; otherwise it is empty,
// since it makes no difference.
func (c *Cluster) avoidedOwner(pod *schedulingv1.Pod) string {
	if len(c.avoided) == 0 {
		return ""
	}
	if o := owner(pod); c.avoided[o] > 0 {
		return o
	}
	return ""
}

// catchUp takes in what changed.
func (s *shape) catchUp() {
	changes, kept := s.board.since(s.upTo)
	switch {
	case s.bunches == nil || !kept:
		s.cells = make([]cell, len(s.board.cluster.nodes))
		s.bunches = newBunches(len(s.cells))
		s.all()
	case s.placed != s.board.places.version:
		for _, ch := range changes {
			s.reopen(ch)
		}
		for i := range s.cells {
			s.cells[i].counted--
		}
		s.all()
	default:
		for _, ch := range changes {
			s.reopen(ch)
			s.judge(ch.node)
		}
	}
	s.upTo, s.placed = s.board.now(), s.board.places.version
}

func (s *shape) all() {
	for _, n := range s.board.cluster.nodes {
		s.judge(n)
	}
}

// reopen has a node checked again whose own state changed.
func (s *shape) reopen(ch change) {
	if ch.pod == nil {
		s.cells[ch.node.at].known = false
	}
}

// judge finds the bunch of a node.
func (s *shape) judge(n *node) {
	c, k := &s.cells[n.at], s.bare
	if c.known && c.counted == n.changed {
		return
	}
	if !c.known {
		c.known, c.open = true, k.holds(n, fixed)
		c.wanted, c.disliked = 0, 0
		if c.open && k.profile.reads&readsWanted != 0 {
			c.wanted = k.weightOf(n)
		}
		if c.open && k.profile.reads&readsDisliked != 0 {
			c.disliked = int32(k.disliked(n))
		}
	}
	c.counted = n.changed
	if !c.open || !k.holds(n, usage) {
		s.bunches.remove(n.at)
		return
	}
	s.bunches.put(n.at, traits{
		alone: k.alone(n), wanted: c.wanted, disliked: c.disliked, place: s.board.places.of[n.at],
	})
}
