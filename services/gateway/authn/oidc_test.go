package authn

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/go-cmp/cmp"

	"github.com/windlass-dev/windlass/kit/identity"
)

// issuer is an OpenID Connect issuer over HTTPS.
type issuer struct {
	*httptest.Server
	mu    sync.Mutex
	key   *ecdsa.PrivateKey
	name  string // what it calls itself; empty means its address
	hangs chan struct{}
	asked int // for keys
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{}
	i.rotate(t)
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		i.mu.Lock()
		name, hangs := i.name, i.hangs
		i.mu.Unlock()
		if hangs != nil {
			<-hangs
		}
		if name == "" {
			name = i.URL
		}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"issuer": name, "jwks_uri": i.URL + "/keys",
			"id_token_signing_alg_values_supported": []string{"none", "ES256"},
		})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.asked++
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{
			Keys: []jose.JSONWebKey{{Key: i.key.Public(), Use: "sig", Algorithm: "ES256"}},
		})
	})
	i.Server = httptest.NewTLSServer(mux)
	t.Cleanup(i.Close)
	return i
}

func (i *issuer) rotate(t *testing.T) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.key = key
}

// claims are those of a good token; each test changes one.
func (i *issuer) claims(change map[string]any) map[string]any {
	out := map[string]any{
		"iss": i.URL, "aud": "windlass", "sub": "ann", "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(),
		"groups": []string{"viewers"},
	}
	for k, v := range change {
		if v == nil {
			delete(out, k)
			continue
		}
		out[k] = v
	}
	return out
}

func (i *issuer) token(t *testing.T, claims map[string]any) string {
	t.Helper()
	i.mu.Lock()
	defer i.mu.Unlock()
	return sign(t, jose.ES256, i.key, claims)
}

func sign(t *testing.T, alg jose.SignatureAlgorithm, key any, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func (i *issuer) verifier(t *testing.T, change func(*OIDCConfig)) *OIDC {
	t.Helper()
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw}),
		0o600); err != nil {
		t.Fatal(err)
	}
	config := OIDCConfig{
		IssuerURL: i.URL, ClientID: "windlass", UsernamePrefix: "oidc:", GroupsClaim: "groups",
		GroupsPrefix: "oidc:", CAFile: ca,
	}
	if change != nil {
		change(&config)
	}
	o, err := NewOIDC(config, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	o.again = 0
	t.Cleanup(o.client.CloseIdleConnections)
	return o
}

func TestOIDCTokens(t *testing.T) {
	i := newIssuer(t)
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	none := func(claims map[string]any) string {
		body, err := json.Marshal(claims)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." +
			base64.RawURLEncoding.EncodeToString(body) + "."
	}
	public, err := json.Marshal(jose.JSONWebKey{Key: crypto.PublicKey(i.key.Public())})
	if err != nil {
		t.Fatal(err)
	}
	plain := func(c *OIDCConfig) { c.UsernamePrefix, c.GroupsPrefix = "-", "" }
	tests := []struct {
		name   string
		config func(*OIDCConfig)
		token  string
		user   string
		groups []string
		err    string // part of it; empty means that the token is good
	}{
		{"a good token", nil, i.token(t, i.claims(nil)), "oidc:ann", []string{"oidc:viewers"}, ""},
		{
			"one group as a text", nil, i.token(t, i.claims(map[string]any{"groups": "admins"})), "oidc:ann",
			[]string{"oidc:admins"},
			"",
		},
		{"no groups", nil, i.token(t, i.claims(map[string]any{"groups": nil})), "oidc:ann", nil, ""},
		{
			"several audiences", nil, i.token(t, i.claims(map[string]any{"aud": []string{"x", "windlass"}})), "oidc:ann",
			[]string{"oidc:viewers"},
			"",
		},
		{
			"the default prefix", func(c *OIDCConfig) { c.UsernamePrefix = "" }, i.token(t, i.claims(nil)), i.URL + "#ann",
			[]string{"oidc:viewers"},
			"",
		},
		{
			"another claim", func(c *OIDCConfig) { c.UsernameClaim = "name" },
			i.token(t, i.claims(map[string]any{"name": "Ann B"})), "oidc:Ann B",
			[]string{"oidc:viewers"},
			"",
		},
		{"another audience", nil, i.token(t, i.claims(map[string]any{"aud": "other"})), "", nil, "not known"},
		{"another issuer", nil, i.token(t, i.claims(map[string]any{"iss": "https://evil.example"})), "", nil, "not known"},
		{
			"expired", nil, i.token(t, i.claims(map[string]any{"exp": time.Now().Add(-time.Minute).Unix()})), "", nil,
			"expired",
		},
		{"without an end", nil, i.token(t, i.claims(map[string]any{"exp": nil})), "", nil, "expired"},
		{
			"not yet good", nil, i.token(t, i.claims(map[string]any{"nbf": time.Now().Add(time.Hour).Unix()})), "", nil,
			"not known",
		},
		{"algorithm none", nil, none(i.claims(nil)), "", nil, "not known"},
		{
			"signed with the public key as a shared secret", nil, sign(t, jose.HS256, public, i.claims(nil)), "", nil,
			"not known",
		},
		{"signed by another key", nil, sign(t, jose.ES256, other, i.claims(nil)), "", nil, "not known"},
		{"no user", nil, i.token(t, i.claims(map[string]any{"sub": ""})), "", nil, "lacks the claim"},
		{
			"a user that is a number", func(c *OIDCConfig) { c.UsernameClaim = "n" },
			i.token(t, i.claims(map[string]any{"n": 7})), "", nil, "lacks the claim",
		},
		{
			"a user of the system", plain, i.token(t, i.claims(map[string]any{"sub": "system:windlass:machine-api"})), "", nil,
			"cannot be",
		},
		{
			"a group of the system", plain,
			i.token(t, i.claims(map[string]any{"groups": []string{"viewers", "system:masters"}})), "", nil, "cannot be",
		},
		{
			"a user with a line break", plain, i.token(t, i.claims(map[string]any{"sub": "ann\r\nwindlass-group: x"})), "", nil,
			"cannot be",
		},
		{
			"a user that no header can carry", plain, i.token(t, i.claims(map[string]any{"sub": "ännchen"})), "", nil,
			"cannot be",
		},
		{"groups that are no texts", nil, i.token(t, i.claims(map[string]any{"groups": []int{1}})), "", nil, "no list"},
		{"too many groups", nil, i.token(t, i.claims(map[string]any{"groups": make([]string, 201)})), "", nil, "more than"},
		{
			"an email that is not verified", func(c *OIDCConfig) { c.UsernameClaim = "email" },
			i.token(t, i.claims(map[string]any{"email": "a@x", "email_verified": false})), "", nil, "not verified",
		},
		{
			"an email that is verified", func(c *OIDCConfig) { c.UsernameClaim, c.UsernamePrefix = "email", "" },
			i.token(t, i.claims(map[string]any{"email": "a@x", "email_verified": true})), "a@x",
			[]string{"oidc:viewers"},
			"",
		},
		{"no token at all", nil, "a.b.c", "", nil, "not known"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := i.verifier(t, tt.config).owner(t.Context(), tt.token)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(identity.Token{User: tt.user, Groups: tt.groups},
				identity.Token{User: got.User, Groups: got.Groups}); diff != "" {
				t.Errorf("owner (-want +got):\n%s", diff)
			}
			if got.Expires.IsZero() || got.Issued.IsZero() {
				t.Errorf("the token has no end or no beginning: %+v", got)
			}
		})
	}
}

