package plan

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/spans"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// annotationBudget on a health check is its budget, such as "5/1h": the most remediations within a time. Without it the
// budget is 5 machines or 20 % of the selected ones per hour, whichever is more, and at most 100.
const annotationBudget = "windlass.dev/remediation-budget"

const (
	defaultBudget        = 5
	defaultBudgetPercent = 20
	mostDefaultBudget    = 100
	mostBudget           = 200 // as each remediation within the window is in the status
	defaultWindow        = time.Hour
	longestWindow        = 24 * time.Hour
	defaultStartup       = 10 * time.Minute
)

// kindHealthCheck is the trigger of a deletion that a health check decided on.
const kindHealthCheck = "MachineHealthCheck"

// heldNoController is why a machine is skipped that nothing would replace.
const heldNoController = "the machine has no controller, so nothing would replace it"

// startupTimeout returns how long after its creation a machine may be without a node; 0 means any time.
func startupTimeout(s *machinev1.MachineHealthCheckSpec) time.Duration {
	d, err := time.ParseDuration(s.GetNodeStartupTimeout())
	if err != nil {
		return defaultStartup // it is empty; others are refused
	}
	return d
}

var percentage = regexp.MustCompile(`^(100|[0-9]{1,2})%$`)

// unhealthyLimit returns how many of the expected machines may be unhealthy under maxUnhealthy, and why it cannot be
// read; empty if it can. nil is "100%", percentages are rounded down, and negative numbers are 0.
func unhealthyLimit(maxUnhealthy *structpb.Value, expected int) (limit int, fault string) {
	const must = "must be a whole number, or a percentage from 0% to 100%"
	switch k := maxUnhealthy.GetKind().(type) {
	case nil:
		return expected, ""
	case *structpb.Value_NumberValue:
		if n := k.NumberValue; n == math.Trunc(n) && math.Abs(n) <= math.MaxInt32 {
			return max(0, int(n)), ""
		}
	case *structpb.Value_StringValue:
		if m := percentage.FindStringSubmatch(k.StringValue); m != nil {
			percent, err := strconv.Atoi(m[1])
			if err == nil {
				return expected * percent / 100, ""
			}
		}
		if n, err := strconv.ParseInt(k.StringValue, 10, 32); err == nil && k.StringValue[0] != '+' {
			return max(0, int(n)), ""
		}
	}
	return 0, must
}

func limitText(maxUnhealthy *structpb.Value) string {
	switch k := maxUnhealthy.GetKind().(type) {
	case *structpb.Value_NumberValue:
		return strconv.FormatFloat(k.NumberValue, 'f', -1, 64)
	case *structpb.Value_StringValue:
		return k.StringValue
	}
	return "100%"
}

// allowance is how many remediations are allowed within a time.
type allowance struct {
	most   int
	window time.Duration
}

// budget returns the budget of a health check, and why it cannot be read; empty if it can.
func budget(check *machinev1.MachineHealthCheck, expected int) (allowance, string) {
	text, ok := check.GetMetadata().GetAnnotations()[annotationBudget]
	if !ok {
		return allowance{
			min(mostDefaultBudget, max(defaultBudget, expected*defaultBudgetPercent/100)), defaultWindow,
		}, ""
	}
	number, span, _ := strings.Cut(text, "/")
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 || n > mostBudget {
		return allowance{}, fmt.Sprintf("must be a number from 0 to %d and a duration, such as 5/1h", mostBudget)
	}
	d, err := time.ParseDuration(span)
	if err != nil || d < time.Second || d > longestWindow {
		return allowance{}, fmt.Sprintf("must have a duration from 1s to %v, such as 5/1h", longestWindow)
	}
	return allowance{n, d}, ""
}

// HealthCheckFaults returns what is invalid about a health check beyond the rules of its proto.
func HealthCheckFaults(check *machinev1.MachineHealthCheck) []object.Fault {
	spec := check.GetSpec()
	var bad []object.Fault
	if spec == nil {
		return []object.Fault{{Path: "spec", Description: "must be given"}}
	}
	_, faults := object.LabelSelector(spec.GetSelector(), "spec.selector")
	bad = append(bad, faults...)
	if _, fault := unhealthyLimit(spec.GetMaxUnhealthy(), 0); fault != "" {
		bad = append(bad, object.Fault{Path: "spec.maxUnhealthy", Description: fault})
	}
	if spec.GetRemediationTemplate() != nil {
		bad = append(bad, object.Fault{Path: "spec.remediationTemplate", Description: "is not supported: unhealthy " +
			"machines are deleted, and no other controller is called"})
	}
	if text := spec.GetNodeStartupTimeout(); text != "" {
		if _, err := time.ParseDuration(text); err != nil {
			bad = append(bad, object.Fault{Path: "spec.nodeStartupTimeout", Description: "must be a duration such as 10m"})
		}
	}
	for i, u := range spec.GetUnhealthyConditions() {
		if _, err := time.ParseDuration(u.GetTimeout()); err != nil {
			bad = append(bad, object.Faultf(fmt.Sprintf("spec.unhealthyConditions[%d].timeout", i),
				"must be a duration such as 300s"))
		}
	}
	if _, fault := budget(check, 0); fault != "" {
		bad = append(bad, object.Fault{Path: "metadata.annotations[" + annotationBudget + "]", Description: fault})
	}
	return bad
}

