package store

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Whatever as the ifRevision of Put or Delete means that the operation depends on nothing.
const Whatever = -1

var errOperation = errors.New("invalid operation")

type opKind int

const (
	opCheck opKind = iota
	opPut
	opDelete
)

// Op is one operation of a Commit: made by Put, Delete or Check. A key may be changed by one operation of a Commit
// only.
type Op struct {
	kind       opKind
	key        string
	value      []byte
	ifRevision int64
	sealed     bool   // value is to be sealed
	keyID      uint64 // of the key that has sealed value
}

// Put stores value. ifRevision 0: there must be no record (else ErrExists); above 0: the record must have that revision
// (else ErrConflict, or ErrNotFound without a record); Whatever: no condition.
func Put(key string, value []byte, ifRevision int64) Op {
	return Op{kind: opPut, key: key, value: value, ifRevision: ifRevision}
}

// PutSealed is Put of a value that is encrypted in etcd and its backups. The Store needs a Sealer.
func PutSealed(key string, value []byte, ifRevision int64) Op {
	return Op{kind: opPut, key: key, value: value, ifRevision: ifRevision, sealed: true}
}

// Delete removes the record if its revision is ifRevision, which is above 0 (else ErrConflict, or ErrNotFound without a
// record). With Whatever it removes what is there, or nothing.
func Delete(key string, ifRevision int64) Op {
	return Op{kind: opDelete, key: key, ifRevision: ifRevision}
}

// Check changes nothing: the record must have ifRevision (else ErrConflict, or ErrNotFound without a record), or be
// absent if ifRevision is 0 (else ErrExists).
func Check(key string, ifRevision int64) Op {
	return Op{kind: opCheck, key: key, ifRevision: ifRevision}
}

func (o Op) validate() error {
	if keeps(o.key) {
		return fmt.Errorf("%w: key %q begins with %q", errOperation, o.key, reserved)
	}
	least := map[opKind]int64{opCheck: 0, opPut: Whatever, opDelete: Whatever}[o.kind]
	if o.key == "" || o.ifRevision < least || o.kind == opDelete && o.ifRevision == 0 {
		return fmt.Errorf("%w: key %q at revision %d", errOperation, o.key, o.ifRevision)
	}
	return nil
}

// guardsItself reports whether the operation's own condition no longer holds once it was carried out, as long as others
// do not change the record.
func (o Op) guardsItself() bool { return o.kind != opCheck && o.ifRevision != Whatever }

// violation returns why the operation's condition does not hold for the current record (zero if there is none); nil if
// it holds.
func (o Op) violation(current Record) error {
	switch {
	case o.ifRevision == Whatever || current.Revision == o.ifRevision:
		return nil
	case o.ifRevision == 0:
		return ErrExists
	case current.Revision == 0:
		return ErrNotFound
	default:
		return ErrConflict
	}
}

// Fence is an election won: the key and the revision that it was created at.
type Fence struct {
	Key            string // absolute
	CreateRevision int64
}

func (f Fence) holds() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(f.Key), "=", f.CreateRevision)
}

type fenceKey struct{}

// WithFence makes every Commit under the returned context fail with ErrFenced once the fence fell: a leader that was
// paused and replaced cannot write any more, whatever it believes.
func WithFence(ctx context.Context, f Fence) context.Context {
	return context.WithValue(ctx, fenceKey{}, f)
}

// FenceFrom returns the fence that Commits under ctx compare.
func FenceFrom(ctx context.Context) (Fence, bool) {
	f, ok := ctx.Value(fenceKey{}).(Fence)
	return f, ok
}
