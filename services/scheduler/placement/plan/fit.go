package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"
)

// class is what pods of equal namespace, labels, affinity to pods and shape ask for, and what is known of the nodes
// about it.
type class struct {
	cluster *Cluster
	profile *Profile
	board   *board
	shape   *shape
	id      string

	key         podKey // of the first pod of the class; the others share its namespace
	labels      labels.Set
	spec        *schedulingv1.PodSpec
	requests    placement.Resources
	asksNothing bool
	cpu, memory int64 // as ranking counts them
	ports       []placement.HostPort
	shared      []placement.HostPort // see bound
	disks       []disk
	demand      demand
	matcher     placement.NodeMatcher
	bestEffort  bool
	preferences []preference
	images      []string
	owner       string // kind/uid of its controller, if a node is to be avoided by its pods

	selectors []selectorKey     // of the namespace that select the pod
	services  []selectorKey     // those of services
	groups    [3]*group         // that priorities count: see bySelectors
	grouped   uint64            // the cluster's count of changes of groups that groups is of
	members   *members          // groups of the cluster that select pods of the class
	terms     *terms            // its own
	topology  *topology         // nil if no pod that runs matters
	spread    *spread           // nil if the pod has no constraints on it
	peer      *bound            // that pods of the same service follow; nil if there is none
	pins      map[string]string // by label: values that nodes must have, by the predicates on services

	bunches *bunches  // nil where those of the shape are
	stale   bool      // whether bunches must be made again
	upTo    uint64    // number of the first change that is not taken in
	placed  uint64    // version of the places
	norms   []norm    // by the index of the priority
	closed  []bool    // by place: whether no pod of the class may be there; nil if it may be everywhere
	telling []int     // indices of the priorities that distinguish nodes
	weights []int64   // of affinity to pods, by place; nil if places are equal to it
	failed  *Decision // of an earlier pod of the class: what only fills up cannot fit later
	round   uint64    // that failed is of
	judged  uint64    // number of the change before which failed was
}

// preference is a preferred term of affinity to nodes.
type preference struct {
	term   placement.Term
	weight int64
}

func owner(pod *schedulingv1.Pod) string {
	o := placement.ControllerOf(pod)
	if kind := o.GetKind(); kind != kindReplicationController && kind != kindReplicaSet {
		return ""
	}
	return o.GetKind() + "/" + o.GetUid()
}

// refusal says what keeps a pod from every node: its gates, or its claims. It is empty if nothing does.
func (c *Cluster) refusal(p *Profile, pod *schedulingv1.Pod) string {
	spec := pod.GetSpec()
	if gates := spec.GetSchedulingGates(); len(gates) > 0 {
		var names []string
		for _, g := range gates {
			names = append(names, g.GetFields()["name"].GetStringValue())
		}
		return "it has scheduling gates, which must go first: " + strings.Join(names, ", ")
	}
	return c.unready(p, pod.GetMetadata().GetNamespace(), spec)
}

