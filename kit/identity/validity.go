package identity

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/topology"
)

const (
	// lookAgain bounds how long a credential goes unchecked: timers do not notice that the clock was set, that the host
	// slept, or that a file changed.
	lookAgain = time.Second
	// closeAfter is how long a connection stays open once its certificate is refused: calls on it are answered with the
	// reason.
	closeAfter = time.Second
)

// Credential is what a client presented: a certificate, or a token that the gateway checked.
type Credential struct {
	User     string    // empty for certificates of services and nodes
	Issued   time.Time // zero if not known: every revocation of the user concerns it then
	NotAfter time.Time // zero means that it has no end

	serial, machine string
}

// CertificateCredential returns the credential that a verified certificate is.
func CertificateCredential(cert *x509.Certificate) Credential {
	c := Credential{Issued: IssuedAt(cert), NotAfter: cert.NotAfter, serial: SerialNumber(cert)}
	caller, err := FromCertificate(cert)
	if err != nil {
		return c // it names no caller, which is refused elsewhere
	}
	c.machine = caller.UID
	if !caller.In(GroupServices) && !caller.In(GroupNodes) {
		c.User = caller.User
	}
	return c
}

// badCredential is why a credential is refused.
type badCredential struct{ text string }

func (b *badCredential) Error() string { return b.text }

// unentitled is why something ends whose credential is good. The error is a status.
type unentitled struct{ error }

func (u *unentitled) Unwrap() error { return u.error }

// Validity decides whether credentials are still good, that is neither expired nor revoked, and ends what was opened
// with them when they no longer are. Its methods are safe for concurrent use.
type Validity struct {
	path string
	// file of the authorities that clients' certificates must be of; empty: connections outlive a change of it
	ca     string
	linger time.Duration // how long a connection stays open once its certificate is refused

	mu     sync.Mutex
	denied denied
	lost   error // why the deny list is not known; nil if it is
	open   map[*use]struct{}
	timer  *time.Timer // of the next look; nil while nothing is open
	next   time.Time

	looking sync.Mutex // held while files are checked; guards the three below
	stamp   stamp
	trusted []*x509.Certificate
	reading int // counts the changes of trusted
}

// use is something that is open by a credential.
type use struct {
	credential Credential
	end        func(error)
	still      func() error // asked at each look; nil: the credential alone decides

	cert    *x509.Certificate // of a connection: must be of an authority that is trusted still; nil for a stream
	checked int               // the reading of the authorities that it was last checked by
}

// OpenValidity returns a Validity with the last copy of the deny list, which is kept in the file at path; an empty path
// keeps none. If that file cannot be read, the error says so, and Unknown refuses callers until Deny was called. The
// Validity is never nil.
func OpenValidity(path string) (*Validity, error) {
	v := &Validity{path: path, linger: closeAfter, open: map[*use]struct{}{}, denied: index(nil)}
	if path == "" {
		return v, nil
	}
	list, err := readRevocations(path)
	v.denied, v.lost = index(list), err
	return v, err
}

// Trust has the connections of CloseConn and Credentials closed soon after the authority of their certificate was
// removed from a file. It must be called before they are.
func (v *Validity) Trust(caFile string) { v.ca = caFile }

// CloseAtOnce has connections closed at the moment at which their certificate is refused: for a server that does not
// answer calls with the reason. It must be called before CloseConn and Credentials.
func (v *Validity) CloseAtOnce() { v.linger = 0 }

// Deny sets the deny list, which is in force when it returns: what is open by a credential that it refuses is ended.
// Keep writes it to disk.
func (v *Validity) Deny(list []Revocation) {
	v.mu.Lock()
	v.denied, v.lost = index(list), nil
	v.mu.Unlock()
	v.endRefused()
}

// Keep writes a deny list to disk, for the next process, which begins with it.
func (v *Validity) Keep(list []Revocation) error {
	if v.path == "" {
		return nil
	}
	return writeRevocations(v.path, list)
}

// Lost returns why the deny list is not known: its file could not be read and Deny was not called since. It returns
// nil if it is known.
func (v *Validity) Lost() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.lost
}

