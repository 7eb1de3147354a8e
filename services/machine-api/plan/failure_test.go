package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// retried lets one step of a machine's deletion fail every two seconds and returns how often its status was written.
func retried(m *machinev1.Machine, attempts int, message func(i int) string) (writes, events int) {
	var memory []*machinev1.StepFailure
	for i := range attempts {
		v := MachineView{
			Now: noon().Add(time.Duration(i) * 2 * time.Second), Machine: m, Instance: instance(), NodesSeen: true,
			Node: readyNode(),
		}
		memory = AddFailure(memory, Fault{DeleteInstance, message(i)}, v.Now)
		v.Failures = memory
		p := Next(v)
		if !proto.Equal(m.GetStatus(), p.Status) {
			writes++
			events += len(p.Events)
		}
		m.Status = p.Status
	}
	return writes, events
}

func TestAttemptsAloneDoNotWrite(t *testing.T) {
	for name, tt := range map[string]struct {
		message func(int) string
		most    int // 1,000 attempts in 33 minutes: 10 doublings, and once in 5 minutes, or once in a minute
	}{
		"the same error":            {func(int) string { return "down" }, 17},
		"an error with its request": {func(i int) string { return fmt.Sprintf("request %d: down", i) }, 45},
	} {
		m := newMachine(running, deleted, drained)
		writes, events := retried(m, 1000, tt.message)
		if writes < 10 || writes > tt.most || events > tt.most {
			t.Errorf("%s: %d writes, %d events; want 10 to %d", name, writes, events, tt.most)
		}
		f := m.GetStatus().GetStepFailures()[0]
		if !proto.Equal(f.GetSince(), seconds(noon())) || f.GetAttempts() < 500 ||
			f.GetLastAttemptTime().AsTime() != noon().Add(2*time.Second*time.Duration(f.GetAttempts()-1)) {
			t.Errorf("%s: stored %v: want the attempts up to the stored time", name, f)
		}
	}
}

func TestAFailureIsReportedWhileItsStepIsNeeded(t *testing.T) {
	m := newMachine(running, deleted, drained)
	v := MachineView{Now: noon(), Machine: m, Instance: instance(), NodesSeen: true, Node: readyNode()}
	v.Failures = AddFailure(nil, Fault{DeleteInstance, "quota"}, noon().Add(-time.Hour))
	p := Next(v)
	if len(p.Status.GetStepFailures()) != 1 || !strings.Contains(p.WaitsFor,
		": quota (DeleteInstance failed 1 times since 2026-11-21T11:00:00Z)") {
		t.Errorf("failures %v, waits for %q", p.Status.GetStepFailures(), p.WaitsFor)
	}
	m.Status, v.Failures = p.Status, p.Failures
	v.Instance, v.InstanceGone = nil, true
	if p := Next(v); len(p.Status.GetStepFailures()) != 0 || len(p.Failures) != 0 {
		t.Errorf("with the instance gone: %v", p.Failures)
	}
}

// A question that failed is reported also by a process that has not counted it.
func TestAQuestionThatFailedIsReported(t *testing.T) {
	v := MachineView{
		Now: noon(), Machine: newMachine(running, deleted, drained), InstanceGone: true,
		Faults: []Fault{{GetNode, "down"}},
	}
	p := Next(v)
	if len(p.Failures) != 1 || p.Failures[0].GetStep() != "GetNode" || p.Failures[0].GetResolution() == "" {
		t.Errorf("failures %v", p.Failures)
	}
	for attempts, want := range map[int]time.Duration{1: time.Second, 7: 7 * time.Second, 100: lookAgain} {
		v.Failures = nil
		for range attempts {
			v.Failures = AddFailure(v.Failures, v.Faults[0], noon())
		}
		if got := Next(v).Wake.Sub(noon()); got != want {
			t.Errorf("after %d attempts it is asked again after %v, want %v", attempts, got, want)
		}
	}
}

// The copy of the drains may be older than the deletion of a drain: that it succeeded counts only as an answer.
func TestADrainHasSucceededOnlyIfItsOwnerSaysSo(t *testing.T) {
	v := MachineView{
		Now: noon(), Machine: newMachine(running, deleted), Instance: instance(), Node: readyNode(), NodesSeen: true,
		Drain: newDrain("Succeeded", ""), Faults: []Fault{{GetDrain, "down"}},
	}
	p := Next(v)
	if object.IsTrue(p.Status.GetConditions(), Drained) || len(p.Actions) > 0 || p.Wake.Sub(noon()) != time.Second {
		t.Errorf("conditions %v, actions %v, again after %v", p.Status.GetConditions(), p.Actions, p.Wake.Sub(noon()))
	}
	v.Faults = nil
	if p := Next(v); !object.IsTrue(p.Status.GetConditions(), Drained) {
		t.Errorf("conditions %v", p.Status.GetConditions())
	}
}

func TestEveryDeletionIsCheckedWithinHalfAMinute(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		changes := []func(*machinev1.Machine){deleted}
		for _, f := range []func(*machinev1.Machine){running, preDrain, preTerminate, drained} {
			if rapid.Bool().Draw(t, "changed") {
				changes = append(changes, f)
			}
		}
		v := MachineView{Now: noon(), Machine: newMachine(changes...), NodesSeen: rapid.Bool().Draw(t, "nodes seen")}
		if rapid.Bool().Draw(t, "instance") {
			v.Instance = instance()
		} else {
			v.InstanceGone = rapid.Bool().Draw(t, "gone")
		}
		if v.NodesSeen && rapid.Bool().Draw(t, "node") {
			v.Node = readyNode()
		}
		if rapid.Bool().Draw(t, "drain") {
			v.Drain = newDrain(rapid.SampledFrom([]string{"", "Draining", "Failed", "Succeeded"}).Draw(t, "phase"), "")
		}
		if p := Next(v); p.Wake.IsZero() || p.Wake.After(noon().Add(30*time.Second)) {
			t.Fatalf("it is checked again at %v, and waits for %q", p.Wake, p.WaitsFor)
		}
	})
}

func TestAnErrorIsShortenedBetweenCharacters(t *testing.T) {
	f := AddFailure(nil, Fault{GetNode, "x" + strings.Repeat("ä", 1000)}, noon())[0]
	if want := "x" + strings.Repeat("ä", 511); f.GetMessage() != want {
		t.Errorf("%d bytes %q", len(f.GetMessage()), f.GetMessage())
	}
}
