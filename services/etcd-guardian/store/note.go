package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"sync"

	"github.com/windlass-dev/windlass/kit/durable"
)

// Note is what must be known before etcd answers: which cluster this is and where its members are. It is the proof that
// there is a cluster, so that never an empty one is started in its place.
type Note struct {
	ClusterID        uint64       `json:"clusterID,string"` // 0: none was ever seen
	Members          []NoteMember `json:"members"`
	BootstrapRetired bool         `json:"bootstrapRetired"` // the bootstrap member has left for good
}

// NoteMember is a member as the cluster listed it last.
type NoteMember struct {
	ID         uint64   `json:"id,string"`
	Name       string   `json:"name"`
	PeerURLs   []string `json:"peerURLs"`
	ClientURLs []string `json:"clientURLs"`
	Learner    bool     `json:"learner,omitempty"`
}

// NoteFile keeps a Note on disk. Its methods may be called concurrently.
type NoteFile struct {
	path string
	mu   sync.Mutex
	note Note
}

// OpenNote reads the note; a missing file is an empty note, a broken one an error.
func OpenNote(path string) (*NoteFile, error) {
	f := &NoteFile{path: path}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return nil, fmt.Errorf("note of the cluster: %w", err)
	}
	if err := json.Unmarshal(b, &f.note); err != nil {
		return nil, fmt.Errorf("note of the cluster %s: %w", path, err)
	}
	return f, nil
}

// Get returns the note. The caller must not modify its members.
func (f *NoteFile) Get() Note {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.note
}

// Change has change modify the note (it must not modify the members it finds there) and writes it if it differs. When
// Change returns nil, the note is on disk.
func (f *NoteFile) Change(change func(n *Note)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := f.note
	change(&next)
	if reflect.DeepEqual(next, f.note) {
		return nil
	}
	b, err := json.MarshalIndent(next, "", "  ")
	if err != nil {
		return err
	}
	if err := durable.WriteFile(f.path, append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("note of the cluster: %w", err)
	}
	f.note = next
	return nil
}
