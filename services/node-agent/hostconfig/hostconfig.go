// Package hostconfig applies the machine configuration to a machine: files below the machine's root, and the services
// that run there. It applies a configuration completely or not at all, whenever it is killed; it works without the
// cluster from what is on disk; and it reports what another process changed, but never repairs it by itself.
package hostconfig

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/machineconfig"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/services/node-agent/hostos"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
)

// States of a machine, as they are reported.
const (
	done           = "Done"
	working        = "Working"
	rebooting      = "Rebooting"
	degraded       = "Degraded"
	unreconcilable = "Unreconcilable"
)

const (
	defaultDrift = 30 * time.Second
	// firstRetry and longRetry are the pauses after a configuration that could not be taken up.
	firstRetry, longRetry = 10 * time.Second, 5 * time.Minute
	// receiptPatience is how long the machine waits for the cluster to receive what it is about to do.
	receiptPatience = 5 * time.Second
	// maxReason is what a report may carry.
	maxReason = 2000
)

// Config is what the configuration of a machine needs.
type Config struct {
	Dir string // the machine's directory: its files are in root/ there, unless Root says where
	// Root is the directory with the machine's files. That of a host is /, and then Files must be set.
	Root string
	// Files says what of a host's own files may be changed; nil: the machine has a directory for its files alone.
	Files *machineconfig.Files
	// Systemd has the systemd of the host run the units, instead of Supervisor.
	Systemd bool
	// Observe has the machine compared with its configuration, and nothing changed.
	Observe bool
	// Patience is how long a new configuration may keep the machine from the cluster before it is taken back; zero means
	// that it never is.
	Patience time.Duration
	Node     string
	BootID   string
	// Conn is the connection to the cluster.
	Conn grpc.ClientConnInterface
	// Supervisor runs the units; the caller runs it.
	Supervisor *process.Supervisor
	// Registered returns nil once this boot of the machine is registered: before that nothing is reported, or the machine
	// would be given work in an unknown boot. It may be nil.
	Registered func(ctx context.Context) error
	// System installs operating systems; nil: the machine keeps the one it has.
	System hostos.Driver
	// Reboot is what Run returns when the machine is to be restarted. Restart asks for the restart of a host before; nil:
	// the caller has the machine restarted.
	Reboot  error
	Restart func(ctx context.Context) error
	// Drift is how often the disk is compared with the configuration; zero means 30 seconds.
	Drift time.Duration
	Log   *slog.Logger
}

// order is what the cluster wants of the machine.
type order struct {
	config *configv1.MachineConfig
	apply  bool
	reboot bool

	services []*configv1.ServiceAction // unless it reboots
	repairs  []*configv1.PathRepair    // of a machine that has the configuration
	from     *string                   // the configuration that it was decided for; nil if that is not said

	deployment string // the operating system that belongs to it, once that is staged
	switches   bool   // it has another one than the present configuration

	back    bool      // to what the machine had; no configuration means that it had none
	rejects *rejected // the configuration that is taken back for it
}

func (o order) name() string { return o.config.GetMetadata().GetName() }

// Host is the configuration of one machine.
type Host struct {
	cfg    Config
	agents configv1.ConfigAgentServiceClient
	tree   *tree
	units  *runner
	orders chan order
	report report

	// What follows belongs to the goroutine of Run.
	st         state
	wanted     wanted               // of st, without contents
	seen       map[string]stamp     // of wanted's files
	system     machineconfig.System // of st, as far as it is in force
	trouble    string               // why st is not in force
	unsaved    bool                 // st is not stored
	late       late                 // what does not run yet
	order      *order               // the last one
	staged     string               // the configuration whose operating system is ready to boot, or that the host admits
	failed     string               // the configuration that could not be taken up
	retry      *backoff.Backoff     // the pauses before it is tried again
	again      <-chan time.Time     // when to try it again; nil if it need not wait
	busy       *attempt             // nil while nothing is taken up
	wrong      string               // why it could not be corrected
	correcting *backoff.Backoff     // the pauses before it is corrected again
	correctAt  <-chan time.Time     // when to; nil if it need not wait
	pacing     *backoff.Backoff     // the pauses between repairs
	resting    time.Time            // no repair before
	heard      <-chan struct{}      // closed once the cluster has received what proves that it is reached
	proves     <-chan time.Time     // when a report proves that
	expires    <-chan time.Time     // when the configuration is taken back; nil unless it is on trial
}

