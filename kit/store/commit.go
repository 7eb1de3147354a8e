package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Commit carries out all operations in one transaction, or none. It returns the revision that all records written now
// have; after a Commit of nothing but deletions whose first answer was lost, a revision at or after theirs.
//
// An attempt without an answer is repeated until ctx ends: it is recognised by its write id if it came through after
// all, even when others have changed or deleted the records since. Errors: *OpError for a condition that does not hold,
// ErrUnavailable when the deadline passes (the outcome is unknown then), or whatever etcd refuses.
func (s *Store) Commit(ctx context.Context, ops ...Op) (int64, error) {
	if len(ops) == 0 {
		return 0, fmt.Errorf("commit: %w: none given", errOperation)
	}
	for _, op := range ops {
		if err := op.validate(); err != nil {
			return 0, fmt.Errorf("commit: %w", err)
		}
	}
	c := &commit{store: s, ops: ops, pin: noPin}
	c.fence, c.fenced = FenceFrom(ctx)
	if _, err := rand.Read(c.id[:]); err != nil {
		return 0, fmt.Errorf("write id: %w", err)
	}
	revision, err := c.run(ctx)
	if err != nil {
		return 0, fmt.Errorf("commit: %w", err)
	}
	return revision, nil
}

const noPin = -1

// commit is one call of Commit.
type commit struct {
	store  *Store
	ops    []Op
	id     [writeIDSize]byte
	fence  Fence
	fenced bool

	base     int64 // a revision before any attempt
	doubtful bool  // an attempt had no answer
	pin      int   // index of the operation whose condition we added ourselves, or noPin
	pinAt    int64 // the revision it was found at
}

func (c *commit) run(ctx context.Context) (int64, error) {
	if err := c.prepare(ctx); err != nil {
		return 0, err
	}
	var last error
	for t := newTries(shortPace); t.next(ctx); {
		try, cancel := t.context(ctx)
		resp, err := c.attempt(try)
		cancel()
		switch {
		case err == nil && resp.Succeeded:
			c.store.saw(resp.Header.Revision)
			return resp.Header.Revision, nil
		case err == nil:
			c.store.saw(resp.Header.Revision)
			revision, err := c.settle(ctx, resp)
			if !errors.Is(err, errPinMoved) {
				return revision, err
			}
			last = err
		case outcomeOf(err) == refused:
			return 0, err
		default:
			c.doubtful = true
			last = err
		}
	}
	return 0, ended(ctx, "write", last)
}

// prepare makes sure that a repetition is harmless, and learns a revision that is before any attempt.
func (c *commit) prepare(ctx context.Context) error {
	if err := c.choosePin(ctx); err != nil {
		return err
	}
	if c.store.seen.Load() == 0 {
		if _, err := c.store.read(ctx, shortPace, c.store.prefix+c.ops[0].key); err != nil {
			return err
		}
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
func (c *commit) attempt(ctx context.Context) (*clientv3.TxnResponse, error) {
	var conditions []clientv3.Cmp
	var then, otherwise []clientv3.Op
	for i, op := range c.ops {
		key := c.store.prefix + op.key
		if op.ifRevision != Whatever {
			conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(key), "=", op.ifRevision))
		} else if i == c.pin {
			conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(key), "=", c.pinAt))
		}
		switch op.kind {
		case opPut:
			then = append(then, clientv3.OpPut(key, string(envelope{writeID: c.id, payload: op.value}.encode())))
		case opDelete:
			then = append(then, clientv3.OpDelete(key))
		}
		otherwise = append(otherwise, clientv3.OpGet(key))
	}
	if c.fenced {
		conditions = append(conditions, c.fence.holds())
		otherwise = append(otherwise, clientv3.OpGet(c.fence.Key))
	}
	return c.store.client.Txn(ctx).If(conditions...).Then(then...).Else(otherwise...).Commit()
}

// errPinMoved means that only the condition which we added ourselves does not hold: try again with a new one.
var errPinMoved = errors.New("others write the same key")

// settle finds out why a transaction was refused: because an earlier attempt came through, or because a condition failed.
func (c *commit) settle(ctx context.Context, resp *clientv3.TxnResponse) (int64, error) {
	current := make([][]*mvccpb.KeyValue, len(resp.Responses))
	for i, r := range resp.Responses {
		current[i] = r.GetResponseRange().GetKvs()
	}
	if c.doubtful {
		revision, err := c.cameThrough(ctx, current, resp.Header.Revision)
		if err != nil || revision > 0 {
			return revision, err
		}
	}
	if c.fenced {
		kvs := current[len(c.ops)]
		if len(kvs) == 0 || kvs[0].CreateRevision != c.fence.CreateRevision {
			return 0, &OpError{Index: -1, Key: c.fence.Key, Err: ErrFenced}
		}
	}
	for i, op := range c.ops {
		record, err := c.store.first(current[i])
		if err != nil {
			return 0, err
		}
		if violation := op.violation(record); violation != nil {
			return 0, &OpError{Index: i, Key: op.key, Current: record, Err: violation}
		}
	}
	if c.pin != noPin {
		c.pinTo(c.pin, current[c.pin])
	}
	return 0, errPinMoved
}

// first returns the record of an answer, or the zero Record if it is empty.
func (s *Store) first(kvs []*mvccpb.KeyValue) (Record, error) {
	if len(kvs) == 0 {
		return Record{}, nil
	}
	return s.record(kvs[0])
}

// cameThrough returns the revision at which an attempt without an answer was carried out, or 0 if it was not. Then it
// never will be, since one of its conditions failed and revisions do not come back.
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
