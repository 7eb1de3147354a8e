package store

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	envelopeFormat = 1 // the only format so far; a later one may compress
	plainKey       = 0 // key id of a payload that is not encrypted
	writeIDSize    = 8
)

var errEnvelope = errors.New("malformed envelope")

// envelope is the stored form of a payload in etcd: one byte format, uvarint key id, write id, payload.
type envelope struct {
	keyID   uint64
	writeID [writeIDSize]byte // one for all records of a Commit; lets a writer recognize its own records
	payload []byte
}

func (e envelope) encode() []byte {
	b := make([]byte, 0, 1+binary.MaxVarintLen64+writeIDSize+len(e.payload))
	b = append(b, envelopeFormat)
	b = binary.AppendUvarint(b, e.keyID)
	b = append(b, e.writeID[:]...)
	return append(b, e.payload...)
}

// decodeEnvelope returns an envelope whose payload is part of b.
func decodeEnvelope(b []byte) (envelope, error) {
	if len(b) == 0 || b[0] != envelopeFormat {
		return envelope{}, fmt.Errorf("%w: unknown format", errEnvelope)
	}
	keyID, n := binary.Uvarint(b[1:])
	if n <= 0 {
		return envelope{}, fmt.Errorf("%w: key id", errEnvelope)
	}
	b = b[1+n:]
	if len(b) < writeIDSize {
		return envelope{}, fmt.Errorf("%w: %d bytes too short", errEnvelope, writeIDSize-len(b))
	}
	e := envelope{keyID: keyID, payload: b[writeIDSize:]}
	copy(e.writeID[:], b)
	return e, nil
}
