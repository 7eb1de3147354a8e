package cluster

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/kit/topology"
)

// beginning is a file that is there while a new cluster's authorities are made.
const beginning = "beginning"

// begin reports whether this is the first start of the cluster, which alone makes authorities and lets the guardian
// start an empty etcd. It is, if there is no sign of an earlier one: no authority and no certificate of a service; or
// if an earlier one was cut off while it made them.
func (c *Cluster) begin() (bool, error) {
	if c.Member != nil && c.Member.Begun {
		return false, nil
	}
	marker := c.Dir("pki", beginning)
	if there, err := exists(marker); there || err != nil {
		return there, err
	}
	signs := []string{
		c.Service(topology.EtcdGuardian, "tls", "tls.crt"), c.Service(topology.MachineAPI, "tls", "tls.crt"),
		c.Service(topology.Gateway, "tls", "tls.crt"),
	}
	for _, name := range topology.Authorities() {
		signs = append(signs, c.Dir("pki", name+"-ca.crt"), c.Dir("pki", name+"-ca.key"))
	}
	for _, sign := range signs {
		if there, err := exists(sign); there || err != nil {
			return false, err
		}
	}
	return true, durable.WriteFile(marker, nil, 0o600)
}

// begun allows the guardian to start an empty etcd, and ends the first start. The pivot takes the permission away.
func (c *Cluster) begun() error {
	allowed := c.Service(topology.EtcdGuardian, "bootstrap", "allowed")
	if err := os.MkdirAll(filepath.Dir(allowed), 0o700); err != nil {
		return err
	}
	if err := durable.WriteFile(allowed, nil, 0o600); err != nil {
		return err
	}
	if c.Member != nil {
		c.Member.Begun = true
		if err := c.Save(); err != nil {
			return err
		}
	}
	return durable.Remove(c.Dir("pki", beginning))
}

func exists(path string) (bool, error) {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
