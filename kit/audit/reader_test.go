package audit

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// written appends lines of a chain to a file.
func written(t *testing.T, path string, first uint64, times ...time.Time) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i, at := range times {
		line, err := json.Marshal(Record{Seq: first + uint64(i), Time: at, User: "ann"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(append(line, '\n')); err != nil {
			t.Fatal(err)
		}
	}
}

func rest(t *testing.T, r *Reader) (seqs []uint64) {
	t.Helper()
	for {
		line, err := r.Next()
		if errors.Is(err, io.EOF) {
			return seqs
		}
		if err != nil {
			t.Fatal(err)
		}
		seqs = append(seqs, line.Seq)
	}
}

func equal(t *testing.T, got []uint64, want ...uint64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("records %v, want %v", got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("records %v, want %v", got, want)
		}
	}
}

func TestAReaderFollowsALogOverItsRotations(t *testing.T) {
	path := filepath.Join(t.TempDir(), ChangesFile)
	now := time.Now()
	written(t, path, 1, now, now)
	r, err := OpenReader(path, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { r.Close() }()
	equal(t, rest(t, r), 1, 2)
	written(t, path, 3, now)
	rotate := func(last string) {
		t.Helper()
		if err := errors.Join(os.Link(path, path+"."+last), os.Remove(path)); err != nil {
			t.Fatal(err)
		}
	}
	rotate("000000000000003")
	written(t, path, 4, now)
	equal(t, rest(t, r), 3, 4)
	for i, last := range []string{"000000000000004", "000000000000005", "000000000000006"} { // between two reads
		rotate(last)
		written(t, path, uint64(5+i), now)
	}
	equal(t, rest(t, r), 5, 6, 7)
}

func TestAReaderWaitsForTheEndOfALine(t *testing.T) {
	path := filepath.Join(t.TempDir(), ChangesFile)
	if err := os.WriteFile(path, []byte(`{"seq":1,"time":"2026-11-30T12:00:00Z"`), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := OpenReader(path, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	equal(t, rest(t, r))
	// A crash cut the line off, and the next start removes it.
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	written(t, path, 1, time.Now())
	equal(t, rest(t, r), 1)
	if err := os.Truncate(path, 3); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Next(); err == nil || !strings.Contains(err.Error(), "removed") {
		t.Errorf("a log that was shortened: %v", err)
	}
}

func TestAReaderSkipsOlderFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), ChangesFile)
	now := time.Now()
	written(t, path+".000000000000002", 1, now.Add(-5*time.Hour), now.Add(-4*time.Hour))
	written(t, path+".000000000000004", 3, now.Add(-3*time.Hour), now.Add(-2*time.Hour))
	written(t, path, 5, now.Add(-time.Hour))
	for _, test := range []struct {
		since time.Duration
		want  []uint64
	}{
		{since: 10 * time.Hour, want: []uint64{1, 2, 3, 4, 5}},
		{since: 150 * time.Minute, want: []uint64{3, 4, 5}},
		{since: time.Minute, want: []uint64{5}},
	} {
		r, err := OpenReader(path, now.Add(-test.since))
		if err != nil {
			t.Fatal(err)
		}
		equal(t, rest(t, r), test.want...)
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A file that was emptied begins at no time, which is no reason to skip those before it.
func TestAReaderDoesNotSkipFilesForAnEmptyOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), ChangesFile)
	now := time.Now()
	written(t, path+".000000000000002", 1, now.Add(-5*time.Hour), now.Add(-4*time.Hour))
	written(t, path, 3)
	r, err := OpenReader(path, now.Add(-10*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	equal(t, rest(t, r), 1, 2)
}

func TestALineThatIsNoRecordIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), ChangesFile)
	written(t, path, 1, time.Now())
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("garbage\n"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	r, err := OpenReader(path, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Next(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("garbage: %v", err)
	}
}
