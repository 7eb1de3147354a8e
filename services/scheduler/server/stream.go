package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/scheduler/relay"
)

// GetPodLog sends what a container wrote.
func (s *Pods) GetPodLog(r *schedulingv1.GetPodLogRequest, stream grpc.ServerStreamingServer[httpbody.HttpBody]) error {
	ctx := stream.Context()
	if r.SinceSeconds != nil && r.GetSinceTime() != nil {
		return rpcerr.Invalid(object.Fault{Path: "sinceTime", Description: "must not be set together with sinceSeconds"})
	}
	pod, container, err := s.target(ctx, r.GetNamespace(), r.GetName(), r.GetContainer())
	if err != nil {
		return err
	}
	want := proto.CloneOf(r)
	want.Container = container
	w, err := s.ask(ctx, pod, &schedulingv1.AttendResponse{Log: want})
	if err != nil {
		return err
	}
	defer w.Close()
	for {
		m, err := w.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return unanswered(pod, err)
		case m.GetError() != "":
			return failed(pod, m)
		}
		if len(m.GetStdout()) == 0 {
			continue
		}
		if err := stream.Send(&httpbody.HttpBody{ContentType: "text/plain; charset=utf-8", Data: m.GetStdout()}); err != nil {
			return err
		}
	}
}

// ExecPod runs a command beside the processes of a container.
func (s *Pods) ExecPod(stream grpc.BidiStreamingServer[schedulingv1.ExecPodRequest,
	schedulingv1.ExecPodResponse],
) error {
	ctx := stream.Context()
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	start := proto.CloneOf(first.GetStart())
	if start == nil || start.GetName() == "" {
		return rpcerr.Invalid(object.Fault{Path: "start.name", Description: "must be given in the first message"})
	}
	start.Namespace = keyOf(start.GetNamespace(), "").Namespace
	identity.Describe(ctx, start.GetNamespace(), start.GetName(),
		strings.TrimSpace(fmt.Sprintf("%s %q", start.GetContainer(), start.GetCommand())))
	caller, _ := identity.CallerFrom(ctx)
	right := identity.Attributes{
		Verb: "create", Resource: "pods/exec", Namespace: start.GetNamespace(),
		Name: start.GetName(),
	}
	if _, err := s.Policy.Require(caller, right); err != nil {
		return err
	}
	identity.Needs(ctx, right)
	if len(start.GetCommand()) == 0 {
		return rpcerr.Invalid(object.Fault{Path: "start.command", Description: "must be given"})
	}
	pod, container, err := s.target(ctx, start.GetNamespace(), start.GetName(), start.GetContainer())
	if err != nil {
		return err
	}
	start.Container = container
	if err := identity.BeforeChange(ctx); err != nil {
		return err
	}
	w, err := s.ask(ctx, pod, &schedulingv1.AttendResponse{Exec: start})
	if err != nil {
		return err
	}
	defer w.Close()
	go input(stream, first, w)
	return output(stream, pod, w)
}

// input passes on what a caller sends. It ends with the call.
func input(stream grpc.BidiStreamingServer[schedulingv1.ExecPodRequest, schedulingv1.ExecPodResponse],
	m *schedulingv1.ExecPodRequest, to *relay.Request,
) {
	for {
		if len(m.GetStdin()) > 0 || m.GetStdinClosed() || m.GetTerminalSize() != nil {
			if err := to.Send(&schedulingv1.DeliverResponse{
				Stdin: m.GetStdin(), StdinClosed: m.GetStdinClosed(), TerminalSize: m.GetTerminalSize(),
			}); err != nil {
				return
			}
		}
		var err error
		if m, err = stream.Recv(); err != nil {
			_ = to.Send(&schedulingv1.DeliverResponse{StdinClosed: true}) // the caller's half is closed, or all is over
			return
		}
	}
}

func output(stream grpc.BidiStreamingServer[schedulingv1.ExecPodRequest, schedulingv1.ExecPodResponse],
	pod *schedulingv1.Pod, from *relay.Request,
) error {
	done := false
	for {
		m, err := from.Next()
		switch {
		case done && (errors.Is(err, io.EOF) || errors.Is(err, relay.ErrBrokeOff)):
			return nil
		case errors.Is(err, io.EOF):
			return unanswered(pod, relay.ErrBrokeOff)
		case err != nil:
			return unanswered(pod, err)
		case m.GetError() != "":
			return failed(pod, m)
		}
		done = done || m.ExitCode != nil
		if len(m.GetStdout()) == 0 && len(m.GetStderr()) == 0 && m.ExitCode == nil {
			continue
		}
		if err := stream.Send(&schedulingv1.ExecPodResponse{
			Stdout: m.GetStdout(), Stderr: m.GetStderr(),
			ExitCode: m.ExitCode,
		}); err != nil {
			return err
		}
	}
}

// target returns a pod that runs somewhere, and which of its containers is meant.
func (s *Pods) target(ctx context.Context, namespace, name, container string) (*schedulingv1.Pod, string, error) {
	key := keyOf(namespace, name)
	pod, err := s.Tables.Pods.Get(ctx, key.Namespace, key.Name)
	if err != nil {
		return nil, "", err
	}
	if pod.GetSpec().GetNodeName() == "" {
		return nil, "", rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION, "pods/"+name,
			"it is not on a node yet")
	}
	var names []string
	for _, c := range pod.GetSpec().GetContainers() {
		names = append(names, c.GetName())
	}
	if container == "" && len(names) == 1 {
		return pod, names[0], nil
	}
	for _, c := range append(pod.GetSpec().GetInitContainers(), pod.GetSpec().GetContainers()...) {
		if c.GetName() == container {
			return pod, container, nil
		}
	}
	if container == "" {
		return nil, "", rpcerr.Invalid(object.Fault{
			Path: "container", Description: fmt.Sprintf("must be given for pod %s: one of %s", name, strings.Join(names, ", ")),
		})
	}
	return nil, "", rpcerr.NotFoundField("Container", container, "container")
}

// ask hands a request to the agent of a pod's node.
func (s *Pods) ask(
	ctx context.Context, pod *schedulingv1.Pod, what *schedulingv1.AttendResponse,
) (*relay.Request, error) {
	m := pod.GetMetadata()
	what.Namespace, what.Name, what.Uid = m.GetNamespace(), m.GetName(), m.GetUid()
	w, err := s.Relay.Ask(ctx, pod.GetSpec().GetNodeName(), what)
	if err != nil {
		return nil, unanswered(pod, err)
	}
	return w, nil
}

// unanswered says why an agent does not answer.
func unanswered(pod *schedulingv1.Pod, err error) error {
	for _, known := range []error{relay.ErrNobodyAttends, relay.ErrTooMany, relay.ErrNoAnswer, relay.ErrBrokeOff} {
		if errors.Is(err, known) {
			return rpcerr.Unavailable(fmt.Sprintf("pod %q runs on node %q: %v", pod.GetMetadata().GetName(),
				pod.GetSpec().GetNodeName(), known))
		}
	}
	return err
}

// failed passes on why an agent could not do it.
func failed(pod *schedulingv1.Pod, m *schedulingv1.DeliverRequest) error {
	if m.GetExhausted() {
		return rpcerr.TooMany(m.GetError(), exhaustedAgain)
	}
	return rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION, "pods/"+pod.GetMetadata().GetName(),
		m.GetError())
}

// exhaustedAgain is when a request may be repeated that a node has no room for: some of the others may have ended.
const exhaustedAgain = 5 * time.Second
