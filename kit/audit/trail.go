package audit

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/windlass-dev/windlass/kit/backoff"
)

// Names of the logs in a program's directory.
const (
	ChangesFile  = "audit.log"
	ReadsFile    = "reads.log"
	RefusalsFile = "refusals.log"
)

// Files are the names of all logs.
var Files = []string{ChangesFile, ReadsFile, RefusalsFile}

// What is kept of older files. Refusals and reads can be caused by many, so the disk bounds them; changes are kept a
// month whatever their size.
var (
	keepChanges = retention{bytes: 1 << 30, age: 30 * 24 * time.Hour}
	keepOthers  = retention{bytes: 256 << 20}
)

// systemPatience is how long a call of the cluster's own programs waits for its record: a disk that hangs must not stop
// heartbeats.
const systemPatience = time.Second

// Config is the settings of a Trail.
type Config struct {
	Dir     string // for the files; it must be there
	Service string // name in the records of events
	Sinks   []Sink // they are closed with the trail
	Log     *slog.Logger
}

// Trail is the audit logs of one program. Its methods are safe for concurrent use.
type Trail struct {
	service  string
	log      *slog.Logger
	lock     *os.File
	changes  *chain
	reads    *chain
	refusals *chain
	counted  []*counter
	sinks    []*forwarder
	close    func() error
}

// Open opens the logs in a directory. A log that cannot be written is no error: changes of callers are refused until it
// can (Change). The error is ErrLocked if another process writes them.
func Open(cfg Config) (*Trail, error) {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	lock, err := lockDir(cfg.Dir)
	if err != nil {
		return nil, err
	}
	t := &Trail{service: cfg.Service, log: cfg.Log, lock: lock}
	for _, s := range cfg.Sinks {
		t.sinks = append(t.sinks, forwardTo(s, cfg.Service, cfg.Log))
	}
	chainOf := func(name string, keep retention) *chain {
		return openChain(filepath.Join(cfg.Dir, name), keep, t.forward, cfg.Log)
	}
	t.changes = chainOf(ChangesFile, keepChanges)
	t.reads = chainOf(ReadsFile, keepOthers)
	t.refusals = chainOf(RefusalsFile, keepOthers)
	t.counted = []*counter{newCounter(t.reads), newCounter(t.refusals)}
	t.close = sync.OnceValue(t.closeAll)
	return t, nil
}

// errLocked means that another process writes the logs of a directory.
var errLocked = errors.New("another process writes the audit logs of this directory")

// lockDir holds the directory for this process, until the file is closed or the process ends.
func lockDir(dir string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(dir, "audit.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, nil //nolint:nilerr // a directory that cannot be written: changes are refused, the service lives
	}
	ctx, cancel := context.WithTimeout(context.Background(), lockPatience)
	defer cancel()
	for again := backoff.New(lockPatience/50, lockPatience/10); ; {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil || !errors.Is(err, syscall.EWOULDBLOCK) {
			return file, nil // a file system without locks has only one writer anyway, as far as Windlass starts them
		}
		if !again.Wait(ctx) {
			return nil, errors.Join(errLocked, file.Close())
		}
	}
}

// lockPatience is what a process gets to end whose successor is started already.
const lockPatience = 500 * time.Millisecond

func (t *Trail) forward(name string, line []byte) {
	for _, s := range t.sinks {
		s.offer(Line{Log: name, Text: line})
	}
}

// Change records that a change is about to be made, and returns when that is on disk. An error means that the change
// must not be made. For a change of the cluster's own programs (system) there is no error: what cannot be recorded
// within a second is counted and logged, because leases, heartbeats and the guardian must go on.
func (t *Trail) Change(ctx context.Context, r Record, system bool) error {
	r.Stage, r.Decision = Requested, Allow
	if !system {
		return t.changes.write(ctx, r)
	}
	ctx, cancel := context.WithTimeout(ctx, systemPatience)
	defer cancel()
	_ = t.changes.write(ctx, r) // counted and logged by the chain
	return nil
}

