package identity

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"time"
)

// Issued reports whether the authority signed a certificate, whatever the time.
func (a *Authority) Issued(cert *x509.Certificate) bool { return issued(a.cert, cert) }

// IssuedBy reports whether the authority whose certificate is given in PEM signed a certificate, whatever the time.
func IssuedBy(caPEM []byte, cert *x509.Certificate) (bool, error) {
	certs, err := parseCertificates(caPEM)
	if err != nil {
		return false, err
	}
	return issued(certs[0], cert), nil
}

func issued(ca, cert *x509.Certificate) bool {
	return bytes.Equal(cert.RawIssuer, ca.RawSubject) && cert.CheckSignatureFrom(ca) == nil
}

// Renew returns a certificate, in PEM, that says the same of the same key as old does, valid from now on for as long as
// old was. The authority must have signed old itself.
func (a *Authority) Renew(old *x509.Certificate) ([]byte, error) {
	if !a.Issued(old) {
		return nil, fmt.Errorf("certificate %q: not of authority %q", old.Subject.CommonName, a.name)
	}
	return a.renew(old)
}

func (a *Authority) renew(old *x509.Certificate) ([]byte, error) {
	now := time.Now()
	next := &x509.Certificate{
		Subject: old.Subject, KeyUsage: old.KeyUsage, ExtKeyUsage: old.ExtKeyUsage, BasicConstraintsValid: true,
		DNSNames: old.DNSNames, IPAddresses: old.IPAddresses, URIs: old.URIs,
		NotBefore: now.Add(-skew), NotAfter: now.Add(old.NotAfter.Sub(IssuedAt(old))),
	}
	if next.NotAfter.After(a.cert.NotAfter) {
		next.NotAfter = a.cert.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, next, a.cert, old.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("certificate %q: %w", old.Subject.CommonName, err)
	}
	return encodeCertificate(der), nil
}
