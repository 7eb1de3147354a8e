package release

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	openpgperrors "github.com/ProtonMail/go-crypto/openpgp/errors"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

// maxSignature is how many bytes of a signature are read.
const maxSignature = 50 << 10

// patience is how long a store may take for one signature.
const patience = time.Minute

// Verifier checks the signatures of images.
type Verifier struct {
	Rings  []Ring   // every one must be satisfied by a signature
	Stores []string // https://, http:// or file:// addresses, asked one after the other
	// Elsewhere returns the processes of other hosts, whose signatures are checked if those of the stores do not suffice.
	// nil means none.
	Elsewhere func() []Peer
	Client    *http.Client     // for https and http; nil means one that waits a minute for a signature
	Now       func() time.Time // for the life time of signatures; nil means time.Now
}

// verificationError says what was found instead of the signatures that were looked for.
type verificationError struct {
	Digest   string
	Rings    []string // rings that no signature satisfies
	Findings []finding
}

// finding is why a signature does not satisfy a ring, or why a store did not give one.
type finding struct {
	Store     string
	Signature string // such as signature-1; empty if it is about the store
	Ring      string // empty if it is about all rings
	Reason    string
}

// String is a finding as one line.
func (f finding) String() string {
	text := f.Store
	if f.Signature != "" {
		text += " " + f.Signature
	}
	if f.Ring != "" {
		text += " for key ring " + f.Ring
	}
	return text + ": " + f.Reason
}

// Error says which key rings are not satisfied, and each finding.
func (e *verificationError) Error() string {
	text := fmt.Sprintf("%s cannot be verified: no good signature for key ring %s", e.Digest, strings.Join(e.Rings, ", "))
	for _, f := range e.Findings {
		text += "\n* " + f.String()
	}
	return text
}

// errNoTrust means that there are no key rings or no stores, so that nothing can be verified.
var errNoTrust = errors.New("no key rings or no signature stores are configured, so no release can be verified")

// Proof is a signature that satisfies a ring.
type Proof struct {
	Ring      string
	Store     string
	Signature string // such as signature-1
	Key       string // ID of the key that made it, 16 hexadecimal digits
	Signed    time.Time
	Expires   time.Time // zero: never
}

// Verify checks that an image, given by its digest, was signed for every ring.
func (v Verifier) Verify(ctx context.Context, digest string) error {
	_, err := v.Prove(ctx, digest)
	return err
}

// Prove checks that an image, given by its digest, was signed for every ring, and returns a signature for each that is
// satisfied, also with an error. That says what was found instead, that there is nothing to verify by, or is that of
// ctx.
func (v Verifier) Prove(ctx context.Context, digest string) ([]Proof, error) {
	if len(v.Rings) == 0 || len(v.Stores) == 0 && v.Elsewhere == nil {
		return nil, errNoTrust
	}
	folder, err := storeFolder(digest)
	if err != nil {
		return nil, err
	}
	now := time.Now
	if v.Now != nil {
		now = v.Now
	}
	p := proving{digest: digest, now: now, missing: slices.Clone(v.Rings)}
	for _, store := range v.Stores {
		err := p.ask(ctx, store, func(use useSignature) error { return v.signatures(ctx, store, folder, use) })
		if err != nil || len(p.missing) == 0 {
			return p.proofs, err
		}
	}
	if v.Elsewhere != nil {
		for _, peer := range v.Elsewhere() {
			err := p.ask(ctx, peer.Name, func(use useSignature) error { return peer.signatures(ctx, digest, use) })
			if err != nil || len(p.missing) == 0 {
				return p.proofs, err
			}
		}
	}
	failed := &verificationError{Digest: digest, Findings: p.findings}
	for _, r := range p.missing {
		failed.Rings = append(failed.Rings, r.Name)
	}
	return p.proofs, failed
}

// useSignature is given a signature, or why it cannot be read, and returns whether it needs more.
type useSignature func(name string, raw []byte, err error) (more bool)

