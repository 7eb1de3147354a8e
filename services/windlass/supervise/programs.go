package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	programv1 "github.com/windlass-dev/windlass/gen/windlass/program/v1"
	"github.com/windlass-dev/windlass/kit/dial"
	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/kit/version"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/supervise/plan"
)

const (
	lookEvery = 500 * time.Millisecond
	callLimit = 2 * time.Second
)

// finalizer keeps a Program until the program runs from the cluster's own executable again.
const finalizer = "windlass.dev/supervisor"

// programs keeps each program at the executable that the cluster wants. It is for one goroutine, its fetches excepted.
type programs struct {
	cluster    *cluster.Cluster
	executable string // that the cluster was started with
	supervisor *process.Supervisor
	log        *slog.Logger
	list       []*program // update-orchestrator first, since it applies the rest
	conns      map[string]*grpc.ClientConn

	mu     sync.Mutex
	staged map[plan.Executable]*staging
}

// staging is how far the fetch of an executable has come.
type staging struct {
	running, done, unfit bool
	problem              string
	tries                int
	tried                time.Time
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
	changed    time.Time       // when it was last started from another executable; zero if not by this process
	unsaved    bool            // the record is not on the disk yet
	said       plan.Next
}

func newPrograms(c *cluster.Cluster, executable string, s *process.Supervisor, log *slog.Logger) (*programs, error) {
	ps := &programs{
		cluster: c, executable: executable, supervisor: s, log: log, conns: map[string]*grpc.ClientConn{},
		staged: map[plan.Executable]*staging{},
	}
	names := topology.Names()
	slices.SortStableFunc(names, func(a, b string) int {
		return boolOrder(a == topology.UpdateOrchestrator, b == topology.UpdateOrchestrator)
	})
	for _, name := range names {
		r, err := ps.read(name)
		if err != nil {
			return nil, err
		}
		ps.list = append(ps.list, &program{name: name, record: r, runs: r.Running})
	}
	for _, name := range topology.Names() { // in the order in which they start
		if err := ps.start(ps.find(name)); err != nil {
			return nil, err
		}
	}
	return ps, nil
}

func boolOrder(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func (ps *programs) find(name string) *program {
	i := slices.IndexFunc(ps.list, func(p *program) bool { return p.name == name })
	return ps.list[i]
}

func (ps *programs) own() plan.Executable { return plan.Executable{Version: version.Number} }

func recordFile(c *cluster.Cluster, name string) string { return c.Dir("programs", name+".json") }

// read returns what a program runs from. It is the cluster's own executable where that of an image is lost: it is
// fetched again then.
func (ps *programs) read(name string) (plan.Record, error) {
	own := plan.Record{Running: ps.own()}
	raw, err := os.ReadFile(recordFile(ps.cluster, name))
	if errors.Is(err, fs.ErrNotExist) {
		return own, nil
	}
	if err != nil {
		return own, err
	}
	var r plan.Record
	if err := json.Unmarshal(raw, &r); err != nil {
		ps.log.Error("program runs from the executable of the cluster", "program", name, "error", err)
		return own, nil
	}
	if gone, err := ps.gone(r.Running); err != nil {
		return own, err
	} else if gone {
		ps.log.Error("program runs from the executable of the cluster", "program", name, "missing", r.Running)
		return plan.Record{Running: ps.own(), Refused: r.Refused}, nil
	}
	for _, e := range []*plan.Executable{&r.Running, &r.Previous} {
		if e.Image == "" {
			*e = ps.own()
		}
	}
	return r, nil
}

// gone reports whether an executable is not on this machine.
func (ps *programs) gone(e plan.Executable) (bool, error) {
	_, err := os.Stat(executablePath(ps.cluster, e, ps.executable))
	if errors.Is(err, fs.ErrNotExist) {
		return e.Image != "", nil
	}
	return false, err
}

// OnTrial returns the name of a program of the cluster that is on trial with another executable; empty if none is.
func OnTrial(c *cluster.Cluster) string {
	for _, name := range topology.Names() {
		var r plan.Record
		raw, err := os.ReadFile(recordFile(c, name))
		if err == nil && json.Unmarshal(raw, &r) == nil && r.OnTrial {
			return name
		}
	}
	return ""
}

// start has the supervisor run a program from what its record says.
func (ps *programs) start(p *program) error {
	spec := ps.cluster.Spec(p.name, ps.executable)
	spec.Path = executablePath(ps.cluster, p.record.Running, ps.executable)
	return ps.supervisor.Ensure(spec)
}

// write writes a record down.
func (ps *programs) write(p *program, r plan.Record) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := durable.MkdirAll(ps.cluster.Dir("programs"), 0o700); err != nil {
		return err
	}
	return durable.WriteFile(recordFile(ps.cluster, p.name), append(raw, '\n'), 0o600)
}

