package plan_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/controlplane"
	"github.com/windlass-dev/windlass/services/etcd-guardian/plan"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

type change func(v *plan.View)

// stableView is three healthy voters on three machines, as it is most of the time; m0 leads.
func stableView(changes ...change) plan.View {
	v := plan.View{
		Fresh: true, MachinesKnown: true, NodesKnown: true, Desired: 3, BootstrapRetired: true,
		EndpointsAge: time.Hour,
	}
	for _, name := range []string{"m0", "m1", "m2"} {
		v.Members = append(v.Members, voter(name))
		v.Machines = append(v.Machines, machine(name))
		v.Offers = append(v.Offers, offer(name))
		v.Endpoints = append(v.Endpoints, "https://"+name+":2379")
	}
	v.Members[0].Leader = true
	for _, c := range changes {
		c(&v)
	}
	return v
}

func voter(name string) plan.Member {
	id := uint64(100)
	for _, c := range name {
		id = id*31 + uint64(c)
	}
	return plan.Member{
		ID: id, Name: name, Healthy: true, Runs: true, Applied: 1000,
		PeerURLs: []string{"https://" + name + ":2380"}, ClientURLs: []string{"https://" + name + ":2379"},
	}
}

func machine(name string) plan.Machine {
	return plan.Machine{
		Index: controlplane.Index(name), Namespace: "ns", Name: name, UID: "uid-" + name, Node: name,
		Phase: "Running", Addresses: []string{name}, Hooked: true,
	}
}

func offer(name string) plan.Offer {
	return plan.Offer{Node: name, PeerURL: "https://" + name + ":2380", ClientURL: "https://" + name + ":2379"}
}

func member(name string, f func(m *plan.Member)) change {
	return func(v *plan.View) {
		for i := range v.Members {
			if v.Members[i].Name == name {
				f(&v.Members[i])
			}
		}
	}
}

func deleted(name string) change {
	return func(v *plan.View) {
		for i := range v.Machines {
			if v.Machines[i].Name == name {
				v.Machines[i].Deleting, v.Machines[i].DeletionTime = true, now.Add(-time.Minute)
			}
		}
	}
}

func silentFor(name string, d time.Duration) change {
	return member(name, func(m *plan.Member) {
		m.Healthy, m.Runs, m.Message, m.Silent = false, false, "connection refused",
			d
	})
}

func withMachine(name string) change {
	return func(v *plan.View) {
		v.Machines, v.Offers = append(v.Machines, machine(name)), append(v.Offers, offer(name))
	}
}

func withVoter(name string) change {
	return func(v *plan.View) {
		withMachine(name)(v)
		v.Members = append(v.Members, voter(name))
		v.Endpoints = append(v.Endpoints, "https://"+name+":2379")
	}
}

func withLearner(name string, f func(m *plan.Member)) change {
	return func(v *plan.View) {
		withMachine(name)(v)
		m := voter(name)
		m.Learner = true
		f(&m)
		v.Members = append(v.Members, m)
	}
}

func without(name string) change {
	return func(v *plan.View) {
		var rest []string
		for _, e := range v.Endpoints {
			if e != "https://"+name+":2379" {
				rest = append(rest, e)
			}
		}
		v.Endpoints = rest
	}
}

func permitFor(name string, ours bool) change {
	return func(v *plan.View) {
		v.Permit = &plan.Permit{
			Machine: machine(name).Reference(), Reason: "drain", Holder: "eviction-controller",
			Ours: ours,
		}
	}
}

func and(list []change, more ...change) []change { return slices.Concat(list, more) }

func withoutMachine(name string) change {
	return func(v *plan.View) {
		v.Machines = slices.DeleteFunc(slices.Clone(v.Machines), func(m plan.Machine) bool { return m.Name == name })
	}
}

func leaderless(v *plan.View) {
	v.NoLeader = true
	for i := range v.Members {
		v.Members[i].Leader = false
	}
}

// decision is what the tables compare.
type decision struct {
	Phase, Next, WaitsFor string
	Hooks                 []string
}

