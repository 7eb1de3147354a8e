package audit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// rotateBytes keeps a file small enough to open in an editor; some 100,000 records.
	rotateBytes = 64 << 20
	// maxPending bounds what waits for a disk that does not answer.
	maxPending = 8 << 20
	// maxLine bounds a line that is read; those that are written are far below.
	maxLine = 1 << 20
	// noteEvery is how long a record that no caller waits for may wait for its write.
	noteEvery = 100 * time.Millisecond
)

var (
	errRemoved  = errors.New("the file was removed or replaced: put it back, or restart the service to begin a new one")
	errNoRecord = errors.New("the last line is no record")
	errBusy     = errors.New("the disk does not keep up")
	errClosed   = errors.New("closed")
)

// chain is one log: a file that is written, and older ones beside it, named by the number of their first record.
type chain struct {
	path        string
	rotateBytes int64
	retention   retention
	log         *slog.Logger
	forward     func(name string, line []byte) // to the sinks; the line is the sink's to keep
	now         func() time.Time

	wake chan struct{}
	quit chan struct{}
	done chan struct{}

	mu      sync.Mutex // guards the six below
	pending *batch
	closed  bool
	lost    uint64 // records since the last one on disk that could not be written
	dropped uint64 // the same since the start
	failed  error  // of the last write
	written uint64

	// The writer alone uses these.
	file   *os.File
	size   int64
	broken bool // the file may have more than size bytes
	seq    uint64
	prev   string
	// reserved is the size up to which the disk keeps room for the file; 0 if that is not known.
	reserved int64
}

// retention is when an older file goes: if the older files have more than bytes together, and it is older than age.
type retention struct {
	bytes int64
	age   time.Duration
}

// batch is what goes to disk at a time.
type batch struct {
	bodies [][]byte
	size   int
	sync   bool
	probe  bool // only asks whether a change can be recorded
	done   chan struct{}
	err    error // once done is closed
}

func newBatch() *batch { return &batch{done: make(chan struct{})} }

// openChain starts the writer. A file that cannot be opened is no error here: writes fail until it can.
func openChain(path string, keep retention, forward func(string, []byte), log *slog.Logger) *chain {
	c := &chain{
		path: path, rotateBytes: rotateBytes, retention: keep, log: log, forward: forward, now: time.Now,
		wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}), pending: newBatch(),
	}
	if err := c.open(); err != nil {
		c.setFailed(err)
	}
	go c.run()
	return c
}

// close writes what waits and closes the file.
func (c *chain) close() error {
	close(c.quit)
	<-c.done
	if c.file == nil {
		return nil
	}
	return c.file.Close()
}

// add queues a record. The batch's done is closed when it is on disk, with sync, or at least in the file.
func (c *chain) add(r Record, sync bool) (*batch, error) {
	r.Seq, r.Prev = 0, ""
	body, err := json.Marshal(r.cut())
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed
	}
	if c.pending.size+len(body) > maxPending {
		c.lost, c.dropped = c.lost+1, c.dropped+1
		return nil, errBusy
	}
	b := c.pending
	switch {
	case sync:
		c.poke()
	case len(b.bodies) == 0:
		time.AfterFunc(noteEvery, c.poke)
	}
	b.bodies, b.size, b.sync = append(b.bodies, body), b.size+len(body), b.sync || sync
	return b, nil
}

// poke wakes the writer.
func (c *chain) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// write returns when r is on disk, or with an error.
func (c *chain) write(ctx context.Context, r Record) error {
	b, err := c.add(r, true)
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(c.path), err)
	}
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", filepath.Base(c.path), context.Cause(ctx))
	}
}

// check returns why a caller's change cannot be recorded now; nil if it can. What was lost before is recorded if it
// can.
func (c *chain) check(ctx context.Context) error {
	c.mu.Lock()
	b := c.pending
	b.probe = true
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return errClosed
	}
	c.poke()
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", filepath.Base(c.path), context.Cause(ctx))
	}
}

// run is the writer: it writes at once what a caller waits for, and the rest within noteEvery.
func (c *chain) run() {
	defer close(c.done)
	for {
		select {
		case <-c.wake:
			c.flush()
		case <-c.quit:
			c.mu.Lock()
			c.closed = true
			c.mu.Unlock()
			c.flush()
			return
		}
	}
}

