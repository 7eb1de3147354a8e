package plan

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"
)

func flags(t *testing.T, values map[string][]any) map[string]*structpb.ListValue {
	t.Helper()
	out := map[string]*structpb.ListValue{}
	for flag, v := range values {
		list, err := structpb.NewList(v)
		if err != nil {
			t.Fatal(err)
		}
		out[flag] = list
	}
	return out
}

func TestWhichArgumentsOfAMasterAreInForce(t *testing.T) {
	for name, tc := range map[string]struct {
		controller, api map[string][]any
		missing, faults []string
	}{
		"the gate of the document": {controller: map[string][]any{gatesFlag: {"TaintBasedEvictions=true"}}},
		"gates with other values are named": {
			controller: map[string][]any{gatesFlag: {"TaintBasedEvictions=false,TaintNodesByCondition=true", "Magic=true"}},
			missing: []string{
				"controllerArguments['feature-gates'] TaintBasedEvictions=false", "controllerArguments['feature-gates'] Magic=true",
			},
		},
		"a gate that is none": {
			controller: map[string][]any{gatesFlag: {"TaintBasedEvictions=true", "Taint"}},
			missing:    []string{"controllerArguments['feature-gates'] Taint"},
			faults:     []string{"m.controllerArguments['feature-gates'][1]"},
		},
		"seconds": {api: map[string][]any{notReadySecondsFlag: {"60"}, unreachableSecondsFlag: {"0"}}},
		"seconds that are none": {
			api: map[string][]any{notReadySecondsFlag: {"-1"}, unreachableSecondsFlag: {"60", "70"}},
			faults: []string{
				"m.apiServerArguments['default-not-ready-toleration-seconds'][0]",
				"m.apiServerArguments['default-unreachable-toleration-seconds'][1]",
			},
		},
		"a number in place of a text": {
			api:    map[string][]any{notReadySecondsFlag: {60.0}},
			faults: []string{"m.apiServerArguments['default-not-ready-toleration-seconds'][0]"},
		},
		"flags of the API server at the controllers": {
			controller: map[string][]any{notReadySecondsFlag: {"60"}, "node-monitor-period": {"5s", "6s"}},
			missing: []string{
				"controllerArguments['default-not-ready-toleration-seconds']", "controllerArguments['node-monitor-period']",
			},
		},
	} {
		s := &schedulingv1.KubernetesMasterSettings{
			ControllerArguments: flags(t, tc.controller), ApiServerArguments: flags(t, tc.api),
		}
		var faults []string
		for _, f := range CheckMaster("m", s) {
			faults = append(faults, f.Path)
		}
		if missing := MasterNotInForce(s, nil); !slices.Equal(missing, tc.missing) || !slices.Equal(faults, tc.faults) {
			t.Errorf("%s: not in force %q, want %q; wrong %q, want %q", name, missing, tc.missing, faults, tc.faults)
		}
	}
}

func TestTheSecondsOfDefaultTolerationsAreConfigurable(t *testing.T) {
	master := &schedulingv1.KubernetesMasterConfig{KubernetesMasterConfig: &schedulingv1.KubernetesMasterSettings{
		ApiServerArguments: flags(t, map[string][]any{notReadySecondsFlag: {"60"}}),
	}}
	own := newPod("own")
	own.Spec.Tolerations = []*schedulingv1.Toleration{{Key: placement.NotReadyTaint, Operator: "Exists"}}
	for name, tc := range map[string]struct {
		pod    *schedulingv1.Pod
		master *schedulingv1.KubernetesMasterConfig
		want   map[string]int32
	}{
		"configured": {newPod("p"), master, map[string]int32{
			placement.NotReadyTaint:    60,
			placement.UnreachableTaint: 300,
		}},
		"not configured": {newPod("p"), nil, map[string]int32{
			placement.NotReadyTaint:    300,
			placement.UnreachableTaint: 300,
		}},
		"the pod says otherwise": {
			own, master, map[string]int32{placement.NotReadyTaint: 0, placement.UnreachableTaint: 300},
		},
	} {
		got := map[string]int32{}
		for _, x := range Admit(AdmissionView{Pod: tc.pod, Master: tc.master}).Pod.GetSpec().GetTolerations() {
			got[x.GetKey()] = x.GetTolerationSeconds()
		}
		for key, want := range tc.want {
			if got[key] != want {
				t.Errorf("%s: %s for %d s, want %d", name, key, got[key], want)
			}
		}
	}
}
