// Package ignition reads Ignition configurations.
package ignition

import (
	"crypto/sha256"
	"sync"

	"github.com/coreos/ignition/v2/config/v3_5"
	"github.com/coreos/ignition/v2/config/v3_5/types"
	"github.com/coreos/vcontext/report"
	"google.golang.org/protobuf/types/known/structpb"
)

// Parse returns an Ignition configuration of any version in version 3.5; if it is invalid, the report says why. The
// result is shared and must not be modified: the configurations that were parsed last are remembered, since checking
// one takes many times as long as finding it, and each decision about a node reads two.
func Parse(config *structpb.Struct) (types.Config, report.Report, error) {
	raw, err := config.MarshalJSON()
	if err != nil {
		return types.Config{}, report.Report{}, err
	}
	hash := sha256.Sum256(raw)
	if out, ok := parsed.find(hash, len(raw)); ok {
		return out, report.Report{}, nil
	}
	out, why, err := v3_5.ParseCompatibleVersion(raw)
	if err == nil {
		parsed.keep(hash, len(raw), out)
	}
	return out, why, err
}

var parsed memo

// memo holds results by the hashes of the documents that they are of.
type memo struct {
	mu       sync.Mutex
	new, old map[[sha256.Size]byte]types.Config
	size     int // of the documents of new, in bytes
}

// most is the size of the documents of half a memo.
const most = 8 << 20

func (m *memo) find(hash [sha256.Size]byte, size int) (types.Config, bool) {
	m.mu.Lock()
	out, ok := m.new[hash]
	if ok {
		m.mu.Unlock()
		return out, true
	}
	out, ok = m.old[hash]
	m.mu.Unlock()
	if ok {
		m.keep(hash, size, out) // what is used stays
	}
	return out, ok
}

// keep puts a result into a memo. What was not used for a while makes room.
func (m *memo) keep(hash [sha256.Size]byte, size int, c types.Config) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.new == nil || m.size+size > most {
		m.new, m.old, m.size = map[[sha256.Size]byte]types.Config{}, m.new, 0
	}
	if _, ok := m.new[hash]; !ok {
		m.new[hash] = c
		m.size += size
	}
}
