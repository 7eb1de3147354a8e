package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// live is a cluster operator that says these things of itself, as in "Available=True operator=1.1.0".
func live(says string) *updatev1.ClusterOperator {
	o := &updatev1.ClusterOperator{Status: &updatev1.ClusterOperatorStatus{}}
	for _, s := range strings.Fields(says) {
		name, v, _ := strings.Cut(s, "=")
		if name == Available || name == Degraded || name == Progressing {
			o.Status.Conditions = append(o.Status.Conditions, condition(name, v, "", ""))
		} else {
			o.Status.Versions = append(o.Status.Versions, &updatev1.OperandVersion{Name: name, Version: v})
		}
	}
	return o
}

func TestOperatorGate(t *testing.T) {
	declared := []*updatev1.OperandVersion{{Name: "operator", Version: "1.1.0"}}
	tests := map[string]struct {
		live     *updatev1.ClusterOperator
		declared []*updatev1.OperandVersion
		mode     Mode
		effect   Effect
		reason   string
		observed string
	}{
		"ready": {
			live("Available=True Degraded=False operator=1.1.0"), declared, Updating, Ready, "",
			"",
		},
		"progressing does not matter": {
			live("Available=True Degraded=False Progressing=True operator=1.1.0"), declared,
			Updating, Ready, "", "",
		},
		"no versions declared": {
			live("Available=True Degraded=False"), nil, Updating, Fail, operatorNoVersions,
			"it declares none",
		},
		"not there": {
			nil, declared, Updating, Fail, operatorNotAvailable,
			"there is no such cluster operator",
		},
		"says nothing": {
			live(""), declared, Updating, Fail, operatorNotAvailable,
			"Available is not reported",
		},
		"not available": {
			live("Available=False Degraded=True"), declared, Updating, Fail,
			operatorNotAvailable, "Available=False",
		},
		"not available at the start": {
			live("Available=Unknown Degraded=False"), declared, Initializing, Fail,
			operatorNotAvailable, "Available=Unknown",
		},
		"degraded": {
			live("Available=True Degraded=True operator=1.1.0"), declared, Updating,
			FailAfterInterval, operatorDegraded, "Degraded=True",
		},
		"degraded while nothing moves": {
			live("Available=True Degraded=True operator=1.1.0"), declared, Reconciling,
			FailAfterInterval, operatorDegraded, "Degraded=True",
		},
		"does not say degraded": {
			live("Available=True operator=1.1.0"), declared, Updating, FailAfterInterval,
			operatorDegraded, "Degraded is not reported",
		},
		"degraded at the start": {
			live("Available=True Degraded=True"), declared, Initializing, Report,
			operatorDegraded, "",
		},
		"another version": {
			live("Available=True Degraded=False operator=1.0.0"), declared, Updating, Wait,
			operatorUpdating, "operator is at 1.0.0",
		},
		"no version yet": {
			live("Available=True Degraded=False"), declared, Updating, Wait, operatorUpdating,
			"operator has no version",
		},
		"another version, at the start": {
			live("Available=True Degraded=False operator=1.0.0"), declared, Initializing, Ready,
			"", "",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := operatorGate(gateView{
				Operator: "dns", File: "0000_70_dns_co.yaml", Declared: tt.declared, Live: tt.live,
				Mode: tt.mode, Since: noon(),
			})
			if g.Effect != tt.effect || g.Reason != tt.reason || g.Wait.GetObserved() != tt.observed {
				t.Errorf("got %+v, want effect %d, reason %s, observed %q", g, tt.effect, tt.reason, tt.observed)
			}
			if g.Blocks() != (g.Wait != nil) {
				t.Errorf("blocks: %v, waits: %v", g.Blocks(), g.Wait)
			}
		})
	}
}

func gate(operator, says string) Gate {
	return operatorGate(gateView{Operator: operator, Declared: []*updatev1.OperandVersion{
		{Name: "operator", Version: "1.1.0"},
	}, Live: live(says), Mode: Updating, Since: noon()})
}

