package webhook

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	admissionv1 "github.com/windlass-dev/windlass/gen/windlass/admission/v1"
	"github.com/windlass-dev/windlass/kit/webhook/reach"
)

// overGRPC is a webhook that serves windlass.admission.v1.AdmissionService.
type overGRPC struct {
	conn   *grpc.ClientConn
	client admissionv1.AdmissionServiceClient
}

func newGRPC(target string, caBundle []byte, allowed func(netip.Addr) error) (*overGRPC, error) {
	cfg, err := reach.TLS(caBundle)
	if err != nil {
		return nil, fmt.Errorf("clientConfig.caBundle: %w", err)
	}
	dialer := reach.Dialer(allowed)
	// The target is passed through so that its name is resolved where each address is checked.
	conn, err := grpc.NewClient("passthrough:///"+withPort(target),
		grpc.WithTransportCredentials(credentials.NewTLS(cfg)),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}),
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(mostAnswer), grpc.MaxCallSendMsgSize(mostAnswer)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: reach.Pause,
			},
			MinConnectTimeout: time.Second,
		}),
		// Rarely enough for servers with the default limit of pings, of which a call of 30 s causes one.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 5 * time.Second}))
	if err != nil {
		return nil, err
	}
	return &overGRPC{conn: conn, client: admissionv1.NewAdmissionServiceClient(conn)}, nil
}

func withPort(target string) string {
	if _, _, err := net.SplitHostPort(target); err != nil {
		return net.JoinHostPort(target, "443")
	}
	return target
}

func (o *overGRPC) close() { _ = o.conn.Close() }

func (o *overGRPC) review(ctx context.Context, r *admissionv1.ReviewRequest) (*admissionv1.ReviewResponse, error) {
	// Nothing that is known of the caller is passed on but what the request says.
	return o.client.Review(metadata.NewOutgoingContext(ctx, metadata.MD{}), r)
}
