package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	programv1 "github.com/windlass-dev/windlass/gen/windlass/program/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/supervision"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

var (
	order = []string{"update-orchestrator", "gateway", "scheduler"}
	// Each program alone, and two of them together.
	apart    = [][]string{order[:1], order[1:2], order[2:]}
	together = [][]string{order[:1], order[1:]}
)

// wantedProgram is a program at generation 2 of which a release wants version 2.
func wantedProgram(name, turn string, hosts ...*programv1.ProgramHost) *programv1.Program {
	return &programv1.Program{
		Metadata: &metav1.ObjectMeta{Name: name, Generation: 2},
		Spec:     &programv1.ProgramSpec{Image: "i2", Version: "2"},
		Status:   &programv1.ProgramStatus{Turn: turn, Hosts: hosts},
	}
}

func deletedProgram(name string, hosts ...*programv1.ProgramHost) *programv1.Program {
	p := wantedProgram(name, "", hosts...)
	p.Metadata.DeletionTimestamp = timestamppb.Now()
	p.Metadata.Finalizers = []string{supervision.Finalizer}
	return p
}

// on is what a host reports of the generation 2: version is what it runs, and reason why it changes or does not.
func on(host, version, reason string) *programv1.ProgramHost {
	h := &programv1.ProgramHost{
		Name: host, ObservedGeneration: 2, Image: "i" + version, Version: version, Reason: reason, Message: "said by " + host,
		Progressing: slices.Contains([]string{"Starting", "Fetching", "NotFetched", "AwaitsTurn", "TurnHeld", "Returning"},
			reason),
	}
	if version == "0" { // what the host was started with
		h.Image = ""
	}
	return h
}

// hosts are h1 to h3, where the programs of order serve; without says where one does not. h1 leads all.
func hosts(without ...string) []plan.ProgramHost {
	out := []plan.ProgramHost{{Name: "h1", Leading: order}, {Name: "h2"}, {Name: "h3"}}
	for i := range out {
		out[i].Present = !slices.Contains(without, out[i].Name)
		for _, program := range order {
			if out[i].Present && !slices.Contains(without, program+" "+out[i].Name) {
				out[i].Serving = append(out[i].Serving, program)
			}
		}
	}
	return out
}

