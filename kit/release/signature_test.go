package release

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

// Digests of the two real signatures.
const (
	byVendor  = "sha256:e3f12513a4b22a2d7c0e7c9207f52128113758d9d68c7d06b11a0ac7672966f7"
	byTestKey = "sha256:edd9824f0404f1a139688017e7001370e2f3fbc088b94da84506653b473fe140"
)

// realRing reads one of the recorded key rings.
func realRing(t testing.TB, name string) Ring {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "keyrings", name+".txt"))
	check(t, err)
	r, err := ReadRing(name, raw)
	check(t, err)
	return r
}

// store is the address of a directory.
func store(t testing.TB, dir string) string {
	t.Helper()
	abs, err := filepath.Abs(dir)
	check(t, err)
	return "file://" + abs
}

func TestVerifyRealSignatures(t *testing.T) {
	stores := []string{store(t, filepath.Join("testdata", "signatures"))}
	good := Verifier{Rings: []Ring{realRing(t, "simple")}, Stores: stores}
	if err := good.Verify(t.Context(), byTestKey); err != nil {
		t.Errorf("the test key, which has expired since: %v", err)
	}
	says(t, good.Verify(t.Context(), byVendor), "version 3 signature")
	says(t, Verifier{Rings: []Ring{realRing(t, "redhat")}, Stores: stores}.Verify(t.Context(), byVendor),
		"signature-1 for key ring redhat: it is a version 3 signature, an outdated form that is not accepted")
	says(t, Verifier{Rings: []Ring{realRing(t, "redhat")}, Stores: stores}.Verify(t.Context(), byTestKey),
		"which is not in the key ring")
}

// signer is a key and its ring.
func signer(t testing.TB, name string) (Key, Ring) {
	t.Helper()
	private, public, err := GenerateKey(name, created())
	check(t, err)
	k, err := ReadKey(private)
	check(t, err)
	r, err := ReadRing(name, public)
	check(t, err)
	return k, r
}

func TestSignIsVerified(t *testing.T) {
	a, ringA := signer(t, "a")
	b, ringB := signer(t, "b")
	dir := filepath.Join(t.TempDir(), "signatures")
	v := Verifier{Rings: []Ring{ringA, ringB}, Stores: []string{store(t, dir)}}
	path, err := a.Sign(dir, sha, "example.com/release@"+sha, created())
	check(t, err)
	if want := filepath.Join(dir, "sha256="+strings.TrimPrefix(sha, "sha256:"), "signature-1"); path != want {
		t.Errorf("the signature is at %s, want %s", path, want)
	}
	proofs, err := v.Prove(t.Context(), sha)
	var failed *verificationError
	if !errors.As(err, &failed) || len(failed.Rings) != 1 || failed.Rings[0] != "b" {
		t.Fatalf("one ring of two is satisfied: %v", err)
	}
	if len(proofs) != 1 || proofs[0].Ring != "a" || proofs[0].Signature != "signature-1" || len(proofs[0].Key) != 16 ||
		!proofs[0].Signed.Equal(created()) || !proofs[0].Expires.IsZero() {
		t.Errorf("proofs %+v", proofs)
	}
	path, err = b.Sign(dir, sha, "example.com/release", created())
	check(t, err)
	if filepath.Base(path) != "signature-2" {
		t.Errorf("the second signature is at %s", path)
	}
	if proofs, err = v.Prove(t.Context(), sha); err != nil || len(proofs) != 2 || proofs[1].Signature != "signature-2" {
		t.Errorf("both: %+v, %v", proofs, err)
	}
	for i := 3; i <= maxSignatures; i++ {
		_, err = b.Sign(dir, sha, "x", created())
		check(t, err)
	}
	_, err = b.Sign(dir, sha, "x", created())
	says(t, err, "there are 9 signatures already")
	entries, err := os.ReadDir(filepath.Dir(path))
	check(t, err)
	if len(entries) != maxSignatures {
		t.Errorf("%d files, want %d signatures and nothing else", len(entries), maxSignatures)
	}
	_, err = a.Sign(dir, "latest", "x", created())
	says(t, err, "release images that are not accessed via digest cannot be verified")
}

