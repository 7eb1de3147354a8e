package plan

import (
	"slices"
	"strings"
	"testing"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/spans"
)

// draining is a machine whose drain began ten minutes before noon, with a timeout and a policy.
func draining(timeout, policy string) *machinev1.Machine {
	return newMachine(running, deleted, func(m *machinev1.Machine) {
		m.Spec.NodeDrainTimeout, m.Spec.NodeTimeoutPolicy = timeout, policy
		m.Status.Deletion = &machinev1.MachineDeletion{NodeDrainStartTime: seconds(noon().Add(-10 * time.Minute))}
	})
}

func blockedDrain() *nodev1.Drain {
	d := newDrain("Draining", "waits for 1 pod to leave")
	d.Status.BlockedPods = []*nodev1.BlockedPod{{
		Namespace: "shop", Name: "db-0", Budgets: []string{"db"}, Reason: "Cannot evict pod",
		SinceTime: seconds(noon().Add(-9 * time.Minute)),
	}}
	return d
}

func TestADrainDeadlineFollowsItsPolicy(t *testing.T) {
	master := func(m *machinev1.Machine) *machinev1.Machine {
		m.Metadata.Labels = map[string]string{LabelRole: RoleMaster}
		return m
	}
	for name, tt := range map[string]struct {
		machine  *machinev1.Machine
		proceeds bool
		reason   string // of DrainTimedOut; empty: there is no such condition
		waits    string // part of it
		wake     time.Time
	}{
		"without a timeout it waits": {
			draining("", ""), false, "", "shop/db-0 blocked by budget db since 2026-11-21T11:51:00Z", noon().Add(lookAgain),
		},
		"0 is no timeout": {draining("0", "Proceed"), false, "", "shop/db-0", noon().Add(lookAgain)},
		"a timeout wakes the machine when it passes": {
			draining("601s", "Proceed"), false, "", "shop/db-0", noon().Add(time.Second),
		},
		"a passed timeout is reported": {
			draining("5m", ""), false, "Waiting", "nodeDrainTimeout 5m passed at 2026-11-21T11:55:00Z", noon().Add(lookAgain),
		},
		"with Proceed the drain is given up": {draining("5m", "Proceed"), true, "Proceeded", "", time.Time{}},
		"a control-plane machine waits with Proceed too": {
			master(draining("5m", "Proceed")), false, "Waiting", "control-plane machine", noon().Add(lookAgain),
		},
		"a preDrain hook is never passed": {
			func() *machinev1.Machine { m := draining("5m", "Proceed"); preDrain(m); return m }(), false, "",
			"EtcdQuorumOperator", noon().Add(lookAgain),
		},
		"a preTerminate hook is never passed": {
			func() *machinev1.Machine { m := draining("5m", "Proceed"); preTerminate(m); return m }(), true, "Proceeded",
			"BackupFileSystem", noon().Add(lookAgain),
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := Next(MachineView{
				Now: noon(), Machine: tt.machine, Instance: instance(), Node: readyNode(), NodesSeen: true, Drain: blockedDrain(),
				Exact: true,
			})
			if got := object.IsTrue(p.Status.GetConditions(), Drained); got != tt.proceeds {
				t.Errorf("Drained = %v, want %v", got, tt.proceeds)
			}
			if got := object.FindCondition(p.Status.GetConditions(), DrainTimedOut).GetReason(); got != tt.reason {
				t.Errorf("reason of DrainTimedOut = %q, want %q", got, tt.reason)
			}
			if !strings.Contains(p.WaitsFor, tt.waits) {
				t.Errorf("waits for %q, want %q in it", p.WaitsFor, tt.waits)
			}
			if !tt.wake.IsZero() && !p.Wake.Equal(tt.wake) {
				t.Errorf("wakes at %v, want %v", p.Wake, tt.wake)
			}
			if hooked := len(tt.machine.GetSpec().GetLifecycleHooks().GetPreTerminate()) > 0; hooked && len(p.Actions) > 0 {
				t.Errorf("actions %v, want none while a hook is left", p.Actions)
			}
			if tt.reason != "" && !hasEvent(p, DrainTimedOut) {
				t.Errorf("events %v, want one of the timeout", p.Events)
			}
		})
	}
}

