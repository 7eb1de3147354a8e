package main

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
)

func meta(name string, revision int) *metav1.ObjectMeta {
	return &metav1.ObjectMeta{Name: name, ResourceVersion: strconv.Itoa(revision)}
}

func controlPlane(m *metav1.ObjectMeta, phase string) *machinev1.Machine {
	m.Labels = map[string]string{roleLabel: "master"}
	return &machinev1.Machine{Metadata: m, Spec: &machinev1.MachineSpec{}, Status: &machinev1.MachineStatus{
		Phase: proto.String(phase),
	}}
}

// deleting is machine a while it is deleted, with some hooks and conditions.
func deleting(revision int, preDrain, preTerminate bool, conditions ...*metav1.Condition) observation {
	m := controlPlane(meta("a", revision), "Deleting")
	m.Metadata.DeletionTimestamp = timestamppb.New(time.Unix(1000, 0))
	m.Spec.LifecycleHooks = &machinev1.LifecycleHooks{}
	if preDrain {
		m.Spec.LifecycleHooks.PreDrain = []*machinev1.LifecycleHook{{Name: quorumHook, Owner: "clusteroperator/etcd"}}
	}
	if preTerminate {
		m.Spec.LifecycleHooks.PreTerminate = []*machinev1.LifecycleHook{{Name: backupHook, Owner: backupOwner}}
	}
	m.Status.Conditions = conditions
	return observation{machine: m}
}

func voters(leads string, learner string, healthy int32, list ...string) observation {
	q := &etcdv1.Quorum{Voters: int32(len(list)), HealthyVoters: healthy, Majority: int32(len(list))/2 + 1}
	for _, name := range list {
		q.Members = append(q.Members, &etcdv1.Member{Name: name, Healthy: true, Leader: name == leads})
	}
	if learner != "" {
		q.Members = append(q.Members, &etcdv1.Member{Name: learner, Healthy: true, Learner: true})
	}
	return observation{quorum: q}
}

func backupTask(revision int, phase string) observation {
	return observation{task: &hookv1.HookTask{
		Metadata: meta("task", revision),
		Spec:     &hookv1.HookTaskSpec{MachineRef: &metav1.ObjectReference{Name: "a"}, HookName: backupHook},
		Status:   &hookv1.HookTaskStatus{Phase: proto.String(phase), ClaimedBy: proto.String("admin")},
	}}
}

func nodeA(revision int, unschedulable, deleted bool) observation {
	return observation{deleted: deleted, node: &nodev1.Node{Metadata: meta("a", revision), Spec: &nodev1.NodeSpec{
		Unschedulable: proto.Bool(unschedulable),
	}}}
}

// replacementOfA is everything that is seen when machine a of a, b and c is replaced by d.
func replacementOfA() []observation {
	drained := &metav1.Condition{Type: "Drained", Status: "True"}
	return []observation{
		voters("a", "", 3, "a", "b", "c"),
		deleting(10, true, true),
		{machine: controlPlane(meta("d", 11), "")},
		{machine: controlPlane(meta("d", 12), "Running")},
		voters("a", "d", 3, "a", "b", "c"),
		{waits: "hook " + quorumHook},
		voters("a", "", 4, "a", "b", "c", "d"),
		voters("b", "", 4, "a", "b", "c", "d"),
		voters("b", "", 3, "b", "c", "d"),
		deleting(13, false, true),
		nodeA(14, true, false),
		{drain: &nodev1.Drain{Metadata: meta("x", 15), Spec: &nodev1.DrainSpec{NodeName: "a"}, Status: &nodev1.DrainStatus{
			Phase: proto.String("Succeeded"),
		}}},
		deleting(16, false, true, drained),
		backupTask(17, "Pending"),
		{waits: "hook " + backupHook},
		backupTask(18, "Claimed"),
		backupTask(19, "Completed"),
		deleting(20, false, false, drained),
		deleting(21, false, false, drained, &metav1.Condition{Type: "InstanceExists", Status: "False"}),
		nodeA(22, true, true),
		{waits: "nothing, next action: RemoveFinalizer"},
		{deleted: true, machine: deleting(23, false, false).machine},
	}
}