func TestVerifyRefuses(t *testing.T) {
	k, ring := signer(t, "ours")
	foreign, _ := signer(t, "foreign")
	now := created().Add(time.Hour)
	text := func(change func(*statement)) []byte {
		var s statement
		s.Critical.Type, s.Critical.Image.Digest, s.Critical.Identity.Reference = statementType, sha, "x"
		change(&s)
		return jsonOf(t, s)
	}
	good := text(func(*statement) {})
	tests := map[string]struct {
		message []byte
		want    string
	}{
		"nothing":                  {nil, "it has no signature of this image"},
		"no OpenPGP message":       {[]byte("hello"), "it is no signed OpenPGP message"},
		"a message without signer": {unsigned(t, good), "it is an OpenPGP message without a signature"},
		"a foreign key":            {signed(t, foreign, good, nil), "which is not in the key ring"},
		"another digest": {
			signed(t, k, text(func(s *statement) { s.Critical.Image.Digest = byTestKey }), nil),
			"the statement is about another image, " + byTestKey,
		},
		"another type": {
			signed(t, k, text(func(s *statement) { s.Critical.Type = "x" }), nil),
			`the statement is of type "x"`,
		},
		"no reference": {
			signed(t, k, text(func(s *statement) { s.Critical.Identity.Reference = "" }), nil),
			"docker-reference is empty",
		},
		"no JSON": {
			signed(t, k, []byte("yes, take it"), nil),
			"what is signed is no statement about an image",
		},
		"an unknown field": {signed(t, k, []byte(`{"critical":{"more":1}}`), nil), `unknown field "more"`},
		"two statements":   {signed(t, k, append(bytes.Clone(good), good...), nil), "something follows it"},
		"a text that was changed": {
			bytes.Replace(signed(t, k, good, nil), []byte("e3f1"), []byte("e3f2"), 1),
			"it was tampered with or is broken",
		},
		"a message that breaks off": {
			func() []byte { m := signed(t, k, good, nil); return m[:len(m)-40] }(), "",
		},
		"a signature that has expired": {
			signed(t, k, good, func(c *packet.Config) { c.SigLifetimeSecs = 60 }), "the signature has expired",
		},
		"a message that is too long": {make([]byte, maxSignature+1), "it is longer than 51200 bytes"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if tt.message != nil {
				place(t, dir, tt.message)
			}
			err := Verifier{Rings: []Ring{ring}, Stores: []string{store(t, dir)}, Now: func() time.Time { return now }}.Verify(
				t.Context(), sha)
			says(t, err, tt.want)
			says(t, err, sha+" cannot be verified: no good signature for key ring ours")
			var failed *verificationError
			if !errors.As(err, &failed) || len(failed.Findings) != 1 || failed.Findings[0].Store != store(t, dir) {
				t.Errorf("findings %+v", failed)
			}
		})
	}
}

func TestVerifyLooksAtEverySignatureAndStore(t *testing.T) {
	k, ring := signer(t, "ours")
	foreign, _ := signer(t, "foreign")
	first, second := t.TempDir(), t.TempDir()
	for range 3 {
		_, err := foreign.Sign(first, sha, "x", created())
		check(t, err)
	}
	_, err := foreign.Sign(second, sha, "x", created())
	check(t, err)
	_, err = k.Sign(second, sha, "x", created())
	check(t, err)
	v := Verifier{Rings: []Ring{ring}, Stores: []string{
		store(t, first), "file://" + filepath.Join(first, "none"),
		"ftp://x", store(t, second),
	}}
	check(t, v.Verify(t.Context(), sha))
	v.Stores = v.Stores[:3]
	err = v.Verify(t.Context(), sha)
	var failed *verificationError
	if !errors.As(err, &failed) || len(failed.Findings) != 5 {
		t.Fatalf("want a finding for each of 3 signatures and 2 stores: %v", err)
	}
	says(t, err, "signature-3 for key ring ours: it was made with key")
	says(t, err, "ftp://x: its address is neither file, https nor http")
	says(t, Verifier{Rings: []Ring{ring}, Stores: []string{"file://signatures"}}.Verify(t.Context(), sha),
		"must have three slashes")
}