// attempt is a configuration that is being taken up, or the rest of a failed one that is taken back.
type attempt struct {
	order     order
	abandoned bool // for another order
	stages    bool // it has an operating system ready, and changes nothing else
	corrects  bool // it is the latter, or what differs from the configuration is put right
	end       context.CancelFunc
	done      chan struct{}
	st        state
	is        wanted
	err       error
}

// New returns a host that does nothing before Run.
func New(cfg Config) *Host {
	if cfg.Drift <= 0 {
		cfg.Drift = defaultDrift
	}
	return &Host{
		cfg: cfg, agents: configv1.NewConfigAgentServiceClient(cfg.Conn), orders: make(chan order),
		retry: backoff.New(firstRetry, longRetry), correcting: backoff.New(firstRetry, longRetry),
		pacing: backoff.New(cfg.Drift, longRetry),
		units:  &runner{manager: cfg.manager(), failed: map[string]string{}},
		seen:   map[string]stamp{},
		report: report{changed: make(chan struct{}, 1), begun: make(chan struct{})},
	}
}

// manager returns what runs the units.
func (c Config) manager() manager {
	if c.Systemd {
		return &systemd{dir: c.Dir}
	}
	return &processes{supervisor: c.Supervisor, dir: filepath.Join(c.Dir, unitLogDir), system: c.systemRoot()}
}

func (h *Host) root() *os.Root { return h.tree.root }

// Run keeps the machine's configuration until ctx ends, and returns nil then, or Config.Reboot when the machine is to
// be restarted. Services that it started run on.
func (h *Host) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-h.cfg.Supervisor.Active():
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return h.follow(ctx) })
	group.Go(func() error {
		if !h.ready(ctx) {
			return nil
		}
		defer h.tree.root.Close()
		if err := h.resume(ctx); err != nil {
			return err
		}
		h.report.begin()
		return h.work(ctx)
	})
	err := group.Wait()
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// ready tries to open the disk until that succeeds; it is false if ctx ended first. A disk that is full or broken is no
// reason for the agent to end: pods and the machine's node go on.
func (h *Host) ready(ctx context.Context) bool {
	said := ""
	for again := backoff.New(firstRetry, longRetry); ; {
		err := h.open()
		if err == nil {
			return true
		}
		if said != err.Error() {
			said = err.Error()
			h.cfg.Log.WarnContext(ctx, "configuration of the machine is not readable", "error", err)
		}
		h.say(degraded, h.st.Name, said)
		if !again.Wait(ctx) {
			return false
		}
	}
}

// open takes back what a killed agent left half-made, and reads what the machine has.
func (h *Host) open() error {
	var err error
	if h.tree == nil {
		dir := cmp.Or(h.cfg.Root, filepath.Join(h.cfg.Dir, rootDir))
		if h.tree, err = openTree(dir, filepath.Join(h.cfg.Dir, keptDir), h.cfg.Root == ""); err != nil {
			return err
		}
	}
	if h.cfg.Observe {
		_, err = load(h.cfg.Dir, currentFile, &h.st)
	} else {
		h.st, err = h.recall()
	}
	if err != nil {
		return err
	}
	cfg, err := h.st.config()
	if err != nil || cfg == nil {
		return err
	}
	is, err := read(cfg, cfg)
	h.adopt(machineconfig.SystemOf(cfg))
	h.know(is)
	return errors.Join(err, h.recount())
}

// know remembers what the present configuration wants, without the contents.
func (h *Host) know(is wanted) {
	if cfg, err := h.st.config(); err == nil { // it was read before
		h.system = h.st.system(cfg)
	}
	for i := range is.entries {
		is.entries[i].content = nil
	}
	h.wanted, h.seen = is, map[string]stamp{}
}

// resume ends a boot that has to end, or has everything run that belongs to the present configuration.
func (h *Host) resume(ctx context.Context) error {
	if h.cfg.Observe {
		h.check(ctx)
		return nil
	}
	h.onTrial()
	h.remind()
	if h.st.EndingBoot == h.cfg.BootID && h.st.EndingBoot != "" {
		return h.reboot(ctx)
	}
	if h.unselected() { // power was lost before the boot link was changed
		st := h.st
		st.EndingBoot = h.cfg.BootID
		err := save(h.cfg.Dir, currentFile, st)
		if err == nil {
			h.st = st
			return h.reboot(ctx)
		}
		h.cfg.Log.WarnContext(ctx, "state of the machine is not stored", "error", err)
	}
	once := h.st.Oneshots != h.cfg.BootID && h.st.Name != ""
	if !once {
		maps.Copy(h.units.failed, h.st.Failed)
	}
	l, err := h.units.resumeAll(ctx, h.wanted.units, h.root(), once)
	if ctx.Err() != nil {
		return nil
	}
	if err == nil && h.st.Name != "" && (once || h.st.EndingBoot != "") {
		h.st.EndingBoot, h.st.Oneshots, h.unsaved = "", h.cfg.BootID, true
	}
	if err != nil {
		h.trouble = err.Error()
	}
	if why := cmp.Or(h.trouble, h.units.trouble()); why != "" {
		h.cfg.Log.WarnContext(ctx, "configuration is not in force", "config", h.st.Name, "reason", why)
	}
	h.remember()
	if h.late = l; l.why != "" {
		h.cfg.Log.WarnContext(ctx, "configuration is not in force yet", "config", h.st.Name, "error", l.why)
	}
	if h.st.Name != "" {
		h.check(ctx)
	}
	return nil
}

