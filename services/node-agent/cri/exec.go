package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
)

// ExecSync runs a command in a running container and returns the first bytes of its output, at most so many, and its
// exit code. The command is killed when ctx ends; the error is then context.DeadlineExceeded or context.Canceled.
// ErrNoContainer if the container does not run; any other error means that the command could not be run.
func (r *Runtime) ExecSync(ctx context.Context, name string, command []string, most int) (output []byte, code int,
	err error,
) {
	id, err := r.running(name)
	if err != nil {
		return nil, 0, fmt.Errorf("command in container %q: %w", name, err)
	}
	in := &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: command}
	if until, ok := ctx.Deadline(); ok {
		in.Timeout = max(int64(math.Ceil(time.Until(until).Seconds())), 1)
	} else {
		in.Timeout = int64(callPatience.Seconds())
	}
	out, err := callWithin(ctx, time.Duration(in.GetTimeout())*time.Second+callPatience, r.cri.ExecSync, in)
	switch {
	case err == nil:
		output = append(out.GetStdout(), out.GetStderr()...)
		return output[:min(len(output), max(most, 0))], int(out.GetExitCode()), nil
	case ctx.Err() != nil:
		err = ctx.Err()
	case status.Code(err) == codes.DeadlineExceeded: // the runtime was faster
		err = context.DeadlineExceeded
	}
	return nil, 0, fmt.Errorf("command in container %q: %w", name, err)
}

// running returns the ID of a container that runs.
func (r *Runtime) running(name string) (string, error) {
	if st, _ := r.Lookup(name); st.Running {
		return st.ID, nil
	}
	return "", ErrNoContainer
}

// Size is the size of a terminal, in characters.
type Size struct{ Columns, Rows uint16 }

// Exec runs a command in a running container, and returns its exit code. Nil streams are not connected. With tty it has
// a terminal, of which sizes gives the size until it is closed, and all output goes to stdout. When ctx ends, the
// command and what it started are killed, if its process can be found, and Exec returns the error of ctx. Nothing is
// written to stdout and stderr after that, but a Read of stdin may be pending. ErrNoContainer if the container does not
// run.
func (r *Runtime) Exec(ctx context.Context, name string, command []string, tty bool, stdin io.Reader,
	stdout, stderr io.Writer, sizes <-chan Size,
) (code int, err error) {
	code, err = r.exec(ctx, name, command, tty, stdin, stdout, stderr, sizes)
	if err != nil {
		return 0, fmt.Errorf("command in container %q: %w", name, err)
	}
	return code, nil
}

func (r *Runtime) exec(ctx context.Context, name string, command []string, tty bool, stdin io.Reader,
	stdout, stderr io.Writer, sizes <-chan Size,
) (int, error) {
	id, err := r.running(name)
	if err != nil {
		return 0, err
	}
	if tty {
		stderr = nil
	}
	out, err := call(ctx, r.cri.Exec, &runtimeapi.ExecRequest{
		ContainerId: id, Cmd: command, Tty: tty, Stdin: stdin != nil, Stdout: stdout != nil, Stderr: stderr != nil,
	})
	if err != nil {
		return 0, err
	}
	at, err := url.Parse(out.GetUrl())
	if err != nil {
		return 0, err
	}
	// The URL contains a secret of the runtime; it is on this host.
	executor, err := remotecommand.NewSPDYExecutor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}},
		"POST", at)
	if err != nil {
		return 0, err
	}
	ctx = klog.NewContext(ctx, klog.Logger{}) // errors are returned, and need no line on standard error beside that
	sizing, cancel := context.WithCancel(ctx)
	defer cancel()
	options := remotecommand.StreamOptions{Stdin: stdin, Tty: tty}
	if stdout != nil {
		g := &gate{w: stdout}
		defer g.close()
		options.Stdout = g
	}
	if stderr != nil {
		g := &gate{w: stderr}
		defer g.close()
		options.Stderr = g
	}
	if tty && sizes != nil {
		options.TerminalSizeQueue = queue{sizing, sizes}
	}
	leave, err := r.enter(ctx, "command in "+id) // so that the process that begins next is this command's
	if err != nil {
		return 0, err
	}
	seeker := newSeeker(id, command)
	defer seeker.close()
	ended := make(chan error, 1)
	go func() { ended <- executor.StreamWithContext(ctx, options) }()
	seeking, found := context.WithCancel(context.WithoutCancel(ctx))
	defer found()
	go func() {
		defer leave()
		seeker.seek(seeking)
	}()
	select {
	case err = <-ended:
		if ctx.Err() == nil {
			found()
		}
	case <-ctx.Done():
		err = <-ended
	}
	<-seeker.done
	if ctx.Err() != nil {
		seeker.kill()
	}
	return exitCode(ctx, err)
}

// exitCode returns the exit code of a command by the error of its connection.
func exitCode(ctx context.Context, err error) (int, error) {
	var exit exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitStatus(), nil
	}
	return 0, withoutURL(err)
}

// withoutURL returns an error of a connection without its URL, which contains a secret of the runtime.
func withoutURL(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		return fmt.Errorf("connection to the container runtime: %w", failed.Err)
	}
	return err
}

// queue gives the sizes of a terminal.
type queue struct {
	ctx   context.Context
	sizes <-chan Size
}

// Next implements remotecommand.TerminalSizeQueue.
func (q queue) Next() *remotecommand.TerminalSize {
	select {
	case <-q.ctx.Done():
		return nil
	case s, ok := <-q.sizes:
		if !ok {
			return nil
		}
		return &remotecommand.TerminalSize{Width: s.Columns, Height: s.Rows}
	}
}

// gate writes to w until it is closed.
type gate struct {
	w io.Writer

	mu     sync.Mutex
	closed bool
}

// Write implements io.Writer.
func (g *gate) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return 0, io.ErrClosedPipe
	}
	return g.w.Write(p)
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}
