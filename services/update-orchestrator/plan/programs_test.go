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

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

var order = []string{"update-orchestrator", "gateway", "scheduler"}

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
	p.Metadata.Finalizers = []string{plan.SupervisorFinalizer}
	return p
}

// on is what a host reports of the generation 2: version is what it runs, and reason why it changes or does not.
func on(host, version, reason string) *programv1.ProgramHost {
	h := &programv1.ProgramHost{
		Name: host, ObservedGeneration: 2, Image: "i" + version, Version: version, Reason: reason, Message: "said by " + host,
		Progressing: slices.Contains([]string{"Starting", "Fetching", "AwaitsTurn"}, reason),
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
			turns:    []string{"gateway: h3 UpdatesHost"}, words: "since its process does not serve",
		},
		"none serves": {
			programs: []*programv1.Program{wantedProgram("gateway", "", old("h1"), old("h2"), old("h3"))},
			hosts:    hosts("gateway h1", "gateway h2", "gateway h3"),
			turns:    []string{"gateway: h1 UpdatesHost"},
		},
		"one that has it does not serve": {
			programs: []*programv1.Program{wantedProgram("gateway", "h2", old("h1"), has("h2"), old("h3"))},
			hosts:    hosts("gateway h2"),
			turns:    []string{"gateway:  HostNotReady"},
			words:    "host h3 is next, and waits until the process of host h2 serves",
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
		"the host that changed was removed": {
			programs: []*programv1.Program{wantedProgram("gateway", "h4", old("h1"), old("h2"), old("h3"),
				on("h4", "2", "Starting"))},
			hosts: hosts(),
			turns: []string{"gateway: h2 UpdatesHost"},
		},
		"a host is on trial": {
			programs: []*programv1.Program{wantedProgram("gateway", "h2", old("h1"), on("h2", "2", "Starting"), old("h3"))},
			hosts:    hosts("gateway h2"),
			turns:    []string{"gateway: h2 UpdatesHost"}, words: "host h2 changes: said by h2",
		},
		"a host has its turn and has not said so": {
			programs: []*programv1.Program{wantedProgram("gateway", "h3", old("h1"), old("h2"), old("h3"))},
			hosts:    hosts(),
			turns:    []string{"gateway: h3 UpdatesHost"}, words: "host h3 is next, and its supervisor has not begun yet",
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
				wantedProgram("scheduler", ""), wantedProgram("gateway", ""), wantedProgram("update-orchestrator", ""),
			},
			hosts: hosts(),
			turns: []string{
				"update-orchestrator: h2 UpdatesHost", "gateway:  AwaitsPrograms", "scheduler:  AwaitsPrograms",
			},
		},
		"what changes already goes on": {
			programs: []*programv1.Program{
				wantedProgram("gateway", ""), wantedProgram("scheduler", "h2", on("h2", "2", "Starting")),
			},
			hosts: hosts(),
			turns: []string{"gateway:  AwaitsPrograms", "scheduler: h2 UpdatesHost"},
			words: "0 of 3 hosts have version 2; it waits for scheduler, which changes on host h2",
		},
		"it is deleted": {
			programs: []*programv1.Program{deletedProgram("gateway", on("h1", "2", "Updated"), on("h2", "0", "Updated"),
				on("h3", "2", "AwaitsTurn"))},
			hosts: hosts(), turns: []string{"gateway: h3 UpdatesHost"},
			words: "1 of 3 hosts have the executable that they were started with",
		},
		"it is deleted, and a host that is away has it": {
			programs: []*programv1.Program{deletedProgram("gateway", on("h1", "0", "Updated"), on("h2", "0", "Updated"),
				on("h3", "2", "AwaitsTurn"))},
			hosts: hosts("h3"), turns: []string{"gateway:  HostAway gone"},
		},
		"it is deleted and gone": {
			programs: []*programv1.Program{deletedProgram("gateway", on("h1", "0", "Updated"), on("h2", "0", "Updated"),
				on("h3", "0", "Updated"))},
			hosts: hosts(), turns: []string{"gateway:  Updated updated gone"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			list := plan.Programs(plan.ProgramsView{Programs: c.programs, Order: order, Hosts: c.hosts})
			for _, d := range list {
				text := fmt.Sprintf("%s: %s %s", d.Program.GetMetadata().GetName(), d.Turn, d.Reason)
				for word, is := range map[string]bool{" failed": d.Failed, " updated": d.Updated} {
					if is {
						text += word
					}
				}
				if d.Gone {
					text += " gone"
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
	v := plan.ProgramsView{Programs: []*programv1.Program{p}, Order: order, Hosts: hosts()}
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
		c.GetStatus() != plan.True || c.GetReason() != plan.ProgramOnHost || strings.Join(names, " ") != "h1 h2 h3" ||
		!slices.Contains(next.GetMetadata().GetFinalizers(), plan.SupervisorFinalizer) {
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

// Whatever hosts do, and whenever releases change their mind, only one process is away because of an update, and in the
// end all hosts have what is wanted.
func TestOneProcessChangesAtATime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		programs := map[string]*programv1.Program{}
		for _, name := range order {
			programs[name] = wantedProgram(name, "")
		}
		seen := map[string]*programv1.Program{} // what the supervisors see, by host and program: it may be older
		runs := map[string]string{}             // versions, by host and program
		trial := map[string]bool{}
		all := hosts()
		work := func(lazy func(string) bool) {
			var list []*programv1.Program
			for _, name := range order {
				list = append(list, programs[name])
			}
			serving := slices.Clone(all)
			for i, h := range serving {
				serving[i].Serving = slices.DeleteFunc(slices.Clone(order), func(name string) bool { return trial[h.Name+name] })
			}
			for _, d := range plan.Programs(plan.ProgramsView{Programs: list, Order: order, Hosts: serving}) {
				programs[d.Program.GetMetadata().GetName()] = d.Applied(serving, time.Unix(0, 0))
			}
			for _, h := range all {
				for _, name := range order {
					at := h.Name + name
					if lazy(at) {
						continue
					}
					p := seen[at]
					if p == nil || !lazy("fresh "+at) {
						p = programs[name]
						seen[at] = p
					}
					reason := "Updated"
					switch {
					case trial[at]: // it is up
						trial[at] = false
					case runs[at] != p.GetSpec().GetVersion() && p.GetStatus().GetTurn() == h.Name &&
						p.GetStatus().GetObservedGeneration() == p.GetMetadata().GetGeneration():
						runs[at], trial[at] = p.GetSpec().GetVersion(), true
					}
					if trial[at] {
						reason = "Starting"
					} else if runs[at] != p.GetSpec().GetVersion() {
						reason = "AwaitsTurn"
					}
					if p != programs[name] && programs[name].GetMetadata().GetGeneration() != p.GetMetadata().GetGeneration() {
						continue // the write of its report is refused: it was made of an older object
					}
					r := on(h.Name, runs[at], reason)
					r.ObservedGeneration = p.GetMetadata().GetGeneration()
					next := proto.CloneOf(programs[name])
					next.Status.Hosts = append(slices.DeleteFunc(next.Status.Hosts, func(o *programv1.ProgramHost) bool {
						return o.GetName() == h.Name
					}), r)
					programs[name] = next
				}
			}
			n := 0
			for _, is := range trial {
				if is {
					n++
				}
			}
			if n > 1 {
				t.Fatalf("%d processes change at a time: %v", n, trial)
			}
		}
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			if rapid.IntRange(0, 9).Draw(t, "release") == 0 {
				p := proto.CloneOf(programs[rapid.SampledFrom(order).Draw(t, "program")])
				version := fmt.Sprint(rapid.IntRange(1, 3).Draw(t, "version"))
				if version != p.GetSpec().GetVersion() {
					p.Spec = &programv1.ProgramSpec{Image: "i" + version, Version: version}
					p.Metadata.Generation++
				}
				programs[p.GetMetadata().GetName()] = p
			}
			work(func(what string) bool { return rapid.Bool().Draw(t, what) })
		}
		for range 60 {
			work(func(string) bool { return false })
		}
		for at, version := range runs {
			name := at[2:]
			if version != programs[name].GetSpec().GetVersion() {
				t.Fatalf("%s runs version %s, wanted is %v", at, version, programs[name])
			}
		}
	})
}
