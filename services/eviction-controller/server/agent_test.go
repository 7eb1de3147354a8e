package server

import (
	"context"
	"log/slog"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/nodeid"
	"github.com/windlass-dev/windlass/kit/rpcerr"

	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// ear accepts every heartbeat.
type ear struct{}

func (ear) Beat(*nodev1.HeartbeatRequest) bool { return true }

// quorum gives the permit while every other voter is up.
type quorum struct {
	asked int
	risk  bool
}

func (q *quorum) Acquire(context.Context, *metav1.ObjectReference, string) (bool, error) {
	q.asked++
	if q.risk {
		return false, rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_QUORUM_AT_RISK, "machine a",
			"member b does not answer")
	}
	return true, nil
}

func (q *quorum) Release(context.Context, *metav1.ObjectReference) error { return nil }

func TestAControlPlaneNodeIsToldToRebootOnlyWhileEveryOtherVoterIsUp(t *testing.T) {
	tables, own := newTables(t), t.Context()
	// What the machine is decides, and not only a label that its spec may not have given to the node.
	for name, role := range map[string]string{"a": "master", "w": "worker"} {
		node := &nodev1.Node{
			Metadata: &metav1.ObjectMeta{Name: name, Annotations: map[string]string{
				nodeid.MachineUID:  "uid-" + name,
				nodeid.MachineRole: role,
			}},
			Status: &nodev1.NodeStatus{NodeInfo: &nodev1.NodeSystemInfo{BootId: "boot-1"}},
		}
		plan.SetReboot(node, "boot-1")
		if _, err := tables.Nodes.Create(own, node); err != nil {
			t.Fatal(err)
		}
	}
	guardian := &quorum{risk: true}
	s := NewAgent(tables, ear{}, guardian, nil, slog.New(slog.DiscardHandler))
	beat := func(name string) string {
		t.Helper()
		ctx := identity.WithCaller(t.Context(), identity.Caller{
			User: "system:node:" + name, UID: "uid-" + name,
			Groups: []string{identity.GroupNodes},
		})
		r, err := s.beat(ctx, &nodev1.HeartbeatRequest{Name: name, BootId: "boot-1"})
		if err != nil {
			t.Fatal(err)
		}
		return r.GetCommand()
	}
	if got := beat("a"); got != "" || guardian.asked != 1 {
		t.Errorf("while another voter is down the agent receives %q, after %d questions", got, guardian.asked)
	}
	if got := beat("w"); got != "Reboot" || guardian.asked != 1 {
		t.Errorf("a worker receives %q; the guardian was asked %d times, want once", got, guardian.asked)
	}
	guardian.risk = false
	if got := beat("a"); got != "Reboot" || guardian.asked != 2 {
		t.Errorf("when it is up again the agent receives %q, after %d questions", got, guardian.asked)
	}
}