// Unknown returns a status if a caller must be refused at a service because the deny list is not known. Services' own
// calls pass, because the list comes by one of them, and those of agents to etcd-guardian, because members of etcd are
// started through them. Callers without credentials have nothing that could be revoked.
func (v *Validity) Unknown(c Caller, service string) error {
	lost := v.Lost()
	_, sibling := c.Service()
	_, node := c.Node()
	if lost == nil || c.User == "" || sibling || node && service == topology.EtcdGuardian {
		return nil
	}
	return rpcerr.Unavailable(
		"which credentials are revoked is not known until machine-api answers: the copy on disk cannot be read")
}

// Check returns why a credential is refused, nil if it is good.
func (v *Validity) Check(c Credential) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.check(c, time.Now())
}

func (v *Validity) check(c Credential, now time.Time) error {
	if !c.NotAfter.IsZero() && now.Round(0).After(c.NotAfter) { // without the monotonic part: the clock may have been set
		return &badCredential{"the credentials expired at " + c.NotAfter.UTC().Format(time.RFC3339)}
	}
	return v.denied.refusal(c)
}

// Follow has end called, once and from another goroutine, when a credential is no longer good; stop is called when that
// is of no more interest.
func (v *Validity) Follow(c Credential, end func(error)) (stop func()) {
	return v.follow(&use{credential: c, end: end})
}

func (v *Validity) follow(u *use) (stop func()) {
	c := u.credential
	v.mu.Lock()
	v.open[u] = struct{}{}
	next := time.Now().Add(lookAgain)
	if err := v.check(c, time.Now()); err != nil {
		next = time.Now()
	} else if !c.NotAfter.IsZero() && c.NotAfter.Before(next) {
		next = c.NotAfter
	}
	v.schedule(next)
	v.mu.Unlock()
	return func() {
		v.mu.Lock()
		delete(v.open, u)
		v.mu.Unlock()
	}
}

// schedule makes the next look come at the given time or before. The lock is held.
func (v *Validity) schedule(at time.Time) {
	wait := max(0, time.Until(at))
	switch {
	case v.timer == nil:
		v.timer = time.AfterFunc(wait, v.look)
	case at.Before(v.next):
		v.timer.Reset(wait)
	default:
		return
	}
	v.next = at
}

// look ends what is open by credentials that are no longer good, or by callers who lost what it needs.
func (v *Validity) look() {
	v.endRefused()
	// Reading a file may hang. The next check does not wait for it, and ends what has expired by then.
	if !v.looking.TryLock() {
		return
	}
	defer v.looking.Unlock()
	v.endOrphans()
	v.endUnentitled()
}

// endRefused ends what is open by credentials that expired or were revoked, and schedules the next look.
func (v *Validity) endRefused() {
	over := map[*use]error{}
	v.mu.Lock()
	now := time.Now()
	next := now.Add(lookAgain)
	for u := range v.open {
		if err := v.check(u.credential, now); err != nil {
			over[u] = err
			delete(v.open, u)
		} else if end := u.credential.NotAfter; !end.IsZero() && end.Before(next) {
			next = end.Add(time.Millisecond) // the end itself is the last good moment
		}
	}
	if v.timer != nil {
		v.timer.Stop()
		v.timer = nil
	}
	if len(v.open) > 0 {
		v.schedule(next)
	}
	v.mu.Unlock()
	for u, err := range over {
		u.end(err)
	}
}

// endOrphans ends the connections whose certificate is of no authority that is trusted still. Each is checked once by a
// reading of the file, since that costs a signature. The lock of a look is held.
func (v *Validity) endOrphans() {
	if v.ca == "" {
		return
	}
	if s, err := stampOf(v.ca); err == nil && !s.same(v.stamp) {
		if certs, err := readCertificates(v.ca); err == nil {
			v.stamp, v.trusted = s, certs
			v.reading++
		}
	}
	for _, u := range v.openThat(func(u *use) bool { return u.cert != nil && u.checked != v.reading }) {
		u.checked = v.reading
		if !slices.ContainsFunc(v.trusted, func(ca *x509.Certificate) bool { return issued(ca, u.cert) }) {
			v.endOne(u, &badCredential{"the authority of the certificate is no longer trusted"})
		}
	}
}

