// Package webhook calls custom admission controllers, over https with Kubernetes' AdmissionReview or over gRPC. It
// bounds the calls of each, and stops calling one that does not answer.
package webhook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	admissionv1 "github.com/windlass-dev/windlass/gen/windlass/admission/v1"
	"github.com/windlass-dev/windlass/kit/webhook"
	"github.com/windlass-dev/windlass/kit/webhook/reach"

	"github.com/windlass-dev/windlass/services/scheduler/admission/plan"
)

const (
	mostAnswer = 4 << 20 // bytes: a patch may contain a whole object
	// mostPeers is how many webhooks may have connections. Past it all begin again, so that deleted configurations leave
	// nothing behind.
	mostPeers = 1024
	// perWebhook is how many calls of one webhook may be under way; others wait for one of them to end.
	perWebhook = 32
)

// Caller calls webhooks. Its methods are safe for concurrent use.
type Caller struct {
	Allowed []string // addresses as webhook.Allowed describes them
	Now     func() time.Time
	Log     *slog.Logger

	// reach returns why an address may not be connected to; nil means reach.Allowed.
	reach func(netip.Addr) error

	mu    sync.Mutex
	peers map[peerKey]*peer
}

type peerKey struct{ kind, configuration, name string }

// peer is a webhook as one version of its configuration describes it. A change of the configuration makes a new one, so
// that a repaired webhook is called at once.
type peer struct {
	version string
	gate    *reach.Gate
	client  client
}

// client is a connection to a webhook.
type client interface {
	review(ctx context.Context, r *admissionv1.ReviewRequest) (*admissionv1.ReviewResponse, error)
	close() // after all calls have ended
}

// Review has a webhook review a write, within the time that its configuration gives. An error means that it did not
// answer.
func (c *Caller) Review(ctx context.Context, h plan.Hook, r *admissionv1.ReviewRequest) (*admissionv1.ReviewResponse,
	error,
) {
	address := h.GetClientConfig().GetUrl()
	if !plan.Allowed(address, c.Allowed) { // since it was stored, an administrator may have changed what is allowed
		return nil, fmt.Errorf("%s is not allowed: see --webhook-allow of scheduler", webhook.Shown(address))
	}
	p, err := c.peer(h)
	if err != nil {
		return nil, err
	}
	limit := h.Timeout()
	if end, ok := ctx.Deadline(); ok { // or the write would end with the call: nothing could be ignored or counted
		limit = min(limit, time.Until(end)/2)
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	leave, err := p.gate.Enter(limited, c.Now())
	if err != nil {
		return nil, err
	}
	answer, err := p.client.review(limited, r)
	if ctx.Err() != nil { // the caller went away, which says nothing about the webhook
		leave(false, nil, c.Now())
		return nil, ctx.Err()
	}
	if errors.Is(limited.Err(), context.DeadlineExceeded) && err != nil {
		err = fmt.Errorf("%s did not answer within %s", webhook.Shown(address), limit.Round(10*time.Millisecond))
	}
	if leave(true, err, c.Now()) {
		c.Log.WarnContext(ctx, "webhook does not answer and is called less often", "configuration", h.Configuration,
			"webhook", h.GetName(), "error", err)
	}
	return answer, err
}

func (c *Caller) peer(h plan.Hook) (*peer, error) {
	key := peerKey{h.Kind, h.Configuration, h.GetName()}
	c.mu.Lock()
	defer c.mu.Unlock()
	have := c.peers[key]
	if have != nil && have.version == h.Version {
		return have, nil
	}
	made, err := c.connect(h)
	if err != nil {
		return nil, err
	}
	if have != nil {
		retire(have)
	}
	if len(c.peers) >= mostPeers {
		for k, p := range c.peers {
			retire(p)
			delete(c.peers, k)
		}
	}
	if c.peers == nil {
		c.peers = map[peerKey]*peer{}
	}
	p := &peer{version: h.Version, gate: reach.NewGate(perWebhook), client: made}
	c.peers[key] = p
	return p, nil
}

// retire closes the connections of a webhook when its last call has ended.
func retire(p *peer) {
	const longest = time.Minute // more than the 30 s of a call
	time.AfterFunc(longest, p.client.close)
}

func (c *Caller) connect(h plan.Hook) (client, error) {
	if target, overGRPC := plan.GRPCTarget(h.GetClientConfig().GetUrl()); overGRPC {
		return newGRPC(target, h.GetClientConfig().GetCaBundle(), c.reach)
	}
	return newHTTPS(h.GetClientConfig().GetUrl(), h.GetClientConfig().GetCaBundle(), c.reach)
}
