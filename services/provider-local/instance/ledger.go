package instance

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/windlass-dev/windlass/kit/durable"
)

const (
	// TokenRetention is how long the request token of a deleted instance is refused. A call that creates an instance takes
	// at most 30 s; the rest is for a host that was suspended in between.
	TokenRetention = 7 * 24 * time.Hour
	// mostTokens bounds the tokens of deleted instances; the oldest go first. It is 40 times the instances of a cluster.
	mostTokens = 10_000
	// ledgerFile is the ledger's name in the provider's directory.
	ledgerFile = "ledger.json"
)

// ledger is what outlives instances: the highest fence seen, and the tokens of deleted instances. Every change is on
// the disk before it takes effect. The manager's lock guards it.
type ledger struct {
	path string
	kept ledgerRecord
}

// ledgerRecord is the ledger as it is on disk.
type ledgerRecord struct {
	Fence  int64                `json:"fence,omitempty"`
	Tokens map[string]time.Time `json:"tokens,omitempty"` // by request token: when its deletion was requested
}

// openLedger reads the ledger at path. If its content cannot be read, the file is renamed, so that the provider starts,
// and the problem is returned beside an empty ledger.
func openLedger(path string) (l *ledger, problem, err error) {
	l = &ledger{path: path, kept: ledgerRecord{Tokens: map[string]time.Time{}}}
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
		l.kept = ledgerRecord{}
		problem = fmt.Errorf("%s: %w: it is kept as %s; tokens of instances that were deleted before are not refused",
			path, err, aside)
	}
	if l.kept.Tokens == nil {
		l.kept.Tokens = map[string]time.Time{}
	}
	return l, problem, nil
}

// admit refuses a call with a fence below the highest one, and keeps a higher one.
func (l *ledger) admit(fence int64) error {
	if fence < l.kept.Fence {
		return fmt.Errorf("%w: the call has fence %d, a call with fence %d came before", ErrFenced, fence, l.kept.Fence)
	}
	if fence == l.kept.Fence {
		return nil
	}
	next := ledgerRecord{Fence: fence, Tokens: l.kept.Tokens}
	return l.write(next)
}

// used reports whether a token's instance was deleted, within the retention.
func (l *ledger) used(token string) bool {
	_, ok := l.kept.Tokens[token]
	return ok
}

// use notes that a token creates no instance any more. Tokens whose retention is over are dropped.
func (l *ledger) use(token string, now time.Time) error {
	if token == "" || l.used(token) {
		return nil
	}
	tokens := maps.Clone(l.kept.Tokens)
	maps.DeleteFunc(tokens, func(_ string, at time.Time) bool { return now.Sub(at) > TokenRetention })
	if over := len(tokens) + 1 - mostTokens; over > 0 {
		oldest := slices.SortedFunc(maps.Keys(tokens), func(a, b string) int {
			return cmp.Or(tokens[a].Compare(tokens[b]), cmp.Compare(a, b))
		})
		for _, t := range oldest[:over] {
			delete(tokens, t)
		}
	}
	tokens[token] = now.UTC()
	return l.write(ledgerRecord{Fence: l.kept.Fence, Tokens: tokens})
}

func (l *ledger) write(next ledgerRecord) error {
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