// remember stores what has changed of the state of the machine without another configuration. What cannot be stored is
// tried again, and the machine is not done before.
func (h *Host) remember() {
	if h.st.Name == "" && h.st.Change == "" || !h.unsaved && maps.Equal(h.st.Failed, h.units.failed) {
		return
	}
	h.st.Failed, h.unsaved = maps.Clone(h.units.failed), true
	err := save(h.cfg.Dir, currentFile, h.st)
	if h.unsaved = err != nil; h.unsaved {
		h.cfg.Log.Warn("state of the machine is not stored", "error", err)
	}
}

// reboot reports to the cluster that the machine restarts, and restarts it even if the report fails.
func (h *Host) reboot(ctx context.Context) error {
	if !h.bootsNext(ctx) {
		return nil
	}
	heard := h.report.set(&configv1.ReportConfigRequest{
		CurrentConfig: h.st.Previous, DesiredConfig: h.st.Name, State: rebooting, Reason: "the machine restarts",
	})
	if awaitReceipt(ctx, heard); ctx.Err() != nil {
		return nil
	}
	h.cfg.Log.InfoContext(ctx, "machine restarts for its configuration", "config", h.st.Name)
	for again := backoff.New(firstRetry, longRetry); h.cfg.Restart != nil; {
		err := h.cfg.Restart(ctx)
		if err == nil {
			break
		}
		h.cfg.Log.ErrorContext(ctx, "host does not restart", "config", h.st.Name, "error", err)
		h.report.set(&configv1.ReportConfigRequest{
			CurrentConfig: h.st.Previous, DesiredConfig: h.st.Name, State: rebooting,
			Reason: "the host does not restart: " + err.Error(),
		})
		if !again.Wait(ctx) {
			return nil
		}
	}
	return h.cfg.Reboot
}

// work does what the cluster orders until ctx ends.
func (h *Host) work(ctx context.Context) error {
	drift := time.NewTicker(h.cfg.Drift)
	defer drift.Stop()
	defer h.abandon()
	for {
		var finished <-chan struct{}
		if h.busy != nil {
			finished = h.busy.done
		}
		select {
		case <-ctx.Done():
			return nil
		case o := <-h.orders:
			h.order = &o
			h.report.repeat()
			if h.busy != nil && h.outdated(o) {
				h.busy.abandoned = true
				h.busy.end()
			}
			h.next(ctx)
		case <-finished:
			if reboot := h.finish(ctx); reboot {
				return h.reboot(ctx)
			}
			h.next(ctx)
		case <-h.again:
			h.again = nil
			h.next(ctx)
		case <-h.correctAt:
			h.correctAt = nil
			h.look(ctx)
		case <-drift.C:
			h.look(ctx)
		case <-h.proves:
			h.proves, h.heard = nil, h.report.again()
		case <-h.heardOnTrial():
			h.confirm()
		case <-h.expires:
			h.expire(ctx)
		}
	}
}

// outdated reports whether what is being done is not wanted any more, or is in the way of an order.
func (h *Host) outdated(o order) bool {
	if h.busy.corrects { // what is put right is the present configuration
		return o.apply && o.config != nil && o.name() != h.st.Name
	}
	return h.busy.order.name() != o.name()
}

// abandon waits for the end of what is being taken up.
func (h *Host) abandon() {
	if h.busy != nil {
		h.busy.end()
		<-h.busy.done
	}
}

// settled reports whether the machine has the wanted configuration, as far as is known.
func (h *Host) settled() bool {
	return h.st.Name != "" && (h.order == nil || h.order.config == nil || h.order.name() == h.st.Name)
}

// look corrects what is to be corrected, and says whether the machine is as its configuration says.
func (h *Host) look(ctx context.Context) {
	switch {
	case h.busy != nil:
	case h.settled():
		h.check(ctx)
	default:
		h.correct(ctx)
	}
}

