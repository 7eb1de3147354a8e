package release

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

func jsonOf(t testing.TB, v any) []byte {
	t.Helper()
	raw, err := json.Marshal(v)
	check(t, err)
	return raw
}

// place puts a message into a store as the first signature of an image.
func place(t testing.TB, dir string, message []byte) {
	t.Helper()
	sub, err := storeFolder(sha)
	check(t, err)
	check(t, os.MkdirAll(filepath.Join(dir, sub), 0o755))
	check(t, os.WriteFile(filepath.Join(dir, sub, signatureName(1)), message, 0o600))
}

// signed is a message that a key signs, with settings of its own.
func signed(t testing.TB, k Key, text []byte, change func(*packet.Config)) []byte {
	t.Helper()
	config := &packet.Config{Time: func() time.Time { return created() }}
	if change != nil {
		change(config)
	}
	var b bytes.Buffer
	w, err := openpgp.Sign(&b, k.entity, nil, config)
	check(t, err)
	_, err = w.Write(text)
	check(t, err)
	check(t, w.Close())
	return b.Bytes()
}

// unsigned returns a message without a signature.
func unsigned(t testing.TB, text []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := packet.SerializeLiteral(unclosed{&b}, true, "", 0)
	check(t, err)
	_, err = w.Write(text)
	check(t, err)
	check(t, w.Close())
	return b.Bytes()
}

type unclosed struct{ io.Writer }

func (unclosed) Close() error { return nil }
