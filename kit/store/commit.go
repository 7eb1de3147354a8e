package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Commit carries out all operations in one transaction, or none. It returns the revision that all records written now
// have; after a Commit of nothing but deletions whose first answer was lost, a revision at or after theirs.
//
// An attempt without an answer is repeated until ctx ends: it is recognised by its write id if it came through after
// all, even when others have changed or deleted the records since. Once Commit returned a revision or an *OpError, no attempt
// of it is carried out any more, however late etcd comes to it. Errors: *OpError for a condition that does not hold,
// ErrUnavailable when the deadline passes (the outcome is unknown then, until the next Commit of the same Store has returned),
// or whatever etcd refuses.
func (s *Store) Commit(ctx context.Context, ops ...Op) (int64, error) {
	if len(ops) == 0 {
		return 0, fmt.Errorf("commit: %w: none given", errOperation)
	}
	for _, op := range ops {
		if err := op.validate(); err != nil {
			return 0, fmt.Errorf("commit: %w", err)
		}
	}
	ops, err := s.seal(ops)
	if err != nil {
		return 0, fmt.Errorf("commit: %w", err)
	}
	id, err := newWriteID()
	if err != nil {
		return 0, err
	}
	c := &commit{store: s, ops: ops, id: id, pin: noPin}
	c.fence, c.fenced = FenceFrom(ctx)
	revision, err := c.run(ctx)
	if c.doubtAt > 0 {
		s.writer.abandon(c.doubtAt)
	}
	if err != nil {
		return 0, fmt.Errorf("commit: %w", err)
	}
	return revision, nil
}

// seal returns the operations with the values that are stored.
func (s *Store) seal(ops []Op) ([]Op, error) {
	ops = slices.Clone(ops)
	for i, op := range ops {
		if !op.sealed {
			continue
		}
		if s.sealer == nil {
			return nil, fmt.Errorf("%q: %w", op.key, errNoSealer)
		}
		var err error
		if ops[i].keyID, ops[i].value, err = s.sealer.Seal(op.value, []byte(s.prefix+op.key)); err != nil {
			return nil, fmt.Errorf("%q: %w", op.key, err)
		}
	}
	return ops, nil
}

func newWriteID() (id [writeIDSize]byte, err error) {
	if _, err := rand.Read(id[:]); err != nil {
		return id, fmt.Errorf("write id: %w", err)
	}
	return id, nil
}

const noPin = -1

// commit is one call of Commit.
type commit struct {
	store  *Store
	ops    []Op
	id     [writeIDSize]byte
	fence  Fence
	fenced bool

	base    int64 // a revision before any attempt
	doubtAt int64 // the last revision of the writer key that an attempt without an answer compared; 0: there is no such attempt
	pin     int   // index of the operation whose condition we added ourselves, or noPin
	pinAt   int64 // the revision it was found at
}

func (c *commit) run(ctx context.Context) (int64, error) {
	if err := c.prepare(ctx); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx) // for the attempts that were given up
	defer cancel()
	var last error
	for call := newCall[attempted](c.store, shortPace); call.next(ctx); {
		key, at, move, err := c.store.writerNow(ctx)
		if err != nil {
			return 0, err
		}
		// Where an earlier attempt compared the key as it still is, this one moves it on: once it is carried out, that one never is.
		move = move || c.doubtAt == at
		got, late, err := call.attempt(ctx, func(ctx context.Context) (attempted, error) { return c.attempt(ctx, key, at, move) })
		if late || err != nil && outcomeOf(err) == unknown {
			c.doubtAt = at
		}
		switch {
		case err == nil:
			c.store.saw(got.resp.Header.Revision)
			revision, err := c.settle(ctx, got, late, key)
			if errors.Is(err, errWriterMoved) {
				call.again()
			} else if !errors.Is(err, errPinMoved) {
				return revision, err
			}
			last = err
		case outcomeOf(err) == unknown:
			last = err
		case c.doubtAt == 0:
			return 0, noSpace(err)
		default:
			// This attempt did nothing, but an earlier one may have.
			return 0, fmt.Errorf("%w: outcome unknown: %w", ErrUnavailable, noSpace(err))
		}
	}
	return 0, ended(ctx, "write", last)
}

// noSpace returns ErrNoSpace where etcd says so.
func noSpace(err error) error {
	if rpctypes.ErrorDesc(err) == rpctypes.ErrorDesc(rpctypes.ErrGRPCNoSpace) {
		return ErrNoSpace
	}
	return err
}