func TestOIDCKeysAreFetchedAgainWhenTheyAreRotated(t *testing.T) {
	i := newIssuer(t)
	o := i.verifier(t, nil)
	if _, err := o.owner(t.Context(), i.token(t, i.claims(nil))); err != nil {
		t.Fatal(err)
	}
	former := i.token(t, i.claims(nil))
	i.rotate(t)
	if _, err := o.owner(t.Context(), i.token(t, i.claims(nil))); err != nil {
		t.Errorf("a token by the new key: %v", err)
	}
	if _, err := o.owner(t.Context(), former); err == nil {
		t.Error("a token by the former key is good after the new keys are known")
	}
}

// TestTokensThatAreMadeUpDoNotFloodTheIssuer sends many with a signature that no key made.
func TestTokensThatAreMadeUpDoNotFloodTheIssuer(t *testing.T) {
	i := newIssuer(t)
	o := i.verifier(t, nil)
	o.again = time.Hour
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	forged := sign(t, jose.ES256, other, i.claims(nil))
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if _, err := o.owner(t.Context(), forged); err == nil {
				t.Error("a forged token is good")
			}
		})
	}
	wg.Wait()
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.asked != 1 {
		t.Errorf("the issuer was asked %d times for its keys, want once", i.asked)
	}
}

func TestAnIssuerThatIsDownHoldsNoCallUp(t *testing.T) {
	i := newIssuer(t)
	token := i.token(t, i.claims(nil))
	t.Run("it never answered", func(t *testing.T) {
		o := i.verifier(t, nil)
		hangs := make(chan struct{})
		i.mu.Lock()
		i.hangs = hangs
		i.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := o.owner(ctx, token); !errors.Is(err, errNoIssuer) {
			t.Errorf("error %v, want that the issuer cannot be reached", err)
		}
		i.mu.Lock()
		i.hangs = nil
		i.mu.Unlock()
		close(hangs)
		if _, err := o.owner(t.Context(), token); err != nil {
			t.Errorf("error %v after it answers", err)
		}
	})
	t.Run("it answered before", func(t *testing.T) {
		o := i.verifier(t, nil)
		if err := o.fetch(); err != nil {
			t.Fatal(err)
		}
		i.Close()
		if err := o.fetch(); err == nil || o.failed == nil {
			t.Error("the failure is not kept for the metric")
		}
		if _, err := o.owner(t.Context(), token); err != nil {
			t.Errorf("error %v, want that the former keys are used", err)
		}
	})
}

func TestAnIssuerThatCallsItselfOtherwiseIsRefused(t *testing.T) {
	i := newIssuer(t)
	i.name = "https://other.example"
	if _, err := i.verifier(t, nil).owner(t.Context(), i.token(t, i.claims(nil))); !errors.Is(err, errNoIssuer) {
		t.Errorf("error %v", err)
	}
}

func TestWrongOIDCSettingsAreRefused(t *testing.T) {
	for name, c := range map[string]OIDCConfig{
		"no https":       {IssuerURL: "http://issuer.example", ClientID: "x"},
		"no client":      {IssuerURL: "https://issuer.example"},
		"a query":        {IssuerURL: "https://issuer.example?x=1", ClientID: "x"},
		"no file of CAs": {IssuerURL: "https://issuer.example", ClientID: "x", CAFile: "/does/not/exist"},
	} {
		if _, err := NewOIDC(c, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