func (c *chain) flush() {
	c.mu.Lock()
	b, lost := c.pending, c.lost
	if len(b.bodies) == 0 && !b.probe {
		c.mu.Unlock()
		return
	}
	c.pending = newBatch()
	c.mu.Unlock()
	bodies := b.bodies
	if lost > 0 {
		body, _ := json.Marshal(Record{Time: c.now().UTC(), Event: EventLost, Count: lost})
		bodies = append([][]byte{body}, bodies...)
	}
	err := c.append(bodies, b.sync || b.probe)
	if err != nil {
		err = fmt.Errorf("%s: %w", filepath.Base(c.path), err)
	}
	c.mu.Lock()
	if err != nil {
		c.lost, c.dropped = c.lost+uint64(len(b.bodies)), c.dropped+uint64(len(b.bodies))
	} else {
		c.lost -= lost
		c.written += uint64(len(bodies))
	}
	c.mu.Unlock()
	c.setFailed(err)
	b.err = err
	close(b.done)
}

// setFailed remembers how the last write went, and logs where that changes.
func (c *chain) setFailed(err error) {
	c.mu.Lock()
	before := c.failed
	c.failed = err
	c.mu.Unlock()
	switch {
	case err != nil && before == nil:
		c.log.Error("the audit log cannot be written", "file", c.path, "error", err)
	case err == nil && before != nil:
		c.log.Info("the audit log is written again", "file", c.path)
	}
}

// append writes records and, with sync, waits until they are on the disk. Nothing of them is left if it fails.
func (c *chain) append(bodies [][]byte, sync bool) error {
	if err := c.usable(); err != nil {
		return err
	}
	if c.size >= c.rotateBytes {
		// A file that cannot be rotated grows: that loses nothing.
		if err := c.rotate(); err != nil {
			c.log.Error("the audit log is not rotated, it grows", "file", c.path, "error", err)
		}
	}
	lines, seq, prev := link(bodies, c.seq, c.prev)
	if sync {
		if err := c.reserve(int64(len(lines))); err != nil {
			return err
		}
	}
	if len(lines) == 0 {
		return nil
	}
	if _, err := c.file.Write(lines); err != nil {
		c.broken = true
		return errors.Join(err, c.repair())
	}
	if sync {
		if err := c.file.Sync(); err != nil {
			c.broken = true
			return errors.Join(err, c.repair())
		}
	}
	c.size, c.seq, c.prev = c.size+int64(len(lines)), seq, prev
	c.pass(lines)
	return nil
}

const (
	// reserveBytes is what the disk has to have beside the record of a change: the records of how changes ended, which are
	// written without waiting.
	reserveBytes = 16 << 10
	// changeBytes is more than the record of a change has, so that check and the next change find the same.
	changeBytes = 8 << 10
	// reserveStep is how much more is reserved at once.
	reserveStep = 16 << 10
)

// reserve has the disk keep room for n bytes and reserveBytes more behind the end of the file. A change is refused
// while it cannot, and so before the disk takes no more at all. A file system that reserves nothing is tried by the
// write itself.
func (c *chain) reserve(n int64) error {
	need := max(n, changeBytes) + reserveBytes
	if c.size+need <= c.reserved {
		return nil
	}
	err := unix.Fallocate(int(c.file.Fd()), unix.FALLOC_FL_KEEP_SIZE, c.size, need+reserveStep)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return &fs.PathError{Op: "reserve", Path: c.path, Err: err}
	}
	c.reserved = c.size + need + reserveStep
	return nil
}

// pass hands lines that are written to the sinks.
func (c *chain) pass(lines []byte) {
	if c.forward == nil {
		return
	}
	for line := range bytes.Lines(lines) {
		c.forward(filepath.Base(c.path), line)
	}
}

// link puts number and hash before each record.
func link(bodies [][]byte, seq uint64, prev string) (lines []byte, lastSeq uint64, lastHash string) {
	var out bytes.Buffer
	for _, body := range bodies {
		seq++
		begin := out.Len()
		fmt.Fprintf(&out, `{"seq":%d,`, seq)
		if prev != "" {
			fmt.Fprintf(&out, `"prev":"%s",`, prev)
		}
		out.Write(body[1:]) // after the brace
		prev = hashOf(out.Bytes()[begin:])
		out.WriteByte('\n')
	}
	return out.Bytes(), seq, prev
}

func hashOf(line []byte) string {
	sum := sha256.Sum256(line)
	return hex.EncodeToString(sum[:])
}

// usable returns an error unless the file is open, is the one that path names, and has what was written to it.
func (c *chain) usable() error {
	if c.file == nil {
		if err := c.open(); err != nil {
			return err
		}
	}
	at, err := os.Lstat(c.path)
	if errors.Is(err, fs.ErrNotExist) {
		return errRemoved
	}
	if err != nil {
		return err
	}
	mine, err := c.file.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(at, mine) {
		return errRemoved
	}
	if c.broken {
		return c.repair()
	}
	if mine.Size() != c.size {
		return fmt.Errorf(
			"the file has %d bytes, not the %d that were written: something else changed it; restart the service to go on",
			mine.Size(), c.size)
	}
	return nil
}

