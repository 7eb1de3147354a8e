package table

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
)

func podCell(p *schedulingv1.Pod, c *metav1.Column, now time.Time) string {
	ready, restarts, containers := 0, int32(0), len(p.GetSpec().GetContainers())
	var last time.Time
	running := slices.Clone(p.GetStatus().GetContainerStatuses())
	for _, s := range p.GetStatus().GetInitContainerStatuses() { // sidecars count as containers, as in kubectl
		if isSidecar(p, s.GetName()) {
			running = append(running, s)
		}
	}
	for _, c := range p.GetSpec().GetInitContainers() {
		if placement.IsSidecar(c) {
			containers++
		}
	}
	for _, s := range running {
		if s.GetReady() {
			ready++
		}
		restarts += s.GetRestartCount()
		if t := s.GetLastState().GetTerminated().GetFinishedAt(); t.AsTime().After(last) && t != nil {
			last = t.AsTime()
		}
	}
	switch c.GetName() {
	case "READY":
		return fmt.Sprintf("%d/%d", ready, containers)
	case "STATUS":
		return PodStatus(p)
	case "RESTARTS":
		if restarts > 0 && !last.IsZero() {
			return fmt.Sprintf("%d (%s ago)", restarts, since(last, now))
		}
		return strconv.Itoa(int(restarts))
	case "IP", "NODE":
		return OrNone(generic(p, c, now))
	}
	return generic(p, c, now)
}

// PodStatus returns the status of a pod in one word, as kubectl does: its phase, or a more specific reason.
func PodStatus(p *schedulingv1.Pod) string {
	st := p.GetStatus()
	status := st.GetPhase()
	if st.GetReason() != "" {
		status = st.GetReason()
	}
	for i, s := range st.GetInitContainerStatuses() {
		switch state := s.GetState(); {
		case isSidecar(p, s.GetName()) && (s.GetStarted() || placement.PodCondition(p, "Initialized").GetStatus() == "True"),
			state.GetTerminated() != nil && state.GetTerminated().GetExitCode() == 0:
			continue // a sidecar that ends later holds up no other
		case state.GetTerminated() != nil:
			status = "Init:" + ended(state.GetTerminated())
		case state.GetWaiting().GetReason() != "" && state.GetWaiting().GetReason() != "PodInitializing":
			status = "Init:" + state.GetWaiting().GetReason()
		default:
			status = fmt.Sprintf("Init:%d/%d", i, len(p.GetSpec().GetInitContainers()))
		}
		break
	}
	if !strings.HasPrefix(status, "Init:") {
		for _, s := range slices.Backward(st.GetContainerStatuses()) {
			switch state := s.GetState(); {
			case state.GetWaiting().GetReason() != "":
				status = state.GetWaiting().GetReason()
			case state.GetTerminated() != nil:
				status = ended(state.GetTerminated())
			}
		}
	}
	switch {
	case p.GetMetadata().GetDeletionTimestamp() == nil:
		return status
	case st.GetReason() == "NodeLost":
		return "Unknown"
	}
	return "Terminating"
}

// isSidecar reports whether the container of that name is a sidecar.
func isSidecar(p *schedulingv1.Pod, name string) bool {
	return slices.ContainsFunc(p.GetSpec().GetInitContainers(), func(c *schedulingv1.Container) bool {
		return c.GetName() == name && placement.IsSidecar(c)
	})
}

func ended(t *schedulingv1.ContainerStateTerminated) string {
	switch {
	case t.GetReason() != "":
		return t.GetReason()
	case t.GetSignal() != 0:
		return fmt.Sprintf("Signal:%d", t.GetSignal())
	}
	return fmt.Sprintf("ExitCode:%d", t.GetExitCode())
}

func deploymentCell(d *schedulingv1.Deployment, c *metav1.Column, now time.Time) string {
	want := int32(1)
	if sp := d.GetSpec(); sp != nil && sp.Replicas != nil {
		want = sp.GetReplicas()
	}
	switch c.GetName() {
	case "READY":
		return fmt.Sprintf("%d/%d", d.GetStatus().GetReadyReplicas(), want)
	case "UP-TO-DATE":
		return strconv.Itoa(int(d.GetStatus().GetUpdatedReplicas()))
	case "AVAILABLE":
		return strconv.Itoa(int(d.GetStatus().GetAvailableReplicas()))
	}
	return generic(d, c, now)
}

func statefulSetCell(s *schedulingv1.StatefulSet, c *metav1.Column, now time.Time) string {
	if c.GetName() != "READY" {
		return generic(s, c, now)
	}
	want := int32(1)
	if sp := s.GetSpec(); sp != nil && sp.Replicas != nil {
		want = sp.GetReplicas()
	}
	return fmt.Sprintf("%d/%d", s.GetStatus().GetReadyReplicas(), want)
}

func daemonSetCell(d *schedulingv1.DaemonSet, c *metav1.Column, now time.Time) string {
	if c.GetName() == "NODE SELECTOR" {
		return Labels(d.GetSpec().GetTemplate().GetSpec().GetNodeSelector())
	}
	return generic(d, c, now)
}

