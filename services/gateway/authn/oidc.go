package authn

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"github.com/windlass-dev/windlass/kit/identity"
)

const (
	// issuerTimeout bounds a request to the issuer.
	issuerTimeout = 5 * time.Second
	// keyPatience is how long a call waits for keys that are being fetched.
	keyPatience = 2 * time.Second
	// keysAgain is the least time between two fetches that unknown keys cause: callers can make up tokens.
	keysAgain = 5 * time.Second
	// keysMaxAge is after how long keys are fetched again, so that a key which the issuer withdrew does not stay valid.
	keysMaxAge = 10 * time.Minute
	// maxDocument bounds what the issuer sends.
	maxDocument = 1 << 20
	// maxToken bounds a bearer token.
	maxToken = 16 << 10
	// maxGroups bounds the groups of a token: they travel as headers.
	maxGroups = 200
)

// OIDCConfig is the settings of an OpenID Connect issuer, with the meaning of kube-apiserver's --oidc flags.
type OIDCConfig struct {
	IssuerURL      string // https; empty means no issuer
	ClientID       string // the audience that tokens must have
	UsernameClaim  string // empty means "sub"
	UsernamePrefix string // empty means the issuer and "#", but nothing for the claim "email"; "-" means nothing
	GroupsClaim    string // empty means no groups
	GroupsPrefix   string
	CAFile         string // authorities of the issuer's certificate; empty means the host's
}

// check returns what is wrong, and fills in what is left open.
func (c *OIDCConfig) check() error {
	u, err := url.Parse(c.IssuerURL)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("--oidc-issuer-url %q: must be an https address without query and fragment", c.IssuerURL)
	}
	if c.ClientID == "" {
		return errors.New("--oidc-client-id is missing")
	}
	if c.UsernameClaim == "" {
		c.UsernameClaim = "sub"
	}
	switch {
	case c.UsernamePrefix == "-":
		c.UsernamePrefix = ""
	case c.UsernamePrefix == "" && c.UsernameClaim != "email":
		c.UsernamePrefix = c.IssuerURL + "#"
	}
	return nil
}

// OIDC verifies the tokens of an OpenID Connect issuer. An issuer that is down stops no start and holds no call up for
// longer than keyPatience: its keys are kept, and without any its tokens get errNoIssuer. Concurrent calls are safe.
type OIDC struct {
	config OIDCConfig
	client *http.Client
	log    *slog.Logger
	now    func() time.Time
	again  time.Duration // keysAgain, less in tests

	fetching singleflight.Group
	mu       sync.Mutex
	keys     *oidc.StaticKeySet // nil before the first fetch
	tried    time.Time
	failed   error // of the last try
}

var (
	errNoIssuer = errors.New("the issuer of tokens cannot be reached, so tokens cannot be verified")
	errNoToken  = errors.New("the bearer token is not known")
	errExpired  = errors.New("the bearer token has expired")
)

// NewOIDC returns a verifier. Nothing is fetched before Run or the first token.
func NewOIDC(config OIDCConfig, log *slog.Logger) (*OIDC, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	settings := &tls.Config{MinVersion: tls.VersionTLS12}
	if config.CAFile != "" {
		pem, err := os.ReadFile(config.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--oidc-ca-file: %w", err)
		}
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--oidc-ca-file: %s has no certificate", config.CAFile)
		}
	}
	return &OIDC{
		config: config, log: log, now: time.Now, again: keysAgain,
		client: &http.Client{
			Timeout: issuerTimeout,
			Transport: &http.Transport{
				Proxy: http.ProxyFromEnvironment, TLSClientConfig: settings,
				IdleConnTimeout: time.Minute,
			},
		},
	}, nil
}