// next takes the next step towards what is ordered.
func (h *Host) next(ctx context.Context) {
	if h.busy != nil || h.order == nil {
		return
	}
	o := *h.order
	if o.name() != h.failed {
		h.failed, h.again = "", nil
		h.retry.Reset()
	}
	if h.settled() {
		if h.st.Rejected != nil && o.config != nil && !h.cfg.Observe {
			h.st.Rejected, h.unsaved = nil, true // another one is wanted, so it may be tried again
		}
		h.check(ctx)
		return
	}
	if o.config == nil || h.again != nil {
		h.correct(ctx)
		return
	}
	before, err := h.st.config()
	is := wanted{}
	if err == nil {
		is, err = read(before, o.config)
	}
	if err == nil {
		err = h.refused(h.st, before, o.config, is)
	}
	if err == nil && h.cfg.Observe {
		h.observe(ctx, o, is)
		return
	}
	if h.cfg.Files != nil {
		rejected := h.st.Rejected != nil && h.st.Rejected.Name == o.name()
		if h.staged = ""; err == nil && !rejected {
			h.staged = o.name() // the host is emptied for it only then
		}
	}
	switch {
	case err == nil && h.st.Rejected != nil && h.st.Rejected.Name == o.name():
		h.say(degraded, o.name(), h.st.Rejected.String())
	case err != nil:
		h.fail(ctx, o, err)
	case o.from != nil && *o.from != h.st.Name:
		h.say(working, o.name(), "") // with what the machine has, for which it is decided again
	case !h.isStaged(before, o):
		if h.correct(ctx) || h.busy == nil { // what the machine has comes first
			h.stage(ctx, o)
		}
		return
	case o.apply:
		h.say(working, o.name(), "")
		h.cfg.Log.InfoContext(ctx, "configuration is taken up", "config", o.name(), "reboot", o.reboot)
		h.begin(ctx, o, func(ctx context.Context, st state) (state, wanted, error) {
			return h.apply(ctx, st, o)
		})
	default:
		h.say(working, o.name(), "")
	}
	h.correct(ctx) // while it waits
}

// check says whether the machine is as its configuration says. What is to be corrected comes first: a change that could
// not be taken back has left what the configuration does not name, and services may run with its files.
func (h *Host) check(ctx context.Context) {
	switch {
	case h.correct(ctx):
		h.compare(ctx)
	case h.busy != nil:
	default: // it waits for another try
		if j, err := h.pending(h.st); err == nil && j == nil {
			h.compare(ctx)
			return
		}
		h.say(degraded, h.st.Name, h.wrong)
	}
}

// correct reports whether there is nothing to correct, and begins to correct it, unless that is to wait or something
// else is done.
func (h *Host) correct(ctx context.Context) bool {
	if h.busy != nil {
		return false
	}
	if h.cfg.Observe {
		return true
	}
	j, err := h.pending(h.st)
	services, unread := h.owed()
	if err == nil && j == nil && unread == nil && len(services) == 0 && !h.offSystem() {
		return true
	}
	if h.correctAt != nil {
		return false
	}
	var o order
	if h.order != nil {
		o = *h.order
	}
	if h.settled() && h.wrong == "" {
		h.say(working, h.st.Name, "what a change left, or services that have not seen it, are put right")
	}
	off, system := h.offSystem(), h.system
	var heard <-chan struct{}
	if off && h.staged != "" { // it may be replaced by the present one
		h.staged = ""
		heard = h.say(working, h.st.Name, "the operating system is put right")
	}
	h.begin(ctx, o, func(ctx context.Context, st state) (state, wanted, error) {
		_, is, err := h.heal(ctx, st)
		if err == nil {
			err = h.pay(ctx, is.units)
		}
		if err == nil && heard != nil {
			awaitReceipt(ctx, heard)
		}
		if err == nil && off {
			st.Deployment, err = h.selectSystem(ctx, system)
		}
		return st, is, err
	})
	h.busy.corrects = true
	return false
}

// begin does what an order needs in the background, so that it can be abandoned.
func (h *Host) begin(ctx context.Context, o order, do func(context.Context, state) (state, wanted, error)) {
	ctx, end := context.WithCancel(ctx)
	a := &attempt{order: o, end: end, done: make(chan struct{})}
	h.busy = a
	st := h.st
	go func() {
		defer close(a.done)
		defer end()
		a.st, a.is, a.err = do(ctx, st)
	}()
}

