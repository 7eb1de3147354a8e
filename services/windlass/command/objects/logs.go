package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
)

type logsFlags struct {
	container                    string
	follow, previous, timestamps bool
	tail                         int32
	since                        time.Duration
}

// NewLogs returns the command logs.
func NewLogs(e *session.Env) *cobra.Command {
	var f logsFlags
	cmd := &cobra.Command{
		Use:   "logs [-f] POD [-c CONTAINER]",
		Short: "Print the logs of a container in a pod",
		Example: `  windlass logs hello-pod
  windlass logs -f hello-pod -c hello-pod
  windlass logs hello-pod --tail 20 --previous`,
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
	return cmd
}

func logs(ctx context.Context, e *session.Env, c *client.Client, pod string, f logsFlags) error {
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
	stream, err := schedulingv1.NewPodServiceClient(c.Conn()).GetPodLog(ctx, r)
	if err != nil {
		return err
	}
	for {
		part, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF), ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		if _, err := e.Out.Write(part.GetData()); err != nil {
			return err
		}
	}
}

// NewExec returns the command exec.
func NewExec(e *session.Env) *cobra.Command {
	var container string
	var stdin, tty bool
	cmd := &cobra.Command{
		Use:   "exec POD [-c CONTAINER] [-i] -- COMMAND [ARG...]",
		Short: "Execute a command in a container",
		Example: `  windlass exec hello-pod -- /bin/sh -c 'echo $HOSTNAME'
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
			if tty {
				fmt.Fprintln(e.Err, "Unable to use a TTY: pods have no terminal; continuing without one")
			}
			start := &schedulingv1.ExecPodStart{
				Namespace: e.PodNamespace(), Name: target.PodName(args[0]), Container: container,
				Command: args[1:], Stdin: stdin,
			}
			return e.WithClient(func(c *client.Client) error { return execute(cmd.Context(), e, c, start) })
		},
	}
	cmd.Flags().StringVarP(&container, "container", "c", "", "name of the container; optional if the pod has only one")
	cmd.Flags().BoolVarP(&stdin, "stdin", "i", false, "pass stdin to the command")
	cmd.Flags().BoolVarP(&tty, "tty", "t", false, "accepted for compatibility; pods have no terminal")
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
	if err := stream.Send(&schedulingv1.ExecPodRequest{Start: start}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if start.GetStdin() {
		go func() { // ends with the stream, when Send fails; a blocked Read ends with the process
			buffer := make([]byte, 32<<10)
			for {
				n, err := e.In.Read(buffer)
				if n > 0 && stream.Send(&schedulingv1.ExecPodRequest{Stdin: buffer[:n]}) != nil {
					return
				}
				if err != nil {
					_ = stream.Send(&schedulingv1.ExecPodRequest{StdinClosed: true})
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
		if _, err := e.Out.Write(part.GetStdout()); err != nil {
			return err
		}
		if _, err := e.Err.Write(part.GetStderr()); err != nil {
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