// Completed records how a change ended. It does not wait: the record is in the file a tenth of a second later.
func (t *Trail) Completed(r Record) {
	r.Stage = Completed
	_, _ = t.changes.add(r, false) // a record that finds no room is counted
}

// Event records what is about no call, and waits for the disk.
func (t *Trail) Event(ctx context.Context, r Record) error {
	r.Service = t.service
	if r.Time.IsZero() {
		r.Time = time.Now().UTC()
	}
	return t.changes.write(ctx, r)
}

// Noted records what is about no call. It does not wait: the record is in the file a tenth of a second later.
func (t *Trail) Noted(r Record) {
	r.Service, r.Time = t.service, time.Now().UTC()
	_, _ = t.changes.add(r, false)
}

// Read records a read of what may be confidential. It does not wait.
func (t *Trail) Read(r Record) {
	r.Decision = Allow
	r = r.cut() // before it is part of a key that is kept for a minute
	t.counted[0].add(r, readKey(r))
}

// Refused records a refusal. It does not wait.
func (t *Trail) Refused(r Record) {
	r.Decision = Deny
	r = r.cut()
	t.counted[1].add(r, refusalKey(r))
}

// Check returns why callers' changes cannot be recorded now, and are refused; nil if they can. It asks the disk.
func (t *Trail) Check(ctx context.Context) error { return t.changes.check(ctx) }

// Full reports whether an error says that the disk of a log is full.
func Full(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// Failed returns why changes could not be recorded when that was last tried; nil if they could.
func (t *Trail) Failed() error {
	t.changes.mu.Lock()
	defer t.changes.mu.Unlock()
	return t.changes.failed
}

// Close writes what waits, and closes files and sinks. Later writes fail. Calling it twice is harmless.
func (t *Trail) Close() error { return t.close() }

func (t *Trail) closeAll() error {
	for _, c := range t.counted {
		c.close()
	}
	errs := []error{t.changes.close(), t.reads.close(), t.refusals.close()}
	for _, s := range t.sinks {
		errs = append(errs, s.close())
	}
	if t.lock != nil {
		errs = append(errs, t.lock.Close())
	}
	return errors.Join(errs...)
}

// Describe is part of prometheus.Collector.
func (t *Trail) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(t, to) }

var (
	descWritten = prometheus.NewDesc("windlass_audit_records_total", "Records that were written, by log.", []string{"log"},
		nil)
	descLost = prometheus.NewDesc("windlass_audit_lost_total", "Records that could not be written, by log.",
		[]string{"log"}, nil)
	descFailed = prometheus.NewDesc("windlass_audit_failed", "1 if the last write of the log failed.", []string{"log"},
		nil)
	descSent = prometheus.NewDesc("windlass_audit_sink_records_total", "Records that a sink took.", []string{"sink"},
		nil)
	descDropped = prometheus.NewDesc("windlass_audit_sink_dropped_total", "Records that a sink did not take in time.",
		[]string{"sink"}, nil)
)

// Collect is part of prometheus.Collector.
func (t *Trail) Collect(to chan<- prometheus.Metric) {
	for _, c := range []*chain{t.changes, t.reads, t.refusals} {
		c.mu.Lock()
		written, dropped, failed := c.written, c.dropped, 0.0
		if c.failed != nil {
			failed = 1
		}
		c.mu.Unlock()
		name := filepath.Base(c.path)
		to <- prometheus.MustNewConstMetric(descWritten, prometheus.CounterValue, float64(written), name)
		to <- prometheus.MustNewConstMetric(descLost, prometheus.CounterValue, float64(dropped), name)
		to <- prometheus.MustNewConstMetric(descFailed, prometheus.GaugeValue, failed, name)
	}
	for _, s := range t.sinks {
		sent, dropped := s.counts()
		to <- prometheus.MustNewConstMetric(descSent, prometheus.CounterValue, float64(sent), s.sink.String())
		to <- prometheus.MustNewConstMetric(descDropped, prometheus.CounterValue, float64(dropped), s.sink.String())
	}
}
