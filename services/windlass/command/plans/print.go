package plans

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// planText prints plans as text: numbered steps, then what is held back.
type planText struct {
	out   io.Writer
	err   error
	steps int
}

func (p *planText) printf(text string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.out, text, args...)
	}
}

// step prints the next numbered step.
func (p *planText) step(what, reason string) {
	p.steps++
	if reason != "" {
		what += "\n     because " + reason
	}
	p.printf("%3d. %s\n", p.steps, what)
}

func (p *planText) actions(list []*metav1.PlannedAction) {
	for _, a := range list {
		what := strings.TrimSpace(a.GetAction() + " " + printer.Reference(a.GetObject()))
		for _, k := range slices.Sorted(maps.Keys(a.GetDetails())) {
			what += fmt.Sprintf("\n     %s: %s", k, a.GetDetails()[k])
		}
		p.step(what, a.GetReason())
	}
}

// end prints what is held back, what the plan waits for, and when it is evaluated again.
func (p *planText) end(held []*metav1.HeldBack, waitsFor string, wake *timestamppb.Timestamp) {
	if p.steps == 0 {
		p.printf("Nothing to do.\n")
	}
	if len(held) > 0 {
		p.printf("\nHeld back:\n")
		for _, h := range held {
			p.printf("  - %s\n     because %s\n", strings.TrimSpace(h.GetAction()+" "+printer.Reference(h.GetObject())),
				h.GetReason())
			if h.GetSinceTime() != nil {
				p.printf("     for %s so far\n", max(0, time.Since(h.GetSinceTime().AsTime())).Round(time.Second))
			}
			if h.GetUnblock() != "" {
				p.printf("     unblocked by: %s\n", h.GetUnblock())
			}
		}
	}
	if waitsFor != "" {
		p.printf("\nWaits for: %s\n", waitsFor)
	}
	if wake != nil {
		p.printf("\nEvaluated again in %s.\n", max(0, time.Until(wake.AsTime())).Round(time.Second))
	}
}

func (p *planText) table(rows [][]string) {
	if p.err == nil {
		p.err = table.NewIndented(p.out, "  ").Print(rows...)
	}
}

func (p *planText) conditions(rows [][]string) {
	if len(rows) == 0 {
		return
	}
	p.printf("\nResulting conditions:\n")
	p.table(append([][]string{{"TYPE", "STATUS", "REASON", "MESSAGE"}}, rows...))
}

func conditionRows(list []*metav1.Condition) (rows [][]string) {
	for _, c := range list {
		rows = append(rows, []string{c.GetType(), c.GetStatus(), c.GetReason(), c.GetMessage()})
	}
	return rows
}

func (p *planText) machineSet(r *machinev1.PlanMachineSetResponse) {
	for _, name := range r.GetAdoptions() {
		p.step("adopt machine/"+name, "it matches the selector and has no controller")
	}
	if n := r.GetCreations(); n == 1 {
		p.step("create 1 machine", "")
	} else if now := r.GetCreationsNow(); n > 1 && now > 0 && now < n {
		p.step(fmt.Sprintf("create %d machines, %d at a time", n, now), "")
	} else if n > 1 {
		p.step(fmt.Sprintf("create %d machines at the same time", n), "")
	}
	for _, d := range r.GetDeletions() {
		p.step(fmt.Sprintf("delete machine/%s (priority %.3g)", d.GetMachine(), d.GetPriority()), d.GetReason())
	}
	p.end(r.GetHeldBack(), "", r.GetWakeTime())
}

func (p *planText) controlPlane(r *machinev1.PlanControlPlaneMachineSetResponse) {
	p.table(printer.Indexes(r.GetIndexes()))
	p.printf("\n")
	for _, m := range r.GetMachines() {
		if m.GetNeedsUpdate() {
			p.printf("machine/%s does not match the template: %s\n", m.GetName(), m.GetReason())
		}
		if l := m.GetTemplateChanges(); len(l) > 0 {
			p.printf("machine/%s was created before these changes: %s\n", m.GetName(), strings.Join(l, ", "))
		}
	}
	p.actions(r.GetActions())
	p.end(r.GetHeldBack(), "", r.GetWakeTime())
}

