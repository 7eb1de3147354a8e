package attacks

import (
	"context"
	"crypto/tls"
	"fmt"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"

	"github.com/windlass-dev/windlass/e2e/harness"
)

func TestConnectionsWithoutCredentialsKeepToTheirShare(t *testing.T) {
	c := shared.Cluster(t)
	const share = 60
	g := secondGateway(t, c, fmt.Sprintf("--anonymous-connections=%d", share))
	flood := harness.StartFlood(t, g.address, 2, 400)
	until(t, "all connections were tried", func() bool { _, tried := flood.Counts(); return tried == 400 })
	if open, _ := flood.Counts(); open == 0 || open > share {
		t.Errorf("%d connections are open, want at most %d", open, share)
	}
	// New connections of a caller with a certificate come through all the time.
	for range 20 {
		conn, err := c.As("alice").Dial(g.address)
		if err != nil {
			t.Fatal(err)
		}
		who, err := metav1.NewAccessServiceClient(conn).WhoAmI(context.Background(), &metav1.WhoAmIRequest{})
		conn.Close()
		if err != nil || who.GetUser() != "alice" {
			t.Fatalf("a caller with a certificate: %v, %v", who, err)
		}
	}
}

func TestRapidResetEndsTheConnection(t *testing.T) {
	c := shared.Cluster(t)
	for name, a := range map[string]struct {
		caller    *harness.Caller
		protocols []string
		path      string
		grpc      bool
	}{
		"gRPC lane":                      {c.As("alice"), []string{"h2"}, "/windlass.node.v1.NodeService/ListNodes", true},
		"gRPC lane, without credentials": {c.Anonymous(), []string{"h2"}, "/windlass.node.v1.NodeService/ListNodes", true},
		"HTTP lane":                      {c.As("alice"), []string{"h2", "http/1.1"}, "/v1/nodes", false},
		"HTTP lane, without credentials": {c.Anonymous(), []string{"h2", "http/1.1"}, "/v1/nodes", false},
	} {
		t.Run(name, func(t *testing.T) {
			bounded(t, c, 64<<20, func() {
				settings, err := a.caller.TLS()
				if err != nil {
					t.Fatal(err)
				}
				settings.NextProtos = a.protocols
				conn, err := tls.Dial("tcp", c.Gateway(), settings)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				const most = 200_000
				if n := reset(conn, a.path, a.grpc, most); n == most {
					t.Errorf("%d streams were opened and reset, and the connection is still open", n)
				}
			})
		})
	}
	if _, err := nodev1.NewNodeServiceClient(c.As("bob", "system:masters").Conn()).ListNodes(context.Background(),
		&nodev1.ListNodesRequest{}); err != nil {
		t.Errorf("another caller: %v", err)
	}
}

// reset opens streams and resets each at once until the other side closes the connection; it returns how many it
// opened.
func reset(conn *tls.Conn, path string, grpc bool, most int) int {
	framer := http2.NewFramer(conn, conn)
	go func() {
		for {
			if _, err := framer.ReadFrame(); err != nil {
				return
			}
		}
	}()
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		return 0
	}
	if framer.WriteSettings() != nil {
		return 0
	}
	var block headerBlock
	for i := range most {
		id := uint32(2*i + 1)
		method, media := "GET", ""
		if grpc {
			method, media = "POST", "application/grpc"
		}
		if framer.WriteHeaders(http2.HeadersFrameParam{
			StreamID: id, BlockFragment: block.encode(method, path, media), EndHeaders: true, EndStream: !grpc,
		}) != nil {
			return i
		}
		if framer.WriteRSTStream(id, http2.ErrCodeCancel) != nil {
			return i
		}
	}
	return most
}

type headerBlock struct{ text []byte }

func (b *headerBlock) Write(p []byte) (int, error) {
	b.text = append(b.text, p...)
	return len(p), nil
}

// encode writes a block that needs nothing of the blocks before.
func (b *headerBlock) encode(method, path, media string) []byte {
	b.text = b.text[:0]
	e := hpack.NewEncoder(b)
	e.SetMaxDynamicTableSizeLimit(0)
	for _, f := range [][2]string{
		{":method", method},
		{":scheme", "https"},
		{":authority", "gateway"},
		{":path", path},
		{"content-type", media},
		{"te", "trailers"},
	} {
		if f[1] != "" {
			e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) //nolint:errcheck // into memory
		}
	}
	return b.text
}

func TestOneCallerCannotHoldAllWatches(t *testing.T) {
	c := shared.Cluster(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// Alice may open 1,000; a connection takes no more than that, so she uses two.
	watch := func(conn *grpc.ClientConn) error {
		stream, err := nodev1.NewNodeServiceClient(conn).WatchNodes(ctx, &nodev1.WatchNodesRequest{})
		if err != nil {
			return err
		}
		_, err = stream.Recv()
		return err
	}
	other, err := c.As("watcher", "windlass:viewers").Dial(c.Gateway())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	opened := 0
	for i := range 1100 {
		conn := c.As("watcher", "windlass:viewers").Conn()
		if i%2 == 1 {
			conn = other
		}
		err := watch(conn)
		if status.Code(err) == codes.ResourceExhausted {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		opened++
	}
	if opened != 1000 {
		t.Errorf("%d watches were opened before the first refusal, want 1000", opened)
	}
	if err := watch(c.Admin().Conn()); err != nil {
		t.Errorf("another caller's watch: %v", err)
	}
	if _, err := nodev1.NewNodeServiceClient(c.Conn()).ListNodes(ctx, &nodev1.ListNodesRequest{}); err != nil {
		t.Errorf("another caller's call: %v", err)
	}
}
