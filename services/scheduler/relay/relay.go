// Package relay brings people who want to see a log or run a command together with the agent of the pod's node. Agents
// connect outwards and attend; a request is handed to the agent that attends for the node, which answers it on a
// stream of its own. Bytes pass through at the pace of the slower end, nothing is kept.
package relay

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// patience is how long an agent may take to answer a request: it is connected, so it answers at once or is stuck.
const patience = 10 * time.Second

// waiting is how many requests an agent may leave waiting before others are refused.
const waiting = 64

// Errors of a request.
var (
	ErrNobodyAttends = errors.New("its agent is not connected")
	ErrTooMany       = errors.New("its agent has too many requests to answer")
	ErrNoAnswer      = errors.New("its agent does not answer")
	ErrBrokeOff      = errors.New("its agent broke off")
	errUnknown       = errors.New("the caller no longer waits for it")
)

// Relay knows the agents that attend and the open requests. Make one with New; it is safe for concurrent use.
type Relay struct {
	mu       sync.Mutex
	agents   map[string]*Attendance // by node
	requests map[string]*Request    // by id
}

// New returns a relay that no agent attends.
func New() *Relay { return &Relay{agents: map[string]*Attendance{}, requests: map[string]*Request{}} }

// Attendance is an agent that is there.
type Attendance struct {
	Requests <-chan *schedulingv1.AttendResponse
	Replaced <-chan struct{} // closed when another stream attends for the node

	queue    chan *schedulingv1.AttendResponse
	replaced chan struct{}
}

// Attend notes that the agent of a node is there, in place of an earlier stream of it. Call leave when it goes.
func (r *Relay) Attend(node string) (a *Attendance, leave func()) {
	a = &Attendance{queue: make(chan *schedulingv1.AttendResponse, waiting), replaced: make(chan struct{})}
	a.Requests, a.Replaced = a.queue, a.replaced
	r.mu.Lock()
	defer r.mu.Unlock()
	if old := r.agents[node]; old != nil {
		close(old.replaced)
	}
	r.agents[node] = a
	return a, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.agents[node] == a {
			delete(r.agents, node)
		}
	}
}

// Request is something that an agent is asked for.
type Request struct {
	relay *Relay
	id    string
	node  string

	ctx    context.Context // ends when the caller is gone; of the request, not of a call
	cancel context.CancelFunc

	input  chan *schedulingv1.DeliverResponse
	output chan *schedulingv1.DeliverRequest
	taken  chan struct{} // closed when the agent answers
	ended  chan struct{} // closed when the agent says no more
	broken bool          // that was not all; read once ended is closed
}

// Ask hands a request to the agent of a node. It ends with ctx, or by Close, which must be called.
func (r *Relay) Ask(ctx context.Context, node string, what *schedulingv1.AttendResponse) (*Request, error) {
	var raw [16]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return nil, fmt.Errorf("id of a request: %w", err)
	}
	w := &Request{
		relay: r, id: hex.EncodeToString(raw[:]), node: node,
		input: make(chan *schedulingv1.DeliverResponse), output: make(chan *schedulingv1.DeliverRequest),
		taken: make(chan struct{}), ended: make(chan struct{}),
	}
	what.Id = w.id
	w.ctx, w.cancel = context.WithCancel(ctx)
	if err := r.hand(node, w, what); err != nil {
		w.cancel()
		return nil, err
	}
	return w, nil
}

func (r *Relay) hand(node string, w *Request, what *schedulingv1.AttendResponse) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.agents[node]
	if a == nil {
		return ErrNobodyAttends
	}
	select {
	case a.queue <- what:
	default:
		return ErrTooMany
	}
	r.requests[w.id] = w
	return nil
}

// Close ends a request; the agent is notified.
func (w *Request) Close() {
	w.cancel()
	w.relay.mu.Lock()
	defer w.relay.mu.Unlock()
	delete(w.relay.requests, w.id)
}

// Next returns what the agent says next: io.EOF after everything, ErrBrokeOff if that was not all, ErrNoAnswer if the
// agent does not begin.
func (w *Request) Next() (*schedulingv1.DeliverRequest, error) {
	if err := w.awaitTaken(); err != nil {
		return nil, err
	}
	select {
	case m := <-w.output:
		return m, nil
	case <-w.ended:
		if w.broken {
			return nil, ErrBrokeOff
		}
		return nil, io.EOF
	case <-w.ctx.Done():
		return nil, w.ctx.Err()
	}
}

func (w *Request) awaitTaken() error {
	select {
	case <-w.taken:
		return nil
	default:
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-w.taken:
		return nil
	case <-timer.C:
		return ErrNoAnswer
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
}

// Send gives the agent input; it returns when the agent has taken it. Once the agent has sent its last message no
// input is needed and Send does nothing.
func (w *Request) Send(m *schedulingv1.DeliverResponse) error {
	select {
	case w.input <- m:
		return nil
	case <-w.ended:
		return nil
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
}

// Answer is the agent's end of a request.
type Answer struct{ w *Request }

// Take returns the agent's end of the request of that id. It can be taken once, by the node that was asked.
func (r *Relay) Take(node, id string) (Answer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.requests[id]
	if w == nil || w.node != node {
		return Answer{}, errUnknown
	}
	select {
	case <-w.taken:
		return Answer{}, errUnknown
	default:
	}
	close(w.taken)
	return Answer{w}, nil
}

// Done is closed when the caller no longer waits for the answer.
func (a Answer) Done() <-chan struct{} { return a.w.ctx.Done() }

// Input is what the caller sends.
func (a Answer) Input() <-chan *schedulingv1.DeliverResponse { return a.w.input }

// Say passes on what the agent says; ErrUnknown if the caller no longer waits for it.
func (a Answer) Say(m *schedulingv1.DeliverRequest) error {
	select {
	case a.w.output <- m:
		return nil
	case <-a.w.ctx.Done():
		return errUnknown
	}
}

// End says that nothing follows; err is why, and nil if that was all. It is called once.
func (a Answer) End(err error) {
	a.w.broken = err != nil
	close(a.w.ended)
}
