package faults

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/e2e/harness"
)

const theAgent = "node-agent" // of the node that things happen to

// services are what is killed during a course.
var services = []string{
	"scheduler", "eviction-controller", "node-configurator", "update-orchestrator", "machine-api", "etcd-guardian",
	"gateway", "hook-broker",
	"provider-local", theAgent,
}

// strike is one program killed at one moment of a course.
type strike struct{ course, at, program string }

// strikes are those of an ordinary run: together they kill every service and at every moment, several in each course.
var strikes = []strike{
	{"drain", "cordoned", "scheduler"},
	{"drain", "cordoned", "gateway"},
	{"drain", "evicting", "eviction-controller"},
	{"drain", "evicting", "hook-broker"},
	{"roll-out", "ordered", "node-configurator"},
	{"roll-out", "ordered", "eviction-controller"},
	{"roll-out", "emptied", theAgent},
	{"roll-out", "applied", "provider-local"},
	{"roll-out", "applied", "scheduler"},
	{"update", "accepted", "update-orchestrator"},
	{"update", "waiting", "update-orchestrator"},
	{"update", "waiting", "gateway"},
	{"update", "rolling", "etcd-guardian"},
	{"update", "rolling", "machine-api"},
	{"update", "rolling", "node-configurator"},
	{"eviction", "tainted", "eviction-controller"},
	{"eviction", "leaving", "scheduler"},
}

func TestFaultsKillsDuringDrainsRollOutsAndUpdates(t *testing.T) {
	if os.Getenv("WINDLASS_FAULTS") == "all" {
		allStrikes(t)
		return
	}
	for _, k := range courses {
		t.Run(k.name, func(t *testing.T) { strikeDown(t, shared.Cluster(t), k, strikes) })
	}
}

// strikeDown has a course run while programs are killed, and returns how long it took.
func strikeDown(t *testing.T, c *harness.Cluster, k course, list []strike) time.Duration {
	t.Helper()
	c.SettleAll(patience)
	for _, s := range list {
		if s.program != theAgent {
			process(t, c, s.program) // a wrong name would kill no program
		}
	}
	prober, record := c.Probe(), c.Record()
	p := &passage{t: t, c: c, r: record}
	p.at = func(moment string) {
		t.Logf("%s: %s", time.Now().Format("15:04:05.000"), moment)
		for _, s := range list {
			if s.course != k.name || s.at != moment {
				continue
			}
			program := s.program
			if program == theAgent {
				program = process(t, c, harness.Agent(p.node)).Name
			}
			t.Logf("%s: kill -9 %s", time.Now().Format("15:04:05.000"), program)
			if err := c.Kill(program); err != nil {
				t.Error(err)
			}
		}
	}
	began := time.Now()
	k.run(p)
	c.SettleAll(patience)
	took := time.Since(began)
	record.Check(hello)
	prober.Check()
	t.Logf("the %s took %s", k.name, took.Round(100*time.Millisecond))
	return took
}

// allStrikes kills each service at each moment of each course, one kill to a course, and writes the seconds that each
// took into the table of the page.
func allStrikes(t *testing.T) {
	var moments []string
	for _, k := range courses {
		for _, m := range k.moments {
			moments = append(moments, k.name+": "+m)
		}
	}
	results := newTable(figures(), courseMarks, services, moments)
	for _, k := range courses {
		for _, m := range k.moments {
			// One program after the other: one that ends again and again is started later each time, which is not what is tested
			// here.
			for _, program := range services {
				runCell(t, results, program, k.name+": "+m, func(t *testing.T) time.Duration {
					return strikeDown(t, shared.Cluster(t), k, []strike{{k.name, m, program}})
				})
			}
		}
	}
}

func TestTheStrikesKillEveryServiceAndAtEveryMoment(t *testing.T) {
	for _, s := range services {
		if !slices.ContainsFunc(strikes, func(k strike) bool { return k.program == s }) {
			t.Errorf("%s is never killed", s)
		}
	}
	known := map[string]bool{}
	for _, k := range courses {
		for _, m := range k.moments {
			known[k.name+"/"+m] = true
			if !slices.ContainsFunc(strikes, func(s strike) bool { return s.course == k.name && s.at == m }) {
				t.Errorf("nothing is killed at %s of a %s", m, k.name)
			}
		}
	}
	for _, s := range strikes {
		if !known[s.course+"/"+s.at] {
			t.Errorf("no course has the moment of %+v", s)
		}
	}
}
