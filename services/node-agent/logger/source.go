package logger

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Names of the pipes in the directory of a start.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

const (
	spoolSuffix = ".spool"
	batch       = 64 << 10 // bytes that are taken from a pipe at a time
)

// The beginning of a spool, before the data: all zero until it is known where these go.
const (
	claimed    = 0 // 1 if the rest is set
	offsetAt   = 8 // of the log
	timeAt     = 16
	headerSize = 24
)

// container is a start of a container whose output is logged.
type container struct {
	file    *file
	sources []*source
	readers sync.WaitGroup
}

// buffer is what the writing of one log takes.
type buffer struct {
	data    [batch]byte
	records []byte
}

// source is one stream of a container.
type source struct {
	name    string
	file    *file
	pipe    *os.File
	conn    syscall.RawConn
	spool   *os.File
	buffers chan *buffer
}

// begin continues the log in a directory.
func (l *logger) begin(dir string) (*container, error) {
	f, err := openFile(dir)
	if err != nil {
		return nil, err
	}
	c := &container{file: f}
	for _, name := range []string{Stdout, Stderr} {
		s := &source{name: name, file: f, buffers: l.buffers}
		c.sources = append(c.sources, s)
		if err := s.open(dir); err != nil {
			c.close()
			return nil, err
		}
	}
	// At most one spool has a claim, and a part of it may be at the end of the log: that one comes first.
	for _, claim := range []bool{true, false} {
		for _, s := range c.sources {
			if s.hasClaim() == claim {
				s.commit()
			}
		}
	}
	for _, s := range c.sources {
		c.readers.Go(s.run)
	}
	return c, nil
}

// end logs what is in the pipes and closes them.
func (c *container) end() {
	for _, s := range c.sources {
		_ = s.pipe.SetReadDeadline(time.Now())
	}
	c.readers.Wait()
	c.file.noteDropped()
	for _, s := range c.sources {
		if s.pending() == 0 {
			_ = os.Remove(s.spool.Name())
		}
	}
	c.close()
}

func (c *container) close() {
	for _, s := range c.sources {
		if s.pipe != nil {
			s.pipe.Close()
		}
		if s.spool != nil {
			s.spool.Close()
		}
	}
	c.file.close()
}

// open opens the pipe for reading and writing, so that it has no end and keeps what is in it.
func (s *source) open(dir string) error {
	path := filepath.Join(dir, s.name)
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	s.pipe = os.NewFile(uintptr(fd), path)
	if s.conn, err = s.pipe.SyscallConn(); err != nil {
		return err
	}
	s.spool, err = os.OpenFile(path+spoolSuffix, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	return err
}

// run logs what the container writes until the deadline of the pipe, and then what is left in it.
func (s *source) run() {
	for {
		var moved int
		var failed error
		err := s.conn.Read(func(fd uintptr) bool {
			moved, failed = s.take(int(fd))
			return !errors.Is(failed, unix.EAGAIN)
		})
		if err != nil {
			break
		}
		s.took(moved, failed)
	}
	_ = s.conn.Control(func(fd uintptr) {
		// Not more than a pipe can hold: what a process writes that was left behind has no end.
		left, err := unix.FcntlInt(fd, unix.F_GETPIPE_SZ, 0)
		for err == nil && left > 0 {
			var moved int
			if moved, err = s.take(int(fd)); errors.Is(err, unix.EAGAIN) {
				return
			}
			s.took(moved, err)
			err = nil
			left -= max(moved, 1)
		}
	})
}

// take moves output from the pipe to the spool. If that fails, it drops some and returns why, so that the container
// does not wait. EAGAIN means that there is none.
func (s *source) take(pipe int) (moved int, err error) {
	at := int64(headerSize)
	n, err := unix.Splice(pipe, nil, int(s.spool.Fd()), &at, batch, unix.SPLICE_F_NONBLOCK)
	switch {
	case errors.Is(err, unix.EAGAIN), err == nil && n > 0:
		return int(n), err
	case errors.Is(err, unix.EINTR), err == nil:
		return 0, nil
	}
	b := <-s.buffers
	defer func() { s.buffers <- b }()
	buf := b.data[:]
	got, readErr := unix.Read(pipe, buf)
	if readErr != nil {
		return 0, readErr
	}
	if errors.Is(err, unix.EINVAL) { // a file system that data cannot be moved to
		if _, err = s.spool.WriteAt(buf[:got], headerSize); err == nil {
			return got, nil
		}
	}
	s.file.drop(buf[:got])
	_ = s.spool.Truncate(0)
	return 0, nil
}

func (s *source) took(moved int, err error) {
	if err == nil && moved > 0 {
		s.commit()
	}
}

// pending returns how many bytes are in the spool.
func (s *source) pending() int64 {
	info, err := s.spool.Stat()
	if err != nil {
		return 0
	}
	return max(0, info.Size()-headerSize)
}

func (s *source) hasClaim() bool {
	var header [headerSize]byte
	_, err := s.spool.ReadAt(header[:], 0)
	return err == nil && header[claimed] == 1
}

// commit appends what is in the spool to the log, and empties the spool.
func (s *source) commit() {
	size := s.pending()
	if size == 0 {
		return
	}
	b := <-s.buffers
	defer func() { s.buffers <- b }()
	s.file.mu.Lock()
	defer s.file.mu.Unlock()
	var header [headerSize]byte
	data := b.data[:min(size, batch)]
	if _, err := s.spool.ReadAt(header[:], 0); err != nil {
		return
	}
	if _, err := s.spool.ReadAt(data, headerSize); err != nil {
		return
	}
	offset, now := s.file.size, time.Now()
	if header[claimed] == 1 {
		offset = int64(binary.LittleEndian.Uint64(header[offsetAt:]))
		now = time.Unix(0, int64(binary.LittleEndian.Uint64(header[timeAt:])))
	} else {
		offset = s.file.noted(offset)
		header[claimed] = 1
		binary.LittleEndian.PutUint64(header[offsetAt:], uint64(offset))
		binary.LittleEndian.PutUint64(header[timeAt:], uint64(now.UnixNano()))
		_, _ = s.spool.WriteAt(header[:], 0) // if this fails, a logger that is killed now writes the batch twice
	}
	b.records = appendRecords(b.records[:0], s.name, now, data)
	if !s.file.write(b.records, offset) {
		s.file.count(data)
	}
	s.file.within[s.name] = data[len(data)-1] != '\n'
	_ = s.spool.Truncate(0)
	s.file.rotate()
}
