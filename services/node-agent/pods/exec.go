package pods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/process"
)

const (
	// execPatience is how long a command that was killed may keep its output open.
	execPatience = 2 * time.Second
	// adoptPatience is how long a command waits for the agent to take over the process of its container.
	adoptPatience = 10 * time.Second
)

// exec runs a command in the directory and the environment of a running container, as its user, and returns its exit
// code. It belongs to the container: it ends with it, or with the delivery, and then with all that it started.
func (s *Pods) exec(ctx context.Context, cancel func(), uid string, r *schedulingv1.ExecPodStart, d *delivery) (int32,
	error,
) {
	c, name, err := s.find(uid, r.GetContainer())
	switch {
	case err != nil:
		return 0, err
	case c.Starts == 0 || c.Exit != nil:
		return 0, fmt.Errorf("container %q does not run", name)
	case len(r.GetCommand()) == 0:
		return 0, errors.New("no command is given")
	}
	return s.driverOf(&c).exec(ctx, cancel, target{container: c, uid: uid, name: name}, r, d)
}

func (d *processes) exec(ctx context.Context, cancel func(), t target, r *schedulingv1.ExecPodStart,
	to *delivery) (int32,
	error,
) {
	c := t.container
	path, err := commandPath(c, r.GetCommand()[0])
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, path, r.GetCommand()[1:]...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = c.Spec.Dir, slices.Clone(c.Spec.Env), execPatience
	cmd.Cancel = func() error { return process.KillBeside(cmd) }
	attach := attachStreams
	if r.GetTty() {
		attach = attachTerminal
	}
	begin, end, err := attach(cmd, r, to, c.Spec.User)
	if err != nil {
		return 0, err
	}
	defer end()
	err = d.pods.adopted(ctx, t, func() error { return d.StartBeside(c.Spec.Name, cmd, c.Spec.User) })
	if err != nil {
		return 0, err
	}
	begin(cancel)
	err = cmd.Wait()
	end()
	return exitCode(err)
}

// adopted calls try until that does not say that the container does not run: an agent that has just begun may not have
// taken it over yet.
func (s *Pods) adopted(ctx context.Context, t target, try func() error) error {
	for until := time.Now().Add(adoptPatience); ; {
		err := try()
		if !errors.Is(err, process.ErrNoProcess) {
			return err
		}
		now, _, err := s.find(t.uid, t.name)
		if err != nil || now.Exit != nil || now.Starts != t.Starts || time.Now().After(until) {
			return fmt.Errorf("container %q does not run", t.name)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(askAgain):
		}
	}
}

// exitCode returns the exit code of a command, as shells say it, by the error of its Wait.
func exitCode(err error) (int32, error) {
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		if ws, ok := ended.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return int32(signalBase + int(ws.Signal())), nil
		}
		return int32(ended.ExitCode()), nil
	}
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return 0, err
	}
	return 0, nil
}

// attachStreams connects a command to a delivery by pipes. begin is to be called when it runs, end when it has ended or
// does not start.
func attachStreams(cmd *exec.Cmd, r *schedulingv1.ExecPodStart, d *delivery, _ *process.User) (begin func(func()),
	end func(), err error,
) {
	cmd.Stdout, cmd.Stderr = output{d, false}, output{d, true}
	var in io.WriteCloser
	if r.GetStdin() {
		if in, err = cmd.StdinPipe(); err != nil {
			return nil, nil, err
		}
	}
	return func(enough func()) { d.listen(in, enough) }, func() {}, nil
}

// attachTerminal is attachStreams with a terminal, which belongs to the user and controls the command's session.
func attachTerminal(cmd *exec.Cmd, r *schedulingv1.ExecPodStart, d *delivery, user *process.User) (begin func(func()),
	end func(), err error,
) {
	here, there, err := openTerminal()
	if err != nil {
		return nil, nil, fmt.Errorf("terminal: %w", err)
	}
	closing := sync.OnceFunc(func() { here.Close(); there.Close() })
	if user != nil {
		if err := there.Chown(int(user.UID), -1); err != nil {
			closing()
			return nil, nil, fmt.Errorf("terminal: %w", err)
		}
	}
	resize := func(size *schedulingv1.TerminalSize) {
		columns, rows := cmp.Or(size.GetColumns(), defaultColumns), cmp.Or(size.GetRows(), defaultRows)
		conn, err := here.SyscallConn()
		if err != nil {
			return
		}
		_ = conn.Control(func(fd uintptr) { // the command has ended, maybe
			_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(columns), Row: uint16(rows)})
		})
	}
	resize(r.GetTerminalSize())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = there, there, there
	cmd.SysProcAttr = &syscall.SysProcAttr{Setctty: true}
	copied := make(chan struct{})
	begin = func(enough func()) {
		there.Close()
		go func() { // an error means that nothing has the terminal open any more
			defer close(copied)
			_, _ = io.CopyBuffer(output{d, false}, here, make([]byte, chunk))
		}()
		if r.GetStdin() {
			d.listenTo(terminalInput{here}, resize, enough)
		} else {
			d.listenTo(nil, resize, enough)
		}
	}
	end = sync.OnceFunc(func() {
		if d.ended != nil {
			timer := time.NewTimer(execPatience) // what the command left may have the terminal open
			defer timer.Stop()
			select {
			case <-copied:
			case <-timer.C:
			}
		}
		closing()
		if d.ended != nil {
			<-copied // nothing is sent after the last message
		}
	})
	return begin, end, nil
}

// openTerminal returns both ends of a new terminal. A read from the agent's end ends when that is closed, though
// something has the other one open.
func openTerminal() (here, there *os.File, err error) {
	master, there, err := pty.Open()
	if err != nil {
		return nil, nil, err
	}
	defer master.Close()
	fd, err := unix.FcntlInt(master.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		there.Close()
		return nil, nil, err
	}
	return os.NewFile(uintptr(fd), master.Name()), there, nil
}

// Size of a terminal that the caller does not say.
const defaultColumns, defaultRows = 80, 24

// terminalInput writes what comes for a command to its terminal. The end of the input is what a user would type.
type terminalInput struct{ *os.File }

// Close implements io.Closer.
func (t terminalInput) Close() error {
	const endOfTransmission = 4
	_, err := t.Write([]byte{endOfTransmission})
	return err
}

// commandPath returns the path of a command that runs in a container.
func commandPath(c container, name string) (string, error) {
	if c.Spec.Root != nil {
		path, err := files{c.Root, c.Spec.Mounts}.program(name, filepath.Join(c.Root, c.Spec.Dir), c.Spec.Env)
		return within(c.Root, path), err
	}
	path, err := files{root: c.Root}.program(name, c.Spec.Dir, c.Spec.Env)
	if err != nil && c.Root != "" { // a tool of the host, which is there for every user
		path, err = files{}.program(name, c.Spec.Dir, c.Spec.Env)
	}
	return path, err
}

// output carries what a command writes.
type output struct {
	d   *delivery
	err bool
}

// Write implements io.Writer.
func (o output) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		part := rest[:min(len(rest), chunk)]
		rest = rest[len(part):]
		r := &schedulingv1.DeliverRequest{Stdout: part}
		if o.err {
			r = &schedulingv1.DeliverRequest{Stderr: part}
		}
		if err := o.d.send(r); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}
