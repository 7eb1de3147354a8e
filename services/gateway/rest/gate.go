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
}

type gateKey struct{}

func newGate(body io.ReadCloser) *gate { return &gate{ReadCloser: body, opened: make(chan struct{})} }

func (g *gate) open() { g.once.Do(func() { close(g.opened) }) }

// Read implements io.Reader. It waits until the gate is open or closed.
func (g *gate) Read(p []byte) (int, error) {
	<-g.opened
	return g.ReadCloser.Read(p)
}

// Close implements io.Closer.
func (g *gate) Close() error {
	err := g.ReadCloser.Close()
	g.open()
	return err
}

// Receive lets the body of a gRPC call come in that arrived over net/http, by the context of its stream. It does
// nothing for other calls.
func Receive(ctx context.Context) {
	if g, ok := ctx.Value(gateKey{}).(*gate); ok {
		g.open()
	}
}