// proving is how far a proof is.
type proving struct {
	digest   string
	now      func() time.Time
	missing  []Ring // that no signature satisfies yet
	proofs   []Proof
	findings []finding
}

// ask checks the signatures of one store, until every ring is satisfied. Its error is that of ctx.
func (p *proving) ask(ctx context.Context, store string, signatures func(useSignature) error) error {
	found := 0
	err := signatures(func(name string, raw []byte, err error) bool {
		found++
		if err != nil {
			p.findings = append(p.findings, finding{Store: store, Signature: name, Reason: err.Error()})
			return true
		}
		p.check(store, name, raw)
		return len(p.missing) > 0
	})
	switch {
	case len(p.missing) == 0:
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		p.findings = append(p.findings, finding{Store: store, Reason: err.Error()})
	case found == 0:
		p.findings = append(p.findings, finding{Store: store, Reason: "it has no signature of this image"})
	}
	return nil
}

// check takes a signature for each ring that it satisfies.
func (p *proving) check(store, name string, raw []byte) {
	p.missing = slices.DeleteFunc(p.missing, func(r Ring) bool {
		proof, err := r.check(raw, p.digest, p.now())
		if err != nil {
			p.findings = append(p.findings, finding{store, name, r.Name, err.Error()})
			return false
		}
		proof.Ring, proof.Store, proof.Signature = r.Name, store, name
		p.proofs = append(p.proofs, proof)
		return true
	})
}

// signatures calls use with each signature of a folder of a store, or with why it cannot be read, until use is false or
// there is none more.
func (v Verifier) signatures(ctx context.Context, store, folder string, use useSignature) error {
	address, err := storeAddress(store)
	if err != nil {
		return err
	}
	var read func(name string) (io.ReadCloser, error)
	switch address.Scheme {
	case "file":
		root, err := os.OpenRoot(address.Path)
		if err != nil {
			return err
		}
		defer root.Close()
		read = func(name string) (io.ReadCloser, error) { return root.Open(folder + "/" + name) }
	default:
		read = func(name string) (io.ReadCloser, error) { return v.get(ctx, address.JoinPath(folder, name).String()) }
	}
	for i := 1; i <= maxSignatures; i++ {
		name := signatureName(i)
		raw, err := whole(read(name))
		if errors.Is(err, errSilent) && ctx.Err() == nil {
			return err // each further question would wait as long, and the stores that come after it would not be asked in time
		}
		if errors.Is(err, fs.ErrNotExist) || ctx.Err() != nil || !use(name, raw, err) {
			return nil
		}
	}
	return nil
}

// storeAddress reads the address of a store.
func storeAddress(store string) (*url.URL, error) {
	address, err := url.Parse(store)
	if err != nil {
		return nil, fmt.Errorf("it is no address: %w", err)
	}
	switch address.Scheme {
	case "file":
		if address.Host != "" || address.Path == "" {
			return nil, errors.New(
				"a file address must have three slashes and an absolute path, as in file:///srv/signatures")
		}
	case "http", "https":
		if address.Hostname() == "" {
			return nil, errors.New("its address has no host")
		}
	default:
		return nil, errors.New("its address is neither file, https nor http")
	}
	return address, nil
}

// errSilent means that a store gave no answer at all.
var errSilent = errors.New("the store does not answer")

