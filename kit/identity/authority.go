// Package identity says who calls and what they may do: certificate authorities and TLS settings that follow their
// files, callers from certificates, authorization by Kubernetes' RBAC documents, the interceptors that apply both to
// every call, and the audit log.
//
// It leaves to others: when to renew a certificate, tokens of users (the gateway's matter), and decisions that depend
// on more than the request (methods whose access option says checked_by_method).
package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"
)

const (
	// skew is how far a certificate is dated back, for hosts whose clocks are a little behind and for a clock that is set
	// back.
	skew = 5 * time.Minute
	// defaultLifetime of a leaf: long enough to survive a night's outage of the signer.
	defaultLifetime = 24 * time.Hour
	minRSABits      = 2048
	// to check a signature takes time that grows with the square: minutes for a key of megabytes
	maxRSABits      = 8192
	maxRequestBytes = 16 << 10 // of a certificate request; one for an RSA key of 8192 bits has 3 KiB
	// MaxLifetime is how long a leaf may live: a revocation that knows no certificate's end is kept for longer than this.
	MaxLifetime = 366 * 24 * time.Hour
)

// Authority is a certificate authority with its key. Its methods are safe for concurrent use.
type Authority struct {
	name string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Request says what a certificate is for. Nothing of it is ever taken from the one who asks for the certificate.
type Request struct {
	CommonName    string
	Organizations []string // groups, for users
	URI           string   // SPIFFE name; empty for none
	DNSNames      []string
	IPs           []net.IP
	Server        bool // may serve
	Client        bool // may call; at least one of the two must be set
	// Lifetime counts from NotBefore, or from now; 0 means 24 hours. It is cut at MaxLifetime and at the authority's own
	// end.
	Lifetime time.Duration
	// NotBefore is the first moment of validity; zero means five minutes ago.
	NotBefore time.Time
}

// NewAuthority makes a new self-signed authority that is valid for lifetime. name is also the name of its files.
func NewAuthority(name string, lifetime time.Duration) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("authority %q: %w", name, err)
	}
	now := time.Now()
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: name + "-ca"},
		NotBefore:             now.Add(-skew),
		NotAfter:              now.Add(lifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("authority %q: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("authority %q: %w", name, err)
	}
	return &Authority{name: name, cert: cert, key: key}, nil
}

// LoadAuthority reads an authority that Save wrote. The error wraps os.ErrNotExist if there is none.
func LoadAuthority(dir, name string) (*Authority, error) {
	certPath, keyPath := authorityFiles(dir, name)
	certs, err := readCertificates(certPath)
	if err != nil {
		return nil, err
	}
	keyPEM, err := os.ReadFile(keyPath)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(keyPEM)
	if block == nil {
		return nil, fmt.Errorf("%s: no PEM block", keyPath)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", keyPath, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(certs[0].PublicKey) {
		return nil, fmt.Errorf("%s: not the key of %s", keyPath, certPath)
	}
	return &Authority{name: name, cert: certs[0], key: key}, nil
}

// Save writes <dir>/<name>-ca.crt and <dir>/<name>-ca.key, the key readable by the owner alone.
func (a *Authority) Save(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	keyPEM, err := encodeKey(a.key)
	if err != nil {
		return err
	}
	certPath, keyPath := authorityFiles(dir, a.name)
	if err := renameio.WriteFile(keyPath, keyPEM, 0o600); err != nil {
		return err
	}
	return renameio.WriteFile(certPath, a.PEM(), 0o644)
}

func authorityFiles(dir, name string) (cert, key string) {
	return filepath.Join(dir, name+"-ca.crt"), filepath.Join(dir, name+"-ca.key")
}

// Issue makes a key and a certificate for it.
func (a *Authority) Issue(r Request) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if certPEM, err = a.certify(key.Public(), r); err != nil {
		return nil, nil, err
	}
	keyPEM, err = encodeKey(key)
	return certPEM, keyPEM, err
}

