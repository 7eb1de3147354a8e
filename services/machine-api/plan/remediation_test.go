package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/spans"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

func budgetOf(text string) func(*machinev1.MachineHealthCheck) {
	return func(c *machinev1.MachineHealthCheck) {
		c.Metadata.Annotations = map[string]string{annotationBudget: text}
	}
}

// remediated notes in a health check that so many other machines were remediated, each so long before noon.
func remediated(ago ...time.Duration) func(*machinev1.MachineHealthCheck) {
	return func(c *machinev1.MachineHealthCheck) {
		c.Status = &machinev1.MachineHealthCheckStatus{}
		for i, d := range ago {
			name := fmt.Sprintf("earlier-%d", i)
			c.Status.Remediations = append(c.Status.Remediations, &machinev1.Remediation{
				Machine: name, MachineUid: "uid-" + name, Time: seconds(noon().Add(-d)),
			})
		}
	}
}

// unhealthyOf returns a view of machines m0, m1 and so on, of which the first ones are unhealthy for an hour.
func unhealthyOf(check *machinev1.MachineHealthCheck, unhealthy, all int) HealthCheckView {
	v := checkView(check)
	for i := range all {
		ready := "True"
		if i < unhealthy {
			ready = "False"
		}
		m, n := sick(fmt.Sprintf("m%d", i), ready, time.Hour)
		v.Machines, v.Nodes[n.Metadata.Name] = append(v.Machines, m), n
	}
	return v
}

func TestTheBudgetOfAHealthCheck(t *testing.T) {
	const hour = time.Hour
	for _, c := range []struct {
		name           string
		change         []func(*machinev1.MachineHealthCheck)
		unhealthy, all int
		deleted        int
		again          time.Duration // 0: never
	}{
		{"within the budget all are replaced", nil, 5, 10, 5, 0},
		{"a small fleet has a budget of 5 in an hour", nil, 7, 10, 5, 0},
		{"a larger one has 20 %", nil, 12, 40, 8, 0},
		{"a very large one has 100", nil, 120, 1000, 100, 0},
		{"the annotation sets another", []func(*machinev1.MachineHealthCheck){budgetOf("2/30m")}, 3, 10, 2, 0},
		{"a budget of 0 replaces nothing", []func(*machinev1.MachineHealthCheck){budgetOf("0/1h")}, 3, 10, 0, 0},
		{
			"earlier remediations of the window count", []func(*machinev1.MachineHealthCheck){
				budgetOf("3/1h"), remediated(59*time.Minute, time.Minute),
			}, 3, 10, 1, time.Minute,
		},
		{
			"a used budget is free when the oldest leaves the window", []func(*machinev1.MachineHealthCheck){
				budgetOf("2/1h"), remediated(10*time.Minute, 50*time.Minute),
			}, 3, 10, 0, 10 * time.Minute,
		},
		{
			"at the end of the window one has left it", []func(*machinev1.MachineHealthCheck){
				budgetOf("2/1h"), remediated(hour, hour),
			}, 3, 10, 2, 0,
		},
		{
			"a budget that was lowered holds until enough have left", []func(*machinev1.MachineHealthCheck){
				budgetOf("1/1h"), remediated(10*time.Minute, 20*time.Minute, 30*time.Minute),
			}, 1, 10, 0, 30 * time.Minute,
		},
		{
			"a shorter window forgets more", []func(*machinev1.MachineHealthCheck){
				budgetOf("1/5m"), remediated(10*time.Minute, 20*time.Minute),
			}, 2, 10, 1, 0,
		},
		{
			"one that is dated in the future counts as of now", []func(*machinev1.MachineHealthCheck){
				budgetOf("1/1h"), remediated(-1000 * hour),
			}, 1, 10, 0, hour,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := unhealthyOf(newCheck("100%", c.change...), c.unhealthy, c.all)
			p := HealthCheck(v)
			if len(p.Remediate) != c.deleted {
				t.Errorf("%d machines are deleted, want %d", len(p.Remediate), c.deleted)
			}
			// What is deleted now fills the window as well.
			next := v
			next.Check = proto.CloneOf(v.Check)
			next.Check.Status = p.Status
			for _, u := range p.Remediate {
				deleted(u.Machine)
			}
			again := HealthCheck(next)
			if len(again.Remediate) > 0 {
				t.Errorf("%d more are deleted at the next look", len(again.Remediate))
			}
			want := time.Time{}
			if c.again > 0 {
				want = noon().Add(c.again)
			}
			if c.deleted == 0 && !p.Wake.Equal(want) {
				t.Errorf("decides again at %v, want %v", p.Wake, want)
			}
			if c.again > 0 && !again.Wake.Equal(want) {
				t.Errorf("after the deletions it decides again at %v, want %v", again.Wake, want)
			}
			for _, h := range p.Held {
				if !strings.Contains(h.GetReason(), "the budget of") {
					t.Errorf("%s is held by %q", h.GetObject().GetName(), h.GetReason())
				}
			}
		})
	}
}

