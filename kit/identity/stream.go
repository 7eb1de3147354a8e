package identity

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/kit/rpcerr"
)

// guardedStream checks the caller's right when the first message comes, and lets nothing out before.
type guardedStream struct {
	grpc.ServerStream
	ctx  context.Context
	call *call

	mu      sync.Mutex // guards the two below: one goroutine receives while another sends
	decided bool
	refusal error
}

// Context returns the stream's context, with the caller.
func (s *guardedStream) Context() context.Context { return s.ctx }

// RecvMsg receives a message; with the first one the right is checked.
func (s *guardedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	message, _ := m.(proto.Message)
	return s.decide(message)
}

// SendMsg sends a message, if the caller has the right to get it.
func (s *guardedStream) SendMsg(m any) error {
	if err := s.mayAnswer(); err != nil {
		return err
	}
	return s.ServerStream.SendMsg(m)
}

// SendHeader sends headers, if the caller has the right to get them.
func (s *guardedStream) SendHeader(md metadata.MD) error {
	if err := s.mayAnswer(); err != nil {
		return err
	}
	return s.ServerStream.SendHeader(md)
}

func (s *guardedStream) decide(first proto.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.decided {
		return s.refusal
	}
	s.decided = true
	if err := s.call.authorize(first); err != nil {
		s.refusal = s.call.refuse(err)
		return s.refusal
	}
	s.refusal = s.call.beforeHandler(s.ctx)
	return s.refusal
}

func (s *guardedStream) mayAnswer() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refusal != nil || s.decided || s.call.access.GetCheckedByMethod() || s.call.access.GetUnauthenticated() {
		return s.refusal
	}
	return rpcerr.Forbidden("the first message of the stream has not arrived, so the request cannot be authorized")
}

// ended maps what the handler returned. A refusal is final, whatever the handler returned; one by the handler itself is
// recorded here.
func (s *guardedStream) ended(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refusal != nil {
		return s.refusal
	}
	if refusal := Refusal(s.ctx); refusal != nil {
		err := s.call.refuse(notValid(s.call.caller, refusal))
		s.call.complete(target{}, err)
		return err
	}
	err = s.call.mapped(s.ctx, err)
	if refused(err) {
		_ = s.call.refuse(err)
	}
	s.call.complete(target{}, err)
	return err
}