// Annotations of the revocation of a machine's certificates, which is kept for at least a day after the machine is
// gone: the health check that had the machine deleted, as NAMESPACE/NAME, and when that was decided, by RFC 3339.
const (
	AnnotationRemediatedBy   = "windlass.dev/remediated-by"
	annotationRemediatedTime = "windlass.dev/remediation-time"
)

// RemediationNote returns the annotations for the revocation of a machine that is being deleted; nil unless a health
// check decided on that.
func RemediationNote(m *machinev1.Machine) map[string]string {
	d := m.GetStatus().GetDeletion()
	if d.GetTrigger() != kindHealthCheck {
		return nil
	}
	check := object.Key{Namespace: m.GetMetadata().GetNamespace(), Name: d.GetRequestedBy()}
	return map[string]string{
		AnnotationRemediatedBy: check.String(), annotationRemediatedTime: moment(d.GetRequestTime().AsTime()),
	}
}

// NotedRemediation returns the remediation that RemediationNote noted on a revocation; nil if it noted none.
func NotedRemediation(r *machinev1.Revocation) *machinev1.Remediation {
	t, err := time.Parse(time.RFC3339, r.GetMetadata().GetAnnotations()[annotationRemediatedTime])
	if err != nil {
		return nil
	}
	return &machinev1.Remediation{
		Machine: r.GetSpec().GetMachineName(), MachineUid: r.GetSpec().GetMachineUid(), Reason: r.GetSpec().GetReason(),
		Time: timestamppb.New(t),
	}
}

// adopt counts the remediations of an earlier health check of the same name: a check that is deleted and created again
// continues with the budget that is left.
func (c *healthCheck) adopt() {
	var list []*machinev1.Remediation
	for _, m := range c.leaving {
		d := m.GetStatus().GetDeletion()
		if d.GetTrigger() == kindHealthCheck && d.GetRequestedBy() == c.v.Check.GetMetadata().GetName() && !c.recorded(m) {
			list = append(list, &machinev1.Remediation{
				Machine: m.GetMetadata().GetName(), MachineUid: m.GetMetadata().GetUid(), Reason: d.GetReason(),
				Time: d.GetRequestTime(),
			})
		}
	}
	if c.v.Check.GetStatus() == nil { // later its own records say what counts, and what no longer does
		list = append(list, slices.DeleteFunc(slices.Clone(c.v.Earlier), func(r *machinev1.Remediation) bool {
			return slices.ContainsFunc(list, func(o *machinev1.Remediation) bool {
				return o.GetMachineUid() == r.GetMachineUid()
			})
		})...)
	}
	slices.SortStableFunc(list, func(a, b *machinev1.Remediation) int {
		return b.GetTime().AsTime().Compare(a.GetTime().AsTime())
	})
	for _, r := range list[:min(len(list), max(0, mostBudget-len(c.status.Remediations)))] {
		c.status.Remediations = append(c.status.Remediations, proto.CloneOf(r))
	}
}

// forget removes from the status what no longer counts. A time to come was written by a leader whose clock was ahead:
// what it dates is at most as old as now. A remediation of a machine that is healthy was not carried out.
func (c *healthCheck) forget() {
	for _, r := range c.status.Remediations {
		r.Time = c.notAfterNow(r.GetTime())
	}
	for _, o := range c.status.BackOffs {
		o.FirstTime, o.LastTime = c.notAfterNow(o.GetFirstTime()), c.notAfterNow(o.GetLastTime())
	}
	b, fault := budget(c.v.Check, c.expected)
	if fault != "" {
		b.window = longestWindow
	}
	undone := map[string]*machinev1.Remediation{} // by uid of the set
	for _, m := range c.v.Machines {
		if r := c.recordOf(m); r != nil && c.well[m.GetMetadata().GetUid()] {
			undone[object.ControllerOf(m).GetUid()] = r
		}
	}
	c.status.Remediations = slices.DeleteFunc(c.status.Remediations, func(r *machinev1.Remediation) bool {
		return c.well[r.GetMachineUid()] || !c.leavesWindow(r, b).After(c.v.Now)
	})
	c.status.BackOffs = slices.DeleteFunc(c.status.BackOffs, func(o *machinev1.RemediationBackOff) bool {
		return !c.since(o, forgetBackOff).After(c.v.Now) || c.begins(o, undone[o.GetUid()])
	})
}

