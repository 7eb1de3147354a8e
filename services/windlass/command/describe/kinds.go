package describe

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/hooktask"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/waiting"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// The kinds with their own describe functions.
type (
	machine     = *machinev1.Machine
	machineSet  = *machinev1.MachineSet
	healthCheck = *machinev1.MachineHealthCheck

	machineAutoscaler = *machinev1.MachineAutoscaler
	clusterAutoscaler = *machinev1.ClusterAutoscaler

	controlPlane = *machinev1.ControlPlaneMachineSet
	node         = *nodev1.Node
	drain        = *nodev1.Drain
	hookTask     = *hookv1.HookTask
	hookOwner    = *hookv1.HookOwner
)

func (d *describer) machine() {
	m := d.Object.(machine)
	s := m.GetStatus()
	d.line("Phase", table.OrNone(s.GetPhase()))
	waits, failures := d.waitsFor(m)
	d.line("Waiting for", waits)
	if x := s.GetDeletion(); x != nil {
		d.line("Deletion", strings.TrimSuffix(fmt.Sprintf("requested by %s %s, %s: %s", x.GetTrigger(), x.GetRequestedBy(),
			ago(x.GetRequestTime()), x.GetReason()), ": "))
	}
	d.stepFailures(failures)
	d.blocking(s)
	if s.GetErrorReason() != "" || s.GetErrorMessage() != "" {
		d.linef("Error", "%s: %s", s.GetErrorReason(), s.GetErrorMessage())
	}
	d.line("Node", table.OrNone(s.GetNodeRef().GetName()))
	d.line("Provider ID", table.OrNone(m.GetSpec().GetProviderId()))
	d.line("Addresses", addressLines(s.GetAddresses()))
	if o := s.GetLastOperation(); o != nil {
		d.line("Last operation",
			strings.TrimSuffix(fmt.Sprintf("%s %s, %s: %s", o.GetType(), o.GetState(), ago(o.GetLastUpdated()),
				o.GetDescription()), ": "))
	}
	d.line("Node labels", mapLines(m.GetSpec().GetMetadata().GetLabels()))
	d.line("Node taints", printer.Taints(m.GetSpec().GetTaints()))
	d.hooks(m.GetSpec().GetLifecycleHooks())
	d.hookTasks(m)
	d.yaml("Provider Spec", m.GetSpec().GetProviderSpec().GetValue())
	d.yaml("Provider Status", s.GetProviderStatus())
	d.conditions(s.GetConditions())
}

// waitsFor returns what a machine waits for according to machine-api, and the steps that fail; those stored on the
// machine if machine-api does not answer.
func (d *describer) waitsFor(m machine) (string, []*machinev1.StepFailure) {
	p, err := machinev1.NewMachineServiceClient(d.client.Conn()).PlanMachine(d.ctx, &machinev1.PlanMachineRequest{
		Namespace: d.Namespace(), Name: d.Name(),
	})
	if err != nil {
		return "<" + shortError(err) + ">", m.GetStatus().GetStepFailures()
	}
	text := "nothing"
	if w := p.GetWaitsFor(); w != "" {
		text = waiting.WithProgress(d.ctx, d.client, m, w)
	} else if a := p.GetActions(); len(a) > 0 {
		text = "nothing, next action: " + a[0].GetAction()
	}
	return text, p.GetStepFailures()
}

// stepFailures prints the steps that fail, if there are any.
func (d *describer) stepFailures(list []*machinev1.StepFailure) {
	if len(list) == 0 {
		return
	}
	rows := [][]string{{"STEP", "FAILING", "ATTEMPTS", "LAST ATTEMPT", "ERROR", "RESOLUTION"}}
	for _, f := range list {
		rows = append(rows, []string{
			f.GetStep(), table.Age(f.GetSince(), time.Now()), strconv.Itoa(int(f.GetAttempts())),
			table.Age(f.GetLastAttemptTime(), time.Now()) + " ago", f.GetMessage(), f.GetResolution(),
		})
	}
	d.rows("Failing Steps", rows)
}

