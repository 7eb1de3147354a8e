package large

import (
	"context"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/windlass-dev/windlass/kit/rpcerr"
)

// Budget is the memory that large requests may use at a time. Its methods may be called concurrently.
type Budget struct {
	most int

	mu      sync.Mutex
	used    int
	follow  func(used int)
	waiting []*waiter // the first has waited longest
}

type waiter struct {
	n     int
	ready chan struct{}
}

// retry is how soon a request that was refused for the memory of others should be sent again.
const retry = 2 * time.Second

// withoutLimit is the budget of a process that has no limit of memory.
const withoutLimit = 1 << 30

// NewBudget returns a budget of a number of bytes. 0 means half of the process's limit of memory (GOMEMLIMIT), or 1 GiB
// if it has none.
func NewBudget(most int) *Budget {
	if most == 0 {
		most = withoutLimit
		if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 {
			most = int(limit / 2)
		}
	}
	return &Budget{most: most}
}

// Most returns the size of the budget in bytes.
func (b *Budget) Most() int { return b.most }

// Follow has f called with the number of bytes that are taken, after each change; call it before Take.
func (b *Budget) Follow(f func(used int)) { b.follow = f }

// use takes n more bytes, or gives them back if n is negative; b.mu is held.
func (b *Budget) use(n int) {
	b.used += n
	if b.follow != nil {
		b.follow(b.used)
	}
}

// Used returns how many bytes are taken.
func (b *Budget) Used() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Share is what one request has of a budget.
type Share struct {
	budget *Budget
	n      int // guarded by the budget
	once   sync.Once
}

// Take takes n bytes, for which it waits until ctx ends, in turn. It fails at once if the budget is smaller. The share
// must be released if the error is nil.
func (b *Budget) Take(ctx context.Context, n int) (*Share, error) {
	if n > b.most {
		return nil, memoryError(n, b.most)
	}
	share := &Share{budget: b, n: n}
	b.mu.Lock()
	if len(b.waiting) == 0 && b.used+n <= b.most {
		b.use(n)
		b.mu.Unlock()
		return share, nil
	}
	w := &waiter{n, make(chan struct{})}
	b.waiting = append(b.waiting, w)
	b.mu.Unlock()
	select {
	case <-w.ready:
		return share, nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.waiting, w); i >= 0 {
		b.waiting = slices.Delete(b.waiting, i, i+1)
		b.serve()
		return nil, ctx.Err()
	}
	return share, nil // room came at the last moment
}

// wait is how long the message of an ordinary call waits for memory.
const wait = 2 * time.Second

// TakeOrdinary takes the memory that the decoded message of an ordinary call needs, in bytes. It refuses those that
// need more than such messages may have, and waits up to two seconds. The share is nil for a message that is not
// counted.
func (b *Budget) TakeOrdinary(ctx context.Context, n int) (*Share, error) {
	switch {
	case n <= Uncounted:
		return nil, nil
	case n > MaxOrdinary:
		return nil, rpcerr.TooMany(fmt.Sprintf("the request needs about %d MiB of memory, and may use %d MiB, for it has "+
			"very many small parts", n>>20, MaxOrdinary>>20), 0)
	}
	waited, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	share, err := b.Take(waited, n)
	if err != nil && waited.Err() != nil && ctx.Err() == nil {
		err = rpcerr.TooMany("the requests of others use the memory that there is for them", retry)
	}
	return share, err
}

// Grow makes a share at least n bytes. It does not wait: two requests could wait for each other.
func (s *Share) Grow(n int) error {
	b := s.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if n <= s.n {
		return nil
	}
	switch {
	case n > b.most:
		return memoryError(n, b.most)
	case b.used+n-s.n > b.most:
		return rpcerr.TooMany("other large requests use the memory that there is for them", retry)
	}
	b.use(n - s.n)
	s.n = n
	return nil
}

// Release gives a share back. Further calls have no effect, nor has one of a nil share.
func (s *Share) Release() {
	if s != nil {
		s.once.Do(func() { s.budget.put(s.n) })
	}
}

func (b *Budget) put(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.use(-n)
	b.serve()
}

// serve gives room to the waiting callers, in turn; b.mu is held.
func (b *Budget) serve() {
	for len(b.waiting) > 0 && b.used+b.waiting[0].n <= b.most {
		b.use(b.waiting[0].n)
		close(b.waiting[0].ready)
		b.waiting = b.waiting[1:]
	}
}
