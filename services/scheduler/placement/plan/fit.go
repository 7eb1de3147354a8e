package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"
)

// class is what pods of equal namespace, labels, spec and controller ask for, and what is known of the nodes about it.
type class struct {
	cluster *Cluster
	profile *Profile

	key         podKey // of the first pod of the class; the others share its namespace
	labels      labels.Set
	spec        *schedulingv1.PodSpec
	refused     string // why no node takes it, whatever the nodes are; empty if one may
	requests    placement.Resources
	asksNothing bool
	cpu, memory int64 // as ranking counts them
	ports       []placement.HostPort
	matcher     placement.NodeMatcher
	bestEffort  bool
	preferences []preference
	images      []string
	owner       string // kind/uid of its controller, if that is a replication controller or a replica set

	selectors []selectorKey     // of the namespace that select the pod
	services  []selectorKey     // those of services
	topology  *topology         // nil if no pod that runs matters
	peer      *bound            // that pods of the same service follow; nil if there is none
	pins      map[string]string // by label: values that nodes must have, by the predicates on services
	cells     []cell            // by the index of the node
	norms     []norm            // by the index of the priority
	telling   []int             // indices of the priorities that distinguish nodes
	failed    *Decision         // of an earlier pod of the class: what only fills up cannot fit later
}

// preference is a preferred term of affinity to nodes.
type preference struct {
	term   placement.Term
	weight int64
}

// cell is what is known of one node about a class.
type cell struct {
	score   int64  // weighted sum of the priorities that depend on the node alone
	counted uint32 // the node's count of changes at which score and roomy were computed; 0 means never
	known   bool   // whether the node's own state was checked
	open    bool   // whether it lets the pod in
	roomy   bool   // whether what the node's pods leave is enough
}

// classID identifies the class of a pod.
func classID(pod *schedulingv1.Pod) string {
	spec, err := proto.MarshalOptions{Deterministic: true}.Marshal(pod.GetSpec())
	if err != nil {
		return pod.GetMetadata().GetNamespace() + "/" + pod.GetMetadata().GetName() // a class of its own
	}
	var b strings.Builder
	b.WriteString(pod.GetMetadata().GetNamespace())
	b.WriteByte(0)
	have := pod.GetMetadata().GetLabels()
	for _, k := range slices.Sorted(maps.Keys(have)) {
		b.WriteString(k)
		b.WriteByte('=')
		b.WriteString(have[k])
		b.WriteByte(0)
	}
	b.WriteString(owner(pod))
	b.WriteByte(0)
	b.Write(spec)
	return b.String()
}

func owner(pod *schedulingv1.Pod) string {
	o := placement.ControllerOf(pod)
	if kind := o.GetKind(); kind != kindReplicationController && kind != kindReplicaSet {
		return ""
	}
	return o.GetKind() + "/" + o.GetUid()
}

func newClass(c *Cluster, p *Profile, pod *schedulingv1.Pod) *class {
	m, spec := pod.GetMetadata(), pod.GetSpec()
	k := &class{
		cluster: c, profile: p, key: podKey{m.GetNamespace(), m.GetName()}, labels: m.GetLabels(), spec: spec,
		refused: refusal(p, spec), requests: placement.RequestsOf(spec), ports: placement.HostPorts(spec),
		matcher: placement.NewNodeMatcher(spec), bestEffort: placement.BestEffort(spec), owner: owner(pod),
		cells: make([]cell, len(c.nodes)), norms: make([]norm, len(p.priorities)),
	}
	k.asksNothing = k.requests.Zero()
	k.cpu, k.memory = placement.NonZeroRequestsOf(spec)
	for _, t := range spec.GetAffinity().GetNodeAffinity().GetPreferredDuringSchedulingIgnoredDuringExecution() {
		if t.GetWeight() > 0 {
			k.preferences = append(k.preferences, preference{
				term:   placement.NewTerm(t.GetPreference()),
				weight: int64(t.GetWeight()),
			})
		}
	}
	for _, container := range spec.GetContainers() {
		k.images = append(k.images, imageName(container.GetImage()))
	}
	k.selectors = c.selecting(k.key.namespace, k.labels)
	for _, s := range k.selectors {
		if s.kind == kindService {
			k.services = append(k.services, s)
		}
	}
	if len(k.services) > 0 {
		k.peer = k.findPeer()
	}
	if own := newTerms(pod); own != nil || len(c.affine) > 0 {
		k.topology = newTopology(c, own, k.key, k.labels, p.hardWeight)
	}
	return k
}