// A crash may come between the record and the deletion: the machine is deleted all the same, and counts once.
// A health check that was deleted and created again knows nothing of what the former one decided.
func TestRemediationsUnderWayCountForANewHealthCheck(t *testing.T) {
	v := unhealthyOf(newCheck("100%", budgetOf("3/1h")), 5, 10)
	for i, m := range v.Machines[5:9] {
		m.Metadata.DeletionTimestamp = seconds(noon().Add(-time.Minute))
		m.Status.Deletion = &machinev1.MachineDeletion{
			Trigger: "MachineHealthCheck", RequestedBy: v.Check.Metadata.Name, Reason: "it was silent",
			RequestTime: seconds(noon().Add(-time.Minute)),
		}
		switch i {
		case 1:
			m.Status.Deletion.RequestTime = seconds(noon().Add(-2 * time.Hour))
		case 2:
			m.Status.Deletion.Trigger = "User"
		case 3:
			m.Status.Deletion.RequestedBy = "another" // it has its own budget
		}
	}
	p := HealthCheck(v)
	if len(p.Remediate) != 2 {
		t.Errorf("%d machines are deleted, want 2: one of 3 is being deleted for its health since a minute ago",
			len(p.Remediate))
	}
	if r := p.Status.GetRemediations(); len(r) != 3 || r[0].GetMachine() != "m5" || r[0].GetReason() != "it was silent" {
		t.Errorf("remediations: %v", r)
	}
}

// Machines that are gone count by what their revocations say, but only until the check has a status of its own.
func TestFinishedRemediationsCountForANewHealthCheck(t *testing.T) {
	v := unhealthyOf(newCheck("100%", budgetOf("3/1h")), 5, 10)
	for i, ago := range []time.Duration{2 * time.Hour, time.Minute, 0} {
		m := newMachine(func(m *machinev1.Machine) {
			m.Metadata.Name, m.Metadata.Uid = fmt.Sprint("gone", i), fmt.Sprint("gone-uid", i)
			m.Status.Deletion = &machinev1.MachineDeletion{
				Trigger: "MachineHealthCheck", RequestedBy: v.Check.Metadata.Name,
				RequestTime: seconds(noon().Add(-ago)),
			}
		})
		r := NotedRemediation(&machinev1.Revocation{
			Metadata: &metav1.ObjectMeta{Annotations: RemediationNote(m)},
			Spec: &machinev1.RevocationSpec{
				MachineName: m.Metadata.Name, MachineUid: m.Metadata.Uid, Reason: "the machine was deleted",
			},
		})
		if r == nil || !r.GetTime().AsTime().Equal(noon().Add(-ago)) {
			t.Fatalf("noted %v, want a remediation %v ago", r, ago)
		}
		v.Earlier = append(v.Earlier, r)
	}
	p := HealthCheck(v)
	if r := p.Status.GetRemediations(); len(p.Remediate) != 1 || len(r) != 3 || r[0].GetMachine() != "gone2" {
		t.Errorf("%d machines are deleted, want 1 beside two of the last hour; remediations: %v", len(p.Remediate), r)
	}
	v.Check = proto.CloneOf(v.Check)
	v.Check.Status = proto.CloneOf(p.Status)
	v.Check.Status.Remediations = nil // they no longer count
	if p := HealthCheck(v); len(p.Remediate) != 3 {
		t.Errorf("%d machines are deleted, want 3", len(p.Remediate))
	}
}

