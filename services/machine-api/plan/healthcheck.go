package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/spans"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/labels"
)

// Figures of remediation that the documents leave open.
const (
	firstPause      = 5 * time.Minute // after the first remediation; doubled for each round of failed replacements
	longestPause    = 4 * time.Hour
	forgetBackOff   = 24 * time.Hour // without a remediation of a set's machines
	unheardPercent  = 55             // of the nodes, as for a partial disruption of a zone (DESIGN, section 4)
	unheardAtLeast  = 3              // nodes, as above
	maxUnhealthyOut = 50             // unhealthy machines in a status
)

const (
	remediationAllowed     = "RemediationAllowed"
	actionDeleteMachine    = "DeleteMachine"
	reasonTooManyUnhealthy = "TooManyUnhealthy"
)

// annotationPaused on a health check stops it.
const annotationPaused = "cluster.x-k8s.io/paused"

// GuardianAnswer is what etcd-guardian says about taking down the voter of a machine.
type GuardianAnswer struct {
	Allowed bool
	Why     string // why not; also set if it could not be asked
}

// HealthCheckView is everything that the plan of a health check depends on.
type HealthCheckView struct {
	Now      time.Time
	Check    *machinev1.MachineHealthCheck
	Machines []*machinev1.Machine    // of the check's namespace, ordered by name
	Nodes    map[string]*nodev1.Node // all nodes by name; nil if none of them was ever seen
	// Unseen is why the nodes are not known as they are now; empty if they are.
	Unseen string
	// Earlier are remediations of a health check of the same name, of machines that are gone, in any order. Those of the
	// check itself may be among them.
	Earlier []*machinev1.Remediation
	// Guardian holds the answers of etcd-guardian by the machine's uid; it was not asked about the others.
	Guardian map[string]GuardianAnswer
	// Seen is for how long the states that the last plan named have been seen. It is not needed if Exact is set: Now and
	// the times of the objects are of one clock.
	Seen  spans.Seen
	Exact bool
}

// UnhealthyMachine is a machine that needs remediation.
type UnhealthyMachine struct {
	Machine *machinev1.Machine
	Reason  string
	HeldBy  string // why it is not remediated now; empty if it is
	unblock string // what would release it
	unheard bool   // Ready=Unknown of its node is the reason
}

// MachineEvent is an event about a machine, or about the health check if Machine is nil.
type MachineEvent struct {
	Machine *machinev1.Machine
	Event
}

// HealthCheckPlan is the outcome of one decision.
type HealthCheckPlan struct {
	Status    *machinev1.MachineHealthCheckStatus // write it before acting
	Allowed   bool                                // whether remediation is allowed
	Message   string                              // why it is not; empty if it is
	Unhealthy []UnhealthyMachine                  // that need remediation, by name
	Remediate []UnhealthyMachine                  // to delete now, in this order
	Held      []*metav1.HeldBack
	Ask       []*machinev1.Machine // what etcd-guardian must answer first; decide again with its answer
	Events    []MachineEvent       // to record once the status is written
	Wake      time.Time            // when to decide again even if nothing changes; zero means never
	States    spans.Seen           // keys of the states whose durations count: Seen of the next view
}

// HealthCheck returns which machines a health check has replaced now. It never remediates while more machines are not
// healthy than maxUnhealthy allows, nor while the nodes are not seen, and machines of the control plane only one at a
// time and with etcd-guardian's consent. It does not modify v. Source: OpenShift's machine health checks, and seed 000,
// section 13.5.2, for the control plane.
func HealthCheck(v HealthCheckView) HealthCheckPlan {
	c := &healthCheck{
		v: v, status: &machinev1.MachineHealthCheckStatus{}, byInstance: map[string]*nodev1.Node{},
		well: map[string]bool{}, clock: spans.Clock{Now: v.Now, Seen: v.Seen, Exact: v.Exact},
	}
	if s := v.Check.GetStatus(); s != nil {
		c.status = proto.Clone(s).(*machinev1.MachineHealthCheckStatus)
	}
	for _, n := range v.Nodes {
		if id := n.GetSpec().GetProviderId(); id != "" {
			c.byInstance[id] = n
		}
	}
	c.examine()
	limit, fault := unhealthyLimit(v.Check.GetSpec().GetMaxUnhealthy(), c.expected)
	c.status.ExpectedMachines, c.status.RemediationsAllowed = proto.Int32(int32(c.expected)), 0
	if !c.blind() {
		c.status.CurrentHealthy = proto.Int32(int32(c.healthy))
	}
	c.adopt()
	c.forget()
	if reason, message := c.blocked(limit, fault); reason != "" {
		c.block(reason, message)
	} else {
		c.status.RemediationsAllowed = int32(limit - (c.expected - c.healthy))
		c.p.Allowed = true
		c.setAllowed(condition(remediationAllowed, conditionTrue, "", "", ""))
		c.remediate()
	}
	c.finish()
	return c.p
}