// see takes a pod into account that was placed after the class was made.
func (k *class) see(b *bound) {
	if len(k.services) > 0 && k.follows(b) && (k.peer == nil || b.key.name < k.peer.key.name) {
		k.peer, k.failed = b, nil
	}
	switch {
	case k.topology != nil:
		k.topology.see(b)
	case b.terms != nil:
		k.topology = newTopology(k.cluster, nil, k.key, k.labels, k.profile.hardWeight)
	}
}

// refusal says what keeps a pod from every node: its gates, or a predicate of the profile that would judge it and is
// not built. It is empty if nothing does.
func refusal(p *Profile, spec *schedulingv1.PodSpec) string {
	if gates := spec.GetSchedulingGates(); len(gates) > 0 {
		var names []string
		for _, g := range gates {
			names = append(names, g.GetFields()["name"].GetStringValue())
		}
		return "it has scheduling gates, which must go first: " + strings.Join(names, ", ")
	}
	for _, one := range p.predicates {
		if one.filter.built() {
			continue
		}
		for _, v := range spec.GetVolumes() {
			if one.filter.volumes(v) {
				return fmt.Sprintf("the predicate %s would judge volume %q of this pod and is not built yet", one.name, v.GetName())
			}
		}
	}
	return ""
}

// failure is one reason why a node is out.
type failure struct {
	predicate string // as the policy names it
	rule      string // as the document names the rule that failed
	short     string // as the event counts it
	say       func() (detail, unblock string)
}

// reason is one sentence with the numbers, and what would unblock it.
func (f failure) reason() (reason, unblock string) {
	detail, unblock := f.say()
	if detail == "" {
		return f.short, unblock
	}
	return f.short + ": " + detail, unblock
}

// report collects the failures of one node; a nil report wants only to know whether there are any.
type report struct {
	predicate string
	failures  []failure
}

// fail notes a failure and returns false. say is called only if the caller wants to know more than a count.
func (r *report) fail(rule, short string, say func() (detail, unblock string)) bool {
	r.failures = append(r.failures, failure{predicate: r.predicate, rule: rule, short: short, say: say})
	return false
}

// passes reports whether a node passes the given parts of all predicates. With a report every failure is noted, without
// one the first ends it.
func (k *class) passes(n *node, what part, r *report) bool {
	ok := true
	for i := range k.profile.predicates {
		p := &k.profile.predicates[i]
		if r != nil {
			r.predicate = p.name
		}
		for one := fixed; one <= others; one <<= 1 {
			check := p.filter.check(one)
			if what&one == 0 || check == nil || check(k, p, n, r) {
				continue
			}
			if ok = false; r == nil {
				return false
			}
		}
	}
	return ok
}

// chosen is the part of GeneralPredicates that reads the node alone.
func (k *class) chosen(p *predicate, n *node, r *report) bool {
	named := k.named(p, n, r)
	return (named || r != nil) && k.selected(p, n, r) && named
}

// roomy is the part of GeneralPredicates that reads what the node's pods use.
func (k *class) roomy(p *predicate, n *node, r *report) bool {
	enough := k.fits(p, n, r)
	return (enough || r != nil) && k.portsFree(p, n, r) && enough
}

// bears reports whether the pod bears a condition of a node, because it bears the taint that goes with it.
func (k *class) bears(taint string) bool {
	return placement.Tolerates(k.spec.GetTolerations(), &nodev1.Taint{Key: taint, Effect: placement.NoSchedule})
}

// ready is CheckNodeCondition: a condition that is not there passes.
func (k *class) ready(p *predicate, n *node, r *report) bool {
	ok := true
	for _, c := range n.msg.GetStatus().GetConditions() {
		var short string
		switch status := c.GetStatus(); {
		case c.GetType() == "Ready" && status != "True":
			short = "node(s) were not ready"
		case c.GetType() == "OutOfDisk" && status != "False":
			short = "node(s) were out of disk space"
		case c.GetType() == "NetworkUnavailable" && status != "False" && !k.bears(placement.NetworkUnavailableTaint):
			short = "node(s) had unavailable network"
		default:
			continue
		}
		if ok = false; r == nil {
			return false
		}
		r.fail(p.name, short, func() (string, string) {
			return fmt.Sprintf("condition %s is %s", c.GetType(), c.GetStatus()), fmt.Sprintf("the node's condition %s changes",
				c.GetType())
		})
	}
	return k.schedulable(p, n, r) && ok
}

// schedulable lets in pods that bear the taint of an unschedulable node, as the pods of daemon sets do.
func (k *class) schedulable(p *predicate, n *node, r *report) bool {
	if !n.msg.GetSpec().GetUnschedulable() || k.bears(placement.UnschedulableTaint) {
		return true
	}
	return r != nil && r.fail(p.name, "node(s) were unschedulable", func() (string, string) {
		return "the node is cordoned", "the node is uncordoned"
	})
}