// TestEveryBlockOfARingCounts holds that keys of further armored blocks sign as well as those of the first.
func TestEveryBlockOfARingCounts(t *testing.T) {
	var ring []byte
	var keys []Key
	for _, name := range []string{"first", "second", "third"} {
		private, public, err := GenerateKey(name, created())
		check(t, err)
		k, err := ReadKey(private)
		check(t, err)
		keys, ring = append(keys, k), append(append(ring, "\n# the key of "+name+"\n"...), public...)
	}
	r, err := ReadRing("all", ring)
	check(t, err)
	for i, k := range keys {
		dir := t.TempDir()
		_, err := k.Sign(dir, sha, "x", created())
		check(t, err)
		if err := (Verifier{Rings: []Ring{r}, Stores: []string{store(t, dir)}}).Verify(t.Context(), sha); err != nil {
			t.Errorf("the key of block %d: %v", i+1, err)
		}
	}
	third := bytes.LastIndex(ring, []byte("-----BEGIN"))
	_, err = ReadRing("all", ring[:third+200])
	says(t, err, "key ring all: block 3: ")
	_, err = ReadRing("all", ring[:len(ring)-10])
	says(t, err, "key ring all: block 3: it breaks off: its last line is missing")
	_, err = ReadRing("all", bytes.Replace(ring, []byte("KEY BLOCK-----\n\n"), []byte("KEY BLOCK-----\nno header\n\n"), 1))
	says(t, err, "key ring all: block 1: ")
	_, private, err := GenerateKey("x", created())
	check(t, err)
	_, err = ReadRing("all", append(bytes.Clone(ring), bytes.ReplaceAll(private, []byte("PUBLIC KEY BLOCK"),
		[]byte("SIGNATURE"))...))
	says(t, err, "key ring all: block 4: ")
}

// entityOf makes a key that signs, with two identities.
func entityOf(t *testing.T, lifetime time.Duration) (*openpgp.Entity, *packet.Config) {
	t.Helper()
	config := &packet.Config{
		Algorithm: packet.PubKeyAlgoEdDSA, Time: created, KeyLifetimeSecs: uint32(lifetime.Seconds()),
	}
	entity, err := openpgp.NewEntity("one", "", "one@example.com", config)
	check(t, err)
	check(t, entity.AddUserId("two", "", "two@example.com", config))
	return entity, config
}

// publicOf returns the public half, armored.
func publicOf(t *testing.T, entity *openpgp.Entity) []byte {
	t.Helper()
	raw, err := armored(openpgp.PublicKeyType, entity.Serialize)
	check(t, err)
	return raw
}

func TestAKeyWithSeveralIdentitiesVerifies(t *testing.T) {
	entity, _ := entityOf(t, 0)
	ring, err := ReadRing("two names", publicOf(t, entity))
	check(t, err)
	if n := len(ring.keys[0].Identities); n != 2 {
		t.Fatalf("the key has %d identities", n)
	}
	dir := t.TempDir()
	place(t, dir, signed(t, Key{entity}, statementOf(sha, "x", created()), nil))
	check(t, Verifier{Rings: []Ring{ring}, Stores: []string{store(t, dir)}}.Verify(t.Context(), sha))
}

// TestARevokedKeyDoesNotVerify holds also for a key that has expired, which alone is no fault, and for one that is in
// the ring a second time, from before it was revoked.
func TestARevokedKeyDoesNotVerify(t *testing.T) {
	now := created().Add(time.Hour)
	for name, lifetime := range map[string]time.Duration{"a key": 0, "a key that has expired": time.Minute} {
		t.Run(name, func(t *testing.T) {
			entity, config := entityOf(t, lifetime)
			before := publicOf(t, entity)
			dir := t.TempDir()
			place(t, dir, signed(t, Key{entity}, statementOf(sha, "x", created()), nil))
			verify := func(raw ...[]byte) error {
				ring, err := ReadRing("r", bytes.Join(raw, nil))
				check(t, err)
				return Verifier{Rings: []Ring{ring}, Stores: []string{store(t, dir)}, Now: func() time.Time { return now }}.Verify(
					t.Context(), sha)
			}
			check(t, verify(before))
			check(t, entity.RevokeKey(packet.KeySuperseded, "a new one", config))
			after := publicOf(t, entity)
			for _, rings := range [][][]byte{{after}, {after, before}, {before, after}} {
				says(t, verify(rings...), "was revoked")
			}
		})
	}
}

func TestARevokedSubkeyDoesNotVerify(t *testing.T) {
	entity, config := entityOf(t, 0)
	check(t, entity.AddSigningSubkey(config))
	before := publicOf(t, entity)
	dir := t.TempDir()
	place(t, dir, signed(t, Key{entity}, statementOf(sha, "x", created()), nil))
	sub := &entity.Subkeys[len(entity.Subkeys)-1]
	check(t, entity.RevokeSubkey(sub, packet.KeyRetired, "", config))
	ring, err := ReadRing("r", append(bytes.Clone(before), publicOf(t, entity)...))
	check(t, err)
	v := Verifier{Rings: []Ring{ring}, Stores: []string{store(t, dir)}}
	says(t, v.Verify(t.Context(), sha), fmt.Sprintf("key %016X was revoked", sub.PublicKey.KeyId))
}

