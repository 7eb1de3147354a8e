package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"
)

// newCheck returns a health check of all machines, as the documents have it.
func newCheck(maxUnhealthy any, change ...func(*machinev1.MachineHealthCheck)) *machinev1.MachineHealthCheck {
	limit, err := structpb.NewValue(maxUnhealthy)
	if err != nil {
		panic(err)
	}
	c := &machinev1.MachineHealthCheck{
		Metadata: &metav1.ObjectMeta{Namespace: "openshift-machine-api", Name: "check"},
		Spec: &machinev1.MachineHealthCheckSpec{
			Selector: &metav1.LabelSelector{}, MaxUnhealthy: limit, NodeStartupTimeout: "10m",
			UnhealthyConditions: []*machinev1.UnhealthyCondition{
				{Type: "Ready", Status: "False", Timeout: "300s"}, {Type: "Ready", Status: "Unknown", Timeout: "300s"},
			},
		},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

// sick returns a machine of a set, and its node, whose Ready has been so for a time.
func sick(name, ready string, since time.Duration) (*machinev1.Machine, *nodev1.Node) {
	n := newNode(name, ready, noon().Add(-since))
	n.Metadata.Uid = "uid-node-" + name
	m := newMachine(running, func(m *machinev1.Machine) {
		m.Metadata.Name, m.Metadata.Uid = name, "uid-"+name
		m.Metadata.Labels = map[string]string{"set": "workers"}
		m.Metadata.OwnerReferences = []*metav1.OwnerReference{object.OwnedBy(newSet(3))}
		m.Spec.ProviderId = "local://c/" + name
		m.Status.NodeRef = &metav1.ObjectReference{Kind: "Node", Name: name, Uid: n.Metadata.Uid}
	})
	return m, n
}

// checkView returns a view of machines "a", "b" and so on, one for each state such as "True 1h". A state may have words
// behind it: failed, deleting, orphan, master, nonode (it never had one), gone (its node is), other (API). Its times
// are exact.
func checkView(check *machinev1.MachineHealthCheck, states ...string) HealthCheckView {
	v := HealthCheckView{Now: noon(), Check: check, Nodes: map[string]*nodev1.Node{}, Exact: true}
	for i, state := range states {
		words := strings.Fields(state)
		since, err := time.ParseDuration(words[1])
		if err != nil {
			panic(err)
		}
		m, n := sick(string(rune('a'+i)), words[0], since)
		v.Nodes[n.Metadata.Name] = n
		for _, w := range words[2:] {
			switch w {
			case "failed":
				m.Status.Phase = proto.String(PhaseFailed)
			case "deleting":
				deleted(m)
			case "orphan":
				m.Metadata.OwnerReferences = nil
			case "master":
				m.Metadata.Labels[LabelRole] = RoleMaster
			case "nonode":
				m.Status.NodeRef, m.Metadata.CreationTimestamp = nil, seconds(noon().Add(-since))
				delete(v.Nodes, n.Metadata.Name)
			case "gone":
				delete(v.Nodes, n.Metadata.Name)
			case "other":
				m.Spec.AuthoritativeApi = "ClusterAPI"
			}
		}
		v.Machines = append(v.Machines, m)
	}
	return v
}

// outcome prints what a plan does: expected/healthy, whether it may, the machines to delete, and when it looks again.
func outcome(v HealthCheckView) string {
	p := HealthCheck(v)
	var deletes []string
	for _, u := range p.Remediate {
		deletes = append(deletes, u.Machine.Metadata.Name)
	}
	wake := "never"
	if !p.Wake.IsZero() {
		wake = p.Wake.Sub(v.Now).String()
	}
	out := fmt.Sprintf("%d/%d delete [%s] again %s", p.Status.GetExpectedMachines(), p.Status.GetCurrentHealthy(),
		strings.Join(deletes, " "), wake)
	if !p.Allowed {
		out += " " + object.FindCondition(p.Status.GetConditions(), remediationAllowed).GetReason()
	}
	for _, h := range p.Held {
		if p.Allowed {
			out += fmt.Sprintf("; %s held: %s", h.GetObject().GetName(), h.GetReason())
		}
	}
	return out
}

func TestHealthCheck(t *testing.T) {
	paused := func(c *machinev1.MachineHealthCheck) {
		c.Metadata.Annotations = map[string]string{annotationPaused: ""}
	}
	for _, c := range []struct {
		name   string
		check  *machinev1.MachineHealthCheck
		states []string
		want   string
	}{
		{"all are healthy", newCheck("40%"), []string{"True 1h", "True 1h"}, "2/2 delete [] again never"},
		{"no machine is selected", newCheck("40%"), nil, "0/0 delete [] again never"},
		{
			"a node that is not ready for too long", newCheck("50%"),
			[]string{"False 301s", "True 1h"},
			"2/1 delete [a] again never",
		},
		{
			"a condition at its timeout has not lasted longer", newCheck("50%"),
			[]string{"False 300s", "True 1h"},
			"2/1 delete [] again 1s",
		},
		{
			"a condition before its timeout: not healthy, and not unhealthy", newCheck("50%"),
			[]string{"False 100s", "True 1h"},
			"2/1 delete [] again 3m21s",
		},
		{"a failed machine is replaced", newCheck(1), []string{"True 1h failed", "True 1h"}, "2/1 delete [a] again never"},
		{
			"a node that is gone is no matter of time", newCheck(1),
			[]string{"True 1h gone", "True 1h"},
			"2/1 delete [a] again never",
		},
		{
			"the startup time counts from creation", newCheck(1),
			[]string{"True 9m nonode", "True 1h"},
			"2/1 delete [] again 1m1s",
		},
		{"no node in time", newCheck(1), []string{"True 11m nonode", "True 1h"}, "2/1 delete [a] again never"},
		{
			"no limit of the startup time", newCheck(1, func(c *machinev1.MachineHealthCheck) {
				c.Spec.NodeStartupTimeout = "0"
			}),
			[]string{"True 11h nonode", "True 1h"},
			"2/1 delete [] again never",
		},
		{
			"a machine that is being deleted is not deleted again, and is not healthy", newCheck(1),
			[]string{"False 1h deleting", "True 1h"},
			"2/1 delete [] again never",
		},
		{
			"a replacement that is under way uses the limit up", newCheck(1),
			[]string{"False 1h deleting", "False 1h", "True 1h"},
			"3/1 delete [] again never TooManyUnhealthy",
		},
		{
			"more than maxUnhealthy", newCheck("40%"),
			[]string{"False 1h", "False 1h", "True 1h"},
			"3/1 delete [] again never TooManyUnhealthy",
		},
		{
			"blocked, with one to come", newCheck(0),
			[]string{"False 1h", "False 200s"},
			"2/0 delete [] again 1m41s TooManyUnhealthy",
		},
		{
			"percentages round down", newCheck("49%"),
			[]string{"False 1h", "True 1h"},
			"2/1 delete [] again never TooManyUnhealthy",
		},
		{"a number as text", newCheck("1"), []string{"False 1h", "True 1h"}, "2/1 delete [a] again never"},
		{
			"a negative limit is 0", newCheck(-3),
			[]string{"False 1h", "True 1h"},
			"2/1 delete [] again never TooManyUnhealthy",
		},
		{
			"an unreadable limit", newCheck("many"),
			[]string{"False 1h", "True 1h"},
			"2/1 delete [] again never InvalidConfiguration",
		},
		{"paused", newCheck(1, paused), []string{"False 1h", "True 1h"}, "2/1 delete [] again never Paused"},
		{
			"nothing would replace it", newCheck(1),
			[]string{"False 1h orphan", "True 1h"},
			"2/1 delete [] again never; a held: " + heldNoController,
		},
		{
			"another API rules it", newCheck(1),
			[]string{"False 1h other", "True 1h"},
			"2/1 delete [] again never; a held: another API rules the machine",
		},
		{
			"all nodes fell silent", newCheck("100%"),
			[]string{"Unknown 1h", "Unknown 1h"},
			"2/0 delete [] again 30s NodesNotSeen",
		},
		{
			"most nodes fell silent", newCheck("100%"),
			[]string{"Unknown 1h", "Unknown 2h", "Unknown 1h", "True 1h", "True 1h"},
			"5/2 delete [] again 30s NodesNotSeen",
		},
		{
			"nodes that report their own trouble", newCheck("100%"),
			[]string{"False 1h", "False 1h", "False 1h"},
			"3/0 delete [a b c] again never",
		},
		{
			"few silent nodes", newCheck("100%"),
			[]string{"Unknown 1h", "Unknown 1h", "True 1h"},
			"3/1 delete [a b] again never",
		},
		{
			"seed 000: two masters are unhealthy", newCheck(1),
			[]string{
				"Unknown 1h master", "Unknown 1h master",
				"True 1h master",
			},
			"3/1 delete [] again never TooManyUnhealthy",
		},
		{
			"a master waits for the guardian", newCheck(1),
			[]string{"Unknown 1h master", "True 1h master", "True 1h master"},
			"3/2 delete [] again never; a held: etcd-guardian has not been asked whether its member may go",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := checkView(c.check, c.states...)
			if got := outcome(v); got != c.want {
				t.Errorf("HealthCheck:\n got %s\nwant %s", got, c.want)
			}
		})
	}
}

// TestTwoUnhealthyMasters is the control-plane health check that seed 000 advises: nothing is done, and it says why.
func TestTwoUnhealthyMasters(t *testing.T) {
	v := checkView(newCheck(1), "False 1h master", "False 1h master", "True 1h master")
	p := HealthCheck(v)
	if p.Allowed || len(p.Remediate)+len(p.Ask) > 0 || len(p.Unhealthy) != 2 || p.Status.GetRemediationsAllowed() != 0 {
		t.Errorf("plan = %+v", p)
	}
	want := "Remediation is not allowed, the number of not started or unhealthy machines exceeds maxUnhealthy " +
		"(total: 3, unhealthy: 2, maxUnhealthy: 1)"
	c := object.FindCondition(p.Status.GetConditions(), remediationAllowed)
	if p.Message != want || c.GetStatus() != "False" || c.GetReason() != "TooManyUnhealthy" || c.GetMessage() != want {
		t.Errorf("message %q, condition %v", p.Message, c)
	}
	if !slices.ContainsFunc(p.Events, func(e MachineEvent) bool {
		return e.Machine == nil && e.Reason == "RemediationRestricted" && e.Message == want
	}) {
		t.Errorf("events %v", p.Events)
	}
	for _, h := range p.Status.GetUnhealthy() {
		if h.GetHeldBy() != want {
			t.Errorf("machine %s is held by %q", h.GetMachine(), h.GetHeldBy())
		}
	}
	// The next look changes nothing, and so writes and reports nothing.
	v.Check.Status, v.Now = p.Status, v.Now.Add(time.Hour)
	if again := HealthCheck(v); !proto.Equal(again.Status, p.Status) || len(again.Events) > 0 {
		t.Errorf("again: %v, events %v", again.Status, again.Events)
	}
}

func TestTheGuardianDecidesAboutMasters(t *testing.T) {
	v := checkView(newCheck(2), "False 1h master", "False 1h master", "True 1h master")
	if p := HealthCheck(v); len(p.Ask) != 2 || len(p.Remediate) != 0 || len(p.Status.GetRemediations()) != 0 {
		t.Errorf("unasked: asks for %d, deletes %d", len(p.Ask), len(p.Remediate))
	}
	v.Guardian = map[string]GuardianAnswer{"uid-a": {Why: "c does not answer"}, "uid-b": {Why: "c does not answer"}}
	want := "3/1 delete [] again 30s; a held: etcd-guardian does not allow it: c does not answer; " +
		"b held: etcd-guardian does not allow it: c does not answer"
	if got := outcome(v); got != want {
		t.Errorf("refused:\n got %s\nwant %s", got, want)
	}
	v.Guardian = map[string]GuardianAnswer{"uid-a": {Allowed: true}, "uid-b": {Allowed: true}}
	want = "3/1 delete [a] again never; b held: machine a of the control plane is replaced first"
	if got := outcome(v); got != want {
		t.Errorf("allowed:\n got %s\nwant %s", got, want)
	}
	v.Check.Status = HealthCheck(v).Status
	deleted(v.Machines[0])
	want = "3/1 delete [] again never; b held: machine a of the control plane is being replaced"
	if got := outcome(v); got != want {
		t.Errorf("then:\n got %s\nwant %s", got, want)
	}
}

// TestMastersStayWithoutTheGuardiansConsent: the node decides whether a master is unhealthy, and etcd-guardian whether
// it may go. A voter that is silent is its matter alone.
func TestMastersStayWithoutTheGuardiansConsent(t *testing.T) {
	yes, silent := GuardianAnswer{Allowed: true}, GuardianAnswer{Why: "b does not answer"}
	for _, c := range []struct {
		name   string
		states []string
		answer map[string]GuardianAnswer
		want   string
		asks   int
	}{
		{
			"a silent voter whose node is ready is kept, and needs no answer",
			[]string{"True 1h master", "True 1h master", "True 1h master"},
			map[string]GuardianAnswer{"uid-a": yes, "uid-b": silent},
			"3/3 delete [] again never", 0,
		},
		{
			"an unhealthy master whose voter is silent may go if the others answer",
			[]string{"Unknown 1h master", "True 1h master", "True 1h master"},
			map[string]GuardianAnswer{"uid-a": yes},
			"3/2 delete [a] again never", 0,
		},
		{
			"it stays while another voter is silent",
			[]string{"Unknown 1h master", "True 1h master", "True 1h master"},
			map[string]GuardianAnswer{"uid-a": silent},
			"3/2 delete [] again 30s; a held: etcd-guardian does not allow it: b does not answer", 0,
		},
		{
			"consent for another machine is none",
			[]string{"Unknown 1h master", "True 1h master", "True 1h master"},
			map[string]GuardianAnswer{"uid-b": yes, "uid-c": yes},
			"3/2 delete [] again never; a held: etcd-guardian has not been asked whether its member may go", 1,
		},
		{
			"one whose node is gone is asked about as well",
			[]string{"True 1h master gone", "True 1h master", "True 1h master"},
			nil,
			"3/2 delete [] again never; a held: etcd-guardian has not been asked whether its member may go", 1,
		},
		{
			"and one that failed",
			[]string{"True 1h master failed", "True 1h master", "True 1h master"},
			map[string]GuardianAnswer{"uid-a": silent},
			"3/2 delete [] again 30s; a held: etcd-guardian does not allow it: b does not answer", 0,
		},
		{
			"and one that never joined",
			[]string{"True 1h master nonode", "True 1h master", "True 1h master"},
			map[string]GuardianAnswer{"uid-a": silent},
			"3/2 delete [] again 30s; a held: etcd-guardian does not allow it: b does not answer", 0,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := checkView(newCheck(1), c.states...)
			v.Guardian = c.answer
			if got := outcome(v); got != c.want {
				t.Errorf("HealthCheck:\n got %s\nwant %s", got, c.want)
			}
			if n := len(HealthCheck(v).Ask); n != c.asks {
				t.Errorf("it asks about %d machines, want %d", n, c.asks)
			}
		})
	}
}