func TestTheOneNextChange(t *testing.T) {
	steady := time.Minute
	replacing := []change{deleted("m1"), withVoter("m3")}
	leaving := and(replacing, without("m1"))
	held := and(leaving, permitFor("m1", true))
	cases := []struct {
		name    string
		changes []change
		want    decision
	}{
		{"nothing is done to a quorum in its desired state", nil, decision{Phase: "Stable"}},
		{
			"without a majority nothing is changed",
			[]change{func(v *plan.View) { v.Fresh, v.Trouble = false, "connection refused" }},
			decision{Phase: "Stable", WaitsFor: "etcd: connection refused"},
		},
		{
			"a stopping member is started again when no majority is left",
			and(held, func(v *plan.View) { v.Fresh = false }, member("m1", func(m *plan.Member) { m.Stopping = true })),
			decision{Phase: "Replacing", Next: "StartMember member m1", WaitsFor: "etcd: no member answers"},
		},
		{
			"a machine without the hook gets it",
			[]change{func(v *plan.View) { v.Machines[1].Hooked = false }},
			decision{Phase: "Stable", Hooks: []string{"AddHook machine m1"}},
		},
		{
			"a hook of another owner is repaired",
			[]change{func(v *plan.View) { v.Machines[1].Hooked, v.Machines[1].Misowned = false, true }},
			decision{Phase: "Stable", Hooks: []string{"AddHook machine m1"}},
		},
		{
			"a deleted machine without the hook does not get it",
			[]change{deleted("m1"), func(v *plan.View) { v.Machines[1].Hooked = false }},
			decision{Phase: "Replacing", WaitsFor: "another control-plane machine (2 of 3 voters)"},
		},
		{
			"a healthy voter whose machine is deleted waits for a replacement machine",
			[]change{deleted("m1")},
			decision{Phase: "Replacing", WaitsFor: "another control-plane machine (2 of 3 voters)"},
		},
		{"a replacement machine that is not up yet is waited for", []change{deleted("m1"), func(v *plan.View) {
			m := machine("m3")
			m.Phase = "Provisioned"
			v.Machines = append(v.Machines, m)
		}}, decision{Phase: "Replacing", WaitsFor: "machine m3 to become a node (Provisioned) (2 of 3 voters)"}},
		{
			"the replacement gets a learner",
			[]change{deleted("m1"), withMachine("m3")},
			decision{Phase: "Replacing", Next: "AddLearner machine m3"},
		},
		{
			"an address that is not the machine's gets none",
			[]change{deleted("m1"), withMachine("m3"), func(v *plan.View) { v.Offers[3].PeerURL = "https://m2:2380" }},
			decision{
				Phase:    "Replacing",
				WaitsFor: "the agent of machine m3 to offer an address of its own, not https://m2:2380 (2 of 3 voters)",
			},
		},
		{
			"a surplus machine gets its learner when its node joins",
			[]change{withMachine("m3")},
			decision{Phase: "Stable", Next: "AddLearner machine m3"},
		},
		{
			"its learner does not vote while no voter is to leave",
			[]change{withLearner("m3", func(*plan.Member) {})},
			decision{Phase: "Replacing"},
		},
		{
			"it votes as soon as a voter's machine is deleted",
			[]change{withLearner("m3", func(*plan.Member) {}), deleted("m1")},
			decision{Phase: "Replacing", Next: "Promote learner m3"},
		},
		{
			"it does not hold up anything while it starts",
			[]change{withLearner("m3", func(m *plan.Member) { m.Healthy, m.Runs = false, false }), func(v *plan.View) {
				v.Endpoints = nil
			}},
			decision{Phase: "Replacing", Next: "PublishEndpoints"},
		},
		{
			"a refused add is tried again and no error",
			[]change{deleted("m1"), withMachine("m3"), func(v *plan.View) { v.AddRefused = true }},
			decision{
				Phase: "Replacing", Next: "AddLearner machine m3",
				WaitsFor: "etcd to accept the next member, which it does 5 s after the last one began to vote",
			},
		},
		{
			"no member joins while a voter is silent",
			[]change{silentFor("m2", steady), deleted("m1"), withMachine("m3")},
			decision{Phase: "Degraded", WaitsFor: "member m2 to answer (connection refused)"},
		},
		{
			"a learner is waited for until it answers",
			[]change{deleted("m1"), withLearner("m3", func(m *plan.Member) { m.Healthy, m.ClientURLs = false, nil })},
			decision{Phase: "Replacing", WaitsFor: "learner m3 to start"},
		},
		{
			"a learner 201 entries behind does not vote yet",
			[]change{deleted("m1"), withLearner("m3", func(m *plan.Member) { m.Applied = 799 })},
			decision{Phase: "Replacing", WaitsFor: "learner m3 to catch up (799 of 1000 log entries)"},
		},
		{
			"a learner 200 entries behind votes",
			[]change{deleted("m1"), withLearner("m3", func(m *plan.Member) { m.Applied = 800 })},
			decision{Phase: "Replacing", Next: "Promote learner m3"},
		},
		{
			"a learner does not vote while its machine may go down",
			[]change{deleted("m1"), withLearner("m3", func(*plan.Member) {}), permitFor("m3", false)},
			decision{
				Phase: "Replacing", WaitsFor: "the end of the work on its machine before learner m3 is promoted: " +
					"eviction-controller holds the disruption permit for m3 (drain)",
			},
		},
		{
			"the permit for a learner's machine ends with the work",
			[]change{
				deleted("m1"), withLearner("m3", func(*plan.Member) {}), permitFor("m3", false),
				func(v *plan.View) { v.Permit.Released = true },
			},
			decision{Phase: "Replacing", Next: "FreePermit"},
		},
		{
			"a learner without progress for a minute is removed",
			[]change{withLearner("m3", func(m *plan.Member) { m.Applied, m.Idle = 1, time.Minute })},
			decision{Phase: "Replacing", Next: "RemoveMember learner m3"},
		},
		{
			"the third learner of a machine gets four times as long",
			[]change{
				deleted("m1"), withLearner("m3", func(m *plan.Member) {
					m.Applied, m.Idle, m.Failed = 1, 4*time.Minute-time.Second,
						2
				}),
			},
			decision{Phase: "Replacing", WaitsFor: "learner m3 to catch up (1 of 1000 log entries)"},
		},
		{
			"and is removed then",
			[]change{withLearner("m3", func(m *plan.Member) { m.Applied, m.Idle, m.Failed = 1, 4*time.Minute, 2 })},
			decision{Phase: "Replacing", Next: "RemoveMember learner m3"},
		},
		{"a learner whose agent is gone is removed", []change{withLearner("m3", func(m *plan.Member) {
			m.Healthy, m.Silent, m.Idle = false, 16*time.Second, 20*time.Second
		}), func(v *plan.View) { v.Offers = v.Offers[:3] }}, decision{Phase: "Replacing", Next: "RemoveMember learner m3"}},
		{
			"the learner of a deleted machine is removed at once",
			[]change{withLearner("m3", func(*plan.Member) {}), deleted("m3")},
			decision{Phase: "Replacing", Next: "RemoveMember learner m3"},
		},
		{
			"a machine whose learner failed waits for its turn",
			[]change{deleted("m1"), withMachine("m3"), func(v *plan.View) { v.Offers[3].Wait = time.Second }},
			decision{
				Phase: "Replacing", WaitsFor: "machine m3 to be tried again: its last member did not catch up (2 of 3 voters)",
			},
		},
		{
			"before a voter leaves the list without it is published", replacing,
			decision{Phase: "Replacing", Next: "PublishEndpoints"},
		},
		{
			"clients get time to learn the list", and(leaving, func(v *plan.View) { v.EndpointsAge = 1100 * time.Millisecond }),
			decision{Phase: "Replacing", WaitsFor: "clients to learn the new addresses before member m1 leaves"},
		},
		{"then the permit is taken", leaving, decision{Phase: "Replacing", Next: "AcquirePermit member m1"}},
		{
			"the permit of another holder is waited for", and(leaving, permitFor("m2", false)),
			decision{Phase: "Replacing", WaitsFor: "the disruption permit, which eviction-controller holds for m2 (drain)"},
		},
		{
			"a permit held for the same machine is sufficient", and(leaving, permitFor("m1", false)),
			decision{Phase: "Replacing", Next: "StopMember member m1"},
		},
		{
			"a leader hands over before it leaves",
			[]change{deleted("m0"), withVoter("m3"), without("m0"), permitFor("m0", true)},
			decision{Phase: "Replacing", Next: "MoveLeader member m0"},
		},
		{"the voter that leaves is stopped first", held, decision{Phase: "Replacing", Next: "StopMember member m1"}},
		{
			"without its agent it is removed as it runs",
			and(held, func(v *plan.View) { v.Offers = append(v.Offers[:1:1], v.Offers[2:]...) }),
			decision{Phase: "Replacing", Next: "RemoveMember member m1"},
		},
		{
			"it has a moment to stop",
			and(held, member("m1", func(m *plan.Member) { m.Stopping, m.StoppingFor = true, time.Second })),
			decision{Phase: "Replacing", WaitsFor: "member m1 to stop"},
		},
		{
			"it is removed when it is down",
			and(held, silentFor("m1", 0), member("m1", func(m *plan.Member) { m.Stopping = true })),
			decision{Phase: "Replacing", Next: "RemoveMember member m1"},
		},
		{
			"it is removed when it does not stop",
			and(held, member("m1", func(m *plan.Member) { m.Stopping, m.StoppingFor = true, 2*time.Second })),
			decision{Phase: "Replacing", Next: "RemoveMember member m1"},
		},
		{
			"it stays when another voter falls silent",
			and(held, silentFor("m2", 0), member("m1", func(m *plan.Member) { m.Stopping = true })),
			decision{Phase: "Degraded", Next: "StartMember member m1"},
		},
		{
			"the hook goes when no member is left on the machine",
			[]change{withMachine("m3"), deleted("m3")},
			decision{Phase: "Stable", Hooks: []string{"RemoveHook machine m3"}},
		},
		{
			"the permit ends when its machine has no voter",
			[]change{permitFor("m9", true)},
			decision{Phase: "Stable", Next: "FreePermit"},
		},
		{
			"a permit that was given back ends when the member is healthy",
			[]change{permitFor("m1", false), func(v *plan.View) { v.Permit.Released = true }},
			decision{Phase: "Stable", Next: "FreePermit"},
		},
		{"a permit that was not given back stays", []change{permitFor("m1", false)}, decision{Phase: "Stable"}},
		{
			"a dead voter whose machine is deleted leaves before its replacement is there",
			[]change{deleted("m1"), silentFor("m1", 5*time.Second)},
			decision{Phase: "Degraded", Next: "RemoveMember member m1"},
		},
		{
			"a voter that has just fallen silent is not dead",
			[]change{deleted("m1"), silentFor("m1", time.Second)},
			decision{
				Phase: "Degraded", WaitsFor: "member m1 to answer again, or to be silent for 5s: its machine is being deleted",
			},
		},
		{
			"a silent voter whose machine stays is waited for",
			[]change{silentFor("m1", time.Hour)},
			decision{Phase: "Degraded", WaitsFor: "member m1 to answer (connection refused)"},
		},
		{
			"a dead voter without a machine leaves",
			[]change{silentFor("m1", time.Hour), func(v *plan.View) {
				v.Machines = append(v.Machines[:1:1], v.Machines[2:]...)
			}},
			decision{Phase: "Degraded", Next: "RemoveMember member m1"},
		},
		{
			"a healthy voter without a machine is left to people",
			[]change{func(v *plan.View) { v.Machines = v.Machines[:2] }},
			decision{
				Phase: "Stable",
				WaitsFor: "a user to identify member m2: it votes and has neither a machine nor a node; it is removed 30s after " +
					"its process was stopped",
			},
		},
		{
			"a dead voter without a machine stays while its node exists",
			[]change{
				silentFor("m1", time.Hour), withoutMachine("m1"),
				func(v *plan.View) { v.Nodes = []string{"m0", "m1", "m2"} },
			},
			decision{
				Phase: "Degraded",
				WaitsFor: "member m1 to answer (connection refused); it has no machine, but its node m1 exists: bring it back, " +
					"or delete the node",
			},
		},
		{
			"a dead voter without a machine stays while the nodes are not known",
			[]change{
				silentFor("m1", time.Hour), withoutMachine("m1"), func(v *plan.View) { v.NodesKnown = false },
			},
			decision{
				Phase: "Degraded",
				WaitsFor: "member m1 to answer (connection refused); it has no machine, and is kept until it is known which " +
					"nodes exist",
			},
		},
		{
			"a node that another machine has by now does not keep a dead voter",
			[]change{
				silentFor("m1", time.Hour), member("m1", func(m *plan.Member) { m.MachineUID = "gone" }),
				func(v *plan.View) { v.Nodes = []string{"m0", "m1", "m2"} },
			},
			decision{Phase: "Degraded", Next: "RemoveMember member m1"},
		},
		{
			"more voters than desired are the user's to reduce",
			[]change{withVoter("m3"), withVoter("m4")},
			decision{
				Phase: "Replacing",
				WaitsFor: "a user to delete 2 of the control-plane machines, or to raise the replicas of their set: there are 5 " +
					"voters, and 3 are desired",
			},
		},
		{
			"without a leader nothing is changed",
			[]change{deleted("m1"), withMachine("m3"), leaderless},
			decision{
				Phase: "Replacing", WaitsFor: "the voters to elect a leader: 3 of 3 answer, and none of them leads",
			},
		},
		{
			"an election is said to be one",
			[]change{leaderless, func(v *plan.View) { v.Fresh, v.Trouble = false, "it knows no leader" }},
			decision{
				Phase: "Stable", WaitsFor: "the voters to elect a leader: 3 of 3 run, and none of them knows one",
			},
		},
		{
			"a learner cannot be compared with a leader that does not say how long its log is",
			[]change{
				deleted("m1"), withLearner("m3", func(m *plan.Member) { m.Applied = 0 }),
				member("m0", func(m *plan.Member) { m.Applied = 0 }),
			},
			decision{
				Phase:    "Replacing",
				WaitsFor: "the leader to report how long its log is: learner m3 is promoted when it has caught up with it",
			},
		},
		{
			"no voter leaves during a roll-out",
			and(leaving, func(v *plan.View) { v.RollOut = "machine configuration 7" }),
			decision{
				Phase:    "Replacing",
				WaitsFor: "the roll-out of machine configuration 7 to end: member m1 leaves afterwards",
			},
		},
		{
			"a dead voter whose address went over to another machine has no machine",
			[]change{silentFor("m1", time.Hour), func(v *plan.View) {
				v.Machines[1].Name, v.Machines[1].Node = "m9", "m9"
			}},
			decision{Phase: "Degraded", Next: "RemoveMember member m1"},
		},
		{
			"without a majority the loss is named and nothing is proposed, not even a hook",
			[]change{
				func(v *plan.View) { v.Fresh, v.Machines[0].Hooked = false, false }, withMachine("m3"), deleted("m1"),
				silentFor("m1", time.Hour), silentFor("m2", time.Minute),
				member("m2", func(m *plan.Member) { m.SilentSince = "2026-11-22T10:00:00Z" }),
			},
			decision{
				Phase:    "Degraded",
				WaitsFor: "a majority of the voters: 1 of 3 run, 2 are needed; member m1: connection refused; member m2 (silent since 2026-11-22T10:00:00Z): connection refused",
			},
		},
		{
			"a list that was confirmed before the majority was lost is no reason to act",
			[]change{withMachine("m3"), deleted("m1"), silentFor("m1", time.Hour), silentFor("m2", time.Hour)},
			decision{
				Phase:    "Degraded",
				WaitsFor: "a majority of the voters: 1 of 3 run, 2 are needed; member m1: connection refused; member m2: connection refused",
			},
		},
		{
			"a dead voter is not removed while another's is under a permit, since that may go down too",
			[]change{deleted("m1"), silentFor("m1", time.Hour), permitFor("m2", false)},
			decision{Phase: "Degraded", WaitsFor: "member m1 to answer (connection refused)"},
		},
		{
			"with five voters it is, since enough stay up",
			[]change{
				deleted("m1"), silentFor("m1", time.Hour), permitFor("m2", false), withVoter("m3"), withVoter("m4"),
				func(v *plan.View) { v.Desired = 5 },
			},
			decision{Phase: "Degraded", Next: "RemoveMember member m1"},
		},
		{
			"a learner is not promoted where the vote under a permit would be needed",
			[]change{
				func(v *plan.View) { v.Members, v.Machines, v.Offers = v.Members[:2], v.Machines[:2], v.Offers[:2] },
				permitFor("m1", false),
				withLearner("m3", func(*plan.Member) {}),
			},
			decision{Phase: "Growing", Next: "Promote learner m3"},
		},
		{
			"the voter that leaves first is that of the index which hosts most voters, whichever machine was deleted first",
			[]change{
				func(v *plan.View) { v.Members, v.Machines, v.Offers, v.Endpoints = nil, nil, nil, nil },
				withVoter("cp-0"), withVoter("cp-1"), withVoter("cp-2"), withVoter("cp-new-0"),
				member("cp-2", func(m *plan.Member) { m.Leader = true }), deleted("cp-0"), deleted("cp-1"), without("cp-0"),
				func(v *plan.View) { v.Machines[1].DeletionTime = now.Add(-time.Hour) },
			},
			decision{Phase: "Replacing", Next: "AcquirePermit member cp-0"},
		},
		{
			"the index that loses its voter gets the next member",
			[]change{
				func(v *plan.View) { v.Members, v.Machines, v.Offers, v.Endpoints = nil, nil, nil, nil },
				withMachine("cp-a-0"), withVoter("cp-0"), withVoter("cp-1"), withVoter("cp-2"), withMachine("cp-z-1"),
				member("cp-2", func(m *plan.Member) { m.Leader = true }), deleted("cp-1"),
			},
			decision{Phase: "Replacing", Next: "AddLearner machine cp-z-1"},
		},
		{
			"of two deleted machines the first goes first",
			[]change{
				deleted("m1"), deleted("m2"), func(v *plan.View) { v.Machines[2].DeletionTime = now.Add(-time.Hour) },
				withVoter("m3"), without("m2"),
			},
			decision{Phase: "Replacing", Next: "AcquirePermit member m2"},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, decide(stableView(c.changes...))); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
		})
	}
}

