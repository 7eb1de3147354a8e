package cluster

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/windlass-dev/windlass/kit/loopback"
)

func TestEachClusterHasARangeForItsPods(t *testing.T) {
	t.Setenv("WINDLASS_HOME", t.TempDir())
	has := map[int]string{}
	for i := range 4 {
		c, err := Create(t.Context(), Settings{Name: fmt.Sprint("test-", i)})
		if err != nil {
			t.Fatal(err)
		}
		if other := has[c.Network]; c.Network < 1 || c.Network > loopback.Networks || other != "" {
			t.Errorf("cluster %s has range %d, which %q has", c.Name, c.Network, other)
		}
		has[c.Network] = c.Name
		before := c.Network
		if err := c.EnsureNetwork(t.Context()); err != nil || c.Network != before {
			t.Errorf("cluster %s had range %d and has %d: %v", c.Name, before, c.Network, err)
		}
	}
}

func TestNoClusterGetsTheRangeOfOneThatRuns(t *testing.T) {
	t.Setenv("WINDLASS_HOME", t.TempDir())
	first, err := Create(t.Context(), Settings{Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	held, err := first.HoldNetwork(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// A cluster of another user would choose the same range: it starts its search at the same number.
	if err := os.Remove(first.Dir(settingsFile)); err != nil {
		t.Fatal(err)
	}
	second, err := Create(t.Context(), Settings{Name: "test"})
	if err != nil || second.Network == first.Network {
		t.Errorf("the second cluster has range %d, as the first one: %v", first.Network, err)
	}
	err = first.EnsureNetwork(t.Context())
	if !errors.Is(err, loopback.ErrHeld) || !strings.Contains(err.Error(), fmt.Sprint("process ", os.Getpid())) {
		t.Errorf("a cluster is brought back with a range that another one has by now: %v", err)
	}
	held.Close()
	if err := first.EnsureNetwork(t.Context()); err != nil {
		t.Errorf("the other one is stopped: %v", err)
	}
}

func TestAClusterInContainersHasNoRange(t *testing.T) {
	t.Setenv("WINDLASS_HOME", t.TempDir())
	c := &Cluster{Settings: Settings{Name: "a", Containers: true}, dir: "/a"}
	if err := c.EnsureNetwork(t.Context()); err != nil || c.Network != 0 {
		t.Errorf("range %d, %v", c.Network, err)
	}
}
