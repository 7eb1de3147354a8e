package split

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/windlass-dev/windlass/services/gateway/share"
)

const (
	// maxAnonymous is the default of Limits.Anonymous where a process may open very many files: each connection takes
	// about 40 KiB.
	maxAnonymous = 4000
	// unknownTime is the default of Limits.Unknown: longer than a join takes.
	unknownTime = 20 * time.Second
	// Strikes are counted over strikeWindow; a client that makes maxStrikes in it loses its connection.
	strikeWindow = 10 * time.Second
	maxStrikes   = 1000
)

// Limits are how many connections there may be. Zero fields have the defaults.
type Limits struct {
	// Anonymous is how many connections there may be in all whose caller is not known, those in their handshake included.
	// The default is a quarter of the files that the process may open, at most 4,000.
	Anonymous int
	// PerAddress is how many of them one address, or IPv6 network of 64 bits, may have; the default is an eighth of
	// Anonymous.
	PerAddress int
	// PerUser is how many connections one known user may have; the default is a quarter of Anonymous.
	PerUser int
	// Unknown is what a client without a certificate has to make a request with a good token, or to join. Then it loses
	// its connection. The default is 20 s.
	Unknown time.Duration
}

func (l Limits) withDefaults() Limits {
	if l.Anonymous <= 0 {
		l.Anonymous = maxAnonymous
		var files syscall.Rlimit
		if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err == nil && files.Cur/4 < maxAnonymous {
			l.Anonymous = int(files.Cur / 4)
		}
	}
	if l.PerAddress <= 0 {
		l.PerAddress = max(1, l.Anonymous/8)
	}
	if l.Unknown <= 0 {
		l.Unknown = unknownTime
	}
	if l.PerUser <= 0 {
		l.PerUser = max(1, l.Anonymous/4)
	}
	return l
}

// door knows every connection and lets in no more than the limits allow. A quarter of the share of unknown callers is
// for handshakes: when that is full the oldest one ends of the addresses that have at least the average number of them,
// so that a caller with a certificate comes through: its handshake takes milliseconds, and a slow one from an address
// that has few is not ended for a flood from others.
type door struct {
	limits Limits
	closed func(reason string)
	// turns bounds how many handshakes compute at a time, so that a flood of them leaves processors for callers.
	turns chan struct{}

	mu         sync.Mutex
	conns      map[string]*offer // by the client's address and port
	total      int
	shaking    *list.List     // of *offer, the oldest first
	handshakes map[string]int // their number, by the client's address
	anonymous  map[string]int // connections without a known caller, by the client's address
	unknown    int            // their sum
	users      map[string]int // connections of known callers
}

func newDoor(limits Limits, closed func(string)) *door {
	return &door{
		limits: limits.withDefaults(), closed: closed, turns: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)),
		conns: map[string]*offer{}, shaking: list.New(), handshakes: map[string]int{}, anonymous: map[string]int{},
		users: map[string]int{},
	}
}

// enter begins a handshake.
func (d *door) enter(conn net.Conn) *offer {
	o := &offer{Conn: conn, door: d, addr: conn.RemoteAddr().String()}
	o.host = share.Host(o.addr)
	d.mu.Lock()
	var ended *offer
	if d.shaking.Len() >= max(1, d.limits.Anonymous/4) {
		ended = d.dispensable()
		d.leave(ended)
	}
	d.conns[o.addr] = o
	d.total++
	o.place = d.shaking.PushBack(o)
	d.handshakes[o.host]++
	d.mu.Unlock()
	if ended != nil {
		d.closed("handshake")
		ended.Conn.Close()
	}
	return o
}

// dispensable returns the handshake that ends for a new one, of which there must be one; d.mu is held.
func (d *door) dispensable() *offer {
	for e := d.shaking.Front(); ; e = e.Next() { // not every address has fewer than the average
		if o := e.Value.(*offer); d.handshakes[o.host]*len(d.handshakes) >= d.shaking.Len() {
			return o
		}
	}
}

// shaken takes a connection out of the handshakes; d.mu is held.
func (d *door) shaken(o *offer) {
	d.shaking.Remove(o.place)
	o.place = nil
	less(d.handshakes, o.host)
}

// shake makes the handshake, of which only so many compute at a time.
func (d *door) shake(ctx context.Context, conn *tls.Conn, o *offer) error {
	d.turns <- struct{}{}
	defer func() { <-d.turns }()
	o.shaking.Store(true)
	defer o.shaking.Store(false)
	return conn.HandshakeContext(ctx)
}