func TestPrograms(t *testing.T) {
	old := func(host string) *programv1.ProgramHost { return on(host, "1", "AwaitsTurn") }
	has := func(host string) *programv1.ProgramHost { return on(host, "2", "Updated") }
	for name, c := range map[string]struct {
		programs []*programv1.Program
		levels   [][]string // apart if there are none
		hosts    []plan.ProgramHost
		turns    []string // "program: host reason"
		words    string   // of the first message
	}{
		"the leader's host is last": {
			programs: []*programv1.Program{wantedProgram("gateway", "", old("h1"), old("h2"), old("h3"))},
			hosts:    hosts(),
			turns:    []string{"gateway: h2 UpdatesHost"}, words: "0 of 3 hosts have version 2; host h2 is next",
		},
		"only the leader's host is left": {
			programs: []*programv1.Program{wantedProgram("gateway", "h3", old("h1"), has("h2"), has("h3"))},
			hosts:    hosts(),
			turns:    []string{"gateway: h1 UpdatesHost"}, words: "2 of 3 hosts have version 2",
		},
		"a process that does not serve is first": {
			programs: []*programv1.Program{wantedProgram("gateway", "", old("h1"), old("h2"), old("h3"))},
			hosts:    hosts("gateway h3"),
			turns:    []string{"gateway: h3 UpdatesHost"}, words: "host h3 is next",
		},
		"none serves": {
			programs: []*programv1.Program{wantedProgram("gateway", "", old("h1"), old("h2"), old("h3"))},
			hosts:    hosts("gateway h1", "gateway h2", "gateway h3"),
			turns:    []string{"gateway: h1 UpdatesHost"},
		},
		"the leader's process is the one that does not serve": {
			programs: []*programv1.Program{wantedProgram("gateway", "", old("h1"), old("h2"), old("h3"))},
			hosts:    hosts("gateway h1"),
			turns:    []string{"gateway: h1 UpdatesHost"},
		},
		"a host that must not begin has not seen it": {
			programs: []*programv1.Program{wantedProgram("gateway", "h2", old("h1"), old("h2"), old("h3"))},
			hosts:    hosts("gateway h3"),
			turns:    []string{"gateway: h2 HostNotReady held"},
		},
		"a host that must not begin has seen it, and the one that does not serve is changed": {
			programs: []*programv1.Program{func() *programv1.Program {
				p := wantedProgram("gateway", "h2", old("h1"), on("h2", "1", "TurnHeld"), old("h3"))
				p.Status.TurnHeld = true
				return p
			}()},
			hosts: hosts("gateway h3"), turns: []string{"gateway: h3 UpdatesHost"},
		},
		"a host that must not begin may again": {
			programs: []*programv1.Program{func() *programv1.Program {
				p := wantedProgram("gateway", "h2", old("h1"), on("h2", "1", "TurnHeld"), old("h3"))
				p.Status.TurnHeld = true
				return p
			}()},
			hosts: hosts(), turns: []string{"gateway: h2 UpdatesHost"},
		},
		"a host is back at what is wanted, and its process is not there yet": {
			programs: []*programv1.Program{wantedProgram("gateway", "", on("h1", "1", "Returning"), has("h2"), has("h3"))},
			hosts:    hosts("gateway h1"),
			turns:    []string{"gateway:  Returning"}, words: "host h1: said by h1",
		},
		"one that has it does not serve": {
			programs: []*programv1.Program{wantedProgram("gateway", "h2", old("h1"), has("h2"), old("h3"))},
			hosts:    hosts("gateway h2"),
			turns:    []string{"gateway:  HostNotReady"},
			words:    "host h3 is next, and waits until the process of host h2 serves",
		},
		"a host has the executable before the others": {
			programs: []*programv1.Program{wantedProgram("gateway", "", old("h1"), on("h2", "1", "Fetching"), old("h3"))},
			hosts:    hosts(),
			turns:    []string{"gateway: h3 UpdatesHost"},
		},
		"no host but the leader's has the executable": {
			programs: []*programv1.Program{
				wantedProgram("gateway", "", old("h1"), on("h2", "1", "Fetching"), on("h3", "1", "Fetching")),
			},
			hosts: hosts(),
			turns: []string{"gateway:  Fetching"}, words: "host h2: said by h2",
		},
		"a host does not report": {
			programs: []*programv1.Program{wantedProgram("gateway", "", old("h1"), has("h2"))},
			hosts:    hosts(),
			turns:    []string{"gateway:  HostNotReady"},
			words:    "host h3 has not reported on it: start `windlass host run` there",
		},
		"a host is away": {
			programs: []*programv1.Program{wantedProgram("gateway", "", old("h1"), old("h2"), old("h3"))},
			hosts:    hosts("h3"),
			turns:    []string{"gateway:  HostAway"},
			words:    "host h2 is next, and waits for host h3, which runs no programs now",
		},
		"only a host that is away lacks it": {
			programs: []*programv1.Program{wantedProgram("gateway", "", has("h1"), has("h2"), old("h3"))},
			hosts:    hosts("h3"),
			turns:    []string{"gateway:  HostAway"}, words: "host h3 runs no programs now: it goes on when it is back",
		},
		"the host that changes is away": {
			programs: []*programv1.Program{wantedProgram("gateway", "h3", old("h1"), old("h2"), on("h3", "2", "Starting"))},
			hosts:    hosts("h3"),
			turns:    []string{"gateway: h3 HostAway"}, words: "host h3 changes, and runs no programs now",
		},
		"a host that has its turn has not begun when another one goes": {
			programs: []*programv1.Program{wantedProgram("gateway", "h2", old("h1"), old("h2"), old("h3"))},
			hosts:    hosts("h3"),
			turns:    []string{"gateway: h2 HostAway held"}, words: "waits for host h3, which runs no programs now",
		},
		"a host has begun when another one goes": {
			programs: []*programv1.Program{wantedProgram("gateway", "h2", old("h1"), on("h2", "2", "Starting"), old("h3"))},
			hosts:    hosts("h3", "gateway h2"),
			turns:    []string{"gateway: h2 Starting"},
		},
		"a host that has its turn does not serve when another one goes": {
			programs: []*programv1.Program{wantedProgram("gateway", "h2", old("h1"), old("h2"), old("h3"))},
			hosts:    hosts("h3", "gateway h2"),
			turns:    []string{"gateway: h2 UpdatesHost"},
		},
		"the host that changed was removed": {
			programs: []*programv1.Program{wantedProgram("gateway", "h4", old("h1"), old("h2"), old("h3"),
				on("h4", "2", "Starting"))},
			hosts: hosts(),
			turns: []string{"gateway: h2 UpdatesHost"},
		},
		"a host is on trial": {
			programs: []*programv1.Program{wantedProgram("gateway", "h2", old("h1"), on("h2", "2", "Starting"), old("h3"))},
			hosts:    hosts("gateway h2"),
			turns:    []string{"gateway: h2 Starting"}, words: "host h2 changes: said by h2",
		},
		"a host has its turn and has not said so": {
			programs: []*programv1.Program{wantedProgram("gateway", "h3", old("h1"), old("h2"), old("h3"))},
			hosts:    hosts(),
			turns:    []string{"gateway: h3 UpdatesHost"}, words: "host h3 has its turn, and has not reported since",
		},
		"a host reports an older generation": {
			programs: []*programv1.Program{wantedProgram("gateway", "h3", has("h1"), has("h2"), func() *programv1.ProgramHost {
				h := on("h3", "1", "RolledBack")
				h.ObservedGeneration = 1
				return h
			}())},
			hosts: hosts(), turns: []string{"gateway: h3 UpdatesHost"},
		},
		"a host went back": {
			programs: []*programv1.Program{wantedProgram("gateway", "h2", old("h1"), on("h2", "1", "RolledBack"), old("h3"))},
			hosts:    hosts(),
			turns:    []string{"gateway:  RolledBack failed"}, words: "host h2: said by h2",
		},
		"the last host goes back, and its process still runs from what did not come up": {
			programs: []*programv1.Program{wantedProgram("gateway", "h1", on("h1", "2", "RolledBack"), has("h2"), has("h3"))},
			hosts:    hosts(),
			turns:    []string{"gateway:  RolledBack failed"}, words: "host h1: said by h1",
		},
		"a host cannot run it while another one has its turn": {
			programs: []*programv1.Program{wantedProgram("gateway", "h2", old("h1"), old("h2"), on("h3", "1", "CannotRun"))},
			hosts:    hosts(),
			turns:    []string{"gateway: h2 CannotRun failed held"}, words: "host h3: said by h3",
		},
		"a host cannot run it while another one is on trial": {
			programs: []*programv1.Program{
				wantedProgram("gateway", "h2", old("h1"), on("h2", "2", "Starting"), on("h3", "1", "CannotRun")),
			},
			hosts: hosts(),
			turns: []string{"gateway: h2 Starting"},
		},
		"all have it": {
			programs: []*programv1.Program{wantedProgram("gateway", "h1", has("h1"), has("h2"), has("h3"))},
			hosts:    hosts(),
			turns:    []string{"gateway:  Updated updated"}, words: "all hosts have version 2: h1, h2, h3",
		},
		"no host is known": {
			programs: []*programv1.Program{wantedProgram("gateway", "")},
			turns:    []string{"gateway:  HostAway"}, words: "no host of the control plane is known",
		},
		"one program after the other": {
			programs: []*programv1.Program{
				wantedProgram("scheduler", "", old("h2")), wantedProgram("gateway", "", old("h2")),
				wantedProgram("update-orchestrator", "", old("h2")),
			},
			hosts: hosts(),
			turns: []string{
				"update-orchestrator: h2 UpdatesHost", "gateway:  AwaitsPrograms", "scheduler:  AwaitsPrograms",
			},
		},
		"what changes already goes on": {
			programs: []*programv1.Program{
				wantedProgram("gateway", "", old("h1"), old("h2")), wantedProgram("scheduler", "h2", on("h2", "2", "Starting")),
			},
			hosts: hosts(),
			turns: []string{"gateway:  AwaitsPrograms", "scheduler: h2 Starting"},
			words: "0 of 3 hosts have version 2; it waits for scheduler, which changes on host h2",
		},
		"programs of a level change together on a host": {
			levels: together,
			programs: []*programv1.Program{
				wantedProgram("gateway", "", old("h1"), old("h2"), old("h3")),
				wantedProgram("scheduler", "", old("h1"), old("h2"), old("h3")),
			},
			hosts: hosts(), turns: []string{"gateway: h2 UpdatesHost", "scheduler: h2 UpdatesHost"},
		},
		"one follows another of its level to the host of its leader": {
			levels: together,
			programs: []*programv1.Program{
				wantedProgram("gateway", "h1", on("h1", "2", "Starting"), has("h2"), has("h3")),
				wantedProgram("scheduler", "", old("h1"), old("h2"), old("h3")),
			},
			hosts: hosts("gateway h1"), turns: []string{"gateway: h1 Starting", "scheduler: h1 UpdatesHost"},
		},
		"one has changed where another of its level does": {
			levels: together,
			programs: []*programv1.Program{
				wantedProgram("gateway", "h2", old("h1"), on("h2", "2", "Starting"), old("h3")),
				wantedProgram("scheduler", "h2", old("h1"), has("h2"), old("h3")),
			},
			hosts: hosts("gateway h2"), turns: []string{"gateway: h2 Starting", "scheduler:  AwaitsPrograms"},
		},
		"a program of another level waits for all of one": {
			levels: together,
			programs: []*programv1.Program{
				wantedProgram("update-orchestrator", "", old("h1"), old("h2"), old("h3")),
				wantedProgram("scheduler", "h2", old("h1"), on("h2", "2", "Starting"), old("h3")),
			},
			hosts: hosts(), turns: []string{"update-orchestrator:  AwaitsPrograms", "scheduler: h2 Starting"},
		},
		"no other host is changed once one of the level went back": {
			levels: together,
			programs: []*programv1.Program{
				wantedProgram("gateway", "h2", old("h1"), has("h2"), old("h3")),
				wantedProgram("scheduler", "h2", old("h1"), on("h2", "1", "RolledBack"), old("h3")),
			},
			hosts: hosts(), turns: []string{"gateway:  AwaitsPrograms", "scheduler:  RolledBack failed"},
			words: "1 of 3 hosts have version 2; it waits for scheduler, which did not change on host h2",
		},
		"one of another release goes on then": {
			levels: together,
			programs: []*programv1.Program{
				wantedProgram("gateway", "", on("h1", "3", "AwaitsTurn"), has("h2"), has("h3")),
				func() *programv1.Program {
					p := wantedProgram("scheduler", "", old("h1"), on("h2", "1", "RolledBack"), old("h3"))
					p.Spec.Image = "i3"
					return p
				}(),
			},
			hosts: hosts(), turns: []string{"gateway: h1 UpdatesHost", "scheduler:  RolledBack failed"},
		},
		"the program that others read from waits until they have": {
			programs: []*programv1.Program{
				wantedProgram("update-orchestrator", "", old("h1"), old("h2"), on("h3", "1", "Fetching")),
			},
			hosts: hosts(), turns: []string{"update-orchestrator:  Fetching"},
			words: "host h2 is next, and waits until host h3 has read the executable",
		},
		"it does not wait for a host that is away or cannot read": {
			programs: []*programv1.Program{
				wantedProgram("update-orchestrator", "", old("h1"), old("h2"), on("h3", "1", "NotFetched")),
			},
			hosts: hosts(), turns: []string{"update-orchestrator: h2 UpdatesHost"},
		},
		"it is deleted": {
			programs: []*programv1.Program{deletedProgram("gateway", on("h1", "2", "Updated"), on("h2", "0", "Updated"),
				on("h3", "2", "AwaitsTurn"))},
			hosts: hosts(), turns: []string{"gateway: h3 UpdatesHost"},
			words: "1 of 3 hosts have the executable that they were started with",
		},
		"it is deleted, and the host of the turn has not reported since": {
			programs: []*programv1.Program{func() *programv1.Program {
				p := deletedProgram("gateway", on("h1", "2", "Updated"), on("h2", "2", "Updated"), on("h3", "2", "AwaitsTurn"))
				p.Status.Turn = "h2"
				return p
			}()},
			hosts: hosts(), turns: []string{"gateway: h2 UpdatesHost"},
		},
		"it is deleted, and a host did not come up": {
			programs: []*programv1.Program{deletedProgram("gateway", on("h1", "0", "RolledBack"), on("h2", "0", "Updated"),
				on("h3", "0", "Updated"))},
			hosts: hosts(), turns: []string{"gateway:  RolledBack"}, words: "host h1: said by h1",
		},
		"it is deleted, and a host that is away has it": {
			programs: []*programv1.Program{deletedProgram("gateway", on("h1", "0", "Updated"), on("h2", "0", "Updated"),
				on("h3", "2", "AwaitsTurn"))},
			hosts: hosts("h3"), turns: []string{"gateway:  HostAway"},
		},
		"it is deleted, and no host is present": {
			programs: []*programv1.Program{deletedProgram("gateway", on("h1", "2", "Updated"))},
			hosts:    hosts("h1", "h2", "h3"), turns: []string{"gateway:  HostAway"},
		},
		"it is deleted and gone": {
			programs: []*programv1.Program{deletedProgram("gateway", on("h1", "0", "Updated"), on("h2", "0", "Updated"),
				on("h3", "0", "Updated"))},
			hosts: hosts(), turns: []string{"gateway:  Updated updated gone"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			if c.levels == nil {
				c.levels = apart
			}
			list := plan.Programs(plan.ProgramsView{
				Programs: c.programs, Levels: c.levels, Hosts: c.hosts, Images: "update-orchestrator",
			})
			for _, d := range list {
				text := fmt.Sprintf("%s: %s %s", d.Program.GetMetadata().GetName(), d.Turn, d.Reason)
				for _, f := range []struct {
					word string
					is   bool
				}{{"failed", d.Failed}, {"held", d.Held}, {"updated", d.Updated}, {"gone", d.Gone}} {
					if f.is {
						text += " " + f.word
					}
				}
				got = append(got, text)
			}
			if !slices.Equal(got, c.turns) {
				t.Errorf("turns %q, want %q", got, c.turns)
			}
			if !strings.Contains(list[0].Message, c.words) {
				t.Errorf("message %q, want %q", list[0].Message, c.words)
			}
		})
	}
}

