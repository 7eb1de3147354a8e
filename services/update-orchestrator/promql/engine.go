package promql

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"golang.org/x/sync/errgroup"
)

const (
	scrapeEvery = 30 * time.Second
	scrapeLimit = 5 * time.Second // of each target
	scrapers    = 4               // at once
	queryLimit  = 10 * time.Second
	// staleAfter is how old the latest sample of a series may be, as in Prometheus.
	staleAfter = 5 * time.Minute
	// pauseLimit is how long may pass between two samples before what was between them counts as not known.
	pauseLimit = 3 * scrapeEvery
	// clockStep is by how much the clock may go otherwise than time did.
	clockStep = time.Second
	// maxWatched is how many queries are known at once.
	maxWatched = 500
	// forgetAfter is how long after its last evaluation samples are kept for a query; it is repeated each hour.
	forgetAfter = 3 * time.Hour
)

// Target is a program whose metrics are read.
type Target struct {
	Job, Instance string // labels of its series: its name and its address
	// Read returns its metrics in the text format of Prometheus.
	Read func(context.Context) ([]byte, error)
}

// Engine evaluates queries over the metrics of targets. It reads them when a query is evaluated; while there are
// queries that look back, it also reads them every 30 s. What no query reads is not kept.
type Engine struct {
	targets []Target
	found   func() []Target // further ones at the moment; nil: there are none
	engine  *promql.Engine
	samples *samples
	clock   func() instant

	lock    sync.Mutex          // held while metrics are read, and while a query is evaluated
	watched map[string]*watched // by their text
	tried   instant             // when the metrics were last read
	whole   bool                // they were then read from all targets
}

// instant is a time by the clock, and one that goes on while the clock is set.
type instant struct {
	time.Time
	uptime time.Duration
}

// watched is a query whose series are kept.
type watched struct {
	*query
	asked instant   // when it was last evaluated
	load  int       // about how many samples it reads
	since time.Time // since when its series were read without a gap; zero if they were not
}

// Find has the engine also read what found returns at each reading. Call it before the first.
func (e *Engine) Find(found func() []Target) { e.found = found }

// NewEngine returns an engine without samples.
func NewEngine(targets []Target, log *slog.Logger) *Engine {
	started := time.Now()
	return &Engine{
		targets: targets, samples: &samples{series: map[string]*series{}}, watched: map[string]*watched{},
		clock: func() instant {
			now := time.Now()
			return instant{now.Round(0), now.Sub(started)}
		},
		engine: promql.NewEngine(promql.EngineOpts{
			Logger: log, MaxSamples: maxSamples, Timeout: queryLimit, LookbackDelta: staleAfter, Parser: syntax,
			NoStepSubqueryIntervalFn: func(int64) int64 { return noStep.Milliseconds() },
		}),
	}
}

// Run reads metrics for the queries that look back, until ctx ends.
func (e *Engine) Run(ctx context.Context) error {
	tick := time.NewTicker(scrapeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		e.lock.Lock()
		e.forget()
		for _, w := range e.watched {
			if w.back > 0 {
				within, cancel := context.WithTimeout(ctx, scrapeEvery)
				_ = e.scrape(within) // what could not be read, the next evaluation says
				cancel()
				break
			}
		}
		e.lock.Unlock()
	}
}

// Evaluate returns whether the risk of a query applies. It returns an error if the query is not allowed or returns
// neither 0 nor 1, if metrics cannot be read, and while the samples do not reach back as far as the query looks.
func (e *Engine) Evaluate(ctx context.Context, text string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*queryLimit)
	defer cancel()
	e.lock.Lock() // what is read does not change during an evaluation
	defer e.lock.Unlock()
	w, at, err := e.prepare(ctx, text)
	if err != nil {
		return false, err
	}
	if have := at.Sub(w.since); have < w.back {
		return false, fmt.Errorf("the samples reach back %s of the %s that the query reads; they will at %s",
			have.Round(time.Second), w.back, w.since.Add(w.back).UTC().Format(time.RFC3339))
	}
	q, err := e.engine.NewInstantQuery(ctx, e.samples, nil, text, at)
	if err != nil {
		return false, err
	}
	defer q.Close()
	result := q.Exec(ctx)
	if result.Err != nil {
		return false, result.Err
	}
	vector, err := result.Vector()
	if err != nil {
		return false, fmt.Errorf("the query returns a %s, not a vector", result.Value.Type())
	}
	if len(vector) != 1 {
		return false, oneSample(len(vector))
	}
	if vector[0].H != nil {
		return false, errors.New("the query returns a histogram, not a number")
	}
	return decide(vector[0].F)
}

func oneSample(n int) error { return fmt.Errorf("the query must return one sample, but returns %d", n) }

// decide reads the value of the one sample. Source: the Cluster Version Operator.
func decide(value float64) (bool, error) {
	switch value {
	case 0:
		return false, nil
	case 1:
		return true, nil
	}
	return false, fmt.Errorf("the query must return 0 or 1, but returns %g", value)
}

