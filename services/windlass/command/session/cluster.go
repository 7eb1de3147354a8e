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

// ClusterHere returns the selected cluster on this machine, or else the one of which this machine is a host, unless a
// cluster is named.
func (e *Env) ClusterHere() (*cluster.Cluster, error) {
	c, err := e.Cluster()
	if !errors.Is(err, cluster.ErrNone) || e.Target.Cluster != "" || os.Getenv(client.EnvCluster) != "" {
		return c, err
	}
	h, hostErr := cluster.OpenHost(cluster.HostDir())
	if errors.Is(hostErr, cluster.ErrNone) {
		return nil, err
	}
	return h, hostErr
}

// NameFlag returns the flag that selects a cluster, with a leading space; "" for the default cluster.
func NameFlag(c *cluster.Cluster) string {
	if c.Name == cluster.DefaultName {
		return ""
	}
	return " --name " + c.Name
}
