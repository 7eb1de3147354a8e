package harness

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
)

// Docker returns a client of the Docker engine, or skips the test if none answers, and the name of a cluster whose
// containers are removed when the test ends.
func Docker(t *testing.T) (engine *client.Client, cluster string) {
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
		for _, id := range DockerContainers(t, engine, cluster) {
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

// DockerContainers returns the ids of a cluster's containers.
func DockerContainers(t *testing.T, engine *client.Client, cluster string) (ids []string) {
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