func TestVerifyASignatureOfAnExpiredKeyThatExpiredItself(t *testing.T) {
	config := &packet.Config{Algorithm: packet.PubKeyAlgoEdDSA, Time: created, KeyLifetimeSecs: 60}
	entity, err := openpgp.NewEntity("short", "", "", config)
	check(t, err)
	ring := Ring{Name: "short", keys: openpgp.EntityList{entity}}
	good := statementOf(sha, "x", created())
	dir := t.TempDir()
	v := Verifier{Rings: []Ring{ring}, Stores: []string{store(t, dir)}, Now: func() time.Time {
		return created().Add(time.Hour)
	}}
	place(t, dir, signed(t, Key{entity}, good, nil))
	check(t, v.Verify(t.Context(), sha))
	place(t, dir, signed(t, Key{entity}, good, func(c *packet.Config) { c.SigLifetimeSecs = 90 }))
	says(t, v.Verify(t.Context(), sha), "the signature has expired")
}

func TestVerifyOverHTTP(t *testing.T) {
	k, ring := signer(t, "ours")
	dir := t.TempDir()
	_, err := k.Sign(dir, sha, "x", created())
	check(t, err)
	asked := 0
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		if strings.HasPrefix(r.URL.Path, "/broken/") {
			http.Error(w, "no", http.StatusServiceUnavailable)
			return
		}
		http.StripPrefix("/good", http.FileServer(http.Dir(dir))).ServeHTTP(w, r)
	}))
	defer server.Close()
	v := Verifier{
		Rings: []Ring{ring}, Stores: []string{server.URL + "/broken", server.URL + "/good"},
		Client: server.Client(),
	}
	check(t, v.Verify(t.Context(), sha))
	if asked != maxSignatures+1 {
		t.Errorf("%d questions, want 9 to the broken store and 1 to the good one", asked)
	}
	asked = 0
	says(t, v.Verify(t.Context(), byTestKey), "it has no signature of this image")
	if asked != maxSignatures+1 {
		t.Errorf("%d questions: the first 404 must end a store", asked)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := v.Verify(ctx, sha); !errors.Is(err, context.Canceled) {
		t.Errorf("Verify = %v, want that it was cancelled", err)
	}
}

// silent is a network without an answer.
type silent struct{ asked int }

func (s *silent) RoundTrip(*http.Request) (*http.Response, error) {
	s.asked++
	return nil, errors.New("no route to host")
}

func TestAStoreThatDoesNotAnswerIsAskedOnce(t *testing.T) {
	k, ring := signer(t, "ours")
	dir := t.TempDir()
	_, err := k.Sign(dir, sha, "x", created())
	check(t, err)
	network := &silent{}
	v := Verifier{Rings: []Ring{ring}, Stores: []string{"https://gone.example.com", store(t, dir)}, Client: &http.Client{
		Transport: network,
	}}
	check(t, v.Verify(t.Context(), sha))
	if network.asked != 1 {
		t.Errorf("a store that does not answer was asked %d times: the good one has to wait for that", network.asked)
	}
	says(t, v.Verify(t.Context(), byTestKey), "* https://gone.example.com: the store does not answer: ")
}

func TestVerifyNeedsTrust(t *testing.T) {
	_, ring := signer(t, "ours")
	for _, v := range []Verifier{{}, {Rings: []Ring{ring}}, {Stores: []string{"file:///"}}} {
		if err := v.Verify(t.Context(), sha); !errors.Is(err, errNoTrust) {
			t.Errorf("Verify = %v", err)
		}
	}
	v := Verifier{Rings: []Ring{ring}, Stores: []string{"file:///"}}
	for _, digest := range []string{"", "latest", "sha256:../../etc/passwd", "sha256:"} {
		says(t, v.Verify(t.Context(), digest), "release images that are not accessed via digest cannot be verified")
	}
}

func TestTrustOfRealReleases(t *testing.T) {
	for file, rings := range map[string]int{"loads-valid.yaml": 1, "only-first-used.yaml": 1} {
		raw, err := os.ReadFile(filepath.Join("testdata", "manifests", file))
		check(t, err)
		list, err := readManifests(File{Name: file, Content: raw})
		check(t, err)
		got, stores, ok, err := Trust(&Payload{Manifests: list})
		check(t, err)
		if !ok || len(got) != rings || got[0].Name != "verifier-public-key-redhat" || len(stores) != 1 ||
			stores[0] != "file://../verify/testdata/signatures" {
			t.Errorf("%s: %d rings, stores %q", file, len(got), stores)
		}
	}
	if _, _, ok, err := Trust(&Payload{}); ok || err != nil {
		t.Errorf("a release without trust: %v, %v", ok, err)
	}
}

