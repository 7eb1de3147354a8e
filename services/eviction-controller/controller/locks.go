package controller

import "sync"

// nodeLocks holds one lock per node name. The zero nodeLocks is ready to use; a lock exists only while it is held or
// waited for.
type nodeLocks struct {
	mu   sync.Mutex
	held map[string]*nodeLock
}

type nodeLock struct {
	sync.Mutex
	users int
}

// lock waits for the lock of a node and returns the function that unlocks it.
func (l *nodeLocks) lock(node string) (unlock func()) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[string]*nodeLock{}
	}
	n := l.held[node]
	if n == nil {
		n = &nodeLock{}
		l.held[node] = n
	}
	n.users++
	l.mu.Unlock()
	n.Lock()
	return func() {
		n.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if n.users--; n.users == 0 {
			delete(l.held, node)
		}
	}
}