func TestTheStatusOfAProgramFollowsFromItsHosts(t *testing.T) {
	p := wantedProgram("gateway", "h2", on("h4", "2", "Updated"), on("h3", "1", "AwaitsTurn"), on("h2", "2", "Starting"),
		on("h1", "2", "Updated"))
	p.Status.Hosts[2].PreviousImage = "i1"
	v := plan.ProgramsView{Programs: []*programv1.Program{p}, Levels: apart, Hosts: hosts()}
	before := proto.CloneOf(p)
	next := plan.Programs(v)[0].Applied(v.Hosts, time.Unix(60, 0))
	if !proto.Equal(before, p) {
		t.Error("what was given has changed")
	}
	st := next.GetStatus()
	var names []string
	for _, h := range st.GetHosts() {
		names = append(names, h.GetName())
	}
	c := object.FindCondition(st.GetConditions(), "Progressing")
	if st.GetTurn() != "h2" || st.GetVersion() != "1" || st.GetImage() != "i1" || st.GetPreviousImage() != "i1" ||
		c.GetStatus() != plan.True || c.GetReason() != "Starting" || strings.Join(names, " ") != "h1 h2 h3" ||
		!slices.Contains(next.GetMetadata().GetFinalizers(), supervision.Finalizer) {
		t.Errorf("status %v, finalizers %q", st, next.GetMetadata().GetFinalizers())
	}
	if plan.RolloutOf(next).Ready {
		t.Error("it counts as updated before all hosts have it")
	}
	for _, h := range next.Status.Hosts {
		proto.Reset(h)
		proto.Merge(h, on("h", "2", "Updated"))
	}
	for i, h := range next.Status.Hosts {
		h.Name = fmt.Sprintf("h%d", i+1)
	}
	v.Programs[0] = next
	last := plan.Programs(v)[0].Applied(v.Hosts, time.Unix(61, 0))
	if !plan.RolloutOf(last).Ready || last.GetStatus().GetTurn() != "" {
		t.Errorf("all hosts have it: %v, status %v", plan.RolloutOf(last), last.GetStatus())
	}
	last.Metadata.DeletionTimestamp = timestamppb.Now()
	for _, h := range last.Status.Hosts {
		h.Image = ""
	}
	v.Programs[0] = last
	if f := plan.Programs(v)[0].Applied(v.Hosts, time.Unix(62, 0)).GetMetadata().GetFinalizers(); len(f) > 0 {
		t.Errorf("it is kept by %q although no host needs it", f)
	}
}

