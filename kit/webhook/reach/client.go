package reach

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"github.com/windlass-dev/windlass/kit/webhook"
)

// mostHeader bounds the header of an answer, in bytes.
const mostHeader = 64 << 10

// Server is how to connect to a server.
type Server struct {
	CABundle []byte // authorities of its certificate, in PEM; those of the host if it is empty
	Name     string // in its certificate; empty means the host of the address
	Calls    int    // how many may be under way
	// Allowed is asked about each address that is connected to, as Dialer describes.
	Allowed func(netip.Addr) error
}

// Client posts JSON to one server over https. It follows no redirect and uses no proxy. It is safe for concurrent use.
type Client struct {
	client http.Client
	agent  string
}

// NewClient returns a client that names itself agent.
func NewClient(s Server, agent string) (*Client, error) {
	cfg, err := TLS(s.CABundle)
	if err != nil {
		return nil, err
	}
	cfg.ServerName = s.Name
	return &Client{agent: agent, client: http.Client{
		// HTTP/1.1 alone: a call that times out closes its connection, which may be the one that is dead.
		Transport: &http.Transport{
			Proxy: nil, DialContext: Dialer(s.Allowed).DialContext, TLSClientConfig: cfg, MaxConnsPerHost: s.Calls,
			MaxIdleConnsPerHost: s.Calls, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: mostHeader,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Close closes the idle connections.
func (c *Client) Close() { c.client.CloseIdleConnections() }

// Post sends a body and returns the body of the answer, of at most so many bytes. Any status but 200 is an error. The
// text of an error is the same for the same cause, and has no query of the address.
func (c *Client) Post(ctx context.Context, address string, body []byte, most int) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", c.agent)
	at := webhook.Shown(address)
	resp, err := c.client.Do(req)
	if failed := (*url.Error)(nil); errors.As(err, &failed) {
		err = fmt.Errorf("%s: %w", at, withoutPort(failed.Err))
	}
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s, must be 200", at, resp.Status)
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, int64(most)+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the answer of %s: %w", at, withoutPort(err))
	case len(raw) > most:
		return nil, fmt.Errorf("the answer of %s is longer than %d bytes", at, most)
	}
	return raw, nil
}

// withoutPort takes our own end of the connection out of an error, since it differs each time.
func withoutPort(err error) error {
	op := (*net.OpError)(nil)
	if !errors.As(err, &op) || op.Source == nil {
		return err
	}
	one := *op
	one.Source = nil
	return &one
}