// run looks after the programs until ctx ends.
func (ps *programs) run(ctx context.Context) error {
	defer func() {
		for _, c := range ps.conns {
			c.Close()
		}
	}()
	select {
	case <-ps.supervisor.Active():
	case <-ctx.Done():
		return nil
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := time.Now()
		ps.look(ctx, min(now.Sub(last), lookEvery+3*callLimit)) // a suspended process saw nothing
		last = now
	}
}

// look brings each program closer to what the cluster wants. passed is the time since the last look.
func (ps *programs) look(ctx context.Context, passed time.Duration) {
	wanted, err := ps.wanted(ctx)
	known := err == nil
	if err != nil {
		ps.log.DebugContext(ctx, "programs not read", "error", err)
	}
	if !ps.concerned(wanted) {
		return
	}
	ps.observe(ctx, passed)
	for _, p := range ps.list {
		v := ps.view(p, wanted[p.name])
		v.Known = known
		p.said = plan.Program(v)
		if err := ps.act(ctx, p, v, p.said); err != nil {
			ps.log.ErrorContext(ctx, "executable not changed", "program", p.name, "error", err)
			p.said.Progressing, p.said.Message = true, p.said.Message+" That did not succeed: "+err.Error()
		}
		if o := wanted[p.name]; o != nil {
			if err := ps.report(ctx, p, o); err != nil {
				ps.log.DebugContext(ctx, "program not reported", "program", p.name, "error", err)
			}
		}
	}
}

// concerned reports whether there is anything to do or to say.
func (ps *programs) concerned(wanted map[string]*programv1.Program) bool {
	return len(wanted) > 0 || slices.ContainsFunc(ps.list, func(p *program) bool {
		return p.unsaved || p.record.OnTrial || p.record.Running.Image != "" || p.record.Refused != nil
	})
}

// wanted returns the programs that the cluster has.
func (ps *programs) wanted(ctx context.Context) (map[string]*programv1.Program, error) {
	conn, err := ps.conn(topology.UpdateOrchestrator)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	list, err := programv1.NewProgramServiceClient(conn).ListPrograms(ctx, &programv1.ListProgramsRequest{})
	if err != nil {
		return nil, err
	}
	out := map[string]*programv1.Program{}
	for _, p := range list.GetItems() {
		out[p.GetMetadata().GetName()] = p
	}
	return out, nil
}

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
	c, err := grpc.NewClient("passthrough:///"+address,
		append(dial.Sibling(callLimit), grpc.WithTransportCredentials(creds))...)
	if err == nil {
		ps.conns[name] = c
	}
	return c, err
}

