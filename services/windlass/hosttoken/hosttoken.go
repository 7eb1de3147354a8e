// Package hosttoken is the token with which a host joins a cluster. It is made on a control-plane host and never sent
// as a whole: the cluster stores its id and the hash of a proof, and the bundle of files for a control-plane host is
// encrypted by a key that only the token's holder can make. Source: kubeadm's upload-certs, which does the same with a
// certificate key.
package hosttoken

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
)

const (
	prefix      = "windlass1." // of a token's text, with its version
	secretBytes = 32
	idBytes     = 16
)

// Token is what a host joins with.
type Token struct {
	ID       string   `json:"id"`     // 32 hexadecimal digits
	Secret   []byte   `json:"secret"` // 32 bytes
	CA       string   `json:"ca"`     // hash of the authority of the cluster's services
	Gateways []string `json:"gateways"`
	Worker   bool     `json:"worker,omitempty"` // the token is for a host that is a worker alone
	// Isolated means that pods of the cluster run under users of their own: a host that cannot do that must not join.
	Isolated bool `json:"isolated,omitempty"`
}

// New returns a token with a secret of its own. CA and Gateways are still to be set.
func New() (Token, error) {
	raw := make([]byte, idBytes+secretBytes)
	if _, err := rand.Read(raw); err != nil {
		return Token{}, err
	}
	return Token{ID: hex.EncodeToString(raw[:idBytes]), Secret: raw[idBytes:]}, nil
}

// String returns the text of the token.
func (t Token) String() string {
	raw, err := json.Marshal(t)
	if err != nil {
		panic(err) // strings and bytes always can
	}
	return prefix + base64.RawURLEncoding.EncodeToString(raw)
}

// Parse reads the text of a token.
func Parse(text string) (Token, error) {
	encoded, ok := strings.CutPrefix(strings.TrimSpace(text), prefix)
	if !ok {
		return Token{}, fmt.Errorf("token: must begin with %q: it is printed by `windlass host token`", prefix)
	}
	raw, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return Token{}, errors.New("token: is not complete")
	}
	var t Token
	if err := json.Unmarshal(raw, &t); err != nil {
		return Token{}, errors.New("token: is not complete")
	}
	if id, err := hex.DecodeString(t.ID); err != nil || len(id) != idBytes || len(t.Secret) != secretBytes || t.CA == "" {
		return Token{}, errors.New("token: is not complete")
	}
	if len(t.Gateways) == 0 {
		return Token{}, errors.New("token: names no gateway")
	}
	for _, g := range t.Gateways {
		if _, _, err := net.SplitHostPort(g); err != nil {
			return Token{}, fmt.Errorf("token: gateway %q: %w", g, err)
		}
	}
	return t, nil
}

// Proof returns what shows that its sender has the token. The secret cannot be derived from it.
func (t Token) Proof() []byte { return t.derive("windlass host join: proof") }

// ProofHash returns the hash of Proof.
func (t Token) ProofHash() []byte {
	h := sha256.Sum256(t.Proof())
	return h[:]
}

func (t Token) derive(purpose string) []byte {
	key, err := hkdf.Key(sha256.New, t.Secret, nil, purpose+" "+t.ID, sha256.Size)
	if err != nil {
		panic(err) // the length is one that SHA-256 has
	}
	return key
}

// sealer returns the cipher of the token's bundle.
func (t Token) sealer() (cipher.AEAD, error) {
	block, err := aes.NewCipher(t.derive("windlass host join: bundle"))
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// Seal encrypts a bundle.
func (t Token) Seal(bundle []byte) ([]byte, error) {
	aead, err := t.sealer()
	if err != nil {
		return nil, err
	}
	return aead.Seal(nil, nil, bundle, []byte(t.ID)), nil
}

// Open decrypts a bundle.
func (t Token) Open(sealed []byte) ([]byte, error) {
	aead, err := t.sealer()
	if err != nil {
		return nil, err
	}
	bundle, err := aead.Open(nil, nil, sealed, []byte(t.ID))
	if err != nil {
		return nil, errors.New("the bundle of the token cannot be decrypted: it is not what was sealed for this token")
	}
	return bundle, nil
}
