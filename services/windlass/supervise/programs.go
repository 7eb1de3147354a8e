package supervise

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	programv1 "github.com/windlass-dev/windlass/gen/windlass/program/v1"
	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/kit/topology"
	nodeagent "github.com/windlass-dev/windlass/services/node-agent/service"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/supervise/plan"
)

const (
	lookEvery = 500 * time.Millisecond
	lookBusy  = 200 * time.Millisecond // while a program changes
	callLimit = 2 * time.Second
)

// programs keeps each program at the executable that the cluster wants. It is for one goroutine.
type programs struct {
	cluster     *cluster.Cluster
	executables *executables
	supervisor  *process.Supervisor
	log         *slog.Logger
	list        []*program // in the order in which an update restarts them
	conns       map[string]*grpc.ClientConn
	updates     orchestrators
	unasked     string // what came of asking the cluster last: a change of it is logged

	began    time.Time // of this process
	relaunch bool      // this process is to end, and to be started from what the record of Host says
	agent    int       // pid of the machine's agent at the last look
}

// program is what is known of one program.
type program struct {
	name   string
	record plan.Record

	pid        int // at the last look
	restarts   int // that do not count for the trial
	readySince time.Time
	trial      time.Duration
	ready      bool
	runs       plan.Executable // that the process was last seen to run from
	wanted     plan.Executable // at the last look
	added      time.Time       // when this host was last added to the status
	addedTo    string          // of the Program with that uid
	changed    time.Time       // when it was last started from another executable; zero if not by this process
	unsaved    bool            // the record is not on the disk yet
	said       plan.Next
}

func newPrograms(c *cluster.Cluster, own ownExecutable, s *process.Supervisor, log *slog.Logger) (*programs, error) {
	ps := &programs{
		cluster: c, supervisor: s, log: log, conns: map[string]*grpc.ClientConn{}, began: time.Now(),
		updates:     orchestrators{places: manual.NewBuilderWithScheme(anyOrchestrator)},
		executables: newExecutables(c, own, log),
	}
	names := c.Programs() // in the order in which they start
	if launched(c) {
		names = append(names, topology.Host)
	}
	for _, name := range names {
		r, err := ps.executables.read(name)
		if err != nil {
			return nil, err
		}
		p := &program{name: name, record: r, runs: r.Running}
		ps.list = append(ps.list, p)
	}
	return ps, nil
}

// begin has the supervisor run all programs.
func (ps *programs) begin() error {
	for _, p := range ps.list {
		if err := ps.start(p); err != nil {
			return err
		}
	}
	order := topology.UpdateOrder()
	slices.SortFunc(ps.list, func(a, b *program) int {
		return slices.Index(order, a.name) - slices.Index(order, b.name)
	})
	return nil
}

// start has the supervisor run a program from what its record says. This process itself is started again by launch.
func (ps *programs) start(p *program) error {
	if p.name == topology.Host {
		ps.relaunch = p.runs != p.record.Running
		return nil
	}
	spec := ps.cluster.Spec(p.name, ps.executables.own.Path)
	spec.Path = ps.executables.path(p.record.Running)
	return ps.supervisor.Ensure(spec)
}

// run looks after the programs until ctx ends.
func (ps *programs) run(ctx context.Context) error {
	if len(ps.list) == 0 { // as on a worker
		return nil
	}
	defer func() {
		for _, c := range ps.conns {
			c.Close()
		}
	}()
	for last := time.Now(); ; {
		every := lookEvery
		if slices.ContainsFunc(ps.list, func(p *program) bool { return p.said.Progressing }) {
			every = lookBusy
		}
		if !backoff.Sleep(ctx, every) {
			return nil
		}
		now := time.Now()
		ps.look(ctx, min(now.Sub(last), lookEvery+3*callLimit)) // a suspended process saw nothing
		last = now
		if ps.relaunch && !slices.ContainsFunc(ps.list, func(p *program) bool { return p.unsaved }) {
			return errRelaunch
		}
	}
}

// look brings each program closer to what the cluster wants. passed is the time since the last look.
func (ps *programs) look(ctx context.Context, passed time.Duration) {
	wanted, err := ps.wanted(ctx)
	ps.updates.avoid(err)
	known := err == nil
	if text := fmt.Sprint(err); text != ps.unasked && ctx.Err() == nil {
		ps.unasked = text
		if err != nil {
			ps.log.InfoContext(ctx, "which executables the programs should run from cannot be asked", "error", err)
		}
	}
	if !ps.concerned(wanted) {
		return
	}
	ps.observe(ctx, passed, known)
	ps.attest(ctx)
	stuck := false // a report was not answered: the others would not be, either, and a look must not take long
	for _, p := range ps.list {
		o := wanted[p.name]
		v := ps.view(p, o)
		v.Known = known
		p.said = plan.Program(v)
		if p.said.Verb == plan.Switch && o != nil && ps.cluster.Member != nil { // the list may be some seconds old
			if o, err = ps.again(ctx, o); err == nil {
				v = ps.view(p, o)
			} else {
				v.Turn = "update-orchestrator does not say whether it is still this host's turn: " + err.Error()
			}
			v.Known = true
			p.said = plan.Program(v)
		}
		if err := ps.act(ctx, p, v, p.said); err != nil {
			ps.log.ErrorContext(ctx, "executable not changed", "program", p.name, "error", err)
			p.said.Progressing, p.said.Message = true, p.said.Message+" That did not succeed: "+err.Error()
			if p.said.Verb == plan.Switch && !p.record.OnTrial {
				p.said.Reason, p.said.Message = plan.NotStarted, "It could not be started with another executable: "+err.Error()
			}
		}
		if o == nil || stuck {
			continue
		}
		if err := ps.report(ctx, p, o); err != nil {
			stuck = status.Code(err) == codes.DeadlineExceeded
			ps.updates.avoid(err)
			ps.log.DebugContext(ctx, "program not reported", "program", p.name, "error", err)
		}
	}
}

