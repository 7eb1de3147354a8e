package faults

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// programs is everything that runs of a cluster, as a replacement sees it.
var programs = []string{
	harness.Supervisor, "gateway", "machine-api", "etcd-guardian", "eviction-controller", "hook-broker", "provider-local",
	"node-agent, old", "node-agent, new", "etcd-member, old", "etcd-member, new", "etcd-member, other",
}

// killed are the steps at which programs are killed: all but the last, after which there is nothing to be done.
var killed = []step{requested, created, learning, voting, left, unhooked, drained, terminated}

// kill is one program killed at one step.
type kill struct {
	at      step
	program string
}

// rounds are the replacements of an ordinary run: together they kill every program and every step at least once,
// several in each.
var rounds = [][]kill{
	{
		{requested, "machine-api"},
		{created, "provider-local"},
		{learning, "etcd-guardian"},
		{voting, "etcd-member, old"},
		{left, "gateway"},
		{drained, "hook-broker"},
	},
	{
		{requested, "etcd-guardian"},
		{learning, "node-agent, new"},
		{voting, "etcd-member, other"},
		{unhooked, "eviction-controller"},
		{drained, "machine-api"},
		{terminated, "gateway"},
	},
	{
		{created, harness.Supervisor},
		{learning, "etcd-member, new"},
		{left, "etcd-guardian"},
		{unhooked, "node-agent, old"},
		{terminated, "provider-local"},
	},
}

func TestFaultsKillsAtTheStepsOfAReplacement(t *testing.T) {
	if os.Getenv("WINDLASS_FAULTS") == "all" {
		wholeGrid(t, gridMarks, patience)
		return
	}
	c := shared.Cluster(t)
	own(t, c, 300*time.Millisecond)
	for i, kills := range rounds {
		t.Run(fmt.Sprintf("round %d", i+1), func(t *testing.T) { replaceUnder(t, shared.Cluster(t), i, kills, patience) })
	}
}

func TestFaultsKillsWhileEtcdIsSlow(t *testing.T) {
	gridBetween(t, harness.SlowAnswers, slowMarks, 3*patience)
}

func TestFaultsKillsWhileAnswersAreLost(t *testing.T) {
	gridBetween(t, harness.LostAnswers, lostMarks, 2*patience)
}

// gridBetween is the whole grid with a proxy before etcd. The short cases of that are in answers_test.go.
func gridBetween(t *testing.T, f harness.Fault, m marks, within time.Duration) {
	if os.Getenv("WINDLASS_FAULTS") != "all" {
		t.Skip("skipped: make test-faults runs it")
	}
	c := shared.Cluster(t)
	c.Settle(patience)
	c.Between(f)
	wholeGrid(t, m, within)
}

// replaceUnder replaces a control-plane machine while programs are killed, and returns how long it took, which is at
// most within.
func replaceUnder(t *testing.T, c *harness.Cluster, n int, kills []kill, within time.Duration) time.Duration {
	t.Helper()
	c.Settle(within)
	writers, prober := c.Write(), c.Probe()
	old := victim(t, c, n)
	hookOn(t, c, old)
	r := follow(t, c, old)
	r.within = within
	r.oldDies = slices.ContainsFunc(kills, func(k kill) bool { return k.program == "etcd-member, old" })
	c.DeleteMachine(old)
	revive := &reviver{c: c}
	r.run(t, func(s step) {
		t.Logf("%s: %s", time.Now().Format("15:04:05.000"), s)
		for _, k := range kills {
			if k.at != s {
				continue
			}
			t.Logf("%s: kill -9 %s", time.Now().Format("15:04:05.000"), r.process(k.program))
			if err := c.Kill(r.process(k.program)); err != nil {
				t.Error(err)
			}
			if k.program == harness.Supervisor {
				revive.start()
			}
		}
	})
	revive.wait(t)
	c.Settle(within)
	prober.Check()
	writers.Check()
	t.Logf("replaced in %s", r.took().Round(100*time.Millisecond))
	return r.took()
}

// victim is the machine to be replaced: by turns the one with etcd's leader, and one without.
func victim(t *testing.T, c *harness.Cluster, n int) string {
	t.Helper()
	q, err := c.Quorum(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range q.GetMembers() {
		if m.GetLeader() == (n%2 == 0) {
			return m.GetName()
		}
	}
	t.Fatalf("no member leads, or all do: %v", q.GetMembers())
	return ""
}

// reviver runs `windlass up` beside a replacement: nothing else starts the supervisor again.
type reviver struct {
	c    *harness.Cluster
	done sync.WaitGroup
	err  error
}

func (r *reviver) start() { r.done.Go(func() { r.err = r.c.TryUp() }) }

func (r *reviver) wait(t *testing.T) {
	t.Helper()
	r.done.Wait()
	if r.err != nil {
		t.Error(r.err)
	}
}

// wholeGrid kills each program at each step, one kill to a replacement, and writes the seconds that each took into the
// table of the page.
func wholeGrid(t *testing.T, m marks, within time.Duration) {
	c := shared.Cluster(t)
	own(t, c, 300*time.Millisecond)
	var steps []string
	for _, s := range killed {
		steps = append(steps, s.String())
	}
	results := newTable(figures(), m, programs, steps)
	n := 0
	for _, program := range programs {
		for _, s := range killed {
			runCell(t, results, program, s.String(), func(t *testing.T) time.Duration {
				return replaceUnder(t, shared.Cluster(t), n, []kill{{s, program}}, within)
			})
			n++
		}
	}
}

func TestTheRoundsKillEveryProgramAndEveryStep(t *testing.T) {
	var all []kill
	for _, r := range rounds {
		all = append(all, r...)
	}
	for _, p := range programs {
		if !slices.ContainsFunc(all, func(k kill) bool { return k.program == p }) {
			t.Errorf("%s is never killed", p)
		}
	}
	for _, s := range killed {
		if !slices.ContainsFunc(all, func(k kill) bool { return k.at == s }) {
			t.Errorf("nothing is killed at %s", s)
		}
	}
}
