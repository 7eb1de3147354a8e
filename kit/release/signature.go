package release

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

// Ring is public keys, of which one must have signed.
type Ring struct {
	Name string
	keys openpgp.EntityList
}

// ReadRing reads a ring of public keys: binary, or one or more armored blocks, between which other text may be. Every
// block must hold a key, and all keys of all blocks count. A key may have several identities; it does not matter which.
// A key that is revoked in any of its copies in the ring does not verify. A key that has expired does, as upstream: to
// stop trusting a key, remove it or revoke it.
func ReadRing(name string, raw []byte) (Ring, error) {
	keys, err := readKeys(raw)
	if err != nil {
		return Ring{}, fmt.Errorf("key ring %s: %w", name, err)
	}
	return Ring{Name: name, keys: keys}, nil
}

func readKeys(raw []byte) (openpgp.EntityList, error) {
	const binary = 0x80 // bit of the first byte of every packet; armor is text
	if len(raw) > 0 && raw[0]&binary != 0 {
		keys, err := openpgp.ReadKeyRing(bytes.NewReader(raw))
		if err == nil && len(keys) == 0 {
			err = errNoKeys
		}
		return keys, err
	}
	// The library reads the first block alone, and takes a block that breaks off between two packets as complete.
	const begin, end, dashes = "-----BEGIN PGP ", "-----END PGP ", "-----"
	_, blocks, _ := bytes.Cut(raw, []byte(begin))
	if len(blocks) == 0 {
		return nil, errNoKeys
	}
	var all openpgp.EntityList
	for i, block := range bytes.Split(blocks, []byte(begin)) {
		kind, _, _ := bytes.Cut(block, []byte(dashes))
		keys, err := openpgp.ReadArmoredKeyRing(io.MultiReader(strings.NewReader(begin), bytes.NewReader(block)))
		switch {
		case err == nil && len(keys) == 0:
			err = errNoKeys
		case err == nil && !bytes.Contains(block, []byte(end+string(kind)+dashes)):
			err = errors.New("it breaks off: its last line is missing")
		}
		if err != nil {
			return nil, fmt.Errorf("block %d: %w", i+1, err)
		}
		all = append(all, keys...)
	}
	return all, nil
}

var errNoKeys = errors.New("it holds no keys")

// Key is a private key that signs releases.
type Key struct{ entity *openpgp.Entity }

// GenerateKey makes a key pair; both halves are armored.
func GenerateKey(name string, now time.Time) (private, public []byte, err error) {
	config := &packet.Config{Algorithm: packet.PubKeyAlgoEdDSA, Time: func() time.Time { return now }}
	entity, err := openpgp.NewEntity(name, "", "", config)
	if err != nil {
		return nil, nil, err
	}
	private, err = armored(openpgp.PrivateKeyType, func(w io.Writer) error { return entity.SerializePrivate(w, config) })
	if err != nil {
		return nil, nil, err
	}
	public, err = armored(openpgp.PublicKeyType, entity.Serialize)
	return private, public, err
}

func armored(kind string, write func(io.Writer) error) ([]byte, error) {
	var b bytes.Buffer
	w, err := armor.Encode(&b, kind, nil)
	if err != nil {
		return nil, err
	}
	if err := write(w); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// ReadKey reads a private key, armored or binary, that no passphrase protects. Public keys beside it are ignored.
func ReadKey(raw []byte) (Key, error) {
	keys, err := readKeys(raw)
	if err != nil {
		return Key{}, fmt.Errorf("signing key: %w", err)
	}
	keys = slices.DeleteFunc(keys, func(k *openpgp.Entity) bool { return k.PrivateKey == nil })
	switch {
	case len(keys) == 0:
		return Key{}, errors.New("signing key: the file holds a public key alone")
	case len(keys) > 1:
		return Key{}, fmt.Errorf("signing key: the file holds %d private keys, it must hold one", len(keys))
	case keys[0].PrivateKey.Encrypted:
		return Key{}, errors.New("signing key: a passphrase protects it, which is not supported")
	default:
		return Key{keys[0]}, nil
	}
}

// Sign adds a signature for an image to the store at a directory, which is made if it is not there, and returns the
// path of its file. ref is the name of the image, with or without its digest.
func (k Key) Sign(store, digest, ref string, now time.Time) (string, error) {
	folder, err := storeFolder(digest)
	if err != nil {
		return "", err
	}
	message, err := k.message(statementOf(digest, ref, now), now)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Join(store, folder), 0o755); err != nil {
		return "", err
	}
	root, err := os.OpenRoot(filepath.Join(store, folder))
	if err != nil {
		return "", err
	}
	defer root.Close()
	file, err := addSignature(root, message)
	if err != nil {
		return "", fmt.Errorf("signature store %s: %w", store, err)
	}
	return filepath.Join(store, folder, file), nil
}

// message is a signed OpenPGP message with its text inside.
func (k Key) message(text []byte, now time.Time) ([]byte, error) {
	var b bytes.Buffer
	w, err := openpgp.Sign(&b, k.entity, nil, &packet.Config{Time: func() time.Time { return now }})
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// addSignature writes a signature under the first name that is free. The write is atomic: readers never see a part of
// it.
func addSignature(root *os.Root, message []byte) (string, error) {
	const draft = ".new"
	if err := root.WriteFile(draft, message, 0o644); err != nil {
		return "", err
	}
	defer root.Remove(draft)
	for i := 1; i <= maxSignatures; i++ {
		file := signatureName(i)
		err := root.Link(draft, file)
		if err == nil || !errors.Is(err, os.ErrExist) {
			return file, err
		}
	}
	return "", fmt.Errorf("there are %d signatures already", maxSignatures)
}

// maxSignatures is how many signatures of one image are checked.
const maxSignatures = 9

func signatureName(i int) string { return fmt.Sprintf("signature-%d", i) }

// storeFolder returns where a store has the signatures of an image: <algorithm>=<hex>.
func storeFolder(digest string) (string, error) {
	if !digestName.MatchString(digest) {
		return "", fmt.Errorf("%q is no digest: release images that are not accessed via digest cannot be verified", digest)
	}
	algorithm, hex, _ := strings.Cut(digest, ":")
	return path.Clean(algorithm + "=" + hex), nil
}
