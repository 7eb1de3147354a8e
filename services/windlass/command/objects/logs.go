package objects

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
	"github.com/windlass-dev/windlass/services/windlass/terminal"
)

type logsFlags struct {
	container                    string
	follow, previous, timestamps bool
	allContainers, prefix        bool
	tail, limitBytes             int32
	since                        time.Duration
	sinceTime                    string
}

// NewLogs returns the command logs.
func NewLogs(e *session.Env) *cobra.Command {
	var f logsFlags
	cmd := &cobra.Command{
		Use:   "logs [-f] POD [-c CONTAINER]",
		Short: "Print the logs of a container in a pod",
		Example: `  windlass logs hello-pod
  windlass logs -f hello-pod -c hello-pod
  windlass logs hello-pod --tail 20 --previous
  windlass logs hello-pod --timestamps --since-time 2026-11-26T14:00:00Z
  windlass logs hello-pod --all-containers --prefix`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: target.CompleteNames(e, "pod"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 && f.container != "" {
				return errors.New("only one of -c or an inline [CONTAINER] arg is allowed")
			}
			if len(args) == 2 {
				f.container = args[1]
			}
			return e.WithClient(func(c *client.Client) error { return logs(cmd.Context(), e, c, target.PodName(args[0]), f) })
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.container, "container", "c", "", "name of the container; optional if the pod has only one")
	fs.BoolVarP(&f.follow, "follow", "f", false, "stream the logs")
	fs.BoolVarP(&f.previous, "previous", "p", false, "print the logs of the previous instance of the container")
	fs.BoolVar(&f.timestamps, "timestamps", false, "include timestamps on each line")
	fs.Int32Var(&f.tail, "tail", -1, "number of most recent lines to print; -1 prints all")
	fs.DurationVar(&f.since, "since", 0, "print only lines newer than a duration such as 5s or 2m; 0 prints all")
	fs.StringVar(&f.sinceTime, "since-time", "", "print only lines newer than a time such as 2026-11-26T14:00:00Z")
	fs.Int32Var(&f.limitBytes, "limit-bytes", 0, "maximum number of bytes to print; 0 prints all")
	fs.BoolVar(&f.allContainers, "all-containers", false, "print the logs of all containers, one after the other")
	fs.BoolVar(&f.prefix, "prefix", false,
		"begin each line with the name of the pod, and of the container if that is given")
	cmd.MarkFlagsMutuallyExclusive("since", "since-time")
	cmd.MarkFlagsMutuallyExclusive("all-containers", "container")
	cmd.MarkFlagsMutuallyExclusive("all-containers", "follow")
	return cmd
}

func logs(ctx context.Context, e *session.Env, c *client.Client, pod string, f logsFlags) error {
	if !f.allContainers {
		return logsOf(ctx, e, c, pod, f)
	}
	of, err := schedulingv1.NewPodServiceClient(c.Conn()).GetPod(ctx,
		&schedulingv1.GetPodRequest{Namespace: e.PodNamespace(), Name: pod})
	if err != nil {
		return err
	}
	for _, container := range append(of.GetSpec().GetInitContainers(), of.GetSpec().GetContainers()...) {
		f.container = container.GetName()
		if err := logsOf(ctx, e, c, pod, f); err != nil {
			return fmt.Errorf("container %s: %w", f.container, err)
		}
	}
	return nil
}

// logsOf prints the log of one container.
func logsOf(ctx context.Context, e *session.Env, c *client.Client, pod string, f logsFlags) error {
	r := &schedulingv1.GetPodLogRequest{
		Namespace: e.PodNamespace(), Name: pod, Container: f.container, Follow: f.follow, Previous: f.previous,
		Timestamps: f.timestamps,
	}
	if f.tail >= 0 {
		r.TailLines = proto.Int32(f.tail)
	}
	if f.since > 0 {
		r.SinceSeconds = proto.Int32(max(1, int32(f.since.Seconds())))
	}
	if f.sinceTime != "" {
		at, err := time.Parse(time.RFC3339, f.sinceTime)
		if err != nil {
			return fmt.Errorf("--since-time: %w", err)
		}
		r.SinceTime = timestamppb.New(at)
	}
	if f.limitBytes > 0 {
		r.LimitBytes = &f.limitBytes
	}
	stream, err := schedulingv1.NewPodServiceClient(c.Conn()).GetPodLog(ctx, r)
	if err != nil {
		return err
	}
	out := terminal.Raw(e.Out)
	if f.prefix {
		out = &prefixed{to: out, prefix: []byte("[" + path.Join("pod", pod, f.container) + "] "), begins: true}
	}
	for {
		part, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF), ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		if _, err := out.Write(part.GetData()); err != nil {
			return err
		}
	}
}

