package identity

import (
	"crypto/sha256"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestTokensAreAddedAndThoseThatExpiredGo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, []byte("# people"), 0o600); err != nil { // without a newline at the end
		t.Fatal(err)
	}
	_, old, err := NewToken("old", nil, time.Now().Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if err := AddToken(path, old); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	secrets := make(chan string, 20)
	for range 20 {
		wg.Go(func() {
			secret, entry, err := NewToken("ann", []string{"viewers"}, time.Now().Add(time.Hour))
			if err == nil {
				err = AddToken(path, entry)
			}
			if err != nil {
				t.Error(err)
			}
			secrets <- secret
		})
	}
	wg.Wait()
	close(secrets)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := ParseTokens(text)
	if err != nil || len(tokens) != 20 || !strings.HasPrefix(string(text), "# people\n") {
		t.Errorf("%d tokens, %v:\n%s", len(tokens), err, text)
	}
	for secret := range secrets {
		if got := tokens[sha256.Sum256([]byte(secret))]; got.User != "ann" || strings.Contains(string(text), secret) {
			t.Errorf("token %q is of %q", secret, got.User)
		}
	}
}

func TestNamesThatNoUserCanHave(t *testing.T) {
	for name, good := range map[string]bool{
		"ann": true, "my-backup-controller": true, "clusteroperator/etcd": true, "Ann B": true, "a@example.org": true,
		"": false, "system:masters": false, " ann": false, "änn": false, "a\nb": false, "a\x00": false,
		strings.Repeat("x", 257): false,
	} {
		if err := CheckUserName(name); (err == nil) != good {
			t.Errorf("CheckUserName(%q) = %v", name, err)
		}
	}
}

// FuzzParseTokens takes any file.
func FuzzParseTokens(f *testing.F) {
	_, entry, err := NewToken("ann", []string{"viewers"}, time.Date(2126, 1, 1, 0, 0, 0, 0, time.UTC))
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{"sha256":"` + entry.SHA256 + `","user":"ann","groups":["viewers"],"expires":"2126-01-01T00:00:00Z"}` +
		"\n# x\n\n"))
	f.Add([]byte("{}"))
	f.Add([]byte(`{"sha256":"00","user":"system:x","expires":"2126-01-01T00:00:00Z"} {}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		tokens, err := ParseTokens(text)
		if err != nil {
			return
		}
		for _, token := range tokens {
			if err := CheckUserName(token.User); err != nil || token.Expires.IsZero() {
				t.Errorf("%+v is taken for a token: %v", token, err)
			}
		}
	})
}
