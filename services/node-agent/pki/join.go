package pki

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/identity"
	"google.golang.org/grpc"

	"github.com/windlass-dev/windlass/services/node-agent/gateway"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

const (
	callPatience = 10 * time.Second
	// A machine boots while much else starts: it tries often at first, and a token that is refused is not worth much
	// haste.
	firstPause, longPause = 50 * time.Millisecond, time.Second
	// A timer stops while the host sleeps, the validity of certificates does not.
	longSleep = time.Minute
)

// Join returns who the machine is: from the disk if it joined before, else from the cluster, trying one gateway after
// the other until ctx ends. All that is known of the cluster is the hash of its authority, which the token carries.
func (s *Store) Join(ctx context.Context, token, authorityHash, name string, log *slog.Logger) (Node, error) {
	n, err := s.Node()
	if !errors.Is(err, fs.ErrNotExist) {
		return n, err
	}
	r, err := s.request(name)
	if err != nil {
		return n, err
	}
	conns := make([]*grpc.ClientConn, len(s.bootstrap))
	for i, e := range s.bootstrap {
		if conns[i], err = Connect(e, func(host string) (*tls.Config, error) {
			return identity.PinnedTLS(authorityHash, host),
				nil
		}); err != nil {
			return n, fmt.Errorf("endpoint %q: %w", e, err)
		}
		defer conns[i].Close()
	}
	said := make([]string, len(conns))
	again := backoff.New(firstPause, longPause)
	for try := rand.N(len(conns)); ; try++ {
		i := try % len(conns)
		err := s.join(ctx, conns[i], &machinev1.JoinRequest{Token: token, AgentRequest: r}, log)
		if err == nil {
			log.InfoContext(ctx, "joined the cluster")
			return s.Node()
		}
		if ctx.Err() != nil {
			return n, ctx.Err()
		}
		if err.Error() != said[i] {
			said[i] = err.Error()
			log.WarnContext(ctx, "not joined yet", "gateway", s.bootstrap[i], "error", err)
		}
		if !again.Wait(ctx) {
			return n, ctx.Err()
		}
	}
}

func (s *Store) join(ctx context.Context, conn grpc.ClientConnInterface, r *machinev1.JoinRequest,
	log *slog.Logger,
) error {
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	resp, err := machinev1.NewJoinServiceClient(conn).Join(ctx, r)
	if err != nil {
		return err
	}
	return s.save(resp, log)
}

// Renew renews the certificates in time until ctx ends, and with them the gateways of conn, the agent's own connection.
func (s *Store) Renew(ctx context.Context, conn *gateway.Conn, name string, log *slog.Logger) error {
	for ctx.Err() == nil {
		issued, expires, err := s.lifetime()
		if err != nil {
			return err
		}
		at := plan.RenewAt(issued, expires, rand.Float64())
		for left := time.Until(at); left > 0; left = time.Until(at) {
			if !backoff.Sleep(ctx, min(left, longSleep)) {
				return nil
			}
		}
		for pause := firstPause; ; pause = min(2*pause, max(time.Until(expires)/20, longPause)) {
			err := s.renew(ctx, conn, name, log)
			if err == nil {
				log.InfoContext(ctx, "certificates renewed")
				break
			}
			if ctx.Err() == nil {
				log.WarnContext(ctx, "certificates not renewed", "expires", expires, "error", err)
			}
			if !backoff.Sleep(ctx, pause) {
				return nil
			}
			if now, _, err := s.lifetime(); err == nil && !now.Equal(issued) {
				break // another process put new ones there
			}
		}
	}
	return nil
}

// RenewNow renews the certificates at once, for another process than the agent's. That one takes them from the disk.
func (s *Store) RenewNow(ctx context.Context, log *slog.Logger) error {
	n, err := s.Node()
	if err != nil {
		return err
	}
	conn, err := s.Dial(log)
	if err != nil {
		return err
	}
	defer conn.Close()
	return s.renew(ctx, conn, n.Name, log)
}

func (s *Store) renew(ctx context.Context, conn *gateway.Conn, name string, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	r, err := s.request(name)
	if err != nil {
		return err
	}
	resp, err := machinev1.NewJoinServiceClient(conn).Renew(ctx, &machinev1.RenewRequest{AgentRequest: r})
	if err != nil {
		return err
	}
	if resp.GetNodeName() != name {
		return fmt.Errorf("the new certificates are for node %q", resp.GetNodeName())
	}
	if err := s.save(resp, log); err != nil {
		return err
	}
	endpoints, err := s.Endpoints()
	if err != nil {
		return err
	}
	return conn.SetEndpoints(endpoints)
}
