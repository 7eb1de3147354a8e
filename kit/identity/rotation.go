package identity

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"
)

// RotationStep is how far the rotation of an authority has come.
type RotationStep string

// The steps. Each is a state on disk: what an interrupted step left is completed by calling it again.
const (
	Steady    RotationStep = "steady"    // one authority
	Prepared  RotationStep = "prepared"  // the next authority is trusted, and signs nothing yet
	Activated RotationStep = "activated" // the next authority signs; the former is trusted still
	// the former is no longer to be trusted, but not all components have confirmed that yet
	Retired RotationStep = "retired"
)

// The files of a rotation, besides those of the authority: <name>-next-ca.crt and .key hold the next authority until it
// signs, <name>-old-ca.crt the former one for as long as it is trusted. <name>-activating is there while the former is
// replaced by the next, and <name>-retired from the end of the trust in the former until EndRotation.
func nextName(name string) string { return name + "-next" }

func formerFile(dir, name string) string     { return filepath.Join(dir, name+"-old-ca.crt") }
func activatingFile(dir, name string) string { return filepath.Join(dir, name+"-activating") }
func retiredFile(dir, name string) string    { return filepath.Join(dir, name+"-retired") }

func exists(path string) (bool, error) {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Rotation returns how far the rotation of an authority in dir has come.
func Rotation(dir, name string) (RotationStep, error) {
	nextCert, _ := authorityFiles(dir, nextName(name))
	for _, s := range []struct {
		path string
		step RotationStep
	}{
		{activatingFile(dir, name), Prepared},
		{formerFile(dir, name), Activated},
		{retiredFile(dir, name), Retired},
		{nextCert, Prepared},
	} {
		if there, err := exists(s.path); err != nil || there {
			return s.step, err
		}
	}
	return Steady, nil
}

// PrepareRotation makes the next authority, which is valid for lifetime. It does nothing if a rotation has begun.
func PrepareRotation(dir, name string, lifetime time.Duration) error {
	if step, err := Rotation(dir, name); err != nil || step != Steady {
		return err
	}
	next, err := NewAuthority(name, lifetime)
	if err != nil {
		return err
	}
	next.name = nextName(name)
	return next.Save(dir) // the key first: with the certificate the step is done
}

// AdoptNext makes an authority that another host prepared the next one here. It does nothing if it is, and replaces one
// that signs nothing yet: of two hosts that prepared one, only one began the rotation. certPEM and keyPEM must belong
// together.
func AdoptNext(dir, name string, certPEM, keyPEM []byte) error {
	step, err := Rotation(dir, name)
	if err != nil {
		return err
	}
	nextCert, nextKey := authorityFiles(dir, nextName(name))
	switch have, err := os.ReadFile(nextCert); {
	case step == Prepared && err == nil && bytes.Equal(have, certPEM):
		return nil
	case step != Steady && step != Prepared:
		return fmt.Errorf("authority %q: a rotation is under way here (%s)", name, step)
	}
	there, err := exists(activatingFile(dir, name))
	if err != nil {
		return err
	}
	if there {
		return fmt.Errorf("authority %q: another one is about to sign", name)
	}
	if err := checkPair(certPEM, keyPEM); err != nil {
		return fmt.Errorf("next authority %q: %w", name, err)
	}
	// Without the certificate there is no next one: the key never belongs to another certificate.
	if err := os.Remove(nextCert); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := renameio.WriteFile(nextKey, keyPEM, 0o600); err != nil {
		return err
	}
	return renameio.WriteFile(nextCert, certPEM, 0o644)
}

// checkPair returns an error unless a key is that of an authority's certificate.
func checkPair(certPEM, keyPEM []byte) error {
	certs, err := parseCertificates(certPEM)
	if err != nil {
		return err
	}
	block, _ := pem.Decode(keyPEM)
	if block == nil {
		return errors.New("the key is not in PEM")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return err
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || len(certs) != 1 || !certs[0].IsCA || !key.PublicKey.Equal(certs[0].PublicKey) {
		return errors.New("the key is not that of the certificate")
	}
	return nil
}

// ActivateRotation puts the next authority in the place of the former, whose key is destroyed. It does nothing if that
// is done, and completes what an interrupted call left.
func ActivateRotation(dir, name string) error {
	step, err := Rotation(dir, name)
	if err != nil || step == Activated {
		return err
	}
	if step != Prepared {
		return fmt.Errorf("authority %q: no rotation was prepared", name)
	}
	if err := renameio.WriteFile(activatingFile(dir, name), nil, 0o600); err != nil {
		return err
	}
	return CompleteActivation(dir, name)
}

// CompleteActivation completes an ActivateRotation that was interrupted; each line of it may be the last of a killed
// process. It does nothing if there is none.
func CompleteActivation(dir, name string) error {
	if begun, err := exists(activatingFile(dir, name)); err != nil || !begun {
		return err
	}
	cert, key := authorityFiles(dir, name)
	nextCert, nextKey := authorityFiles(dir, nextName(name))
	next, err := os.ReadFile(nextCert)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil {
		now, err := os.ReadFile(cert)
		if err != nil {
			return err
		}
		if !bytes.Equal(now, next) {
			if err := renameio.WriteFile(formerFile(dir, name), now, 0o644); err != nil {
				return err
			}
		}
		keyPEM, err := os.ReadFile(nextKey)
		if err != nil {
			return err
		}
		if err := renameio.WriteFile(key, keyPEM, 0o600); err != nil {
			return err
		}
		if err := renameio.WriteFile(cert, next, 0o644); err != nil {
			return err
		}
	}
	// The certificate before the key: while it is there, the key is needed.
	for _, path := range []string{nextCert, nextKey, activatingFile(dir, name)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// RetireFormer ends the trust in the former authority. It does nothing if there is none.
func RetireFormer(dir, name string) error {
	switch step, err := Rotation(dir, name); {
	case err != nil:
		return err
	case step == Prepared:
		return fmt.Errorf("authority %q: the next one does not sign yet", name)
	case step != Activated:
		return nil
	}
	if err := renameio.WriteFile(retiredFile(dir, name), nil, 0o600); err != nil {
		return err
	}
	return os.Remove(formerFile(dir, name))
}

// EndRotation notes that the former authority, which RetireFormer retired, is trusted nowhere any more.
func EndRotation(dir, name string) error {
	if err := os.Remove(retiredFile(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Trust is an authority with those that are trusted beside it while it is rotated.
type Trust struct {
	*Authority                     // signs
	others     []*x509.Certificate // the next or the former one
}

// LoadTrust reads an authority that Save wrote, and what is trusted beside it. The error wraps os.ErrNotExist if there
// is no such authority. While the next authority is put in place, and after a crash in that moment, it may be another
// one: read again later.
func LoadTrust(dir, name string) (Trust, error) {
	a, err := LoadAuthority(dir, name)
	if err != nil {
		return Trust{}, err
	}
	t := Trust{Authority: a}
	nextCert, _ := authorityFiles(dir, nextName(name))
	for _, path := range []string{nextCert, formerFile(dir, name)} {
		certs, err := readCertificates(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return Trust{}, err
		}
		t.others = append(t.others, certs...)
	}
	return t, nil
}

// Save writes the authority as Authority.Save does, and what is trusted beside it: for a copy of it, which LoadTrust
// reads. The key of the next authority is not in it. While it is written, and if that is cut off, the copy trusts what
// it trusted before and what it is to trust: with less, a reader could refuse certificates that are in use.
func (t Trust) Save(dir string) error {
	others := t.Bundle()[len(t.PEM()):]
	certPath, _ := authorityFiles(dir, t.name)
	before, err := os.ReadFile(certPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	beside, err := os.ReadFile(formerFile(dir, t.name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(before) > 0 {
		if err := renameio.WriteFile(formerFile(dir, t.name), slices.Concat(before, beside, t.Bundle()), 0o644); err != nil {
			return err
		}
	}
	if err := t.Authority.Save(dir); err != nil {
		return err
	}
	if len(others) > 0 {
		return renameio.WriteFile(formerFile(dir, t.name), others, 0o644)
	}
	if err := os.Remove(formerFile(dir, t.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Bundle returns the certificates of all authorities that are trusted, in PEM; the one that signs comes first.
func (t Trust) Bundle() []byte {
	out := t.PEM()
	for _, c := range t.others {
		out = append(out, encodeCertificate(c.Raw)...)
	}
	return out
}

// TrustHash returns a short hash of the certificates in bundles of authorities in PEM. It does not depend on their
// order.
func TrustHash(bundles ...[]byte) (string, error) {
	sum := sha256.New()
	for _, bundle := range bundles {
		certs, err := parseCertificates(bundle)
		if err != nil {
			return "", err
		}
		var each []string
		for _, c := range certs {
			one := sha256.Sum256(c.Raw)
			each = append(each, hex.EncodeToString(one[:]))
		}
		slices.Sort(each)
		fmt.Fprintln(sum, slices.Compact(each))
	}
	return hex.EncodeToString(sum.Sum(nil)[:8]), nil
}

// Hash returns the hashes of all authorities that are trusted, as PinnedTLS takes them.
func (t Trust) Hash() string {
	hashes := []string{t.Authority.Hash()}
	for _, c := range t.others {
		hashes = append(hashes, keyHash(c))
	}
	return strings.Join(hashes, ",")
}

// Renew returns a certificate of the authority that signs, in PEM, which says the same of the same key as old does,
// valid from now on for as long as old was. One of the authorities that are trusted must have signed old.
func (t Trust) Renew(old *x509.Certificate) ([]byte, error) {
	if !t.Knows(old) {
		return nil, fmt.Errorf("certificate %q: not of authority %q", old.Subject.CommonName, t.name)
	}
	return t.renew(old)
}

// Knows reports whether an authority that is trusted signed a certificate, whatever the time.
func (t Trust) Knows(cert *x509.Certificate) bool {
	return t.Issued(cert) || slices.ContainsFunc(t.others, func(ca *x509.Certificate) bool { return issued(ca, cert) })
}

// NextAuthority reads the authority that a rotation prepared.
func NextAuthority(dir, name string) (*Authority, error) { return LoadAuthority(dir, nextName(name)) }
