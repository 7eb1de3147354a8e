package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	programv1 "github.com/windlass-dev/windlass/gen/windlass/program/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/supervision"
	"google.golang.org/protobuf/proto"
)

// Reasons of the condition Progressing of a program, beyond those that supervisors give.
const (
	updatesHost  = "UpdatesHost"  // a host changes
	hostAway     = "HostAway"     // a host that lacks it cannot be changed now
	fetching     = "Fetching"     // a host reads the executable; it is a reason of supervisors, too
	hostNotReady = "HostNotReady" // a host does not report, or a change would leave too few processes
)

// ProgramHost is a host of the control plane, which has a process of each program.
type ProgramHost struct {
	Name    string
	Present bool     // processes run there
	Serving []string // programs whose process serves there
	Leading []string // programs whose leader is there
}

func (h ProgramHost) serves(program string) bool { return slices.Contains(h.Serving, program) }

// ProgramsView is what is known of the programs that releases brought to a cluster whose control plane is on hosts.
type ProgramsView struct {
	Programs []*programv1.Program
	Levels   [][]string // names of all programs, in the order in which they change; those of a level do together
	Images   string     // program from which the hosts read executables
	Hosts    []ProgramHost
}

// level returns the position of the level of a program.
func (v ProgramsView) level(p *programv1.Program) int {
	return slices.IndexFunc(v.Levels, func(names []string) bool {
		return slices.Contains(names, p.GetMetadata().GetName())
	})
}

// change is a program that changes on a host, or has its turn there.
type change struct {
	program *programv1.Program
	host    string
}

// ProgramTurn is what happens to a program.
type ProgramTurn struct {
	Program *programv1.Program
	Turn    string // host that changes it, or is to; empty if none
	Held    bool   // the host of the turn must not begin now
	Updated bool   // all hosts have what is wanted
	Failed  bool   // a host went back to what it had, so that no other one is changed
	Gone    bool   // nothing wants it, and no host runs from an executable of a release
	Reason  string
	Message string
}

// Programs says on which host which program may change to what is wanted: the programs of one level on one host at a
// time, those whose process does not serve first, the host of leaders last. A host gets its turn once it has the
// executable, and the first one once no other host reads it. A process that serves is only taken down while those of
// all other hosts serve. Once a host had to go back, no other one is changed, for no program of the level. A turn ends
// when its host has what is wanted, had to go back, is no longer of the cluster, or has seen that it must not begin: a
// supervisor may act on it until it has seen the next state.
func Programs(v ProgramsView) []ProgramTurn {
	programs := slices.Clone(v.Programs)
	order := slices.Concat(v.Levels...)
	place := func(p *programv1.Program) int { return slices.Index(order, p.GetMetadata().GetName()) }
	slices.SortStableFunc(programs, func(a, b *programv1.Program) int { return place(a) - place(b) })
	var changes []change
	note := func(p *programv1.Program, host string) {
		if host != "" {
			changes = append(changes, change{p, host})
		}
	}
	for _, p := range programs {
		note(p, changing(p, v.Hosts))
	}
	var out []ProgramTurn
	for _, p := range programs {
		t := v.programTurn(p, changes)
		if changing(p, v.Hosts) == "" {
			note(p, t.Turn)
		}
		out = append(out, t)
	}
	return out
}

// awaits says what a program that does not change waits for: programs of another level, or one of its own that went
// back or changes on two hosts. Otherwise at is the host that it may change on now, with the others of its level; any
// if it is empty.
func (v ProgramsView) awaits(p *programv1.Program, changes []change) (text, at string) {
	for _, c := range changes {
		if v.level(c.program) != v.level(p) || at != "" && at != c.host {
			return fmt.Sprintf("%s, which changes on host %s", c.program.GetMetadata().GetName(), c.host), ""
		}
		at = c.host
	}
	for _, o := range v.Programs {
		// What another release brings may have to change before that can be repaired.
		if o == p || v.level(o) != v.level(p) || o.GetSpec().GetImage() != p.GetSpec().GetImage() || object.Deleting(p) {
			continue
		}
		for _, h := range v.Hosts {
			if gaveUp(o, reportOf(o, h.Name)) {
				return fmt.Sprintf("%s, which did not change on host %s", o.GetMetadata().GetName(), h.Name), ""
			}
		}
	}
	return "", at
}