// blocking prints the pods and volumes that a machine's deletion waits for, if there are any.
func (d *describer) blocking(s *machinev1.MachineStatus) {
	if list := s.GetBlockingPods(); len(list) > 0 {
		rows := [][]string{{"POD", "BLOCKED", "BUDGETS", "REASON"}}
		for _, p := range list {
			rows = append(rows, []string{
				p.GetNamespace() + "/" + p.GetName(), table.Age(p.GetSinceTime(), time.Now()),
				table.OrNone(strings.Join(p.GetBudgets(), ", ")), p.GetReason(),
			})
		}
		d.rows("Blocking Pods", rows)
	}
	if list := s.GetBlockingVolumes(); len(list) > 0 {
		rows := [][]string{{"VOLUME", "DEVICE", "ATTACHED", "REPORTED BY"}}
		for _, v := range list {
			rows = append(rows, []string{
				v.GetId(), table.OrNone(v.GetDevicePath()), table.Age(v.GetAttachTime(), time.Now()), v.GetReportedBy(),
			})
		}
		d.rows("Blocking Volumes", rows)
	}
}

// hookTasks prints the tasks of a machine's hooks.
func (d *describer) hookTasks(m machine) {
	list, err := hooktask.Of(d.ctx, d.client, m)
	if err != nil || len(list) == 0 {
		return
	}
	rows := [][]string{{"TASK", "HOOK", "STATE", "CLAIMED BY", "MESSAGE"}}
	for _, t := range list {
		rows = append(rows, []string{
			t.GetMetadata().GetName(), t.GetSpec().GetHookName(), hooktask.State(t),
			t.GetStatus().GetClaimedBy(), t.GetStatus().GetMessage(),
		})
	}
	d.rows("Hook Tasks", rows)
	for _, t := range list {
		d.optional("To continue", remedy(t))
	}
}

// remedy says what an administrator can do about a task whose owner is missing or late; empty if it is neither.
func remedy(t hookTask) string {
	conditions, s := t.GetStatus().GetConditions(), t.GetSpec()
	if t.GetStatus().GetPhase() == "Completed" {
		return ""
	}
	seen := object.FindCondition(conditions, "OwnerSeen")
	switch {
	case seen.GetStatus() == "False":
		return fmt.Sprintf(
			"%s. Start the owner; if its work is done or not needed:\nwindlass hooks override %s %s --reason TEXT",
			seen.GetMessage(), s.GetMachineRef().GetName(), s.GetHookName())
	case object.IsTrue(conditions, "Overdue"):
		return object.FindCondition(conditions, "Overdue").GetMessage()
	}
	return ""
}

func (d *describer) machineSet() {
	s := d.Object.(machineSet)
	st := s.GetStatus()
	d.linef("Replicas", "%d current / %s desired, %d ready, %d available", st.GetReplicas(), number(s.GetSpec().Replicas),
		st.GetReadyReplicas(), st.GetAvailableReplicas())
	d.line("Selector", selectorText(s.GetSpec().GetSelector()))
	d.line("Delete policy", cmp.Or(s.GetSpec().GetDeletePolicy(), "Random"))
	if st.GetErrorReason() != "" || st.GetErrorMessage() != "" {
		d.linef("Error", "%s: %s", st.GetErrorReason(), st.GetErrorMessage())
	}
	d.machineTemplate(s.GetSpec().GetTemplate().GetMetadata(), s.GetSpec().GetTemplate().GetSpec())
	d.ownMachines("Machines")
	p, err := machinev1.NewMachineSetServiceClient(d.client.Conn()).PlanMachineSet(d.ctx, &machinev1.PlanMachineSetRequest{
		Namespace: d.Namespace(), Name: d.Name(),
	})
	if err == nil {
		d.heldBack(p.GetHeldBack())
	}
	d.conditions(st.GetConditions())
}

