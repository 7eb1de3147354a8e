package lifecycle

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/probe"
)

// view is the result of one check of a cluster. Each part has its own error, so that a failed call does not hide the
// other parts.
type view struct {
	now      time.Time
	services []service // empty if the gateway did not answer
	quorum   *etcdv1.Quorum
	machines []*machinev1.Machine
	wanted   int // desired number of machines of all sets
	nodes    []*nodev1.Node
	operator []*updatev1.ClusterOperator
	hosts    []*hostv1.Host
	onHosts  bool // the control plane is on hosts

	quorumErr, machinesErr, nodesErr, operatorErr, hostsErr error
}

// freshFor is the maximum age of the guardian's observation without a warning: it observes about every second.
const freshFor = 5 * time.Second

// service is a program of the control plane. problem is why it is not ready, "" if it is ready; refuses is why it
// rejects changes, "" if it accepts them.
type service struct{ name, problem, refuses string }

// hidden reports whether the caller is not allowed to read a part, which does not count as not ready.
func hidden(err error) bool {
	return status.Code(err) == codes.PermissionDenied || status.Code(err) == codes.Unimplemented
}

// problems returns all reasons why the cluster is not ready, causes first.
func (v view) problems() []string {
	var services []string
	for _, s := range v.services {
		if s.problem != "" {
			services = append(services, s.name+" "+s.problem)
		}
	}
	services = append(services, v.refusals()...)
	rest := slices.Concat(v.hostProblems(), v.nodeProblems(), v.machineProblems(), v.operatorProblems())
	if v.quorumErr == nil && v.quorum.GetHealthyVoters() < v.quorum.GetMajority() {
		return slices.Concat(v.quorumProblems(), services, rest) // the cause of the services' problems
	}
	return slices.Concat(services, v.quorumProblems(), rest)
}

// unseen returns the parts whose state is unknown, so that "Ready" does not include them.
func (v view) unseen() []string {
	var out []string
	for _, part := range []struct {
		what string
		err  error
	}{
		{"etcd voters", v.quorumErr},
		{"machines", v.machinesErr},
		{"nodes", v.nodesErr},
		{"hosts", v.hostsErr},
		{"cluster operators", v.operatorErr},
	} {
		if hidden(part.err) {
			out = append(out, part.what+" are not visible: permission denied")
		}
	}
	if age := v.observed(); v.quorumErr == nil && age > freshFor {
		out = append(out, fmt.Sprintf("the quorum was last observed %s ago", age.Truncate(time.Second)))
	}
	return out
}