// awayText is said of a host that is not present.
const awayText = "runs no programs now: it goes on when it is back; if it does not come back, use `windlass host fence` and " +
	"`windlass host remove`"

// changing returns the host on which a program changes now, or has its turn; empty if there is none.
func changing(p *programv1.Program, hosts []ProgramHost) string {
	for _, h := range hosts {
		if onTrial(reportOf(p, h.Name)) {
			return h.Name
		}
	}
	turn := p.GetStatus().GetTurn()
	for _, h := range hosts {
		if r := reportOf(p, h.Name); h.Name == turn && !has(p, r) && !gaveUp(p, r) && !standsDown(p, h.Name, hosts) {
			return turn
		}
	}
	return ""
}

// standsDown reports whether a host has seen that it must not begin, and still must not: another one may be changed.
func standsDown(p *programv1.Program, turn string, hosts []ProgramHost) bool {
	r := reportOf(p, turn)
	reason, _ := lacking(p, turn, hosts)
	return speaks(p, r) && r.GetReason() == supervision.TurnHeld && p.GetStatus().GetTurnHeld() && reason != ""
}

// waits reports whether a host has the executable that is wanted and waits for its turn.
func waits(p *programv1.Program, host string) bool {
	r := reportOf(p, host)
	return speaks(p, r) && (r.GetReason() == supervision.AwaitsTurn || r.GetReason() == supervision.TurnHeld)
}

func reportOf(p *programv1.Program, host string) *programv1.ProgramHost {
	for _, r := range p.GetStatus().GetHosts() {
		if r.GetName() == host {
			return r
		}
	}
	return nil
}

// onTrial reports whether a host has started the program from another executable and may have to go back.
func onTrial(r *programv1.ProgramHost) bool {
	return r.GetProgressing() && r.GetReason() == supervision.Starting
}

// speaks reports whether a report is about what is wanted now.
func speaks(p *programv1.Program, r *programv1.ProgramHost) bool {
	return r != nil && r.GetObservedGeneration() >= p.GetMetadata().GetGeneration()
}

// has reports whether a host runs what is wanted and is done with it. Where the program is deleted that is the
// executable that the host was started with.
func has(p *programv1.Program, r *programv1.ProgramHost) bool {
	if !speaks(p, r) || r.GetProgressing() || r.GetReason() != supervision.Updated {
		return false
	}
	if object.Deleting(p) {
		return r.GetImage() == ""
	}
	return r.GetImage() == p.GetSpec().GetImage() && r.GetVersion() == p.GetSpec().GetVersion()
}

// gaveUp reports whether a host does not try what is wanted any more. There is no other way back than to what the host
// was started with, so that is tried again and again.
func gaveUp(p *programv1.Program, r *programv1.ProgramHost) bool {
	return speaks(p, r) && !r.GetProgressing() && r.GetReason() != supervision.Updated && !object.Deleting(p)
}

