package audit

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// Entry is one record as it is in a log, with what it is ordered and selected by.
type Entry struct {
	Text    []byte // without the newline
	Seq     uint64
	Time    time.Time
	Last    time.Time // of the last call that is counted in it; Time if none is
	User    string
	Several bool // calls of several users are counted in it

	event, detail string
	count         uint64
}

// Lacks says which records are missing before this one in its log, as the log itself says; empty if none are.
func (e Entry) Lacks() string {
	switch {
	case e.event == EventLost:
		return fmt.Sprintf("%d records before record %d could not be written", e.count, e.Seq)
	case e.event == EventBegun && (e.Seq != 1 || e.detail != ""):
		return strings.TrimSuffix(fmt.Sprintf("the log was begun again with record %d: %s", e.Seq, e.detail), ": ")
	}
	return ""
}

// lateBy is by how much a file may begin too late: its first record has the time of its writing, by a clock that may
// have been set back since.
const lateBy = time.Minute

// Reader reads the records of a log in their order, those of its older files first. It follows the log while a program
// writes it. It holds one line in memory.
type Reader struct {
	path     string
	file     *os.File
	in       *bufio.Reader
	offset   int64  // behind the last line
	seq      uint64 // of the last line
	complete bool   // nothing more is written to file
}

// OpenReader opens a log for its records of since and later. Some records before that may be returned too.
func OpenReader(path string, since time.Time) (*Reader, error) {
	for {
		older, err := olderFiles(path)
		if err != nil {
			return nil, err
		}
		first := path
		// From the newest back, to the one that begins before since. A file that is empty begins at no time.
		for _, file := range slices.Backward(append(slices.Clone(older), path)) {
			first = file
			begins, err := firstLine(file)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			if !begins.Time.IsZero() && begins.Time.Before(since.Add(-lateBy)) {
				break
			}
		}
		r := &Reader{path: path}
		if err := r.open(first); err != nil {
			return nil, err
		}
		// A rotation in between would have another file under the path.
		if now, err := olderFiles(path); err != nil || slices.Equal(now, older) {
			return r, err
		}
		if err := r.Close(); err != nil {
			return nil, err
		}
	}
}

func firstLine(path string) (Entry, error) {
	r := &Reader{path: path}
	if err := r.open(path); err != nil {
		return Entry{}, err
	}
	defer r.Close()
	line, err := r.read()
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return line, err
}

// Close closes the file.
func (r *Reader) Close() error { return r.file.Close() }

// Next returns the next record; io.EOF if there is none yet. The text is the caller's to keep.
func (r *Reader) Next() (Entry, error) {
	for {
		line, err := r.read()
		if err == nil {
			r.seq = line.Seq
			return line, nil
		}
		if !errors.Is(err, io.EOF) {
			return Entry{}, fmt.Errorf("%s: %w", r.file.Name(), err)
		}
		if more, err := r.advance(); err != nil {
			return Entry{}, err
		} else if !more {
			return Entry{}, io.EOF
		}
	}
}

// read returns the next line of the file; io.EOF if it is not there completely.
func (r *Reader) read() (Entry, error) {
	text, err := readLine(r.in)
	if errors.Is(err, io.EOF) && len(text) > 0 { // it is being written, or is removed again: read it from its beginning
		if _, err := r.file.Seek(r.offset, io.SeekStart); err != nil {
			return Entry{}, err
		}
		r.in.Reset(r.file)
	}
	if err != nil {
		return Entry{}, err
	}
	var is struct {
		Seq  uint64    `json:"seq"`
		Time time.Time `json:"time"`
		User string    `json:"user"`

		LastTime time.Time `json:"lastTime"`

		Event  string `json:"event"`
		Detail string `json:"detail"`
		Count  uint64 `json:"count"`
	}
	if err := json.Unmarshal(text, &is); err != nil || is.Seq == 0 {
		return Entry{}, fmt.Errorf("the line after record %d is no record", r.seq)
	}
	r.offset += int64(len(text)) + 1
	e := Entry{
		Text: text, Seq: is.Seq, Time: is.Time, Last: is.Time, User: is.User, Several: is.User == "" && is.Count > 0,
		event: is.Event, detail: is.Detail, count: is.Count,
	}
	if is.LastTime.After(e.Last) {
		e.Last = is.LastTime
	}
	return e, nil
}

// advance goes on to the next file at the end of this one, and reports whether there may be more to read.
func (r *Reader) advance() (bool, error) {
	mine, err := r.file.Stat()
	if err != nil {
		return false, err
	}
	if mine.Size() < r.offset {
		return false, fmt.Errorf("%s: lines that were read were removed", r.file.Name())
	}
	if !r.complete {
		same, err := r.is(r.path)
		if err != nil {
			return false, err
		}
		r.complete = !same // what was written before the rotation is read first
		return !same, nil
	}
	if mine.Size() > r.offset {
		return false, fmt.Errorf("%s: the last line has no end", r.file.Name())
	}
	next, err := r.following()
	if err != nil {
		return false, err
	}
	if same, err := r.is(next); err != nil || same { // a rotation that a crash cut off
		r.complete = false
		return false, err
	}
	former := r.file
	if err := r.open(next); err != nil {
		return false, err
	}
	return true, former.Close()
}

// following returns the file after this one. Older files have the number of their last record in their names.
func (r *Reader) following() (string, error) {
	older, err := olderFiles(r.path)
	if err != nil {
		return "", err
	}
	for _, file := range older {
		if strings.TrimPrefix(file, r.path+".") > fmt.Sprintf("%0*d", numberDigits, r.seq) {
			return file, nil
		}
	}
	return r.path, nil
}

// is reports whether path is the file that is read.
func (r *Reader) is(path string) (bool, error) {
	at, err := os.Stat(path)
	if err != nil {
		return false, err
	}
	mine, err := r.file.Stat()
	if err != nil {
		return false, err
	}
	return os.SameFile(at, mine), nil
}

func (r *Reader) open(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	r.file, r.in, r.offset, r.complete = file, bufio.NewReaderSize(file, 64<<10), 0, path != r.path
	return nil
}