// refusals returns a line for each reason why ready services reject changes.
func (v view) refusals() (out []string) {
	by := map[string][]string{}
	for _, s := range v.services {
		if s.refuses != "" {
			by[s.refuses] = append(by[s.refuses], s.name)
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(by)) {
		out = append(out, fmt.Sprintf("changes are rejected by %s: %s", strings.Join(by[reason], ", "), reason))
	}
	return out
}

// observed returns the age of the guardian's observation of the quorum; zero if unknown.
func (v view) observed() time.Duration {
	if v.quorum.GetObserveTime() == nil {
		return 0
	}
	return v.now.Sub(v.quorum.GetObserveTime().AsTime())
}

// said returns the error of a part as text.
func said(err error) string {
	if status.Code(err) == codes.DeadlineExceeded {
		return fmt.Sprintf("no answer within %v", statusPatience)
	}
	return strings.ReplaceAll(failure.Describe(err), "\n", " ")
}

// unread returns the problem of a part that could not be read; nothing if a service is known as the cause.
func (v view) unread(what string, err error) []string {
	if hidden(err) || slices.ContainsFunc(v.services, func(s service) bool { return s.problem != "" }) {
		return nil
	}
	return []string{what + " cannot be read: " + said(err)}
}

func (v view) quorumProblems() []string {
	q := v.quorum
	switch {
	case v.quorumErr != nil:
		return v.unread("the quorum", v.quorumErr)
	case q.GetHealthyVoters() < q.GetMajority():
		return []string{
			fmt.Sprintf(
				"etcd has lost its majority: %d of %d voters are healthy, %d are required; the cluster is read-only (`windlass quorum`)",
				q.GetHealthyVoters(), q.GetVoters(), q.GetMajority()),
		}
	case q.GetHealthyVoters() < q.GetVoters():
		return append(fullProblems(q), fmt.Sprintf("%d of %d etcd voters %s unhealthy (`windlass quorum`)",
			q.GetVoters()-q.GetHealthyVoters(), q.GetVoters(), are(q.GetVoters()-q.GetHealthyVoters())))
	case len(fullProblems(q)) > 0:
		return fullProblems(q)
	case !q.GetBootstrapRetired():
		return []string{"the quorum does not run on machines yet: it waits for " +
			cmp.Or(q.GetWaitsFor(), "control-plane machines")}
	}
	return nil
}

// fullProblems returns a problem if etcd rejects writes because a database has reached its quota.
func fullProblems(q *etcdv1.Quorum) []string {
	for _, m := range q.GetMembers() {
		if slices.Contains(m.GetAlarms(), "NOSPACE") {
			return []string{
				fmt.Sprintf("etcd rejects changes: the database of member %s has reached its quota (`windlass quorum`)",
					m.GetName()),
			}
		}
	}
	return nil
}

func are(n int32) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

func (v view) nodeProblems() []string {
	if v.nodesErr != nil {
		return v.unread("the nodes", v.nodesErr)
	}
	type zone struct{ nodes, ready int }
	zones := map[string]zone{}
	var out []string
	for _, n := range v.nodes {
		_, name := placement.Domain(n)
		z := zones[name]
		z.nodes++
		c := placement.NodeCondition(n, "Ready")
		if c.GetStatus() == "True" {
			z.ready++
		} else {
			out = append(out, "node "+n.GetMetadata().GetName()+" is NotReady"+v.because(c.GetLastTransitionTime().AsTime(),
				cmp.Or(c.GetMessage(), c.GetReason(), "it has not reported")))
		}
		zones[name] = z
	}
	var stopped []string
	for name, z := range zones {
		if name != "" && z.ready == 0 && z.nodes > 1 {
			stopped = append(stopped, fmt.Sprintf("zone %s is down: none of its %d nodes is Ready", name, z.nodes))
		}
	}
	slices.Sort(stopped)
	return append(stopped, out...)
}

// because returns the duration and reason of a state as text.
func (v view) because(since time.Time, why string) string {
	text := ""
	if since.Unix() > 0 {
		text = " since " + v.now.Sub(since).Truncate(time.Second).String()
	}
	if why != "" {
		text += ": " + why
	}
	return text
}

func (v view) machineProblems() []string {
	if v.machinesErr != nil {
		return v.unread("the machines", v.machinesErr)
	}
	var out []string
	for _, m := range v.machines {
		if phase := m.GetStatus().GetPhase(); phase != "Running" {
			st := m.GetStatus()
			text := fmt.Sprintf("machine %s is %s", m.GetMetadata().GetName(), cmp.Or(phase, "new"))
			if why := cmp.Or(st.GetErrorMessage(), st.GetLastOperation().GetDescription()); why != "" {
				text += ": " + why
			}
			out = append(out, text)
		}
	}
	if len(v.machines) != v.wanted {
		out = append(out, fmt.Sprintf("there are %d machines, but %d are desired", len(v.machines), v.wanted))
	}
	return out
}

// hostProblems names the hosts that need an intervention and have a machine, or cannot have one.
func (v view) hostProblems() []string {
	switch {
	case !v.onHosts:
		return nil
	case v.hostsErr != nil:
		return v.unread("the hosts", v.hostsErr)
	}
	var out []string
	for _, h := range v.hosts {
		st := h.GetStatus()
		if st.GetUnblock() != "" && (st.GetMachineRef() != nil || st.GetPhase() == "Quarantined") {
			out = append(out, fmt.Sprintf("host %s is %s%s; %s", h.GetMetadata().GetName(), st.GetPhase(),
				v.because(st.GetLastTransitionTime().AsTime(), st.GetMessage()), st.GetUnblock()))
		}
	}
	return out
}

// hostsText counts the hosts by their phases.
func (v view) hostsText() string {
	count := map[string]int{}
	for _, h := range v.hosts {
		count[cmp.Or(h.GetStatus().GetPhase(), "new")]++
	}
	text := fmt.Sprint(len(v.hosts))
	for i, phase := range slices.Sorted(maps.Keys(count)) {
		text += fmt.Sprintf("%s%d %s", map[bool]string{true: ": ", false: ", "}[i == 0], count[phase], phase)
	}
	return text
}

func (v view) running() (n int) {
	for _, m := range v.machines {
		if m.GetStatus().GetPhase() == "Running" {
			n++
		}
	}
	return n
}

func (v view) operatorProblems() []string {
	if v.operatorErr != nil {
		return v.unread("the cluster operators", v.operatorErr)
	}
	var out []string
	for _, o := range v.operator {
		c := operatorCondition(o, "Available")
		if is := cmp.Or(c.GetStatus(), "Unknown"); is != "True" {
			out = append(out, fmt.Sprintf("cluster operator %s is Available=%s%s", o.GetMetadata().GetName(), is,
				v.because(c.GetLastTransitionTime().AsTime(), cmp.Or(c.GetMessage(), c.GetReason(), "it has not reported"))))
		}
	}
	return out
}

func operatorCondition(o *updatev1.ClusterOperator, typ string) *metav1.Condition {
	for _, c := range o.GetStatus().GetConditions() {
		if c.GetType() == typ {
			return c
		}
	}
	return nil
}

// lines returns the lines that status prints for a view, without the state.
func (v view) lines() []string {
	var out []string
	add := func(name string, err error, format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		switch {
		case hidden(err):
			text = "not visible: permission denied"
		case err != nil:
			text = "unknown: " + said(err)
		}
		out = append(out, fmt.Sprintf("%-12s %s", name+":", text))
	}
	if len(v.services) > 0 {
		ready := 0
		for _, s := range v.services {
			if s.problem == "" {
				ready++
			}
		}
		add("Services", nil, "%d of %d ready", ready, len(v.services))
	}
	q := v.quorum
	seen := ""
	if age := v.observed(); age > freshFor {
		seen = fmt.Sprintf(", observed %s ago", age.Truncate(time.Second))
	}
	add("Quorum", v.quorumErr, "%s, %d of %d voters healthy%s", q.GetPhase(), q.GetHealthyVoters(), q.GetVoters(), seen)
	if w := q.GetWaitsFor(); w != "" {
		out = append(out, "             waits for "+w)
	}
	if v.onHosts {
		add("Hosts", v.hostsErr, "%s", v.hostsText())
	}
	add("Machines", v.machinesErr, "%d of %d run", v.running(), v.wanted)
	ready := 0
	for _, n := range v.nodes {
		if probe.NodeReady(n) {
			ready++
		}
	}
	add("Nodes", v.nodesErr, "%d of %d Ready", ready, len(v.nodes))
	for _, text := range probe.Pressures(v.nodes) {
		out = append(out, "             "+text)
	}
	available, degraded := 0, []string{}
	for _, o := range v.operator {
		if operatorCondition(o, "Available").GetStatus() == "True" {
			available++
		}
		if operatorCondition(o, "Degraded").GetStatus() == "True" {
			degraded = append(degraded, o.GetMetadata().GetName())
		}
	}
	text := fmt.Sprintf("%d of %d available", available, len(v.operator))
	if len(degraded) > 0 {
		text += "; degraded: " + strings.Join(degraded, ", ")
	}
	add("Operators", v.operatorErr, "%s", text)
	return out
}
