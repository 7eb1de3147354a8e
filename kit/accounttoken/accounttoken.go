// Package accounttoken signs and verifies the tokens of service accounts: JSON Web Tokens that scheduler signs with the
// key of its certificate. The token carries the certificate, so a program that trusts the authority of the cluster can
// verify it, and there is no further key to keep, distribute or rotate.
//
// It leaves to others whether the service account and the pod of a token still exist, and which certificates are
// revoked.
package accounttoken

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/uuid"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/topology"
)

const (
	// Audience is that of the cluster's own API.
	Audience = "windlass"
	// Lifetime is how long a token lives if its caller does not say it, as in Kubernetes.
	Lifetime = time.Hour

	issuer = "windlass/serviceaccount"
	// shortest is the least rest of the certificate's validity for which a token is made. Certificates may be short-lived:
	// such a token is renewed as often as they are.
	shortest = time.Second
)

var (
	// ErrExpired means that a token was good once.
	ErrExpired = errors.New("the token has expired")
	// ErrAudience means that a token is for others.
	ErrAudience = errors.New("the token is for another audience")

	errInvalid = errors.New("the token is not valid")
)

// Account is whose token it is.
type Account struct {
	Namespace, Name, UID string
	// Pod, PodUID and Node are those of the pod that the token is bound to; empty if there is none.
	Pod, PodUID, Node string
}

// Token is what a token says.
type Token struct {
	Account
	Audiences       []string
	Issued, Expires time.Time
}

// claims are those of Windlass' own.
type claims struct {
	Namespace string `json:"namespace"`
	Account   object `json:"serviceaccount"`
	Pod       object `json:"pod,omitzero"`
	Node      object `json:"node,omitzero"`
}

type object struct {
	Name string `json:"name"`
	UID  string `json:"uid,omitempty"`
}

type document struct {
	jwt.Claims
	Windlass claims `json:"windlass.dev"`
}

// Signer signs tokens. Concurrent calls are safe.
type Signer struct {
	follow func() (*tls.Certificate, *x509.CertPool, error)
}

// NewSigner returns a signer with the certificate and the key of files, which it follows.
func NewSigner(files identity.Files) *Signer { return &Signer{follow: files.Follow()} }

// Sign returns a token that is valid from now for a lifetime, at most as long as the certificate, and what it says.
func (s *Signer) Sign(of Account, audiences []string, lifetime time.Duration, now time.Time) (string, Token, error) {
	cert, _, err := s.follow()
	if err != nil {
		return "", Token{}, err
	}
	if len(audiences) == 0 {
		audiences = []string{Audience}
	}
	out := Token{Account: of, Audiences: audiences, Issued: now.Truncate(time.Second)}
	out.Expires = out.Issued.Add(lifetime)
	if out.Expires.After(cert.Leaf.NotAfter) {
		out.Expires = cert.Leaf.NotAfter
	}
	if out.Expires.Sub(now) < shortest {
		return "", Token{}, fmt.Errorf("the certificate that signs tokens expires at %s: it is not renewed",
			cert.Leaf.NotAfter.Format(time.RFC3339))
	}
	algorithm, err := algorithmOf(cert.Leaf)
	if err != nil {
		return "", Token{}, err
	}
	chain := make([]string, len(cert.Certificate))
	for i, der := range cert.Certificate {
		chain[i] = base64.StdEncoding.EncodeToString(der)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: cert.PrivateKey},
		(&jose.SignerOptions{}).WithType("JWT").WithHeader("x5c", chain))
	if err != nil {
		return "", Token{}, err
	}
	d := document{
		Claims: jwt.Claims{
			Issuer: issuer, Subject: identity.ServiceAccountUser(of.Namespace, of.Name), Audience: audiences,
			IssuedAt: jwt.NewNumericDate(out.Issued), NotBefore: jwt.NewNumericDate(out.Issued),
			Expiry: jwt.NewNumericDate(out.Expires), ID: uuid.NewString(),
		},
		Windlass: claims{Namespace: of.Namespace, Account: object{of.Name, of.UID}},
	}
	if of.PodUID != "" {
		d.Windlass.Pod, d.Windlass.Node = object{of.Pod, of.PodUID}, object{Name: of.Node}
	}
	text, err := jwt.Signed(signer).Claims(d).Serialize()
	return text, out, err
}

// algorithms are those of the keys that certificates of services can have: none with a shared secret.
var algorithms = []jose.SignatureAlgorithm{jose.ES256, jose.EdDSA}