// admit takes a connection whose handshake is done; user is empty if it had no certificate. False: there is no room for
// it.
func (d *door) admit(o *offer, user string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if o.left {
		return false // it was ended for a newer handshake
	}
	d.shaken(o)
	if user != "" {
		return d.count(o, user)
	}
	if d.unknown >= d.limits.Anonymous-d.limits.Anonymous/4 || d.anonymous[o.host] >= d.limits.PerAddress {
		return false
	}
	d.unknown++
	d.anonymous[o.host]++
	o.nameless = true
	o.timer = time.AfterFunc(d.limits.Unknown, func() { d.expire(o) })
	return true
}

// count counts a connection for its user; d.mu is held.
func (d *door) count(o *offer, user string) bool {
	if d.users[user] >= d.limits.PerUser {
		return false
	}
	d.users[user]++
	o.user = user
	return true
}

func (d *door) expire(o *offer) {
	d.mu.Lock()
	nameless := o.nameless
	d.mu.Unlock()
	if nameless {
		d.closed("unknown")
		o.Close()
	}
}

// leave forgets a connection; d.mu is held.
func (d *door) leave(o *offer) {
	if o.left {
		return
	}
	o.left = true
	d.total--
	if d.conns[o.addr] == o { // a newer connection may have the same address already
		delete(d.conns, o.addr)
	}
	if o.timer != nil {
		o.timer.Stop()
	}
	if o.place != nil {
		d.shaken(o)
	}
	if o.user != "" {
		less(d.users, o.user)
	}
	d.named(o)
}

// named takes a connection out of the share of unknown callers; d.mu is held.
func (d *door) named(o *offer) {
	if o.nameless {
		o.nameless = false
		d.unknown--
		less(d.anonymous, o.host)
	}
}

func less(counts map[string]int, key string) {
	if counts[key]--; counts[key] <= 0 {
		delete(counts, key)
	}
}

// Known says that the caller at a client's address is user, by a token. The connection no longer counts as unknown
// then. It is closed if the user has too many.
func (s *Splitter) Known(addr, user string) {
	d := s.door
	d.mu.Lock()
	o := d.conns[addr]
	if o == nil || !o.nameless || user == "" {
		d.mu.Unlock()
		return
	}
	o.timer.Stop()
	d.named(o)
	ok := d.count(o, user)
	d.mu.Unlock()
	if !ok {
		d.closed("user")
		o.Close()
	}
}

// Strike counts something against a client that a friendly one does rarely: a call that it gave up at once, or one
// without the credentials that it needs. Too many within ten seconds end the connection.
func (s *Splitter) Strike(addr string) {
	d := s.door
	d.mu.Lock()
	o := d.conns[addr]
	if o == nil {
		d.mu.Unlock()
		return
	}
	if now := time.Now(); now.Sub(o.since) > strikeWindow {
		o.since, o.strikes = now, 0
	}
	o.strikes++
	over := o.strikes == maxStrikes
	d.mu.Unlock()
	if over {
		d.closed("strikes")
		o.Close()
	}
}

// Counts returns how many connections there are: in their handshake, without a known caller, and with one.
func (s *Splitter) Counts() (shaking, anonymous, known int) {
	d := s.door
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.shaking.Len(), d.unknown, d.total - d.shaking.Len() - d.unknown
}

// offer is a connection that remembers what its client offered, and its place at the door, which it leaves when it is
// closed.
type offer struct {
	net.Conn
	onlyH2 bool

	door       *door
	addr, host string
	shaking    atomic.Bool // from the first byte to the end of the handshake

	// The door's, under its lock.
	left     bool
	place    *list.Element // among the handshakes
	nameless bool
	user     string
	timer    *time.Timer
	strikes  int
	since    time.Time

	mu     sync.Mutex
	closed bool
	stop   func() // nil if there is no certificate
}

// Read gives the turn to compute back while it waits for the client.
func (o *offer) Read(p []byte) (int, error) {
	if !o.shaking.Load() {
		return o.Conn.Read(p)
	}
	<-o.door.turns
	n, err := o.Conn.Read(p)
	o.door.turns <- struct{}{}
	return n, err
}

// follow has stop called when the connection is closed: it ends the following of the client's certificate.
func (o *offer) follow(stop func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		stop()
		return
	}
	o.stop = stop
}

// Close leaves the door and closes the connection.
func (o *offer) Close() error {
	o.mu.Lock()
	o.closed = true
	if o.stop != nil {
		o.stop()
		o.stop = nil
	}
	o.mu.Unlock()
	o.door.mu.Lock()
	o.door.leave(o)
	o.door.mu.Unlock()
	return o.Conn.Close()
}