func decide(v plan.View) decision {
	p := plan.Next(v)
	got := decision{Phase: p.Phase, WaitsFor: p.WaitsFor}
	if p.Next != nil {
		got.Next = p.Next.String()
	}
	for _, h := range p.Hooks {
		got.Hooks = append(got.Hooks, h.String())
	}
	return got
}

func TestASuccessorOfTheSameNameIsNotTheMembersMachine(t *testing.T) {
	bound := func(v *plan.View) { // every member is on the machine of its name
		for i := range v.Members {
			v.Members[i].MachineUID = v.Machines[i].UID
			v.Offers[i].MachineUID = v.Machines[i].UID
		}
	}
	succeeded := func(v *plan.View) { // m1 has the name and the address of the machine that was there before
		v.Machines[1].UID, v.Offers[1].MachineUID = "uid-of-the-successor", "uid-of-the-successor"
	}
	v := stableView(bound, succeeded, silentFor("m1", time.Hour))
	if machine, ok := v.MachineOfMember(v.Members[1]); ok {
		t.Errorf("the member of the former machine is on %s", machine.UID)
	}
	if member, ok := v.MemberOfMachine(v.Machines[1]); ok {
		t.Errorf("the successor has the member %x", member.ID)
	}
	var done []string
	for range 5 { // the dead member leaves, and the successor gets one of its own
		next := plan.Next(v).Next
		if next == nil {
			break
		}
		done = append(done, string(next.Kind))
		switch next.Kind {
		case plan.RemoveMember:
			v.Members = slices.DeleteFunc(v.Members, func(m plan.Member) bool { return m.ID == next.Member.ID })
		case plan.PublishEndpoints:
			v.Endpoints = next.Endpoints
		case plan.AcquirePermit:
			v.Permit = &plan.Permit{Machine: next.Subject(), Reason: plan.ReplacementReason, Ours: true}
		case plan.FreePermit:
			v.Permit = nil
		}
		if next.Kind == plan.AddLearner {
			if next.Machine.UID != "uid-of-the-successor" {
				t.Errorf("a learner for %s", next.Machine.UID)
			}
			break
		}
	}
	if !slices.Contains(done, string(plan.RemoveMember)) || done[len(done)-1] != string(plan.AddLearner) {
		t.Errorf("actions %v, want the removal of the former member and then a new learner", done)
	}
	twin := machine("m1")
	twin.Namespace, twin.UID, twin.Addresses = "other", "uid-of-the-twin", []string{"elsewhere"}
	v = stableView(bound, func(v *plan.View) { v.Machines = append([]plan.Machine{twin}, v.Machines...) })
	if machine, _ := v.MachineOfMember(v.Members[1]); machine.UID != "uid-m1" {
		t.Errorf("the member is on %s", machine.UID)
	}
}

