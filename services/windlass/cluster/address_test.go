package cluster

import (
	"fmt"
	"testing"

	"github.com/windlass-dev/windlass/kit/loopback"
)

func TestEachClusterHasARangeForItsPods(t *testing.T) {
	t.Setenv("WINDLASS_HOME", t.TempDir())
	has := map[int]string{}
	for i := range 4 {
		c, err := Create(Settings{Name: fmt.Sprint("test-", i)})
		if err != nil {
			t.Fatal(err)
		}
		if other := has[c.Network]; c.Network < 1 || c.Network > loopback.Networks || other != "" {
			t.Errorf("cluster %s has range %d, which %q has", c.Name, c.Network, other)
		}
		has[c.Network] = c.Name
		before := c.Network
		if c.EnsureNetwork(); c.Network != before {
			t.Errorf("cluster %s had range %d and has %d", c.Name, before, c.Network)
		}
	}
}

func TestAClusterInContainersHasNoRange(t *testing.T) {
	t.Setenv("WINDLASS_HOME", t.TempDir())
	c := &Cluster{Settings: Settings{Name: "a", Containers: true}, dir: "/a"}
	if c.EnsureNetwork(); c.Network != 0 {
		t.Errorf("range %d", c.Network)
	}
}
