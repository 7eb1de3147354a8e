package store

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/windlass-dev/windlass/kit/backoff"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

const (
	shortTries = 6 // together as long as an election takes; then etcd is slow rather than gone
	longestTry = 5 * time.Second

	firstPause   = 10 * time.Millisecond
	longestPause = 250 * time.Millisecond
	instants     = 10 // attempts of a call that may follow at once
)

// pace says how long the attempts of a call may take while etcd answers at its usual speed: the very first one, and
// those after it.
type pace struct {
	class        class
	quick, first time.Duration
}

// class is a kind of request with a latency of its own.
type class int

const (
	shortRequests class = iota
	listRequests
	classes
)

var (
	// A change of leader loses what was proposed in that moment, and is never answered; a retry costs little. So
	// the very first attempt is given up after many times what a read or write takes. A lost leader is found after 1.2 s.
	shortPace = pace{class: shortRequests, quick: 75 * time.Millisecond, first: 300 * time.Millisecond}
	// A long page may take a while, and asking again makes it longer.
	listPace = pace{class: listRequests, quick: 2 * time.Second, first: 2 * time.Second}
	// The history of one record is short, and a member that hangs would keep a write waiting.
	historyPace = pace{class: listRequests, quick: 300 * time.Millisecond, first: 300 * time.Millisecond}
)

// patience is what a client has learned about its etcd: how long answers take, and how many attempts it may still give
// up early.
type patience struct {
	latency [classes]latency
	budget  budget
}

func newPatience() *patience { return &patience{budget: budget{tokens: budgetTokens}} }

// latency estimates how long answers may take, as TCP does for its retransmissions (RFC 6298): the smoothed mean and
// deviation. It is safe for concurrent use.
type latency struct {
	mu              sync.Mutex
	mean, deviation time.Duration
}

// answered takes one answer into account.
func (l *latency) answered(took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mean == 0 {
		l.mean, l.deviation = took, took/2
		return
	}
	l.deviation += ((took - l.mean).Abs() - l.deviation) / 4
	l.mean += (took - l.mean) / 8
}

// limit returns how long to wait for an answer before it counts as lost: at least twice the mean, at most longestTry.
func (l *latency) limit() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return min(max(2*l.mean, l.mean+4*l.deviation), longestTry)
}

const (
	// attempts that may be given up in a row: as many as a busy service has under way when a leader is lost
	budgetTokens = 100
	// and one more for each ten answers, so that retries are at most a tenth of the load in the long run
	budgetRatio = 0.1
	spentTry    = 2 * time.Second // an attempt without budget waits this long at least: longer than an election
)

// budget bounds the attempts that are given up early, as gRPC's retry throttling does. It is safe for concurrent use.
type budget struct {
	mu     sync.Mutex
	tokens float64
}

func (b *budget) earn() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens = min(b.tokens+budgetRatio, budgetTokens)
}

// spend reports whether there was a token.
func (b *budget) spend() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// tries paces the attempts of one call: short ones at first, so that another member is soon asked, then longer ones, so
// that a slow disk delays a call but cannot starve it. None is shorter than what etcd has needed lately.
type tries struct {
	patience *patience
	pace     pace
	limit    time.Duration    // of this attempt where etcd answers at its usual speed
	pauses   *backoff.Backoff // nil before the first
	count    int
	at       bool // the next attempt comes at once
	instant  int  // attempts that did
}

func (s *Store) newTries(p pace) *tries { return &tries{patience: s.patience, pace: p, limit: p.quick} }

// next waits before another attempt, and reports whether there is one.
func (t *tries) next(ctx context.Context) bool {
	t.count++
	if t.count == 1 || t.at {
		t.at = false
		return ctx.Err() == nil
	}
	t.limit = max(t.limit, t.pace.first)
	if t.count > shortTries {
		t.limit = min(2*t.limit, longestTry)
	}
	if t.pauses == nil {
		t.pauses = backoff.Spread(firstPause, longestPause)
	}
	return t.pauses.Wait(ctx)
}

// again has the next attempt come at once and not count: etcd answered, and all that was wrong is known.
func (t *tries) again() {
	if t.instant++; t.instant < instants {
		t.at = true
		t.count--
	}
}

var errSilent = errors.New("no answer in time")

// call is the attempts of one call. An attempt that is given up goes on until the call ends, so that its late answer
// still counts.
type call[R any] struct {
	*tries
	sent    int
	answers chan answer[R]
}

type answer[R any] struct {
	number int // of the attempt
	value  R
	err    error
}

func newCall[R any](s *Store, p pace) *call[R] {
	return &call[R]{tries: s.newTries(p), answers: make(chan answer[R], 1)}
}

// attempt runs f once more and returns the first answer that comes, which may be that of an earlier attempt. Without
// one within the limit the error is errSilent. f may go on until ctx ends, which must be when the call does.
func (c *call[R]) attempt(ctx context.Context, f func(context.Context) (R, error)) (value R, err error) {
	c.sent++
	number, began, seen, budget := c.sent, time.Now(), &c.patience.latency[c.pace.class], &c.patience.budget
	go func() {
		value, err := f(ctx)
		if err == nil {
			seen.answered(time.Since(began))
			budget.earn()
		}
		select {
		case c.answers <- answer[R]{number, value, err}:
		case <-ctx.Done():
		}
	}()
	timer := time.NewTimer(max(c.limit, seen.limit()))
	defer timer.Stop()
	for waited := false; ; {
		select {
		case a := <-c.answers:
			if a.number == number || a.err == nil {
				return a.value, a.err
			}
		case <-ctx.Done():
			return value, ctx.Err()
		case <-timer.C:
			if more := spentTry - time.Since(began); more > 0 && !waited && !budget.spend() {
				waited = true
				timer.Reset(more)
				continue
			}
			return value, errSilent
		}
	}
}

// retry tries f until it is answered, etcd refuses it, or ctx ends. It is for what may be carried out any number of
// times.
func retry[R any](ctx context.Context, s *Store, p pace, what string, f func(context.Context) (R, error)) (R, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var last error
	for c := newCall[R](s, p); c.next(ctx); {
		value, err := c.attempt(ctx, f)
		if err == nil || errors.Is(err, rpctypes.ErrCompacted) || outcomeOf(err) == refused {
			return value, err
		}
		last = err
	}
	var none R
	return none, ended(ctx, what, last)
}