func TestThePivot(t *testing.T) {
	alone := func(changes ...change) plan.View {
		v := stableView()
		b := voter(plan.BootstrapName)
		b.Leader = true
		v.Members, v.BootstrapRetired, v.Endpoints = []plan.Member{b}, false, b.ClientURLs
		for _, c := range changes {
			c(&v)
		}
		return v
	}
	grown := func(names ...string) change {
		return func(v *plan.View) {
			for _, n := range names {
				v.Members = append(v.Members, voter(n))
			}
			v.Endpoints = nil
			for _, m := range v.Members {
				if m.Name != plan.BootstrapName || len(names) < 3 {
					v.Endpoints = append(v.Endpoints, m.ClientURLs...)
				}
			}
		}
	}
	ours := func(v *plan.View) {
		v.Permit = &plan.Permit{Machine: &metav1.ObjectReference{Kind: "Member", Name: plan.BootstrapName}, Ours: true}
	}
	led := func(v *plan.View) { v.Members[0].Leader, v.Members[1].Leader = false, true }
	cases := []struct {
		name string
		view plan.View
		want decision
	}{
		{
			"it waits for machine-api", alone(func(v *plan.View) { v.MachinesKnown, v.Machines = false, nil }),
			decision{Phase: "Bootstrapping", WaitsFor: "machine-api to say which control-plane machines there are"},
		},
		{"the first machine gets a learner", alone(), decision{Phase: "Bootstrapping", Next: "AddLearner machine m0"}},
		{"then the second", alone(grown("m0")), decision{Phase: "Growing", Next: "AddLearner machine m1"}},
		{"with two it stays", alone(grown("m0", "m1")), decision{Phase: "Growing", Next: "AddLearner machine m2"}},
		{
			"with three it is to leave", alone(grown("m0", "m1", "m2")),
			decision{Phase: "Pivoting", Next: "AcquirePermit member bootstrap"},
		},
		{
			"it hands over", alone(grown("m0", "m1", "m2"), ours),
			decision{Phase: "Pivoting", Next: "MoveLeader member bootstrap"},
		},
		{
			"it stops", alone(grown("m0", "m1", "m2"), ours, led),
			decision{Phase: "Pivoting", Next: "StopMember member bootstrap"},
		},
		{
			"it does not while one of the three is silent", alone(grown("m0", "m1", "m2"), ours, led,
				silentFor("m2", time.Hour)),
			decision{Phase: "Degraded", Next: "FreePermit"},
		},
		{
			"its host is lost: it would be missed permanently",
			alone(grown("m0", "m1"), led, silentFor(plan.BootstrapName, time.Hour),
				func(v *plan.View) { v.BootstrapElsewhere = true }),
			decision{Phase: "Degraded", Next: "RemoveMember member bootstrap"},
		},
		{
			"this host is not: its process is started again", alone(grown("m0", "m1"), led,
				silentFor(plan.BootstrapName, time.Hour)),
			decision{Phase: "Degraded", WaitsFor: "member bootstrap to answer (connection refused)"},
		},
		{
			"its host may be starting", alone(grown("m0", "m1"), led, silentFor(plan.BootstrapName, 20*time.Second),
				func(v *plan.View) { v.BootstrapElsewhere = true }),
			decision{
				Phase: "Degraded", WaitsFor: "member bootstrap to answer again, or to be silent for 30s: its host is lost: " +
					"no machine can be deleted for it",
			},
		},
		{
			"that it has left is written down first of all", stableView(func(v *plan.View) { v.BootstrapRetired = false }),
			decision{Phase: "Stable", Next: "RetireBootstrap"},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, decide(c.view)); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhoMayTakeAVoterDown(t *testing.T) {
	cases := []struct {
		name string
		view plan.View
		on   string
		want plan.Disruption
	}{
		{"the voter of a healthy quorum may go down", stableView(), "m1", plan.Disruption{}},
		{"a machine without a voter needs no permit", stableView(withMachine("m3")), "m3", plan.Disruption{Needless: true}},
		{
			"a learner may be a voter by then", stableView(withLearner("m3", func(*plan.Member) {})), "m3", plan.Disruption{},
		},
		{
			"not a learner either while the permit is held for another machine",
			stableView(withLearner("m3", func(*plan.Member) {}), permitFor("m2", false)), "m3",
			plan.Disruption{
				Reason: metav1.ErrorReason_ERROR_REASON_HELD_BY_OTHER,
				Why:    "eviction-controller holds it for m2 (drain)",
			},
		},
		{
			"a learner may go down while a voter is down", stableView(withLearner("m3", func(*plan.Member) {}),
				silentFor("m2", 0)), "m3", plan.Disruption{},
		},
		{
			"not while another is down", stableView(silentFor("m2", 0)), "m1",
			plan.Disruption{Reason: metav1.ErrorReason_ERROR_REASON_QUORUM_AT_RISK, Why: "member m2 does not answer"},
		},
		{"one that is down itself may", stableView(silentFor("m1", 0)), "m1", plan.Disruption{}},
		{
			"not of two", stableView(func(v *plan.View) { v.Members = v.Members[:2] }), "m1",
			plan.Disruption{
				Reason: metav1.ErrorReason_ERROR_REASON_QUORUM_AT_RISK,
				Why:    "without it 1 of 2 voters would be left, and 2 are needed",
			},
		},
		{
			"not while the permit is held for another machine", stableView(permitFor("m2", false)), "m1",
			plan.Disruption{
				Reason: metav1.ErrorReason_ERROR_REASON_HELD_BY_OTHER,
				Why:    "eviction-controller holds it for m2 (drain)",
			},
		},
		{"again for the same machine", stableView(permitFor("m1", false)), "m1", plan.Disruption{}},
		{
			"not under the guardian's own permit, which ends with its own work",
			stableView(permitFor("m1", false), func(v *plan.View) {
				v.Permit.Holder, v.Permit.Reason, v.Permit.Ours = plan.GuardianUser, plan.DefragmentationReason, true
			}), "m1",
			plan.Disruption{Reason: metav1.ErrorReason_ERROR_REASON_HELD_BY_OTHER, Why: plan.GuardianUser +
				" holds it for m1 (defragmentation)"},
		},
		{
			"not again for the same machine when another voter died since",
			stableView(permitFor("m1", false), silentFor("m2", 0)), "m1",
			plan.Disruption{
				Reason: metav1.ErrorReason_ERROR_REASON_QUORUM_AT_RISK, Why: "member m2 does not answer",
				Withdraw: true,
			},
		},
		{
			"a permit whose voter is down already is not withdrawn", stableView(permitFor("m1", false), silentFor("m1", 0),
				func(v *plan.View) {
					v.Members, v.Machines = append(v.Members, voter("m3"), voter("m4")),
						append(v.Machines, machine("m3"), machine("m4"))
				}, silentFor("m2", 0)), "m1",
			plan.Disruption{Reason: metav1.ErrorReason_ERROR_REASON_QUORUM_AT_RISK, Why: "member m2 does not answer"},
		},
		{
			"not without a majority", stableView(func(v *plan.View) { v.Fresh, v.Trouble = false, "no leader" }), "m1",
			plan.Disruption{
				Reason: metav1.ErrorReason_ERROR_REASON_QUORUM_AT_RISK,
				Why:    "no majority of etcd answers: no leader",
			},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, plan.Disrupt(c.view, machine(c.on))); diff != "" {
				t.Errorf("disruption (-want +got):\n%s", diff)
			}
		})
	}
}

