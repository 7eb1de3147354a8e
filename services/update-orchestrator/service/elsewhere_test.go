package service

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/discovery"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/kit/topology"
)

// host runs an orchestrator as on one of several hosts, with the images and signatures of that host.
func (c *cluster) host(name, images, signatures string) (client updatev1.ReleaseServiceClient, stop func()) {
	c.t.Helper()
	p := c.ground.Process(serve.Config{Name: topology.UpdateOrchestrator, Policy: c.policy, Peers: maps.Clone(c.peers)})
	p.Directory = discovery.Open("", p.Log)
	cfg := c.cfg
	cfg.Host, cfg.Dir = name, c.t.TempDir()
	cfg.images, cfg.stores = release.Places{Layouts: []string{images}}, []string{"file://" + signatures}
	parts, err := build(p, etcdtest.Client(c.t), cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	stop = servetest.Run(c.t, p, append(parts,
		func(ctx context.Context) error {
			return p.Directory.Run(ctx, etcdtest.Client(c.t), topology.EndpointsPrefix, topology.ElectionsPrefix)
		}, c.announce(name, p.Address()))...)
	conn := c.ground.Dial(p.Address(), servetest.Admin())
	if c.admin == nil {
		c.admin = conn
	}
	return updatev1.NewReleaseServiceClient(conn), stop
}

// announce says that there is an orchestrator at an address.
func (c *cluster) announce(host, address string) serve.Part {
	a := discovery.NewAnnouncer(etcdtest.Client(c.t), discovery.Endpoint{
		Service: topology.UpdateOrchestrator, Address: address, Host: host,
	}, slog.New(slog.DiscardHandler))
	a.Set(true, "")
	return a.Run
}

// readImage reads an image as a caller does.
func readImage(ctx context.Context, client updatev1.ReleaseServiceClient, digest string, local bool) ([]byte, error) {
	stream, err := client.ReadReleaseImage(ctx, &updatev1.ReadReleaseImageRequest{Digest: digest, Local: local})
	var content []byte
	for err == nil {
		var m *updatev1.ReadReleaseImageResponse
		if m, err = stream.Recv(); err == nil {
			content = append(content, m.GetData()...)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return content, err
}

// The image and the signature of a release are on one host, and the leader is on another one.
func TestAReleaseOnTheDiskOfAnotherHost(t *testing.T) {
	c := start(t)
	c.cfg.initial = c.image("1.0.0", example("1.0.0"))
	next := c.image("1.0.1", example("1.0.1"), "1.0.0")
	c.sign(next, c.key)
	empty := filepath.Join(t.TempDir(), "images")
	h1, _ := c.host("h1", empty, t.TempDir()) // it leads, since it is alone
	c.ready(operators...)
	c.version(has("Failing", "True", "RetrievePayload"))
	h2, stop := c.host("h2", c.layout, c.signed)
	c.version(completed("1.0.0"))
	c.desire("", next)
	c.version(completed("1.0.1"))

	executable := filepath.Join(t.TempDir(), "windlass")
	c.write(executable, bytes.Repeat([]byte("windlass"), 1<<20))
	digest, err := release.NewExecutable(c.layout, map[string]string{runtime.GOARCH: executable, "s390x": executable})
	if err != nil {
		t.Fatal(err)
	}
	image, err := release.Places{Layouts: []string{c.layout}}.Find(t.Context(), digest)
	if err != nil {
		t.Fatal(err)
	}
	want, err := image.Content(1 << 30)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		client updatev1.ReleaseServiceClient
		local  bool
		code   codes.Code
	}{{h1, false, codes.OK}, {h1, true, codes.NotFound}, {h2, false, codes.OK}, {h2, true, codes.OK}} {
		got, err := readImage(t.Context(), tt.client, digest, tt.local)
		if status.Code(err) != tt.code || err == nil && !bytes.Equal(got, want) {
			t.Errorf("h2: %v, local: %v: %d bytes, %v", tt.client == h2, tt.local, len(got), err)
		}
	}
	_, named, _ := strings.Cut(next, "@")
	for client, count := range map[updatev1.ReleaseServiceClient]int{h1: 0, h2: 1} {
		list, err := client.ListReleaseSignatures(t.Context(), &updatev1.ListReleaseSignaturesRequest{Digest: named})
		if err != nil || len(list.GetSignatures()) != count {
			t.Errorf("%d signatures, want %d: %v", len(list.GetSignatures()), count, err)
		}
	}
	nowhere := "sha256:" + strings.Repeat("0", 64)
	_, err = readImage(t.Context(), h1, nowhere, false)
	if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "no such image in "+empty+", nor at host h2") {
		t.Errorf("an image that is nowhere: %v", err)
	}
	if _, err := readImage(t.Context(), h1, "oci:/etc", false); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a digest that is none: %v", err)
	}

	// An impostor is announced as a host, and one that is gone: NOT_FOUND would not be true.
	stop()
	impostor := c.ground.Process(serve.Config{Name: "hook-broker", Policy: c.policy})
	servetest.Run(t, impostor)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	for host, address := range map[string]string{"h3": impostor.Address(), "h4": "127.0.0.1:1"} {
		part := c.announce(host, address)
		go func() { done <- part(ctx) }()
	}
	servetest.Await(t, func() string {
		_, err := readImage(t.Context(), h1, digest, false)
		for _, want := range []string{
			"host h3: ", "the other side is not spiffe://", "host h4: ", "connection refused",
		} {
			if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), want) {
				return "no error that says " + want + ": " + err.Error()
			}
		}
		return ""
	})
	cancel()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
