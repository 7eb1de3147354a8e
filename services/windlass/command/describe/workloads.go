package describe

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// The kinds of workloads and updates with their own describe functions.
type (
	pod                  = *schedulingv1.Pod
	clusterVersionObject = *updatev1.ClusterVersion
)

// pod prints a pod as `kubectl describe` does.
func (d *describer) pod() {
	p := d.Object.(pod)
	sp, st := p.GetSpec(), p.GetStatus()
	d.line("Node", table.OrNone(strings.TrimSuffix(sp.GetNodeName()+"/"+st.GetHostIp(), "/")))
	if st.GetStartTime() != nil {
		d.line("Start Time", st.GetStartTime().AsTime().Format(time.RFC1123Z))
	}
	d.line("Status", table.PodStatus(p))
	d.optional("Reason", st.GetReason())
	d.optional("Message", st.GetMessage())
	d.line("IP", table.OrNone(st.GetPodIp()))
	d.optional("Scheduler", sp.GetSchedulerName())
	if len(sp.GetInitContainers()) > 0 {
		d.containers("Init Containers", sp.GetInitContainers(), st.GetInitContainerStatuses())
	}
	d.containers("Containers", sp.GetContainers(), st.GetContainerStatuses())
	rows := [][]string{{"TYPE", "STATUS", "REASON", "AGE", "MESSAGE"}}
	for _, c := range st.GetConditions() {
		rows = append(rows, []string{
			c.GetType(), c.GetStatus(), c.GetReason(),
			table.Age(c.GetLastTransitionTime(), time.Now()), c.GetMessage(),
		})
	}
	d.rows("Conditions", rows)
	if sp.GetNodeName() == "" && !placement.Terminated(p) {
		d.unplaced()
	}
	d.line("QoS Class", table.OrNone(st.GetQosClass()))
	d.line("Node-Selectors", mapLines(sp.GetNodeSelector()))
	d.line("Tolerations", tolerationLines(sp.GetTolerations()))
}

// unplaced prints why a pod has no node: as of its last try if that is known, or else as of now.
func (d *describer) unplaced() {
	r, err := schedulingv1.NewPodServiceClient(d.client.Conn()).ExplainPod(d.ctx, &schedulingv1.ExplainPodRequest{
		Namespace: d.Namespace(), Name: d.Name(), SummaryOnly: true,
	})
	if err != nil {
		d.line("Placement", "<"+shortError(err)+">")
		return
	}
	obstacles, changes, as := r.GetObstacles(), r.GetChanges(), "as of now"
	if p := r.GetPending(); p != nil {
		d.linef("Placement", "tried for %s, %d times in a row, last %s ago; tried again after one of these: %s",
			table.Age(p.GetSinceTime(), time.Now()), p.GetTries(), table.Age(p.GetLastTryTime(), time.Now()), p.GetWaitsFor())
		obstacles, changes, as = p.GetObstacles(), p.GetChanges(), "in the last try"
	}
	d.optional("Not Placed", r.GetRefused())
	switch {
	case r.GetBest() != "" && len(r.GetExtenders()) > 0: // which a summary does not ask
		d.linef("Fits Now", "on %s, unless an extender of the policy rejects it", r.GetBest())
	case r.GetBest() != "":
		d.linef("Fits Now", "on %s", r.GetBest())
	}
	rows := [][]string{{"REASON", "NODES", "SUCH AS"}}
	for _, o := range obstacles {
		rows = append(rows, []string{
			cmp.Or(o.GetReason(), "further reasons"), strconv.Itoa(int(o.GetNodeCount())),
			strings.Join(o.GetExamples(), ", "),
		})
	}
	d.some("Nodes That Do Not Fit, "+as, rows)
	rows = [][]string{{"CHANGE", "NODES", "SUCH AS"}}
	for _, c := range changes {
		rows = append(rows, []string{
			c.GetChange(), strconv.Itoa(int(c.GetNodeCount())), strings.Join(c.GetExamples(), ", "),
		})
	}
	d.some("Changes That Would Help, "+as, rows)
}

// some prints a table that has rows besides its heading.
func (d *describer) some(heading string, rows [][]string) {
	if len(rows) > 1 {
		d.rows(heading, rows)
	}
}