// attest has the record of Host show that this process lives, while the launcher may take it back. It takes no space.
func (ps *programs) attest(ctx context.Context) {
	i := slices.IndexFunc(ps.list, func(p *program) bool { return p.name == topology.Host })
	if i < 0 || !ps.list[i].record.OnTrial && !ps.list[i].unsaved {
		return
	}
	now := time.Now()
	if err := os.Chtimes(recordFile(ps.cluster, topology.Host), now, now); err != nil {
		ps.log.WarnContext(ctx, "trial of this process is not attested", "error", err)
	}
}

// concerned reports whether there is anything to do or to say.
func (ps *programs) concerned(wanted map[string]*programv1.Program) bool {
	return len(wanted) > 0 || slices.ContainsFunc(ps.list, func(p *program) bool {
		return p.unsaved || p.record.OnTrial || p.record.Running.Image != "" || p.record.Refused != nil
	})
}

// conn returns a connection to a program of this host.
func (ps *programs) conn(name string) (*grpc.ClientConn, error) {
	if c := ps.conns[name]; c != nil {
		return c, nil
	}
	address := ps.cluster.Address(name)
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	cfg, err := ps.cluster.SupervisorFiles().ClientTLS(host)
	if err != nil {
		return nil, err
	}
	creds := credentials.NewTLS(identity.WithURI(cfg, identity.ServiceURI(name)))
	c, err := connect("passthrough:///"+address, creds)
	if err == nil {
		ps.conns[name] = c
	}
	return c, err
}

// observe asks every program whether it is ready. Time and restarts count for a trial while another program is that
// needs the same: else etcd or the machine is the cause.
func (ps *programs) observe(ctx context.Context, passed time.Duration, known bool) {
	ready := make([]bool, len(ps.list))
	var group sync.WaitGroup
	for i, p := range ps.list {
		if p.name == topology.Host {
			ready[i] = known && ps.agentRuns()
			continue
		}
		conn, err := ps.conn(p.name)
		if err != nil {
			continue
		}
		group.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, callLimit)
			defer cancel()
			r, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
			ready[i] = err == nil && r.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING
		})
	}
	group.Wait()
	others, withEtcd := false, false
	for i, p := range ps.list {
		// This process may be so by what runs on other hosts: that says nothing of this machine.
		if ready[i] && !p.record.OnTrial && p.name != topology.Host {
			others, withEtcd = true, withEtcd || needsEtcd(p.name)
		}
	}
	now := time.Now()
	for i, p := range ps.list {
		st, _ := ps.lookup(p)
		for _, e := range []plan.Executable{p.record.Previous, p.record.Running} {
			if st.Running && ps.runsFrom(st.PID, e) {
				p.runs = e
			}
		}
		p.ready = ready[i] && st.Running && ps.runsFrom(st.PID, p.record.Running)
		if !p.ready || st.PID != p.pid {
			p.readySince = now
		}
		p.pid = st.PID
		switch {
		case !p.record.OnTrial:
		case withEtcd || others && !needsEtcd(p.name):
			p.trial += passed
		default:
			p.restarts = st.Restarts
		}
	}
}

func needsEtcd(name string) bool {
	s, _ := topology.Find(name)
	return name == topology.Host || s.Etcd != topology.NoEtcd
}

// lookup returns the state of a program's process, which is this one for Host.
func (ps *programs) lookup(p *program) (process.Status, bool) {
	if p.name == topology.Host {
		return process.Status{Name: p.name, Running: true, PID: os.Getpid(), Since: ps.began}, true
	}
	return ps.supervisor.Lookup(p.name)
}

// agentRuns reports whether the agent of the machine, if this host has one, runs as at the last look, and from the
// executable of this process.
func (ps *programs) agentRuns() bool {
	st, has := ps.supervisor.Lookup(nodeagent.ProcessName)
	before := ps.agent
	ps.agent = st.PID
	if !has {
		return before == 0
	}
	own, err := os.Readlink("/proc/self/exe")
	exe, agentErr := os.Readlink(fmt.Sprintf("/proc/%d/exe", st.PID))
	return st.Running && st.PID == before && err == nil && agentErr == nil && exe == own
}

