package plan

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// tick is the time between two looks of a course. A call that is not slow is answered after one.
const tick = 100 * time.Millisecond

// TestScenarios plays the files of testdata/pass: each has the manifests of a release, and what their owners do with
// them, and says what is applied when, and what is reported. Run it with -rewrite to write what it does now into them.
// "release Updating" begins a pass over manifests, a line each: file, kind, name, and of these
//
//	operator=1.1.0    a cluster operator that has to report that version
//	rolls             a workload that is waited for
//	unmanaged         the cluster wants it to be left alone
//	leftover          no manifest, but an object that the release lacks; its file is "-"
//	nodes             the configuration of the nodes, which is waited for last; its file is "-"
//
// "again" begins the next pass over them, which is due after the one before. What happens is one of these, a line each:
//
//	refuses NAME text, rejects NAME text, takes NAME      the owner says that it cannot now, or that it never will
//	leaves NAME text                                      its removal has begun, and waits for that
//	slow NAME 30s                                         its owner answers after that time
//	operator NAME 1.1.0, degraded NAME, gone NAME         gone: the operator or workload is deleted
//	rolled NAME, stuck NAME text, hidden NAME text        hidden: its watch ends with that text
//	store away, store answers                             no report can be written
//	pause 30s, pause open, pause over                     a user pauses updates, for a time or not, and takes that back
//
// "steps" writes how far the pass is with each manifest, as Plan RPCs show it. "pass 30s" lets time pass. Times are
// seconds since the begin. A report is shown if it says something new.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/pass", func(t *testing.T, path string) {
		c := &course{
			operators: map[string]*updatev1.ClusterOperator{}, owners: map[string]*owner{}, sightings: Sightings{},
			now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		}
		c.begin = c.now
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			c.out.Reset()
			switch d.Cmd {
			case "release":
				c.mode = Mode(d.CmdArgs[0].Key)
				for line := range strings.Lines(d.Input) {
					c.manifest(t, strings.Fields(line))
				}
				c.start()
			case "again":
				if c.pass != nil {
					t.Fatal("the pass is not over")
				}
				c.start()
			case "happens":
				for line := range strings.Lines(d.Input) {
					if err := c.happens(strings.Fields(line)); err != nil {
						t.Fatalf("%s: %v", strings.TrimSpace(line), err)
					}
				}
			case "steps":
				c.steps()
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

// course is what is around a pass: owners, operators, and the status.
type course struct {
	begin, now time.Time
	mode       Mode
	files      []string
	manifests  map[string][]*Manifest
	leftovers  []*Manifest
	nodes      *Manifest
	version    updatev1.ClusterVersion // what it says of pauses
	operators  map[string]*updatev1.ClusterOperator
	owners     map[string]*owner // by the name of the object
	calls      []*call
	storeAway  bool
	status     []*metav1.Condition
	sightings  Sightings
	rhythm     Rhythm
	failures   map[string]Failure
	done       int
	pass       *Pass // nil between two
	last       *Pass // that began last
	said       string
	out        strings.Builder
}

// owner is what the service of an object does with it.
type owner struct {
	takes   time.Duration // how long a call takes
	refusal Outcome
	rolls   bool
	state   Rollout
	gone    bool
	hidden  string
}

// call is one that is answered at a time.
type call struct {
	at     time.Time
	answer func(now time.Time)
}

func (c *course) owner(name string) *owner {
	if c.owners[name] == nil {
		c.owners[name] = &owner{state: Rollout{
			Reason: "WorkloadNotAvailable", Fact: "all pods are of the new template and available",
			Observed: "0 of 1 pods updated, 1 available",
		}}
	}
	return c.owners[name]
}

func (c *course) manifest(t *testing.T, words []string) {
	t.Helper()
	file, kind, name := words[0], words[1], words[2]
	m := &Manifest{
		ID: fmt.Sprintf("%s#%06d", file, len(c.manifests[file])), File: file,
		Object: &metav1.ObjectReference{Kind: kind, Name: name},
	}
	for _, w := range words[3:] {
		switch what, version, _ := strings.Cut(w, "="); what {
		case "operator":
			m.Operator, m.Operands = name, []*updatev1.OperandVersion{{Name: "operator", Version: version}}
		case "rolls":
			c.owner(name).rolls = true
		case "unmanaged":
			m.Unmanaged = true
		case "job":
			m.Job, c.owner(name).rolls = true, true
		case "ran":
			m.Ran = true
		case "leftover":
			m.ID, m.File, m.Leftover = "leftover "+name, "", true
			c.leftovers = append(c.leftovers, m)
			return
		case "nodes":
			m.ID, m.File = "nodes", ""
			c.nodes = m
			return
		default:
			t.Fatalf("unknown word %q", w)
		}
	}
	if c.manifests == nil {
		c.manifests = map[string][]*Manifest{}
	}
	if c.manifests[file] == nil {
		c.files = append(c.files, file)
	}
	c.manifests[file] = append(c.manifests[file], m)
}

func (c *course) start() {
	if due := c.rhythm.Due(c.now, func() []string { return nil }); !due.All {
		c.now = due.Wake
	}
	c.last = NewPass(PassView{
		Version: "1.1.0", Mode: c.mode, Files: c.files, Manifests: c.manifests, Before: c.done, Failures: c.failures,
		Sightings: c.sightings, Leftovers: c.leftovers, Nodes: c.nodes, Aborts: c.mode == Updating,
	})
	c.pass = c.last
}

func (c *course) happens(words []string) error {
	name, text := words[1], strings.Join(words[min(len(words), 2):], " ")
	o := c.owner(name)
	switch words[0] {
	case "refuses", "rejects":
		o.refusal = Outcome{Problem: text, Passing: words[0] == "refuses"}
	case "leaves":
		o.refusal = Outcome{Leaving: text}
	case "takes":
		o.refusal = Outcome{}
	case "slow":
		var err error
		o.takes, err = time.ParseDuration(text)
		return err
	case "operator", "degraded":
		degraded := False
		if words[0] == "degraded" {
			degraded, text = True, c.operators[name].GetStatus().GetVersions()[0].GetVersion()
		}
		c.operators[name] = &updatev1.ClusterOperator{Status: &updatev1.ClusterOperatorStatus{
			Conditions: []*metav1.Condition{
				condition(Available, True, "", ""),
				condition(Degraded, degraded, "Sick", "a reason"),
			},
			Versions: []*updatev1.OperandVersion{{Name: "operator", Version: text}},
		}}
	case "gone":
		delete(c.operators, name)
		o.gone = true
	case "rolled":
		o.state = Rollout{Ready: true}
	case "stuck":
		o.state.Failed, o.state.Reason, o.state.Observed = true, "WorkloadNotProgressing", text
	case "hidden":
		o.hidden = text
	case "store":
		c.storeAway = name == "away"
	case "pause":
		c.version.Spec = &updatev1.ClusterVersionSpec{}
		if name == "over" {
			break
		}
		pause := &Pause{Reason: "trade fair"}
		if name != "open" {
			length, err := time.ParseDuration(name)
			if err != nil {
				return err
			}
			pause.Until = timestamppb.New(c.now.Add(length))
		}
		c.version.Spec.Pause = Pausing(nil, pause, "alice", c.now)
	default:
		return errors.New("unknown event")
	}
	return nil
}

// tick answers the calls that are due, and then asks the pass.
func (c *course) tick() {
	c.now = c.now.Add(tick)
	if c.pass == nil {
		return
	}
	pending := c.calls
	c.calls = nil
	for _, call := range pending {
		if call.at.After(c.now) {
			c.calls = append(c.calls, call)
		} else {
			call.answer(c.now)
		}
	}
	next := c.pass.Next(c.now, func(name string) *updatev1.ClusterOperator { return c.operators[name] },
		Paused(&c.version, c.now))
	for _, a := range next.Do {
		c.do(a)
	}
	if next.Over {
		run := c.pass.Run()
		run.Completed = c.pass.Completed()
		c.say("over", run)
		if c.failures, c.done = c.pass.Failed(), int(c.pass.Progress().GetDone()); run.Completed {
			c.done = 0
		}
		c.rhythm.Ended(c.now, run.Completed, 4*time.Minute)
		c.pass, c.calls = nil, nil
	}
}

func (c *course) do(a Action) {
	p := c.pass
	switch a.Verb {
	case Apply, Remove:
		o := c.owner(a.Manifest.Object.GetName())
		c.note("%s %s", a.Verb, a.Manifest.Title())
		outcome := cmp.Or(o.refusal, Outcome{RollsOut: o.rolls})
		c.calls = append(c.calls, &call{c.now.Add(o.takes), func(now time.Time) {
			if outcome.Problem == "" && a.Manifest.Operator != "" && c.operators[a.Manifest.Operator] == nil {
				c.operators[a.Manifest.Operator] = &updatev1.ClusterOperator{}
			}
			p.Applied(a.Manifest.ID, outcome, now)
		}})
	case Follow:
		c.note("%s %s", a.Verb, a.Manifest.Title())
		c.follow(p, a.Manifest)
	case Publish:
		if c.storeAway {
			c.note("report not written")
		} else {
			c.say(fmt.Sprintf("%d of %d, level %q", a.Progress.GetDone(), a.Progress.GetTotal(), a.Progress.GetRunLevel()),
				a.Run)
		}
		written := !c.storeAway
		c.calls = append(c.calls, &call{c.now, func(now time.Time) { p.Published(written, now) }})
	}
}

// follow reports the workload of a manifest to the pass at each tick, until it is ready or its watch ends.
func (c *course) follow(p *Pass, m *Manifest) {
	c.calls = append(c.calls, &call{c.now, func(now time.Time) {
		switch o := c.owner(m.Object.GetName()); {
		case o.gone:
			p.Broke(m.ID, "it was deleted while it was waited for", true, now)
		case o.hidden != "":
			p.Broke(m.ID, o.hidden, false, now)
		default:
			if p.Rolled(m.ID, o.state, now); !o.state.Ready {
				c.follow(p, m)
			}
		}
	}})
}

// say writes down what the status says, if that is new.
func (c *course) say(what string, r Run) {
	c.status = Conditions(r, c.status, c.now)
	text := fmt.Sprintf("%s: %s (Failing=%s)", what, Find(c.status, Progressing).GetMessage(),
		Find(c.status, Failing).GetStatus())
	for _, g := range r.Gates {
		if g.Wait != nil {
			text += fmt.Sprintf("\n  %s Is: %s, since %.0f s", g.Wait.GetFact(), g.Wait.GetObserved(),
				g.Wait.GetSince().AsTime().Sub(c.begin).Seconds())
		}
	}
	if text != c.said {
		c.note("%s", strings.ReplaceAll(text, "\n", "\n       "))
	}
	c.said = text
}

// steps writes how far the pass is with each manifest.
func (c *course) steps() {
	for i, step := range c.last.Steps() {
		fmt.Fprintf(&c.out, "%d level %q job=%t %s\n", i+1, step.GetRunLevel(), step.GetJob(), step.GetState())
		for _, chain := range step.GetChains() {
			for _, m := range chain.GetManifests() {
				fmt.Fprintf(&c.out, "  %s %s %q %s\n", chain.GetComponent(), m.GetState(), m.GetObject().GetName(), m.GetReason())
				if m.GetResolution() != "" {
					fmt.Fprintf(&c.out, "    %s\n", m.GetResolution())
				}
				if m.GetWait() != nil {
					fmt.Fprintf(&c.out, "    %s since %.0f s\n", m.GetWait().GetFact(),
						m.GetWait().GetSince().AsTime().Sub(c.begin).Seconds())
				}
			}
		}
	}
	for _, o := range c.last.Coming() {
		fmt.Fprintf(&c.out, "next: %s\n", o.GetName())
	}
}

func (c *course) note(format string, args ...any) {
	fmt.Fprintf(&c.out, "%6.1f %s\n", c.now.Sub(c.begin).Seconds(), fmt.Sprintf(format, args...))
}
