package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	// sharedOps is how many commits share a transaction: below etcd's limit of 128 operations, with room for the fence
	// and the writer key.
	sharedOps = 100
	// sharedBytes is the total size of their values; a larger one is written alone. A member accepts 8 MiB: a larger
	// transaction would always fail, with every commit in it.
	sharedBytes = 1 << 20
	// sharedAtOnce is how many shared transactions are under way before further commits wait. One of them is on its way
	// while etcd syncs the other to its disk.
	sharedAtOnce = 2
	// sharedWait is how long a commit waits for one of them to end: then it goes without. With an etcd of the usual
	// speed it is not reached.
	sharedWait = 5 * time.Millisecond
)

// shares are the commits that share transactions: those of one put that depends on a revision. A single write fares as
// before; many concurrent ones cost etcd one proposal and one sync of its disk together. It is safe for concurrent use.
type shares struct {
	wait time.Duration // sharedWait, but for tests

	mu      sync.Mutex
	waiting []*shared
	running int // transactions under way
}

// shared is one commit that shares a transaction.
type shared struct {
	op     Op
	fence  Fence
	fenced bool
	done   chan struct{} // closed once revision and err are set

	revision int64
	err      error

	// The lock of shares guards these.
	group *group // nil while it waits
	left  bool   // its call has ended
}

// group is the commits of one transaction, which is sent on behalf of all until none is left.
type group struct {
	members []*shared
	live    int // members whose calls have not ended
	cancel  context.CancelFunc
	at      int64 // the revision of the writer key that its last attempt compared; 0 before the first
}

// sharable reports whether a commit of these operations may share its transaction: the condition of its one operation
// says whether it was carried out, and is checked again with each attempt.
func sharable(ops []Op) bool { return len(ops) == 1 && ops[0].kind == opPut && ops[0].guardsItself() }

// commitShared is Commit of one operation, perhaps in a transaction with others.
func (s *Store) commitShared(ctx context.Context, op Op) (int64, error) {
	m := &shared{op: op, done: make(chan struct{})}
	m.fence, m.fenced = FenceFrom(ctx)
	if ctx.Err() != nil {
		return 0, ended(ctx, "write", nil)
	}
	if !s.join(m) {
		patience := time.NewTimer(s.shares.wait)
		defer patience.Stop()
		select {
		case <-m.done:
		case <-ctx.Done():
		case <-patience.C:
			s.hurry(m)
		}
	}
	select {
	case <-m.done:
		return m.revision, m.err
	case <-ctx.Done():
	}
	if s.leave(m) {
		return 0, ended(ctx, "write", nil)
	}
	<-m.done
	return m.revision, m.err
}

// join has a commit wait for a transaction, or begins one. It reports whether it did.
func (s *Store) join(m *shared) bool {
	s.shares.mu.Lock()
	defer s.shares.mu.Unlock()
	s.shares.waiting = append(s.shares.waiting, m)
	if s.shares.running >= sharedAtOnce {
		return false
	}
	s.begin()
	return m.group != nil
}

// hurry begins a transaction if a commit still waits for one.
func (s *Store) hurry(m *shared) {
	s.shares.mu.Lock()
	defer s.shares.mu.Unlock()
	for m.group == nil { // a commit of the same key goes before it
		s.begin()
	}
}

// begin sends a transaction of commits that wait. The lock is held, and one waits.
func (s *Store) begin() {
	g := s.shares.gather()
	ctx, cancel := context.WithCancel(context.Background())
	g.cancel = cancel
	s.shares.running++
	go func() {
		defer cancel()
		s.runGroup(ctx, g)
		s.shares.mu.Lock()
		defer s.shares.mu.Unlock()
		s.shares.running--
		if len(s.shares.waiting) > 0 && s.shares.running < sharedAtOnce {
			s.begin()
		}
	}()
}

// gather takes the first of those that wait and all that may share its transaction: under the same fence, and each
// about a record of its own.
func (s *shares) gather() *group {
	g, size, keys := &group{}, 0, map[string]bool{}
	first := s.waiting[0]
	s.waiting = slices.DeleteFunc(s.waiting, func(m *shared) bool {
		n := len(g.members)
		if m.fenced != first.fenced || m.fence != first.fence || keys[m.op.key] || n == sharedOps ||
			n > 0 && size+len(m.op.value) > sharedBytes {
			return false
		}
		size += len(m.op.value)
		keys[m.op.key] = true
		m.group = g
		g.members = append(g.members, m)
		return true
	})
	g.live = len(g.members)
	return g
}

// leave ends the call of a commit; false if it has its result. The transaction goes on for the others: its last attempt
// may be carried out until the next Commit has written, and no later one includes the commit.
func (s *Store) leave(m *shared) bool {
	s.shares.mu.Lock()
	defer s.shares.mu.Unlock()
	select {
	case <-m.done:
		return false
	default:
	}
	m.left = true
	g := m.group
	if g == nil {
		s.shares.waiting = slices.DeleteFunc(s.shares.waiting, func(o *shared) bool { return o == m })
		return true
	}
	if g.at > 0 {
		s.writer.abandon(g.at)
	}
	if g.live--; g.live == 0 {
		g.cancel()
	}
	return true
}

// runGroup commits a group. If it is refused because of some commits, the others go on without them.
func (s *Store) runGroup(ctx context.Context, g *group) {
	for len(g.members) > 0 {
		c, err := s.newCommit(g)
		var revision int64
		if err == nil {
			revision, err = c.run(ctx)
		}
		if c != nil && c.doubtAt > 0 {
			s.writer.abandon(c.doubtAt)
		}
		var refused *OpError
		if !errors.As(err, &refused) || refused.Index < 0 {
			s.finish(g, g.members, revision, err)
			return
		}
		for _, i := range slices.Backward(refused.Refused) {
			s.finish(g, g.members[i:i+1], 0, c.refusals[i])
			g.members = slices.Delete(g.members, i, i+1)
		}
	}
}

func (s *Store) newCommit(g *group) (*commit, error) {
	id, err := newWriteID()
	if err != nil {
		return nil, err
	}
	first := g.members[0]
	c := &commit{store: s, id: id, pin: noPin, fence: first.fence, fenced: first.fenced, group: g}
	for _, m := range g.members {
		c.ops = append(c.ops, m.op)
	}
	return c, nil
}

// finish gives commits of a group their result.
func (s *Store) finish(g *group, members []*shared, revision int64, err error) {
	s.shares.mu.Lock()
	defer s.shares.mu.Unlock()
	for _, m := range members {
		m.revision, m.err = revision, err
		close(m.done)
		if !m.left {
			g.live--
		}
	}
}

var errAllLeft = errors.New("the calls of all commits have ended")

// sending notes that a group sends an attempt which compares a revision of the writer key, and drops the commits whose
// calls have ended: the next commit fences only the attempts before these ended.
func (c *commit) sending(at int64) error {
	if c.group == nil {
		return nil
	}
	s, g := &c.store.shares, c.group
	s.mu.Lock()
	defer s.mu.Unlock()
	g.members = slices.DeleteFunc(g.members, func(m *shared) bool { return m.left })
	if len(g.members) == 0 {
		return fmt.Errorf("write: %w", errAllLeft)
	}
	c.ops = c.ops[:0]
	for _, m := range g.members {
		c.ops = append(c.ops, m.op)
	}
	g.at = at
	return nil
}
