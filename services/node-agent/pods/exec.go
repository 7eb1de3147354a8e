package pods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"syscall"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/kit/process"
)

// execPatience is how long a command that was killed may keep its output open.
const execPatience = 2 * time.Second

// exec runs a command in the directory and the environment of a running container, as its user, and returns its exit
// code. It belongs to the container: it ends with it, or with the delivery.
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
	case r.GetTty():
		return 0, errors.New("a node has no terminals to give: run the command without one")
	}
	path, err := program(r.GetCommand()[0], c.Root, c.Spec.Dir, c.Spec.Env)
	if err != nil && c.Root != "" { // a tool of the host, which is there for every user
		path, err = program(r.GetCommand()[0], "", c.Spec.Dir, c.Spec.Env)
	}
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, path, r.GetCommand()[1:]...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = c.Spec.Dir, slices.Clone(c.Spec.Env), execPatience
	cmd.Cancel = func() error { return process.SignalGroup(cmd.Process, syscall.SIGKILL) }
	cmd.Stdout, cmd.Stderr = output{d, false}, output{d, true}
	var in io.WriteCloser
	if r.GetStdin() {
		if in, err = cmd.StdinPipe(); err != nil {
			return 0, err
		}
	}
	err = s.cfg.Supervisor.StartBeside(c.Spec.Name, cmd, c.Spec.User)
	if errors.Is(err, process.ErrNoProcess) {
		return 0, fmt.Errorf("container %q does not run", name)
	}
	if err != nil {
		return 0, err
	}
	d.listen(in, cancel)
	var ended *exec.ExitError
	if err := cmd.Wait(); errors.As(err, &ended) {
		if ws, ok := ended.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return int32(signalBase + int(ws.Signal())), nil
		}
		return int32(ended.ExitCode()), nil
	} else if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return 0, err
	}
	return 0, nil
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