// get is an HTTP request; a status of 404 is fs.ErrNotExist, and no answer errSilent.
func (v Verifier) get(ctx context.Context, address string) (io.ReadCloser, error) {
	client := v.Client
	if client == nil {
		client = &http.Client{Timeout: patience}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errSilent, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound {
		return nil, fs.ErrNotExist
	}
	return nil, fmt.Errorf("the store answers %s", resp.Status)
}

// whole reads a signature.
func whole(r io.ReadCloser, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	defer r.Close()
	raw, err := io.ReadAll(io.LimitReader(r, maxSignature+1))
	if err == nil && len(raw) > maxSignature {
		err = errLong
	}
	return raw, err
}

var errLong = fmt.Errorf("it is longer than %d bytes", maxSignature)

// check returns what a signature is, and refuses one that none of the ring's keys made for an image. That a key has
// expired does not matter: releases are verified long after they were signed, and upstream does not check it either.
// That a signature has expired does, and that a key was revoked.
func (r Ring) check(raw []byte, digest string, now time.Time) (Proof, error) {
	if err := refuseOldForm(raw); err != nil {
		return Proof{}, err
	}
	limit := int64(maxSignature)
	message, err := openpgp.ReadMessage(bytes.NewReader(raw), r.keys, nil, &packet.Config{
		Time: func() time.Time { return now }, MaxDecompressedMessageSize: &limit,
	})
	if err != nil {
		return Proof{}, fmt.Errorf("it is no signed OpenPGP message: %w", err)
	}
	if message.IsEncrypted || message.IsSymmetricallyEncrypted {
		return Proof{}, errors.New("it is encrypted")
	}
	if !message.IsSigned {
		return Proof{}, errors.New("it is an OpenPGP message without a signature")
	}
	text, err := io.ReadAll(message.UnverifiedBody)
	if err != nil {
		return Proof{}, fmt.Errorf("it is broken: %w", err)
	}
	if message.SignedBy == nil {
		return Proof{}, fmt.Errorf("it was made with key %016X, which is not in the key ring", message.SignedByKeyId)
	}
	if err := usable(message, now); err != nil {
		return Proof{}, err
	}
	if r.revoked(message.SignedBy, now) {
		return Proof{}, revokedError(message)
	}
	p := Proof{Key: fmt.Sprintf("%016X", message.SignedByKeyId)}
	if sig := message.Signature; sig != nil {
		p.Signed = sig.CreationTime
		if life := sig.SigLifetimeSecs; life != nil && *life > 0 {
			p.Expires = sig.CreationTime.Add(time.Duration(*life) * time.Second)
		}
	}
	return p, checkStatement(text, digest)
}

// usable refuses a signature that does not fit its text, has expired, or whose key was revoked.
func usable(message *openpgp.MessageDetails, now time.Time) error {
	err := message.SignatureError
	switch {
	case err == nil && message.Signature == nil:
		return errors.New("it is broken: the signature is missing")
	case err == nil:
		return nil
	case errors.Is(err, openpgperrors.ErrKeyExpired):
		if message.Signature.SigExpired(now) {
			return errors.New("the signature has expired")
		}
		return nil
	case errors.Is(err, openpgperrors.ErrSignatureExpired):
		return errors.New("the signature has expired")
	case errors.Is(err, openpgperrors.ErrKeyRevoked):
		return revokedError(message)
	}
	return fmt.Errorf("it was tampered with or is broken: the signature does not fit the text (%w)", err)
}

func revokedError(message *openpgp.MessageDetails) error {
	return fmt.Errorf("key %016X was revoked", message.SignedByKeyId)
}

// revoked reports whether any copy of a key in the ring was revoked: a ring may hold it also as it was before, and the
// library takes the first that fits.
func (r Ring) revoked(key *openpgp.Key, now time.Time) bool {
	for _, e := range r.keys {
		if e.PrimaryKey.KeyId == key.Entity.PrimaryKey.KeyId && e.Revoked(now) {
			return true
		}
	}
	return slices.ContainsFunc(r.keys.KeysById(key.PublicKey.KeyId), func(k openpgp.Key) bool { return k.Revoked(now) })
}

const (
	tagSignature  = 2 // packet tag. Source: RFC 9580, section 5
	oldestVersion = 4 // of a signature packet
)

// refuseOldForm refuses signatures of a version that OpenPGP no longer has, which the library passes over in silence.
func refuseOldForm(raw []byte) error {
	if p, err := packet.Read(bytes.NewReader(raw)); err == nil {
		if c, ok := p.(*packet.Compressed); ok {
			limit := int64(maxSignature)
			if raw, err = io.ReadAll(c.LimitedBodyReader(&limit)); err != nil {
				return fmt.Errorf("it cannot be unpacked: %w", err)
			}
		}
	}
	packets := packet.NewOpaqueReader(bytes.NewReader(raw))
	for {
		p, err := packets.Next()
		if err != nil {
			return nil // the library says what is wrong
		}
		if p.Tag == tagSignature && len(p.Contents) > 0 && p.Contents[0] < oldestVersion {
			return fmt.Errorf(
				"it is a version %d signature, an outdated form that is not accepted: sign again with version 4 or later",
				p.Contents[0])
		}
	}
}

// Names with which a release says how others are verified.
const (
	annotationTrust = "release.openshift.io/verification-config-map"
	prefixKey       = "verifier-public-key-"
	prefixStore     = "store-"
)

// Trust is what a release says of how the next one is verified: the first config map, in load order, with the
// annotation release.openshift.io/verification-config-map. ok is false if there is none; then nothing can be verified
// by it.
func Trust(p *Payload) (rings []Ring, stores []string, ok bool, err error) {
	m, ok := p.trust()
	if !ok {
		return nil, nil, false, nil
	}
	if rings, stores, err = m.trust(); err != nil {
		err = fmt.Errorf("%s: ConfigMap %q: %w", m.File, m.Name, err)
	}
	return rings, stores, true, err
}

func (p *Payload) trust() (Manifest, bool) {
	for _, m := range p.Manifests {
		if _, marked := m.Annotations[annotationTrust]; marked && m.Kind == "ConfigMap" && m.APIVersion == "v1" {
			return m, true
		}
	}
	return Manifest{}, false
}

// CheckTrust refuses a release by whose own Trust no later release could be verified: one with keys that cannot be
// read, with a ring whose keys are all revoked, or with a store whose address is none. Whether a store answers is not
// checked.
func CheckTrust(p *Payload, now time.Time) error {
	m, _ := p.trust()
	rings, stores, _, err := Trust(p)
	for _, r := range rings {
		if !slices.ContainsFunc(r.keys, func(e *openpgp.Entity) bool { return !e.Revoked(now) }) {
			err = fmt.Errorf("%s: ConfigMap %q: key ring %s: every key is revoked", m.File, m.Name, r.Name)
		}
	}
	if err != nil {
		return fmt.Errorf("the release brings verification keys that cannot be read: %w", err)
	}
	for _, store := range stores {
		if _, err := storeAddress(store); err != nil {
			return fmt.Errorf("the release brings a signature store that cannot be used: %s: ConfigMap %q: %q: %w",
				m.File, m.Name, store, err)
		}
	}
	return nil
}

func (m Manifest) trust() (rings []Ring, stores []string, err error) {
	data, err := m.data()
	if err != nil {
		return nil, nil, err
	}
	for _, key := range slices.Sorted(maps.Keys(data)) {
		switch {
		case strings.HasPrefix(key, prefixKey):
			r, err := ReadRing(key, data[key])
			if err != nil {
				return nil, nil, err
			}
			rings = append(rings, r)
		case strings.HasPrefix(key, prefixStore):
			stores = append(stores, strings.TrimSpace(string(data[key])))
		}
	}
	switch {
	case len(rings) == 0:
		return nil, nil, fmt.Errorf("it has no key ring: no key begins with %s", prefixKey)
	case len(stores) == 0:
		return nil, nil, fmt.Errorf("it has no signature store: no key begins with %s", prefixStore)
	}
	return rings, stores, nil
}

// data returns what a config map holds.
func (m Manifest) data() (map[string][]byte, error) {
	out := map[string][]byte{}
	for field, decode := range map[string]func(string) ([]byte, error){
		"data":       func(s string) ([]byte, error) { return []byte(s), nil },
		"binaryData": base64.StdEncoding.DecodeString,
	} {
		values, _ := m.Object[field].(map[string]any)
		for key, v := range values {
			text, ok := v.(string)
			if !ok {
				return nil, fmt.Errorf("%s.%s must be a string", field, key)
			}
			raw, err := decode(text)
			if err != nil {
				return nil, fmt.Errorf("%s.%s: %w", field, key, err)
			}
			out[key] = raw
		}
	}
	return out, nil
}