// rotating is a quorum of which the members named still trust the former authorities.
func rotating(outdated ...string) change {
	return func(v *plan.View) {
		v.Trust = "now"
		for i := range v.Members {
			v.Members[i].Trust = "now"
			if slices.Contains(outdated, v.Members[i].Name) {
				v.Members[i].Trust = "before"
			}
		}
	}
}

func TestMembersAreStartedAgainForOtherAuthorities(t *testing.T) {
	rotation := func(name string) change {
		return func(v *plan.View) {
			v.Permit = &plan.Permit{
				Machine: machine(name).Reference(), Reason: plan.RotationReason, Holder: plan.GuardianUser,
				Ours: true,
			}
		}
	}
	told := func(d time.Duration) func(m *plan.Member) {
		return func(m *plan.Member) { m.Restarting, m.RestartFor = true, d }
	}
	away := func(name string) change {
		return func(v *plan.View) {
			v.Offers = slices.DeleteFunc(v.Offers, func(o plan.Offer) bool { return o.Node == name })
		}
	}
	cases := []struct {
		name    string
		changes []change
		want    decision
		held    string // why the restart is held back
	}{
		{"none if all trust them", []change{rotating()}, decision{Phase: "Stable"}, ""},
		{
			"none if it is not known which they are",
			[]change{rotating("m1"), func(v *plan.View) { v.Trust = "" }},
			decision{Phase: "Stable"},
			"",
		},
		{
			"none that does not say what it trusts",
			[]change{rotating(), member("m1", func(m *plan.Member) { m.Trust = "" })},
			decision{Phase: "Stable"},
			"",
		},
		{
			"the permit comes first",
			[]change{rotating("m0", "m1", "m2")},
			decision{Phase: "Stable", Next: "AcquirePermit member m1"},
			"",
		},
		{
			"then the member is started again",
			[]change{rotating("m0", "m1", "m2"), rotation("m1")},
			decision{Phase: "Stable", Next: "RestartMember member m1"},
			"",
		},
		{
			"it is waited for",
			[]change{rotating("m0", "m1"), rotation("m1"), member("m1", told(time.Second))},
			decision{Phase: "Stable", WaitsFor: "member m1 to start again, so that it trusts the authorities of now"},
			"",
		},
		{
			"the command is sent again after a while",
			[]change{rotating("m0", "m1"), rotation("m1"), member("m1", told(time.Minute))},
			decision{Phase: "Stable", Next: "RestartMember member m1"},
			"",
		},
		{
			"nothing else happens while it is down",
			[]change{rotating("m0", "m1"), rotation("m1"), member("m1", told(time.Second)), silentFor("m1", time.Second)},
			decision{Phase: "Degraded", WaitsFor: "member m1 to answer (connection refused)"},
			"",
		},
		{
			"the permit ends when it trusts them",
			[]change{rotating("m0"), rotation("m1")},
			decision{Phase: "Stable", Next: "FreePermit"},
			"",
		},
		{"the leader comes last", []change{rotating("m0")}, decision{Phase: "Stable", Next: "AcquirePermit member m0"}, ""},
		{
			"and leads no more when it is started again",
			[]change{rotating("m0"), rotation("m0")},
			decision{Phase: "Stable", Next: "MoveLeader member m0"},
			"",
		},
		{
			"not under the permit of another",
			[]change{rotating("m1"), permitFor("m2", false)},
			decision{Phase: "Stable"},
			"eviction-controller holds the disruption permit for m2 (drain)",
		},
		{
			"nor under one of the same machine",
			[]change{rotating("m1"), permitFor("m1", false)},
			decision{Phase: "Stable"},
			"eviction-controller holds the disruption permit for m1 (drain)",
		},
		{
			"no command is sent while the agent is disconnected",
			[]change{rotating("m1"), away("m1")},
			decision{Phase: "Stable"},
			"the agent of member m1 is away",
		},
		{
			"another goes on then",
			[]change{rotating("m1", "m2"), away("m1")},
			decision{Phase: "Stable", Next: "AcquirePermit member m2"},
			"the agent of member m1 is away",
		},
		{
			"the permit stays with an agent that may have the order",
			[]change{rotating("m1", "m2"), rotation("m1"), away("m1")},
			decision{Phase: "Stable"},
			plan.GuardianUser + " holds the disruption permit for m1 (rotation of an authority)",
		},
		{
			"not with another voter silent",
			[]change{rotating("m1"), silentFor("m2", time.Second)},
			decision{Phase: "Degraded", WaitsFor: "member m2 to answer (connection refused)"},
			"",
		},
		{
			"a restart that has begun comes before another member leaves",
			[]change{deleted("m1"), withVoter("m3"), rotating("m2"), rotation("m2")},
			decision{Phase: "Replacing", Next: "RestartMember member m2"},
			"",
		},
		{
			"one that has not begun comes after",
			[]change{deleted("m1"), withVoter("m3"), without("m1"), rotating("m2")},
			decision{Phase: "Replacing", Next: "AcquirePermit member m1"},
			"",
		},
		{
			"a learner needs no permit",
			[]change{withLearner("m3", func(*plan.Member) {}), rotating("m1", "m3")},
			decision{Phase: "Replacing", Next: "RestartMember learner m3"},
			"",
		},
		{
			"a restarting learner is not promoted",
			[]change{deleted("m1"), withLearner("m3", told(time.Second)), rotating("m3")},
			decision{Phase: "Replacing", WaitsFor: "learner m3 to start again, so that it trusts the authorities of now"},
			"",
		},
		{
			"nor while its agent is away, which may have the order",
			[]change{deleted("m1"), withLearner("m3", told(time.Minute)), rotating("m3"), away("m3")},
			decision{Phase: "Replacing"},
			"the agent of learner m3 is away",
		},
		{
			"not with too few voters",
			[]change{rotating("m1"), func(v *plan.View) {
				v.Members = v.Members[:2]
				v.Endpoints, v.Machines, v.Offers = v.Endpoints[:2], v.Machines[:2], v.Offers[:2]
			}},
			decision{Phase: "Growing", WaitsFor: "another control-plane machine (2 of 3 voters)"},
			"without it 1 of 2 voters would be left, and 2 are needed",
		},
		{
			"not the bootstrap member",
			[]change{func(v *plan.View) {
				b := voter(plan.BootstrapName)
				b.Leader = true
				*v = plan.View{
					Fresh: true, MachinesKnown: true, NodesKnown: true, Desired: 3, EndpointsAge: time.Hour, Members: []plan.Member{b},
					Endpoints: b.ClientURLs,
				}
			}, rotating(plan.BootstrapName)},
			decision{Phase: "Bootstrapping", WaitsFor: "another control-plane machine (0 of 3 voters)"},
			"no machine of the control plane runs it",
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p := plan.Next(stableView(c.changes...))
			got := decision{Phase: p.Phase, WaitsFor: p.WaitsFor}
			if p.Next != nil {
				got.Next = p.Next.String()
			}
			held := ""
			for _, h := range p.HeldBack {
				if h.GetAction() == "RestartMember" {
					held = h.GetReason()
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" || held != c.held {
				t.Errorf("Next (-want +got):\n%s\nheld back: %q, want %q", diff, held, c.held)
			}
		})
	}
}

