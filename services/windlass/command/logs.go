package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
)

type logsFlags struct {
	container                    string
	follow, previous, timestamps bool
	tail                         int32
	since                        time.Duration
}

func newLogs(e *env) *cobra.Command {
	var f logsFlags
	cmd := &cobra.Command{
		Use:   "logs [-f] POD [-c CONTAINER]",
		Short: "Print the logs of a container in a pod",
		Example: `  windlass logs hello-pod
  windlass logs -f hello-pod -c hello-pod
  windlass logs hello-pod --tail 20 --previous`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: e.completeNames("pod"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 && f.container != "" {
				return errors.New("only one of -c or an inline [CONTAINER] arg is allowed")
			}
			if len(args) == 2 {
				f.container = args[1]
			}
			return e.withClient(func(c *client.Client) error { return e.logs(cmd.Context(), c, podName(args[0]), f) })
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

// podName accepts both NAME and pod/NAME.
func podName(arg string) string {
	for _, prefix := range []string{"pod/", "pods/", "po/"} {
		if name, ok := strings.CutPrefix(arg, prefix); ok {
			return name
		}
	}
	return arg
}

func (e *env) logs(ctx context.Context, c *client.Client, pod string, f logsFlags) error {
	r := &schedulingv1.GetPodLogRequest{
		Namespace: e.podNamespace(), Name: pod, Container: f.container, Follow: f.follow, Previous: f.previous,
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
		if _, err := e.out.Write(part.GetData()); err != nil {
			return err
		}
	}
}

// podNamespace returns the selected namespace for pods.
func (e *env) podNamespace() string {
	if e.namespace != "" {
		return e.namespace
	}
	return "default"
}

func newExec(e *env) *cobra.Command {
	var container string
	var stdin, tty bool
	cmd := &cobra.Command{
		Use:   "exec POD [-c CONTAINER] [-i] -- COMMAND [ARG...]",
		Short: "Execute a command in a container",
		Example: `  windlass exec hello-pod -- /bin/sh -c 'echo $HOSTNAME'
  echo hello | windlass exec -i hello-pod -- cat`,
		ValidArgsFunction: e.completeNames("pod"),
		RunE: func(cmd *cobra.Command, args []string) error {
			dash := cmd.ArgsLenAtDash()
			if dash < 0 && len(args) > 1 {
				dash = 1
			}
			if dash != 1 || len(args) < 2 {
				return errors.New("specify a pod, and the command after --: windlass exec POD -- COMMAND")
			}
			if tty {
				fmt.Fprintln(e.err, "Unable to use a TTY: pods have no terminal; continuing without one")
			}
			start := &schedulingv1.ExecPodStart{
				Namespace: e.podNamespace(), Name: podName(args[0]), Container: container,
				Command: args[1:], Stdin: stdin,
			}
			return e.withClient(func(c *client.Client) error { return e.exec(cmd.Context(), c, start) })
		},
	}
	cmd.Flags().StringVarP(&container, "container", "c", "", "name of the container; optional if the pod has only one")
	cmd.Flags().BoolVarP(&stdin, "stdin", "i", false, "pass stdin to the command")
	cmd.Flags().BoolVarP(&tty, "tty", "t", false, "accepted for compatibility; pods have no terminal")
	return cmd
}

// exec runs a command in a container and returns its exit code as an exitError.
func (e *env) exec(ctx context.Context, c *client.Client, start *schedulingv1.ExecPodStart) error {
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
				n, err := e.in.Read(buffer)
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
		if _, err := e.out.Write(part.GetStdout()); err != nil {
			return err
		}
		if _, err := e.err.Write(part.GetStderr()); err != nil {
			return err
		}
		if part.ExitCode != nil {
			code = part.GetExitCode()
		}
	}
	if code != 0 {
		fmt.Fprintf(e.err, "command terminated with exit code %d\n", code)
		return exitError{int(code)}
	}
	return nil
}