// healthCheck is one call of HealthCheck.
type healthCheck struct {
	v                 HealthCheckView
	status            *machinev1.MachineHealthCheckStatus
	byInstance        map[string]*nodev1.Node // by provider ID
	expected, healthy int
	clock             spans.Clock
	well              map[string]bool // uids of the healthy machines
	leaving           []*machinev1.Machine
	p                 HealthCheckPlan
}

func (c *healthCheck) wakeAt(t time.Time) {
	if t.After(c.v.Now) && (c.p.Wake.IsZero() || t.Before(c.p.Wake)) {
		c.p.Wake = t
	}
}

// checked returns the selector of a health check, and what is wrong with it; an empty one selects every machine, unlike
// that of a machine set.
func checked(check *machinev1.MachineHealthCheck) (labels.Selector, string) {
	raw := check.GetSpec().GetSelector()
	switch {
	case raw == nil:
		return labels.Nothing(), "spec.selector: must be given"
	case len(raw.GetMatchLabels())+len(raw.GetMatchExpressions()) == 0:
		return labels.Everything(), ""
	}
	sel, bad := object.LabelSelector(raw, "spec.selector")
	if len(bad) > 0 {
		return labels.Nothing(), bad[0].String()
	}
	return sel, ""
}

// blind reports whether no node was ever seen: then nothing is known of the health of any machine, and the status keeps
// what was last known of it.
func (c *healthCheck) blind() bool { return c.v.Nodes == nil && c.v.Unseen != "" }

// examine counts the selected machines and finds those that need remediation.
func (c *healthCheck) examine() {
	sel, fault := checked(c.v.Check)
	if fault != "" {
		return // blocked says so
	}
	for _, m := range c.v.Machines {
		if m.GetMetadata().GetNamespace() != c.v.Check.GetMetadata().GetNamespace() ||
			!sel.Matches(labels.Set(m.GetMetadata().GetLabels())) {
			continue
		}
		c.expected++
		if object.Deleting(m) {
			c.leaving = append(c.leaving, m)
		}
		if object.Deleting(m) || c.blind() {
			continue
		}
		d := c.diagnose(m)
		switch {
		case d.reason != "":
			c.p.Unhealthy = append(c.p.Unhealthy, UnhealthyMachine{Machine: m, Reason: d.reason, unheard: d.unheard})
		case d.healthy:
			c.healthy++
			c.well[m.GetMetadata().GetUid()] = true
		default:
			c.wakeAt(d.due)
		}
	}
}

// diagnosis is what is so of one machine.
type diagnosis struct {
	healthy bool
	reason  string    // why it needs remediation; empty if it does not
	unheard bool      // the reason is that its node does not report
	due     time.Time // when it will need remediation if nothing changes
}

// diagnose says whether a machine needs remediation. The order of the rules is that of OpenShift's health checks.
func (c *healthCheck) diagnose(m *machinev1.Machine) diagnosis {
	if m.GetStatus().GetPhase() == PhaseFailed {
		return diagnosis{reason: withCause("the machine has failed", m.GetStatus().GetErrorMessage())}
	}
	node := c.node(m)
	if m.GetStatus().GetNodeRef().GetName() == "" {
		if node != nil {
			return diagnosis{due: c.v.Now.Add(lookAgain)} // it joined, and is about to be linked
		}
		return c.starting(m)
	}
	if node == nil {
		return diagnosis{reason: fmt.Sprintf("node %s is gone", m.GetStatus().GetNodeRef().GetName())}
	}
	out := diagnosis{healthy: true}
	for _, u := range c.v.Check.GetSpec().GetUnhealthyConditions() {
		d := c.listed(node, u)
		if d.reason != "" {
			return d
		}
		out.healthy = out.healthy && d.healthy
		if out.due.IsZero() || !d.due.IsZero() && d.due.Before(out.due) {
			out.due = d.due
		}
	}
	return out
}

