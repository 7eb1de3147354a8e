package pods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/services/node-agent/stream"
)

// Bounds of what is answered at a time. Each sort has its own, so that none locks out another.
const (
	maxFollowers = 32
	maxLogs      = 32
	maxCommands  = 32
	maxMetrics   = 8
	maxRefusals  = 64 // further requests get no answer
)

// errExhausted means that as much of a sort is answered as can be at a time.
var errExhausted = errors.New("try again when one has ended")

// sort is a sort of requests. Its channel has as many tokens as are answered now.
type sort struct {
	what  string // several of them do
	taken chan struct{}
}

// sorts are the sorts of requests of one agent.
type sorts struct{ follow, log, exec, metrics, refuse sort }

func newSorts() sorts {
	return sorts{
		follow: sort{"logs are followed", make(chan struct{}, maxFollowers)},
		log:    sort{"logs are read", make(chan struct{}, maxLogs)},
		exec:   sort{"commands run", make(chan struct{}, maxCommands)},
		// Of others the relay asks one at a time.
		metrics: sort{"other requests are answered", make(chan struct{}, maxMetrics)},
		refuse:  sort{"requests are refused", make(chan struct{}, maxRefusals)},
	}
}

func (s sorts) of(r *schedulingv1.AttendResponse) sort {
	switch {
	case r.GetExec() != nil:
		return s.exec
	case r.GetLog().GetFollow():
		return s.follow
	case r.GetLog() != nil:
		return s.log
	}
	return s.metrics
}

// take reports whether one more request can be answered; then give it back.
func (s sort) take() bool {
	select {
	case s.taken <- struct{}{}:
		return true
	default:
		return false
	}
}

func (s sort) give() { <-s.taken }

// attend answers people who want to see logs or run commands, until ctx ends.
func (s *Pods) attend(ctx context.Context) error {
	var requests sync.WaitGroup
	defer requests.Wait()
	sorts := newSorts()
	return stream.Again(ctx, s.cfg.Log, "attendance of pods", nil, func(ctx context.Context) error {
		session, cancel := context.WithCancel(ctx)
		defer cancel()
		in, err := s.agents.Attend(session, &schedulingv1.AttendRequest{NodeName: s.cfg.Node})
		if err != nil {
			return err
		}
		for {
			request, err := in.Recv()
			if err != nil {
				return err
			}
			if request.GetId() == "" {
				continue
			}
			of, refused := sorts.of(request), error(nil)
			if !of.take() {
				refused = fmt.Errorf("%d %s on node %q, as many as it allows at a time: %w", cap(of.taken), of.what, s.cfg.Node,
					errExhausted)
				if of = sorts.refuse; !of.take() {
					continue
				}
			}
			requests.Go(func() { // what is under way outlives the stream that asked for it
				defer of.give()
				if err := s.answer(ctx, request, refused); err != nil && ctx.Err() == nil {
					s.cfg.Log.DebugContext(ctx, "request failed", "pod", request.GetName(), "error", err)
				}
			})
		}
	})
}

// delivery is the answer to one request.
type delivery struct {
	stream schedulingv1.PodAgentService_DeliverClient
	mu     sync.Mutex    // held while a message is sent
	ended  chan struct{} // closed when the other side ended the stream; nil before listen
}

// send sends a message; it may be called concurrently.
func (d *delivery) send(r *schedulingv1.DeliverRequest) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stream.Send(r)
}

// answer answers one request, or says why it is refused.
func (s *Pods) answer(ctx context.Context, request *schedulingv1.AttendResponse, refused error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out, err := s.agents.Deliver(ctx)
	if err != nil {
		return err
	}
	d := &delivery{stream: out}
	if err := d.send(&schedulingv1.DeliverRequest{NodeName: s.cfg.Node, Id: request.GetId()}); err != nil {
		return err
	}
	last := &schedulingv1.DeliverRequest{}
	switch {
	case refused != nil:
		err, last.Exhausted = refused, true
	case request.GetLog() != nil:
		d.listen(nil, cancel)
		err = s.readLog(ctx, request.GetUid(), request.GetLog(), func(b []byte) error {
			return d.send(&schedulingv1.DeliverRequest{Stdout: b})
		})
	case request.GetExec() != nil:
		var code int32
		if code, err = s.exec(ctx, cancel, request.GetUid(), request.GetExec(), d); err == nil {
			last.ExitCode = &code
		}
	case request.GetMetrics():
		err = s.sendMetrics(d)
	default:
		err = errors.New("unknown request type")
	}
	if err != nil {
		last.Error = err.Error()
	}
	return d.finish(ctx, last)
}

// finish sends the last message and waits until the other side has everything.
func (d *delivery) finish(ctx context.Context, last *schedulingv1.DeliverRequest) error {
	if last.GetError() != "" || last.ExitCode != nil {
		if err := d.send(last); err != nil {
			return fmt.Errorf("last word: %w", err)
		}
	}
	if err := d.stream.CloseSend(); err != nil {
		return err
	}
	if d.ended == nil {
		d.listen(nil, func() {})
	}
	timer := time.NewTimer(callPatience)
	defer timer.Stop()
	select {
	case <-d.ended:
	case <-ctx.Done():
	case <-timer.C:
	}
	return nil
}

// listen writes to w, unless it is nil, what comes for a command, and calls enough when the other side has ended the
// stream. It is called once.
func (d *delivery) listen(w io.WriteCloser, enough func()) {
	d.listenTo(w, func(*schedulingv1.TerminalSize) {}, enough)
}

// listenTo is listen for a command with a terminal, whose size resize changes.
func (d *delivery) listenTo(w io.WriteCloser, resize func(*schedulingv1.TerminalSize), enough func()) {
	d.ended = make(chan struct{})
	go func() {
		defer close(d.ended)
		defer enough()
		open := w != nil
		for {
			r, err := d.stream.Recv()
			if r.GetTerminalSize() != nil {
				resize(r.GetTerminalSize())
			}
			if open && len(r.GetStdin()) > 0 {
				_, failed := w.Write(r.GetStdin())
				open = failed == nil // else the command does not read any more
			}
			if w != nil && (!open || r.GetStdinClosed() || err != nil) {
				_ = w.Close()
				open = false
			}
			if err != nil {
				return
			}
		}
	}()
}
