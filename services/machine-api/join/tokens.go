// Package join lets machines into the cluster: one-time tokens that are bound to a machine, and the certificates of its
// node.
package join

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
)

const (
	keyRecord    = "join/key"
	usedPrefix   = "join/used/"   // and the uid of the machine
	sealedPrefix = "join/sealed/" // and the uid of the machine
	keyBytes     = 32
)

var (
	errBadToken  = errors.New("the token is not valid")
	errOtherKeys = errors.New("the token was used already, with other keys")
	errLeaving   = errors.New("the machine is being deleted")
)

// keepTries is how often a record of a machine that changes at the same time is written.
const keepTries = 16

// Tokens makes and checks the tokens with which machines join. A token is the machine's uid, a proof that only this
// service can make, and the hash of the authority for the machine to trust. Its methods may be called concurrently.
type Tokens struct {
	store     *store.Store
	machines  *resource.Table[*machinev1.Machine]
	authority func() string   // hash of the authority of the cluster's services
	gateways  func() []string // where machines join

	mu  sync.Mutex
	key []byte // read once; it never changes

	sealedBy uint64 // the key that Run has sealed the record by; only Run uses it
}

// NewTokens returns the tokens of the machines of a table, whose records are in the same store. authority returns
// identity.Trust.Hash of the cluster's services, gateways the addresses of the gateways as they are now.
func NewTokens(st *store.Store, machines *resource.Table[*machinev1.Machine], authority func() string,
	gateways func() []string,
) *Tokens {
	return &Tokens{store: st, machines: machines, authority: authority, gateways: gateways}
}

// keep writes a record of a machine, in one transaction with the check that the machine is not being deleted: no such
// record is written after Forget, which is called for machines that are being deleted only. It returns errLeaving if
// the machine is being deleted or gone, and errors of put. m may be out of date.
func (t *Tokens) keep(ctx context.Context, m *machinev1.Machine, put store.Op) error {
	meta := m.GetMetadata()
	for range keepTries {
		if m.GetMetadata().GetUid() != meta.GetUid() || object.Deleting(m) {
			return errLeaving
		}
		_, err := t.store.Commit(ctx, put, t.machines.Unchanged(m))
		if !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		m, err = t.machines.Get(ctx, meta.GetNamespace(), meta.GetName())
		if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
			return errLeaving
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("machine %q: %w", meta.GetName(), store.ErrConflict)
}

// sealed is who a machine is in its certificates. It is written once, before the machine's instance is made, and never
// changed: not by labels, and not by a request.
type sealed struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"` // of the node, too
	UID       string `json:"uid"`
	Role      string `json:"role"`
}

// seal returns who a machine is, and writes it down the first time, unless the machine is being deleted.
func (t *Tokens) seal(ctx context.Context, m *machinev1.Machine) (sealed, error) {
	out, err := t.sealedAs(ctx, m)
	if !errors.Is(err, store.ErrNotFound) {
		return out, err
	}
	meta := m.GetMetadata()
	out = sealed{Namespace: meta.GetNamespace(), Name: meta.GetName(), UID: meta.GetUid(), Role: plan.Role(m)}
	value, err := json.Marshal(out)
	if err != nil {
		return out, err
	}
	err = t.keep(ctx, m, store.Put(sealedPrefix+meta.GetUid(), value, 0))
	if errors.Is(err, store.ErrExists) {
		return t.sealedAs(ctx, m)
	}
	return out, err
}

// sealedAs returns who a machine is, as it was written down; an error that wraps store.ErrNotFound if it was not, or
// was forgotten.
func (t *Tokens) sealedAs(ctx context.Context, m *machinev1.Machine) (sealed, error) {
	key := sealedPrefix + m.GetMetadata().GetUid()
	r, err := t.store.Get(ctx, key)
	if err != nil {
		return sealed{}, err
	}
	var out sealed
	if err := json.Unmarshal(r.Value, &out); err != nil {
		return out, fmt.Errorf("record %q: %w", key, err)
	}
	return out, nil
}

// For returns what a machine's instance joins the cluster with; the same each time. It is an error if the first call is
// for a machine that is being deleted.
func (t *Tokens) For(ctx context.Context, m *machinev1.Machine) (*providerv1.Bootstrap, error) {
	uid := m.GetMetadata().GetUid()
	who, err := t.seal(ctx, m)
	if err != nil {
		return nil, err
	}
	proof, err := t.proof(ctx, uid)
	if err != nil {
		return nil, err
	}
	return &providerv1.Bootstrap{Endpoints: t.gateways(), Token: uid + "." + proof + "." + t.authority(), Role: who.Role},
		nil
}