// failure is one reason why a node is out.
type failure struct {
	predicate string // as the policy names it
	rule      string // as the document names the rule that failed
	short     string // as the event counts it
	detailed  string // of an extender: short with its own reason
	say       func() (detail, unblock string)

	resource    string // that is short; empty if the rule is not about one
	asked, free int64

	taint  *nodev1.Taint // that the pod does not tolerate, if that is the reason
	behind bool          // whether the rule has more against the node than is said here
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

// fail notes a failure and returns false. say is called only if the caller wants to know more than a count, which may
// be later and beside changes of the cluster: it must read nothing of it that changes.
func (r *report) fail(rule, short string, say func() (detail, unblock string)) bool {
	r.failures = append(r.failures, failure{predicate: r.predicate, rule: rule, short: short, say: say})
	return false
}

// holds reports whether a node passes one part of all predicates.
func (k *class) holds(n *node, what part) bool {
	for i := range k.profile.predicates {
		p := &k.profile.predicates[i]
		if check := p.filter.check(what); check != nil && !check(k, p, n, nil) {
			return false
		}
	}
	return true
}

// judge returns everything that keeps the pods of a class from a node.
func (k *class) judge(n *node) []failure {
	var r report
	for i := range k.profile.predicates {
		p := &k.profile.predicates[i]
		r.predicate = p.name
		for what := fixed; what <= coarse; what <<= 1 {
			if check := p.filter.check(what); check != nil {
				check(k, p, n, &r)
			}
		}
	}
	return r.failures
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
	if r == nil {
		return false
	}
	have := n.labels // which n may have others than when this is said
	r.fail("MatchNodeSelector", "node(s) didn't match node selector", func() (string, string) { return k.missing(have) })
	required := k.spec.GetAffinity().GetNodeAffinity().GetRequiredDuringSchedulingIgnoredDuringExecution()
	r.failures[len(r.failures)-1].behind = len(k.spec.GetNodeSelector()) > 0 && required != nil
	return false
}

// missing says which labels a node lacks that the pod asks for.
func (k *class) missing(have labels.Set) (detail, unblock string) {
	var missing []string
	for key, v := range k.spec.GetNodeSelector() {
		if got, ok := have[key]; !ok || got != v {
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
		if r == nil {
			return false
		}
		r.fail("PodToleratesNodeTaints", "node(s) had taint {"+taint.GetKey()+": "+taint.GetValue()+
			"}, that the pod didn't tolerate", func() (string, string) {
			return "its effect is " + taint.GetEffect(), fmt.Sprintf("the taint %s goes, or the pod gets a toleration for it",
				taint.GetKey())
		})
		last := &r.failures[len(r.failures)-1]
		last.taint, last.behind = taint, k.repels(n, effects, taint)
		return false
	}
}

// repels reports whether a node has more than one taint with one of the effects that the pod does not tolerate.
func (k *class) repels(n *node, effects []string, but *nodev1.Taint) bool {
	return slices.ContainsFunc(n.hard, func(t *nodev1.Taint) bool {
		return t != but && slices.Contains(effects, t.GetEffect()) && !placement.Tolerates(k.spec.GetTolerations(), t)
	})
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
			enough = enough && (n.used.Scalar[name]+asked <= n.has.Scalar[name] || k.profile.ignored[name])
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
	if used+asked <= has || k.profile.ignored[name] {
		return
	}
	r.fail("PodFitsResources", "Insufficient "+name, func() (string, string) {
		numbers := fmt.Sprintf("asked %s, free %s of %s", format(name, asked), format(name, has-used), format(name, has))
		return numbers, fmt.Sprintf("needs %s more %s", format(name, used+asked-has), name)
	})
	last := &r.failures[len(r.failures)-1]
	last.resource, last.asked, last.free = name, asked, has-used
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
	wanted, taken := k.ports, n.ports
	if placement.SharesAddress(n.labels) {
		wanted, taken = k.shared, n.shared
	}
	if len(wanted) == 0 || len(taken) == 0 {
		return true
	}
	clash, is := placement.FirstClash(wanted, taken)
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
func (k *class) pin() map[string]string {
	var pins map[string]string
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
			if pins == nil {
				pins = map[string]string{}
			}
			pins[l] = value
		}
	}
	return pins
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

// follows reports whether a pod is bound in the namespace of the class and has all of its labels. One that terminates
// still counts: its service is where it runs until it has ended.
func (k *class) follows(b *bound) bool {
	return b.node != nil && !b.nominated && b.key.namespace == k.key.namespace && includes(b.labels, k.labels)
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
	if r == nil {
		return false
	}
	terms := k.topology.own.near
	return r.fail(rule, "node(s) didn't match pod affinity rules", func() (string, string) {
		var keys []string
		for _, t := range terms {
			keys = insert(keys, t.key)
		}
		return "no pod that this one must be near runs in the node's " + strings.Join(keys, ", "),
			"such a pod is placed there"
	})
}
