package authn

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func line(token, user, group string) string {
	sum := sha256.Sum256([]byte(token))
	return fmt.Sprintf("{\"sha256\":%q,\"user\":%q,\"groups\":[%q],\"expires\":\"2126-01-01T00:00:00Z\"}\n",
		hex.EncodeToString(sum[:]), user, group)
}

func TestTokensFollowTheirFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	log := slog.New(slog.DiscardHandler)
	tokens, err := OpenTokens(path, log) // the file is not there yet
	if err != nil {
		t.Fatal(err)
	}
	write := func(data string) {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		tokens.checked = time.Time{}
	}
	if _, ok := tokens.owner("one"); ok {
		t.Error("a token without a file")
	}
	write("\n# people\n" + line("one", "alice", "system:masters"))
	if o, ok := tokens.owner("one"); !ok || o.User != "alice" || o.Groups[0] != "system:masters" {
		t.Errorf("owner = %v, %v", o, ok)
	}
	write("this is no token\n")
	if _, ok := tokens.owner("one"); !ok {
		t.Error("a wrong file took the former tokens away")
	}
	write(line("second", "bob", "staff"))
	if _, ok := tokens.owner("one"); ok {
		t.Error("a token that was removed is still good")
	}
	if _, ok := tokens.owner(""); ok {
		t.Error("an empty token is good")
	}
}

func TestWrongTokenFilesNameTheLine(t *testing.T) {
	for name, data := range map[string]string{
		"no JSON":                  "x",
		"an unknown field":         `{"token":"x"}`,
		"a digest that is not":     `{"sha256":"abcd","user":"alice"}`,
		"no user":                  line("t", "", "staff"),
		"a user of the system":     line("t", "system:windlass:machine-api", "staff"),
		"a token without an end":   strings.Replace(line("t", "alice", "staff"), `,"expires":"2126-01-01T00:00:00Z"`, "", 1),
		"a user that is no header": line("t", "al\u00efce", "staff"),
		"two objects":              strings.TrimSpace(line("t", "alice", "staff")) + line("u", "bob", "staff"),
		"a group of services":      line("t", "alice", "system:windlass"),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tokens")
			if err := os.WriteFile(path, []byte("# first\n"+data), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := OpenTokens(path, slog.New(slog.DiscardHandler)); err == nil ||
				!strings.Contains(err.Error(), "line 2") {
				t.Errorf("OpenTokens = %v", err)
			}
		})
	}
}

func TestRequestIDsAreKeptIfTheyArePlain(t *testing.T) {
	for id, kept := range map[string]bool{
		"abc-1_2.3": true, "": false, "with space": false, "new\nline": false,
		strings.Repeat("x", 65): false,
	} {
		if got := cleanID(id); (got == id) != kept || got == "" {
			t.Errorf("cleanID(%q) = %q", id, got)
		}
	}
}
