package identity

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"slices"
	"testing"
	"time"
)

// greedy is a certificate request that asks for everything.
func greedy(t testing.TB) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "root", Organization: []string{GroupMasters}}, DNSNames: []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		URIs:        []*url.URL{{Scheme: "spiffe", Host: trustDomain, Path: "/service/machine-api"}},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// FuzzRequest holds that nothing of a certificate request but its key gets into a certificate.
func FuzzRequest(f *testing.F) {
	a, err := NewAuthority("windlass", time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(greedy(f))
	f.Add([]byte{0x30, 0x80})
	f.Fuzz(func(t *testing.T, der []byte) {
		csr, err := ParseRequest(der)
		if err != nil {
			return
		}
		text, err := a.Sign(csr, Request{CommonName: "w", URI: NodeURI("w", "u"), Client: true})
		if err != nil {
			t.Fatalf("%x was taken and cannot be signed: %v", der, err)
		}
		block, _ := pem.Decode(text)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if cert.Subject.String() != "CN=w" || len(cert.DNSNames)+len(cert.IPAddresses)+len(cert.EmailAddresses) > 0 ||
			len(cert.URIs) != 1 ||
			cert.URIs[0].String() != NodeURI("w", "u") ||
			!slices.Equal(cert.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) || cert.IsCA {
			t.Fatalf("%x became %s, %v, %v, %v", der, cert.Subject, cert.DNSNames, cert.IPAddresses, cert.URIs)
		}
	})
}

// TestAHugeKeyCostsNothing has requests for RSA keys of 4 and of 32 KiB: to check the signature of the second one takes
// about ten seconds.
func TestAHugeKeyCostsNothing(t *testing.T) {
	for _, bits := range []uint{1 << 15, 1 << 18} {
		key := rsa.PublicKey{N: new(big.Int).SetBit(big.NewInt(1), int(bits), 1), E: 65537}
		der, err := x509.MarshalPKIXPublicKey(&key)
		if err != nil {
			t.Fatal(err)
		}
		var outer struct {
			Body struct {
				Version int
				Subject asn1.RawValue
				Key     asn1.RawValue
				Rest    asn1.RawValue `asn1:"optional,tag:0"`
			}
			Algorithm asn1.RawValue
			Signature asn1.BitString
		}
		if _, err := asn1.Unmarshal(greedy(t), &outer); err != nil {
			t.Fatal(err)
		}
		outer.Body.Key = asn1.RawValue{FullBytes: der}
		algorithm, err := asn1.Marshal(pkix.AlgorithmIdentifier{
			Algorithm:  asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11},
			Parameters: asn1.NullRawValue,
		})
		if err != nil {
			t.Fatal(err)
		}
		outer.Algorithm = asn1.RawValue{FullBytes: algorithm} // SHA-256 with RSA
		signature := make([]byte, key.Size())
		signature[len(signature)-1] = 2
		outer.Signature = asn1.BitString{Bytes: signature, BitLength: 8 * len(signature)}
		request, err := asn1.Marshal(outer)
		if err != nil {
			t.Fatal(err)
		}
		_, err = x509.ParseCertificateRequest(request)
		if err != nil || !bytes.Contains(request, der) {
			t.Fatalf("the test's own request cannot be read: %v", err)
		}
		begin := time.Now()
		if _, err := ParseRequest(request); err == nil {
			t.Errorf("a key of %d bits is taken", bits)
		}
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("a key of %d bits took %v", bits, took)
		}
	}
}
