package session

import (
	"errors"
	"fmt"
	"os"

	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
)

// ClusterName returns the name of the selected cluster on this machine.
func (e *Env) ClusterName() string {
	if e.Target.Cluster != "" {
		return e.Target.Cluster
	}
	if name := os.Getenv(client.EnvCluster); name != "" {
		return name
	}
	return cluster.DefaultName
}

// Cluster returns the selected cluster on this machine.
func (e *Env) Cluster() (*cluster.Cluster, error) {
	c, err := cluster.Open(e.ClusterName())
	if errors.Is(err, cluster.ErrNone) {
		return nil, fmt.Errorf("%w: %s", err, cluster.Others())
	}
	return c, err
}

// NameFlag returns the flag that selects a cluster, with a leading space; "" for the default cluster.
func NameFlag(c *cluster.Cluster) string {
	if c.Name == cluster.DefaultName {
		return ""
	}
	return " --name " + c.Name
}