// runsFrom reports whether a process runs from an executable: one that is about to be replaced does not.
func (ps *programs) runsFrom(pid int, e plan.Executable) bool {
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	want := ps.executables.path(e)
	if real, err := filepath.EvalSymlinks(want); err == nil { // one that was removed is named by its path
		want = real
	}
	return err == nil && strings.TrimSuffix(path, " (deleted)") == want
}

// turn says what a program waits for until it may change on a host, empty if it may, and whether it is the host's turn
// that is held.
func turn(o *programv1.Program, host string) (waits string, held bool) {
	switch at := o.GetStatus().GetTurn(); {
	case o.GetStatus().GetObservedGeneration() < o.GetMetadata().GetGeneration():
		return "update-orchestrator has not planned it yet", false
	case at == "":
		return "no host may change it now", false
	case at != host:
		return "host " + at + " changes now", false
	case o.GetStatus().GetTurnHeld():
		return "it is this host's turn, but it must not begin now", true
	}
	return "", false
}

// view is what the plan has to know of a program; o is nil where the cluster has no Program of it.
func (ps *programs) view(p *program, o *programv1.Program) plan.View {
	v := plan.View{
		Record: p.record, Wanted: plan.Wanted{Executable: ps.executables.first()}, Trial: p.trial,
		Now: time.Now(),
	}
	if o != nil && !object.Deleting(o) {
		v.Wanted = plan.Wanted{
			Executable: plan.Executable{Image: o.GetSpec().GetImage(), Version: o.GetSpec().GetVersion()},
			Generation: o.GetMetadata().GetGeneration(),
		}
	}
	p.wanted = v.Wanted.Executable
	for _, other := range ps.list {
		moving := !other.ready && !other.changed.IsZero() && v.Now.Sub(other.changed) < plan.Patience
		if other != p && (other.record.OnTrial || moving) && !(ps.together(p, other) && (other.ready || !late(p))) {
			v.Other = other.name
		}
	}
	if o != nil && ps.cluster.Member != nil {
		v.Turn, v.Held = turn(o, ps.cluster.Member.Name)
	}
	st, _ := ps.lookup(p)
	v.Starts = 1 + st.Restarts - p.restarts
	v.Elsewhere = st.Running && p.runs != p.record.Running
	if p.ready {
		v.ReadyFor = v.Now.Sub(p.readySince)
	}
	if p.record.OnTrial && p.name != topology.Host { // whose log is elsewhere
		v.Last = LastLine(ps.cluster.Log(p.name))
	}
	ps.executables.show(&v)
	return v
}

// together reports whether two programs may change at a time: those of a level may where other hosts have processes of
// them.
func (ps *programs) together(a, b *program) bool {
	return ps.cluster.Member != nil && topology.UpdateLevel(a.name) == topology.UpdateLevel(b.name)
}

// late reports whether a program changes once the others of its level are ready: the gateway calls them.
func late(p *program) bool { return p.name == topology.Gateway }

func (ps *programs) act(ctx context.Context, p *program, v plan.View, n plan.Next) error {
	switch n.Verb {
	case plan.Stage:
		conn, err := ps.orchestrator()
		if err != nil {
			return err
		}
		ps.executables.stage(ctx, v.Wanted.Executable, conn)
	case plan.Switch:
		// First it is written down: a supervisor that dies then goes on with the trial.
		if err := ps.executables.write(p.name, n.Record); err != nil {
			return err
		}
		p.unsaved = false
		return ps.change(ctx, p, n)
	case plan.Return:
		// First it is done, since a full disk must not keep a program from coming back.
		if gone, err := ps.executables.gone(n.Record.Running); gone || err != nil {
			n.Record.Running = ps.executables.first()
		}
		p.unsaved = true
		if err := ps.change(ctx, p, n); err != nil {
			return err
		}
	case plan.Settle:
		if p.name == topology.Host { // from now on the machine's processes are started by it, too
			if err := setLink(ps.cluster, ps.executables.path(n.Record.Running)); err != nil {
				return err
			}
		}
		p.record, p.unsaved = n.Record, true
	case plan.Nothing:
	}
	if !p.unsaved {
		return nil
	}
	if err := ps.executables.write(p.name, p.record); err != nil {
		return err
	}
	p.unsaved = false
	var needed []plan.Executable // programs run from it, may go back to it, or wait for their turn
	for _, p := range ps.list {
		needed = append(needed, p.record.Running, p.record.Previous, p.wanted)
	}
	ps.executables.sweep(ctx, needed)
	return nil
}

// change has a program started from another executable.
func (ps *programs) change(ctx context.Context, p *program, n plan.Next) error {
	ps.log.InfoContext(ctx, "executable of a program changes", "program", p.name, "from", p.record.Running, "to",
		n.Record.Running, "reason", n.Reason, "message", n.Message)
	st, _ := ps.lookup(p)
	p.record, p.trial, p.restarts, p.ready, p.changed = n.Record, 0, st.Restarts, false, time.Now()
	p.readySince = p.changed
	return ps.start(p)
}
