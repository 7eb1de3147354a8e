// Package logger writes what containers print into log files, with times and up to a size, in the format of CRI. One
// process does that for all containers of a machine. It outlives the agent, and containers outlive it: they write to
// named pipes, and wait when a pipe is full and nothing reads it. Each start of a container has a directory of its own:
//
//	stdout, stderr   pipes, whose other ends the container has
//	stdout.spool, …  what was taken from a pipe and is not known to be in the log
//	log, log.1, …    the log, the newest first
//	position         how much was written before the file log
//
// What was read from a pipe is in the log once, though the process is killed at any point: data moves from the pipe to
// the spool inside the kernel, and the spool says at which offset of the log it goes. A crash of the host may lose the
// end of a log. When the log cannot be written, because the disk is full, output is dropped and counted, so that no
// container waits.
package logger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

const (
	socketName = "socket"
	// orderPatience bounds one order of the agent, which ends when the logs of containers that ended are complete.
	orderPatience = 10 * time.Second
	noteEvery     = time.Second
	writers       = 4 // logs that are written at a time: each takes a buffer
)

// order is all that the agent says: the directories of the starts of containers whose output is to be logged. The pipes
// of others are emptied and closed.
type order struct {
	Dirs []string `json:"dirs"`
}

// answer comes when the order is carried out.
type answer struct {
	Errors []string `json:"errors,omitempty"`
}

type logger struct {
	buffers chan *buffer

	mu         sync.Mutex
	containers map[string]*container // by directory
}

// Run logs until ctx ends, as the agent orders over a socket in the directory that the flag --dir names.
func Run(ctx context.Context, args []string, stderr io.Writer) error {
	fs := pflag.NewFlagSet("container-logger", pflag.ContinueOnError)
	fs.SetOutput(stderr)
	dir := fs.String("dir", "", "directory of the socket; only the agent's user may reach it")
	if err := fs.Parse(args); errors.Is(err, pflag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	if *dir == "" {
		return errors.New("--dir is required")
	}
	if err := os.MkdirAll(*dir, 0o700); err != nil {
		return err
	}
	at, err := open(*dir)
	if err != nil {
		return err
	}
	defer at.Close()
	if err := os.Remove(filepath.Join(*dir, socketName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket(at))
	if err != nil {
		return err
	}
	l := &logger{buffers: make(chan *buffer, writers), containers: map[string]*container{}}
	for range writers {
		l.buffers <- &buffer{}
	}
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { l.noteDropped(ctx) })
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return errors.Join(l.carryOut(order{})...) // everything that was written by now
		}
		if err != nil {
			return err
		}
		group.Go(func() { l.serve(conn) })
	}
}

// open returns a directory, in which a socket is reached though its path is too long for one.
func open(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return os.NewFile(uintptr(fd), dir), nil
}

func socket(at *os.File) string { return fmt.Sprintf("/proc/self/fd/%d/%s", at.Fd(), socketName) }

func (l *logger) serve(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(orderPatience))
	var o order
	if json.NewDecoder(conn).Decode(&o) != nil {
		return // the agent tries again
	}
	var a answer
	for _, err := range l.carryOut(o) {
		a.Errors = append(a.Errors, err.Error())
	}
	_ = json.NewEncoder(conn).Encode(a)
}

// carryOut logs the containers of an order and no others, and returns what failed.
func (l *logger) carryOut(o order) (failed []error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	wanted := map[string]bool{}
	for _, dir := range o.Dirs {
		wanted[dir] = true
		if l.containers[dir] != nil {
			continue
		}
		c, err := l.begin(dir)
		if err != nil {
			failed = append(failed, fmt.Errorf("log in %s: %w", dir, err))
			continue
		}
		l.containers[dir] = c
	}
	var ending sync.WaitGroup
	for dir, c := range l.containers {
		if !wanted[dir] {
			delete(l.containers, dir)
			ending.Go(c.end)
		}
	}
	ending.Wait()
	return failed
}

// noteDropped writes into each log what was dropped, as soon as there is room, though the container is silent.
func (l *logger) noteDropped(ctx context.Context) {
	tick := time.NewTicker(noteEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		l.mu.Lock()
		for _, c := range l.containers {
			c.file.noteDropped()
		}
		l.mu.Unlock()
	}
}

// Follow has the logger whose directory is dir log the output of starts of containers, each by its directory, and no
// others. It returns when the logs of those that it logged before and that are not among them are complete. An error
// means that this must be said again.
func Follow(ctx context.Context, dir string, starts []string) error {
	at, err := open(dir)
	if err != nil {
		return err
	}
	defer at.Close()
	ctx, cancel := context.WithTimeout(ctx, orderPatience)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket(at))
	if err != nil {
		return fmt.Errorf("container logger: %w", err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	var a answer
	if err := errors.Join(json.NewEncoder(conn).Encode(order{starts}), json.NewDecoder(conn).Decode(&a)); err != nil {
		return fmt.Errorf("container logger: %w", err)
	}
	if len(a.Errors) > 0 {
		return fmt.Errorf("container logger: %s", a.Errors[0])
	}
	return nil
}