// attempted is the answer to one attempt.
type attempted struct {
	resp *clientv3.TxnResponse
	at   int64 // the revision of the writer key that it compared
	move bool  // it moved the key if it was carried out
}

// prepare makes sure that a repetition is harmless, and learns a revision that is before any attempt.
func (c *commit) prepare(ctx context.Context) error {
	if err := c.choosePin(ctx); err != nil {
		return err
	}
	// Making the key shows a revision too.
	if _, _, _, err := c.store.writerNow(ctx); err != nil {
		return err
	}
	c.base = c.store.seen.Load()
	return nil
}

// choosePin looks after operations that depend on nothing: they could be carried out twice, with somebody else's write
// in between. So one of them is made to depend on what stands there now: a put if there is one, since it marks what it
// writes, else a deletion that has something to delete.
func (c *commit) choosePin(ctx context.Context) error {
	if slices.ContainsFunc(c.ops, Op.guardsItself) {
		return nil
	}
	i := slices.IndexFunc(c.ops, func(o Op) bool { return o.kind == opPut })
	if i >= 0 {
		_, err := c.pinNow(ctx, i)
		return err
	}
	for i, op := range c.ops {
		if op.kind != opDelete {
			continue
		}
		if found, err := c.pinNow(ctx, i); err != nil || found {
			return err
		}
	}
	return nil
}

// pinNow pins operation i to what stands there, and reports whether there is anything.
func (c *commit) pinNow(ctx context.Context, i int) (bool, error) {
	resp, err := c.store.read(ctx, shortPace, c.store.prefix+c.ops[i].key)
	if err != nil {
		return false, err
	}
	c.pinTo(i, resp.Kvs)
	return len(resp.Kvs) > 0, nil
}

func (c *commit) pinTo(i int, current []*mvccpb.KeyValue) {
	c.pin, c.pinAt = i, 0
	if len(current) > 0 {
		c.pinAt = current[0].ModRevision
	}
}

// attempt sends the transaction once. If a condition does not hold, the answer has the current records instead.
func (c *commit) attempt(ctx context.Context, writer string, at int64, move bool) (attempted, error) {
	conditions := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(writer), "=", at)}
	var then []clientv3.Op
	for i, op := range c.ops {
		key := c.store.prefix + op.key
		if op.ifRevision != Whatever {
			conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(key), "=", op.ifRevision))
		} else if i == c.pin {
			conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(key), "=", c.pinAt))
		}
		switch op.kind {
		case opPut:
			then = append(then, clientv3.OpPut(key, string(envelope{keyID: op.keyID, writeID: c.id, payload: op.value}.encode())))
		case opDelete:
			then = append(then, clientv3.OpDelete(key))
		}
	}
	if c.fenced {
		conditions = append(conditions, c.fence.holds())
	}
	if move {
		then = append(then, clientv3.OpPut(writer, string(envelope{writeID: c.id}.encode())))
	}
	resp, err := c.store.client.Txn(ctx).If(conditions...).Then(then...).Else(append(c.gets(), clientv3.OpGet(writer))...).Commit()
	return attempted{resp, at, move}, err
}

// gets returns the reads of all that the commit depends on: the records of its operations, and the fence if there is one.
func (c *commit) gets() []clientv3.Op {
	gets := make([]clientv3.Op, 0, len(c.ops)+2)
	for _, op := range c.ops {
		gets = append(gets, clientv3.OpGet(c.store.prefix+op.key))
	}
	if c.fenced {
		gets = append(gets, clientv3.OpGet(c.fence.Key))
	}
	return gets
}

// seen takes apart what gets read, and the writer key behind it: the records, the fence among them, and the revision of the key.
func (c *commit) seen(resp *clientv3.TxnResponse) (current [][]*mvccpb.KeyValue, writer int64) {
	n := len(c.ops)
	if c.fenced {
		n++
	}
	for _, r := range resp.Responses[:n] {
		current = append(current, r.GetResponseRange().GetKvs())
	}
	if kvs := resp.Responses[n].GetResponseRange().GetKvs(); len(kvs) > 0 {
		writer = kvs[0].ModRevision
	}
	return current, writer
}

var (
	// errPinMoved means that only the condition which we added ourselves does not hold: try again with a new one.
	errPinMoved = errors.New("others write the same key")
	// errWriterMoved means that another Commit has moved the writer key: try again with its new revision.
	errWriterMoved = errors.New("the writer key has moved")
)