// repair removes what a failed write left.
func (c *chain) repair() error {
	if err := c.file.Truncate(c.size); err != nil {
		return err
	}
	c.broken, c.reserved = false, 0
	return nil
}

// open opens the file and finds the end of the chain, in it or in the newest of the older files. The beginning of a
// line that a crash cut off is removed, and a record says so.
func (c *chain) open() error {
	if err := c.removeSecondNames(); err != nil {
		return err
	}
	file, err := os.OpenFile(c.path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	err = c.adopt(file)
	if err == nil {
		return nil
	}
	err = errors.Join(err, file.Close())
	if !errors.Is(err, errNoRecord) {
		return err
	}
	return c.setAside()
}

// removeSecondNames takes a name from the file that it got for a rotation which a crash cut off.
func (c *chain) removeSecondNames() error {
	older, err := c.older()
	if err != nil {
		return err
	}
	for _, f := range older {
		if sameFile(f, c.path) {
			if err := os.Remove(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// setAside renames a file whose end is no chain, such as one of an earlier version or one that a loss of power spoiled,
// and begins another.
func (c *chain) setAside() error {
	aside := fmt.Sprintf("%s.unchained-%d", c.path, c.now().UnixNano())
	if err := os.Rename(c.path, aside); err != nil {
		return err
	}
	c.log.Error("the audit log does not end in a record; it is set aside and another begun", "file", c.path, "aside",
		aside)
	file, err := os.OpenFile(c.path, os.O_CREATE|os.O_EXCL|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	c.file, c.size, c.reserved, c.seq, c.prev, c.broken = file, 0, 0, 0, "", false
	if older, err := c.older(); err == nil && len(older) > 0 {
		if last, err := lastLineOf(older[len(older)-1]); err == nil {
			if seq, prev, err := linkOf(last); err == nil {
				c.seq, c.prev = seq, prev
			}
		}
	}
	if err := c.appendEvents([]Record{{Event: EventBegun, Detail: "after " + filepath.Base(aside)}}); err != nil {
		c.file = nil
		return errors.Join(err, file.Close())
	}
	return syncDir(c.path)
}

func (c *chain) adopt(file *os.File) error {
	last, size, torn, err := lastLine(file)
	if err != nil {
		return err
	}
	older, err := c.older()
	if err != nil {
		return err
	}
	var events []Record
	if len(torn) > 0 {
		if err := file.Truncate(size); err != nil {
			return err
		}
		events = append(events, Record{Event: EventRepaired, Detail: string(torn)})
	}
	seq, prev := uint64(0), ""
	switch {
	case last != nil:
		if seq, prev, err = linkOf(last); err != nil {
			return err
		}
	case len(older) > 0: // a rotation leaves a file with a record, so this one was removed or emptied
		if last, err = lastLineOf(older[len(older)-1]); err == nil {
			seq, prev, err = linkOf(last)
		}
		if err != nil {
			return err
		}
		events = append(events, Record{Event: EventBegun, Detail: "after " + filepath.Base(older[len(older)-1]) +
			", the file that followed it is gone"})
	default:
		events = append(events, Record{Event: EventBegun})
	}
	c.file, c.size, c.reserved, c.seq, c.prev, c.broken = file, size, 0, seq, prev, false
	if len(events) > 0 {
		if err := c.appendEvents(events); err != nil {
			c.file = nil
			return err
		}
	}
	if err := syncDir(c.path); err != nil {
		c.file = nil // open closes it
		return err
	}
	return nil
}

// linkOf returns what the next record needs of a line: its number and its hash.
func linkOf(line []byte) (seq uint64, hash string, err error) {
	var r Record
	if err := json.Unmarshal(line, &r); err != nil || r.Seq == 0 {
		return 0, "", errNoRecord
	}
	return r.Seq, hashOf(line), nil
}

func (c *chain) appendEvents(events []Record) error {
	var bodies [][]byte
	for _, r := range events {
		r.Time = c.now().UTC()
		body, err := json.Marshal(r.cut())
		if err != nil {
			return err
		}
		bodies = append(bodies, body)
	}
	lines, seq, prev := link(bodies, c.seq, c.prev)
	if _, err := c.file.Write(lines); err != nil {
		return errors.Join(err, c.file.Truncate(c.size))
	}
	if err := c.file.Sync(); err != nil {
		return errors.Join(err, c.file.Truncate(c.size))
	}
	c.size, c.seq, c.prev = c.size+int64(len(lines)), seq, prev
	c.pass(lines)
	return nil
}

// lastLine returns the last complete line of a file without its newline, the file's size up to it, and what follows it.
func lastLine(file *os.File) (line []byte, size int64, torn []byte, err error) {
	info, err := file.Stat()
	if err != nil {
		return nil, 0, nil, err
	}
	from := max(0, info.Size()-2*maxLine)
	tail := make([]byte, info.Size()-from)
	if _, err := file.ReadAt(tail, from); err != nil {
		return nil, 0, nil, err
	}
	end := bytes.LastIndexByte(tail, '\n')
	torn = tail[end+1:]
	if end < 0 && from > 0 {
		return nil, 0, nil, errNoRecord
	}
	if end < 0 {
		return nil, 0, torn, nil
	}
	return tail[bytes.LastIndexByte(tail[:end], '\n')+1 : end], from + int64(end) + 1, torn, nil
}

func lastLineOf(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	line, _, _, err := lastLine(file)
	if err == nil && line == nil {
		err = fmt.Errorf("%s has no record", path)
	}
	return line, err
}

// older returns the files before the one that is written, oldest first.
func (c *chain) older() ([]string, error) { return olderFiles(c.path) }

func olderFiles(path string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries { // sorted by name
		number, ok := strings.CutPrefix(e.Name(), filepath.Base(path)+".")
		if ok && len(number) == numberDigits && strings.Trim(number, "0123456789") == "" {
			files = append(files, filepath.Join(filepath.Dir(path), e.Name()))
		}
	}
	return files, nil
}

// numberDigits lets names sort by number.
const numberDigits = 15

// rotate puts the file beside under the number of the record that follows it, and begins a new one. At every moment the
// path names a complete log: the new file is there before the old one has a second name, and nothing is ever replaced
// but the path itself.
func (c *chain) rotate() error {
	next, err := os.OpenFile(c.path+".next", os.O_CREATE|os.O_TRUNC|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	archived := fmt.Sprintf("%s.%0*d", c.path, numberDigits, c.seq)
	body, err := json.Marshal(Record{Time: c.now().UTC(), Event: EventRotated, Detail: filepath.Base(archived)})
	if err != nil {
		return errors.Join(err, next.Close())
	}
	line, seq, prev := link([][]byte{body}, c.seq, c.prev)
	if _, err := next.Write(line); err != nil {
		return errors.Join(err, next.Close())
	}
	if err := c.swap(next, archived); err != nil {
		return errors.Join(err, next.Close())
	}
	former := c.file
	c.file, c.size, c.reserved, c.seq, c.prev = next, int64(len(line)), 0, seq, prev
	c.pass(line)
	if err := former.Close(); err != nil {
		c.log.Warn("a rotated audit log is not closed", "error", err)
	}
	if err := c.retire(); err != nil {
		c.log.Error("older audit logs are not removed", "file", c.path, "error", err)
	}
	return nil
}

// swap gives the file its second name and puts next in its place. An error means that nothing has changed.
func (c *chain) swap(next *os.File, archived string) error {
	dir, err := os.Open(filepath.Dir(c.path)) // now, for there may be no descriptor when next is in its place
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := errors.Join(c.file.Sync(), next.Sync()); err != nil {
		return err
	}
	if err := os.Link(c.path, archived); err != nil && !(errors.Is(err, fs.ErrExist) && sameFile(c.path, archived)) {
		return err
	}
	if err := os.Rename(next.Name(), c.path); err != nil {
		return errors.Join(err, os.Remove(archived))
	}
	if err := dir.Sync(); err != nil { // after a loss of power the file may have its former name: a start copes with that
		c.log.Error("the names of rotated audit logs are not on the disk", "file", c.path, "error", err)
	}
	return nil
}

func sameFile(a, b string) bool {
	x, err := os.Lstat(a)
	if err != nil {
		return false
	}
	y, err := os.Lstat(b)
	return err == nil && os.SameFile(x, y)
}

// retire removes older files by the retention policy. A record with the hash of its last line comes before each.
func (c *chain) retire() error {
	files, err := c.older()
	if err != nil {
		return err
	}
	var total int64
	infos := make([]os.FileInfo, len(files))
	for i, f := range files {
		if infos[i], err = os.Stat(f); err != nil {
			return err
		}
		total += infos[i].Size()
	}
	for i, f := range files {
		if total <= c.retention.bytes || c.now().Sub(infos[i].ModTime()) < c.retention.age {
			return nil
		}
		last, err := lastLineOf(f)
		if err != nil {
			return err
		}
		if err := c.appendEvents([]Record{{Event: EventRetired, Detail: filepath.Base(f), Hash: hashOf(last)}}); err != nil {
			return err
		}
		if err := os.Remove(f); err != nil {
			return err
		}
		total -= infos[i].Size()
	}
	return nil
}

// syncDir makes a new name in path's directory survive a loss of power.
func syncDir(path string) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