// Whatever hosts do, and whenever releases change their mind, only processes of one level on one host are away because
// of an update, and in the end all hosts have what is wanted.
func TestOneHostChangesAtATime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := model{
			t: t, levels: rapid.SampledFrom([][][]string{apart, together}).Draw(t, "levels"),
			programs: map[string]*programv1.Program{}, seen: map[string]*programv1.Program{}, runs: map[string]string{},
			before: map[string]string{}, refused: map[string]int32{}, down: map[string]bool{}, away: map[string]bool{},
		}
		for _, name := range order {
			m.programs[name] = wantedProgram(name, "")
			for _, h := range hosts() {
				m.runs[h.Name+name] = "0"
			}
		}
		for range rapid.IntRange(0, 80).Draw(t, "steps") {
			switch name := rapid.SampledFrom(order).Draw(t, "program"); rapid.IntRange(0, 19).Draw(t, "event") {
			case 0, 1:
				m.release(name, fmt.Sprint(rapid.IntRange(1, 3).Draw(t, "version")))
			case 2:
				m.delete(name)
			case 3:
				at := rapid.SampledFrom([]string{"h1", "h2", "h3"}).Draw(t, "host")
				m.away[at] = !m.away[at]
			case 4:
				at := rapid.SampledFrom([]string{"h1", "h2", "h3"}).Draw(t, "host") + name
				m.down[at] = !m.down[at]
			}
			m.work(func(what string) bool { return rapid.Bool().Draw(t, what) })
		}
		clear(m.away)
		down := m.down
		m.down = map[string]bool{}
		rest := func() {
			for range 80 {
				m.work(func(string) bool { return false })
			}
		}
		rest()
		m.down = down // what does not serve is repaired by the last release, which no host has refused
		for _, name := range order {
			m.release(name, "4")
		}
		rest()
		for at, version := range m.runs {
			if p := m.programs[at[2:]]; version != "4" || !plan.RolloutOf(p).Ready {
				t.Fatalf("%s runs version %s at the end: %v; all %v, %v, %v", at, version, p, m.programs, m.runs, m.before)
			}
		}
	})
}