// A leader's clock that is an hour ahead, or was set by an hour, gives no drain up before its time.
func TestAWrongClockEndsNoWaitEarly(t *testing.T) {
	timedOut := func(m *machinev1.Machine) {
		m.Status.Conditions = append(m.Status.Conditions, condition(DrainTimedOut, conditionTrue, "", "Waiting",
			"spec.nodeDrainTimeout 30m passed at 2026-11-21T12:20:00Z; the deletion waits"))
	}
	for name, tt := range map[string]struct {
		timeout string
		change  func(*machinev1.Machine)
		seen    time.Duration // that the leader has waited
		ahead   time.Duration // of its clock
		ends    bool
		wake    time.Duration
	}{
		"a clock that is ahead":                  {"30m", nil, 10 * time.Minute, time.Hour, false, 20 * time.Minute},
		"a clock that is behind":                 {"30m", nil, 30 * time.Minute, -time.Hour, true, 0},
		"a timeout that has passed":              {"30m", nil, 30 * time.Minute, time.Hour, true, 0},
		"a leader that begins waits again":       {"5m", nil, 0, 0, false, 5 * time.Minute},
		"but no longer than clocks are wrong":    {"5m", nil, 0, 2 * time.Hour, true, 0},
		"what an earlier leader found is kept":   {"30m", timedOut, 0, 0, true, 0},
		"but not if the timeout was raised then": {"40m", timedOut, 0, 0, false, lookAgain},
	} {
		t.Run(name, func(t *testing.T) {
			m := draining(tt.timeout, "Proceed")
			if tt.change != nil {
				tt.change(m)
			}
			v := MachineView{
				Now: noon(), Machine: m, Instance: instance(), Node: readyNode(), NodesSeen: true, Drain: blockedDrain(),
			}
			v.Seen = spans.Seen{}
			for s := range Next(v).States {
				v.Seen[s] = tt.seen
			}
			v.Now = noon().Add(tt.ahead)
			p := Next(v)
			if got := object.IsTrue(p.Status.GetConditions(), Drained); got != tt.ends {
				t.Errorf("Drained = %v, want %v", got, tt.ends)
			}
			if want := v.Now.Add(min(tt.wake, lookAgain)); !tt.ends && !p.Wake.Equal(want) {
				t.Errorf("wakes at %v, want %v", p.Wake, want)
			}
		})
	}
}

// A node that registers again while its machine is drained is another node, with pods of its own.
func TestTheDrainOfAnEarlierNodeDoesNotCount(t *testing.T) {
	for name, change := range map[string]func(*nodev1.DrainSpec){
		"another uid":  func(s *nodev1.DrainSpec) { s.NodeUid = "uid-of-the-earlier-node" },
		"another name": func(s *nodev1.DrainSpec) { s.NodeName = "m-before" },
	} {
		for _, phase := range []string{"Draining", "Failed", "Succeeded"} {
			d := newDrain(phase, "the node does not exist, so there is nothing to drain")
			d.Spec = &nodev1.DrainSpec{NodeName: "m", NodeUid: "uid-node"}
			v := MachineView{
				Now: noon(), Machine: newMachine(running, deleted), Instance: instance(), Node: readyNode(), NodesSeen: true,
				Drain: d,
			}
			if p := Next(v); slices.Contains(p.Actions, DeleteDrain) {
				t.Errorf("actions %v for the drain of the node itself", p.Actions)
			}
			change(d.Spec)
			p := Next(v)
			if object.IsTrue(p.Status.GetConditions(), Drained) || !slices.Equal(p.Actions, []Action{DeleteDrain}) {
				t.Errorf("%s, %s: conditions %v, actions %v", name, phase, p.Status.GetConditions(), p.Actions)
			}
		}
	}
}

// The provider of these machines does not report volumes, and the node cannot be seen: it may report some.
func TestTheNodeIsAskedForVolumesBeforeTheInstanceGoes(t *testing.T) {
	v := MachineView{Now: noon(), Machine: newMachine(running, deleted, drained), Instance: instance()}
	p := Next(v)
	c := object.FindCondition(p.Status.GetConditions(), VolumesDetached)
	if len(p.Actions) > 0 || c.GetStatus() != "Unknown" || c.GetReason() != "NodeUnknown" || p.Wake.IsZero() {
		t.Errorf("actions %v, condition %v", p.Actions, c)
	}
	v.NodesSeen = true // it is gone
	if p := Next(v); !slices.Equal(p.Actions, []Action{DeleteInstance}) {
		t.Errorf("actions %v once it is known that there is no node", p.Actions)
	}
}

func hasEvent(p MachinePlan, reason string) bool {
	for _, e := range p.Events {
		if e.Reason == reason {
			return true
		}
	}
	return false
}

