package cluster

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/topology"
)

// maxBundle is how many bytes the files of a bundle may have together: it is kept in etcd, in one record.
const maxBundle = 1000 << 10 // encrypted it may have 1 MiB

// endpointsFile of a service has the addresses of etcd's members.
const endpointsFile = "endpoints"

// Bundle returns what another control-plane host of the cluster needs: the authorities with their keys, the keys that
// seal records, the policy, the bearer tokens, the releases and the settings. Who has it is root of the
// cluster.
func (c *Cluster) Bundle() ([]byte, error) {
	if c.Member == nil {
		return nil, errors.New("the control plane of this cluster is not on hosts")
	}
	unlock, err := c.lockPKI()
	if err != nil {
		return nil, err
	}
	defer unlock()
	var out bytes.Buffer
	packed := gzip.NewWriter(&out)
	files := tar.NewWriter(packed)
	total := 0
	add := func(name string, content []byte) error {
		if total += len(content); total > maxBundle {
			return fmt.Errorf("the files for another host are larger than %d KiB together, with %s", maxBundle>>10, name)
		}
		if err := files.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(content))}); err != nil {
			return err
		}
		_, err := files.Write(content)
		return err
	}
	settings, err := json.Marshal(c.Settings)
	if err != nil {
		return nil, err
	}
	if err := add(hostFile, settings); err != nil {
		return nil, err
	}
	err = filepath.WalkDir(c.dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(c.dir, at)
		if err != nil || !d.Type().IsRegular() || !shared(filepath.ToSlash(name)) {
			return err
		}
		content, err := os.ReadFile(at)
		if err != nil {
			return err
		}
		return add(filepath.ToSlash(name), content)
	})
	if err := errors.Join(err, files.Close(), packed.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// shared reports whether a file below a host's directory is the same on all control-plane hosts.
func shared(name string) bool {
	parts := strings.Split(name, "/")
	switch parts[0] {
	case "policy.yaml":
		return len(parts) == 1
	case "pki":
		// The rest is of this host: the lock, and the audit log of what was issued here.
		return len(parts) == 2 && (slices.Contains([]string{".crt", ".key", ".json"}, path.Ext(name)) ||
			parts[1] == "record-keys-made")
	case "release":
		return len(parts) > 1
	case "services":
		return name == "services/"+topology.Gateway+"/tokens" ||
			len(parts) == 4 && parts[2] == "tls" && parts[3] == serve.RecordKeysFile
	}
	return false
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
	if there, err := exists(filepath.Join(dir, hostFile)); err != nil || there {
		return nil, errors.Join(err, fmt.Errorf("%s: this host is in a cluster already", dir))
	}
	files, err := unpack(j.Bundle)
	if err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	if err := complete(files); err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	if len(j.Endpoints) == 0 {
		return nil, errors.New("the cluster names no member of etcd")
	}
	if err := claim(dir, files["pki/"+topology.APIAuthority+"-ca.crt"]); err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir}
	if err := json.Unmarshal(files[hostFile], &c.Settings); err != nil || c.Member == nil {
		return nil, errors.Join(errors.New("bundle: the settings are missing"), err)
	}
	if err := c.CheckFormat(); err != nil {
		return nil, err
	}
	m.First, m.Begun, m.Registered = c.Member.First, true, true
	if c.Member = &m; m.Address == m.First {
		return nil, fmt.Errorf("address %s: is that of the host that began the cluster", m.Address)
	}
	if err := c.joinPodUsers(c.PodsIsolated()); err != nil {
		return nil, err
	}
	delete(files, hostFile)
	for _, s := range c.services() {
		files["services/"+s.Name+"/"+endpointsFile] = []byte(strings.Join(j.Endpoints, "\n") + "\n")
	}
	for name, content := range files {
		at := filepath.Join(dir, filepath.FromSlash(name))
		if err := durable.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			return nil, err
		}
		if err := durable.WriteFile(at, content, 0o600); err != nil {
			return nil, err
		}
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

// complete returns an error unless the files have everything that a host cannot make itself.
func complete(files map[string][]byte) error {
	want := []string{hostFile, "policy.yaml"}
	for _, name := range topology.Authorities() {
		want = append(want, "pki/"+name+"-ca.crt", "pki/"+name+"-ca.key")
	}
	for _, s := range topology.AllServices() {
		if s.Seals {
			want = append(want, "services/"+s.Name+"/tls/"+serve.RecordKeysFile)
		}
	}
	for _, name := range want {
		if len(files[name]) == 0 {
			return fmt.Errorf("%s is missing", name)
		}
	}
	return nil
}

// unpack returns the files of a bundle by name. One with a name that Bundle does not write is refused.
func unpack(bundle []byte) (map[string][]byte, error) {
	packed, err := gzip.NewReader(bytes.NewReader(bundle))
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	files, total := tar.NewReader(packed), 0
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag != tar.TypeReg || path.Clean(h.Name) != h.Name || !filepath.IsLocal(filepath.FromSlash(h.Name)) ||
			h.Name != hostFile && !shared(h.Name) {
			return nil, fmt.Errorf("%q is no file of a host", h.Name)
		}
		content, err := io.ReadAll(io.LimitReader(files, maxBundle+1))
		if err != nil {
			return nil, err
		}
		if total += len(content); total > maxBundle {
			return nil, fmt.Errorf("is larger than %d KiB", maxBundle>>10)
		}
		out[h.Name] = content
	}
}