// versions is a quorum that runs etcd 3.6.5, of which the hosts of the members named have another version.
func versions(next string, outdated ...string) change {
	return func(v *plan.View) {
		v.Trust = "now"
		for i := range v.Members {
			m := &v.Members[i]
			m.Trust, m.Version, m.NextVersion = "now", "3.6.5", "3.6.5"
			if slices.Contains(outdated, m.Name) {
				m.NextVersion, m.Other = next, true
			}
		}
	}
}

func TestMembersAreStartedAgainForAnotherVersionOfEtcd(t *testing.T) {
	held := func(name string) change {
		return func(v *plan.View) {
			v.Permit = &plan.Permit{
				Machine: machine(name).Reference(), Reason: plan.VersionReason, Holder: plan.GuardianUser, Ours: true,
			}
		}
	}
	unsaid := func(m *plan.Member) { m.NextVersion, m.Restarting, m.RestartFor = "", true, time.Second }
	cases := []struct {
		name    string
		changes []change
		want    decision
		held    string
	}{
		{
			"not for another executable with the same etcd",
			[]change{versions("3.6.5", "m0", "m1", "m2")},
			decision{Phase: "Stable"},
			"",
		},
		{
			"not while the agent has not reported what it has",
			[]change{versions("", "m0", "m1", "m2")},
			decision{Phase: "Stable"},
			"",
		},
		{
			"the permit comes first, and the leader last",
			[]change{versions("3.6.6", "m0", "m1", "m2")},
			decision{Phase: "Stable", Next: "AcquirePermit member m1"},
			"",
		},
		{
			"then the member is started again",
			[]change{versions("3.6.6", "m0", "m1"), held("m1")},
			decision{Phase: "Stable", Next: "RestartMember member m1"},
			"",
		},
		{
			"the leader leads no more when it is started again",
			[]change{versions("3.6.6", "m0"), held("m0")},
			decision{Phase: "Stable", Next: "MoveLeader member m0"},
			"",
		},
		{
			"it is waited for",
			[]change{versions("3.6.6", "m1"), held("m1"), member("m1", func(m *plan.Member) {
				m.Restarting, m.RestartFor = true, time.Second
			})},
			decision{
				Phase: "Stable", WaitsFor: "member m1 to start again, so that it runs the etcd of its host's executable",
			},
			"",
		},
		{
			"the permit stays while the agent has not reported after that",
			[]change{versions("3.6.6", "m1"), held("m1"), member("m1", unsaid)},
			decision{Phase: "Stable"},
			"",
		},
		{
			"the permit ends when it runs that version",
			[]change{versions("3.6.5"), held("m1")},
			decision{Phase: "Stable", Next: "FreePermit"},
			"",
		},
		{
			"not to an earlier minor version, whose data etcd refuses",
			[]change{versions("3.5.9", "m1")},
			decision{Phase: "Stable"},
			"member m1 runs etcd 3.6.5, and etcd does not go back to 3.5.9",
		},
		{
			"to an earlier patch version",
			[]change{versions("3.6.4", "m1")},
			decision{Phase: "Stable", Next: "AcquirePermit member m1"},
			"",
		},
		{
			"to a later minor version",
			[]change{versions("3.10.0", "m1")},
			decision{Phase: "Stable", Next: "AcquirePermit member m1"},
			"",
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p := plan.Next(stableView(c.changes...))
			got := decision{Phase: p.Phase, WaitsFor: p.WaitsFor}
			if p.Next != nil {
				got.Next = p.Next.String()
			}
			why := ""
			for _, h := range p.HeldBack {
				if h.GetAction() == "RestartMember" {
					why = h.GetReason()
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" || why != c.held {
				t.Errorf("Next (-want +got):\n%s\nheld back: %q, want %q", diff, why, c.held)
			}
		})
	}
}