func (k *class) named(_ *predicate, n *node, r *report) bool {
	want := k.spec.GetNodeName()
	if want == "" || want == n.name {
		return true
	}
	return r != nil && r.fail("HostName", "node(s) didn't match the requested hostname", func() (string, string) {
		return fmt.Sprintf("the pod asks for %q", want), "the pod is recreated without nodeName"
	})
}

func (k *class) selected(_ *predicate, n *node, r *report) bool {
	if k.matcher.Matches(n.msg) {
		return true
	}
	return r != nil && r.fail("MatchNodeSelector", "node(s) didn't match node selector", func() (string, string) {
		return k.missing(n)
	})
}

// missing says which labels a node lacks that the pod asks for.
func (k *class) missing(n *node) (detail, unblock string) {
	var missing []string
	for key, v := range k.spec.GetNodeSelector() {
		if got, ok := n.labels[key]; !ok || got != v {
			missing = append(missing, key+"="+v)
		}
	}
	if len(missing) == 0 {
		return "no term of the required node affinity matches", "the node gets labels that one of the terms asks for"
	}
	slices.Sort(missing)
	return "it lacks " + strings.Join(missing, ", "), "the node gets the label " + strings.Join(missing, ", ")
}

// tolerating returns a check that a pod tolerates the taints of a node with the given effects.
func tolerating(effects ...string) check {
	return func(k *class, _ *predicate, n *node, r *report) bool {
		taint := placement.Untolerated(k.spec.GetTolerations(), n.hard, effects...)
		if taint == nil {
			return true
		}
		return r != nil && r.fail("PodToleratesNodeTaints", "node(s) had taint {"+taint.GetKey()+": "+taint.GetValue()+
			"}, that the pod didn't tolerate", func() (string, string) {
			return "its effect is " + taint.GetEffect(), fmt.Sprintf("the taint %s goes, or the pod gets a toleration for it",
				taint.GetKey())
		})
	}
}

func (k *class) labelled(p *predicate, n *node, r *report) bool {
	for _, l := range p.labels {
		if _, ok := n.labels[l]; ok == p.presence {
			continue
		}
		return r != nil && r.unlabelled(l, p.presence)
	}
	return true
}

func (r *report) unlabelled(label string, wanted bool) bool {
	return r.fail("CheckNodeLabelPresence", "node(s) didn't have the requested labels", func() (string, string) {
		if wanted {
			return "it lacks " + label, "the node gets the label " + label
		}
		return "it has " + label, "the node loses the label " + label
	})
}

// without returns a check that a node does not have a condition of pressure, or that the pod tolerates its taint.
func without(condition, what, taint string) check {
	return func(k *class, p *predicate, n *node, r *report) bool {
		if placement.NodeCondition(n.msg, condition).GetStatus() != "True" || k.bears(taint) {
			return true
		}
		return r != nil && r.fail(p.name, "node(s) had "+what+" pressure", func() (string, string) {
			return "", "the node's condition " + condition + " changes"
		})
	}
}

// bestEffort returns a check that applies to BestEffort pods only.
func bestEffort(c check) check {
	return func(k *class, p *predicate, n *node, r *report) bool { return !k.bestEffort || c(k, p, n, r) }
}

// fits is PodFitsResources: room for one more pod always; if the pod asks for anything, every amount is compared, those
// it does not ask for too, so that nothing comes to an overcommitted node.
func (k *class) fits(_ *predicate, n *node, r *report) bool {
	room, enough := int64(len(n.pods)) < n.maxPods, true
	if !k.asksNothing {
		enough = n.used.MilliCPU+k.requests.MilliCPU <= n.has.MilliCPU && n.used.Memory+k.requests.Memory <= n.has.Memory &&
			n.used.EphemeralStorage+k.requests.EphemeralStorage <= n.has.EphemeralStorage
		for name, asked := range k.requests.Scalar {
			enough = enough && n.used.Scalar[name]+asked <= n.has.Scalar[name]
		}
	}
	if r == nil || room && enough {
		return room && enough
	}
	if !room {
		k.short(r, placement.Pods, 1, int64(len(n.pods)), n.maxPods)
	}
	if k.asksNothing {
		return false
	}
	k.short(r, placement.CPU, k.requests.MilliCPU, n.used.MilliCPU, n.has.MilliCPU)
	k.short(r, placement.Memory, k.requests.Memory, n.used.Memory, n.has.Memory)
	k.short(r, placement.EphemeralStorage, k.requests.EphemeralStorage, n.used.EphemeralStorage, n.has.EphemeralStorage)
	for _, name := range slices.Sorted(maps.Keys(k.requests.Scalar)) {
		k.short(r, name, k.requests.Scalar[name], n.used.Scalar[name], n.has.Scalar[name])
	}
	return false
}

