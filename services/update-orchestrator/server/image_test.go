package server

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/release"
)

// layout makes an OCI layout with an image of some bytes that cannot be packed.
func layout(t *testing.T, size int) (dir, digest string) {
	t.Helper()
	dir = t.TempDir()
	noise := make([]byte, size)
	if _, err := rand.Read(noise); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "windlass")
	if err := os.WriteFile(file, []byte(base64.StdEncoding.EncodeToString(noise)), 0o600); err != nil {
		t.Fatal(err)
	}
	digest, err := release.NewExecutable(dir, map[string]string{"amd64": file})
	if err != nil {
		t.Fatal(err)
	}
	return dir, digest
}

// serveImages runs a server over places of images.
func serveImages(t *testing.T, places release.Places) updatev1.ReleaseServiceClient {
	t.Helper()
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer(grpc.StaticStreamWindowSize(64<<10), grpc.StaticConnWindowSize(16<<20))
	updatev1.RegisterReleaseServiceServer(server, NewRelease(nil, nil, nil, places, nil))
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:///bufnet", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(16<<20),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return updatev1.NewReleaseServiceClient(conn)
}

// rest reads a stream to its end.
func rest(stream grpc.ServerStreamingClient[updatev1.ReadReleaseImageResponse], err error) (size int, _ error) {
	for err == nil {
		var m *updatev1.ReadReleaseImageResponse
		if m, err = stream.Recv(); err == nil {
			if len(m.GetData()) > pieceBytes {
				return 0, errors.New("a piece is too long")
			}
			size += len(m.GetData())
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return size, err
}

func TestCallersThatTakeNothingDoNotKeepOthersFromImages(t *testing.T) {
	dir, digest := layout(t, 1<<20)
	synctest.Test(t, func(t *testing.T) {
		client := serveImages(t, release.Places{Layouts: []string{dir}})
		req := &updatev1.ReadReleaseImageRequest{Digest: digest, Local: true}
		var stalled []grpc.ServerStreamingClient[updatev1.ReadReleaseImageResponse]
		for range mostImages {
			stream, err := client.ReadReleaseImage(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
			stalled = append(stalled, stream)
		}
		if _, err := rest(client.ReadReleaseImage(t.Context(), req)); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("one more than %d at once: %v", mostImages, err)
		}
		relayed := &updatev1.ReadReleaseImageRequest{Digest: digest}
		if size, err := rest(client.ReadReleaseImage(t.Context(), relayed)); err != nil || size < 1<<20 {
			t.Errorf("what may be on other hosts has slots of its own: %d bytes, %v", size, err)
		}
		time.Sleep(pieceLimit + time.Second)
		if size, err := rest(client.ReadReleaseImage(t.Context(), req)); err != nil || size < 1<<20 {
			t.Errorf("after the others were left: %d bytes, %v", size, err)
		}
		for _, stream := range stalled {
			if _, err := rest(stream, nil); status.Code(err) != codes.Unavailable ||
				!strings.Contains(err.Error(), errPieceLimit.Error()) {
				t.Errorf("a caller that takes nothing: %v", err)
			}
		}
	})
}

func TestAnImageIsSentWithinALimit(t *testing.T) {
	dir, digest := layout(t, 32<<20)
	synctest.Test(t, func(t *testing.T) {
		client := serveImages(t, release.Places{Layouts: []string{dir}})
		stream, err := client.ReadReleaseImage(t.Context(), &updatev1.ReadReleaseImageRequest{Digest: digest, Local: true})
		start := time.Now()
		for err == nil {
			time.Sleep(pieceLimit / 2)
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), errImageLimit.Error()) {
			t.Errorf("a caller that takes little: %v", err)
		}
		if passed := time.Since(start); passed > imageLimit+time.Minute {
			t.Errorf("it was left after %v", passed)
		}
	})
}
