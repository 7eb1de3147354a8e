package compose

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/docker/cli/cli/command"
	"github.com/docker/cli/cli/flags"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"

	"github.com/windlass-dev/windlass/e2e/harness"
)

const (
	// envImage names an image to test instead of one that is made of the executable.
	envImage = "WINDLASS_IMAGE"

	enginePatience = 5 * time.Second
	buildPatience  = 2 * time.Minute
)

// engine returns the container engine that compose uses, or skips the test if none answers.
func engine(t *testing.T) *testcontainers.DockerProvider {
	t.Helper()
	// The tests remove what they made themselves: there may be no registry to get the reaper's image from.
	for name, value := range map[string]string{
		"TESTCONTAINERS_RYUK_DISABLED": "true",
		"TESTCONTAINERS_HOST_OVERRIDE": "127.0.0.1",
	} {
		if os.Getenv(name) == "" {
			t.Setenv(name, value)
		}
	}
	host, err := answering()
	if err != nil {
		t.Skipf("no container engine answers: %v", err)
	}
	t.Setenv("DOCKER_HOST", host) // or the library would look for one of its own
	p, err := testcontainers.NewDockerProvider()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// answering returns where the engine is, if it answers.
func answering() (host string, err error) {
	cli, err := command.NewDockerCli()
	if err != nil {
		return "", err
	}
	if err := cli.Initialize(flags.NewClientOptions()); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), enginePatience)
	defer cancel()
	defer cli.Client().Close()
	_, err = cli.Client().Ping(ctx, client.PingOptions{})
	return cli.DockerEndpoint().Host, err
}

// image returns the image to test: $WINDLASS_IMAGE, else one of the executable under test, which goes when the test
// ends.
func image(t *testing.T, e *testcontainers.DockerProvider, name string) string {
	t.Helper()
	if given := os.Getenv(envImage); given != "" {
		return given
	}
	executable, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	files := t.TempDir()
	for to, from := range map[string]string{"windlass": executable, "Dockerfile": filepath.Join(harness.Root(), "deploy",
		"image", "Dockerfile")} {
		if err := copyFile(filepath.Join(files, to), from); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), buildPatience)
	defer cancel()
	tag, err := e.BuildImage(ctx, &testcontainers.ContainerRequest{FromDockerfile: testcontainers.FromDockerfile{
		Context: files, Repo: name, Tag: "test",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := e.Client().ImageRemove(context.Background(), tag, client.ImageRemoveOptions{
			PruneChildren: true,
		}); err != nil {
			t.Errorf("image %s is left: %v", tag, err)
		}
	})
	return tag
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// freePort returns a port of localhost that is not in use.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// freeSubnet returns the first three numbers of a network that this machine has no address in: its bridges are the
// engine's networks.
func freeSubnet(t *testing.T) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	const first, last = 100, 199 // compose.yaml's own is above
	for n := first; n <= last; n++ {
		if subnet := fmt.Sprintf("172.31.%d", n); !inUse(addresses, net.ParseIP(subnet+".1")) {
			return subnet
		}
	}
	t.Fatalf("none of the networks 172.31.%d.0/24 to 172.31.%d.0/24 is free", first, last)
	return ""
}

func inUse(addresses []net.Addr, ip net.IP) bool {
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.Contains(ip) {
			return true
		}
	}
	return false
}
