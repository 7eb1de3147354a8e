package plan_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/windlass-dev/windlass/services/etcd-guardian/plan"
)

// TestScenarios plays the files of testdata/course: each has what happens to the machines and members of a control
// plane, and what the guardian does about it and waits for. Run it with -rewrite to write what it does now into them.
// What happens is one of these, a line each:
//
//	cluster 3          a new cluster of so many voters: the bootstrap member, and machines whose agents connect;
//	                   "cluster 3 running" is one whose machines have taken over; of "cluster 3 hosts" the first
//	                   machine is on the bootstrap member's host, and only its agent has connected
//	delete m1          a user deletes a machine; its set replaces it
//	dies m1, repaired m1     a member ends and does not start again; it does
//	slow m4            a learner does not catch up
//	agent m1 away, agent m1 back
//	permit m1 10s      another service gets the permit for a machine for that long, and takes its member down
//	rotation           members have to trust another authority
//	restart            the guardian starts again, and has forgotten what it noted
//
// "pass 30s" lets time pass. Times are seconds since the begin. A line of the output is an action with its reason, or
// the phase and what is waited for, if that changed.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/course", func(t *testing.T, path string) {
		c := &course{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			c.out.Reset()
			switch d.Cmd {
			case "happens":
				for line := range strings.Lines(d.Input) {
					c.happens(t, strings.Fields(line))
				}
			case "pass":
				span, err := time.ParseDuration(d.CmdArgs[0].Key)
				if err != nil {
					t.Fatal(err)
				}
				for range span / tick {
					c.tick()
				}
			default:
				t.Fatalf("unknown command %q", d.Cmd)
			}
			return c.out.String()
		})
	})
}

// numbers are what changes all the time while a learner catches up.
var numbers = regexp.MustCompile(`\d+ of \d+`)

// course is a world without chance, whose agents connect unless they are said to be away.
type course struct {
	*world
	begin time.Time
	away  []string
	state string // what was last said of the phase
	out   strings.Builder
}

func (c *course) happens(t *testing.T, what []string) {
	if what[0] == "cluster" {
		n := 0
		if _, err := fmt.Sscan(what[1], &n); err != nil {
			t.Fatal(err)
		}
		c.world = newWorld(t, n, func(_, hi int, _ string) int { return hi })
		if c.away = nil; len(what) > 2 && what[2] == "hosts" {
			c.hosts, c.away = true, []string{"m2", "m3"}
		} else if len(what) > 2 {
			for !c.settled() {
				c.tick()
			}
			for range 5 * time.Second / tick { // so long etcd refuses members after a promotion
				c.tick()
			}
			c.out.Reset()
		}
		c.begin = c.now
		return
	}
	switch what[0] {
	case "rotation":
		c.trust++
		return
	case "restart":
		c.forget()
		return
	}
	m := c.machine(what[1])
	i := slices.IndexFunc(c.members, func(s *simMember) bool { return s.node == what[1] })
	if m == nil || i < 0 && what[0] != "delete" && what[0] != "agent" {
		t.Fatalf("%q: no such machine or member", what)
	}
	switch what[0] {
	case "delete":
		m.Deleting, m.DeletionTime = true, c.now
	case "dies":
		c.members[i].broken = true
	case "repaired":
		c.members[i].broken = false
	case "slow":
		c.members[i].hampered = true
	case "agent":
		c.away = slices.DeleteFunc(c.away, func(name string) bool { return name == what[1] })
		if what[2] == "away" {
			c.away = append(c.away, what[1])
		}
	case "permit":
		span, err := time.ParseDuration(what[2])
		if err != nil {
			t.Fatal(err)
		}
		if d := plan.Disrupt(c.view(), m.Machine); d.Why != "" {
			fmt.Fprintf(&c.out, "%s permit for %s refused: %s\n", c.clock(), m.Name, d.Why)
			return
		}
		c.permit = &plan.Permit{Machine: m.Reference(), Reason: "drain", Holder: "other"}
		c.freeAt = c.now.Add(span)
		c.disrupt()
	default:
		t.Fatalf("unknown event %q", what)
	}
}

func (c *course) clock() string { return fmt.Sprintf("%5.1f", c.now.Sub(c.begin).Seconds()) }

// tick lets a moment pass, and has the guardian decide and act.
func (c *course) tick() {
	c.pass()
	for _, m := range c.machines {
		m.attended = !m.gone && !slices.Contains(c.away, m.Name)
	}
	p := plan.Next(c.view())
	state := p.Phase
	if p.WaitsFor != "" {
		state += ", waits for " + p.WaitsFor
	}
	for _, h := range p.Hooks {
		fmt.Fprintf(&c.out, "%s %s: %s\n", c.clock(), h, h.Reason)
	}
	if p.Next != nil {
		fmt.Fprintf(&c.out, "%s %s: %s\n", c.clock(), p.Next, p.Next.Reason)
	}
	if unnumbered := numbers.ReplaceAllString(state, ""); unnumbered != c.state {
		fmt.Fprintf(&c.out, "%s %s\n", c.clock(), state)
		c.state = unnumbered
	}
	c.act(p)
}
