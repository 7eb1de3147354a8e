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
// have; after a Commit of nothing but deletions whose first answer was lost, a revision at or after theirs. Concurrent
// calls with one Put each, at a revision or of a new record, may share a transaction and so a revision; each has its
// own result.
//
// An attempt without an answer is repeated until ctx ends, once it is known that it did nothing and never will: it is
// recognised by its write id if it came through after all, even when others have changed or deleted the records since.
// Once Commit returned a revision or an *OpError, no attempt of it is carried out any more, however late etcd comes to
// it. Errors: *OpError for a condition that does not hold, ErrUnavailable when the deadline passes (the outcome is
// unknown then, until the next Commit of the same Store has written), or whatever etcd refuses.
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
	var revision int64
	if sharable(ops) {
		revision, err = s.commitShared(ctx, ops[0])
	} else {
		revision, err = s.commitAlone(ctx, ops)
	}
	if err != nil {
		return 0, fmt.Errorf("commit: %w", err)
	}
	return revision, nil
}

func (s *Store) commitAlone(ctx context.Context, ops []Op) (int64, error) {
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
	return revision, err
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

// commit is one call of Commit, or those of a group. At most one of its attempts can be carried out at any time: while
// one has no answer, only looks are sent, which fence it and find out what it did.
type commit struct {
	store  *Store
	ops    []Op
	id     [writeIDSize]byte
	fence  Fence
	fenced bool
	group  *group // whose operations it has, one of each member; nil for a call by itself

	refusals map[int]*OpError // of a group: the operations that did not hold, once it was refused

	base    int64 // a revision before any attempt
	number  int   // of the last attempt
	writer  string
	doubtAt int64 // the revision of the writer key that the last attempt compared, while it has no answer; 0: it has one
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
	for call := newCall[answered](c.store, shortPace); call.next(ctx); {
		r, err := c.next(ctx)
		if err != nil {
			return 0, err
		}
		got, err := call.attempt(ctx, r.send)
		if !r.look && (err == nil && got.number != c.number || err != nil && outcomeOf(err) == unknown) {
			c.doubtAt = r.at
		}
		switch {
		case err == nil && got.number != c.number:
			call.again() // it is about an attempt before the last one, and says nothing of that
		case err == nil:
			c.store.saw(got.resp.Header.Revision)
			revision, err := c.settle(ctx, got)
			if errors.Is(err, errWriterMoved) {
				call.again()
			} else if !errors.Is(err, errPinMoved) {
				return revision, err
			}
			last = err
		case outcomeOf(err) == unknown:
			last = err
		case !r.look:
			return 0, noSpace(err)
		default:
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

// request is a transaction of a commit: an attempt to carry it out, or a check of the outcome of the attempt with that
// number.
type request struct {
	store           *Store
	number          int
	look            bool
	at              int64 // the revision of the writer key that it compares
	move            bool  // an attempt that is carried out moves the key
	conditions      []clientv3.Cmp
	then, otherwise []clientv3.Op
}

// answered is the answer to a request.
type answered struct {
	request
	resp *clientv3.TxnResponse
}

func (r request) send(ctx context.Context) (answered, error) {
	resp, err := r.store.client.Txn(ctx).If(r.conditions...).Then(r.then...).Else(r.otherwise...).Commit()
	return answered{r, resp}, err
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
	for _, op := range c.ops { // the caller may have seen more than the store
		c.base = max(c.base, op.ifRevision)
	}
	return nil
}

// choosePin looks after operations that depend on nothing: they could be carried out twice, with another client's write
// in between. So one of them is made to depend on the present record: a put if there is one, since it marks what it
// writes, else a deletion that has something to delete. A deletion is also read where another operation guards the
// commit: allGone must know a revision at which its record was there.
func (c *commit) choosePin(ctx context.Context) error {
	if i := slices.IndexFunc(c.ops, func(o Op) bool { return o.kind == opPut }); i >= 0 {
		if slices.ContainsFunc(c.ops, Op.guardsItself) {
			return nil
		}
		_, err := c.pinNow(ctx, i)
		return err
	}
	for i, op := range c.ops {
		if op.kind != opDelete || op.ifRevision != Whatever {
			continue
		}
		if found, err := c.pinNow(ctx, i); err != nil || found {
			return err
		}
	}
	return nil
}

// pinNow pins operation i to the present record, and reports whether there is one.
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

// next returns what to send: a look while the last attempt has no answer, else another attempt.
func (c *commit) next(ctx context.Context) (request, error) {
	if c.doubtAt > 0 {
		return c.look(), nil
	}
	return c.attempt(ctx)
}

// attempt returns the next attempt. If a condition does not hold, its answer has the current records.
func (c *commit) attempt(ctx context.Context) (request, error) {
	writer, at, move, err := c.store.writerNow(ctx)
	if err != nil {
		return request{}, err
	}
	if err := c.sending(at); err != nil {
		return request{}, err
	}
	c.number++
	c.writer = writer
	r := request{store: c.store, number: c.number, at: at, move: move, otherwise: c.gets()}
	r.conditions = append(r.conditions, clientv3.Compare(clientv3.ModRevision(writer), "=", at))
	for i, op := range c.ops {
		key := c.store.prefix + op.key
		if op.ifRevision != Whatever {
			r.conditions = append(r.conditions, clientv3.Compare(clientv3.ModRevision(key), "=", op.ifRevision))
		} else if i == c.pin {
			r.conditions = append(r.conditions, clientv3.Compare(clientv3.ModRevision(key), "=", c.pinAt))
		}
		switch op.kind {
		case opPut:
			r.then = append(r.then,
				clientv3.OpPut(key, string(envelope{keyID: op.keyID, writeID: c.id, payload: op.value}.encode())))
		case opDelete:
			r.then = append(r.then, clientv3.OpDelete(key))
		}
	}
	if c.fenced {
		r.conditions = append(r.conditions, c.fence.holds())
	}
	if move {
		r.then = append(r.then, clientv3.OpPut(writer, string(envelope{writeID: c.id}.encode())))
	}
	return r, nil
}

// look returns a request whose answer has the current records, as that of a refused attempt. Once etcd has answered it,
// the last attempt is never carried out any more: the writer key has another revision than the one that it compared.
func (c *commit) look() request {
	gets := c.gets()
	return request{
		store: c.store, number: c.number, look: true, at: c.doubtAt,
		conditions: []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(c.writer), "=", c.doubtAt)},
		then:       append(slices.Clone(gets), clientv3.OpPut(c.writer, string(envelope{writeID: c.id}.encode()))),
		otherwise:  gets,
	}
}

// gets returns the reads of all that the commit depends on: the records of its operations, the fence if there is one,
// and the writer key.
func (c *commit) gets() []clientv3.Op {
	gets := make([]clientv3.Op, 0, len(c.ops)+2)
	for _, op := range c.ops {
		gets = append(gets, clientv3.OpGet(c.store.prefix+op.key))
	}
	if c.fenced {
		gets = append(gets, clientv3.OpGet(c.fence.Key))
	}
	return append(gets, clientv3.OpGet(c.writer))
}

// seen takes apart what gets read, and the writer key behind it: the records, the fence among them, and the revision of
// the key.
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

// settle returns the revision of an attempt that was carried out, or finds out why it was not: because a condition
// failed, or because the writer key has moved. The answer is about the last attempt.
func (c *commit) settle(ctx context.Context, a answered) (int64, error) {
	c.doubtAt = 0
	if a.resp.Succeeded && !a.look {
		if a.move {
			c.store.writer.moved(a.at, a.resp.Header.Revision)
		}
		return a.resp.Header.Revision, nil
	}
	current, now := c.seen(a.resp)
	if a.resp.Succeeded {
		now = a.resp.Header.Revision
	}
	c.store.writer.moved(a.at, now)
	if a.look {
		if revision, err := c.cameThrough(ctx, current, a.resp.Header.Revision); revision > 0 || err != nil {
			return revision, err
		}
	}
	if c.fenced {
		kvs := current[len(c.ops)]
		if len(kvs) == 0 || kvs[0].CreateRevision != c.fence.CreateRevision {
			return 0, &OpError{Index: -1, Key: c.fence.Key, Err: ErrFenced}
		}
	}
	var refused *OpError
	for i, op := range c.ops {
		record := c.store.first(current[i])
		violation := op.violation(record)
		if violation == nil {
			continue
		}
		if refused == nil {
			refused = &OpError{Index: i, Key: op.key, Current: record, Err: violation}
			c.refusals = map[int]*OpError{}
		}
		refused.Refused = append(refused.Refused, i)
		c.refusals[i] = &OpError{Refused: []int{0}, Key: op.key, Current: record, Err: violation}
	}
	if refused != nil {
		return 0, refused
	}
	// No attempt was carried out, and none will be.
	c.base = max(c.base, a.resp.Header.Revision)
	if c.pin != noPin {
		was := c.pinAt
		if c.pinTo(c.pin, current[c.pin]); c.pinAt != was {
			return 0, errPinMoved
		}
	}
	return 0, errWriterMoved
}

// first returns the record of an answer, or the zero Record if it is empty.
func (s *Store) first(kvs []*mvccpb.KeyValue) Record {
	if len(kvs) == 0 {
		return Record{}
	}
	return s.record(kvs[0])
}

// cameThrough returns the revision at which the attempt without an answer was carried out, or 0 if it was not and never
// will be.
func (c *commit) cameThrough(ctx context.Context, current [][]*mvccpb.KeyValue, at int64) (int64, error) {
	i := slices.IndexFunc(c.ops, func(o Op) bool { return o.kind == opPut })
	if i < 0 {
		return c.allGone(current, at), nil
	}
	// All puts were written or none, so one of them decides.
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

// allGone returns at if every record to delete is gone or was created again since: deletions leave no mark of who did
// them, and what the caller wanted is the case.
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
