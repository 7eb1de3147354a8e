package identity

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/nodeid"
)

func TestWhoSpeaksForANode(t *testing.T) {
	agent := Caller{User: NodeUser("w"), UID: "u-1", Groups: []string{GroupNodes, GroupAuthenticated}}
	of := func(uid string) *metav1.ObjectMeta {
		return &metav1.ObjectMeta{Name: "w", Annotations: map[string]string{nodeid.MachineUID: uid}}
	}
	for name, tt := range map[string]struct {
		caller Caller
		node   *metav1.ObjectMeta
		want   codes.Code
	}{
		"the node's agent": {agent, of("u-1"), codes.OK},
		"the node's agent before it registered the node": {agent, nil, codes.Unavailable},
		"the agent of an earlier machine":                {agent, of("u-2"), codes.PermissionDenied},
		"another node's agent": {
			Caller{User: NodeUser("v"), UID: "u-1", Groups: agent.Groups},
			of("u-1"), codes.PermissionDenied,
		},
		"another node's agent, of no node": {
			Caller{User: NodeUser("v"), UID: "u-1", Groups: agent.Groups},
			nil,
			codes.PermissionDenied,
		},
		"a user": {Caller{User: "w"}, nil, codes.PermissionDenied},
	} {
		if err := AgentOf(WithCaller(t.Context(), tt.caller), "w", tt.node); status.Code(err) != tt.want {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
}
