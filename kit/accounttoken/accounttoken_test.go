package accounttoken

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/go-cmp/cmp"

	"github.com/windlass-dev/windlass/kit/identity"
)

// place has the files of one program.
func place(t *testing.T, a *identity.Authority, uri string, lifetime time.Duration) identity.Files {
	t.Helper()
	dir := t.TempDir()
	cert, key, err := a.Issue(identity.Request{
		CommonName: "test", URI: uri, Client: true, Server: true, Lifetime: lifetime, NotBefore: time.Now().Add(-time.Minute),
	})
	if err != nil {
		t.Fatal(err)
	}
	f := identity.Files{
		Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), CA: filepath.Join(dir, "ca.crt"),
	}
	for path, data := range map[string][]byte{f.Cert: cert, f.Key: key, f.CA: a.PEM()} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func authority(t *testing.T) *identity.Authority {
	t.Helper()
	a, err := identity.NewAuthority("windlass", time.Hour*48)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

var operator = Account{Namespace: "dev", Name: "operator", UID: "u-1", Pod: "op-0", PodUID: "p-1", Node: "worker-1"}

func TestATokenSaysWhoseItIsUntilItExpires(t *testing.T) {
	files := place(t, authority(t), identity.ServiceURI("scheduler"), 24*time.Hour)
	now := time.Now()
	text, made, err := NewSigner(files).Sign(operator, nil, Lifetime, now)
	if err != nil {
		t.Fatal(err)
	}
	v := NewVerifier(files)
	got, cert, err := v.Verify(text, Audience, now)
	if err != nil || cert == nil {
		t.Fatalf("%v, %v", cert, err)
	}
	want := Token{
		Account: operator, Audiences: []string{Audience}, Issued: now.Truncate(time.Second),
		Expires: now.Truncate(time.Second).Add(time.Hour),
	}
	equal := cmp.Comparer(time.Time.Equal)
	if d := cmp.Diff(want, got, equal); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(want, made, equal); d != "" {
		t.Error(d)
	}
	ca, err := os.ReadFile(files.CA)
	if err != nil {
		t.Fatal(err)
	}
	issued, expires, err := Validity(text, ca)
	if !issued.Equal(want.Issued) || !expires.Equal(want.Expires) || err != nil || !Is(text) {
		t.Errorf("from %s to %s, %v", issued, expires, err)
	}
	next := authority(t).PEM()
	if _, _, err := Validity(text, slices.Concat(next, ca)); err != nil {
		t.Errorf("beside the next authority: %v", err)
	}
	for _, others := range [][]byte{next, nil, []byte("none")} {
		if _, _, err := Validity(text, others); err == nil {
			t.Errorf("it is good under %q", others)
		}
	}
	if _, _, err := v.Verify(text, Audience, want.Expires); !errors.Is(err, ErrExpired) {
		t.Errorf("at its end: %v", err)
	}
	if _, _, err := v.Verify(text, "vault", now); !errors.Is(err, ErrAudience) {
		t.Errorf("for others: %v", err)
	}
}

func TestATokenDoesNotOutliveTheCertificateThatSignedIt(t *testing.T) {
	a := authority(t)
	files := place(t, a, identity.ServiceURI("scheduler"), 30*time.Minute)
	_, made, err := NewSigner(files).Sign(operator, nil, time.Hour, time.Now())
	if err != nil || time.Until(made.Expires) > 30*time.Minute {
		t.Errorf("expires %s, %v", made.Expires, err)
	}
	short := NewSigner(place(t, a, identity.ServiceURI("scheduler"), 90*time.Second))
	now := time.Now()
	_, made, err = short.Sign(operator, nil, time.Hour, now)
	if err != nil || made.Expires.Sub(now) > 90*time.Second {
		t.Fatalf("by a certificate of 90 s: expires %s, %v", made.Expires, err)
	}
	if _, _, err := short.Sign(operator, nil, time.Hour, made.Expires); err == nil ||
		!strings.Contains(err.Error(), "not renewed") {
		t.Errorf("by a certificate that ends: %v", err)
	}
}

// TestForgedTokensAreRefused signs the same claims in every way but the right one.
func TestForgedTokensAreRefused(t *testing.T) {
	ours := authority(t)
	files := place(t, ours, identity.ServiceURI("scheduler"), 24*time.Hour)
	good, _, err := NewSigner(files).Sign(operator, nil, time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	v := NewVerifier(files)
	forged := map[string]string{}
	by := func(f identity.Files) string {
		t.Helper()
		text, _, err := NewSigner(f).Sign(operator, nil, time.Hour, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	forged["another authority"] = by(place(t, authority(t), identity.ServiceURI("scheduler"), 24*time.Hour))
	forged["another service"] = by(place(t, ours, identity.ServiceURI("gateway"), 24*time.Hour))
	forged["a node"] = by(place(t, ours, identity.NodeURI("scheduler", "m-1"), 24*time.Hour))
	forged["a user"] = by(place(t, ours, identity.UserURI("test"), 24*time.Hour))

	certPEM, err := os.ReadFile(files.Cert)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(certPEM)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, d, err := parse(good)
	if err != nil {
		t.Fatal(err)
	}
	chain := []string{base64.StdEncoding.EncodeToString(cert.Raw)}
	sign := func(alg jose.SignatureAlgorithm, key any, o *jose.SignerOptions, d document) string {
		t.Helper()
		s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, o)
		if err != nil {
			t.Fatal(err)
		}
		text, err := jwt.Signed(s).Claims(d).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	public, err := x509.MarshalPKIXPublicKey(cert.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	forged["a key of the caller under scheduler's certificate"] = sign(jose.ES256, own,
		(&jose.SignerOptions{}).WithHeader("x5c", chain), d)
	forged["a key in the header"] = sign(jose.ES256, own, &jose.SignerOptions{EmbedJWK: true}, d)
	forged["a key in the header beside scheduler's certificate"] = sign(jose.ES256, own,
		(&jose.SignerOptions{EmbedJWK: true}).WithHeader("x5c", chain), d)
	forged["the name of a key"] = sign(jose.ES256, own, (&jose.SignerOptions{}).WithHeader("kid", "../../tls.key"), d)
	forged["the public key as a shared secret"] = sign(jose.HS256, public, (&jose.SignerOptions{}).WithHeader("x5c",
		chain),
		d)
	_, payload, _ := strings.Cut(good, ".")
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","x5c":["` + chain[0] + `"]}`))
	forged["alg none"] = none + "." + payload[:strings.LastIndex(payload, ".")+1]
	forged["alg none with a signature"] = none + "." + payload
	parts := strings.Split(good, ".")
	other := strings.Replace(mustDecode(t, parts[1]), "operator", "overlord", -1)
	forged["other claims"] = parts[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(other)) + "." + parts[2]
	forged["nothing"] = ""
	forged["dots"] = ".."
	for what, text := range forged {
		if got, _, err := v.Verify(text, Audience, time.Now()); !errors.Is(err, errInvalid) || got.Name != "" {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}

	// What scheduler itself never signs is refused, too: a subject of its own choice, and a token without an end.
	key := files.Follow()
	leaf, _, err := key()
	if err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*document){
		"another subject": func(d *document) { d.Subject = "system:serviceaccount:dev:overlord" },
		"no end":          func(d *document) { d.Expiry = nil },
		"another issuer":  func(d *document) { d.Issuer = "https://issuer.example" },
		"half a pod":      func(d *document) { d.Windlass.Pod.UID = "" },
		"no account uid":  func(d *document) { d.Windlass.Account.UID = "" },
	} {
		wrong := d
		change(&wrong)
		text := sign(jose.ES256, leaf.PrivateKey, (&jose.SignerOptions{}).WithHeader("x5c", chain), wrong)
		if _, _, err := v.Verify(text, Audience, time.Now()); !errors.Is(err, errInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, _, err := v.Verify(good, Audience, time.Now()); err != nil {
		t.Errorf("the good one: %v", err)
	}
}

func mustDecode(t *testing.T, s string) string {
	t.Helper()
	out, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