func (d *describer) healthCheck() {
	h := d.Object.(healthCheck)
	sp, st := h.GetSpec(), h.GetStatus()
	selector := "every machine"
	if len(sp.GetSelector().GetMatchLabels())+len(sp.GetSelector().GetMatchExpressions()) > 0 {
		selector = selectorText(sp.GetSelector())
	}
	d.line("Selector", selector)
	d.linef("Machines", "%d healthy / %d expected, %d more may become unhealthy", st.GetCurrentHealthy(),
		st.GetExpectedMachines(), st.GetRemediationsAllowed())
	d.line("Max unhealthy", fmt.Sprint(sp.GetMaxUnhealthy().AsInterface()))
	d.line("Startup timeout", sp.GetNodeStartupTimeout())
	rows := [][]string{{"NODE CONDITION", "STATUS", "TIMEOUT"}}
	for _, u := range sp.GetUnhealthyConditions() {
		rows = append(rows, []string{u.GetType(), u.GetStatus(), u.GetTimeout()})
	}
	d.rows("Unhealthy conditions", rows)
	if len(st.GetUnhealthy()) > 0 {
		rows = [][]string{{"MACHINE", "REASON", "HELD BY"}}
		for _, u := range st.GetUnhealthy() {
			rows = append(rows, []string{u.GetMachine(), u.GetReason(), table.OrNone(u.GetHeldBy())})
		}
		d.rows("Unhealthy", rows)
	}
	if len(st.GetRemediations()) > 0 {
		rows = [][]string{{"MACHINE", "AGE", "REASON"}}
		for _, r := range st.GetRemediations() {
			rows = append(rows, []string{r.GetMachine(), table.Age(r.GetTime(), time.Now()), r.GetReason()})
		}
		d.rows("Remediations", rows)
	}
	for _, b := range st.GetBackOffs() {
		if b.GetFailedReplacements() > 0 {
			d.linef("Back-off", "%s %s: replacements failed %d times, last %s", b.GetKind(), b.GetName(),
				b.GetFailedReplacements(), ago(b.GetLastTime()))
		}
	}
	d.conditions(st.GetConditions())
}

func (d *describer) machineAutoscaler() {
	a := d.Object.(machineAutoscaler)
	sp, st := a.GetSpec(), a.GetStatus()
	d.linef("Target", "%s %s", sp.GetScaleTargetRef().GetKind(), sp.GetScaleTargetRef().GetName())
	d.linef("Replicas", "%d current / %d desired, from %d to %d, %d under way", st.GetCurrentReplicas(),
		st.GetDesiredReplicas(), sp.GetMinReplicas(), sp.GetMaxReplicas(), st.GetUnderwayMachines())
	if st.GetLastScaleReason() != "" {
		d.line("Last change", st.GetLastScaleReason())
	}
	for _, t := range []struct {
		what string
		time *timestamppb.Timestamp
	}{
		{"Last scale-up", st.GetLastScaleUpTime()},
		{"Last scale-down", st.GetLastScaleDownTime()},
		{"Last failed scale-down", st.GetLastScaleDownFailureTime()},
	} {
		if t.time != nil {
			d.line(t.what, ago(t.time))
		}
	}
	if b := st.GetBackOff(); b != nil {
		d.linef("Back-off", "until %s, after %d failures in turn: %s", b.GetUntilTime().AsTime().Format(time.RFC3339),
			b.GetFailures(), b.GetReason())
	}
	if len(st.GetScaleDownCandidates()) > 0 {
		rows := [][]string{{"MACHINE", "NODE", "USED", "SINCE", "HELD BY"}}
		for _, c := range st.GetScaleDownCandidates() {
			rows = append(rows, []string{
				c.GetMachine(), c.GetNode(), fmt.Sprintf("%d%%", c.GetUtilizationPercent()),
				table.Age(c.GetSinceTime(), time.Now()), table.OrNone(c.GetHeldBy()),
			})
		}
		d.rows("Scale-down candidates", rows)
	}
	d.conditions(st.GetConditions())
}

func (d *describer) clusterAutoscaler() {
	st := d.Object.(clusterAutoscaler).GetStatus()
	d.line("Pods without help", fmt.Sprint(st.GetUnhelpedPodCount()))
	if len(st.GetUnhelpedPods()) > 0 {
		rows := [][]string{{"POD", "SINCE", "REASON"}}
		for _, u := range st.GetUnhelpedPods() {
			rows = append(rows, []string{
				u.GetNamespace() + "/" + u.GetName(), table.Age(u.GetSinceTime(), time.Now()), u.GetReason(),
			})
		}
		d.rows("Pods without help", rows)
	}
	d.conditions(st.GetConditions())
}

