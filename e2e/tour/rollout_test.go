package main

import (
	"strings"
	"testing"
	"time"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"google.golang.org/protobuf/proto"
)

// configuredNode is a node in some state of its configuration.
func configuredNode(name string, revision int, cordoned, ready bool, boot, config, state string) *nodev1.Node {
	m := meta(name, revision)
	m.Annotations = map[string]string{currentConfig: config, configState: state}
	is := "False"
	if ready {
		is = "True"
	}
	return &nodev1.Node{
		Metadata: m, Spec: &nodev1.NodeSpec{Unschedulable: proto.Bool(cordoned)},
		Status: &nodev1.NodeStatus{NodeInfo: &nodev1.NodeSystemInfo{BootId: boot}, Conditions: []*nodev1.NodeCondition{
			{Type: "Ready", Status: is},
		}},
	}
}

// rolling is everything that is seen while a node gets a new configuration, from a revision on.
func rolling(name string, from int) []observation {
	return []observation{
		{node: configuredNode(name, from, true, true, "1", "old", "Working")},
		{drain: &nodev1.Drain{
			Metadata: meta("machine-config-"+name, from+1), Spec: &nodev1.DrainSpec{NodeName: name},
			Status: &nodev1.DrainStatus{Phase: proto.String("Succeeded")},
		}},
		{node: configuredNode(name, from+2, true, false, "1", "old", "Rebooting")},
		{node: configuredNode(name, from+3, true, true, "2", "old", "Working")},
		{node: configuredNode(name, from+4, true, true, "2", "new", "Done")},
		{node: configuredNode(name, from+5, false, true, "2", "new", "Done")},
	}
}

func rolloutOf(list []observation) *rollout {
	r := newRollout([]*nodev1.Node{
		configuredNode("a", 1, false, true, "1", "old", "Done"),
		configuredNode("b", 1, false, true, "1", "old", "Done"),
	})
	for i, o := range list {
		o.at = time.Unix(int64(i), 0)
		r.add(o)
	}
	return r
}

func TestARolloutIsToldInItsOrder(t *testing.T) {
	list := append(rolling("a", 10), rolling("b", 20)...)
	r := rolloutOf(list[:len(list)-1])
	if r.over() {
		t.Error("over before the last node is uncordoned")
	}
	r = rolloutOf(list)
	if got := wrong(r.facts()); len(got) > 0 || !r.over() {
		t.Errorf("wrong: %q, over: %v", got, r.over())
	}
	if s := r.span(); s.since != time.Unix(0, 0) || s.until != time.Unix(11, 0) {
		t.Errorf("span = %v, want 0 s to 11 s", s)
	}
}

func TestARolloutFindsWhatIsNotAsTold(t *testing.T) {
	a, b := rolling("a", 10), rolling("b", 20)
	for name, tt := range map[string]struct {
		list  []observation
		wrong string
	}{
		"two nodes are down at once": {
			append(append(append([]observation{}, a[:5]...), b...), a[5]),
			"never more than one node down",
		},
		"a node is restarted before its drain": {
			append(append(append([]observation{}, a[0], a[2], a[3]), observation{drain: rolling("a", 15)[1].drain}),
				append(a[4:], b...)...), "a drained before it is restarted",
		},
		"a node is configured but not emptied": {
			append(append(append([]observation{}, a[0]), a[2:]...), b...),
			"a through all stages",
		},
		"a node begins before the other is up": {
			append(append([]observation{}, a...), rolling("b", 14)...),
			"b only after a",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := strings.Join(wrong(rolloutOf(tt.list).facts()), "; "); !strings.Contains(got, tt.wrong) {
				t.Errorf("wrong = %q, want %q", got, tt.wrong)
			}
		})
	}
}

func TestARolloutNotesWhoMayDisruptTheQuorum(t *testing.T) {
	holds := func(name string, healthy int32) observation {
		q := &etcdv1.Quorum{HealthyVoters: healthy, Majority: 2}
		if name != "" {
			q.Permit = &etcdv1.DisruptionPermit{Machine: &metav1.ObjectReference{Name: name}}
		}
		return observation{quorum: q}
	}
	r := rolloutOf([]observation{holds("", 3), holds("a", 3), holds("a", 2), holds("", 3), holds("b", 3)})
	if got := strings.Join(r.holders, " "); got != "a b" || !r.safe().holds {
		t.Errorf("holders = %q, unsafe = %q; want a and b, none", got, r.unsafe)
	}
	one := holds("a", 1)
	one.quorum.Members = []*etcdv1.Member{
		{Healthy: true},
		{Message: "connection refused"},
		{Message: "connection refused"},
	}
	if rolloutOf([]observation{one}).safe().holds {
		t.Error("one voter that can be reached where a majority is two counts as safe")
	}
	for _, said := range []string{"rpc error: code = DeadlineExceeded", "leader changed"} {
		one.quorum.Members[2].Message = said
		if f := rolloutOf([]observation{one}).safe(); !f.holds {
			t.Errorf("one voter is down and one waits for a leader: %s", f.seen)
		}
	}
}
