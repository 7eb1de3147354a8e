package identity

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/google/renameio/v2"
)

// Token is a bearer token of the gateway's file: one JSON object a line. The token itself is not in it, only its hash.
type Token struct {
	SHA256  string    `json:"sha256"` // of the token, 64 hexadecimal digits
	User    string    `json:"user"`
	Groups  []string  `json:"groups,omitempty"`
	Issued  time.Time `json:"issued,omitzero"` // a later revocation of the user concerns it, an earlier one does not
	Expires time.Time `json:"expires"`         // must be given
}

// tokenPrefix lets scanners for leaked secrets know what they found.
const tokenPrefix = "windlass_"

// NewToken makes a token for a user until expires. The secret is what the user gets; it cannot be had again.
func NewToken(user string, groups []string, expires time.Time) (secret string, t Token, err error) {
	random := make([]byte, 32)
	if _, err := rand.Read(random); err != nil {
		return "", Token{}, err
	}
	secret = tokenPrefix + base64.RawURLEncoding.EncodeToString(random)
	sum := sha256.Sum256([]byte(secret))
	t = Token{
		SHA256: hex.EncodeToString(sum[:]), User: user, Groups: groups,
		Issued: time.Now().UTC().Truncate(time.Second), Expires: expires.UTC().Truncate(time.Second),
	}
	return secret, t, t.check()
}

// check returns what is wrong with an entry.
func (t Token) check() error {
	if digest, err := hex.DecodeString(t.SHA256); err != nil || len(digest) != sha256.Size {
		return errors.New("sha256 must be 64 hexadecimal digits")
	}
	if t.Expires.IsZero() {
		return errors.New("expires must be given: tokens expire")
	}
	if err := CheckUserName(t.User); err != nil {
		return fmt.Errorf("user: %w", err)
	}
	for _, g := range t.Groups {
		if g == GroupMasters {
			continue
		}
		if err := CheckUserName(g); err != nil {
			return fmt.Errorf("group: %w", err)
		}
	}
	return nil
}

// maxName bounds names of users and groups, in bytes.
const maxName = 256

// CheckUserName returns an error unless name can be that of a user or of a group of users: 1 to 256 printable ASCII
// characters, since names travel as headers, and none of the system's own.
func CheckUserName(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("a name must have 1 to %d bytes", maxName)
	}
	if strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r > '~' }) || strings.TrimSpace(name) != name {
		return fmt.Errorf("name %q: only printable ASCII characters are possible, and no space at the ends", name)
	}
	if strings.HasPrefix(name, reservedPrefix) {
		return fmt.Errorf("name %q: the prefix %q is the system's own", name, reservedPrefix)
	}
	return nil
}

// ParseTokens reads a file of tokens, by hash. Empty lines and those that begin with # are skipped. An error names the
// line. Tokens that have expired are among the result.
func ParseTokens(text []byte) (map[[sha256.Size]byte]Token, error) {
	tokens := map[[sha256.Size]byte]Token{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	n := 1
	for ; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		t, err := parseToken(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		var sum [sha256.Size]byte
		if _, err := hex.Decode(sum[:], []byte(t.SHA256)); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		tokens[sum] = t
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", n, err)
	}
	return tokens, nil
}

func parseToken(line []byte) (t Token, err error) {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&t); err != nil {
		return t, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return t, errors.New("one JSON object a line")
	}
	return t, t.check()
}

// AddToken adds a token to a file, which is made if there is none, and removes those that have expired. The gateway
// reads the file again within a second. Two callers at a time wait for each other.
func AddToken(path string, t Token) error {
	if err := t.check(); err != nil {
		return err
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if text, err = AppendToken(text, t); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return renameio.WriteFile(path, text, 0o600)
}

// AppendToken adds a token to the text of a file of tokens, and removes those that have expired.
func AppendToken(text []byte, t Token) ([]byte, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	kept, err := RemoveTokens(text, func(old Token) bool { return !time.Now().Before(old.Expires) })
	if err != nil {
		return nil, err
	}
	entry, err := json.Marshal(t)
	return append(append(kept, entry...), '\n'), err
}

// RemoveTokens removes tokens from the text of a file of tokens. Other lines stay as they are.
func RemoveTokens(text []byte, remove func(Token) bool) ([]byte, error) {
	if _, err := ParseTokens(text); err != nil {
		return nil, err
	}
	var kept bytes.Buffer
	for line := range bytes.Lines(text) {
		if old, err := parseToken(bytes.TrimSpace(line)); err == nil && remove(old) {
			continue
		}
		kept.Write(bytes.TrimSuffix(line, []byte("\n")))
		kept.WriteByte('\n')
	}
	return kept.Bytes(), nil
}