func (c *healthCheck) notAfterNow(t *timestamppb.Timestamp) *timestamppb.Timestamp {
	if t.AsTime().After(c.v.Now) {
		return seconds(c.v.Now)
	}
	return t
}

// leavesWindow returns when a remediation no longer counts for the budget.
func (c *healthCheck) leavesWindow(r *machinev1.Remediation, b allowance) time.Time {
	t := r.GetTime().AsTime()
	return c.clock.End(spans.Key(t, "remediation", r.GetMachineUid()), t, b.window)
}

// since returns when the last remediation of a set's machines will be d ago.
func (c *healthCheck) since(o *machinev1.RemediationBackOff, d time.Duration) time.Time {
	t := o.GetLastTime().AsTime()
	return c.clock.End(spans.Key(t, "backoff", o.GetUid()), t, d)
}

// begins reports whether a back-off is about a remediation that was not carried out, and about no other one.
func (c *healthCheck) begins(o *machinev1.RemediationBackOff, undone *machinev1.Remediation) bool {
	at := undone.GetTime()
	return undone != nil && proto.Equal(o.GetFirstTime(), at) && proto.Equal(o.GetLastTime(), at) &&
		!slices.ContainsFunc(c.status.Remediations, func(r *machinev1.Remediation) bool {
			return proto.Equal(r.GetTime(), at)
		})
}

// remediate decides about each unhealthy machine.
func (c *healthCheck) remediate() {
	b, _ := budget(c.v.Check, c.expected)
	var rounds []*machinev1.RemediationBackOff // as they were before, so that the machines of one round go together
	for _, o := range c.status.BackOffs {
		rounds = append(rounds, &machinev1.RemediationBackOff{
			Uid: o.GetUid(), FirstTime: o.GetFirstTime(), LastTime: o.GetLastTime(),
			FailedReplacements: o.GetFailedReplacements(),
		})
	}
	for i := range c.p.Unhealthy {
		u := &c.p.Unhealthy[i]
		u.HeldBy, u.unblock = c.holds(*u, b, rounds)
		if u.HeldBy == "" {
			c.record(*u, rounds)
			c.p.Remediate = append(c.p.Remediate, *u)
		}
	}
}

// holds returns why an unhealthy machine is not remediated now, and what would release it.
func (c *healthCheck) holds(u UnhealthyMachine, b allowance, rounds []*machinev1.RemediationBackOff) (
	reason, unblock string,
) {
	m := u.Machine
	owner := object.ControllerOf(m)
	if owner == nil {
		return heldNoController, "delete the machine, or label it so that a set adopts it"
	}
	if OtherAPI(m.GetSpec()) {
		return "another API rules the machine", ""
	}
	if zone := zoneOf(c.node(m)); u.unheard && zone != "" {
		if text := unheard(c.v.Nodes, zone); text != "" {
			c.wakeAt(c.v.Now.Add(lookAgain))
			return text, "delete the machine if it is lost"
		}
	}
	if !c.recorded(m) { // one that is was decided on, and only its deletion is not done yet
		if at := c.pauseEnd(m, owner, rounds); at.After(c.v.Now) {
			c.wakeAt(at)
			return fmt.Sprintf("replacements of %s %s were unhealthy, too: the next is replaced after %s", owner.GetKind(),
				owner.GetName(), fullMinute(at)), "correct what makes new machines unhealthy, or delete the machine"
		}
		if len(c.status.Remediations) >= b.most {
			c.wakeAt(c.budgetFree(b))
			return fmt.Sprintf("the budget of %d remediations within %v is used up", b.most, b.window),
				"delete the machine, or raise the annotation " + annotationBudget
		}
	}
	if isControlPlane(m) {
		return c.controlPlaneHolds(m)
	}
	return "", ""
}

