package resource

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
)

// Claim is a value that at most one object of a kind holds at a time, over all namespaces. It is acquired and released
// in the transaction that writes the object, so two concurrent writes cannot both acquire it.
type Claim struct {
	What  string // what the value is, in the key and in messages, such as "name" or "providerID"
	Value string // a claim with an empty value is ignored
	Path  string // field that holds the value, in JSON names
}

// holder is the record of a claim.
type holder struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

func holderOf(o object.Object) holder {
	m := o.GetMetadata()
	return holder{Namespace: m.GetNamespace(), Name: m.GetName(), UID: m.GetUid()}
}

func (h holder) key() string { return object.Key{Namespace: h.Namespace, Name: h.Name}.String() }

func parseHolder(value []byte) (holder, error) {
	var h holder
	err := json.Unmarshal(value, &h)
	return h, err
}

func (t *Table[T]) claims(o T) []Claim {
	if t.cfg.Claims == nil || !o.ProtoReflect().IsValid() {
		return nil
	}
	return slices.DeleteFunc(t.cfg.Claims(o), func(c Claim) bool { return c.Value == "" })
}

// claimKey returns the key of a claim's record, which is outside of the prefix of the kind's objects.
func (t *Table[T]) claimKey(c Claim) string {
	return t.typ.GetPlural() + ".claims/" + c.What + "/" + c.Value
}

// claimOps returns the operations that replace the claims of old by those of next. Either may be the zero T. Claims
// that next keeps are not written.
func (t *Table[T]) claimOps(ctx context.Context, old, next T) ([]store.Op, error) {
	had, wants := t.claims(old), t.claims(next)
	same := func(c Claim) func(Claim) bool {
		return func(o Claim) bool { return o.What == c.What && o.Value == c.Value }
	}
	var ops []store.Op
	for _, c := range wants {
		if slices.ContainsFunc(had, same(c)) {
			continue
		}
		value, err := json.Marshal(holderOf(next))
		if err != nil {
			return nil, err
		}
		ops = append(ops, store.Put(t.claimKey(c), value, 0))
	}
	for _, c := range had {
		if slices.ContainsFunc(wants, same(c)) {
			continue
		}
		r, err := t.st.Get(ctx, t.claimKey(c))
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if h, err := parseHolder(r.Value); err == nil && h.UID == old.GetMetadata().GetUid() {
			ops = append(ops, store.Delete(t.claimKey(c), r.Revision))
		}
	}
	return ops, nil
}

// commit writes an object together with its claims, if the guards hold. op is the operation on the object itself. The
// error is heldError if another object holds a claim.
func (t *Table[T]) commit(ctx context.Context, op store.Op, old, next T, guards ...store.Op) (int64, error) {
	ops, err := t.claimOps(ctx, old, next)
	if err != nil {
		return 0, err
	}
	revision, err := t.st.Commit(ctx, slices.Concat([]store.Op{op}, guards, ops)...)
	var refused *store.OpError
	if errors.As(err, &refused) && refused.Index > 0 && errors.Is(err, store.ErrExists) {
		return 0, &heldError{refused}
	}
	return revision, err
}

// heldError is the error of a write that another object prevents which holds a claim. choosing returns it to no caller.
type heldError struct{ by *store.OpError }

func (e *heldError) Error() string { return e.by.Error() }

// maxChoices is how often Config.Choose is called for one write: each time but the first, another writer was faster.
const maxChoices = 16

// choosing has write store an object with what Config.Choose chooses for it. It chooses again as long as another object
// holds what was chosen.
func (t *Table[T]) choosing(ctx context.Context, obj T, write func(T) (T, error)) (T, error) {
	for try := 1; ; try++ {
		next, err := t.chosen(obj)
		if err != nil {
			return next, err
		}
		out, err := write(next)
		var held *heldError
		if !errors.As(err, &held) {
			return out, err
		}
		asked := slices.ContainsFunc(t.claims(obj), func(c Claim) bool { return t.claimKey(c) == held.by.Key })
		if asked || try == maxChoices {
			return out, t.taken(next, held.by.Key, held.by.Current.Value)
		}
		// With the holder in the cache, another value is chosen.
		if err := t.WaitRevision(ctx, held.by.Current.Revision); err != nil {
			return out, err
		}
	}
}

// chosen returns an object with what Config.Choose chooses for it: a copy if it chose something. Nothing is chosen for
// an object that is being deleted, so that this cannot prevent its end.
func (t *Table[T]) chosen(obj T) (T, error) {
	if t.cfg.Choose == nil || object.Deleting(obj) {
		return obj, nil
	}
	next := object.Clone(obj)
	chose, err := t.cfg.Choose(next)
	if err != nil || chose {
		return next, err
	}
	return obj, nil
}

