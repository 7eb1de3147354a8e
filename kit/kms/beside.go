package kms

import "github.com/windlass-dev/windlass/kit/store"

// Beside is a plugin and a key ring: one of them seals, and each opens what it has sealed. It moves records from the
// one to the other.
type Beside struct {
	store.Sealer // that seals
	Plugin       *Plugin
	Ring         *store.KeyRing // nil: there is none
}

// Open opens what either has sealed.
func (b Beside) Open(key uint64, sealed, additional []byte) ([]byte, error) {
	if b.Ring == nil || key&fromPlugin != 0 {
		return b.Plugin.Open(key, sealed, additional)
	}
	return b.Ring.Open(key, sealed, additional)
}
