// Package records keeps what the provider stores: the hosts, and beside them the highest fence of machine-api's calls,
// the request tokens of deleted instances, the bootstraps of claims until their machines have started, the rotation of
// an authority, and the policy and bearer tokens of the control-plane hosts. It decides nothing.
package records

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"time"

	"google.golang.org/protobuf/proto"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/ledger"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
)

const (
	fenceRecord     = "fence"
	usedPrefix      = "used/"      // and the request token
	bootstrapPrefix = "bootstrap/" // and the name of the host
)

// tries is how often a write is tried that collides with others.
const tries = 32

// Records is all records of the provider. Its methods may be called concurrently.
type Records struct {
	Hosts *resource.Table[*hostv1.Host]
	st    *store.Store
}

// New returns the records of a store that also has the hosts of a table.
func New(st *store.Store, hosts *resource.Table[*hostv1.Host]) *Records {
	return &Records{Hosts: hosts, st: st}
}

// Unreadable returns the names of the hosts whose records cannot be read.
func (r *Records) Unreadable() []string {
	var out []string
	for _, u := range r.st.Unreadable() {
		if u.Kind == r.Hosts.Type().GetKind() {
			out = append(out, u.Name)
		}
	}
	return out
}

// Fence is the highest fence of all calls, as it was read.
type Fence struct {
	Highest  int64
	revision int64
}

// Fence reads the highest fence.
func (r *Records) Fence(ctx context.Context) (Fence, error) {
	record, err := r.st.Get(ctx, fenceRecord)
	if errors.Is(err, store.ErrNotFound) {
		return Fence{}, nil
	}
	if err != nil {
		return Fence{}, err
	}
	f := Fence{revision: record.Revision}
	return f, json.Unmarshal(record.Value, &f.Highest)
}

// Raised is the operation that stores the fence of a call. It is part of the transaction of each call that changes
// instances: of two calls that read the same record, the second one fails and is decided again.
func (f Fence) Raised(fence int64) store.Op {
	value, _ := json.Marshal(max(fence, f.Highest)) // a number
	return store.Put(fenceRecord, value, f.revision)
}

// Raise stores the fence of a call that changes nothing else, if it is higher.
func (r *Records) Raise(ctx context.Context, f Fence, fence int64) error {
	if fence <= f.Highest {
		return nil
	}
	_, err := r.st.Commit(ctx, f.Raised(fence))
	return err
}

// Use is the operation by which a request token creates no instance any more.
func Use(token string, now time.Time) store.Op {
	value, _ := json.Marshal(now.UTC()) // a time of this millennium
	return store.Put(usedPrefix+url.PathEscape(token), value, store.Whatever)
}

// UseOnly uses a request token up that has no instance.
func (r *Records) UseOnly(ctx context.Context, f Fence, fence int64, token string, now time.Time) error {
	ops := []store.Op{f.Raised(fence)}
	if token != "" {
		ops = append(ops, Use(token, now))
	}
	_, err := r.st.Commit(ctx, ops...)
	return err
}

// Used reports whether a request token is used up.
func (r *Records) Used(ctx context.Context, token string) (bool, error) {
	_, err := r.st.Get(ctx, usedPrefix+url.PathEscape(token))
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Sweep forgets the tokens that were used up longer ago than ledger.Retention.
func (r *Records) Sweep(ctx context.Context, now time.Time) error {
	page, err := r.st.List(ctx, usedPrefix, store.ListOptions{})
	if err != nil {
		return err
	}
	for _, record := range page.Records {
		var at time.Time
		if err := json.Unmarshal(record.Value, &at); err != nil {
			return fmt.Errorf("record %q: %w", record.Key, err)
		}
		if now.Sub(at) < ledger.Retention {
			continue
		}
		if err := r.settled(ctx, store.Delete(record.Key, record.Revision)); err != nil {
			return err
		}
	}
	return nil
}

// settled carries an operation out on a record as it was read. One that changed since is left as it is.
func (r *Records) settled(ctx context.Context, op store.Op) error {
	_, err := r.st.Commit(ctx, op)
	if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// KeepBootstrap is the operation that stores what a machine joins with, encrypted, until DropBootstrap.
func KeepBootstrap(host string, b *hostv1.HostBootstrap) (store.Op, error) {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(b)
	return store.PutSealed(bootstrapPrefix+host, value, store.Whatever), err
}

// DropBootstrap is the operation that deletes what a machine joins with.
func DropBootstrap(host string) store.Op { return store.Delete(bootstrapPrefix+host, store.Whatever) }

// Reseal encrypts the sealed records again that another key than the one in force has encrypted.
func (r *Records) Reseal(ctx context.Context) error {
	by, err := r.st.SealsBy()
	if err != nil || by == 0 {
		return err
	}
	for _, prefix := range []string{bootstrapPrefix, accessRecord} {
		page, err := r.st.List(ctx, prefix, store.ListOptions{})
		if err != nil {
			return err
		}
		for _, record := range page.Records {
			if record.SealedBy == by || record.Damage != nil { // what needs a damaged one fails
				continue
			}
			if err := r.settled(ctx, store.PutSealed(record.Key, record.Value, record.Revision)); err != nil {
				return err
			}
		}
	}
	return nil
}

// Bootstrap reads what the machine of a host joins with; nil if nothing is stored.
func (r *Records) Bootstrap(ctx context.Context, host string) (*hostv1.HostBootstrap, error) {
	record, err := r.st.Get(ctx, bootstrapPrefix+host)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	b := &hostv1.HostBootstrap{}
	return b, proto.Unmarshal(record.Value, b)
}

// Change is the next status of a host, and what is stored in the same transaction.
type Change struct {
	Status  *hostv1.HostStatus
	Further []store.Op
}

// Replace stores a change of a host that must be as it was read; otherwise the error is a conflict.
func (r *Records) Replace(ctx context.Context, h *hostv1.Host, c Change) (*hostv1.Host, error) {
	next := object.Clone(h)
	next.Status = c.Status
	return r.Hosts.ReplaceWith(ctx, next, c.Further, resource.WriteOptions{Own: true})
}

// Change has decide change a host as it is stored, again if the host changes concurrently. decide may return the zero
// Change, which changes nothing; its errors are returned. uid is that of the host; empty matches any.
func (r *Records) Change(ctx context.Context, name, uid string, decide func(*hostv1.Host) (Change, error)) (
	*hostv1.Host,
	error,
) {
	for range tries {
		h, err := r.Hosts.Get(ctx, "", name)
		if err != nil {
			return nil, err
		}
		if own := h.GetMetadata().GetUid(); uid != "" && uid != own {
			return nil, rpcerr.Conflict("Host", name, fmt.Sprintf("uid is %s, not %s", own, uid))
		}
		c, err := decide(h)
		if err != nil {
			return nil, err
		}
		if c.Status == nil || len(c.Further) == 0 && proto.Equal(c.Status, h.GetStatus()) {
			return h, nil
		}
		out, err := r.Replace(ctx, h, c)
		if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_CONFLICT {
			return out, err
		}
	}
	return nil, rpcerr.Conflict("Host", name, "")
}

// Again has decide repeat a decision that collided with others. It returns when decide returns another result than a
// conflict, or after some tries.
func Again[T any](decide func() (T, error)) (out T, err error) {
	for range tries {
		out, err = decide()
		if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_CONFLICT && !errors.Is(err, store.ErrConflict) &&
			!errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrExists) {
			return out, err
		}
	}
	return out, err
}
