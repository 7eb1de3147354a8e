package server

import (
	"context"
	"io"
	"strings"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/services/scheduler/relay"
)

// logReader is the stream of a client that reads a log.
type logReader struct {
	grpc.ServerStream
	ctx  context.Context
	text strings.Builder
}

func (r *logReader) Context() context.Context { return r.ctx }
func (r *logReader) Send(b *httpbody.HttpBody) error {
	_, err := r.text.Write(b.GetData())
	return err
}

// agentStream is the stream on which an agent answers: its messages, and how it ends.
type agentStream struct {
	grpc.ServerStream
	ctx  context.Context
	says []*schedulingv1.DeliverRequest
	end  error
}

func (s *agentStream) Context() context.Context                 { return s.ctx }
func (s *agentStream) Send(*schedulingv1.DeliverResponse) error { return nil }
func (s *agentStream) Recv() (*schedulingv1.DeliverRequest, error) {
	if len(s.says) == 0 {
		return nil, s.end
	}
	m := s.says[0]
	s.says = s.says[1:]
	return m, nil
}

func TestALogThatBreaksOffDoesNotLookWhole(t *testing.T) {
	cfg := follow(t)
	cfg.Relay = relay.New()
	if _, err := cfg.Tables.Pods.Create(t.Context(), &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{Name: "p"},
		Spec: &schedulingv1.PodSpec{NodeName: "node", Containers: []*schedulingv1.Container{
			{Name: "main", Image: "pause"},
		}},
	}); err != nil {
		t.Fatal(err)
	}
	there, leave := cfg.Relay.Attend("node")
	defer leave()
	agent := identity.WithCaller(t.Context(), identity.Caller{
		User:   "system:node:node",
		Groups: []string{identity.GroupNodes},
	})
	for what, c := range map[string]struct {
		end  error
		want codes.Code
	}{
		"its agent has said everything": {io.EOF, codes.OK},
		"its agent broke off":           {status.Error(codes.Canceled, "connection lost"), codes.Unavailable},
	} {
		delivered := make(chan struct{})
		go func() {
			defer close(delivered)
			request := <-there.Requests
			_ = NewAgents(cfg).Deliver(&agentStream{ctx: agent, end: c.end, says: []*schedulingv1.DeliverRequest{
				{NodeName: "node", Id: request.GetId()}, {Stdout: []byte("one\n")}, {Stdout: []byte("two\n")},
			}})
		}()
		r := &logReader{ctx: t.Context()}
		err := NewPods(cfg).GetPodLog(&schedulingv1.GetPodLogRequest{Name: "p"}, r)
		<-delivered
		if status.Code(err) != c.want || r.text.String() != "one\ntwo\n" {
			t.Errorf("%s: %q, %v; want %v", what, r.text.String(), err, c.want)
		}
	}
}
