package split

import (
	"crypto/tls"
	"net"
	"sync"
)

// lane is the listener of one kind of client. Closing it does not close the other one.
type lane struct {
	addr   net.Addr
	conns  chan *tls.Conn
	closed chan struct{}
	once   sync.Once
}

func newLane(addr net.Addr) *lane {
	return &lane{addr: addr, conns: make(chan *tls.Conn), closed: make(chan struct{})}
}

func (l *lane) hand(conn *tls.Conn) {
	select {
	case l.conns <- conn:
	case <-l.closed:
		conn.Close()
	}
}

// Accept waits for the next connection; after Close it returns net.ErrClosed.
func (l *lane) Accept() (net.Conn, error) {
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	default:
	}
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends this lane alone. It may be called many times.
func (l *lane) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr is the address of the one listener.
func (l *lane) Addr() net.Addr { return l.addr }
