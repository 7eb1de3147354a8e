package store

import "go.etcd.io/etcd/api/v3/etcdserverpb"

const WriteIDSize = writeIDSize

// EncodeEnvelope gives tests the bytes of an envelope.
func EncodeEnvelope(keyID uint64, id [WriteIDSize]byte, payload []byte) []byte {
	return envelope{keyID: keyID, writeID: id, payload: payload}.encode()
}

// DecodeEnvelope gives tests the parts of an envelope.
func DecodeEnvelope(b []byte) (keyID uint64, id [WriteIDSize]byte, payload []byte, err error) {
	e, err := decodeEnvelope(b)
	return e.keyID, e.writeID, e.payload, err
}

// ClientURLs lets tests choose the members.
func ClientURLs(members []*etcdserverpb.Member) []string { return clientURLs(members) }