// ParseRequest reads a certificate request from an untrusted client. It costs little whatever comes: at most 16 KiB
// are read, and the signature is checked only of keys that Sign accepts.
func ParseRequest(der []byte) (*x509.CertificateRequest, error) {
	if len(der) > maxRequestBytes {
		return nil, fmt.Errorf("certificate request: is %d bytes long, at most %d are allowed", len(der), maxRequestBytes)
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	if err := checkRequest(csr); err != nil {
		return nil, err
	}
	return csr, nil
}

func checkRequest(csr *x509.CertificateRequest) error {
	if !strongKey(csr.PublicKey) {
		return errors.New("certificate request: the key must be ECDSA, Ed25519, or RSA of 2048 to 8192 bits")
	}
	if err := csr.CheckSignature(); err != nil {
		return fmt.Errorf("certificate request: %w", err)
	}
	return nil
}

// Sign makes a certificate for the key of csr, which must be signed by that key. Names, addresses and usages come from
// r; those in csr are ignored.
func (a *Authority) Sign(csr *x509.CertificateRequest, r Request) (certPEM []byte, err error) {
	if err := checkRequest(csr); err != nil {
		return nil, err
	}
	return a.certify(csr.PublicKey, r)
}

func strongKey(key crypto.PublicKey) bool {
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		return k.Curve.Params().BitSize >= elliptic.P256().Params().BitSize
	case ed25519.PublicKey:
		return true
	case *rsa.PublicKey:
		return k.N.BitLen() >= minRSABits && k.N.BitLen() <= maxRSABits
	}
	return false
}

func (a *Authority) certify(key crypto.PublicKey, r Request) ([]byte, error) {
	template, err := a.template(r, time.Now())
	if err != nil {
		return nil, fmt.Errorf("certificate %q: %w", r.CommonName, err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key, a.key)
	if err != nil {
		return nil, fmt.Errorf("certificate %q: %w", r.CommonName, err)
	}
	return encodeCertificate(der), nil
}

func (a *Authority) template(r Request, now time.Time) (*x509.Certificate, error) {
	if r.Lifetime == 0 {
		r.Lifetime = defaultLifetime
	}
	notBefore, notAfter := now.Add(-skew), now.Add(r.Lifetime)
	if !r.NotBefore.IsZero() {
		notBefore, notAfter = r.NotBefore, r.NotBefore.Add(r.Lifetime)
	}
	if limit := notBefore.Add(MaxLifetime); notAfter.After(limit) {
		notAfter = limit
	}
	if notAfter.After(a.cert.NotAfter) {
		notAfter = a.cert.NotAfter
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: r.CommonName, Organization: r.Organizations},
		NotBefore:   notBefore,
		NotAfter:    notAfter,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: usages(r),
		DNSNames:    r.DNSNames,
		IPAddresses: r.IPs,
		// Without it a leaf would say nothing about whether it may sign others.
		BasicConstraintsValid: true,
	}
	if len(template.ExtKeyUsage) == 0 {
		return nil, errors.New("neither for a server nor for a client")
	}
	if r.URI == "" {
		return template, nil
	}
	uri, err := url.Parse(r.URI)
	template.URIs = []*url.URL{uri}
	return template, err
}

func usages(r Request) (list []x509.ExtKeyUsage) {
	if r.Server {
		list = append(list, x509.ExtKeyUsageServerAuth)
	}
	if r.Client {
		list = append(list, x509.ExtKeyUsageClientAuth)
	}
	return list
}

// SignStatement signs a statement by the authority's key. purpose keeps statements of different kinds apart, and from
// certificates.
func (a *Authority) SignStatement(purpose string, statement []byte) ([]byte, error) {
	return ecdsa.SignASN1(rand.Reader, a.key, statementHash(purpose, statement))
}

// CheckStatement returns an error unless the authority signed the statement for that purpose.
func (a *Authority) CheckStatement(purpose string, statement, signature []byte) error {
	if !ecdsa.VerifyASN1(&a.key.PublicKey, statementHash(purpose, statement), signature) {
		return fmt.Errorf("%s: not signed by authority %q", purpose, a.name)
	}
	return nil
}

func statementHash(purpose string, statement []byte) []byte {
	text := sha256.Sum256(statement)
	sum := sha256.Sum256(append([]byte("windlass statement\x00"+purpose+"\x00"), text[:]...))
	return sum[:]
}

// KeyPEM returns the authority's key, as stored in its file.
func (a *Authority) KeyPEM() ([]byte, error) { return encodeKey(a.key) }

// Pool returns a new pool that trusts this authority alone.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// PEM returns the authority's certificate, as stored in its file.
func (a *Authority) PEM() []byte { return encodeCertificate(a.cert.Raw) }

// NotAfter returns the end of the authority, and so of everything that it signs.
func (a *Authority) NotAfter() time.Time { return a.cert.NotAfter }

// Hash returns "sha256:" and the hex digest of the authority's public key, for clients that pin it.
func (a *Authority) Hash() string { return keyHash(a.cert) }

func keyHash(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// readCertificates reads every certificate of a PEM file; at least one.
func readCertificates(path string) ([]*x509.Certificate, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	certs, err := parseCertificates(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return certs, nil
}

func parseCertificates(rest []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		return nil, errors.New("no certificate")
	}
	return certs, nil
}