func TestOnlyRemediationsAreNoted(t *testing.T) {
	m := newMachine(func(m *machinev1.Machine) {
		m.Status.Deletion = &machinev1.MachineDeletion{Trigger: "User", RequestedBy: "ada", RequestTime: seconds(noon())}
	})
	note := RemediationNote(m)
	if r := NotedRemediation(&machinev1.Revocation{Metadata: &metav1.ObjectMeta{Annotations: note}}); note != nil ||
		r != nil {
		t.Errorf("noted %v, read as %v", note, r)
	}
}

func TestARecordedRemediationIsDoneWithoutBudget(t *testing.T) {
	v := unhealthyOf(newCheck("100%", budgetOf("2/1h")), 3, 10)
	first := HealthCheck(v)
	v.Check.Status = first.Status
	again := HealthCheck(v)
	if len(first.Remediate) != 2 || !slices.EqualFunc(first.Remediate, again.Remediate, func(a, b UnhealthyMachine) bool {
		return a.Machine == b.Machine
	}) || !proto.Equal(first.Status, again.Status) {
		t.Errorf("first %v, again %v", first.Remediate, again.Remediate)
	}
}

func backingOff(failed int32, first, last time.Duration) func(*machinev1.MachineHealthCheck) {
	return func(c *machinev1.MachineHealthCheck) {
		c.Metadata.Annotations = map[string]string{annotationBudget: "100/1h"}
		c.Status = &machinev1.MachineHealthCheckStatus{BackOffs: []*machinev1.RemediationBackOff{{
			Kind: "MachineSet", Name: "workers", Uid: newSet(3).Metadata.Uid, FailedReplacements: failed,
			FirstTime: seconds(noon().Add(-first)), LastTime: seconds(noon().Add(-last)),
		}}}
	}
}

func TestTheBackOffOfASet(t *testing.T) {
	const hour, minute = time.Hour, time.Minute
	for _, c := range []struct {
		name    string
		change  func(*machinev1.MachineHealthCheck)
		created time.Duration // of the unhealthy machines, before noon
		again   time.Duration // 0: they are deleted
		failed  int32         // replacements that failed in turn, afterwards
	}{
		{"the first remediation waits for nothing", budgetOf("100/1h"), hour, 0, 0},
		{"a machine from before the first remediation is no replacement", backingOff(3, 9*minute, minute), hour, 0, 3},
		{"a replacement waits 5 minutes", backingOff(0, 4*minute, 4*minute), 3 * minute, minute, 0},
		{"after that it is replaced, and counts", backingOff(0, 6*minute, 5*minute), 3 * minute, 0, 1},
		{"one created in the same second is a replacement", backingOff(0, 4*minute, 4*minute), 4 * minute, minute, 0},
		{"the second waits 10 minutes", backingOff(1, hour, 4*minute), 3 * minute, 6 * minute, 1},
		{"the sixth waits 160", backingOff(5, 9*hour, hour), 3 * minute, 100 * minute, 5},
		{"the seventh waits 4 hours", backingOff(6, 9*hour, hour), 3 * minute, 3 * hour, 6},
		{"no pause is longer", backingOff(1_000_000, 9*hour, hour), 3 * minute, 3 * hour, 1_000_000},
		{"after it the pause does not begin again", backingOff(6, 9*hour, 4*hour), 3 * minute, 0, 7},
		{"a day without a remediation ends the back-off", backingOff(6, 48*hour, 24*hour), 3 * minute, 0, 0},
		{"times in the future count as of now", backingOff(0, -1000*hour, -1000*hour), 0, 5 * minute, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := unhealthyOf(newCheck("100%", c.change), 3, 10)
			for _, m := range v.Machines[:3] {
				m.Metadata.CreationTimestamp = seconds(noon().Add(-c.created))
			}
			p := HealthCheck(v)
			want, wake := 3, time.Time{}
			if c.again > 0 {
				want, wake = 0, noon().Add(c.again)
			}
			if len(p.Remediate) != want || !p.Wake.Equal(wake) {
				t.Errorf("%d are deleted, and it decides again at %v; want %d and %v", len(p.Remediate), p.Wake, want, wake)
			}
			for _, h := range p.Held {
				if !strings.Contains(h.GetReason(), "replacements of MachineSet workers were unhealthy, too") {
					t.Errorf("%s is held by %q", h.GetObject().GetName(), h.GetReason())
				}
			}
			if list := p.Status.GetBackOffs(); len(list) != 1 || list[0].GetFailedReplacements() != c.failed {
				t.Errorf("back-offs %v, want one after %d rounds", list, c.failed)
			}
		})
	}
}