func TestARestartOfTheGuardiansIsNoPermitForOthers(t *testing.T) {
	v := stableView(rotating("m1"), func(v *plan.View) {
		v.Permit = &plan.Permit{
			Machine: machine("m1").Reference(), Reason: plan.RotationReason, Holder: plan.GuardianUser,
			Ours: true,
		}
	})
	for _, name := range []string{"m1", "m2"} {
		if d := plan.Disrupt(v, machine(name)); d.Reason != metav1.ErrorReason_ERROR_REASON_HELD_BY_OTHER {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

func TestHowManyVoters(t *testing.T) {
	machines := func(n int) (out []plan.Machine) {
		for range n {
			out = append(out, plan.Machine{})
		}
		return out
	}
	cases := []struct {
		name               string
		replicas, machines int
		members            []plan.Member
		want               int
	}{
		{"as many as the set's replicas", 5, 1, nil, 5},
		{"three without a set", 0, 1, nil, 3},
		{"three with four machines", 0, 4, nil, 3},
		{"five with five machines", 0, 5, nil, 5},
		{"five as long as five vote", 0, 3, []plan.Member{voter("a"), voter("b"), voter("c"), voter("d"), voter("e")}, 5},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := plan.Desired(c.replicas, machines(c.machines), c.members); got != c.want {
				t.Errorf("Desired = %d, want %d", got, c.want)
			}
		})
	}
}

func TestAGivenQuorumIsPlannedForAsALiveOne(t *testing.T) {
	q := &etcdv1.Quorum{Members: []*etcdv1.Member{
		{Id: "a1", Name: "m0", Healthy: true, Leader: true, ClientUrls: []string{"https://m0:2379"}},
		{Id: "a2", Name: "m1", Healthy: false, ClientUrls: []string{"https://m1:2379"}},
		{Id: "a3", Name: "m2", Healthy: true, ClientUrls: []string{"https://m2:2379"}},
	}}
	p := plan.Next(plan.Given{Quorum: q}.View())
	want := &metav1.PlannedAction{
		Action: "RemoveMember", Object: &metav1.ObjectReference{Kind: "Member", Name: "m1", Uid: "a2"},
		Reason: "it has neither a machine nor a node, and it is down",
	}
	got := p.First()
	if got.GetAction() != want.GetAction() || got.GetObject().GetUid() != want.GetObject().GetUid() ||
		got.GetReason() != want.GetReason() {
		t.Errorf("First = %v, want %v", got, want)
	}
}

func TestTheAnswerHasTheWholeQuorum(t *testing.T) {
	at := timestamppb.New(now)
	q := func(change func(q *etcdv1.Quorum)) *etcdv1.Quorum {
		out := &etcdv1.Quorum{ObserveTime: at, DesiredVoters: 3, Members: []*etcdv1.Member{
			{Id: "a1", Name: "m0", Healthy: true, Leader: true, ClientUrls: []string{"https://m0:2379"}},
			{Id: "a2", Name: "m1", Healthy: true, ClientUrls: []string{"https://m1:2379"}},
			{Id: "a3", Name: "m2", Healthy: true, ClientUrls: []string{"https://m2:2379"}},
		}, Endpoints: []string{"https://m0:2379", "https://m1:2379", "https://m2:2379"}}
		change(out)
		return out
	}
	silent := func(at time.Time) func(q *etcdv1.Quorum) {
		return func(q *etcdv1.Quorum) {
			q.Members[1].Healthy, q.Members[1].SilentTime = false, timestamppb.New(at)
		}
	}
	type result struct {
		Actions, Held []string
		Waits         string
		Voters        [4]int32 // voters, healthy, majority, tolerance
		Safe          string
		May           []bool
		Strategy      string
	}
	steady := []bool{true, true, true}
	cases := []struct {
		name string
		req  *etcdv1.PlanQuorumRequest
		want result
	}{
		{
			"a quorum in its desired state",
			&etcdv1.PlanQuorumRequest{Quorum: q(func(*etcdv1.Quorum) {})},
			result{Voters: [4]int32{3, 3, 2, 1}, May: steady},
		},
		{
			"all hooks are actions",
			&etcdv1.PlanQuorumRequest{Quorum: q(func(q *etcdv1.Quorum) { q.Endpoints = nil })},
			result{Actions: []string{"PublishEndpoints"}, Voters: [4]int32{3, 3, 2, 1}, May: steady},
		},
		{
			"a voter that is silent for a second keeps its place, though its machine is being deleted",
			&etcdv1.PlanQuorumRequest{Quorum: q(silent(now.Add(-time.Second))), Machines: given("m0", "-m1", "m2")},
			result{
				Waits:  "member m1 to answer again, or to be silent for 5s: its machine is being deleted",
				Voters: [4]int32{3, 2, 2, 0},
				Safe:   "2 voters are healthy, and HAScalingStrategy needs 3", May: []bool{false, true, false},
			},
		},
		{
			"a voter that is silent for a minute leaves with its machine",
			&etcdv1.PlanQuorumRequest{Quorum: q(silent(now.Add(-time.Minute))), Machines: given("m0", "-m1", "m2")},
			result{
				Actions: []string{"RemoveMember"}, Voters: [4]int32{3, 2, 2, 0},
				Safe: "2 voters are healthy, and HAScalingStrategy needs 3", May: []bool{false, true, false},
			},
		},
		{
			"nothing is done on a list that is not fresh",
			&etcdv1.PlanQuorumRequest{
				Quorum: q(silent(now.Add(-time.Minute))), Machines: given("m0", "-m1", "m2"), Trouble: "no answer",
			},
			result{
				Waits: "etcd: no answer", Voters: [4]int32{3, 2, 2, 0}, Safe: "no majority of etcd answers",
				May: []bool{false, false, false},
			},
		},
		{
			"a dead voter whose machine is not known stays",
			&etcdv1.PlanQuorumRequest{Quorum: q(silent(now.Add(-time.Minute))), MachinesUnknown: true},
			result{
				Waits: "member m1 to answer", Voters: [4]int32{3, 2, 2, 0},
				Safe: "2 voters are healthy, and HAScalingStrategy needs 3",
			},
		},
		{
			"a dead voter without a machine stays while it has a node",
			&etcdv1.PlanQuorumRequest{
				Quorum: q(silent(now.Add(-time.Minute))), Machines: given("m0", "m2"),
				Nodes: &nodev1.NodeList{Items: []*nodev1.Node{{Metadata: &metav1.ObjectMeta{Name: "m1"}}}},
			},
			result{
				Waits:  "member m1 to answer; it has no machine, but its node m1 exists: bring it back, or delete the node",
				Voters: [4]int32{3, 2, 2, 0}, Safe: "2 voters are healthy, and HAScalingStrategy needs 3",
				May: []bool{false, false},
			},
		},
		{
			"it is not safe to scale during a roll-out",
			&etcdv1.PlanQuorumRequest{Quorum: q(func(*etcdv1.Quorum) {}), RollOut: "machine configuration 7"},
			result{Voters: [4]int32{3, 3, 2, 1}, Safe: "machine configuration 7 is being rolled out", May: steady},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.req.GetMachines() == nil && !c.req.GetMachinesUnknown() {
				c.req.Machines = given("m0", "m1", "m2")
			}
			v := plan.GivenBy(c.req).View()
			a := plan.Next(v).Answer(v, c.req.GetQuorum())
			r := a.GetQuorum()
			got := result{
				Waits: a.GetWaitsFor(), Safe: r.GetScaleMessage(), Strategy: r.GetStrategy(),
				Voters: [4]int32{r.GetVoters(), r.GetHealthyVoters(), r.GetMajority(), r.GetFailureTolerance()},
			}
			for _, p := range a.GetActions() {
				got.Actions = append(got.Actions, p.GetAction())
			}
			for _, d := range a.GetDisruptions() {
				got.May = append(got.May, d.GetAllowed())
			}
			c.want.Strategy = "HAScalingStrategy"
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
			if r.GetSafeToScale() != (r.GetScaleMessage() == "") || a.GetNextCheckAfter().AsDuration() <= 0 {
				t.Errorf("safe to scale %v with %q, next check after %v", r.GetSafeToScale(), r.GetScaleMessage(),
					a.GetNextCheckAfter())
			}
		})
	}
}

