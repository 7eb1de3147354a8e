package image

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

const (
	dialPatience = 10 * time.Second
	// answerPatience is how long a registry may take to begin an answer.
	answerPatience = 30 * time.Second
	// defaultPatience is how long a registry may take for leastBytes more of an answer. Source: kubelet's former
	// image-pull-progress-deadline.
	defaultPatience = time.Minute
	leastBytes      = 64 << 10
)

var (
	errStalled = errors.New("the registry does not deliver any more")
	errPlain   = errors.New("plain http is for registries on loopback addresses only")
)

// progress counts what arrives of an image.
type progress struct {
	total    int64 // of the layers, as they are sent; 0 is not known
	received atomic.Int64
}

// source opens one image at one place, with one credential.
type source struct {
	endpoint
	ref      name.Reference // at the endpoint
	auth     authn.Authenticator
	settings Settings
	patience time.Duration
}

// sources returns where and how to ask for an image, in this order.
func (s Settings) sources(ref name.Reference, creds []Credential, patience time.Duration) ([]source, error) {
	var out []source
	for _, e := range s.endpoints(hostName(ref.Context().RegistryStr())) {
		var options []name.Option
		if e.plain {
			options = append(options, name.Insecure)
		}
		repository := strings.TrimPrefix(e.path+"/"+ref.Context().RepositoryStr(), "/")
		sep := ":"
		if _, ok := ref.(name.Digest); ok {
			sep = "@"
		}
		at, err := name.ParseReference(e.host+"/"+repository+sep+ref.Identifier(), options...)
		if err != nil {
			return nil, err
		}
		auths := matching(creds, e.host, repository)
		if len(auths) == 0 {
			auths = []authn.Authenticator{authn.Anonymous}
		}
		for _, auth := range auths {
			out = append(out, source{ref: at, endpoint: e, auth: auth, settings: s, patience: patience})
		}
	}
	return out, nil
}

// open returns the image as its registry has it: its manifest and its configuration are read and checked. Layers are
// read when it is unpacked, in a context of their own, since several pods may wait for them.
func (s source) open(ctx context.Context) (*Image, error) {
	life, cancel := context.WithCancelCause(context.Background())
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	defer stop()
	p := &progress{}
	t, err := s.transport(p)
	if err != nil {
		return nil, err
	}
	img, err := s.fetch(life, t, p)
	if err != nil {
		cancel(err)
		t.base.CloseIdleConnections()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, err
	}
	img.close = func(why error) {
		cancel(why)
		t.base.CloseIdleConnections()
	}
	return img, nil
}

func (s source) fetch(ctx context.Context, t http.RoundTripper, p *progress) (*Image, error) {
	// Attempts are repeated by the pod, after its back-off.
	once := remote.WithRetryBackoff(remote.Backoff{Duration: time.Millisecond, Steps: 1})
	named, err := remote.Get(s.ref, remote.WithContext(ctx), remote.WithTransport(t), remote.WithAuth(s.auth), once,
		remote.WithPlatform(v1.Platform{OS: runtime.GOOS, Architecture: runtime.GOARCH}))
	if err != nil {
		return nil, pullError(s.ref, err)
	}
	found, err := named.Image()
	if err != nil {
		return nil, pullError(s.ref, err)
	}
	digest, err := found.Digest()
	if err != nil {
		return nil, pullError(s.ref, err)
	}
	img, err := read(found, digest)
	if err != nil {
		return nil, pullError(s.ref, err)
	}
	if named.MediaType.IsIndex() {
		img.index = named.Digest.String()
	}
	manifest, err := found.Manifest()
	if err != nil {
		return nil, pullError(s.ref, err)
	}
	for _, l := range manifest.Layers {
		if p.total += l.Size; l.Size < 0 || p.total > maxBytes {
			return nil, fmt.Errorf("%w: %s: its layers have more than %d bytes", ErrBroken, s.ref, int64(maxBytes))
		}
	}
	p.received.Store(0) // what follows are layers
	img.received = p
	return img, nil
}

// pullError returns what went wrong as one of this package's errors.
func pullError(ref name.Reference, err error) error {
	if isNotFound(err) {
		return fmt.Errorf("%w: %s: %w", ErrNotFound, ref, err)
	}
	return fmt.Errorf("%w: %s: %w", errTransfer, ref, err)
}

// isNotFound reports whether a registry says that it does not have an image.
func isNotFound(err error) bool {
	var refused *transport.Error
	if !errors.As(err, &refused) {
		return false
	}
	for _, d := range refused.Errors {
		if d.Code == transport.ManifestUnknownErrorCode || d.Code == transport.NameUnknownErrorCode {
			return true
		}
	}
	return refused.StatusCode == http.StatusNotFound
}

// isTransport reports whether an error is the network's or the registry's, not the image's.
func isTransport(err error) bool {
	var refused *transport.Error
	var connection *net.OpError // not net.Error, which each error of a system call is
	var request *url.Error
	return errors.As(err, &refused) || errors.As(err, &connection) || errors.As(err, &request) ||
		errors.Is(err, errStalled) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, errPlain)
}

// guard is a transport that ends what hangs, and sends nothing in the clear to another host.
type guard struct {
	base     *http.Transport
	plain    bool // the registry is on a loopback address
	patience time.Duration
	progress *progress
}

func (s source) transport(p *progress) (*guard, error) {
	pool, err := s.settings.authorities(s.endpoint.host)
	if err != nil {
		return nil, fmt.Errorf("%w: certificates for %s: %w", errTransfer, s.endpoint.host, err)
	}
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.DialContext = (&net.Dialer{Timeout: dialPatience}).DialContext
	base.TLSHandshakeTimeout = dialPatience
	base.ResponseHeaderTimeout = min(answerPatience, s.patience)
	base.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return &guard{
		base: base, plain: isLoopback(hostOnly(s.endpoint.host)), patience: s.patience, progress: p,
	}, nil
}

// RoundTrip implements http.RoundTripper.
func (g *guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && (!g.plain || !isLoopback(r.URL.Hostname())) {
		return nil, fmt.Errorf("%s: %w", r.URL.Host, errPlain)
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	timer := time.AfterFunc(g.patience, func() { cancel(errStalled) })
	end := func() {
		timer.Stop()
		cancel(nil)
	}
	out, err := g.base.RoundTrip(r.WithContext(ctx))
	if err != nil {
		if errors.Is(context.Cause(ctx), errStalled) {
			err = fmt.Errorf("%w within %v", errStalled, g.patience)
		}
		end()
		return nil, err
	}
	out.Body = &watched{ReadCloser: out.Body, ctx: ctx, timer: timer, patience: g.patience, end: end, progress: g.progress}
	return out, nil
}

// watched is the body of an answer. Each leastBytes of it have the guard's patience.
type watched struct {
	io.ReadCloser
	ctx      context.Context
	timer    *time.Timer
	patience time.Duration
	end      func()
	progress *progress
	since    int
}

// Read implements io.Reader.
func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	w.progress.received.Add(int64(n))
	if w.since += n; w.since >= leastBytes {
		w.since = 0
		w.timer.Reset(w.patience)
	}
	if err != nil && !errors.Is(err, io.EOF) && errors.Is(context.Cause(w.ctx), errStalled) {
		err = fmt.Errorf("%w: less than %d bytes within %v", errStalled, leastBytes, w.patience)
	}
	return n, err
}

// Close implements io.Closer.
func (w *watched) Close() error {
	defer w.end()
	return w.ReadCloser.Close()
}