func (p *planText) machine(r *machinev1.PlanMachineResponse) {
	p.printf("Phase: %s\n", table.OrNone(r.GetPhase()))
	if d := r.GetDeletion(); d != nil {
		p.printf("Deletion requested by %s %s at %s%s\n", d.GetTrigger(), d.GetRequestedBy(),
			d.GetRequestTime().AsTime().Format(time.RFC3339), strings.TrimSuffix(": "+d.GetReason(), ": "))
	}
	p.printf("\n")
	p.actions(r.GetActions())
	p.end(nil, r.GetWaitsFor(), r.GetWakeTime())
	p.failing(r.GetStepFailures())
	p.conditions(conditionRows(r.GetConditions()))
}

// failing prints the steps that fail.
func (p *planText) failing(list []*machinev1.StepFailure) {
	for _, f := range list {
		p.printf("%s fails since %s, attempts: %d, last error: %s\n  %s\n", f.GetStep(),
			f.GetSince().AsTime().Format(time.RFC3339), f.GetAttempts(), f.GetMessage(), f.GetResolution())
	}
}

func (p *planText) hooks(r *machinev1.ValidateHooksResponse) {
	if r.GetAllowed() {
		p.printf("allowed\n")
		return
	}
	p.printf("refused\n")
	for _, v := range r.GetViolations() {
		p.printf("* %s: %s\n", v.GetField(), v.GetDescription())
	}
}

func (p *planText) hookTasks(r *hookv1.PlanHookTasksResponse) {
	p.actions(r.GetActions())
	p.end(r.GetHeldBack(), "", r.GetWakeTime())
}

func (p *planText) quorum(r *etcdv1.PlanQuorumResponse) {
	p.printf("Phase: %s\n", table.OrNone(r.GetPhase()))
	if q := r.GetQuorum(); q != nil {
		p.printf("Voters: %d of %d healthy, %d desired, majority %d\n", q.GetHealthyVoters(), q.GetVoters(),
			q.GetDesiredVoters(), q.GetMajority())
		p.printf("Safe to scale: %t (%s)\n", q.GetSafeToScale(), cmp.Or(q.GetScaleMessage(), q.GetStrategy()))
	}
	for _, d := range r.GetDisruptions() {
		if !d.GetAllowed() {
			p.printf("Not to be disrupted: %s: %s\n", printer.Reference(d.GetMachine()), d.GetMessage())
		}
	}
	p.printf("\n")
	if len(r.GetActions()) > 0 {
		p.actions(r.GetActions())
	}
	p.end(r.GetHeldBack(), r.GetWaitsFor(), nil)
}

func (p *planText) drain(r *schedulingv1.PlanDrainResponse) {
	s := r.GetStatus()
	p.printf("Phase: %s\n", table.OrNone(s.GetPhase()))
	if s.GetMessage() != "" {
		p.printf("Message: %s\n", s.GetMessage())
	}
	if len(r.GetPods()) > 0 && p.err == nil {
		rows := [][]string{{"NAMESPACE", "POD", "VERDICT", "REASON"}}
		for _, v := range r.GetPods() {
			rows = append(rows, []string{v.GetNamespace(), v.GetName(), v.GetVerdict(), v.GetReason()})
		}
		p.printf("\n")
		p.err = table.New(p.out).Print(rows...)
	}
	p.printf("\n")
	p.actions(r.GetActions())
	p.end(r.GetHeldBack(), "", r.GetWakeTime())
}

func (p *planText) node(r *nodev1.PlanNodeResponse) {
	p.printf("Unschedulable: %t\n", r.GetUnschedulable())
	p.printf("Held by: %s\n", table.OrNone(strings.Join(r.GetHeldBy(), ", ")))
	p.printf("Taints: %s\n", strings.ReplaceAll(printer.Taints(r.GetTaints()), "\n", ", "))
	var rows [][]string
	for _, c := range r.GetConditions() {
		rows = append(rows, []string{c.GetType(), c.GetStatus(), c.GetReason(), c.GetMessage()})
	}
	p.conditions(rows)
	if w := r.GetWakeTime(); w != nil {
		p.printf("\nEvaluated again in %s.\n", max(0, time.Until(w.AsTime())).Round(time.Second))
	}
}

func (p *planText) service(e *schedulingv1.ServiceEndpoints) {
	if e.GetExternalName() != "" {
		p.printf("External name: %s\n", e.GetExternalName())
		return
	}
	p.printf("IP: %s\n", table.OrNone(e.GetClusterIp()))
	if len(e.GetEndpoints()) == 0 {
		p.printf("It has no endpoints.\n")
		return
	}
	p.table(table.Endpoints(e))
}
