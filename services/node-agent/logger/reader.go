package logger

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// errNoTimes means that times are wanted of a log that was written without.
var errNoTimes = errors.New("the lines of this log have no times")

const (
	readChunk = 64 << 10
	// longestLine is how much of a line is kept until its end is read.
	longestLine = 64 << 10

	openTries = 100 // a rotation takes less than a millisecond
	openPause = 5 * time.Millisecond
)

// Options say what of a log is wanted.
type Options struct {
	Tail   int       // lines from the end; negative: all
	Since  time.Time // of the oldest line; zero: all
	Times  bool      // each line begins with its time
	Follow bool      // also what is written after Open: else the log ends where it does then
}

// Reader reads the log of one start of a container, while it is written. It is for one goroutine.
type Reader struct {
	dir     string
	options Options
	since   string
	files   []part // oldest first; the first is being read
	end     int64  // of the last of files, without Follow
	at      int64
	rest    []byte // of the first file before at: the beginning of a line
	skip    int    // lines
	lines   map[string]*line
	within  string // stream of a line of which a part was returned
}

// part is an open file of a log.
type part struct {
	*os.File
	inode uint64
	begin int64 // position of its first byte in the whole log; negative: not known
}

// line is a line of which parts were read.
type line struct {
	time string
	text []byte
	said bool // a part was returned
}