// starting judges a machine without a node, from its creation: a status that changes again and again does not extend
// the time.
func (c *healthCheck) starting(m *machinev1.Machine) diagnosis {
	limit := startupTimeout(c.v.Check.GetSpec())
	if limit == 0 || m.GetMetadata().GetCreationTimestamp() == nil {
		return diagnosis{}
	}
	created := m.GetMetadata().GetCreationTimestamp().AsTime()
	due := c.clock.End(spans.Key(created, "starting", m.GetMetadata().GetUid()), created, limit)
	if due.Before(c.v.Now) {
		return diagnosis{reason: fmt.Sprintf("it has no node %v after its creation", limit)}
	}
	return diagnosis{due: due.Add(time.Second)}
}

// listed judges a node by one of the listed conditions.
func (c *healthCheck) listed(node *nodev1.Node, u *machinev1.UnhealthyCondition) diagnosis {
	for _, have := range node.GetStatus().GetConditions() {
		if have.GetType() != u.GetType() || have.GetStatus() != u.GetStatus() {
			continue
		}
		timeout, err := time.ParseDuration(u.GetTimeout())
		if err != nil || have.GetLastTransitionTime() == nil {
			return diagnosis{} // how long it has lasted is not known
		}
		since := have.GetLastTransitionTime().AsTime()
		due := c.clock.End(spans.Key(since, "node", node.GetMetadata().GetName(), node.GetMetadata().GetUid(), u.GetType(),
			u.GetStatus()), since, timeout)
		if due.Before(c.v.Now) {
			return diagnosis{
				reason: fmt.Sprintf("condition %s of node %s is %s since %s, longer than %v", u.GetType(),
					node.GetMetadata().GetName(), u.GetStatus(), moment(since), timeout),
				unheard: u.GetType() == "Ready" && u.GetStatus() == conditionUnknown,
			}
		}
		return diagnosis{due: due.Add(time.Second)}
	}
	return diagnosis{healthy: true}
}