func jobCell(j *schedulingv1.Job, c *metav1.Column, now time.Time) string {
	st := j.GetStatus()
	switch c.GetName() {
	case "STATUS":
		for _, typ := range []string{"Complete", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet"} {
			if object.IsTrue(st.GetConditions(), typ) {
				return typ
			}
		}
		return "Running"
	case "COMPLETIONS":
		want := int32(1)
		if sp := j.GetSpec(); sp != nil && sp.Completions != nil {
			want = sp.GetCompletions()
		}
		return fmt.Sprintf("%d/%d", st.GetSucceeded(), want)
	case "DURATION":
		switch {
		case st.GetStartTime() == nil:
			return ""
		case st.GetCompletionTime() != nil:
			now = st.GetCompletionTime().AsTime()
		}
		return since(st.GetStartTime().AsTime(), now)
	}
	return generic(j, c, now)
}

func cronJobCell(j *schedulingv1.CronJob, c *metav1.Column, now time.Time) string {
	switch c.GetName() {
	case "TIMEZONE":
		return OrNone(generic(j, c, now))
	case "SUSPEND":
		return titled(j.GetSpec().GetSuspend())
	case "ACTIVE":
		return strconv.Itoa(len(j.GetStatus().GetActive()))
	case "LAST SCHEDULE":
		if j.GetStatus().GetLastScheduleTime() == nil {
			return None
		}
		return since(j.GetStatus().GetLastScheduleTime().AsTime(), now)
	}
	return generic(j, c, now)
}

// titled returns a truth as kubectl shows it in tables.
func titled(b bool) string {
	if b {
		return "True"
	}
	return "False"
}

func serviceCell(s *schedulingv1.Service, c *metav1.Column, now time.Time) string {
	switch c.GetName() {
	case "TYPE":
		if s.GetSpec().GetType() == "" {
			return "ClusterIP"
		}
	case "PORT(S)":
		var ports []string
		for _, p := range s.GetSpec().GetPorts() {
			protocol := p.GetProtocol()
			if protocol == "" {
				protocol = "TCP"
			}
			ports = append(ports, fmt.Sprintf("%d/%s", p.GetPort(), protocol))
		}
		return OrNone(strings.Join(ports, ","))
	case "SELECTOR":
		return Labels(s.GetSpec().GetSelector())
	case "CLUSTER-IP", "EXTERNAL-IP":
		return OrNone(generic(s, c, now))
	}
	return generic(s, c, now)
}

// Endpoints returns a table of the pods of a service with their addresses, and why not all of them serve. Of a port
// that a pod does not have there is its name, or its number.
func Endpoints(e *schedulingv1.ServiceEndpoints) [][]string {
	rows := [][]string{{"POD", "ADDRESS", "PORTS", "NODE", "SERVES"}}
	for _, p := range e.GetEndpoints() {
		var ports []string
		for i, of := range e.GetPorts()[:min(len(e.GetPorts()), len(p.GetPorts()))] {
			if port := p.GetPorts()[i]; port > 0 {
				ports = append(ports, strconv.Itoa(int(port)))
			} else {
				ports = append(ports, "no "+cmp.Or(of.GetName(), strconv.Itoa(int(of.GetPort()))))
			}
		}
		serves := "yes"
		if !p.GetServing() {
			serves = "no: " + p.GetWhy()
		}
		rows = append(rows, []string{
			p.GetPod(), p.GetAddress(), OrNone(strings.Join(ports, ",")), OrNone(p.GetNode()), serves,
		})
	}
	return rows
}

func budgetCell(b *schedulingv1.PodDisruptionBudget, c *metav1.Column, now time.Time) string {
	v := generic(b, c, now)
	if v == "" && (c.GetName() == "MIN AVAILABLE" || c.GetName() == "MAX UNAVAILABLE") {
		return "N/A"
	}
	return v
}

func clusterVersionCell(v *updatev1.ClusterVersion, c *metav1.Column, now time.Time) string {
	if c.GetName() != "VERSION" {
		return generic(v, c, now)
	}
	for _, h := range v.GetStatus().GetHistory() {
		if h.GetState() == "Completed" {
			return h.GetVersion()
		}
	}
	return ""
}

func clusterOperatorCell(o *updatev1.ClusterOperator, c *metav1.Column, now time.Time) string {
	switch c.GetName() {
	case "MESSAGE":
		for _, c := range o.GetStatus().GetConditions() {
			if c.GetType() == "Available" && c.GetStatus() != "True" && c.GetMessage() != "" {
				return c.GetMessage() // why it is not available is worth more than why it is degraded
			}
		}
		return generic(o, c, now)
	case "VERSION":
	default:
		return generic(o, c, now)
	}
	for _, v := range o.GetStatus().GetVersions() {
		if v.GetName() == "operator" {
			return v.GetVersion()
		}
	}
	return ""
}