func TestTrustRefuses(t *testing.T) {
	_, public, err := GenerateKey("a", created())
	check(t, err)
	key := "    " + strings.ReplaceAll(strings.TrimSpace(string(public)), "\n", "\n    ") + "\n"
	head := "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: trust\n  annotations: {release.openshift.io/verification-config-map: \"\"}\n"
	for text, want := range map[string]string{
		"data: {store-a: \"https://example.com\"}\n": "trust.yaml: ConfigMap \"trust\": it has no key ring",

		"data:\n  verifier-public-key-a: |\n" + key:                                      "it has no signature store",
		"data: {verifier-public-key-a: nonsense, store-a: \"https://example.com\"}\n":    "key ring verifier-public-key-a:",
		"binaryData: {verifier-public-key-a: \"*\", store-a: \"https://example.com\"}\n": "binaryData.",
	} {
		list, err := readManifests(File{Name: "trust.yaml", Content: []byte(head + text)})
		check(t, err)
		_, _, ok, err := Trust(&Payload{Manifests: list})
		if !ok {
			t.Errorf("%s: the config map is not found", want)
		}
		says(t, err, want)
	}
}

// TestCheckTrust has releases by which no later update could be verified, and such that have or need no trust.
func TestCheckTrust(t *testing.T) {
	entity, config := entityOf(t, time.Minute)
	good := publicOf(t, entity)
	check(t, entity.RevokeKey(packet.KeyCompromised, "", config))
	revoked := publicOf(t, entity)
	trust := func(key []byte, stores ...string) *Payload {
		data := map[string]any{"verifier-public-key-a": string(key)}
		for i, s := range stores {
			data[fmt.Sprintf("store-%d", i)] = s
		}
		return &Payload{Manifests: []Manifest{{
			File: "trust.yaml", APIVersion: "v1", Kind: "ConfigMap", Name: "trust",
			Annotations: map[string]string{annotationTrust: ""}, Object: map[string]any{"data": data},
		}}}
	}
	const keys = `the release brings verification keys that cannot be read: trust.yaml: ConfigMap "trust": `
	const at = `the release brings a signature store that cannot be used: trust.yaml: ConfigMap "trust": `
	for _, tt := range []struct {
		name    string
		release *Payload
		want    string
	}{
		{"no trust of its own", &Payload{}, ""},
		{"an expired key", trust(good, "https://example.com/a", "http://[::1]:80", "file:///srv/signatures"), ""},
		{"no key", trust([]byte("x"), "https://example.com"), keys + "key ring verifier-public-key-a: "},
		{"no store", trust(good), keys + "it has no signature store"},
		{"a revoked key alone", trust(revoked, "https://example.com"), keys + "key ring verifier-public-key-a: every key"},
		{"a revoked key and another", trust(append(publicOf(t, must(openpgp.NewEntity("b", "", "", config))), revoked...),
			"https://example.com"), ""},
		{"no host", trust(good, "https://example.com", "https:///a"), at + `"https:///a": `},
		{"another scheme", trust(good, "ftp://example.com"), at + `"ftp://example.com": its address is neither`},
		{"a path", trust(good, "signatures"), at + `"signatures": its address is neither`},
		{"a relative path", trust(good, "file://signatures"), at + `"file://signatures": a file address must have`},
		{"no address", trust(good, "https://%zz"), at + `"https://%zz": it is no address`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := CheckTrust(tt.release, created().Add(time.Hour))
			if tt.want == "" {
				check(t, err)
			} else {
				says(t, err, tt.want)
			}
		})
	}
}

func TestReadKeyRefuses(t *testing.T) {
	private, public, err := GenerateKey("a", created())
	check(t, err)
	_, err = ReadKey(public)
	says(t, err, "the file holds a public key alone")
	_, err = ReadKey([]byte("x"))
	says(t, err, "signing key: ")
	_, err = ReadKey(private[:len(private)/2])
	says(t, err, "signing key: ")
	other, _, err := GenerateKey("b", created())
	check(t, err)
	_, err = ReadKey(append(bytes.Clone(private), other...))
	says(t, err, "the file holds 2 private keys, it must hold one")
	_, err = ReadKey(append(bytes.Clone(public), private...)) // as they are often exported
	check(t, err)
	_, err = ReadRing("a", nil)
	says(t, err, "key ring a: ")
}