// budgetFree returns when the oldest remediation leaves the window; zero if there is none.
func (c *healthCheck) budgetFree(b allowance) time.Time {
	var first time.Time
	for _, r := range c.status.Remediations {
		if t := c.leavesWindow(r, b); first.IsZero() || t.Before(first) {
			first = t
		}
	}
	return first
}

// fullMinute returns the first full minute that is not before a time: a text that is stored must not follow each
// adjustment of the clock.
func fullMinute(t time.Time) string {
	return moment(t.Add(time.Minute - time.Nanosecond).Truncate(time.Minute))
}

func isControlPlane(m *machinev1.Machine) bool {
	return Role(m) == RoleMaster || object.ControllerOf(m).GetKind() == "ControlPlaneMachineSet"
}

// controlPlaneHolds returns why a machine of the control plane must stay for now.
func (c *healthCheck) controlPlaneHolds(m *machinev1.Machine) (reason, unblock string) {
	for _, o := range c.v.Machines {
		if object.Deleting(o) && isControlPlane(o) && o.GetMetadata().GetUid() != m.GetMetadata().GetUid() {
			return fmt.Sprintf("machine %s of the control plane is being replaced", o.GetMetadata().GetName()), ""
		}
	}
	for _, r := range c.p.Remediate {
		if isControlPlane(r.Machine) {
			return fmt.Sprintf("machine %s of the control plane is replaced first", r.Machine.GetMetadata().GetName()), ""
		}
	}
	answer, asked := c.v.Guardian[m.GetMetadata().GetUid()]
	switch {
	case !asked:
		c.p.Ask = append(c.p.Ask, m)
		return "etcd-guardian has not been asked whether its member may go", ""
	case !answer.Allowed:
		c.wakeAt(c.v.Now.Add(lookAgain))
		return "etcd-guardian does not allow it: " + answer.Why, "restore the other members"
	}
	return "", ""
}

func (c *healthCheck) recorded(m *machinev1.Machine) bool { return c.recordOf(m) != nil }

// recordOf returns the remediation of a machine that is recorded; nil if there is none.
func (c *healthCheck) recordOf(m *machinev1.Machine) *machinev1.Remediation {
	for _, r := range c.status.Remediations {
		if r.GetMachineUid() == m.GetMetadata().GetUid() && r.GetMachine() == m.GetMetadata().GetName() {
			return r
		}
	}
	return nil
}

// pauseEnd returns until when a machine waits because it is itself a replacement; the zero time if it is not.
func (c *healthCheck) pauseEnd(m *machinev1.Machine, owner *metav1.OwnerReference,
	rounds []*machinev1.RemediationBackOff,
) time.Time {
	o := backOffOf(rounds, owner)
	if !isReplacement(m, o) {
		return time.Time{}
	}
	pause := longestPause
	if n := o.GetFailedReplacements(); n < 6 { // 5 min, doubled 6 times, is longer
		pause = min(longestPause, firstPause<<n)
	}
	return c.since(o, pause)
}

func backOffOf(list []*machinev1.RemediationBackOff, owner *metav1.OwnerReference) *machinev1.RemediationBackOff {
	for _, o := range list {
		if o.GetUid() == owner.GetUid() {
			return o
		}
	}
	return nil
}

// isReplacement reports whether a machine was created after the first remediation of its set's machines. Creation times
// have whole seconds.
func isReplacement(m *machinev1.Machine, o *machinev1.RemediationBackOff) bool {
	return o != nil && !m.GetMetadata().GetCreationTimestamp().AsTime().Before(o.GetFirstTime().AsTime().Truncate(
		time.Second))
}

// record notes a remediation in the status, once for each machine.
func (c *healthCheck) record(u UnhealthyMachine, rounds []*machinev1.RemediationBackOff) {
	m := u.Machine
	if c.recorded(m) {
		return
	}
	c.status.Remediations = append(c.status.Remediations, &machinev1.Remediation{
		Machine: m.GetMetadata().GetName(), MachineUid: m.GetMetadata().GetUid(), Reason: u.Reason, Time: seconds(c.v.Now),
	})
	owner := object.ControllerOf(m)
	o := backOffOf(c.status.BackOffs, owner)
	if o == nil {
		o = &machinev1.RemediationBackOff{
			Kind: owner.GetKind(), Name: owner.GetName(), Uid: owner.GetUid(), FirstTime: seconds(c.v.Now),
		}
		c.status.BackOffs = append(c.status.BackOffs, o)
	}
	o.LastTime = seconds(c.v.Now)
	if was := backOffOf(rounds, owner); isReplacement(m, was) {
		o.FailedReplacements = was.GetFailedReplacements() + 1
	}
}
