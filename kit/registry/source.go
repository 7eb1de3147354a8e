// Package registry reaches registries of images: by which mirrors, authorities and credentials, and no longer than they
// make progress. What is read is checked by its callers, who know the digests.
package registry

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

// Source is one place that may have an image, with one credential.
type Source struct {
	Ref  name.Reference // at that place
	Host string         // with the port
	Near bool           // a mirror, or on this host

	auth     authn.Authenticator
	settings Settings
	patience time.Duration
}

// Sources returns where and how to ask for an image, in this order. patience is how long a registry may take for the
// next 64 KiB; 0 means a minute.
func (s Settings) Sources(ref name.Reference, creds []Credential, patience time.Duration) ([]Source, error) {
	if patience == 0 {
		patience = defaultPatience
	}
	var out []Source
	for _, e := range s.endpoints(HostName(ref.Context().RegistryStr())) {
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
			out = append(out, Source{Ref: at, Host: e.host, Near: e.near, auth: auth, settings: s, patience: patience})
		}
	}
	return out, nil
}

// Get asks for what the reference names: an image or an index. ctx also bounds what is read through the answer later.
// received counts the bytes that arrive; nil counts none. end closes connections that are idle.
func (s Source) Get(ctx context.Context, received *atomic.Int64) (named *remote.Descriptor, end func(), err error) {
	if received == nil {
		received = new(atomic.Int64)
	}
	t, err := s.transport(received)
	if err != nil {
		return nil, nil, err
	}
	once := remote.WithRetryBackoff(remote.Backoff{Duration: time.Millisecond, Steps: 1}) // callers try again
	named, err = remote.Get(s.Ref, remote.WithContext(ctx), remote.WithTransport(t), remote.WithAuth(s.auth), once,
		remote.WithPlatform(v1.Platform{OS: runtime.GOOS, Architecture: runtime.GOARCH}))
	if err != nil {
		t.base.CloseIdleConnections()
		return nil, nil, err
	}
	return named, t.base.CloseIdleConnections, nil
}

// IsNotFound reports whether a registry says that it does not have an image.
func IsNotFound(err error) bool {
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

// IsTransport reports whether an error is the network's or the registry's, not the image's.
func IsTransport(err error) bool {
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
	received *atomic.Int64
}

func (s Source) transport(received *atomic.Int64) (*guard, error) {
	pool, err := s.settings.authorities(s.Host)
	if err != nil {
		return nil, fmt.Errorf("certificates for %s: %w", s.Host, err)
	}
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.DialContext = (&net.Dialer{Timeout: dialPatience}).DialContext
	base.TLSHandshakeTimeout = dialPatience
	base.ResponseHeaderTimeout = min(answerPatience, s.patience)
	base.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return &guard{
		base: base, plain: IsLoopback(HostOnly(s.Host)), patience: s.patience, received: received,
	}, nil
}

// RoundTrip implements http.RoundTripper.
func (g *guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && (!g.plain || !IsLoopback(r.URL.Hostname())) {
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
	out.Body = &watched{ReadCloser: out.Body, ctx: ctx, timer: timer, patience: g.patience, end: end, received: g.received}
	return out, nil
}

// watched is the body of an answer. Each leastBytes of it have the guard's patience.
type watched struct {
	io.ReadCloser
	ctx      context.Context
	timer    *time.Timer
	patience time.Duration
	end      func()
	received *atomic.Int64
	since    int
}

// Read implements io.Reader.
func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	w.received.Add(int64(n))
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