// given returns control-plane machines with our hook; those whose name begins with - are being deleted.
func given(names ...string) *machinev1.MachineList {
	list := &machinev1.MachineList{}
	for _, name := range names {
		name, deleting := strings.CutPrefix(name, "-")
		m := &machinev1.Machine{
			Metadata: &metav1.ObjectMeta{
				Namespace: "ns", Name: name, Uid: "uid-" + name,
				Labels: map[string]string{"machine.openshift.io/cluster-api-machine-role": "master"},
			},
			Spec: &machinev1.MachineSpec{LifecycleHooks: &machinev1.LifecycleHooks{
				PreDrain: []*machinev1.LifecycleHook{{Name: plan.HookName, Owner: plan.HookOwner}},
			}},
		}
		if deleting {
			m.Metadata.DeletionTimestamp = timestamppb.New(now)
		}
		list.Items = append(list.Items, m)
	}
	return list
}

func TestWhyAVoterThatIsToLeaveStays(t *testing.T) {
	cases := []struct {
		name    string
		changes []change
		want    string
	}{
		{
			"no replacement runs a member",
			[]change{deleted("m1")},
			"without it 2 of 3 voters would be left, and no replacement of machine m1 runs a member",
		},
		{
			"the replacement only follows",
			[]change{deleted("m1"), withLearner("m3", func(m *plan.Member) { m.Applied = 1 })},
			"learner m3, the replacement of machine m1, does not vote yet",
		},
		{"another leaves first", []change{deleted("m1"), deleted("m2"), withVoter("m3")}, "member m1 leaves first"},
		{
			"a dead voter may not go while another's is under a permit",
			[]change{deleted("m1"), silentFor("m1", time.Hour), permitFor("m2", false)},
			"only 1 of the other 2 voters are healthy; member m2 counts as down, since eviction-controller holds the disruption permit for m2 (drain)",
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			for _, h := range plan.Next(stableView(c.changes...)).HeldBack {
				if h.GetAction() == "RemoveMember" {
					got = h.GetReason()
				}
			}
			if got != c.want {
				t.Errorf("held back: %q, want %q", got, c.want)
			}
		})
	}
}

// Machines behind one address from outside share it: a member there would be any of them.
func TestAMachineOwnsItsAddressesInsideTheClusterAlone(t *testing.T) {
	m := plan.MachineOf(&machinev1.Machine{Status: &machinev1.MachineStatus{Addresses: []*nodev1.NodeAddress{
		{Type: "Hostname", Address: "m0"},
		{Type: "InternalIP", Address: "10.0.0.1"},
		{Type: "ExternalIP", Address: "192.0.2.1"},
	}}})
	if !m.Owns([]string{"https://10.0.0.1:2380"}) || m.Owns([]string{"https://192.0.2.1:2380"}) {
		t.Errorf("its addresses are %v, want 10.0.0.1", m.Addresses)
	}
}

// A guardian that starts again knows the permit before machine-api has sent the machines.
func TestThePermitIsKeptUntilTheMachinesAreKnown(t *testing.T) {
	held := func(v *plan.View) {
		v.Permit = &plan.Permit{
			Machine: &metav1.ObjectReference{Kind: "Machine", Namespace: "ns", Name: "m1", Uid: "uid-m1"}, Reason: "drain",
		}
	}
	unseen := func(v *plan.View) { v.Machines, v.MachinesKnown = nil, false }
	bound := member("m1", func(m *plan.Member) { m.MachineUID = "uid-m1" })
	gone := func(v *plan.View) {
		v.Machines = slices.DeleteFunc(v.Machines, func(m plan.Machine) bool { return m.Name == "m1" })
	}
	cases := []struct {
		name string
		view plan.View
		free bool
	}{
		{"no machine is known", stableView(held, unseen), false},
		{"no machine is known, the member's is written down", stableView(held, unseen, bound), false},
		{"a stale copy lacks the machine, the member's is written down", stableView(held, gone, bound), false},
		{"its member has left", stableView(held, gone, func(v *plan.View) {
			v.Members = slices.Delete(v.Members, 1, 2)
		}), true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			next := plan.Next(c.view).Next
			if free := next != nil && next.Kind == plan.FreePermit; free != c.free {
				t.Errorf("next is %v, frees the permit: want %v", next, c.free)
			}
		})
	}
}

func TestEtcdObjectsToUpdatesUntilItIsStable(t *testing.T) {
	q := &etcdv1.Quorum{Phase: plan.Stable, Voters: 3, HealthyVoters: 3, DesiredVoters: 3}
	if reason, message := plan.Objection(q); reason != "" || message != "" {
		t.Errorf("a stable quorum objects: %s %s", reason, message)
	}
	q.Phase, q.HealthyVoters, q.WaitsFor = plan.Degraded, 2, "member m2 to answer"
	const want = "2 of 3 voters of etcd are healthy, and 3 are wanted: member m2 to answer"
	if reason, message := plan.Objection(q); reason != "QuorumDegraded" || message != want {
		t.Errorf("%s %s", reason, message)
	}
	if reason, _ := plan.Objection(&etcdv1.Quorum{}); reason == "" {
		t.Error("a quorum that was not observed yet does not object")
	}
}