var wholeStory = []moment{
	deletionAsked, replacementMade, replacementRuns, learnerJoined, learnerVotes, leadershipMoved, oldVoterLeft,
	quorumHookGone, nodeCordoned, nodeDrained,
	machineDrained, taskPending, taskClaimed, taskCompleted, backupHookGone, instanceGone, nodeGone, machineGone,
}

func chronicleOf(list []observation) *chronicle {
	c := newChronicle("a", []string{"b", "c"})
	for _, o := range list {
		c.add(o)
	}
	return c
}

func wrong(facts []fact) []string {
	var out []string
	for _, f := range facts {
		if !f.holds {
			out = append(out, f.expected)
		}
	}
	return out
}

func TestAReplacementIsToldInItsOrder(t *testing.T) {
	c := chronicleOf(replacementOfA())
	if got := wrong(c.inOrder(wholeStory...)); len(got) > 0 {
		t.Errorf("wrong: %q", got)
	}
	if c.most != 4 || len(c.unsafe) > 0 || c.replacement != "d" || c.samples != 5 {
		t.Errorf("most = %d, unsafe = %q, replacement = %q, samples = %d; want 4, none, d, 5", c.most, c.unsafe,
			c.replacement, c.samples)
	}
	if got, want := strings.Join(c.waits, "|"), "hook "+quorumHook+"|hook "+backupHook; got != want {
		t.Errorf("waits = %q, want %q", got, want)
	}
}

func TestAChronicleFindsWhatIsNotAsTold(t *testing.T) {
	for name, tt := range map[string]struct {
		change func([]observation) []observation
		wrong  string // what inOrder names
		unsafe string
	}{
		"the node is cordoned while the quorum hook is still there": {
			change: func(l []observation) []observation { l[10].node.Metadata.ResourceVersion = "12"; return l },
			wrong:  "the quorum hook goes before the node is cordoned",
		},
		"the instance goes before the owner's hook": {
			change: func(l []observation) []observation {
				l[9].machine.Status.Conditions = []*metav1.Condition{{Type: "InstanceExists", Status: "False"}}
				return l
			},
			wrong: "the owner's hook goes before the instance goes",
		},
		"no owner claims the task": {
			change: func(l []observation) []observation { return append(l[:15], l[17:]...) },
			wrong:  "the owner claims its task",
		},
		"the old voter leaves while the new member is a learner": {
			change: func(l []observation) []observation { l[6] = voters("b", "d", 2, "b", "c"); return l },
			unsafe: "the old voter left while the new member was",
		},
		"two of three voters are down": {
			change: func(l []observation) []observation { l[0] = voters("a", "", 1, "a", "b", "c"); return l },
			unsafe: "1 healthy voters where a majority is 2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := chronicleOf(tt.change(replacementOfA()))
			if got := strings.Join(wrong(c.inOrder(wholeStory...)), "; "); !strings.Contains(got, tt.wrong) {
				t.Errorf("wrong = %q, want %q", got, tt.wrong)
			}
			if got := strings.Join(c.unsafe, "; "); !strings.Contains(got, tt.unsafe) {
				t.Errorf("unsafe = %q, want %q", got, tt.unsafe)
			}
		})
	}
}

func TestWhatAMachineWaitsForIsHeldToTheTimeOfTheWait(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	says := func(asked, answered int, what string) observation {
		return observation{asked: at(asked), at: at(answered), waits: what}
	}
	for name, tt := range map[string]struct {
		answers []observation
		want    bool
	}{
		"it is named":                     {[]observation{says(11, 12, "nothing"), says(13, 14, "hook x")}, true},
		"it is not named":                 {[]observation{says(11, 12, "nothing"), says(13, 14, "hook y")}, false},
		"no answer in that time":          {[]observation{says(9, 12, "nothing"), says(13, 21, "hook y")}, true},
		"it is named only at other times": {[]observation{says(8, 9, "hook x"), says(11, 12, "nothing")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := newChronicle("a", nil)
			c.seen = map[moment]sighting{taskPending: {at: at(10)}, backupHookGone: {at: at(20)}}
			for _, o := range tt.answers {
				c.add(o)
			}
			if got := c.waitedFor("x", taskPending, backupHookGone).holds; got != tt.want {
				t.Errorf("holds = %t, want %t", got, tt.want)
			}
		})
	}
}