func TestTheBackOffOfOneSetDelaysNoOther(t *testing.T) {
	v := unhealthyOf(newCheck("100%", backingOff(3, time.Hour, time.Minute)), 2, 10)
	for _, m := range v.Machines[:2] {
		m.Metadata.CreationTimestamp = seconds(noon().Add(-time.Minute))
	}
	v.Machines[1].Metadata.OwnerReferences[0].Uid = "uid-of-another-set"
	p := HealthCheck(v)
	if len(p.Remediate) != 1 || p.Remediate[0].Machine.Metadata.Name != "m1" || len(p.Status.GetBackOffs()) != 2 {
		t.Errorf("deletes %v, back-offs %v", p.Remediate, p.Status.GetBackOffs())
	}
}

// seenFor returns the view that a leader has which has seen what v shows for d, by its monotonic clock. Its own clock
// is ahead of the time at which the view's objects were dated by ahead; negative: behind.
func seenFor(v HealthCheckView, d, ahead time.Duration) HealthCheckView {
	v.Exact, v.Seen = false, nil
	states := HealthCheck(v).States
	v.Seen = spans.Seen{}
	for s := range states {
		v.Seen[s] = d
	}
	v.Now = noon().Add(ahead)
	return v
}

// A leader's clock that is wrong by an hour, or was set by one, remediates nothing before its time, and forgets neither
// budget nor back-off. Nothing waits forever.
func TestAWrongClockRemediatesNothingEarly(t *testing.T) {
	const ahead, behind = time.Hour, -time.Hour
	of := func(check *machinev1.MachineHealthCheck, states ...string) HealthCheckView {
		return checkView(check, states...)
	}
	for _, c := range []struct {
		name  string
		view  HealthCheckView
		seen  time.Duration
		clock time.Duration
		want  string // the start of the outcome
	}{
		{
			"a condition of seconds", of(newCheck(1), "False 10s", "True 1h"), 10 * time.Second, ahead,
			"2/1 delete [] again 4m51s",
		},
		{
			"a condition before its timeout", of(newCheck(1), "False 299s", "True 1h"), 299 * time.Second, ahead,
			"2/1 delete [] again 2s",
		},
		{
			"a condition after its timeout", of(newCheck(1), "False 301s", "True 1h"), 301 * time.Second, ahead,
			"2/1 delete [a]",
		},
		{
			"the same by a clock that is behind", of(newCheck(1), "False 301s", "True 1h"), 301 * time.Second, behind,
			"2/1 delete [a]",
		},
		{
			"a condition dated in the future", of(newCheck(1), "False -9000h", "True 1h"), 301 * time.Second, 0,
			"2/1 delete [a]",
		},
		{"a leader that begins waits again", of(newCheck(1), "False 1h", "True 1h"), 0, 0, "2/1 delete [] again 5m1s"},
		{"but no longer than clocks are wrong", of(newCheck(1), "False 2h6m", "True 1h"), 0, 0, "2/1 delete [a]"},
		{"a silent node", of(newCheck(1), "Unknown 10s", "True 1h"), 10 * time.Second, ahead, "2/1 delete [] again 4m51s"},
		{
			"a machine that starts", of(newCheck(1), "True 1m nonode", "True 1h"), time.Minute, ahead,
			"2/1 delete [] again 9m1s",
		},
		{"one that did not start", of(newCheck(1), "True 11m nonode", "True 1h"), 11 * time.Minute, ahead, "2/1 delete [a]"},
		{
			"the budget is kept", unhealthyOf(newCheck("100%", budgetOf("2/1h"), remediated(time.Minute, time.Minute)), 1, 9),
			30 * time.Minute, ahead, "9/8 delete [] again 30m0s",
		},
		{
			"and is free after its window", unhealthyOf(newCheck("100%", budgetOf("2/1h"), remediated(time.Minute, time.Minute)),
				1, 9),
			time.Hour, ahead, "9/8 delete [m0]",
		},
		{
			"also by a clock that is behind",
			unhealthyOf(newCheck("100%", budgetOf("2/1h"), remediated(61*time.Minute, 61*time.Minute)), 1, 9),
			time.Hour, behind, "9/8 delete [m0]",
		},
		{
			"the back-off is kept", replacement(backingOff(0, time.Minute, time.Minute)), time.Minute, ahead,
			"9/8 delete [] again 4m0s",
		},
		{"and ends", replacement(backingOff(0, time.Minute, time.Minute)), 5 * time.Minute, ahead, "9/8 delete [m0]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			// The machines of the budget and the back-off are unhealthy for long in any case.
			v := seenFor(c.view, c.seen, c.clock)
			for s := range v.Seen {
				if len(c.view.Machines) == 9 && strings.Contains(s, `"node"`) {
					v.Seen[s] = time.Hour
				}
			}
			if got := outcome(v); !strings.HasPrefix(got, c.want) {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// replacement returns a view of 9 machines of which m0 is an unhealthy replacement.
func replacement(change func(*machinev1.MachineHealthCheck)) HealthCheckView {
	v := unhealthyOf(newCheck("100%", change), 1, 9)
	v.Machines[0].Metadata.CreationTimestamp = seconds(noon())
	return v
}

// A condition that comes again is another state, however soon: what was seen of the earlier one does not count.
func TestAConditionThatComesAgainCountsAgain(t *testing.T) {
	v := seenFor(checkView(newCheck(1), "False 1h", "True 1h"), 299*time.Second, 0)
	v.Nodes["a"].Status.Conditions[0].LastTransitionTime = seconds(noon())
	if got, want := outcome(v), "2/1 delete [] again 5m1s"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestRemediationsStayWithinTheBudget plays a fleet whose machines become unhealthy and are replaced, under leaders
// whose clocks are wrong by up to an hour, while the health check is deleted and created again: in no window are there
// more remediations than the budget.
func TestRemediationsStayWithinTheBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const most, window = 3, 30 * time.Minute
		v := unhealthyOf(newCheck("100%", budgetOf("3/30m")), 0, 12)
		v.Exact = false
		since, clock := map[string]time.Duration{}, time.Duration(0)
		var done []time.Duration
		now := time.Duration(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += rapid.SampledFrom([]time.Duration{time.Second, time.Minute, 6 * time.Minute}).Draw(t, "passes")
			switch rapid.IntRange(0, 5).Draw(t, "event") {
			case 5:
				v.Check = newCheck("100%", budgetOf("3/30m"))
			case 0:
				since = map[string]time.Duration{} // another leader, whose clock is another
				clock = time.Duration(rapid.IntRange(-60, 60).Draw(t, "clock")) * time.Minute
			case 1, 2:
				name := fmt.Sprintf("m%d", rapid.IntRange(0, 11).Draw(t, "machine"))
				v.Nodes[name].Status.Conditions = []*nodev1.NodeCondition{{
					Type: "Ready", Status: "False", LastTransitionTime: seconds(noon().Add(now)),
				}}
			}
			v.Now, v.Seen = noon().Add(now+clock), spans.Seen{}
			for s, first := range since {
				v.Seen[s] = now - first
			}
			p := HealthCheck(v)
			kept := map[string]time.Duration{}
			for s := range p.States {
				kept[s] = now
				if first, ok := since[s]; ok {
					kept[s] = first
				}
			}
			since = kept
			v.Check = proto.CloneOf(v.Check)
			v.Check.Status = p.Status
			for _, u := range p.Remediate {
				done = append(done, now)
				v.Earlier = append(v.Earlier, &machinev1.Remediation{
					Machine: u.Machine.Metadata.Name, MachineUid: u.Machine.Metadata.Uid, Time: seconds(v.Now),
				})
				i := slices.Index(v.Machines, u.Machine)
				name := u.Machine.Metadata.Name
				m, n := sick(name, "True", 0)
				m.Metadata.Uid, m.Metadata.CreationTimestamp = fmt.Sprintf("%s-%d", name, len(done)), seconds(v.Now)
				v.Machines, v.Nodes = slices.Clone(v.Machines), maps.Clone(v.Nodes)
				v.Machines[i], v.Nodes[name] = m, n
			}
			inWindow := 0
			for _, at := range done {
				if now-at < window {
					inWindow++
				}
			}
			if inWindow > most {
				t.Fatalf("%d remediations within %v, the budget is %d", inWindow, window, most)
			}
		}
	})
}