func selectorText(sel *metav1.LabelSelector) string {
	var parts []string
	if labels := sel.GetMatchLabels(); len(labels) > 0 {
		parts = append(parts, table.Labels(labels))
	}
	for _, e := range sel.GetMatchExpressions() {
		parts = append(parts, strings.TrimSpace(e.GetKey()+" "+e.GetOperator()+" "+strings.Join(e.GetValues(), ",")))
	}
	return table.OrNone(strings.Join(parts, "\n"))
}

func (d *describer) controlPlane() {
	s := d.Object.(controlPlane)
	st := s.GetStatus()
	d.line("State", cmp.Or(s.GetSpec().GetState(), "Inactive"))
	d.line("Strategy", cmp.Or(s.GetSpec().GetStrategy().GetType(), "RollingUpdate"))
	d.linef("Replicas", "%d current / %s desired, %d ready, %d updated, %d unavailable",
		st.GetReplicas(), number(s.GetSpec().Replicas), st.GetReadyReplicas(), st.GetUpdatedReplicas(),
		st.GetUnavailableReplicas())
	d.line("Selector", mapLines(s.GetSpec().GetSelector().GetMatchLabels()))
	t := s.GetSpec().GetTemplate().GetMachinesV1Beta1MachineOpenshiftIo()
	d.yaml("Failure Domains", t.GetFailureDomains())
	d.machineTemplate(t.GetMetadata(), t.GetSpec())
	p, err := machinev1.NewControlPlaneMachineSetServiceClient(d.client.Conn()).PlanControlPlaneMachineSet(d.ctx,
		&machinev1.PlanControlPlaneMachineSetRequest{Namespace: d.Namespace(), Name: d.Name()})
	if err != nil {
		d.ownMachines("Machines")
	} else {
		d.rows("Machines", printer.Indexes(p.GetIndexes()))
		d.planned("Next", p.GetActions())
		d.heldBack(p.GetHeldBack())
	}
	d.conditions(st.GetConditions())
}

func (d *describer) node() {
	n := d.Object.(node)
	d.line("Status", table.NodeStatus(n))
	d.line("Roles", table.NodeRoles(n))
	d.line("Taints", printer.Taints(n.GetSpec().GetTaints()))
	d.linef("Unschedulable", "%t", n.GetSpec().GetUnschedulable())
	p, err := nodev1.NewNodeServiceClient(d.client.Conn()).PlanNode(d.ctx, &nodev1.PlanNodeRequest{Name: d.Name()})
	if err == nil && len(p.GetHeldBy()) > 0 {
		d.line("Held by", strings.Join(p.GetHeldBy(), "\n"))
	}
	d.optional("Machine", n.GetMetadata().GetAnnotations()["machine.openshift.io/machine"])
	d.optional("Provider ID", n.GetSpec().GetProviderId())
	d.nodeConditions(n.GetStatus().GetConditions())
	d.evictions(n.GetStatus().GetEvictions())
	d.line("Addresses", addressLines(n.GetStatus().GetAddresses()))
	d.line("Capacity", quantityLines(n.GetStatus().GetCapacity()))
	d.line("Allocatable", quantityLines(n.GetStatus().GetAllocatable()))
	d.yaml("System Info", n.GetStatus().GetNodeInfo())
	d.podsOnNode()
	d.drains()
}

// evictions prints when pods have to leave a node because of its taints.
func (d *describer) evictions(e *nodev1.NodeEvictions) {
	var lines []string
	if e.GetZoneState() != "" {
		lines = append(lines, fmt.Sprintf("zone %s is in state %s: %g nodes per second get a NoExecute taint",
			table.OrNone(e.GetZone()), e.GetZoneState(), e.GetNodesPerSecond()))
	}
	if p := e.GetQueuePosition(); p > 0 {
		lines = append(lines, fmt.Sprintf("place %d of the nodes that wait for the taint, which is set at %s", p,
			moment(e.GetTurnTime())))
	}
	if t := e.GetNextDeadline(); t != nil {
		lines = append(lines, "the next pod is evicted at "+moment(t))
	}
	if len(lines) > 0 {
		d.line("Evictions", strings.Join(lines, "\n"))
	}
}

