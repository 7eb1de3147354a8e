package plan

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// Flags of a master's programs that are in force.
const (
	notReadySecondsFlag    = "default-not-ready-toleration-seconds"   // of the API server
	unreachableSecondsFlag = "default-unreachable-toleration-seconds" // of the API server
	gatesFlag              = "feature-gates"                          // of all
)

// gates are the feature gates of Kubernetes that have one value here, which a configuration may state.
var gates = map[string]bool{"TaintBasedEvictions": true, "TaintNodesByCondition": true}

// argument is one value of a flag.
type argument struct {
	program, flag string
	at            int
	value         *structpb.Value
}

func (a argument) String() string { return fmt.Sprintf("%s['%s'][%d]", a.program, a.flag, a.at) }

// arguments returns all values of all flags, in the order of their paths. A flag without a value has an empty one.
func arguments(s *schedulingv1.KubernetesMasterSettings) (out []argument) {
	for _, one := range []struct {
		program string
		flags   map[string]*structpb.ListValue
	}{
		{"controllerArguments", s.GetControllerArguments()},
		{"apiServerArguments", s.GetApiServerArguments()},
		{"schedulerArguments", s.GetSchedulerArguments()},
	} {
		for _, flag := range slices.Sorted(maps.Keys(one.flags)) {
			values := one.flags[flag].GetValues()
			if len(values) == 0 && flag != gatesFlag {
				out = append(out, argument{program: one.program, flag: flag})
			}
			for i, v := range values {
				out = append(out, argument{one.program, flag, i, v})
			}
		}
	}
	return out
}

func (a argument) seconds() bool {
	return a.program == "apiServerArguments" && (a.flag == notReadySecondsFlag || a.flag == unreachableSecondsFlag)
}

// CheckMaster returns the wrong arguments of a master's configuration among those that are in force, below path.
func CheckMaster(path string, s *schedulingv1.KubernetesMasterSettings) (fields []object.Fault) {
	bad := func(a argument, description string) {
		fields = append(fields, object.Fault{Path: path + "." + a.String(), Description: description})
	}
	for _, a := range arguments(s) {
		switch {
		case a.seconds() && a.at > 0:
			bad(a, "the flag has one value")
		case a.seconds():
			if n, err := strconv.ParseInt(a.value.GetStringValue(), 10, 32); err != nil || n < 0 {
				bad(a, `must be a number of seconds such as "300"`)
			}
		case a.flag == gatesFlag:
			for gate := range strings.SplitSeq(a.value.GetStringValue(), ",") {
				name, value, _ := strings.Cut(gate, "=")
				if _, err := strconv.ParseBool(value); err != nil || name == "" {
					bad(a, `must be gates such as "TaintBasedEvictions=true"`)
				}
			}
		}
	}
	return fields
}

// MasterNotInForce names what of a master's configuration is stored and has no effect, with the files of plugins that
// are in force. Of feature gates it names each that does not have its value here.
func MasterNotInForce(s *schedulingv1.KubernetesMasterSettings, files []*schedulingv1.AdmissionPluginFile) []string {
	out := AdmissionNotInForce(s.GetAdmissionConfig(), files)
	for _, a := range arguments(s) {
		switch {
		case a.seconds():
		case a.flag == gatesFlag:
			for gate := range strings.SplitSeq(a.value.GetStringValue(), ",") {
				name, text, _ := strings.Cut(gate, "=")
				value, _ := strconv.ParseBool(text)
				if here, known := gates[name]; !known || here != value {
					out = append(out, fmt.Sprintf("%s['%s'] %s", a.program, a.flag, gate))
				}
			}
		case a.at == 0:
			out = append(out, fmt.Sprintf("%s['%s']", a.program, a.flag))
		}
	}
	if s.GetSchedulerConfigFile() != "" {
		out = append(out, "schedulerConfigFile")
	}
	return out
}

// tolerationSeconds returns how long a pod that says nothing of it stays on a node with a taint of that flag.
func tolerationSeconds(m *schedulingv1.KubernetesMasterConfig, flag string) int32 {
	values := m.GetKubernetesMasterConfig().GetApiServerArguments()[flag].GetValues()
	if len(values) == 0 {
		return defaultTolerationSeconds
	}
	n, err := strconv.ParseInt(values[0].GetStringValue(), 10, 32)
	if err != nil { // CheckMaster refused it; an object of an earlier version may have it
		return defaultTolerationSeconds
	}
	return int32(n)
}