func (d *describer) containers(heading string, list []*schedulingv1.Container, states []*schedulingv1.ContainerStatus) {
	d.heading(heading)
	for _, c := range list {
		fmt.Fprintf(d.out, "  %s:\n", c.GetName())
		line := func(label, value string) {
			if value != "" {
				fmt.Fprintf(d.out, "    %-16s%s\n", label+":", value)
			}
		}
		line("Image", c.GetImage())
		line("Command", strings.Join(append(append([]string{}, c.GetCommand()...), c.GetArgs()...), " "))
		line("Requests", strings.ReplaceAll(quantityLines(c.GetResources().GetRequests()), "\n", ", "))
		line("Limits", strings.ReplaceAll(quantityLines(c.GetResources().GetLimits()), "\n", ", "))
		for _, s := range states {
			if s.GetName() != c.GetName() {
				continue
			}
			line("State", stateText(s.GetState()))
			line("Last State", stateText(s.GetLastState()))
			line("Ready", fmt.Sprint(s.GetReady()))
			line("Restart Count", fmt.Sprint(s.GetRestartCount()))
			line("Container ID", s.GetContainerId())
		}
	}
}

func stateText(s *schedulingv1.ContainerState) string {
	switch {
	case s.GetRunning() != nil:
		return "Running since " + ago(s.GetRunning().GetStartedAt())
	case s.GetWaiting() != nil:
		return strings.TrimSuffix(fmt.Sprintf("Waiting: %s: %s", s.GetWaiting().GetReason(), s.GetWaiting().GetMessage()),
			": ")
	case s.GetTerminated() != nil:
		t := s.GetTerminated()
		return fmt.Sprintf("Terminated: %s, exit code %d, %s", table.OrNone(t.GetReason()), t.GetExitCode(),
			ago(t.GetFinishedAt()))
	}
	return ""
}

// tolerationLines returns tolerations in kubectl's form: "key=value:effect for 300s".
func tolerationLines(list []*schedulingv1.Toleration) string {
	var lines []string
	for _, t := range list {
		s := t.GetKey()
		if t.GetValue() != "" {
			s += "=" + t.GetValue()
		}
		if t.GetEffect() != "" {
			s += ":" + t.GetEffect()
		}
		if t.GetOperator() == "Exists" {
			s = strings.TrimPrefix(s+" op=Exists", " ")
		}
		if t.TolerationSeconds != nil {
			s += fmt.Sprintf(" for %ds", t.GetTolerationSeconds())
		}
		lines = append(lines, s)
	}
	return table.OrNone(strings.Join(lines, "\n"))
}

// podsOnNode prints the pods of a node.
func (d *describer) podsOnNode() {
	k, err := client.FindKind("pod")
	if err != nil {
		return
	}
	list, _, err := d.client.List(d.ctx, k, client.Selection{Fields: "spec.nodeName=" + d.Name()})
	if err != nil || len(list) == 0 {
		return
	}
	rows := [][]string{{"NAMESPACE", "NAME", "STATUS", "AGE"}}
	for _, o := range list {
		p := o.(pod)
		m := p.GetMetadata()
		rows = append(rows, []string{
			m.GetNamespace(), m.GetName(), table.PodStatus(p),
			table.Age(m.GetCreationTimestamp(), time.Now()),
		})
	}
	d.rows("Pods", rows)
}

func (d *describer) clusterVersion() {
	v := d.Object.(clusterVersionObject)
	sp, st := v.GetSpec(), v.GetStatus()
	d.line("Cluster ID", table.OrNone(sp.GetClusterId()))
	d.line("Upstream", table.OrNone(sp.GetUpstream()))
	d.line("Channel", table.OrNone(sp.GetChannel()))
	if w := sp.GetDesiredUpdate(); w != nil {
		d.line("Wanted", printer.Update(w.GetVersion(), w.GetImage()))
	}
	d.line("Desired", table.OrNone(printer.Update(st.GetDesired().GetVersion(), st.GetDesired().GetImage())))
	if p := st.GetProgress(); p != nil {
		d.linef("Progress", "%d of %d manifests, run level %s", p.GetDone(), p.GetTotal(), table.OrNone(p.GetRunLevel()))
		for _, w := range p.GetWaits() {
			d.linef("Waits for", "%s/%s: %s (now: %s), since %s", strings.ToLower(w.GetObject().GetKind()),
				w.GetObject().GetName(), w.GetFact(), w.GetObserved(), ago(w.GetSince()))
		}
	}
	rows := [][]string{{"STATE", "VERSION", "VERIFIED", "STARTED", "COMPLETED", "WAIVED"}}
	for _, h := range st.GetHistory() {
		rows = append(rows, []string{
			h.GetState(), h.GetVersion(), fmt.Sprint(h.GetVerified()), ago(h.GetStartedTime()),
			ago(h.GetCompletionTime()), h.GetAcceptedRisks(),
		})
	}
	d.rows("History", rows)
	d.conditions(st.GetConditions())
}
