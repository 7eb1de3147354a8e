package store

import (
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
)

const (
	WriteIDSize = writeIDSize
	WritersKept = writersKept
)

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

// FirstLimit returns how long the first attempt of a short request may take now.
func (s *Store) FirstLimit() time.Duration {
	return max(shortPace.quick, s.patience.latency[shortRequests].limit())
}

// SpendBudget leaves nothing of the retry budget.
func (s *Store) SpendBudget() {
	for s.patience.budget.spend() {
	}
}

// ShareWait sets how long a commit waits for a transaction that it shares.
func (s *Store) ShareWait(d time.Duration) { s.shares.wait = d }

// Waiting returns how many commits wait for a transaction that they share.
func (s *Store) Waiting() int {
	s.shares.mu.Lock()
	defer s.shares.mu.Unlock()
	return len(s.shares.waiting)
}

// SharedAtOnce is how many shared transactions are under way before further commits wait.
const SharedAtOnce = sharedAtOnce
