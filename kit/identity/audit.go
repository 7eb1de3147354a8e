package identity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// rotateBytes keeps a file small enough to open in an editor; some 150,000 records.
	rotateBytes = 64 << 20
	// keepFiles is how many older files stay beside the one that is written.
	keepFiles = 4
)

// Record is one line of the audit log: a call that changes something, or one that was refused.
type Record struct {
	Time      time.Time `json:"time"`
	RequestID string    `json:"requestID,omitempty"`
	User      string    `json:"user,omitempty"`
	Groups    []string  `json:"groups,omitempty"`
	Via       string    `json:"via,omitempty"`    // who spoke for the user
	Source    string    `json:"source,omitempty"` // address the call came from
	Service   string    `json:"service,omitempty"`
	Method    string    `json:"method"`
	Verb      string    `json:"verb,omitempty"`
	Group     string    `json:"group,omitempty"`
	Resource  string    `json:"resource,omitempty"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name,omitempty"`
	// ResourceVersionBefore is the one the caller had read, After the one the change got; empty where not known.
	ResourceVersionBefore string  `json:"resourceVersionBefore,omitempty"`
	ResourceVersionAfter  string  `json:"resourceVersionAfter,omitempty"`
	Decision              string  `json:"decision"` // allow or deny
	Reason                string  `json:"reason,omitempty"`
	Code                  string  `json:"code"` // gRPC code of the answer; OK for a stream that began
	LatencyMs             float64 `json:"latencyMs"`
}

// Decisions of a Record.
const (
	Allow = "allow"
	Deny  = "deny"
)

// Audit is a log of JSON lines. Its methods are safe for concurrent use.
type Audit struct {
	path        string
	rotateBytes int64

	mu      sync.Mutex // guards pending
	pending *batch

	flush  sync.Mutex // held by whoever writes; guards the fields below and every batch's outcome
	file   *os.File
	size   int64
	failed atomic.Bool
}

// batch is what goes to disk with one sync.
type batch struct {
	lines   []byte
	written bool
	err     error
}

// OpenAudit opens the log at path and appends to it. Its directory must be there. When the file has 64 MiB it becomes
// path.1, and the four before it are kept.
func OpenAudit(path string) (*Audit, error) {
	a := &Audit{path: path, rotateBytes: rotateBytes, pending: &batch{}}
	if err := a.open(); err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	return a, nil
}

// Write appends r and returns when it is on disk, which takes one sync for all records that wait at the same time. It
// does not give up when ctx ends, since the reply waits for the record.
func (a *Audit) Write(_ context.Context, r Record) error {
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	a.mu.Lock()
	b := a.pending
	b.lines = append(append(b.lines, line...), '\n')
	a.mu.Unlock()

	a.flush.Lock()
	defer a.flush.Unlock()
	if !b.written { // nobody wrote it while this call waited for its turn, so it is the pending one still
		a.mu.Lock()
		a.pending = &batch{}
		a.mu.Unlock()
		b.written, b.err = true, a.append(b.lines)
		b.lines = nil
		a.failed.Store(b.err != nil)
	}
	return b.err
}

// Failed reports whether the last write failed: then nothing should be changed until a write succeeds.
func (a *Audit) Failed() bool { return a.failed.Load() }

// Close closes the file; later writes fail.
func (a *Audit) Close() error {
	a.flush.Lock()
	defer a.flush.Unlock()
	if a.file == nil {
		return nil
	}
	err := a.file.Close()
	a.file = nil
	return err
}

func (a *Audit) append(lines []byte) error {
	if a.file == nil {
		return errors.New("audit log: closed")
	}
	if a.size > 0 && a.size+int64(len(lines)) > a.rotateBytes {
		if err := a.rotate(); err != nil {
			return fmt.Errorf("audit log: %w", err)
		}
	}
	if _, err := a.file.Write(lines); err != nil {
		// Half a line must not spoil the next one; if this fails too, the next opening repairs it.
		return fmt.Errorf("audit log: %w", errors.Join(err, a.file.Truncate(a.size)))
	}
	if err := a.file.Sync(); err != nil {
		return fmt.Errorf("audit log: %w", errors.Join(err, a.file.Truncate(a.size)))
	}
	a.size += int64(len(lines))
	return nil
}

// open opens the file and ends a last line that a crash cut off.
func (a *Audit) open() error {
	file, err := os.OpenFile(a.path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	a.file, a.size = file, info.Size()
	if a.size == 0 {
		return syncDir(a.path)
	}
	last := make([]byte, 1)
	if _, err := file.ReadAt(last, a.size-1); err != nil {
		return errors.Join(err, file.Close())
	}
	if last[0] != '\n' {
		n, err := file.WriteString("\n")
		a.size += int64(n)
		return err
	}
	return nil
}

func (a *Audit) rotate() error {
	for i := keepFiles - 1; i >= 0; i-- {
		if err := os.Rename(a.older(i), a.older(i+1)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	former := a.file
	if err := a.open(); err != nil {
		return err
	}
	return former.Close()
}

// older names the file that is i files old; 0 is the one being written.
func (a *Audit) older(i int) string {
	if i == 0 {
		return a.path
	}
	return fmt.Sprintf("%s.%d", a.path, i)
}

// syncDir makes a new name in path's directory survive a loss of power.
func syncDir(path string) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