// observe asks every program whether it is ready. Time and restarts count for a trial while another program is that
// needs the same: else etcd or the machine is the cause.
func (ps *programs) observe(ctx context.Context, passed time.Duration) {
	ready := make([]bool, len(ps.list))
	var group sync.WaitGroup
	for i, p := range ps.list {
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
		if ready[i] && !p.record.OnTrial {
			others, withEtcd = true, withEtcd || needsEtcd(p.name)
		}
	}
	now := time.Now()
	for i, p := range ps.list {
		st, _ := ps.supervisor.Lookup(p.name)
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
	return s.Etcd != topology.NoEtcd
}

// runsFrom reports whether a process runs from an executable: one that is about to be replaced does not.
func (ps *programs) runsFrom(pid int, e plan.Executable) bool {
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	want, wantErr := filepath.EvalSymlinks(executablePath(ps.cluster, e, ps.executable))
	if wantErr != nil {
		want = executablePath(ps.cluster, e, ps.executable)
	}
	return err == nil && strings.TrimSuffix(path, " (deleted)") == want
}

// view is what the plan has to know of a program; o is nil where the cluster has no Program of it.
func (ps *programs) view(p *program, o *programv1.Program) plan.View {
	v := plan.View{Record: p.record, Wanted: plan.Wanted{Executable: ps.own()}, Trial: p.trial, Now: time.Now()}
	if o != nil && !object.Deleting(o) {
		v.Wanted = plan.Wanted{
			Executable: plan.Executable{Image: o.GetSpec().GetImage(), Version: o.GetSpec().GetVersion()},
			Generation: o.GetMetadata().GetGeneration(),
		}
	}
	for _, other := range ps.list {
		moving := !other.ready && !other.changed.IsZero() && v.Now.Sub(other.changed) < plan.Patience
		if other != p && (other.record.OnTrial || moving) {
			v.Other = other.name
		}
	}
	st, _ := ps.supervisor.Lookup(p.name)
	v.Starts = 1 + st.Restarts - p.restarts
	if p.ready {
		v.ReadyFor = v.Now.Sub(p.readySince)
	}
	if p.record.OnTrial {
		v.Last = LastLine(ps.cluster.Log(p.name))
	}
	if v.Staged = v.Wanted.Image == ""; v.Staged {
		return v
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if s := ps.staged[v.Wanted.Executable]; s != nil {
		v.Staged, v.Unfit, v.StageErr, v.Tries, v.Tried = s.done, s.unfit, s.problem, s.tries, s.tried
	}
	return v
}

func (ps *programs) act(ctx context.Context, p *program, v plan.View, n plan.Next) error {
	switch n.Verb {
	case plan.Stage:
		ps.stage(ctx, v.Wanted.Executable)
	case plan.Switch:
		// First it is written down: a supervisor that dies then goes on with the trial.
		if err := ps.write(p, n.Record); err != nil {
			return err
		}
		p.unsaved = false
		return ps.change(ctx, p, n)
	case plan.Return:
		// First it is done, since a full disk must not keep a program from coming back.
		if gone, err := ps.gone(n.Record.Running); gone || err != nil {
			n.Record.Running = ps.own()
		}
		p.unsaved = true
		if err := ps.change(ctx, p, n); err != nil {
			return err
		}
	case plan.Settle:
		p.record, p.unsaved = n.Record, true
	case plan.Nothing:
	}
	if !p.unsaved {
		return nil
	}
	if err := ps.write(p, p.record); err != nil {
		return err
	}
	p.unsaved = false
	ps.sweep(ctx)
	return nil
}

// change has a program started from another executable.
func (ps *programs) change(ctx context.Context, p *program, n plan.Next) error {
	ps.log.InfoContext(ctx, "executable of a program changes", "program", p.name, "from", p.record.Running, "to",
		n.Record.Running, "reason", n.Reason, "message", n.Message)
	st, _ := ps.supervisor.Lookup(p.name)
	p.record, p.trial, p.restarts, p.ready, p.changed = n.Record, 0, st.Restarts, false, time.Now()
	p.readySince = p.changed
	return ps.start(p)
}

// stage begins to fetch an executable unless that is under way.
func (ps *programs) stage(ctx context.Context, e plan.Executable) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	s := ps.staged[e]
	if s == nil {
		s = &staging{}
		ps.staged[e] = s
	}
	if s.running {
		return
	}
	s.running = true
	go func() {
		err := stage(ctx, ps.cluster, e)
		ps.mu.Lock()
		defer ps.mu.Unlock()
		*s = staging{done: err == nil, tries: s.tries + 1, tried: time.Now()}
		if err != nil {
			s.problem, s.unfit = err.Error(), errors.Is(err, release.ErrUnfit)
			ps.log.WarnContext(ctx, "executable not fetched", "image", e.Image, "error", err)
		}
	}()
}

// sweep removes what no program needs any more: neither runs from it nor may go back to it.
func (ps *programs) sweep(ctx context.Context) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	var needed []plan.Executable
	for _, p := range ps.list {
		needed = append(needed, p.record.Running, p.record.Previous)
	}
	for e, s := range ps.staged {
		if s.running {
			return // the next time
		}
		if !slices.Contains(needed, e) {
			delete(ps.staged, e)
		}
	}
	if err := sweep(ps.cluster, needed); err != nil {
		ps.log.WarnContext(ctx, "executables not removed", "error", err)
	}
}

