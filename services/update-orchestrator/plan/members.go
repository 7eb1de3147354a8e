package plan

import (
	"cmp"
	"fmt"
	"strings"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
)

// membersNotUpdated is the reason of the gate of the members of etcd.
const membersNotUpdated = "MembersNotUpdated"

// MembersManifest is the step of an update that waits for the members of etcd, which the guardian restarts. It is no
// manifest of a release.
func MembersManifest() *Manifest {
	return &Manifest{
		ID: "#members", Members: true,
		Object: &metav1.ObjectReference{ApiVersion: "windlass.dev/v1", Kind: "Quorum", Name: "etcd"},
	}
}

// Members says how far the members of etcd have come: each must run the version of etcd that the executable of its host
// has. brings means that the release brings that executable, so that each agent reports the version. Without it, what
// no agent reports is not waited for.
func Members(p *etcdv1.PlanQuorumResponse, brings bool) Rollout {
	q := p.GetQuorum()
	var lack []string
	for _, m := range q.GetMembers() {
		name := cmp.Or(m.GetName(), m.GetId())
		switch {
		case m.GetBootstrap():
		case m.GetNextVersion() == "" && brings:
			lack = append(lack, name+": the agent of its host has not reported which version of etcd it has to run")
		case m.GetNextVersion() == "":
		case !m.GetHealthy():
			lack = append(lack, fmt.Sprintf("%s is not healthy: %s", name, m.GetMessage()))
		case m.GetVersion() != m.GetNextVersion():
			lack = append(lack, fmt.Sprintf("%s runs etcd %s and has to run %s", name, m.GetVersion(), m.GetNextVersion()))
		}
	}
	if len(lack) == 0 && len(q.GetMembers()) > 0 {
		return Rollout{Ready: true}
	}
	r := Rollout{
		Reason: membersNotUpdated, Fact: "each member runs the version of etcd that the executable of its host has",
		Observed: strings.Join(lack, "; "),
	}
	switch {
	case len(q.GetMembers()) == 0:
		r.Observed = "no members are known"
	case q.GetWaitsFor() != "":
		r.Observed += "; the quorum waits for " + q.GetWaitsFor()
	}
	for _, h := range p.GetHeldBack() {
		if h.GetAction() == "RestartMember" {
			r.Observed += fmt.Sprintf("; %s is not restarted: %s; to resolve it: %s", h.GetObject().GetName(), h.GetReason(),
				h.GetUnblock())
		}
	}
	return r
}
