package authn

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"reflect"
	"sync"
	"time"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/rpcerr"
)

// checkTokens is how often the file of tokens is checked, at most.
const checkTokens = time.Second

// noTokens is the hash of a file that was removed.
const noTokens = "none"

// Tokens are the bearer tokens of a file of identity.Tokens. The file is read again when it changes; one that became
// unreadable or wrong keeps the tokens that were good. Concurrent calls are safe.
type Tokens struct {
	// Changed is called when other tokens are in force, with the SHA-256 of the file in hex. Set it before the first use.
	Changed func(hash string)

	path string
	log  *slog.Logger

	mu      sync.Mutex
	tokens  map[[sha256.Size]byte]identity.Token
	hash    string
	checked time.Time
	stamp   stamp
	failed  string // the error that was logged last
}

// stamp identifies a version of a file without reading it.
type stamp struct {
	size     int64
	modified time.Time
}

// OpenTokens reads the file at path. An empty path, or a file that does not exist yet, means no tokens.
func OpenTokens(path string, log *slog.Logger) (*Tokens, error) {
	t := &Tokens{path: path, log: log}
	if path == "" {
		return t, nil
	}
	return t, t.read()
}

// owner returns whose token it is. It may have expired.
func (t *Tokens) owner(token string) (owner identity.Token, known bool) {
	return t.find(sha256.Sum256([]byte(token)))
}

func (t *Tokens) find(sum [sha256.Size]byte) (owner identity.Token, known bool) {
	changed := t.refresh()
	if changed != "" && t.Changed != nil {
		t.Changed(changed)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	owner, known = t.tokens[sum]
	return owner, known
}

// Hash returns the SHA-256 of the tokens in force, in hexadecimal. Without a file it is that of an empty one.
func (t *Tokens) Hash() string {
	if changed := t.refresh(); changed != "" && t.Changed != nil {
		t.Changed(changed)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.hash == "" || t.hash == noTokens {
		empty := sha256.Sum256(nil)
		return hex.EncodeToString(empty[:])
	}
	return t.hash
}

// still returns a status if the file no longer says what it said of a token.
func (t *Tokens) still(said identity.Token) error {
	var sum [sha256.Size]byte
	if _, err := hex.Decode(sum[:], []byte(said.SHA256)); err != nil {
		return rpcerr.Unauthenticated(err.Error())
	}
	if now, known := t.find(sum); !known || !reflect.DeepEqual(now, said) {
		return rpcerr.Unauthenticated("the token was removed or changed")
	}
	return nil
}

// refresh reads the file if it changed. It returns its hash if other tokens are in force now.
func (t *Tokens) refresh() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.path == "" || time.Since(t.checked) < checkTokens {
		return ""
	}
	before := t.hash
	err := t.read()
	switch {
	case err == nil:
		t.failed = ""
	case err.Error() != t.failed:
		t.failed = err.Error()
		t.log.Error("tokens not read again, the former ones stay", "error", err)
	}
	if t.hash == before {
		return ""
	}
	return t.hash
}

func (t *Tokens) read() error {
	t.checked = time.Now()
	info, err := os.Stat(t.path)
	if errors.Is(err, fs.ErrNotExist) {
		if t.stamp != (stamp{}) {
			t.tokens, t.stamp, t.hash = nil, stamp{}, noTokens
		}
		return nil
	}
	if err != nil {
		return err
	}
	now := stamp{info.Size(), info.ModTime()}
	if now == t.stamp {
		return nil
	}
	text, err := os.ReadFile(t.path)
	if err != nil {
		return err
	}
	tokens, err := identity.ParseTokens(text)
	if err != nil {
		return fmt.Errorf("%s: %w", t.path, err)
	}
	sum := sha256.Sum256(text)
	t.tokens, t.stamp, t.hash = tokens, now, hex.EncodeToString(sum[:])
	return nil
}