// Machine returns the uid of the machine that a token is for.
func (t *Tokens) Machine(ctx context.Context, token string) (string, error) {
	uid, rest, ok := strings.Cut(token, ".")
	given, _, ok2 := strings.Cut(rest, ".")
	if !ok || !ok2 || uid == "" {
		return "", errBadToken
	}
	proof, err := t.proof(ctx, uid)
	if err != nil {
		return "", err
	}
	if subtle.ConstantTimeCompare([]byte(given), []byte(proof)) != 1 {
		return "", errBadToken
	}
	return uid, nil
}

// Use notes that a machine's token was used with keys, given by their hash. The same keys may come again: the answer
// may have been lost. The token of a machine that is being deleted is not used.
func (t *Tokens) Use(ctx context.Context, m *machinev1.Machine, keys string) error {
	uid := m.GetMetadata().GetUid()
	err := t.keep(ctx, m, store.Put(usedPrefix+uid, []byte(keys), 0))
	if errors.Is(err, store.ErrExists) {
		return t.used(ctx, uid, keys)
	}
	return err
}

// used returns an error unless a machine's token was used with those keys.
func (t *Tokens) used(ctx context.Context, uid, keys string) error {
	r, err := t.store.Get(ctx, usedPrefix+uid)
	if errors.Is(err, store.ErrNotFound) {
		return errBadToken
	}
	if err != nil {
		return err
	}
	if string(r.Value) != keys {
		return errOtherKeys
	}
	return nil
}

// Forget removes what was kept about the token of a machine that is being deleted. It is safe to call again.
func (t *Tokens) Forget(ctx context.Context, uid string) error {
	_, err := t.store.Commit(ctx, store.Delete(usedPrefix+uid, store.Whatever),
		store.Delete(sealedPrefix+uid, store.Whatever))
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

func (t *Tokens) proof(ctx context.Context, uid string) (string, error) {
	key, err := t.secret(ctx)
	if err != nil {
		return "", err
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(uid))
	return hex.EncodeToString(mac.Sum(nil)), nil
}

// secret returns the key of all proofs. The first caller makes it.
func (t *Tokens) secret(ctx context.Context) ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.key != nil {
		return t.key, nil
	}
	r, err := t.store.Get(ctx, keyRecord)
	if errors.Is(err, store.ErrNotFound) {
		fresh := make([]byte, keyBytes)
		if _, err := rand.Read(fresh); err != nil {
			return nil, err
		}
		if err := t.putKey(ctx, fresh, 0); err != nil && !errors.Is(err, store.ErrExists) {
			return nil, err
		}
		r, err = t.store.Get(ctx, keyRecord)
		if err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, err
	}
	t.key = r.Value
	return t.key, nil
}

// putKey stores the key of all proofs, sealed where the store has keys for that.
func (t *Tokens) putKey(ctx context.Context, key []byte, ifRevision int64) error {
	by, err := t.store.SealsBy()
	if err != nil {
		return err
	}
	put := store.PutSealed
	if by == 0 {
		put = store.Put
	}
	_, err = t.store.Commit(ctx, put(keyRecord, key, ifRevision))
	return err
}

// resealEvery is how soon after a rotation of the record keys the record is sealed by the new one.
const resealEvery = 10 * time.Second

// Run keeps the key of all proofs sealed by the record key in force, until ctx ends: one that an older version stored
// in plain, and one that was sealed before a rotation, is written again.
func (t *Tokens) Run(ctx context.Context, log *slog.Logger) error {
	for ctx.Err() == nil {
		if err := t.reseal(ctx); err != nil && ctx.Err() == nil {
			log.WarnContext(ctx, "join key is not sealed by the record key in force", "error", err)
		}
		backoff.Sleep(ctx, resealEvery)
	}
	return nil
}

// reseal writes the record again if another key than that in force has sealed it, or none.
func (t *Tokens) reseal(ctx context.Context) error {
	by, err := t.store.SealsBy()
	if err != nil || by == 0 || by == t.sealedBy {
		return err
	}
	r, err := t.store.Get(ctx, keyRecord)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if r.SealedBy != by {
		if err := t.putKey(ctx, r.Value, r.Revision); err != nil {
			return err
		}
	}
	t.sealedBy = by
	return nil
}
