package supervise

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/supervise/plan"
)

// orchestrator sends the images of a layout, as the update-orchestrator of a host that reads them from another one.
type orchestrator struct {
	updatev1.UnimplementedReleaseServiceServer
	layout string
	local  bool // it was last asked for what is on its own disk
}

func (o *orchestrator) ReadReleaseImage(r *updatev1.ReadReleaseImageRequest,
	stream grpc.ServerStreamingServer[updatev1.ReadReleaseImageResponse],
) error {
	o.local = r.GetLocal()
	image, err := release.Places{Layouts: []string{o.layout}}.Find(stream.Context(), r.GetDigest())
	if err != nil {
		return err
	}
	content, err := image.Content(1 << 20)
	if err != nil {
		return err
	}
	return stream.Send(&updatev1.ReadReleaseImageResponse{Data: content})
}

func dialed(t *testing.T, o *orchestrator) *grpc.ClientConn {
	t.Helper()
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer()
	updatev1.RegisterReleaseServiceServer(server, o)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:///host", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestAnExecutableIsFetchedFromAnotherHost(t *testing.T) {
	o := &orchestrator{layout: filepath.Join(t.TempDir(), "images")}
	file := filepath.Join(t.TempDir(), "windlass")
	if err := os.WriteFile(file, []byte("executable"), 0o600); err != nil {
		t.Fatal(err)
	}
	digest, err := release.NewExecutable(o.layout, map[string]string{runtime.GOARCH: file})
	if err != nil {
		t.Fatal(err)
	}
	conn, e := dialed(t, o), plan.Executable{Image: "windlass@" + digest}
	executables := func(m *cluster.Member) *executables {
		c := cluster.InContainers(t.TempDir(), cluster.Settings{Member: m})
		c.Containers = false
		return newExecutables(c, ownExecutable{}, slog.New(slog.DiscardHandler))
	}
	x := executables(&cluster.Member{Name: "h1"})
	for range 2 { // the connection is not closed by the first one
		if err := x.fetch(t.Context(), e, conn); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(x.path(e))
		if err != nil || string(got) != "executable" || o.local {
			t.Errorf("fetched: %q, %v; only from the disk of this host: %v", got, err, o.local)
		}
	}
	if found, err := os.ReadDir(filepath.Dir(filepath.Dir(x.path(e)))); err != nil || len(found) != 1 {
		t.Errorf("beside the executable there are %v, %v", found, err)
	}
	if err := executables(nil).fetch(t.Context(), e, conn); err == nil || !strings.Contains(err.Error(), "no such image") {
		t.Errorf("on one machine no other host is asked: %v", err)
	}
}
