package join

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/services/machine-api/kinds"
)

// sweepEvery is how often the records of machines that are gone are looked for: each is some hundred bytes, and only
// older versions left any.
const sweepEvery = time.Hour

// sweepRetry is how soon a sweep is repeated that was not possible.
const sweepRetry = time.Minute

// machinesPrefix begins the keys of machines in the store.
const machinesPrefix = "machines/"

// errUnreadableMachines means that it is not known which machines there are.
var errUnreadableMachines = errors.New("a machine cannot be read, and the join record may be its own")

// Sweep removes the records of machines that are gone, which versions left that did not yet call Forget in every case,
// and returns when to call it again. The records of machines that are there stay, also long after they joined: the
// names in their next certificates are from there, and without them a token could be used twice. Source: the contract
// of keep, by which no record is written for a machine that is gone.
func (t *Tokens) Sweep(ctx context.Context, now time.Time, log *slog.Logger) (next time.Time, err error) {
	swept, err := t.sweep(ctx)
	if swept > 0 {
		log.InfoContext(ctx, "join records of machines that are gone were removed", "count", swept)
	}
	if err != nil {
		return now.Add(sweepRetry), fmt.Errorf("sweep join records: %w", err)
	}
	return now.Add(sweepEvery), nil
}

func (t *Tokens) sweep(ctx context.Context) (swept int, err error) {
	var gone []store.Op
	for _, prefix := range []string{usedPrefix, sealedPrefix} {
		page, err := t.store.List(ctx, prefix, store.ListOptions{})
		if err != nil {
			return 0, err
		}
		// After the list: the machine of each record was made before the record.
		if err := t.machines.CatchUp(ctx); err != nil {
			return 0, err
		}
		if slices.ContainsFunc(t.store.Unreadable(), func(u store.Unreadable) bool {
			return strings.HasPrefix(u.Key, machinesPrefix)
		}) {
			return 0, errUnreadableMachines
		}
		for _, r := range page.Records {
			if len(t.machines.ByIndex(kinds.ByUID, r.Key[len(prefix):])) == 0 {
				gone = append(gone, store.Delete(r.Key, store.Whatever))
			}
		}
	}
	const perCommit = 50 // far below what etcd takes
	for some := range slices.Chunk(gone, perCommit) {
		if _, err := t.store.Commit(ctx, some...); err != nil && !errors.Is(err, store.ErrNotFound) {
			return swept, err
		}
		swept += len(some)
	}
	return swept, nil
}
