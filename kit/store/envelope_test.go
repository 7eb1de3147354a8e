package store_test

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/windlass-dev/windlass/kit/store"
)

func TestEnvelopeComesBackAsItWas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keyID := rapid.Uint64().Draw(t, "key id")
		id := [store.WriteIDSize]byte(rapid.SliceOfN(rapid.Byte(), store.WriteIDSize, store.WriteIDSize).Draw(t, "write id"))
		payload := rapid.SliceOf(rapid.Byte()).Draw(t, "payload")
		gotKey, gotID, got, err := store.DecodeEnvelope(store.EncodeEnvelope(keyID, id, payload))
		if err != nil || gotKey != keyID || gotID != id || !bytes.Equal(got, payload) {
			t.Errorf("decode = %d, %x, %x, %v, want %d, %x, %x", gotKey, gotID, got, err, keyID, id, payload)
		}
	})
}

func TestEnvelopeCutShortIsRefused(t *testing.T) {
	whole := store.EncodeEnvelope(1<<40, [store.WriteIDSize]byte{1}, nil)
	for n := range whole {
		if _, _, _, err := store.DecodeEnvelope(whole[:n]); err == nil {
			t.Errorf("the first %d of %d bytes were taken for an envelope", n, len(whole))
		}
	}
}

func TestForeignBytesAreNoEnvelopeOrMakeOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
		_, _, payload, err := store.DecodeEnvelope(b)
		if err == nil && !bytes.HasSuffix(b, payload) {
			t.Errorf("payload %x is not in %x", payload, b)
		}
	})
}
