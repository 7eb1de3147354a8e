package api

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/windlass-dev/windlass/e2e/harness"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
)

// docker returns a client of the Docker engine, or skips the test if none answers, and the name of a cluster whose
// containers are removed when the test ends.
func docker(t *testing.T) (engine *client.Client, cluster string) {
	t.Helper()
	engine, err := client.New(client.FromEnv)
	if err != nil {
		t.Skipf("no Docker engine: %v", err)
	}
	t.Cleanup(func() { engine.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := engine.Ping(ctx, client.PingOptions{}); err != nil {
		t.Skipf("no Docker engine answers: %v", err)
	}
	cluster = "test-" + strings.ToLower(rand.Text()[:8])
	t.Cleanup(func() {
		ctx := context.Background()
		for _, id := range containers(t, engine, cluster) {
			if _, err := engine.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true}); err != nil {
				t.Errorf("container %s is left: %v", id, err)
			}
		}
		if _, err := engine.ImagePrune(ctx, client.ImagePruneOptions{
			Filters: make(client.Filters).Add("label", "dev.windlass.node=true").Add("dangling", "false"),
		}); err != nil {
			t.Errorf("images are left: %v", err)
		}
	})
	return engine, cluster
}

// containers returns the ids of a cluster's containers.
func containers(t *testing.T, engine *client.Client, cluster string) (ids []string) {
	t.Helper()
	l, err := engine.ContainerList(context.Background(), client.ContainerListOptions{
		All: true, Filters: make(client.Filters).Add("label", "dev.windlass.cluster="+cluster),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range l.Items {
		ids = append(ids, c.ID)
	}
	return ids
}

// dockerProvides runs provider-docker until the test ends, and returns its address when it is ready.
func dockerProvides(t *testing.T, c *harness.Cluster, cluster string) string {
	t.Helper()
	const name = "provider-docker"
	address := provides(t, c, name, "--cluster", cluster)
	cfg, err := c.Admin().Files().ClientTLS("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	provider := providerv1.NewProviderServiceClient(conn)
	c.Wait(time.Minute, name+" to have its engine and image", func(ctx context.Context) (bool, string, error) {
		_, err := provider.GetProviderInfo(ctx, &providerv1.GetProviderInfoRequest{})
		return err == nil, fmt.Sprint(err), nil
	})
	return address
}

func TestTheDockerProviderKeepsTheRules(t *testing.T) {
	engine, cluster := docker(t)
	c := shared.Cluster(t)
	address := dockerProvides(t, c, cluster)
	verified(t, c, address, "provider-docker", "DockerMachineProviderSpec")
	if left := containers(t, engine, cluster); len(left) > 0 {
		t.Errorf("containers %q are left", left)
	}
}
