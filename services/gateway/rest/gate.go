package rest

import (
	"context"
	"io"
	"sync"
)

// gate is a body that is not read before its call has room for it: gRPC's handler for net/http takes all that comes
// into memory at once.
type gate struct {
	io.ReadCloser
	once   sync.Once
	opened chan struct{}

	before  int // how many more bytes may come in before the gate is widened; negative means any number
	wide    sync.Once
	widened chan struct{}
}

type gateKey struct{}

// newGate returns a gate that lets in some bytes once it is open, and the rest once it is widened.
func newGate(body io.ReadCloser, before int) *gate {
	return &gate{ReadCloser: body, opened: make(chan struct{}), before: before, widened: make(chan struct{})}
}

func (g *gate) open() { g.once.Do(func() { close(g.opened) }) }

func (g *gate) widen() { g.wide.Do(func() { close(g.widened) }) }

// Read implements io.Reader. It waits until the gate is open or closed.
func (g *gate) Read(p []byte) (int, error) {
	<-g.opened
	if g.before == 0 {
		<-g.widened
		g.before = -1
	}
	if g.before > 0 && len(p) > g.before {
		p = p[:g.before]
	}
	n, err := g.ReadCloser.Read(p)
	if g.before > 0 {
		g.before -= n
	}
	return n, err
}

// Close implements io.Closer.
func (g *gate) Close() error {
	err := g.ReadCloser.Close()
	g.open()
	g.widen()
	return err
}

// Receive lets the body of a gRPC call come in that arrived over net/http, by the context of its stream. It does
// nothing for other calls.
func Receive(ctx context.Context) {
	if g, ok := ctx.Value(gateKey{}).(*gate); ok {
		g.open()
	}
}

// ReceiveLarge lets the rest of such a body come in, of a call that has room for a large request.
func ReceiveLarge(ctx context.Context) {
	if g, ok := ctx.Value(gateKey{}).(*gate); ok {
		g.widen()
	}
}