// short notes that a node has too little of something, if it has.
func (k *class) short(r *report, name string, asked, used, has int64) {
	if used+asked <= has {
		return
	}
	r.fail("PodFitsResources", "Insufficient "+name, func() (string, string) {
		numbers := fmt.Sprintf("asked %s, free %s of %s", format(name, asked), format(name, has-used), format(name, has))
		return numbers, fmt.Sprintf("needs %s more %s: %s", format(name, used+asked-has), name, numbers)
	})
}

// format writes an amount as people write quantities.
func format(name string, n int64) string {
	switch name {
	case placement.CPU:
		return resource.NewMilliQuantity(n, resource.DecimalSI).String()
	case placement.Memory, placement.EphemeralStorage:
		return resource.NewQuantity(n, resource.BinarySI).String()
	}
	return resource.NewQuantity(n, resource.DecimalSI).String()
}

func (k *class) portsFree(_ *predicate, n *node, r *report) bool {
	if len(k.ports) == 0 || len(n.ports) == 0 {
		return true
	}
	clash, is := placement.FirstClash(k.ports, n.ports)
	if !is {
		return true
	}
	return r != nil && r.fail("PodFitsHostPorts", "node(s) didn't have free ports for the requested pod ports",
		func() (string, string) {
			return "port " + clash.String() + " is taken", "the pod that has " + clash.String() + " leaves the node"
		})
}

// pin finds what nodes the predicates on services leave: those with the label values that the pod asks for itself, and
// for the other labels those of the node that another pod of the same labels runs on, if the pod belongs to a service.
func (k *class) pin() {
	clear(k.pins)
	for i := range k.profile.predicates {
		p := &k.profile.predicates[i]
		if p.filter.argument != "serviceAffinity" {
			continue
		}
		for _, l := range p.labels {
			value, ok := k.spec.GetNodeSelector()[l]
			if !ok && k.peer != nil {
				value, ok = k.peer.node.labels[l]
			}
			if !ok {
				continue
			}
			if k.pins == nil {
				k.pins = map[string]string{}
			}
			k.pins[l] = value
		}
	}
}

// findPeer returns the first pod by name that the pods of the class follow; nil if there is none.
func (k *class) findPeer() *bound {
	var first *bound
	s := k.cluster.spaces[k.key.namespace]
	if s == nil {
		return nil
	}
	for name, b := range s.pods {
		if (first == nil || name < first.key.name) && k.follows(b) {
			first = b
		}
	}
	return first
}

// follows reports whether a pod runs in the namespace of the class with all of its labels.
func (k *class) follows(b *bound) bool {
	return b.node != nil && !b.leaving && b.key.namespace == k.key.namespace && includes(b.labels, k.labels)
}

func includes(have, want labels.Set) bool {
	for l, v := range want {
		if got, ok := have[l]; !ok || got != v {
			return false
		}
	}
	return true
}

func (k *class) withService(p *predicate, n *node, r *report) bool {
	for _, l := range p.labels {
		want, pinned := k.pins[l]
		if got, ok := n.labels[l]; pinned && (!ok || got != want) {
			return r != nil && r.astray(l, want)
		}
	}
	return true
}

func (r *report) astray(label, value string) bool {
	return r.fail("CheckServiceAffinity", "node(s) didn't match service affinity", func() (string, string) {
		return fmt.Sprintf("pods of the service run where %s=%s", label, value),
			fmt.Sprintf("the node gets the label %s=%s, or the service's pods move", label, value)
	})
}

func (k *class) withPods(_ *predicate, n *node, r *report) bool {
	const rule = "MatchInterPodAffinity"
	if k.topology == nil {
		return true
	}
	ok := true
	if d, own, is := k.topology.barred(n); is {
		if ok = false; r == nil {
			return false
		}
		short, who := "node(s) didn't satisfy existing pods anti-affinity rules", "a pod that keeps away from this one runs"
		if own {
			short, who = "node(s) didn't match pod anti-affinity rules", "a pod that this one keeps away from runs"
		}
		r.fail(rule, short, func() (string, string) {
			return fmt.Sprintf("%s where %s=%s", who, d.key, d.value),
				"that pod leaves"
		})
	}
	if k.topology.meets(n) {
		return ok
	}
	return r != nil && r.fail(rule, "node(s) didn't match pod affinity rules", func() (string, string) {
		var keys []string
		for _, t := range k.topology.own.near {
			keys = insert(keys, t.key)
		}
		return "no pod that this one must be near runs in the node's " + strings.Join(keys, ", "),
			"such a pod is placed there"
	})
}