// Run keeps the keys fresh until ctx ends.
func (o *OIDC) Run(ctx context.Context) error {
	defer o.client.CloseIdleConnections()
	for {
		wait := keysMaxAge
		if o.fetch() != nil {
			wait = o.again
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

var descOIDC = prometheus.NewDesc("windlass_gateway_oidc_failed",
	"1 if the keys of the OIDC issuer could not be fetched the last time.", nil, nil)

// Describe is part of prometheus.Collector.
func (o *OIDC) Describe(to chan<- *prometheus.Desc) { to <- descOIDC }

// Collect is part of prometheus.Collector.
func (o *OIDC) Collect(to chan<- prometheus.Metric) {
	o.mu.Lock()
	defer o.mu.Unlock()
	failed := 0.0
	if o.failed != nil {
		failed = 1
	}
	to <- prometheus.MustNewConstMetric(descOIDC, prometheus.GaugeValue, failed)
}

// owner returns whose token it is. The error is errNoIssuer, or says in fixed words what is wrong with the token.
func (o *OIDC) owner(ctx context.Context, token string) (identity.Token, error) {
	ctx, cancel := context.WithTimeout(ctx, keyPatience)
	defer cancel()
	keys := &keySet{oidc: o}
	verifier := oidc.NewVerifier(o.config.IssuerURL, keys, &oidc.Config{
		ClientID: o.config.ClientID, Now: o.now,
		// Those that need a public key; "none" and those with a shared secret are not among them.
		SupportedSigningAlgs: []string{
			oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256,
			oidc.PS384, oidc.PS512, oidc.EdDSA,
		},
	})
	verified, err := verifier.Verify(ctx, token)
	var expired *oidc.TokenExpiredError
	switch {
	case errors.As(err, &expired):
		return identity.Token{}, errExpired
	case keys.none:
		return identity.Token{}, errNoIssuer
	case err != nil:
		o.log.Debug("token refused", "error", err)
		return identity.Token{}, errNoToken
	}
	return o.named(verified)
}

// named takes user and groups from the claims.
func (o *OIDC) named(token *oidc.IDToken) (identity.Token, error) {
	var claims map[string]json.RawMessage
	if err := token.Claims(&claims); err != nil {
		return identity.Token{}, errNoToken
	}
	out := identity.Token{Issued: token.IssuedAt, Expires: token.Expiry}
	if json.Unmarshal(claims[o.config.UsernameClaim], &out.User) != nil || out.User == "" {
		return identity.Token{}, errors.New("the token lacks the claim that names the user")
	}
	if verified, has := claims["email_verified"]; has && o.config.UsernameClaim == "email" && string(verified) != "true" {
		return identity.Token{}, errors.New("the token's email is not verified")
	}
	out.User = o.config.UsernamePrefix + out.User
	if err := identity.CheckUserName(out.User); err != nil {
		return identity.Token{}, errors.New("the token's user cannot be that of a user here")
	}
	groups, err := o.groups(claims[o.config.GroupsClaim])
	out.Groups = groups
	return out, err
}

// groups reads a claim that has one group or a list.
func (o *OIDC) groups(claim json.RawMessage) ([]string, error) {
	if o.config.GroupsClaim == "" || len(claim) == 0 || string(claim) == "null" {
		return nil, nil
	}
	var groups []string
	if json.Unmarshal(claim, &groups) != nil {
		var one string
		if json.Unmarshal(claim, &one) != nil {
			return nil, errors.New("the token's groups are no list of texts")
		}
		groups = []string{one}
	}
	if len(groups) > maxGroups {
		return nil, fmt.Errorf("the token has more than %d groups", maxGroups)
	}
	for i, g := range groups {
		groups[i] = o.config.GroupsPrefix + g
		if identity.CheckUserName(groups[i]) != nil {
			return nil, errors.New("one of the token's groups cannot be that of a user here")
		}
	}
	return groups, nil
}

// keySet is the keys for one token. The verifier does not wrap their error, so it is kept here that there were none.
type keySet struct {
	oidc *OIDC
	none bool
}

// VerifySignature is part of oidc.KeySet.
func (k *keySet) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	payload, err := k.oidc.verifySignature(ctx, token)
	k.none = errors.Is(err, errNoIssuer)
	return payload, err
}

// verifySignature returns the payload of a token that one of the keys signed. A signature that no key made may be by a
// new one, so the keys are fetched again, but not for every forged token.
func (o *OIDC) verifySignature(ctx context.Context, token string) ([]byte, error) {
	if keys := o.known(); keys != nil {
		if payload, err := keys.VerifySignature(ctx, token); err == nil {
			return payload, nil
		}
	}
	fetched := o.fetching.DoChan("", func() (any, error) {
		if !o.mayTry() {
			return nil, nil
		}
		return nil, o.fetchNow()
	})
	select {
	case <-fetched:
	case <-ctx.Done():
	}
	keys := o.known()
	if keys == nil {
		return nil, errNoIssuer
	}
	return keys.VerifySignature(ctx, token)
}

// known returns the keys that were fetched last; nil before the first.
func (o *OIDC) known() *oidc.StaticKeySet {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.keys
}

func (o *OIDC) mayTry() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return time.Since(o.tried) >= o.again
}

func (o *OIDC) fetch() error {
	_, err, _ := o.fetching.Do("", func() (any, error) { return nil, o.fetchNow() })
	return err
}

// fetchNow asks the issuer where its keys are, and for them.
func (o *OIDC) fetchNow() error {
	o.mu.Lock()
	o.tried = time.Now()
	o.mu.Unlock()
	keys, err := o.ask()
	o.mu.Lock()
	defer o.mu.Unlock()
	before := o.failed
	o.failed = err
	switch {
	case err != nil && before == nil:
		o.log.Error("the OIDC issuer's keys cannot be fetched", "issuer", o.config.IssuerURL, "error", err)
	case err == nil && before != nil:
		o.log.Info("the OIDC issuer answers again", "issuer", o.config.IssuerURL)
	}
	if err != nil {
		return err
	}
	o.keys = &oidc.StaticKeySet{PublicKeys: keys}
	return nil
}

func (o *OIDC) ask() ([]crypto.PublicKey, error) {
	ctx, cancel := context.WithTimeout(oidc.ClientContext(context.Background(), o.client), issuerTimeout)
	defer cancel()
	provider, err := oidc.NewProvider(ctx, o.config.IssuerURL) // it also checks that the issuer calls itself so
	if err != nil {
		return nil, err
	}
	var discovered struct {
		JWKS string `json:"jwks_uri"`
	}
	if err := provider.Claims(&discovered); err != nil {
		return nil, err
	}
	if !strings.HasPrefix(discovered.JWKS, "https://") {
		return nil, fmt.Errorf("jwks_uri %q is no https address", discovered.JWKS)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, discovered.JWKS, nil)
	if err != nil {
		return nil, err
	}
	answer, err := o.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", discovered.JWKS, answer.Status)
	}
	var set jose.JSONWebKeySet
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxDocument)).Decode(&set); err != nil {
		return nil, fmt.Errorf("%s: %w", discovered.JWKS, err)
	}
	var keys []crypto.PublicKey
	for _, k := range set.Keys {
		switch k.Key.(type) {
		case *rsa.PublicKey, *ecdsa.PublicKey, ed25519.PublicKey:
			if k.Use == "" || k.Use == "sig" {
				keys = append(keys, k.Key)
			}
		}
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s has no key to verify signatures with", discovered.JWKS)
	}
	return keys, nil
}
