package cluster

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/kit/hostbundle"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/topology"
)

// endpointsFile of a service has the addresses of etcd's members.
const endpointsFile = "endpoints"

// Bundle returns what another control-plane host of the cluster needs. Who has it is root of the cluster.
func (c *Cluster) Bundle() ([]byte, error) {
	if c.Member == nil {
		return nil, errors.New("the control plane of this cluster is not on hosts")
	}
	return hostbundle.Pack(c.dir, hostbundle.ForJoin)
}

// Joined is what a host that joins got from the cluster.
type Joined struct {
	Bundle    []byte   // see Bundle
	Authority []byte   // the authorities of the services that are trusted now, in PEM
	Endpoints []string // URLs of etcd's members
}

// joining is a file that is there while the files of a host are made: what is there with it is of a join that was cut
// off. It has the authority of the cluster, so that a host does not get files of two.
const joining = "joining"

// JoinHost makes the files of another control-plane host of the cluster in dir. The settings are written last: a join
// that was cut off is repeated. A directory with files of another cluster is refused, and so is a bundle from before a
// rotation of the authorities.
func JoinHost(dir string, m Member, j Joined) (*Cluster, error) {
	dir, unlock, err := takeHostDir(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if len(j.Endpoints) == 0 {
		return nil, errors.New("the cluster names no member of etcd")
	}
	c, files, err := unpack(dir, j.Bundle)
	if err != nil {
		return nil, err
	}
	m.First, m.Begun, m.Registered, m.Recovered = c.Member.First, true, true, c.Member.Recovered
	if c.Member = &m; m.Address == m.First {
		return nil, fmt.Errorf("address %s: is that of the host that began the cluster", m.Address)
	}
	if err := c.enter(files); err != nil {
		return nil, err
	}
	if err := c.SetEndpoints(j.Endpoints); err != nil {
		return nil, err
	}
	trust, err := identity.LoadTrust(filepath.Join(dir, "pki"), topology.APIAuthority)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(trust.Bundle(), j.Authority) {
		return nil, errors.New("the authorities were rotated since the token was made: make a new one, and remove " + dir)
	}
	for name, port := range map[string]string{
		topology.EtcdClientAuthority: "",
		topology.EtcdPeerAuthority:   strconv.Itoa(peerPort),
	} {
		former, err := c.formerAuthority(name, j.Endpoints, port)
		if err != nil {
			return nil, err
		}
		if former {
			return nil, errors.New("the authorities of etcd were rotated since the token was made: make a new one, and remove " +
				dir)
		}
	}
	if err := c.Save(); err != nil {
		return nil, err
	}
	return c, durable.Remove(filepath.Join(dir, joining))
}

// unpack returns the cluster of a bundle, with the settings of the host that packed it, and its files for a host whose
// directory is dir, which is claimed for it.
func unpack(dir string, bundle []byte) (*Cluster, map[string][]byte, error) {
	if there, err := exists(filepath.Join(dir, hostFile)); err != nil || there {
		return nil, nil, errors.Join(err, fmt.Errorf("%s: this host is in a cluster already", dir))
	}
	files, err := hostbundle.Unpack(bundle)
	if err != nil {
		return nil, nil, fmt.Errorf("bundle: %w", err)
	}
	if err := claim(dir, files["pki/"+topology.APIAuthority+"-ca.crt"]); err != nil {
		return nil, nil, err
	}
	c := &Cluster{dir: dir}
	if err := json.Unmarshal(files[hostFile], &c.Settings); err != nil || c.Member == nil {
		return nil, nil, errors.Join(errors.New("bundle: the settings are missing"), err)
	}
	delete(files, hostFile)
	return c, files, c.CheckFormat()
}

// enter makes what a host has besides its settings: the files of a bundle, and a block of users for pods.
func (c *Cluster) enter(files map[string][]byte) error {
	if err := c.joinPodUsers(c.PodsIsolated()); err != nil {
		return err
	}
	return c.write(files)
}

// RestoreHost makes the files of a control-plane host in dir from a bundle of a backup, for a cluster whose hosts are
// lost. restore puts the data of etcd in place and writes the settings down; if it was cut off, all of this is
// repeated. A directory with files of another cluster is refused.
func RestoreHost(dir string, m Member, bundle []byte, restore func(*Cluster) error) (*Cluster, error) {
	dir, unlock, err := takeHostDir(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	c, files, err := unpack(dir, bundle)
	if err != nil {
		return nil, err
	}
	m.First, m.Begun, m.Recovered = m.Address, true, c.Member.Recovered
	c.Member = &m
	if err := c.enter(files); err != nil {
		return nil, err
	}
	if err := restore(c); err != nil {
		return nil, err
	}
	return c, durable.Remove(filepath.Join(dir, joining))
}

// write writes files, by their names below the directory of the host.
func (c *Cluster) write(files map[string][]byte) error {
	for name, content := range files {
		at := c.Dir(filepath.FromSlash(name))
		if err := durable.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			return err
		}
		if err := durable.WriteFile(at, content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// SetEndpoints has the programs of this host find etcd at URLs. They must not run.
func (c *Cluster) SetEndpoints(urls []string) error {
	files := map[string][]byte{}
	for _, s := range c.services() {
		files["services/"+s.Name+"/"+endpointsFile] = []byte(strings.Join(urls, "\n") + "\n")
	}
	return c.write(files)
}

// formerAuthority reports whether the members of etcd that can be reached show certificates of another authority. port
// is that of their URLs if it is empty.
func (c *Cluster) formerAuthority(name string, endpoints []string, port string) (former bool, err error) {
	trust, err := identity.LoadTrust(c.Dir("pki"), name)
	if err != nil {
		return false, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trust.Bundle())
	for _, e := range endpoints {
		u, err := url.Parse(e)
		if err != nil {
			return false, err
		}
		at := net.JoinHostPort(u.Hostname(), cmp.Or(port, u.Port()))
		conn, err := tls.DialWithDialer(&net.Dialer{Timeout: 2 * time.Second}, "tcp", at, &tls.Config{RootCAs: roots})
		if err == nil {
			return false, conn.Close()
		}
		if unknown := new(x509.UnknownAuthorityError); errors.As(err, unknown) {
			former = true
		}
	}
	return former, nil
}

// claim marks a directory as that of a host that joins the cluster with an authority, and refuses one that has files of
// another cluster.
func claim(dir string, authority []byte) error {
	marker := filepath.Join(dir, joining)
	have, err := os.ReadFile(marker)
	if err == nil && bytes.Equal(have, authority) {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := absent(dir, settingsFile, "pki", "services", "admin", "node"); err != nil {
		return err
	}
	return durable.WriteFile(marker, authority, 0o600)
}