func TestAZoneThatDoesNotReportIsLeftAlone(t *testing.T) {
	v := checkView(newCheck("100%"), "Unknown 1h", "Unknown 1h", "Unknown 1h", "True 1h", "True 1h", "True 1h", "True 1h",
		"False 1h")
	for _, name := range []string{"a", "b", "c"} {
		v.Nodes[name].Metadata.Labels = map[string]string{LabelNodeZone: "east"}
	}
	p := HealthCheck(v)
	if len(p.Remediate) != 1 || p.Remediate[0].Machine.Metadata.Name != "h" || len(p.Held) != 3 ||
		!strings.Contains(p.Held[0].GetReason(), "3 of 3 nodes of zone east do not report since 2026-11-21T11:00:00Z") {
		t.Errorf("deletes %v, held %v", p.Remediate, p.Held)
	}
}

// A node that joined while machine-api was away has no reference yet: its machine is not one that never started.
func TestANodeThatIsNotLinkedYetCounts(t *testing.T) {
	v := checkView(newCheck("100%"), "True 11m nonode", "True 1h")
	v.Nodes["a"] = newNode("a", "True", noon())
	if got, want := outcome(v), "2/1 delete [] again 30s"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A leader that has not seen the nodes yet knows nothing of them: it does not report that they are gone.
func TestNothingIsClaimedOfNodesThatWereNeverSeen(t *testing.T) {
	v := checkView(newCheck("100%"), "False 1h", "True 1h", "True 1h", "True 1h deleting")
	v.Check.Status = HealthCheck(v).Status
	v.Nodes, v.Unseen = nil, "eviction-controller has not sent them yet"
	p := HealthCheck(v)
	if p.Allowed || len(p.Unhealthy)+len(p.Remediate)+len(p.Events) > 0 {
		t.Errorf("unhealthy %v, remediate %v, events %v", p.Unhealthy, p.Remediate, p.Events)
	}
	list := p.Status.GetUnhealthy()
	if p.Status.GetExpectedMachines() != 4 || p.Status.GetCurrentHealthy() != 2 || len(list) != 1 ||
		list[0].GetMachine() != "a" || list[0].GetHeldBy() != p.Message {
		t.Errorf("status %v, want what was known before, held by the missing nodes", p.Status)
	}
	v.Check.Status = nil
	if p := HealthCheck(v); p.Status.CurrentHealthy != nil || len(p.Status.GetUnhealthy()) > 0 {
		t.Errorf("status %v of a check that never saw a node", p.Status)
	}
}

// The status lists a part of many unhealthy machines. The others are not detected again with each change.
func TestManyUnhealthyMachinesAreDetectedOnce(t *testing.T) {
	v := checkView(newCheck("10%"))
	for i := range maxUnhealthyOut + 10 {
		m, n := sick(fmt.Sprintf("m%03d", i), "False", time.Hour)
		m.Metadata.OwnerReferences = nil
		v.Machines, v.Nodes[n.Metadata.Name] = append(v.Machines, m), n
	}
	v.Check.Spec.MaxUnhealthy = structpb.NewStringValue("100%")
	p := HealthCheck(v)
	if len(p.Events) != 2*maxUnhealthyOut {
		t.Errorf("%d events, want one of detection and one of why it stays for each listed machine", len(p.Events))
	}
	v.Check.Status = p.Status
	if again := HealthCheck(v); len(again.Events) > 0 {
		t.Errorf("%d events again, such as %v", len(again.Events), again.Events[0])
	}
}

// A crash, or a change of the machine, may come between the record of a remediation and the deletion. If the machine is
// healthy by then, it is not deleted, and neither the status nor the budget counts it.
func TestARemediationThatIsNotCarriedOutIsNotCounted(t *testing.T) {
	v := checkView(newCheck("100%"), "False 1h", "False 1h")
	v.Check.Status = HealthCheck(v).Status
	if len(v.Check.Status.Remediations) != 2 || len(v.Check.Status.BackOffs) != 1 {
		t.Fatalf("status %v", v.Check.Status)
	}
	v.Nodes["a"] = newNode("a", "True", noon())
	v.Nodes["a"].Metadata.Uid = "uid-node-a"
	again := HealthCheck(v)
	if r := again.Status.Remediations; len(r) != 1 || r[0].Machine != "b" {
		t.Errorf("one machine is healthy, and the remediations are %v", r)
	}
	v.Nodes["b"] = newNode("b", "True", noon())
	v.Nodes["b"].Metadata.Uid = "uid-node-b"
	if s := HealthCheck(v).Status; len(s.Remediations)+len(s.BackOffs) != 0 {
		t.Errorf("both machines are healthy, and the status is %v", s)
	}
}

func TestHealthCheckFaults(t *testing.T) {
	check := newCheck("many", func(c *machinev1.MachineHealthCheck) {
		c.Metadata.Annotations = map[string]string{annotationBudget: "5"}
		c.Spec.RemediationTemplate = &metav1.ObjectReference{Kind: "X"}
	})
	var paths []string
	for _, f := range HealthCheckFaults(check) {
		paths = append(paths, f.Path)
	}
	want := []string{"spec.maxUnhealthy", "spec.remediationTemplate", "metadata.annotations[" + annotationBudget + "]"}
	if d := cmp.Diff(want, paths); d != "" {
		t.Error(d)
	}
	for _, limit := range []any{0, 3, "3", "0%", "100%", -1} {
		if bad := HealthCheckFaults(newCheck(limit)); len(bad) > 0 {
			t.Errorf("maxUnhealthy %v: %v", limit, bad)
		}
	}
	for _, limit := range []any{1.5, "101%", "", "+1", "1.5", true, "-", "5 %"} {
		if bad := HealthCheckFaults(newCheck(limit)); len(bad) != 1 {
			t.Errorf("maxUnhealthy %v is accepted", limit)
		}
	}
}

// TestHealthCheckPromises checks what holds for every health check, whatever the machines are like.
func TestHealthCheckPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var states []string
		for range rapid.IntRange(0, 12).Draw(t, "machines") {
			state := rapid.SampledFrom([]string{"True", "False", "Unknown"}).Draw(t, "ready") + " " +
				rapid.SampledFrom([]string{"10s", "299s", "301s", "2h"}).Draw(t, "since") + " " + rapid.SampledFrom([]string{
				"", "", "", "failed", "deleting", "orphan", "master", "nonode", "gone", "other", "master deleting",
			}).Draw(t, "word")
			states = append(states, state)
		}
		limit := rapid.SampledFrom([]any{0, 1, 3, "1", "0%", "30%", "100%", "x"}).Draw(t, "maxUnhealthy")
		v := checkView(newCheck(limit), states...)
		v.Unseen = rapid.SampledFrom([]string{"", "", "", "no answer"}).Draw(t, "unseen")
		v.Guardian = map[string]GuardianAnswer{}
		for _, m := range v.Machines {
			v.Guardian[m.Metadata.Uid] = GuardianAnswer{Allowed: rapid.Bool().Draw(t, "allowed"), Why: "why"}
		}
		before := proto.Clone(v.Check)
		p := HealthCheck(v)
		if !proto.Equal(before, v.Check) {
			t.Error("the health check was modified")
		}
		checkPromises(t, v, p)
	})
}