// settle returns the revision of an attempt that was carried out, or finds out why it was refused: because an earlier one came
// through, because a condition failed, or because the writer key has moved.
func (c *commit) settle(ctx context.Context, a attempted, late bool, key string) (int64, error) {
	if a.resp.Succeeded {
		return c.succeeded(ctx, a, key)
	}
	resp := a.resp
	current, now := c.seen(resp)
	if c.doubtAt > 0 {
		if fenced := now > c.doubtAt || now == 0 && !late; !fenced {
			// An attempt may still come through: after the look at what is there, and even after the answer to the caller.
			var err error
			if resp, err = c.fenceAttempts(ctx, key); err != nil {
				return 0, err
			}
			if current, now = c.seen(resp); resp.Succeeded {
				now = resp.Header.Revision
			}
		}
		c.store.writer.moved(a.at, now)
		revision, err := c.cameThrough(ctx, current, resp.Header.Revision)
		if err != nil {
			return 0, err
		}
		c.doubtAt = 0
		if revision > 0 {
			return revision, nil
		}
	}
	c.store.writer.moved(a.at, now)
	if c.fenced {
		kvs := current[len(c.ops)]
		if len(kvs) == 0 || kvs[0].CreateRevision != c.fence.CreateRevision {
			return 0, &OpError{Index: -1, Key: c.fence.Key, Err: ErrFenced}
		}
	}
	for i, op := range c.ops {
		record := c.store.first(current[i])
		if violation := op.violation(record); violation != nil {
			return 0, &OpError{Index: i, Key: op.key, Current: record, Err: violation}
		}
	}
	if c.pin != noPin {
		was := c.pinAt
		if c.pinTo(c.pin, current[c.pin]); c.pinAt != was {
			return 0, errPinMoved
		}
	}
	return 0, errWriterMoved
}

// succeeded makes sure that the other attempts beside one that was carried out never are, and returns its revision.
func (c *commit) succeeded(ctx context.Context, a attempted, key string) (int64, error) {
	revision := a.resp.Header.Revision
	if a.move {
		c.store.writer.moved(a.at, revision)
	}
	// It was carried out with the key at a.at, so only one that compared the same or a later revision can still be.
	if c.doubtAt > 0 && c.doubtAt >= a.at && !(a.move && c.doubtAt < revision) {
		resp, err := c.fenceAttempts(ctx, key)
		if err != nil {
			return 0, err
		}
		if resp.Succeeded {
			c.store.writer.moved(c.doubtAt, resp.Header.Revision)
		}
	}
	c.doubtAt = 0
	return revision, nil
}

// first returns the record of an answer, or the zero Record if it is empty.
func (s *Store) first(kvs []*mvccpb.KeyValue) Record {
	if len(kvs) == 0 {
		return Record{}
	}
	return s.record(kvs[0])
}

// cameThrough returns the revision at which an attempt without an answer was carried out, or 0 if it was not. The writer key has
// moved on, so none of them will be.
func (c *commit) cameThrough(ctx context.Context, current [][]*mvccpb.KeyValue, at int64) (int64, error) {
	i := slices.IndexFunc(c.ops, func(o Op) bool { return o.kind == opPut })
	if i < 0 {
		return c.allGone(current, at), nil
	}
	// All puts came through or none, so one of them tells.
	kvs := current[i]
	switch {
	case len(kvs) > 0 && c.wrote(kvs[0]):
		return kvs[0].ModRevision, nil
	case len(kvs) > 0 && kvs[0].ModRevision <= c.base:
		return 0, nil
	default:
		return c.searchHistory(ctx, c.store.prefix+c.ops[i].key, at)
	}
}

// allGone returns at if every record to delete is gone or was made anew since: deletions leave no mark of who did them,
// and what the caller wanted is the case.
func (c *commit) allGone(current [][]*mvccpb.KeyValue, at int64) int64 {
	changes := false
	for i, op := range c.ops {
		if op.kind != opDelete {
			continue
		}
		changes = true
		if len(current[i]) > 0 && current[i][0].CreateRevision <= c.base {
			return 0
		}
	}
	if !changes {
		return 0
	}
	return at
}

func (c *commit) wrote(kv *mvccpb.KeyValue) bool {
	e, err := decodeEnvelope(kv.Value)
	return err == nil && e.writeID == c.id
}
