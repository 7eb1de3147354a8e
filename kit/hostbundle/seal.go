package hostbundle

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"filippo.io/age"
)

// A bundle in a backup is encrypted as a file of age (age-encryption.org/v1), which the command age opens too.

// NewRecoveryKey returns a key that opens bundles, as age-keygen writes it, and its recipient, to which they are
// encrypted.
func NewRecoveryKey() (key, recipient string, err error) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		return "", "", err
	}
	return identity.String(), identity.Recipient().String(), nil
}

// CheckRecipient returns an error unless text is a recipient of age. The error does not have the text, which may be a
// private key by mistake.
func CheckRecipient(text string) error {
	_, err := recipient(text)
	return err
}

func recipient(text string) (age.Recipient, error) {
	if strings.Contains(strings.ToUpper(text), "AGE-SECRET-KEY-") {
		return nil, errors.New("is a private key, and by now in the logs of this call: make another one, and give its " +
			"recipient, which begins with age1")
	}
	list, err := age.ParseRecipients(strings.NewReader(text))
	if err != nil || len(list) != 1 || strings.ContainsAny(text, "\n#") {
		return nil, errors.New("is no recipient of age, which begins with age1")
	}
	return list[0], nil
}

// Seal encrypts a bundle so that each of the recipients can open it.
func Seal(bundle []byte, recipients []string) ([]byte, error) {
	var list []age.Recipient
	for _, text := range recipients {
		r, err := recipient(text)
		if err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	var out bytes.Buffer
	w, err := age.Encrypt(&out, list...)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(bundle); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// Open returns a bundle that was sealed. keys has private keys, one on each line, with comments after '#'.
func Open(sealed []byte, keys string) ([]byte, error) {
	identities, err := age.ParseIdentities(strings.NewReader(keys))
	if err != nil {
		return nil, errors.New("the recovery key is no private key of age, which begins with AGE-SECRET-KEY-")
	}
	r, err := age.Decrypt(bytes.NewReader(sealed), identities...)
	if none := new(age.NoIdentityMatchError); errors.As(err, &none) {
		return nil, errors.New("the recovery key does not open these keys: they were sealed to other recipients")
	}
	if err != nil {
		return nil, err
	}
	bundle, err := io.ReadAll(io.LimitReader(r, maxSealed+1))
	if err == nil && len(bundle) > maxSealed {
		err = fmt.Errorf("is larger than %d MiB", maxSealed>>20)
	}
	return bundle, err
}

// maxSealed is the size of the largest bundle that is opened: files may be larger compressed than before, by a little.
const maxSealed = ForBackup + ForBackup/64