func checkPromises(t *rapid.T, v HealthCheckView, p HealthCheckPlan) {
	limit, fault := unhealthyLimit(v.Check.GetSpec().GetMaxUnhealthy(), len(v.Machines))
	going, silent := 0, 0
	for _, m := range v.Machines {
		if object.Deleting(m) {
			going++
		}
	}
	for _, n := range v.Nodes {
		if n.Status.Conditions[0].Status == "Unknown" {
			silent++
		}
	}
	n := len(p.Remediate)
	if n > 0 && (fault != "" || going+n > limit) {
		t.Errorf("%d are deleted and %d being deleted, maxUnhealthy is %d", n, going, limit)
	}
	if n > 0 && (v.Unseen != "" || silent > 1 && silent == len(v.Nodes)) {
		t.Errorf("%d are deleted while the nodes are not seen", n)
	}
	masters := 0
	for _, u := range p.Remediate {
		if object.Deleting(u.Machine) || object.ControllerOf(u.Machine) == nil || u.Reason == "" {
			t.Errorf("machine %v is deleted because of %q", u.Machine, u.Reason)
		}
		if isControlPlane(u.Machine) {
			masters++
			if !v.Guardian[u.Machine.Metadata.Uid].Allowed {
				t.Errorf("%s is deleted without the guardian's consent", u.Machine.Metadata.Name)
			}
		}
	}
	if masters > 1 {
		t.Errorf("%d masters are deleted at once", masters)
	}
	if len(p.Remediate)+len(p.Held) != len(p.Unhealthy) {
		t.Errorf("%d unhealthy machines: %d are deleted and %d held", len(p.Unhealthy), len(p.Remediate), len(p.Held))
	}
	if !p.Wake.IsZero() && p.Wake.Sub(v.Now) < time.Second {
		t.Errorf("it looks again after %v", p.Wake.Sub(v.Now))
	}
}
