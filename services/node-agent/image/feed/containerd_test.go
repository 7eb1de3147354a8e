package feed_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/windlass-dev/windlass/services/node-agent/image"
	"github.com/windlass-dev/windlass/services/node-agent/image/feed"
)

// containerd is a container runtime of a test's own, and a feed.Runtime.
type containerd struct {
	images     runtimeapi.ImageServiceClient
	containers runtimeapi.RuntimeServiceClient
	pulls      atomic.Int32
}

const containerdConfig = `version = 2
root = %[1]q
state = %[2]q
[grpc]
address = %[3]q
[plugins."io.containerd.internal.v1.opt"]
path = %[4]q
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = %[5]q
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
`

// startContainerd starts a containerd for the time of a test.
func startContainerd(t *testing.T, sandboxImage string) *containerd {
	t.Helper()
	program, err := exec.LookPath("containerd")
	if err != nil || os.Geteuid() != 0 {
		t.Skip("containerd is not installed, or the test does not run as root")
	}
	dir, err := os.MkdirTemp("", "feed") // the paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	socket, file := filepath.Join(dir, "c.sock"), filepath.Join(dir, "config.toml")
	config := fmt.Sprintf(containerdConfig, filepath.Join(dir, "root"), filepath.Join(dir, "state"), socket,
		filepath.Join(dir, "opt"), sandboxImage)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	cmd := exec.Command(program, "--config", file)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		timer := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		timer.Stop()
		if t.Failed() {
			t.Log(out.String())
		}
	})
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	c := &containerd{images: runtimeapi.NewImageServiceClient(conn), containers: runtimeapi.NewRuntimeServiceClient(conn)}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := c.containers.Version(ctx, &runtimeapi.VersionRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Fatalf("containerd does not answer: %v", err)
	}
	return c
}

func (c *containerd) PullImage(ctx context.Context, ref string) (string, error) {
	c.pulls.Add(1)
	out, err := c.images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
	return out.GetImageRef(), err
}

func (c *containerd) ImagePresent(ctx context.Context, id string) (bool, error) {
	out, err := c.status(ctx, id)
	return out != nil, err
}

func (c *containerd) status(ctx context.Context, id string) (*runtimeapi.Image, error) {
	out, err := c.images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: id}})
	return out.GetImage(), err
}

func (c *containerd) RemoveImage(ctx context.Context, id string) error {
	_, err := c.images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: id}})
	return err
}

// list returns the images of the runtime.
func (c *containerd) list(t *testing.T) []*runtimeapi.Image {
	t.Helper()
	out, err := c.images.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return out.GetImages()
}

// node is a library with its files.
type node struct {
	*image.Library
	dir string
	end func() // of the agent
}

// newNode starts an agent in a directory, which an earlier one may have had. keeper is nil for the embedded store.
func newNode(t *testing.T, dir, settings string, keeper image.Keeper) node {
	t.Helper()
	file := filepath.Join(dir, "registries.yaml")
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := image.NewLibrary(image.LibraryConfig{
		Dir: filepath.Join(dir, "unpacked"), Layouts: []string{filepath.Join(dir, "images")}, Settings: []string{file},
		Keeper: keeper, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.Run(ctx)
	}()
	end := func() {
		cancel()
		<-ended
	}
	t.Cleanup(end)
	return node{l, dir, end}
}

// onNode starts an agent whose images a runtime keeps.
func onNode(t *testing.T, settings string, r feed.Runtime) node {
	t.Helper()
	return newNode(t, t.TempDir(), settings, feed.New(r, 0))
}

// get gets an image and ends its use.
func (n node) get(t *testing.T, ref, policy string) (*image.Cached, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	i, err := n.Get(ctx, image.Request{Ref: ref, Policy: policy}, &image.Progress{})
	if err == nil {
		n.Release(i)
	}
	return i, err
}

func newRegistry(t *testing.T) (s *httptest.Server, host string) {
	t.Helper()
	s = httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(s.Close)
	return s, s.Listener.Addr().String()
}
