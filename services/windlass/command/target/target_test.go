package target

import (
	"strings"
	"testing"

	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

func TestArgumentsNameGroupsOfObjects(t *testing.T) {
	for _, tc := range []struct {
		name, args string
		want       string // "plural: names" by semicolons, or the error's beginning
	}{
		{"a type alone", "machines", "machines: "},
		{"several types", "machine,no", "machines: ; nodes: "},
		{"a type with its group", "machines.machine.openshift.io a", "machines: a"},
		{"a type with version and group", "machines.v1beta1.machine.openshift.io a b", "machines: a b"},
		{"pairs are put together by type", "machine/a node/x machines/b", "machines: a b; nodes: x"},
		{"a kind's own spelling", "MachineSet a", "machinesets: a"},
		{"a short name", "cpms", "controlplanemachinesets: "},
		{"another group is another type", "machines.example.com", "the server doesn't have"},
		{"a pair without a name", "machine/", "arguments in resource/name form"},
		{"a pair with too much", "machine/a/b", "arguments in resource/name form"},
		{"a pair among names", "machine a node/b", "there is no need"},
		{"a name among pairs", "machine/a b", "there is no need"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			groups, err := Parse(t.Context(), &session.Env{Target: client.Target{Cluster: "none"}}, strings.Fields(tc.args))
			var parts []string
			for _, g := range groups {
				parts = append(parts, g.Kind.GetPlural()+": "+strings.Join(g.Names, " "))
			}
			got := strings.Join(parts, "; ")
			if err != nil {
				got = err.Error()
			}
			if err == nil && got != tc.want || err != nil && !strings.HasPrefix(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