// prepare begins to watch a query, and returns it with the time of the samples to evaluate it at. The lock is held.
func (e *Engine) prepare(ctx context.Context, text string) (*watched, time.Time, error) {
	e.forget()
	now := e.clock()
	w := e.watched[text]
	if w == nil {
		if len(e.watched) >= maxWatched {
			return nil, now.Time, fmt.Errorf("more than %d queries are evaluated here", maxWatched)
		}
		q, err := read(text)
		if err != nil {
			return nil, now.Time, err
		}
		patterns := q.patterns
		for _, other := range e.watched {
			patterns += other.patterns
		}
		if patterns > maxMatched {
			return nil, now.Time, fmt.Errorf("the selectors of all queries have patterns of more than %d instructions",
				maxMatched)
		}
		w = &watched{query: q}
		e.watched[text] = w
	}
	w.asked = now
	if w.since.IsZero() || !e.whole || now.uptime-e.tried.uptime >= scrapeEvery {
		if err := e.scrape(ctx); err != nil {
			return nil, now.Time, err
		}
	}
	w.load = e.samples.read(w.query) * int(w.back/scrapeEvery+1)
	all := 0
	for _, other := range e.watched {
		all += other.load
	}
	if w.load > maxSamples/4 || all > maxSamples*3/4 { // or the others would have no room
		delete(e.watched, text)
		return nil, now.Time, fmt.Errorf("the query reads %d samples: a query may read %d, and all together %d", w.load,
			maxSamples/4, maxSamples*3/4)
	}
	return w, e.tried.Time, nil
}

// forget ends the watch of queries that were not evaluated for long. The lock is held.
func (e *Engine) forget() {
	now := e.clock()
	for text, w := range e.watched {
		if now.uptime-w.asked.uptime > forgetAfter {
			delete(e.watched, text)
		}
	}
}

// scrape reads the metrics of all targets. If one could not be read, or the last time is long ago, there is a gap, and
// queries that look back start again: what is not known could change their result. The lock is held.
func (e *Engine) scrape(ctx context.Context) error {
	targets := e.targets
	if e.found != nil {
		targets = slices.Concat(targets, e.found())
	}
	answers, failures := make([][]byte, len(targets)), make([]error, len(targets))
	var g errgroup.Group
	g.SetLimit(scrapers)
	for i, t := range targets {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, scrapeLimit)
			defer cancel()
			answers[i], failures[i] = t.Read(ctx)
			return nil
		})
	}
	_ = g.Wait() // the errors are in failures
	if ctx.Err() != nil {
		return ctx.Err() // this says nothing of the targets
	}
	at := e.clock()
	e.follow(at)
	var wrong []string
	for i, t := range targets {
		if err := e.keep(ctx, t, answers[i], failures[i], at.Time); err != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %v", t.Job, err))
		}
	}
	var back time.Duration
	for _, w := range e.watched {
		back = max(back, w.back)
	}
	e.samples.trim(at.Add(-back-staleAfter-scrapeEvery), e.wanted)
	e.whole = len(wrong) == 0
	for _, w := range e.watched {
		switch {
		case !e.whole:
			w.since = time.Time{}
		case w.since.IsZero():
			w.since = at.Time
		}
	}
	if !e.whole {
		return fmt.Errorf("metrics could not be read of %s", strings.Join(wrong, "; "))
	}
	return nil
}

// follow notes that metrics were read at a time. If the clock was set since the last time, the samples before are of
// other times than they say, and are forgotten. The lock is held.
func (e *Engine) follow(at instant) {
	last := e.tried
	e.tried = at
	if last.IsZero() {
		return
	}
	passed := at.uptime - last.uptime
	if off := at.Sub(last.Time) - passed; off > clockStep || off < -clockStep || at.Before(last.Time) {
		e.samples.reset()
		for _, w := range e.watched {
			w.since = time.Time{}
		}
	}
	if passed > pauseLimit {
		for _, w := range e.watched {
			w.since = time.Time{}
		}
	}
}

// keep adds what a target answered. A target that did not answer is down, and has no series, as in Prometheus.
func (e *Engine) keep(ctx context.Context, t Target, answer []byte, failed error, at time.Time) error {
	common := labels.FromStrings("instance", t.Instance, "job", t.Job)
	if failed == nil {
		failed = e.samples.add(ctx, t.Job, common, append(slices.Clip(answer), "\nup 1\n"...), at, e.wanted)
		if failed == nil {
			return nil
		}
	}
	if err := e.samples.add(ctx, t.Job, common, []byte("up 0\n"), at, e.wanted); err != nil {
		return err
	}
	return failed
}

// wanted reports whether a query reads a series. The lock is held.
func (e *Engine) wanted(series labels.Labels) bool {
	for _, w := range e.watched {
		if w.reads(series) {
			return true
		}
	}
	return false
}