// Open opens the log in the directory of a start. fs.ErrNotExist means that nothing was logged yet.
func Open(dir string, o Options) (*Reader, error) {
	r := &Reader{dir: dir, options: o, lines: map[string]*line{Stdout: {}, Stderr: {}, "": {}}}
	if !o.Since.IsZero() {
		r.since = o.Since.UTC().Format(timeFormat)
	}
	var err error
	if r.files, err = openParts(dir); err != nil {
		return nil, err
	}
	info, err := r.files[len(r.files)-1].Stat()
	if err == nil {
		r.end = info.Size()
	}
	if err == nil && o.Tail >= 0 {
		err = r.seekTail()
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Close closes the files.
func (r *Reader) Close() { closeParts(r.files) }

func closeParts(list []part) {
	for _, p := range list {
		p.Close()
	}
}

// openParts opens the files of a log, oldest first. A rotation may happen at the same time: it moves files to names
// that are looked up later.
func openParts(dir string) ([]part, error) {
	for tries := 1; ; tries++ {
		list, known, err := tryParts(dir)
		if err != nil || known || tries == openTries {
			return list, err
		}
		if len(list) > 0 && tries == openTries/2 { // the position could not be written
			for i := range list {
				list[i].begin = -1
			}
			return list, nil
		}
		closeParts(list)
		time.Sleep(openPause)
	}
}

// tryParts also reports whether the files and what is known of their positions agree.
func tryParts(dir string) (list []part, known bool, err error) {
	defer func() {
		if err != nil {
			closeParts(list)
		}
	}()
	missing := false // the newest: in the midst of a rotation
	for n := range maxFiles {
		f, err := os.Open(filepath.Join(dir, nameOf(n)))
		if errors.Is(err, fs.ErrNotExist) {
			missing = missing || n == 0
			continue
		}
		if err != nil {
			return list, false, err
		}
		info, err := f.Stat()
		if err != nil {
			f.Close()
			return list, false, err
		}
		if slices.ContainsFunc(list, func(p part) bool { return p.inode == inodeOf(info) }) {
			f.Close()
			continue
		}
		p := part{f, inodeOf(info), 0}
		if len(list) > 0 {
			p.begin = list[len(list)-1].begin - info.Size()
		} else if position, err := readPosition(dir); err == nil {
			known, p.begin = position.inode == p.inode, position.before
		} else {
			known = errors.Is(err, fs.ErrNotExist)
		}
		list = append(list, p)
	}
	switch {
	case len(list) == 0:
		return nil, true, fmt.Errorf("log: %w", fs.ErrNotExist)
	case ofRuntime(dir):
		known = true
		for i := range list {
			list[i].begin = -1
		}
	case missing || len(list) > 1 && list[len(list)-1].begin < 0:
		known = false
	}
	slices.Reverse(list)
	return list, known, nil
}

// ofRuntime reports whether a container runtime writes the log in a directory: it notes no positions, and the newest
// file may be missing for as long as the runtime does not answer.
func ofRuntime(dir string) bool {
	_, pipe := os.Lstat(filepath.Join(dir, Stdout))
	_, position := os.Lstat(filepath.Join(dir, positionName))
	return errors.Is(pipe, fs.ErrNotExist) && errors.Is(position, fs.ErrNotExist)
}

// seekTail moves to the last lines.
func (r *Reader) seekTail() error {
	sum, first := 0, len(r.files)-1
	for ; first >= 0; first-- {
		n, err := countLines(r.files[first].File)
		if err != nil {
			return err
		}
		if sum += n; sum >= r.options.Tail {
			break
		}
	}
	first = max(first, 0)
	closeParts(r.files[:first])
	r.files = r.files[first:]
	r.skip = max(0, sum-r.options.Tail)
	return nil
}

// countLines returns how many lines end in a file; one that has not ended yet counts as well.
func countLines(f *os.File) (n int, err error) {
	r := &Reader{files: []part{{File: f}}, options: Options{Follow: true}}
	open := map[string]bool{}
	for {
		raw, ok, err := r.record()
		if err != nil || !ok {
			if len(r.rest) > 0 {
				n++
			}
			for _, is := range open {
				if is {
					n++
				}
			}
			return n, err
		}
		rec := parse(raw)
		if open[rec.stream] = !rec.whole; rec.whole {
			n++
		}
	}
}

// record returns the next line of the first file, without its newline; false if there is none yet. It is valid until
// the next call.
func (r *Reader) record() ([]byte, bool, error) {
	for {
		if i := bytes.IndexByte(r.rest, '\n'); i >= 0 {
			line := r.rest[:i]
			r.rest = r.rest[i+1:]
			return line, true, nil
		}
		if len(r.rest) > longestLine { // no record is that long
			line := r.rest
			r.rest = nil
			return line, true, nil
		}
		buf := make([]byte, len(r.rest)+readChunk)
		kept := copy(buf, r.rest)
		if len(r.files) == 1 && !r.options.Follow {
			buf = buf[:int64(kept)+min(readChunk, r.end-r.at)]
		}
		n, err := r.files[0].ReadAt(buf[kept:], r.at)
		r.at += int64(n)
		r.rest = buf[:kept+n]
		if n == 0 {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return nil, false, err
		}
	}
}

// Next returns the next lines, at least one; none if nothing more is in the log yet.
func (r *Reader) Next() ([]byte, error) {
	var out []byte
	for len(out) < readChunk/2 {
		raw, ok, err := r.record()
		if err != nil {
			return out, err
		}
		if ok {
			if out, err = r.add(out, parse(raw)); err != nil {
				return out, err
			}
			continue
		}
		more, note, err := r.advance()
		if out = append(out, note...); err != nil || !more {
			return out, err
		}
	}
	return out, nil
}

// Rest returns what of unfinished lines was not returned, for nothing comes after it or that takes time. A record that
// is not complete is not a part of the log yet.
func (r *Reader) Rest() []byte {
	var out []byte
	for _, stream := range []string{Stdout, Stderr} {
		if l := r.lines[stream]; len(l.text) > 0 {
			out = r.part(out, stream, l)
		}
	}
	return out
}

// add appends a record to the lines that it completes.
func (r *Reader) add(out []byte, rec record) ([]byte, error) {
	if rec.time == "" {
		if r.options.Times || r.since != "" {
			return out, errNoTimes
		}
		rec.text = bytes.TrimLeft(rec.text, "\x00") // where the beginning was cut off
	}
	l := r.lines[rec.stream]
	if l.time == "" {
		l.time = rec.time
	}
	l.text = append(l.text, rec.text...)
	switch {
	case rec.whole:
		out = r.part(out, rec.stream, l)
		if r.within == rec.stream && l.said {
			out, r.within = append(out, '\n'), ""
		}
		if r.skip > 0 {
			r.skip--
		}
		*l = line{text: l.text[:0]}
	case len(l.text) > longestLine:
		out = r.part(out, rec.stream, l)
	}
	return out, nil
}

// part returns what is known of a line.
func (r *Reader) part(out []byte, stream string, l *line) []byte {
	if r.skip > 0 || strings.Compare(l.time, r.since) < 0 {
		l.text = l.text[:0]
		return out
	}
	if r.within != "" && r.within != stream { // the rest of that line comes as a line of its own
		out = append(out, '\n')
		r.lines[r.within].said = false
	}
	if !l.said && r.options.Times {
		out = append(append(out, l.time...), ' ')
	}
	out = append(out, l.text...)
	l.text, l.said, r.within = l.text[:0], true, stream
	return out
}

// advance moves to the next file, and reports whether there is one. note says what was removed before it was read.
func (r *Reader) advance() (more bool, note []byte, err error) {
	if len(r.files) == 1 {
		if !r.options.Follow {
			return false, nil, nil
		}
		mine := r.files[0]
		info, err := os.Stat(filepath.Join(r.dir, File))
		if errors.Is(err, fs.ErrNotExist) || err == nil && inodeOf(info) == mine.inode {
			return false, nil, nil // the newest, or in the midst of a rotation
		}
		if err != nil {
			return false, nil, err
		}
		// It was rotated, and nothing is written to it any more. What was before that comes first.
		if end, err := mine.Stat(); err != nil || end.Size() > r.at {
			return err == nil, nil, err
		}
		list, err := openParts(r.dir)
		if err != nil {
			return false, nil, err
		}
		i := slices.IndexFunc(list, func(p part) bool { return p.inode == mine.inode })
		if i < 0 {
			note = dropNote(mine.begin, r.at, list[0].begin)
		}
		closeParts(list[:i+1])
		if r.files = append(r.files, list[i+1:]...); len(r.files) == 1 {
			return false, nil, nil
		}
	}
	r.files[0].Close()
	r.files, r.at, r.rest = r.files[1:], 0, nil
	if note != nil { // what was begun has no end
		note = append(r.Rest(), note...)
		r.within = ""
		for stream := range r.lines {
			r.lines[stream] = &line{}
		}
	}
	return true, note, nil
}

// dropNote says how much of the log a reader missed who was at a position of the file that begins at begin.
func dropNote(begin, at, next int64) []byte {
	if n := next - begin - at; begin >= 0 && n > 0 {
		return fmt.Appendf(nil, "\n[windlass: %d bytes were dropped: the reader was too slow]\n", n)
	}
	return []byte("\n[windlass: lines were dropped: the reader was too slow]\n")
}