// moment returns a time that is to come.
func moment(t *timestamppb.Timestamp) string {
	if t == nil {
		return "an unknown time"
	}
	return t.AsTime().Format(time.RFC3339)
}

// drains prints the drains of a node.
func (d *describer) drains() {
	k, err := client.FindKind("drain")
	if err != nil {
		return
	}
	list, _, err := d.client.List(d.ctx, k, client.Selection{Fields: "spec.nodeName=" + d.Name()})
	if err != nil || len(list) == 0 {
		return
	}
	rows := [][]string{{"NAME", "PHASE", "MESSAGE", "AGE"}}
	for _, o := range list {
		dr := o.(drain)
		rows = append(rows, []string{
			dr.GetMetadata().GetName(), dr.GetStatus().GetPhase(), dr.GetStatus().GetMessage(),
			table.Age(dr.GetMetadata().GetCreationTimestamp(), time.Now()),
		})
	}
	d.rows("Drains", rows)
}

func (d *describer) drain() {
	o := d.Object.(drain)
	sp, st := o.GetSpec(), o.GetStatus()
	d.line("Node", sp.GetNodeName())
	d.optional("Reason", sp.GetReason())
	if sp.GetMachineRef() != nil {
		d.line("Machine", sp.GetMachineRef().GetNamespace()+"/"+sp.GetMachineRef().GetName())
	}
	if sp.GracePeriodSeconds != nil {
		d.linef("Grace period", "%d s", sp.GetGracePeriodSeconds())
	}
	d.line("Phase", table.OrNone(st.GetPhase()))
	d.line("Message", table.OrNone(st.GetMessage()))
	d.linef("Pods", "%d evicted, %d remaining", st.GetEvictedPods(), st.GetRemainingPods())
	d.optional("Blocked", strings.Join(st.GetBlocked(), "\n"))
	d.when("Started", st.GetStartTime())
	d.when("Completed", st.GetCompletionTime())
	d.conditions(st.GetConditions())
}

// when prints a time if it is set.
func (d *describer) when(label string, t *timestamppb.Timestamp) {
	if t != nil {
		d.line(label, ago(t))
	}
}

func (d *describer) hookTask() {
	o := d.Object.(hookTask)
	sp, st := o.GetSpec(), o.GetStatus()
	d.line("Machine", sp.GetMachineRef().GetNamespace()+"/"+sp.GetMachineRef().GetName())
	d.optional("Node", sp.GetNodeName())
	d.optional("Addresses", strings.Join(sp.GetAddresses(), "\n"))
	d.line("Point", sp.GetPoint())
	d.line("Hook", sp.GetHookName())
	d.line("Owner", sp.GetOwner())
	d.line("State", hooktask.State(o))
	d.optional("Claimed by", st.GetClaimedBy())
	d.when("Claimed", st.GetClaimTime())
	if t := st.GetClaimExpiryTime(); t != nil {
		d.line("Claim ends", t.AsTime().Format(time.RFC3339))
	}
	d.when("Completed", st.GetCompletionTime())
	d.linef("Attempts", "%d", st.GetAttempts())
	d.optional("Message", st.GetMessage())
	d.optional("To continue", remedy(o))
	d.conditions(st.GetConditions())
}

func (d *describer) hookOwner() {
	o := d.Object.(hookOwner)
	d.line("Owner", o.GetSpec().GetOwner())
	d.linef("Connected", "%t", o.GetStatus().GetConnected())
	if t := o.GetStatus().GetLastSeenTime(); t != nil {
		d.line("Last seen", ago(t))
	} else {
		d.line("Last seen", "never")
	}
	d.linef("Pending tasks", "%d", o.GetStatus().GetPendingTasks())
	d.line("Claim duration", cmp.Or(o.GetSpec().GetClaimDuration(), "60s"))
	d.line("Overdue after", cmp.Or(o.GetSpec().GetOverdueAfter(), "10m"))
	d.conditions(o.GetStatus().GetConditions())
}