// endUnentitled ends what says itself that it must end. The lock of a look is held.
func (v *Validity) endUnentitled() {
	for _, u := range v.openThat(func(u *use) bool { return u.still != nil }) {
		if err := u.still(); err != nil {
			v.endOne(u, &unentitled{err})
		}
	}
}

func (v *Validity) openThat(is func(*use) bool) []*use {
	v.mu.Lock()
	defer v.mu.Unlock()
	var found []*use
	for u := range v.open {
		if is(u) {
			found = append(found, u)
		}
	}
	return found
}

// endOne ends a use unless that was closed by now.
func (v *Validity) endOne(u *use, why error) {
	v.mu.Lock()
	_, open := v.open[u]
	delete(v.open, u)
	v.mu.Unlock()
	if open {
		u.end(why)
	}
}

// Bound returns a context that ends when the credential is no longer good, or within about a second after still
// returned an error, which must be a status; Refusal then returns why. still may be nil. stop must be called.
func (v *Validity) Bound(ctx context.Context, c Credential, still func() error) (bound context.Context, stop func()) {
	bound, cancel := context.WithCancelCause(ctx)
	unfollow := v.follow(&use{credential: c, end: func(err error) { cancel(err) }, still: still})
	return bound, func() {
		unfollow()
		cancel(nil)
	}
}

// Refusal returns, as a status, why Bound ended a context; nil if something else did.
func Refusal(ctx context.Context) error {
	var bad *badCredential
	if errors.As(context.Cause(ctx), &bad) {
		return rpcerr.Unauthenticated(bad.Error())
	}
	var lost *unentitled
	if errors.As(context.Cause(ctx), &lost) {
		return lost.error
	}
	return nil
}

// CloseConn has a connection closed soon after the certificate that was shown on it is no longer good, or of no
// authority that is trusted. stop is called when it is closed.
func (v *Validity) CloseConn(conn net.Conn, cert *x509.Certificate) (stop func()) {
	end := func(error) { time.AfterFunc(v.linger, func() { _ = conn.Close() }) }
	return v.follow(&use{credential: CertificateCredential(cert), end: end, cert: cert})
}

// Credentials returns credentials of a gRPC server whose connections are closed soon after the client's certificate is
// no longer good, so that the client connects again with its newest one.
func (v *Validity) Credentials(inner credentials.TransportCredentials) credentials.TransportCredentials {
	return &closing{TransportCredentials: inner, validity: v}
}

type closing struct {
	credentials.TransportCredentials
	validity *Validity
}

func (c *closing) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	cert := certificateOf(info)
	if cert == nil {
		return conn, info, nil
	}
	return &closingConn{Conn: conn, stop: c.validity.CloseConn(conn, cert)}, info, nil
}

func (c *closing) Clone() credentials.TransportCredentials {
	return &closing{TransportCredentials: c.TransportCredentials.Clone(), validity: c.validity}
}

// closingConn is a connection that stops to be followed when it is closed.
type closingConn struct {
	net.Conn
	stop func()
}

func (c *closingConn) Close() error {
	c.stop()
	return c.Conn.Close()
}

// certificateOf returns the verified certificate of a connection's other end, nil if it showed none.
func certificateOf(info credentials.AuthInfo) *x509.Certificate {
	tls, ok := info.(credentials.TLSInfo)
	if !ok || len(tls.State.VerifiedChains) == 0 {
		return nil
	}
	return tls.State.PeerCertificates[0]
}

// peerCertificate returns the verified certificate of the connection that a call came by, nil if there is none.
func peerCertificate(ctx context.Context) *x509.Certificate {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	return certificateOf(p.AuthInfo)
}

// Expiry says of a certificate when it expires, for people: "expires in 29 days" or "expired 2 hours ago".
func Expiry(notAfter, now time.Time) string {
	d := notAfter.Sub(now)
	if d < 0 {
		return fmt.Sprintf("expired %s ago", rough(-d))
	}
	return "expires in " + rough(d)
}

func rough(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d hours", int(d.Hours()))
	case d >= 2*time.Minute:
		return fmt.Sprintf("%d minutes", int(d.Minutes()))
	}
	return fmt.Sprintf("%d seconds", int(d.Seconds()))
}