// model is three hosts with their supervisors, and the leader of update-orchestrator.
type model struct {
	t        *rapid.T
	levels   [][]string
	programs map[string]*programv1.Program // as they are stored

	// By host and program: what a supervisor sees, which may be older; the version that runs, and on trial the one before;
	// the generation that was refused; whether the process does not serve.
	seen         map[string]*programv1.Program
	runs, before map[string]string
	refused      map[string]int32
	down         map[string]bool
	away         map[string]bool // by host
}

// release has a release bring a program.
func (m *model) release(name, version string) {
	p := m.programs[name]
	switch {
	case p == nil:
		m.programs[name] = wantedProgram(name, "")
		p = m.programs[name]
		p.Metadata.Generation = 1
		for _, h := range hosts() {
			delete(m.seen, h.Name+name) // it is another object
			m.refused[h.Name+name] = 0
		}
	case object.Deleting(p) || p.GetSpec().GetVersion() == version:
		return
	}
	p = proto.CloneOf(p)
	p.Spec = &programv1.ProgramSpec{Image: "i" + version, Version: version}
	p.Metadata.Generation++
	m.programs[name] = p
}

// delete has a release take a program away.
func (m *model) delete(name string) {
	if p := m.programs[name]; p != nil && !object.Deleting(p) && len(p.GetMetadata().GetFinalizers()) > 0 {
		p = proto.CloneOf(p)
		p.Metadata.DeletionTimestamp = timestamppb.Now()
		m.programs[name] = p
	}
}

