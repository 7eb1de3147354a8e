package recovery

import (
	"errors"
	"fmt"
	"net/url"
	"time"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
)

// IsLater reports whether etcd was recovered or restored, as another host of the control plane says, since this host
// had it at the time here: what is here is of the cluster before, and must not run.
func IsLater(here time.Time, there *etcdv1.Quorum) bool {
	at := there.GetRecoveryTime()
	return at.IsValid() && at.AsTime().After(here)
}

// SetAside moves the data of etcd on this host aside, which is that of the cluster before, and has the programs find
// that of another host. None of them may run. It may be repeated after it was cut off. It returns the directory to
// which the data was moved.
func SetAside(c *cluster.Cluster, there *etcdv1.Quorum) (string, error) {
	at := there.GetRecoveryTime().AsTime()
	first, err := url.Parse(there.GetBootstrapUrl())
	if err != nil || first.Hostname() == "" {
		return "", fmt.Errorf("address of the bootstrap member %q: must be https://IP:PORT", there.GetBootstrapUrl())
	}
	if first.Hostname() == c.Member.Address {
		return "", errors.New("the bootstrap member of the recovered etcd is said to be on this host, which does not have it")
	}
	endpoints := there.GetEndpoints()
	if len(endpoints) == 0 {
		endpoints = []string{there.GetBootstrapUrl()}
	}
	aside := c.Dir(asideName(at))
	if err := moveAside(c, aside); err != nil {
		return "", err
	}
	if err := forget(c); err != nil {
		return "", err
	}
	if err := c.SetEndpoints(endpoints); err != nil {
		return "", err
	}
	c.Settings, err = cluster.ChangeHost(c.Dir(), func(s *cluster.Settings) {
		s.Member.First, s.Member.Recovered = first.Hostname(), at
	})
	return aside, err
}
