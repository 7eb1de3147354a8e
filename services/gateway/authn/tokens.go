package authn

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/windlass-dev/windlass/kit/identity"
)

// checkTokens is how often the file of tokens is looked at, at most.
const checkTokens = time.Second

// Tokens are the bearer tokens of a file: one JSON object a line, with the SHA-256 of the token in hex and whose it is,
// {"sha256":"…","user":"alice","groups":["viewers"]}. Empty lines and lines that begin with # are skipped. The file is
// read again when it changes; one that became unreadable or wrong keeps the tokens that were good. Concurrent calls are
// safe.
type Tokens struct {
	path string
	log  *slog.Logger

	mu      sync.Mutex
	owners  map[[sha256.Size]byte]owner
	checked time.Time
	stamp   stamp
}

type owner struct {
	user   string
	groups []string
}

type stamp struct {
	size     int64
	modified time.Time
}

// OpenTokens reads the file at path. An empty path, or a file that is not there yet, means no tokens.
func OpenTokens(path string, log *slog.Logger) (*Tokens, error) {
	t := &Tokens{path: path, log: log}
	if path == "" {
		return t, nil
	}
	owners, at, err := readTokens(path)
	if err != nil {
		return nil, err
	}
	t.owners, t.stamp, t.checked = owners, at, time.Now()
	return t, nil
}

func (t *Tokens) owner(token string) (owner, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refresh()
	o, ok := t.owners[sha256.Sum256([]byte(token))]
	return o, ok
}

func (t *Tokens) refresh() {
	if t.path == "" || time.Since(t.checked) < checkTokens {
		return
	}
	t.checked = time.Now()
	info, err := os.Stat(t.path)
	if err == nil && t.stamp == (stamp{info.Size(), info.ModTime()}) || errors.Is(err, fs.ErrNotExist) && t.stamp == (stamp{}) {
		return
	}
	owners, at, err := readTokens(t.path)
	if err != nil {
		t.log.Error("tokens not read again, the former ones stay", "error", err)
		return
	}
	t.owners, t.stamp = owners, at
}

func readTokens(path string) (map[[sha256.Size]byte]owner, stamp, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, stamp{}, nil
	}
	if err != nil {
		return nil, stamp{}, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, stamp{}, err
	}
	owners := map[[sha256.Size]byte]owner{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		sum, o, err := parseToken(line)
		if err != nil {
			return nil, stamp{}, fmt.Errorf("%s: line %d: %w", path, n, err)
		}
		owners[sum] = o
	}
	return owners, stamp{info.Size(), info.ModTime()}, lines.Err()
}

func parseToken(line string) (sum [sha256.Size]byte, o owner, err error) {
	var entry struct {
		SHA256 string   `json:"sha256"`
		User   string   `json:"user"`
		Groups []string `json:"groups"`
	}
	d := json.NewDecoder(strings.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&entry); err != nil {
		return sum, o, err
	}
	if n, err := hex.Decode(sum[:], []byte(entry.SHA256)); err != nil || n != sha256.Size || len(entry.SHA256) != 2*sha256.Size {
		return sum, o, errors.New("sha256 must be 64 hexadecimal digits")
	}
	if entry.User == "" || strings.HasPrefix(entry.User, "system:") {
		return sum, o, fmt.Errorf("user %q must be a name without the prefix %q", entry.User, "system:")
	}
	for _, g := range entry.Groups {
		if strings.HasPrefix(g, "system:") && g != identity.GroupMasters {
			return sum, o, fmt.Errorf("group %q is not for users", g)
		}
	}
	return sum, owner{user: entry.User, groups: entry.Groups}, nil
}