func moment(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// node returns the node of a machine. One that registered again under another uid counts, as the machine is about to be
// linked to it.
func (c *healthCheck) node(m *machinev1.Machine) *nodev1.Node {
	if n := linkedNode(c.v.Nodes, m); n != nil {
		return n
	}
	id := m.GetSpec().GetProviderId()
	for _, n := range []*nodev1.Node{
		c.v.Nodes[m.GetStatus().GetNodeRef().GetName()], c.v.Nodes[m.GetMetadata().GetName()], c.byInstance[id],
	} {
		if n != nil && IsNodeOf(n, m, id) {
			return n
		}
	}
	return nil
}

// blocked returns why no machine at all may be remediated, in one word and for people; both empty if machines may.
func (c *healthCheck) blocked(limit int, limitFault string) (reason, message string) {
	check := c.v.Check
	_, selectorFault := checked(check)
	unhealthy := c.expected - c.healthy
	_, paused := check.GetMetadata().GetAnnotations()[annotationPaused]
	_, budgetFault := budget(check, c.expected)
	switch {
	case object.Deleting(check):
		return "Deleting", "Remediation is not allowed, the health check is being deleted"
	case paused:
		return "Paused", "Remediation is not allowed, the health check has the annotation " + annotationPaused
	case selectorFault != "":
		return reasonInvalidConfiguration, "Remediation is not allowed, " + selectorFault
	case limitFault != "":
		return reasonInvalidConfiguration, "Remediation is not allowed, spec.maxUnhealthy: " + limitFault
	case budgetFault != "":
		return reasonInvalidConfiguration, "Remediation is not allowed, metadata.annotations[" + annotationBudget + "]: " +
			budgetFault
	case c.v.Unseen != "":
		c.wakeAt(c.v.Now.Add(lookAgain))
		return "NodesNotSeen", "Remediation is not allowed, the nodes are not known: " + c.v.Unseen
	}
	if text := unheard(c.v.Nodes, ""); text != "" {
		c.wakeAt(c.v.Now.Add(lookAgain))
		return "NodesNotSeen", "Remediation is not allowed, " + text
	}
	if unhealthy > limit {
		return reasonTooManyUnhealthy, fmt.Sprintf("Remediation is not allowed, the number of not started or unhealthy "+
			"machines exceeds maxUnhealthy (total: %d, unhealthy: %d, maxUnhealthy: %s)", c.expected, unhealthy,
			limitText(check.GetSpec().GetMaxUnhealthy()))
	}
	return "", ""
}

// unheard returns why the silence of nodes says nothing about their machines: all or most of them became silent, so
// that the fault is more likely between them and the cluster. zone restricts it to one zone; empty means all nodes.
func unheard(nodes map[string]*nodev1.Node, zone string) string {
	total, silent, since := 0, 0, time.Time{}
	for _, n := range nodes {
		if zone != "" && zoneOf(n) != zone {
			continue
		}
		total++
		for _, cond := range n.GetStatus().GetConditions() {
			if cond.GetType() == "Ready" && cond.GetStatus() == conditionUnknown {
				silent++
				if t := cond.GetLastTransitionTime(); t != nil && t.AsTime().After(since) {
					since = t.AsTime()
				}
			}
		}
	}
	all := zone == "" && total > 1 && silent == total
	if !all && (silent < unheardAtLeast || silent*100 < unheardPercent*total) {
		return ""
	}
	where := ""
	if zone != "" {
		where = " of zone " + zone
	}
	return fmt.Sprintf("%d of %d nodes%s do not report since %s: "+
		"this may be a fault of the connection to them, not of their machines", silent, total, where, moment(since))
}

func zoneOf(n *nodev1.Node) string {
	l := n.GetMetadata().GetLabels()
	return cmp.Or(l[LabelNodeZone], l[LabelNodeZoneOld])
}

// block notes that nothing is remediated.
func (c *healthCheck) block(reason, message string) {
	c.p.Message = message
	if reason == reasonTooManyUnhealthy &&
		object.FindCondition(c.status.Conditions, remediationAllowed).GetReason() != reason {
		c.p.Events = append(c.p.Events, MachineEvent{Event: Event{"Warning", "RemediationRestricted", message}})
	}
	c.setAllowed(condition(remediationAllowed, conditionFalse, severityWarning, reason, message))
	for i := range c.p.Unhealthy {
		c.p.Unhealthy[i].HeldBy = message
	}
}

// setAllowed sets the condition. The time of its transition is that of its status and reason: the numbers in the
// message change while the same holds it.
func (c *healthCheck) setAllowed(next *metav1.Condition) {
	was := object.FindCondition(c.status.Conditions, remediationAllowed)
	c.status.Conditions = object.SetCondition(c.status.Conditions, next, c.v.Now)
	if was != nil && was.GetStatus() == next.GetStatus() && was.GetReason() == next.GetReason() {
		object.FindCondition(c.status.Conditions, remediationAllowed).LastTransitionTime = was.GetLastTransitionTime()
	}
}

// finish completes status, held actions and events.
func (c *healthCheck) finish() {
	before := map[string]*machinev1.UnhealthyMachine{}
	for _, u := range c.v.Check.GetStatus().GetUnhealthy() {
		before[u.GetMachine()] = u
	}
	if c.blind() {
		for _, u := range c.status.Unhealthy {
			u.HeldBy = c.p.Message
		}
	} else {
		c.status.Unhealthy = nil
	}
	for _, u := range c.p.Unhealthy {
		name := u.Machine.GetMetadata().GetName()
		was, known := before[name]
		listed := len(c.status.Unhealthy) < maxUnhealthyOut // of the others it is not known what was reported before
		if !known && listed {
			c.p.Events = append(c.p.Events, MachineEvent{u.Machine, Event{
				"Normal", "DetectedUnhealthy",
				fmt.Sprintf("Machine %s needs remediation: %s", name, u.Reason),
			}})
		}
		if u.HeldBy == heldNoController && was.GetHeldBy() != u.HeldBy && listed {
			c.p.Events = append(c.p.Events, MachineEvent{u.Machine, Event{
				"Warning", "SkippedNoController",
				fmt.Sprintf("Machine %s is unhealthy (%s) and is not deleted: %s", name, u.Reason, u.HeldBy),
			}})
		}
		if u.HeldBy != "" {
			c.p.Held = append(c.p.Held, &metav1.HeldBack{
				Action: actionDeleteMachine, Object: reference(u.Machine), Reason: u.HeldBy, Unblock: u.unblock,
			})
		}
		if listed {
			c.status.Unhealthy = append(c.status.Unhealthy, &machinev1.UnhealthyMachine{
				Machine: name, Reason: u.Reason, HeldBy: u.HeldBy,
			})
		}
	}
	if c.p.Allowed && len(c.p.Ask) > 0 {
		c.p.Events = nil // decided again with the answers
	}
	slices.SortFunc(c.status.BackOffs, func(a, b *machinev1.RemediationBackOff) int {
		return cmp.Or(cmp.Compare(a.GetKind(), b.GetKind()), cmp.Compare(a.GetName(), b.GetName()))
	})
	c.p.Status, c.p.States = c.status, c.clock.Used
}