// work is a step of the leader and one of each supervisor; lazy says what does not happen in it.
func (m *model) work(lazy func(string) bool) {
	now := hosts()
	for i := range now {
		now[i].Present, now[i].Serving = !m.away[now[i].Name], nil
		for _, name := range order {
			at := now[i].Name + name
			if _, trial := m.before[at]; now[i].Present && !trial && !m.down[at] {
				now[i].Serving = append(now[i].Serving, name)
			}
		}
	}
	var list []*programv1.Program
	for _, name := range order {
		if m.programs[name] != nil {
			list = append(list, m.programs[name])
		}
	}
	for _, d := range plan.Programs(plan.ProgramsView{
		Programs: list, Levels: m.levels, Hosts: now, Images: order[0],
	}) {
		name := d.Program.GetMetadata().GetName()
		m.programs[name] = d.Applied(now, time.Unix(0, 0))
		if object.Deleting(m.programs[name]) && len(m.programs[name].GetMetadata().GetFinalizers()) == 0 {
			delete(m.programs, name)
		}
	}
	for _, h := range now {
		for _, name := range order {
			if at := h.Name + name; !m.away[h.Name] && !lazy(at) {
				m.supervise(h.Name, name, lazy)
			}
		}
	}
	places := map[string]bool{} // by host and level
	for at := range m.before {
		level := slices.IndexFunc(m.levels, func(names []string) bool { return slices.Contains(names, at[2:]) })
		places[fmt.Sprintf("level %d on %s", level, at[:2])] = true
	}
	if len(places) > 1 {
		m.t.Fatalf("changes at a time: %v of %v", places, m.before)
	}
}

