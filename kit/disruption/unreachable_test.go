package disruption

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func TestWhatADeletionWaitsForOnANode(t *testing.T) {
	second := int32(1)
	for name, tt := range map[string]struct {
		ready    string
		instance Instance
		want     Waits
	}{
		"a ready node's pods and volumes are waited for": {"True", InstanceExists, Waits{-1, nil, true}},
		"a node that is not ready still terminates pods": {"False", InstanceExists, Waits{-1, nil, true}},
		"a node without conditions is not unreachable":   {"", InstanceUnknown, Waits{-1, nil, true}},
		"an unreachable node's pods get a second, and its volumes are waited for": {
			"Unknown", InstanceExists, Waits{time.Second, &second, true},
		},
		"volumes are waited for while the provider does not answer": {
			"Unknown", InstanceUnknown, Waits{time.Second, &second, true},
		},
		"nor are volumes of a stopped instance waited for": {"Unknown", InstanceStopped, Waits{time.Second, &second, false}},
		"a stopped instance uses no volume, also before its node is unreachable": {
			"True", InstanceStopped, Waits{-1, nil, false},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, WaitsOf(tt.ready, tt.instance)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestUntilWhenATerminatingPodIsWaitedFor(t *testing.T) {
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	at, ok := WaitsOf("Unknown", InstanceUnknown).Until(timestamppb.New(noon))
	if !ok || !at.Equal(noon.Add(time.Second)) {
		t.Errorf("unreachable: until %v, %v; want a second after its deletion was requested", at, ok)
	}
	if at, ok := WaitsOf("Unknown", InstanceUnknown).Until(nil); ok {
		t.Errorf("not being deleted: until %v, want no limit", at)
	}
	if at, ok := WaitsOf("True", InstanceExists).Until(timestamppb.New(noon)); ok {
		t.Errorf("reachable: until %v, want no limit", at)
	}
}
