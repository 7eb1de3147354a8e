// Package ledger keeps what outlives the instances of an infrastructure provider: the highest fence of all calls, and
// the request tokens of deleted instances, which create no instance any more.
package ledger

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/windlass-dev/windlass/kit/durable"
)

const (
	// Retention is how long the request token of a deleted instance is refused. A call that creates an instance takes at
	// most 30 s; the rest is for a host that was suspended in between.
	Retention = 7 * 24 * time.Hour
	// mostTokens bounds the tokens of deleted instances; the oldest go first. It is 40 times the instances of a cluster.
	mostTokens = 10_000
)

// ErrFenced means that a call came with a lower fence than one before it.
var ErrFenced = errors.New("the caller no longer leads")

// Ledger is the ledger of one provider. Every change is on the disk before it takes effect. Its methods may be called
// concurrently.
type Ledger struct {
	path string

	mu   sync.Mutex
	kept record
}

// record is the ledger as it is on disk.
type record struct {
	Fence  int64                `json:"fence,omitempty"`
	Tokens map[string]time.Time `json:"tokens,omitempty"` // by request token: when its deletion was requested
}

// Open reads the ledger at path. If its content cannot be read, the file is renamed, so that the provider starts, and
// the problem is returned with an empty ledger.
func Open(path string) (l *Ledger, problem, err error) {
	l = &Ledger{path: path, kept: record{Tokens: map[string]time.Time{}}}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if err := json.Unmarshal(raw, &l.kept); err != nil {
		aside := path + ".unreadable"
		if moved := os.Rename(path, aside); moved != nil {
			return nil, nil, moved
		}
		l.kept = record{}
		problem = fmt.Errorf("%s: %w: it is kept as %s; tokens of instances that were deleted before are not refused",
			path, err, aside)
	}
	if l.kept.Tokens == nil {
		l.kept.Tokens = map[string]time.Time{}
	}
	return l, problem, nil
}

// Fence returns the highest fence of all calls.
func (l *Ledger) Fence() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kept.Fence
}

// Admit refuses a call with a fence below the highest one with ErrFenced, and keeps a higher one.
func (l *Ledger) Admit(fence int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if fence < l.kept.Fence {
		return fmt.Errorf("%w: the call has fence %d, a call with fence %d came before", ErrFenced, fence, l.kept.Fence)
	}
	if fence == l.kept.Fence {
		return nil
	}
	return l.write(record{Fence: fence, Tokens: l.kept.Tokens})
}

// Used reports whether a token's instance was deleted, within the retention.
func (l *Ledger) Used(token string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.kept.Tokens[token]
	return ok
}

// Use notes that a token creates no instance any more. Tokens whose retention is over are dropped. An empty token is
// ignored.
func (l *Ledger) Use(token string, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, used := l.kept.Tokens[token]; used || token == "" {
		return nil
	}
	tokens := maps.Clone(l.kept.Tokens)
	maps.DeleteFunc(tokens, func(_ string, at time.Time) bool { return now.Sub(at) > Retention })
	if over := len(tokens) + 1 - mostTokens; over > 0 {
		oldest := slices.SortedFunc(maps.Keys(tokens), func(a, b string) int {
			return cmp.Or(tokens[a].Compare(tokens[b]), cmp.Compare(a, b))
		})
		for _, t := range oldest[:over] {
			delete(tokens, t)
		}
	}
	tokens[token] = now.UTC()
	return l.write(record{Fence: l.kept.Fence, Tokens: tokens})
}

// write replaces the ledger; the lock is held.
func (l *Ledger) write(next record) error {
	raw, err := json.Marshal(next)
	if err != nil {
		return err
	}
	if err := durable.WriteFile(l.path, append(raw, '\n'), 0o600); err != nil {
		return err
	}
	l.kept = next
	return nil
}