// finish records the outcome of an attempt, and reports whether the machine has to restart.
func (h *Host) finish(ctx context.Context) (reboot bool) {
	a := h.busy
	h.busy = nil
	defer h.remember()
	switch {
	case a.corrects && a.err == nil:
		h.wrong, h.correctAt = "", nil
		h.correcting.Reset()
		if h.st.Deployment != a.st.Deployment {
			h.st.Deployment, h.unsaved = a.st.Deployment, true
		}
		h.know(a.is)
		return false
	case a.corrects && !a.abandoned:
		h.cfg.Log.WarnContext(ctx, "not corrected", "config", h.st.Name, "error", a.err)
		h.wrong, h.correctAt = a.err.Error(), time.After(h.correcting.Next())
		return false
	case a.err != nil:
		if errors.Is(a.err, errSystem) {
			h.staged = ""
		}
		if a.order.back {
			h.onTrial() // it is taken back later
		}
		if !a.abandoned {
			h.fail(ctx, a.order, a.err)
		}
		return false
	case a.stages:
		h.staged = a.order.name()
		return false
	}
	h.st, h.trouble, h.late, h.failed, h.resting = a.st, "", late{}, "", time.Time{}
	h.wrong, h.correctAt = "", nil
	h.pacing.Reset()
	h.correcting.Reset()
	maps.DeleteFunc(h.units.failed, func(name, _ string) bool {
		return !slices.ContainsFunc(a.is.units, func(u unit) bool { return u.name == name })
	})
	h.know(a.is)
	h.onTrial()
	h.remind()
	h.cfg.Log.InfoContext(ctx, "configuration is on disk", "config", h.st.Name)
	return h.st.EndingBoot != ""
}

// fail says that a configuration cannot be taken up, and why; it is tried again later.
func (h *Host) fail(ctx context.Context, o order, err error) {
	how := degraded
	var never *unreconcilableError
	if errors.As(err, &never) {
		how = unreconcilable
	}
	h.cfg.Log.WarnContext(ctx, "configuration is not taken up", "config", o.name(), "state", how, "error", err)
	h.failed, h.again = o.name(), time.After(h.retry.Next())
	h.say(how, cmp.Or(o.name(), h.st.Name), err.Error())
}

// compare says whether the machine is as its configuration says, and begins to repair what it may.
func (h *Host) compare(ctx context.Context) {
	drifted := h.tree.drift(h.wanted.entries, h.seen)
	why := summary(drifted)
	switch r := h.repairsOf(drifted); {
	case len(r.entries) > 0 && !time.Now().Before(h.resting):
		h.resting = time.Now().Add(h.pacing.Next()) // what is changed again and again is put back less and less often
		h.repair(ctx, r)
		return
	case len(drifted) == 0 && !time.Now().Before(h.resting):
		h.pacing.Reset()
	}
	if h.wrong != "" && h.correctAt != nil {
		why = strings.TrimPrefix(why+"; "+h.wrong, "; ")
	}
	if h.remember(); h.unsaved {
		why = cmp.Or(why, "the state of the machine cannot be stored")
	}
	if h.units.steady(ctx, h.late.units) {
		h.late = late{}
	}
	if j, err := h.pending(h.st); h.cfg.Observe && (err != nil || j != nil) {
		why = cmp.Or(why, "a change that was cut off is not taken back while the host only observes")
	}
	if h.cfg.Observe && h.st.EndingBoot == h.cfg.BootID {
		why = cmp.Or(why, "the host has not been restarted for its configuration")
	}
	if h.cfg.Systemd {
		h.units.recovered(ctx, h.wanted.units)
	}
	why = cmp.Or(why, h.systemTrouble(), h.trouble, h.units.trouble(), h.late.why, h.units.idle(ctx, h.wanted.units))
	if why != "" {
		h.say(degraded, h.st.Name, why)
		return
	}
	h.say(done, h.st.Name, "")
}

// say reports to the cluster. The returned channel is closed when it has received that.
func (h *Host) say(state, desired, reason string) <-chan struct{} {
	if len(reason) > maxReason {
		reason = reason[:maxReason]
	}
	heard := h.report.set(&configv1.ReportConfigRequest{
		CurrentConfig: h.st.Name, DesiredConfig: desired, State: state, Reason: reason, StagedConfig: h.staged,
	})
	if h.heard != nil {
		h.heard = heard
	}
	return heard
}

// report is the latest report; its delivery may be behind.
type report struct {
	changed chan struct{} // holds one token
	begun   chan struct{} // closed once it is known what the machine has

	once  sync.Once
	mu    sync.Mutex
	last  *configv1.ReportConfigRequest
	heard chan struct{} // closed when the cluster has received last
}