// report writes the status of a program, and lets it go once nothing of it is in force.
func (ps *programs) report(ctx context.Context, p *program, o *programv1.Program) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	conn, err := ps.conn(topology.UpdateOrchestrator)
	if err != nil {
		return err
	}
	client := programv1.NewProgramServiceClient(conn)
	holds := slices.Contains(o.GetMetadata().GetFinalizers(), finalizer)
	gone := object.Deleting(o) && p.record.Running.Image == "" && !p.record.OnTrial && p.ready
	if holds == gone && (holds || !object.Deleting(o)) {
		next := proto.CloneOf(o)
		next.Metadata.Finalizers = slices.DeleteFunc(next.Metadata.Finalizers, func(f string) bool { return f == finalizer })
		if !gone {
			next.Metadata.Finalizers = append(next.Metadata.Finalizers, finalizer)
		}
		if o, err = client.UpdateProgram(ctx, &programv1.UpdateProgramRequest{
			Name: o.GetMetadata().GetName(), Program: next,
		}); err != nil || gone {
			return err
		}
	}
	st := ps.status(p, o)
	if proto.Equal(st, o.GetStatus()) {
		return nil
	}
	next := proto.CloneOf(o)
	next.Status = st
	_, err = client.UpdateProgramStatus(ctx, &programv1.UpdateProgramStatusRequest{
		Name: o.GetMetadata().GetName(), Program: next,
	})
	return err
}

func (ps *programs) status(p *program, o *programv1.Program) *programv1.ProgramStatus {
	st := &programv1.ProgramStatus{
		ObservedGeneration: proto.Int32(o.GetMetadata().GetGeneration()), Image: p.runs.Image, Version: p.runs.Version,
		Conditions: proto.CloneOf(o.GetStatus()).GetConditions(),
	}
	if p.record.OnTrial {
		st.PreviousImage = p.record.Previous.Image
	}
	if run, ok := ps.supervisor.Lookup(p.name); ok && run.Running {
		st.StartTime = &timestamppb.Timestamp{Seconds: run.Since.Unix()}
	}
	available := &metav1.Condition{Type: "Available", Status: "True", Reason: proto.String("Ready")}
	if !p.ready {
		available.Status, available.Reason = "False", proto.String("NotReady")
		available.Message = proto.String("Its process is not ready.")
		if !strings.Contains(p.said.Message, "its log ends with") {
			if last := LastLine(ps.cluster.Log(p.name)); last != "" {
				available.Message = proto.String("Its process is not ready; its log ends with: " + last)
			}
		}
	}
	progressing := &metav1.Condition{
		Type: "Progressing", Status: map[bool]string{true: "True", false: "False"}[p.said.Progressing],
		Reason: proto.String(p.said.Reason), Message: proto.String(p.said.Message),
	}
	now := time.Now()
	for _, c := range []*metav1.Condition{available, progressing} {
		st.Conditions = object.SetCondition(st.Conditions, c, now)
	}
	return st
}

// LastLine returns the last line of a log, at most 300 bytes of it.
func LastLine(path string) string {
	const most, tail = 300, 16 << 10
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err.Error()
	}
	data, err := io.ReadAll(io.NewSectionReader(f, max(0, size-tail), tail))
	if err != nil {
		return err.Error()
	}
	text := strings.TrimSpace(string(data))
	line := text[strings.LastIndexByte(text, '\n')+1:]
	return strings.ToValidUTF8(line[:min(len(line), most)], "")
}