func (v ProgramsView) programTurn(p *programv1.Program, changes []change) ProgramTurn {
	hosts := v.Hosts
	t := ProgramTurn{Program: p}
	var lack []ProgramHost
	for _, h := range hosts {
		r := reportOf(p, h.Name)
		if has(p, r) {
			continue
		}
		lack = append(lack, h)
		if gaveUp(p, r) && !t.Failed {
			t.Failed, t.Reason, t.Message = true, r.GetReason(), fmt.Sprintf("host %s: %s", h.Name, r.GetMessage())
		}
	}
	count := fmt.Sprintf("%d of %d hosts have %s", len(hosts)-len(lack), len(hosts), wantedText(p))
	t.Turn = changing(p, hosts)
	awaits, at := v.awaits(p, changes)
	switch {
	case onTrial(reportOf(p, t.Turn)):
		t.Failed = false // until it is known what comes of this one
		t.Reason, t.Message = turnText(p, t.Turn, hosts)
		t.Message = count + "; " + t.Message
	case t.Failed:
		t.Held = t.Turn != ""
	case len(hosts) == 0:
		t.Reason, t.Message = hostAway, "no host of the control plane is known"
	case len(lack) == 0:
		t.Updated, t.Gone, t.Reason = true, object.Deleting(p), supervision.Updated
		t.Message = fmt.Sprintf("all hosts have %s: %s", wantedText(p), namesOf(hosts))
	case t.Turn != "":
		t.Reason, t.Message = turnText(p, t.Turn, hosts)
		if reason, message := lacking(p, t.Turn, hosts); reason != "" {
			t.Held, t.Reason, t.Message = true, reason, message
		}
		t.Message = count + "; " + t.Message
	case awaits != "":
		t.Reason, t.Message = supervision.AwaitsPrograms, fmt.Sprintf("%s; it waits for %s", count, awaits)
	default:
		t.Turn, t.Reason, t.Message = v.nextHost(p, lack, at)
		t.Message = count + "; " + t.Message
	}
	return t
}

// turnText says how far the host is that has the turn.
func turnText(p *programv1.Program, turn string, hosts []ProgramHost) (reason, message string) {
	said := reportOf(p, turn)
	switch {
	case slices.ContainsFunc(hosts, func(h ProgramHost) bool { return h.Name == turn && !h.Present }):
		return hostAway, fmt.Sprintf("host %s changes, and %s", turn, awayText)
	case onTrial(said):
		return said.GetReason(), fmt.Sprintf("host %s changes: %s", turn, said.GetMessage())
	case !speaks(p, said) || waits(p, turn):
		return updatesHost, fmt.Sprintf("host %s has its turn, and has not reported since", turn)
	}
	return updatesHost, fmt.Sprintf("host %s changes: %s", turn, said.GetMessage())
}

// nextHost chooses the host that changes next of those that lack what is wanted, or says why none does. at is the only
// one that may; any if it is empty.
func (v ProgramsView) nextHost(p *programv1.Program, lack []ProgramHost, at string) (turn, reason, message string) {
	program, hosts := p.GetMetadata().GetName(), v.Hosts
	if at != "" {
		if lack = slices.DeleteFunc(slices.Clone(lack), func(h ProgramHost) bool { return h.Name != at }); len(lack) == 0 {
			return "", supervision.AwaitsPrograms, "it waits for other programs, which change on host " + at
		}
	}
	led := func(h ProgramHost) (n int) {
		for _, name := range h.Leading {
			if slices.Contains(v.Levels[max(v.level(p), 0)], name) {
				n++
			}
		}
		return n
	}
	here := slices.DeleteFunc(slices.Clone(lack), func(h ProgramHost) bool { return !h.Present })
	if len(here) == 0 {
		return "", hostAway, fmt.Sprintf("host %s %s", namesOf(lack), awayText)
	}
	rank := func(h ProgramHost) int {
		switch {
		case waits(p, h.Name) && !h.serves(program):
			return 1
		case led(h) > 0: // so that programs are led elsewhere once, not at each host
			return 4 + led(h)
		case !waits(p, h.Name):
			return 3
		}
		return 2
	}
	slices.SortFunc(here, func(a, b ProgramHost) int {
		return cmp.Or(rank(a)-rank(b), strings.Compare(a.Name, b.Name))
	})
	next := here[0]
	switch r := reportOf(p, next.Name); {
	case !speaks(p, r):
		return "", hostNotReady,
			fmt.Sprintf("host %s has not reported on it: start `windlass host run` there, or update "+
				"it; if the host is removed, run `windlass host stop` there", next.Name)
	case !waits(p, next.Name):
		return "", r.GetReason(), fmt.Sprintf("host %s: %s", next.Name, r.GetMessage())
	}
	if reason, message := lacking(p, next.Name, hosts); reason != "" {
		return "", reason, message
	}
	for _, h := range lack {
		if r := reportOf(p, h.Name); program == v.Images && next.serves(program) && h.Present && speaks(p, r) &&
			r.GetReason() == fetching {
			return "", fetching, fmt.Sprintf("host %s is next, and waits until host %s has read the executable, which it may "+
				"read from there", next.Name, h.Name)
		}
	}
	return next.Name, updatesHost, fmt.Sprintf("host %s is next", next.Name)
}