func TestConditions(t *testing.T) {
	const old, degraded, away = "Available=True Degraded=False operator=1.0.0", "Available=True Degraded=True",
		"Available=False"
	tests := map[string]struct {
		run   Run
		after time.Duration // since the operators were first checked
		want  []string      // Progressing, Failing
	}{
		"begun": {
			run:  Run{Mode: Updating},
			want: []string{"True : Working towards 1.1.0", "False : "},
		},
		"half way": {
			run:  Run{Mode: Updating, Done: 2, Total: 3},
			want: []string{"True : Working towards 1.1.0: 2 of 3 done (66% complete)", "False : "},
		},
		"waiting": {
			run: Run{Mode: Updating, Done: 3, Total: 12, Gates: []Gate{gate("dns", old), gate("console", old)}},
			want: []string{
				"True ClusterOperatorUpdating: Working towards 1.1.0: 3 of 12 done (25% complete), waiting on console, dns",
				"False : ",
			},
		},
		"waiting for a long time": {
			run:   Run{Mode: Updating, Done: 3, Total: 12, Gates: []Gate{gate("dns", old), gate("machine-config", old)}},
			after: 31 * time.Minute,
			want: []string{
				"True SlowClusterOperator: Working towards 1.1.0: 3 of 12 done (25% complete), waiting on dns over 30 minutes which is longer than expected",
				"Unknown SlowClusterOperator: waiting on dns over 30 minutes which is longer than expected",
			},
		},
		"waiting for nodes for a long time": {
			run: Run{Mode: Updating, Done: 3, Total: 12, Gates: []Gate{gate("machine-config", old)}}, after: 91 * time.Minute,
			want: []string{
				"True SlowClusterOperator: Working towards 1.1.0: 3 of 12 done (25% complete), waiting on machine-config over 90 minutes which is longer than expected",
				"Unknown SlowClusterOperator: waiting on machine-config over 90 minutes which is longer than expected",
			},
		},
		"waiting for nodes and another one for a long time": {
			run:   Run{Mode: Updating, Done: 3, Total: 12, Gates: []Gate{gate("machine-config", old), gate("dns", old)}},
			after: 91 * time.Minute,
			want: []string{
				"True SlowClusterOperator: Working towards 1.1.0: 3 of 12 done (25% complete), waiting on dns, machine-config over 30 minutes which is longer than expected",
				"Unknown SlowClusterOperator: waiting on dns, machine-config over 30 minutes which is longer than expected",
			},
		},
		"waiting for a degraded one": {
			run: Run{Mode: Updating, Done: 3, Total: 12, Gates: []Gate{gate("dns", degraded)}}, after: 40 * time.Minute,
			want: []string{
				"True ClusterOperatorDegraded: Working towards 1.1.0: 3 of 12 done (25% complete), waiting up to 40 minutes on dns",
				"False : ",
			},
		},
		"waiting for a degraded one for too long": {
			run: Run{Mode: Updating, Done: 3, Total: 12, Gates: []Gate{gate("dns", degraded)}}, after: 41 * time.Minute,
			want: []string{
				"True ClusterOperatorDegraded: Unable to apply 1.1.0: wait has exceeded 40 minutes for these operators: dns",
				"True ClusterOperatorDegraded: wait has exceeded 40 minutes for these operators: dns",
			},
		},
		"one is not available": {
			run: Run{Mode: Updating, Done: 3, Total: 12, Gates: []Gate{gate("dns", away)}},
			want: []string{
				"True ClusterOperatorNotAvailable: Unable to apply 1.1.0: cluster operator dns is not available",
				"True ClusterOperatorNotAvailable: Cluster operator dns is not available",
			},
		},
		"two are not available": {
			run: Run{Mode: Updating, Gates: []Gate{gate("dns", away), gate("console", away)}},
			want: []string{
				"True ClusterOperatorsNotAvailable: Unable to apply 1.1.0: cluster operators console, dns are not available",
				"True ClusterOperatorsNotAvailable: Cluster operators console, dns are not available",
			},
		},
		"several things are wrong": {
			run: Run{Mode: Updating, Gates: []Gate{gate("dns", away)}, Failures: []Failure{
				{"UpdatePayloadFailed", "x", "could not apply x"}, {"UpdatePayloadFailed", "x", "could not apply x"},
			}},
			want: []string{
				"True MultipleErrors: Unable to apply 1.1.0: multiple errors are preventing progress:\n* Cluster operator dns is not available\n* could not apply x",
				"True MultipleErrors: Multiple errors are preventing progress:\n* Cluster operator dns is not available\n* could not apply x",
			},
		},
		"the desired update is invalid": {
			run:  Run{Mode: Updating, Done: 1, Total: 2, Invalid: true},
			want: []string{"True InvalidClusterVersion: Reconciling 1.1.0: the cluster version is invalid", "False : "},
		},
		"complete": {
			run:  Run{Mode: Updating, Done: 2, Total: 2, Completed: true},
			want: []string{"False : Cluster version is 1.1.0", "False : "},
		},
		"kept as it is": {
			run:  Run{Mode: Reconciling, Done: 1, Total: 2},
			want: []string{"False : Cluster version is 1.1.0", "False : "},
		},
		"kept as it is, the desired update is invalid": {
			run:  Run{Mode: Reconciling, Done: 1, Total: 2, Invalid: true},
			want: []string{"False InvalidClusterVersion: Stopped at 1.1.0: the cluster version is invalid", "False : "},
		},
		"cannot be kept as it is": {
			run: Run{Mode: Reconciling, Done: 1, Total: 2, Gates: []Gate{gate("dns", away)}},
			want: []string{
				"False ClusterOperatorNotAvailable: Error while reconciling 1.1.0: cluster operator dns is not available",
				"True ClusterOperatorNotAvailable: Cluster operator dns is not available",
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tt.run.Version = "1.1.0"
			got := Conditions(tt.run, nil, noon().Add(tt.after))
			var short []string
			for _, c := range got[1:] {
				short = append(short, fmt.Sprintf("%s %s: %s", c.GetStatus(), c.GetReason(), c.GetMessage()))
			}
			if diff := cmp.Diff(tt.want, short); diff != "" {
				t.Errorf("Progressing, Failing (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAvailableIsKept(t *testing.T) {
	said := Conditions(Run{Version: "1.0.0", Mode: Initializing}, nil, noon())
	if c := Find(said, Available); c.GetStatus() != False {
		t.Errorf("before anything was complete: %v", c)
	}
	said = Conditions(Run{Version: "1.0.0", Mode: Initializing, Completed: true}, said, noon())
	if c := Find(said, Available); c.GetStatus() != True || c.GetMessage() != "Done applying 1.0.0" {
		t.Errorf("complete: %v", c)
	}
	said = Conditions(Run{Version: "1.1.0", Mode: Updating, Failures: []Failure{{"R", "x", "m"}}}, said, noon())
	if c := Find(said, Available); c.GetStatus() != True || c.GetMessage() != "Done applying 1.0.0" {
		t.Errorf("while the next one fails: %v", c)
	}
}

func TestStampKeepsTheTimeOfAStatusThatStays(t *testing.T) {
	first := Stamp(condition(Progressing, True, "A", ""), nil, noon())
	second := Stamp(condition(Progressing, True, "B", ""), first, noon().Add(time.Hour))
	third := Stamp(condition(Progressing, False, "B", ""), second, noon().Add(time.Hour))
	for i, c := range []*metav1.Condition{first, second, third} {
		want := noon().Add(time.Duration(i/2) * time.Hour)
		if got := c.GetLastTransitionTime().AsTime(); !got.Equal(want) {
			t.Errorf("condition %d changed at %v, want %v", i, got, want)
		}
	}
}