// taken returns the error that names the holder of the claim with a key.
func (t *Table[T]) taken(obj T, key string, value []byte) error {
	for _, c := range t.claims(obj) {
		if t.claimKey(c) != key {
			continue
		}
		h, err := parseHolder(value)
		if err != nil {
			return fmt.Errorf("claim %q: %w", key, err)
		}
		return rpcerr.Taken(t.typ.GetKind(), obj.GetMetadata().GetName(), c.Path,
			fmt.Sprintf("%s %q belongs to %s %s", c.What, c.Value, t.typ.GetKind(), h.key()))
	}
	return fmt.Errorf("claim %q: %w", key, store.ErrExists)
}

// freeClaims returns an error if another object holds a claim of next that old does not have.
func (t *Table[T]) freeClaims(ctx context.Context, old, next T) error {
	for _, c := range t.claims(next) {
		if slices.ContainsFunc(t.claims(old), func(o Claim) bool { return o.What == c.What && o.Value == c.Value }) {
			continue
		}
		r, err := t.st.Get(ctx, t.claimKey(c))
		switch {
		case errors.Is(err, store.ErrNotFound):
		case err != nil:
			return err
		default:
			return t.taken(next, t.claimKey(c), r.Value)
		}
	}
	return nil
}

const (
	// firstHold and longHold bound the pause before claims that are not held are tried again. A user who deletes one of
	// two objects with the same claim waits for the other one to hold it.
	firstHold, longHold = 250 * time.Millisecond, time.Minute
)

// HoldClaims has objects acquire their claims that were stored before their kind had claims. It calls tried after the
// first attempt, and returns when each object holds its claims, or ctx ends. Until then it tries again: etcd may refuse
// a write for some time, and another object that holds a claim may be deleted. Of that claim nothing is changed. What
// prevents it is logged once. The table must be synced.
func (t *Table[T]) HoldClaims(ctx context.Context, log *slog.Logger, tried func()) {
	said := ""
	for again := backoff.Spread(firstHold, longHold); ctx.Err() == nil; again.Wait(ctx) {
		h := t.holdClaims(ctx)
		if tried != nil {
			tried()
			tried = nil
		}
		switch text := fmt.Sprint(h.shared, h.failed); {
		case h == (holding{}) || errors.Is(h.failed, store.ErrFenced): // the term is over
			return
		case ctx.Err() != nil || text == said:
			continue
		default:
			said = text
		}
		if h.shared != nil {
			log.WarnContext(ctx, "objects share what each must have for itself", "kind", t.typ.GetKind(), "error", h.shared)
		}
		if h.failed != nil {
			log.WarnContext(ctx, "claims are not held yet", "kind", t.typ.GetKind(), "error", h.failed)
		}
	}
}

// holding is the result of one attempt to have all objects hold their claims. It is zero if they do.
type holding struct {
	shared  error // of the claims that other objects hold
	failed  error
	changed bool // an object or a claim changed during the attempt
}

func (t *Table[T]) holdClaims(ctx context.Context) (h holding) {
	page, err := t.st.List(ctx, t.typ.GetPlural()+".claims/", store.ListOptions{})
	if err != nil {
		return holding{failed: err}
	}
	held := make(map[string][]byte, len(page.Records))
	for _, r := range page.Records {
		held[r.Key] = r.Value
	}
	var shared, failed []error
	for o := range t.Objects() {
		for _, c := range t.claims(o) {
			value, known := held[t.claimKey(c)]
			if known {
				if by, err := parseHolder(value); err != nil || by.UID != o.GetMetadata().GetUid() {
					shared = append(shared, t.taken(o, t.claimKey(c), value))
				}
				continue
			}
			switch err := t.holdClaim(ctx, o, c); {
			case errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrExists):
				h.changed = true
			case err != nil:
				failed = append(failed, err)
			}
		}
	}
	h.shared, h.failed = errors.Join(shared...), errors.Join(failed...)
	return h
}

func (t *Table[T]) holdClaim(ctx context.Context, o T, c Claim) error {
	value, err := json.Marshal(holderOf(o))
	if err != nil {
		return err
	}
	_, err = t.st.Commit(ctx, store.Check(t.key(object.KeyOf(o)), revisionOf(o)), store.Put(t.claimKey(c), value, 0))
	return err
}