// lacking says why the process of a program on a host must not be taken down now: another one does not serve. A process
// that does not serve may always be.
func lacking(p *programv1.Program, next string, hosts []ProgramHost) (reason, message string) {
	program := p.GetMetadata().GetName()
	if slices.ContainsFunc(hosts, func(h ProgramHost) bool { return h.Name == next && !h.serves(program) }) {
		return "", ""
	}
	for _, h := range hosts {
		switch {
		case h.Name == next || h.serves(program):
		case !h.Present:
			return hostAway, fmt.Sprintf("host %s is next, and waits for host %s, which %s", next, h.Name, awayText)
		default:
			return hostNotReady, fmt.Sprintf(
				"host %s is next, and waits until the process of host %s serves: only one may be missing", next, h.Name)
		}
	}
	return "", ""
}

func wantedText(p *programv1.Program) string {
	if object.Deleting(p) {
		return "the executable that they were started with"
	}
	return "version " + p.GetSpec().GetVersion()
}

func namesOf(hosts []ProgramHost) string {
	var names []string
	for _, h := range hosts {
		names = append(names, h.Name)
	}
	return strings.Join(names, ", ")
}

// Applied returns the program with what follows from the turn: its status, and the finalizer that keeps it until no
// host needs it any more.
func (t ProgramTurn) Applied(hosts []ProgramHost, now time.Time) *programv1.Program {
	next := proto.CloneOf(t.Program)
	next.Status = t.status(hosts, now)
	m := next.GetMetadata()
	switch {
	case t.Gone:
		m.Finalizers = slices.DeleteFunc(m.Finalizers, func(f string) bool { return f == supervision.Finalizer })
	case !object.Deleting(next) && !slices.Contains(m.GetFinalizers(), supervision.Finalizer):
		m.Finalizers = append(m.Finalizers, supervision.Finalizer)
	}
	return next
}

// status follows from the turn and from what the hosts report. Reports of hosts that are no longer of the cluster are
// left out. The image and the version are those of a host that lacks what is wanted, as long as there is one.
func (t ProgramTurn) status(hosts []ProgramHost, now time.Time) *programv1.ProgramStatus {
	p := t.Program
	st := &programv1.ProgramStatus{
		ObservedGeneration: proto.Int32(p.GetMetadata().GetGeneration()), Turn: t.Turn, TurnHeld: t.Held,
		Conditions: proto.CloneOf(p.GetStatus()).GetConditions(),
	}
	for _, r := range p.GetStatus().GetHosts() {
		if !slices.ContainsFunc(hosts, func(h ProgramHost) bool { return h.Name == r.GetName() }) {
			continue
		}
		st.Hosts = append(st.Hosts, r)
		if st.StartTime == nil || r.GetStartTime().GetSeconds() > st.StartTime.GetSeconds() {
			st.StartTime = r.GetStartTime()
		}
		if onTrial(r) {
			st.PreviousImage = r.GetPreviousImage()
		}
	}
	slices.SortFunc(st.Hosts, func(a, b *programv1.ProgramHost) int { return strings.Compare(a.GetName(), b.GetName()) })
	for i, r := range st.Hosts {
		if i == 0 || !has(p, r) {
			st.Image, st.Version = r.GetImage(), r.GetVersion()
		}
	}
	progressing := &metav1.Condition{
		Type: "Progressing", Status: True, Reason: proto.String(t.Reason), Message: proto.String(t.Message),
	}
	if t.Updated || t.Failed {
		progressing.Status = False
	}
	st.Conditions = object.SetCondition(st.Conditions, progressing, now)
	return st
}
