package logger

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// File is the name of the newest file of a log, in the directory of a start.
const File = "log"

const (
	newSuffix    = ".new"
	positionName = "position"

	// Bounds of the log of one start, as kubelet's containerLogMaxSize and containerLogMaxFiles have by default. A file
	// gets larger only to end with a whole line.
	maxSize  = 10 << 20
	maxFiles = 5
	overSize = 1 << 20
)

// nameOf returns the name of a file of a log; 0 is the newest.
func nameOf(n int) string {
	if n == 0 {
		return File
	}
	return fmt.Sprintf("%s.%d", File, n)
}

// file is the log of one start of a container.
type file struct {
	dir string

	mu      sync.Mutex
	out     *os.File
	size    int64
	before  int64 // bytes of the log before out
	within  map[string]bool
	dropped dropped
}

// dropped is output that could not be written.
type dropped struct{ bytes, lines int64 }

// Make makes an empty log in the directory of a start.
func Make(dir string) error { return os.WriteFile(filepath.Join(dir, File), nil, 0o600) }

// openFile opens the newest file of the log in a directory, as it was left.
func openFile(dir string) (*file, error) {
	f := &file{dir: dir, within: map[string]bool{}}
	path := filepath.Join(dir, File)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) { // the first time, or in the midst of a rotation
		if err := os.Rename(path+newSuffix, path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	var err error
	if f.out, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600); err != nil {
		return nil, err
	}
	info, err := f.out.Stat()
	if err != nil {
		f.out.Close()
		return nil, err
	}
	f.size = info.Size()
	p, err := readPosition(dir)
	switch older, statErr := os.Stat(filepath.Join(dir, nameOf(1))); {
	case err == nil && p.inode == inodeOf(info):
		f.before = p.before
	case statErr == nil: // killed before the position was written, which is that of the older file, or none for the first
		f.before = p.before + older.Size()
		f.writePosition()
	}
	return f, nil
}

func (f *file) close() { f.out.Close() }

// write writes records at the offset where the log ends, and reports whether that succeeded.
func (f *file) write(records []byte, offset int64) bool {
	if _, err := f.out.WriteAt(records, offset); err != nil {
		_ = f.out.Truncate(offset)
		f.size = offset
		return false
	}
	f.size = offset + int64(len(records))
	return true
}

// drop counts output that is not written.
func (f *file) drop(data []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count(data)
}

// count is drop with the lock held.
func (f *file) count(data []byte) {
	f.dropped.bytes += int64(len(data))
	f.dropped.lines += int64(bytes.Count(data, []byte("\n")))
}

// noteDropped writes down what was dropped, if there is room by now.
func (f *file) noteDropped() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.noted(f.size)
}

// noted is noteDropped with the lock held; it returns where the log ends.
func (f *file) noted(offset int64) int64 {
	if f.dropped == (dropped{}) {
		return offset
	}
	text := fmt.Sprintf("[windlass: %d bytes with the ends of %d lines were dropped: the log could not be written]\n",
		f.dropped.bytes, f.dropped.lines)
	if f.within[Stderr] {
		text = "\n" + text
	}
	if f.write(appendRecords(nil, Stderr, time.Now(), []byte(text)), offset) {
		f.dropped, f.within[Stderr] = dropped{}, false
	}
	return f.size
}

// rotate begins another file if this one is large enough and no line would be in both. If that fails it is tried again
// with the next output.
func (f *file) rotate() {
	if f.size < maxSize || f.size < maxSize+overSize && (f.within[Stdout] || f.within[Stderr]) {
		return
	}
	path := filepath.Join(f.dir, File)
	next, err := os.OpenFile(path+newSuffix, os.O_RDWR|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return
	}
	free := 1
	for ; free < maxFiles-1; free++ {
		if _, err := os.Lstat(filepath.Join(f.dir, nameOf(free))); errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	for i := free; i > 0 && err == nil; i-- { // the oldest is replaced if no name is free
		err = os.Rename(filepath.Join(f.dir, nameOf(i-1)), filepath.Join(f.dir, nameOf(i)))
	}
	if err == nil {
		err = os.Rename(path+newSuffix, path)
	}
	if err != nil {
		next.Close()
		return
	}
	f.out.Close()
	f.before += f.size
	f.out, f.size = next, 0
	f.writePosition()
}

// position says how much of a log is before a file, which is known by its inode.
type position struct {
	inode  uint64
	before int64
}

func readPosition(dir string) (position, error) {
	var p position
	data, err := os.ReadFile(filepath.Join(dir, positionName))
	if err == nil {
		_, err = fmt.Sscan(string(data), &p.inode, &p.before)
	}
	return p, err
}

// writePosition ignores errors: a reader that was too slow gets a note that something was dropped, but not how much.
func (f *file) writePosition() {
	info, err := f.out.Stat()
	if err != nil {
		return
	}
	path := filepath.Join(f.dir, positionName)
	if os.WriteFile(path+newSuffix, fmt.Appendln(nil, inodeOf(info), f.before), 0o600) == nil {
		_ = os.Rename(path+newSuffix, path)
	}
}

func inodeOf(info fs.FileInfo) uint64 {
	st, _ := info.Sys().(*syscall.Stat_t)
	return st.Ino
}
