package store

import (
	"cmp"
	"slices"
	"strings"
	"sync"
)

// Unreadable is a record that stays in etcd as it is, since this program cannot decode it.
type Unreadable struct {
	Key             string // relative to the prefix
	Revision        int64
	APIVersion      string // of its object, where the record is one
	Kind            string
	Namespace, Name string
	Err             string
}

// unreadable is the records that readers of a Store could not make sense of.
type unreadable struct {
	mu      sync.Mutex
	records map[string]Unreadable
}

// NoteUnreadable keeps a record among those that Unreadable returns. It is logged when it comes, or changes.
func (s *Store) NoteUnreadable(u Unreadable) {
	s.unreadable.mu.Lock()
	defer s.unreadable.mu.Unlock()
	if s.unreadable.records == nil {
		s.unreadable.records = map[string]Unreadable{}
	}
	if s.unreadable.records[u.Key].Revision == u.Revision {
		return
	}
	s.unreadable.records[u.Key] = u
	s.log.Error("a record cannot be read; it is left as it is and skipped", "record", u.Key, "revision", u.Revision,
		"error", u.Err)
}

// NoteReadable takes a record back that was noted before a revision: it was replaced or deleted.
func (s *Store) NoteReadable(key string, revision int64) {
	s.unreadable.mu.Lock()
	defer s.unreadable.mu.Unlock()
	if u, ok := s.unreadable.records[key]; ok && u.Revision < revision {
		delete(s.unreadable.records, key)
	}
}

// NoteListed takes back the records with a prefix that were noted and are not among the unreadable ones of a whole list
// at a revision: they were deleted or replaced unseen.
func (s *Store) NoteListed(keyPrefix string, revision int64, unreadable map[string]bool) {
	s.unreadable.mu.Lock()
	defer s.unreadable.mu.Unlock()
	for key, u := range s.unreadable.records {
		if strings.HasPrefix(key, keyPrefix) && u.Revision <= revision && !unreadable[key] {
			delete(s.unreadable.records, key)
		}
	}
}

// Unreadable returns the records that could not be read and have not changed since, in the order of their keys.
func (s *Store) Unreadable() []Unreadable {
	s.unreadable.mu.Lock()
	defer s.unreadable.mu.Unlock()
	var out []Unreadable
	for _, u := range s.unreadable.records {
		out = append(out, u)
	}
	slices.SortFunc(out, func(a, b Unreadable) int { return cmp.Compare(a.Key, b.Key) })
	return out
}