// algorithmOf returns the only algorithm for the key of a certificate.
func algorithmOf(cert *x509.Certificate) (jose.SignatureAlgorithm, error) {
	switch k := cert.PublicKey.(type) {
	case *ecdsa.PublicKey:
		if k.Curve == elliptic.P256() {
			return jose.ES256, nil
		}
	case ed25519.PublicKey:
		return jose.EdDSA, nil
	}
	return "", errors.New("the key of the certificate cannot sign tokens: it must be ECDSA P-256 or Ed25519")
}

// Verifier verifies tokens. Concurrent calls are safe.
type Verifier struct {
	follow func() (*tls.Certificate, *x509.CertPool, error)
}

// NewVerifier returns a verifier that trusts the authorities of files, which it follows.
func NewVerifier(files identity.Files) *Verifier { return &Verifier{follow: files.Follow()} }

// Is reports whether a text claims to be a token of a service account. It proves nothing.
func Is(text string) bool {
	_, d, err := parse(text)
	return err == nil && d.Issuer == issuer
}

// Validity returns when a token was issued and when it expires, for its owner, who got it from the cluster. It is an
// error if none of these authorities, in PEM, issued the certificate that signed it: the token may have been good under
// others. Neither a clock nor the signature is checked.
func Validity(text string, authorities []byte) (issued, expires time.Time, err error) {
	parsed, d, err := parse(text)
	if err != nil || d.IssuedAt == nil || d.Expiry == nil {
		return issued, expires, errors.Join(errInvalid, err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authorities)
	issued, expires = d.IssuedAt.Time(), d.Expiry.Time()
	_, err = signedBy(parsed, roots, issued)
	return issued, expires, err
}

func parse(text string) (*jwt.JSONWebToken, document, error) {
	var d document
	parsed, err := jwt.ParseSigned(text, algorithms)
	if err != nil {
		return nil, d, err
	}
	return parsed, d, parsed.UnsafeClaimsWithoutVerification(&d)
}

// signedBy returns the certificate of scheduler that a token contains, by authorities that are trusted.
func signedBy(parsed *jwt.JSONWebToken, roots *x509.CertPool, now time.Time) (*x509.Certificate, error) {
	if len(parsed.Headers) != 1 {
		return nil, errInvalid
	}
	// A key in the header, or the name of one, counts for nothing: only the chain of certificates does.
	chains, err := parsed.Headers[0].Certificates(x509.VerifyOptions{
		Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil || len(chains) == 0 || len(chains[0]) == 0 {
		return nil, errInvalid
	}
	cert := chains[0][0]
	signer, err := identity.FromCertificate(cert)
	if name, service := signer.Service(); err != nil || !service || name != topology.Scheduler {
		return nil, errInvalid
	}
	return cert, nil
}

// Verify returns what a token for an audience says, and the certificate whose key signed it, which must be one of
// scheduler's. Of errors, ErrExpired and ErrAudience are for tokens whose signature is good.
func (v *Verifier) Verify(text, audience string, now time.Time) (Token, *x509.Certificate, error) {
	_, roots, err := v.follow()
	if err != nil {
		return Token{}, nil, err
	}
	parsed, d, err := parse(text)
	if err != nil {
		return Token{}, nil, errInvalid
	}
	cert, err := signedBy(parsed, roots, now)
	if err != nil {
		return Token{}, nil, err
	}
	algorithm, err := algorithmOf(cert)
	if err != nil || parsed.Headers[0].Algorithm != string(algorithm) {
		return Token{}, nil, errInvalid
	}
	d = document{}
	if err := parsed.Claims(cert.PublicKey, &d); err != nil {
		return Token{}, nil, errInvalid
	}
	out, err := d.token(audience, now)
	return out, cert, err
}

// token returns what a document says whose signature is good.
func (d document) token(audience string, now time.Time) (Token, error) {
	w := d.Windlass
	complete := d.Issuer == issuer && d.IssuedAt != nil && d.Expiry != nil && w.Namespace != "" && w.Account.Name != "" &&
		w.Account.UID != "" && (w.Pod.Name == "") == (w.Pod.UID == "")
	if !complete || d.Subject != identity.ServiceAccountUser(w.Namespace, w.Account.Name) {
		return Token{}, errInvalid
	}
	switch {
	case !slices.Contains(d.Audience, audience):
		return Token{}, ErrAudience
	case !now.Before(d.Expiry.Time()):
		return Token{}, ErrExpired
	}
	return Token{
		Account: Account{
			Namespace: w.Namespace, Name: w.Account.Name, UID: w.Account.UID, Pod: w.Pod.Name, PodUID: w.Pod.UID,
			Node: w.Node.Name,
		},
		Audiences: d.Audience, Issued: d.IssuedAt.Time(), Expires: d.Expiry.Time(),
	}, nil
}