// prefixed begins each line with a prefix.
type prefixed struct {
	to     io.Writer
	prefix []byte
	begins bool // the next byte begins a line
}

// Write implements io.Writer.
func (p *prefixed) Write(b []byte) (int, error) {
	var out []byte
	for line := range bytes.Lines(b) {
		if p.begins {
			out = append(out, p.prefix...)
		}
		out, p.begins = append(out, line...), line[len(line)-1] == '\n'
	}
	_, err := p.to.Write(out)
	return len(b), err
}

// NewExec returns the command exec.
func NewExec(e *session.Env) *cobra.Command {
	var container string
	var stdin, tty bool
	cmd := &cobra.Command{
		Use:   "exec POD [-c CONTAINER] [-i] [-t] -- COMMAND [ARG...]",
		Short: "Execute a command in a container",
		Example: `  windlass exec hello-pod -- /bin/sh -c 'echo $HOSTNAME'
  windlass exec -it hello-pod -- /bin/sh
  echo hello | windlass exec -i hello-pod -- cat`,
		ValidArgsFunction: target.CompleteNames(e, "pod"),
		RunE: func(cmd *cobra.Command, args []string) error {
			dash := cmd.ArgsLenAtDash()
			if dash < 0 && len(args) > 1 {
				dash = 1
			}
			if dash != 1 || len(args) < 2 {
				return errors.New("specify a pod, and the command after --: windlass exec POD -- COMMAND")
			}
			start := &schedulingv1.ExecPodStart{
				Namespace: e.PodNamespace(), Name: target.PodName(args[0]), Container: container,
				Command: args[1:], Stdin: stdin,
			}
			screen := terminalOf(e.In)
			switch {
			case tty && screen != nil:
				start.Tty = true
			case tty:
				fmt.Fprintln(e.Err, "Unable to use a TTY: input is not a terminal; continuing without one")
			}
			if start.GetTty() {
				start.TerminalSize = sizeOf(screen)
			}
			return e.WithClient(func(c *client.Client) error { return execute(cmd.Context(), e, c, start) })
		},
	}
	cmd.Flags().StringVarP(&container, "container", "c", "", "name of the container; optional if the pod has only one")
	cmd.Flags().BoolVarP(&stdin, "stdin", "i", false, "pass stdin to the command")
	cmd.Flags().BoolVarP(&tty, "tty", "t", false, "give the command a terminal, if input is one")
	return cmd
}

// execute runs a command in a container and returns its exit code as an Exit.
func execute(ctx context.Context, e *session.Env, c *client.Client, start *schedulingv1.ExecPodStart) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := schedulingv1.NewPodServiceClient(c.Conn()).ExecPod(ctx)
	if err != nil {
		return err
	}
	var sending sync.Mutex // held while a message is sent
	send := func(m *schedulingv1.ExecPodRequest) error {
		sending.Lock()
		defer sending.Unlock()
		return stream.Send(m)
	}
	if err := send(&schedulingv1.ExecPodRequest{Start: start}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if start.GetTty() {
		restore, err := useTerminal(ctx, terminalOf(e.In), start.GetStdin(), func(size *schedulingv1.TerminalSize) {
			_ = send(&schedulingv1.ExecPodRequest{TerminalSize: size}) // the command has ended, maybe
		})
		if err != nil {
			return err
		}
		defer restore()
	}
	if start.GetStdin() {
		go func() { // ends with the stream, when Send fails; a blocked Read ends with the process
			buffer := make([]byte, 32<<10)
			for {
				n, err := e.In.Read(buffer)
				if n > 0 && send(&schedulingv1.ExecPodRequest{Stdin: buffer[:n]}) != nil {
					return
				}
				if err != nil {
					_ = send(&schedulingv1.ExecPodRequest{StdinClosed: true})
					return
				}
			}
		}()
	}
	code := int32(0)
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if _, err := terminal.Raw(e.Out).Write(part.GetStdout()); err != nil {
			return err
		}
		if _, err := terminal.Raw(e.Err).Write(part.GetStderr()); err != nil {
			return err
		}
		if part.ExitCode != nil {
			code = part.GetExitCode()
		}
	}
	if code != 0 {
		fmt.Fprintf(e.Err, "command terminated with exit code %d\n", code)
		return failure.Exit{Code: int(code)}
	}
	return nil
}
