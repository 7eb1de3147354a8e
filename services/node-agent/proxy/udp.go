package proxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/backoff"
)

const (
	// udpIdle is how long a conversation lasts after its last datagram.
	udpIdle = 60 * time.Second
	// datagram is the size of the longest one.
	datagram = 65_535
)

// buffers have room for a datagram. A socket takes one only when there is something to read: most are idle.
var buffers = sync.Pool{New: func() any { return new([datagram]byte) }}

// await waits until there is something to read and reads it; the buffer must be put back if it is not nil.
func await(raw syscall.RawConn, read func(fd int, b []byte) (int, error)) (buffer *[datagram]byte, n int, err error) {
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		buffer = buffers.Get().(*[datagram]byte)
		n, failed = read(int(fd), buffer[:])
		for errors.Is(failed, unix.EINTR) {
			n, failed = read(int(fd), buffer[:])
		}
		if errors.Is(failed, unix.EAGAIN) {
			buffers.Put(buffer)
			buffer = nil
			return false
		}
		return true
	})
	if buffer != nil {
		err = errors.Join(err, failed)
	}
	return buffer, n, err
}

// receive leads the datagrams to l until it is closed.
func (o *port) receive(ctx context.Context, l *net.UDPConn, work *sync.WaitGroup) {
	t := &talks{port: o, from: l, current: map[netip.AddrPort]*talk{}}
	raw, err := l.SyscallConn()
	for again := backoff.New(firstAccept, longAccept); err == nil && ctx.Err() == nil; {
		var client netip.AddrPort
		buffer, n, err := await(raw, func(fd int, b []byte) (int, error) {
			n, from, err := unix.Recvfrom(fd, b, 0)
			client = addressOf(from)
			return n, err
		})
		if err == nil {
			again.Reset()
			t.lead(ctx, client, buffer[:n], work)
		}
		if buffer != nil {
			buffers.Put(buffer)
		}
		if err != nil {
			again.Wait(ctx)
		}
	}
}

func addressOf(a unix.Sockaddr) netip.AddrPort {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// talks are the conversations of one port.
type talks struct {
	port *port
	from *net.UDPConn

	mu      sync.Mutex
	current map[netip.AddrPort]*talk // by client
}

// talk is a conversation of one client with one pod.
type talk struct {
	client netip.AddrPort
	pod    string
	at     netip.AddrPort
	to     *net.UDPConn
	began  time.Time
	slot   atomic.Bool  // it has one: the one that takes it away gives it back
	last   atomic.Int64 // when the last datagram came, of either side, in nanoseconds since it began
}

// abort implements flow.
func (t *talk) abort() { _ = t.to.Close() }

func (t *talk) touch() { t.last.Store(int64(time.Since(t.began))) }

// active returns when the last datagram came.
func (t *talk) active() time.Time { return t.began.Add(time.Duration(t.last.Load())) }

// lead sends a datagram to the pod that its client talks to. Without one that serves it is dropped, as networks do.
func (s *talks) lead(ctx context.Context, client netip.AddrPort, b []byte, work *sync.WaitGroup) {
	for range 2 {
		t := s.of(ctx, client, work)
		if t == nil {
			return
		}
		t.touch()
		if _, err := t.to.Write(b); err == nil {
			return
		}
		s.refused(t) // this is said of the datagram before
	}
}

// of returns the conversation of a client: the one that it has, if the pod still serves, or a new one. Replies of the
// former pod are passed on until that conversation is idle.
func (s *talks) of(ctx context.Context, client netip.AddrPort, work *sync.WaitGroup) *talk {
	s.mu.Lock()
	t := s.current[client]
	s.mu.Unlock()
	if t != nil && s.port.serves(t.pod, t.at) {
		return t
	}
	if !s.port.take(ctx) && !s.endOldest() {
		return nil
	}
	if t = s.begin(client); t == nil {
		s.port.slots.give()
		return nil
	}
	t.slot.Store(true)
	work.Go(func() {
		s.answer(t)
		if t.slot.CompareAndSwap(true, false) {
			s.port.slots.give()
		}
	})
	return t
}

// begin begins a conversation with a pod that serves; nil if there is none.
func (s *talks) begin(client netip.AddrPort) *talk {
	source := client.Addr().Unmap()
	for _, e := range s.port.choose(source) {
		to, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(e.Address))
		if err != nil {
			continue
		}
		t := &talk{client: client, pod: e.Pod, at: e.Address, to: to, began: time.Now()}
		if !s.port.add(t, source, e.Pod) {
			t.abort() // the pod has left the service
			continue
		}
		s.mu.Lock()
		s.current[client] = t
		s.mu.Unlock()
		return t
	}
	return nil
}

// end ends a conversation; the next datagram of its client begins another one.
func (s *talks) end(t *talk) {
	t.abort()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current[t.client] == t {
		delete(s.current, t.client)
	}
}

// refused ends a conversation with a pod that does not listen; its client is led to another one.
func (s *talks) refused(t *talk) {
	s.port.forget(t.client.Addr().Unmap())
	s.end(t)
}

// endOldest ends the conversation that was idle longest, and reports whether its slot is the caller's now.
func (s *talks) endOldest() bool {
	s.mu.Lock()
	var oldest *talk
	for _, t := range s.current {
		if oldest == nil || t.active().Before(oldest.active()) {
			oldest = t
		}
	}
	s.mu.Unlock()
	if oldest == nil {
		return false
	}
	s.end(oldest)
	return oldest.slot.CompareAndSwap(true, false)
}

// answer passes on the pod's datagrams until the conversation is idle, or is ended.
func (s *talks) answer(t *talk) {
	defer s.port.remove(t)
	defer s.end(t)
	raw, err := t.to.SyscallConn()
	if err != nil {
		return
	}
	for {
		_ = t.to.SetReadDeadline(t.active().Add(s.port.slots.of.idle))
		err := s.pass(t, raw)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && time.Since(t.active()) < s.port.slots.of.idle:
		case err != nil:
			if errors.Is(err, unix.ECONNREFUSED) {
				s.refused(t)
			}
			return
		}
	}
}

// pass waits for one datagram of the pod and passes it on.
func (s *talks) pass(t *talk, raw syscall.RawConn) error {
	buffer, n, err := await(raw, unix.Read)
	if buffer != nil {
		defer buffers.Put(buffer)
	}
	if err != nil {
		return err
	}
	t.touch()
	_, _ = s.from.WriteToUDPAddrPort(buffer[:n], t.client) // a client that has gone does not count
	return nil
}