func TestAttachedVolumesAreWaitedFor(t *testing.T) {
	attached := func(state string) *providerv1.Instance {
		i := instance()
		i.State, i.VolumesKnown = state, true
		i.Volumes = []*providerv1.AttachedVolume{{
			Id: "vol-1", DevicePath: "/dev/sdb", AttachTime: seconds(noon().Add(-time.Hour)),
		}}
		return i
	}
	none := instance()
	none.VolumesKnown = true
	busy := readyNode()
	busy.Status.VolumesInUse = []string{"vol-2"}
	silent := newNode("m", "Unknown", noon().Add(-time.Hour))
	silent.Status.VolumesInUse = []string{"vol-2"}
	begun := func(timeout, policy string) func(*machinev1.Machine) {
		return func(m *machinev1.Machine) {
			m.Spec.NodeVolumeDetachTimeout, m.Spec.NodeTimeoutPolicy = timeout, policy
			m.Status.Deletion = &machinev1.MachineDeletion{VolumeDetachStartTime: seconds(noon().Add(-time.Hour))}
		}
	}
	for name, tt := range map[string]struct {
		change   func(*machinev1.Machine)
		instance *providerv1.Instance
		node     *nodev1.Node
		status   string // of VolumesDetached
		reason   string
		deletes  bool
	}{
		"without volumes the instance is deleted": {nil, none, readyNode(), "True", "", true},
		"a provider that does not report volumes is not waited for, and the condition does not claim more": {
			nil, instance(), readyNode(), "Unknown", "NotReported", true,
		},
		"an empty copy does not say that no volume is attached": {
			nil, nil, readyNode(), "Unknown", "InstanceUnknown", false,
		},
		"an attached volume is waited for":     {nil, attached("Running"), readyNode(), "False", "VolumesAttached", false},
		"so is one that only the node reports": {nil, none, busy, "False", "VolumesAttached", false},
		"and one of an unreachable node whose instance may run": {
			nil, none, silent, "False", "VolumesAttached", false,
		},
		"a stopped instance uses no volume": {nil, attached("Stopped"), silent, "True", "InstanceStopped", true},
		"a passed timeout is reported": {
			begun("5m", ""), attached("Running"), readyNode(), "False", "VolumesAttached", false,
		},
		"with Proceed the wait is given up": {
			begun("5m", "Proceed"), attached("Running"), readyNode(), "True", VolumesTimedOut, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(running, deleted, drained)
			if tt.change != nil {
				tt.change(m)
			}
			p := Next(MachineView{Now: noon(), Machine: m, Instance: tt.instance, Node: tt.node, NodesSeen: true, Exact: true})
			c := object.FindCondition(p.Status.GetConditions(), VolumesDetached)
			if c.GetStatus() != tt.status || c.GetReason() != tt.reason {
				t.Errorf("VolumesDetached = %s %s, want %s %s", c.GetStatus(), c.GetReason(), tt.status, tt.reason)
			}
			if got := len(p.Actions) > 0 && p.Actions[0] == DeleteInstance; got != tt.deletes {
				t.Errorf("actions %v, deletes the instance: want %v", p.Actions, tt.deletes)
			}
			if waits := strings.Contains(p.WaitsFor, "volumes"); waits == tt.deletes {
				t.Errorf("waits for %q", p.WaitsFor)
			}
		})
	}
}

func TestTheProviderIsAskedForVolumesThatTheCopyDoesNotShow(t *testing.T) {
	for name, tt := range map[string]struct {
		lookup  Call
		status  string
		actions []Action
	}{
		"not asked yet":        {Call{}, "Unknown", []Action{GetInstance}},
		"being asked":          {Call{Busy: true}, "Unknown", nil},
		"it found an instance": {Call{At: noon().Add(-time.Hour), There: true}, "Unknown", []Action{GetInstance}},
		"it failed": {
			Call{At: noon().Add(-time.Hour), Err: "unavailable", Failed: 1}, "Unknown", []Action{GetInstance},
		},
		"it found none": {Call{At: noon().Add(-time.Second)}, "True", []Action{DeleteInstance}},
	} {
		t.Run(name, func(t *testing.T) {
			p := Next(MachineView{
				Now: noon(), Machine: newMachine(running, deleted, drained), Lookup: tt.lookup, Node: readyNode(), NodesSeen: true,
			})
			c := object.FindCondition(p.Status.GetConditions(), VolumesDetached)
			if c.GetStatus() != tt.status || !slices.Equal(p.Actions, tt.actions) {
				t.Errorf("VolumesDetached = %s, actions %v; want %s, %v", c.GetStatus(), p.Actions, tt.status, tt.actions)
			}
			if p.Wake.IsZero() {
				t.Error("nothing wakes the machine")
			}
		})
	}
}

func TestTheTimeoutsOfASpecAreChecked(t *testing.T) {
	for text, want := range map[string]int{"": 0, "0": 0, "10m": 0, "9000h": 1, "9999999999999h": 1} {
		if got := TimeoutFaults(&machinev1.MachineSpec{NodeDrainTimeout: text}, "spec."); len(got) != want {
			t.Errorf("%q: faults %v, want %d", text, got, want)
		}
	}
}