// supervise is a step of the supervisor of a host for a program.
func (m *model) supervise(host, name string, lazy func(string) bool) {
	at := host + name
	if m.seen[at] == nil || !lazy("fresh "+at) {
		m.seen[at] = m.programs[name]
	}
	p := m.seen[at]
	if p == nil {
		if m.runs[at] != "0" && m.before[at] == "" {
			m.t.Fatalf("%s runs version %s, and its program is gone", at, m.runs[at])
		}
		return
	}
	want := p.GetSpec().GetVersion()
	if object.Deleting(p) {
		want = "0"
	}
	generation := p.GetMetadata().GetGeneration()
	reason := "AwaitsTurn"
	if p.GetStatus().GetTurn() == host && p.GetStatus().GetTurnHeld() {
		reason = "TurnHeld"
	}
	before, trial := m.before[at]
	switch {
	case trial && lazy("settled "+at):
		reason = "Starting"
	case trial && lazy("good "+at):
		m.runs[at], m.refused[at] = before, generation
		delete(m.before, at)
		if want == "0" {
			m.refused[at] = 0 // that is tried again
		} else {
			reason = "RolledBack"
		}
	case trial:
		delete(m.before, at)
	case m.runs[at] != want && want != "0" && m.refused[at] == generation:
		reason = "RolledBack"
	case m.runs[at] != want && lazy("fetched "+at):
		reason = "Fetching"
	case m.runs[at] != want && p.GetStatus().GetTurn() == host && !p.GetStatus().GetTurnHeld() &&
		p.GetStatus().GetObservedGeneration() == generation:
		m.before[at], m.runs[at] = m.runs[at], want
		reason = "Starting"
		if want == "4" {
			delete(m.down, at)
		}
	}
	if m.runs[at] == want && (reason == "AwaitsTurn" || reason == "TurnHeld") {
		reason = "Updated"
	}
	now := m.programs[name]
	if now == nil || now.GetMetadata().GetGeneration() != generation || object.Deleting(now) != object.Deleting(p) {
		return // the write of its report is refused: it was made of an older object
	}
	r := on(host, m.runs[at], reason)
	r.ObservedGeneration = generation
	next := proto.CloneOf(now)
	next.Status.Hosts = append(slices.DeleteFunc(next.Status.Hosts, func(o *programv1.ProgramHost) bool {
		return o.GetName() == host
	}), r)
	m.programs[name] = next
}
