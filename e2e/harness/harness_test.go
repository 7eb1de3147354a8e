package harness

import (
	"strings"
	"testing"
)

func TestAMissingExecutableIsToldInClearWords(t *testing.T) {
	t.Setenv(envBinary, "/nowhere/windlass")
	if _, err := Binary(); err == nil || !strings.Contains(err.Error(), envBinary) {
		t.Errorf("%v", err)
	}
}

func TestProcessesAreNamedByWhatTheyAre(t *testing.T) {
	s := &site{dir: "/clusters/a"}
	for marker, want := range map[string]string{
		"run/gateway":                                          "gateway",
		"services/provider-local/run/m-0":                      Agent("m-0"),
		"services/etcd-guardian/run/etcd-x":                    Member("bootstrap"),
		"services/provider-local/machines/m-0/run/etcd-member": Member("m-0"),
		"services/provider-local/machines/m-0/run/pod.u-1.web": "pod/m-0/u-1.web",
	} {
		if got := s.named(marker, 1); got.Name != want {
			t.Errorf("%s is named %q, want %q", marker, got.Name, want)
		}
	}
}

func TestPausesBeginWithWhoeverStartsOthers(t *testing.T) {
	var names []string
	for _, p := range byRank([]Process{{Name: Member("a")}, {Name: Agent("a")}, {Name: "gateway"}, {Name: Supervisor}}) {
		names = append(names, p.Name)
	}
	if got := strings.Join(names, " "); got != "supervisor gateway node-agent/a etcd-member/a" {
		t.Error(got)
	}
}

func TestTheEndOfALogSaysHowMuchIsBefore(t *testing.T) {
	if got := lastLines("a\nb\nc\n", 2); got != "… 1 lines before\nb\nc" {
		t.Errorf("%q", got)
	}
}
