package cluster

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/kit/hostbundle"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/topology"
)

// hostFile holds the settings of a host, in its directory.
const hostFile = hostbundle.Settings

// zonePattern is the form of a label's value: the zone is one of nodes.
var zonePattern = regexp.MustCompile(`^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$`)

// Member is one host of a cluster whose control plane is on several.
type Member struct {
	Name    string `json:"name"`    // of the host, unique in the cluster
	Address string `json:"address"` // IP address at which all others reach it
	Zone    string `json:"zone,omitempty"`
	// First is the address of the host with etcd's bootstrap member: the one that began the cluster, or the one on which
	// it was recovered last.
	First string `json:"first,omitempty"`
	// Worker means that no program of the control plane runs here, and that the cluster's keys are elsewhere.
	Worker bool `json:"worker,omitempty"`
	// Begun means that the cluster's authorities were made. They are made once: what is missing from then on is lost.
	Begun bool `json:"begun"`
	// Registered means that the inventory has this host, or had it: one that was removed is not registered again.
	Registered bool `json:"registered"`
	// Files says what configurations change: FilesOfHost, or empty for a directory of the machine.
	Files string `json:"files,omitempty"`
	// Observe means that they change nothing, and are compared with what there is.
	Observe bool `json:"observe,omitempty"`
	// Runtime is what runs the containers of pods, as node-agent takes it; empty: the agent itself, as processes.
	Runtime string `json:"runtime,omitempty"`
	// Recovered is when etcd was last recovered or restored, as far as this host knows; zero if it never was. A host that
	// knows an earlier time than another one has the data of the cluster before.
	Recovered time.Time `json:"recovered,omitzero"`
}

// NewMember returns the settings of a host, or an error unless they can be used. The address is written as one form of
// it only.
func NewMember(name, address, zone string) (Member, error) {
	if !namePattern.MatchString(name) {
		return Member{}, fmt.Errorf("host name %q: must be 1 to 32 lower case letters, digits and hyphens", name)
	}
	if !zonePattern.MatchString(zone) {
		return Member{}, fmt.Errorf(
			"zone %q: must be up to 63 letters, digits, '-', '_' and '.', the first and the last a letter or a digit", zone)
	}
	a, err := netip.ParseAddr(address)
	switch {
	case err != nil:
		return Member{}, fmt.Errorf("address %q: must be an IP address", address)
	case a.IsUnspecified() || a.IsMulticast():
		return Member{}, fmt.Errorf("address %s: must be an address of one host", a)
	case a.IsLinkLocalUnicast() || a.Zone() != "":
		return Member{}, fmt.Errorf("address %s: must not be link-local: others do not reach it", a)
	}
	return Member{Name: name, Address: a.Unmap().String(), Zone: zone}, nil
}

// FilesOfHost means that configurations change the files of the host itself, and systemd runs their units.
const FilesOfHost = "host"

// CheckFiles returns an error unless configurations can change the files of this host.
func CheckFiles() error {
	if os.Geteuid() != 0 {
		return errors.New("only root changes the files of the host")
	}
	if info, err := os.Lstat("/run/systemd/system"); err != nil || !info.IsDir() { // source: sd_booted(3)
		return errors.New("systemd does not run this host")
	}
	return nil
}

// CheckLocal returns an error unless address is one of this host.
func CheckLocal(address string) error {
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return fmt.Errorf("address %s is not one of this host: %w", address, err)
	}
	return l.Close()
}

// OpenHost returns the cluster of this host, by the settings in its directory; ErrNone if it is in none.
func OpenHost(dir string) (*Cluster, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(filepath.Join(dir, hostFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: this host is in no cluster: %w", dir, ErrNone)
	}
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir}
	if err := json.Unmarshal(raw, &c.Settings); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, hostFile), err)
	}
	if c.Member == nil {
		return nil, fmt.Errorf("%s: host is missing", filepath.Join(dir, hostFile))
	}
	return c, nil
}

// CreateHost begins a cluster on its first host: it makes the settings in dir, and refuses a directory that is another
// host's or holds anything of one. It may be repeated until the authorities were made.
func CreateHost(dir string, s Settings) (*Cluster, error) {
	if s.Member == nil {
		return nil, errors.New("the host is missing")
	}
	if !namePattern.MatchString(s.Name) {
		return nil, fmt.Errorf("cluster name %q: must be 1 to 32 lower case letters, digits and hyphens", s.Name)
	}
	dir, unlock, err := takeHostDir(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if c, err := OpenHost(dir); err == nil && !c.Member.Begun { // an earlier call was cut off
		if *c.Member != *s.Member || c.Name != s.Name || s.Lifetime != 0 && c.Lifetime != s.Lifetime {
			return nil, fmt.Errorf(
				"%s: a beginning of cluster %q on host %s at %s was cut off: repeat it with the same flags, or remove the directory",
				dir, c.Name, c.Member.Name, c.Member.Address)
		}
		return c, nil
	}
	if there, err := exists(filepath.Join(dir, hostFile)); err != nil || there {
		return nil, errors.Join(err, fmt.Errorf("%s: there is a cluster already", dir))
	}
	if err := absent(dir, settingsFile, "pki", "services", "host", "node", joining); err != nil {
		return nil, err
	}
	if s.Lifetime == 0 {
		s.Lifetime = Lifetime(DefaultLifetime)
	}
	s.Format, s.Created = Format, time.Now().UTC().Truncate(time.Second)
	c := &Cluster{Settings: s, dir: dir}
	if err := c.EnsurePodUsers(); err != nil {
		return nil, err
	}
	return c, c.Save()
}

// takeHostDir makes the directory of a host, keeps other processes from it until unlock is called, and returns its
// absolute path. Users of pods pass through it where their directory is below it; what else is in it is closed to them.
func takeHostDir(dir string) (path string, unlock func(), err error) {
	if path, err = filepath.Abs(dir); err != nil {
		return "", nil, err
	}
	if err := durable.MkdirAll(path, 0o700); err != nil {
		return "", nil, err
	}
	if err := os.Chmod(path, 0o711); err != nil {
		return "", nil, err
	}
	unlock, err = lock(path)
	return path, unlock, err
}

// absent returns an error unless nothing of these names is in a directory.
func absent(dir string, names ...string) error {
	for _, name := range names {
		if there, err := exists(filepath.Join(dir, name)); err != nil {
			return err
		} else if there {
			return fmt.Errorf("%s: has files of another cluster or host: %s; remove them first", dir, name)
		}
	}
	return nil
}

// HostFiles are the certificate, key and authority with which the agent of this host calls the cluster.
func (c *Cluster) HostFiles() identity.Files {
	return identity.Files{Cert: c.Dir("host", "tls.crt"), Key: c.Dir("host", "tls.key"), CA: c.Dir("host", "ca.crt")}
}

// DefaultHostDir is the directory of this host's part of a cluster on hosts, unless the environment names another one.
const DefaultHostDir = "/var/lib/windlass"

const (
	envHostDir = "WINDLASS_HOST_DIR" // names another one
)

// HostDir returns the directory of this host's part of a cluster whose control plane is on hosts.
func HostDir() string { return cmp.Or(os.Getenv(envHostDir), DefaultHostDir) }

// Gateways returns the endpoints of the cluster's gateways as this host knows them, its own first.
func (c *Cluster) Gateways() []string {
	out := []string{c.Gateway()}
	for _, file := range []string{c.GatewaysFile(), c.addedGatewaysFile()} {
		raw, err := os.ReadFile(file)
		if err != nil { // there is none before the agent has attended, or a user has added one
			continue
		}
		for _, g := range strings.Fields(string(raw)) {
			if !slices.Contains(out, g) {
				out = append(out, g)
			}
		}
	}
	return out
}

// AddGateway adds a gateway to those that this host knows, and reports whether it did not know it. It is kept apart
// also: the agent replaces the list by that of the cluster that it attends, which may be the one of before.
func (c *Cluster) AddGateway(endpoint string) (added bool, err error) {
	unlock, err := lock(c.dir)
	if err != nil {
		return false, err
	}
	defer unlock()
	if err := durable.MkdirAll(c.Dir("host"), 0o700); err != nil {
		return false, err
	}
	for _, file := range []string{c.addedGatewaysFile(), c.GatewaysFile()} {
		raw, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		list := strings.Fields(string(raw))
		if slices.Contains(list, endpoint) {
			continue
		}
		text := strings.Join(append([]string{endpoint}, list...), "\n") + "\n"
		if err := durable.WriteFile(file, []byte(text), 0o600); err != nil {
			return false, err
		}
		added = true
	}
	return added, nil
}

// addedGatewaysFile has the gateways that users have added.
func (c *Cluster) addedGatewaysFile() string { return c.Dir("host", "gateways-added") }

// AddressesOf returns where a program is on the hosts of the control plane, as this host knows them, here first.
func (c *Cluster) AddressesOf(program string) []string {
	var out []string
	for _, g := range c.Gateways() {
		if host, _, err := net.SplitHostPort(g); err == nil {
			out = append(out, hostPort(host, topology.Port(program)))
		}
	}
	return out
}

// GatewaysFile has the endpoints of the cluster's gateways, one per line, as the agent of this host knew them last.
func (c *Cluster) GatewaysFile() string { return c.Dir("host", "gateways") }

// EnsureHostCertificate makes the certificate of the agent of this host, unless there is one. uid is that of the Host.
// Hosts that join get theirs from the cluster; all are renewed with the others of this host.
func (c *Cluster) EnsureHostCertificate(uid string) error {
	unlock, err := c.lockPKI()
	if err != nil {
		return err
	}
	defer unlock()
	authority, err := identity.LoadTrust(c.Dir("pki"), topology.APIAuthority)
	if err != nil {
		return err
	}
	_, err = wanted{
		authority: authority, dir: c.Dir("host"), ca: "ca", name: "tls",
		request: identity.Request{
			CommonName: c.Member.Name, URI: identity.HostURI(c.Member.Name, uid), Client: true, Lifetime: c.lifetime(),
		},
	}.ensure()
	return err
}

// services returns the rows of the programs that the cluster runs here.
func (c *Cluster) services() []topology.Service {
	switch {
	case c.Member == nil:
		return topology.Services()
	case c.Member.Worker:
		return nil
	}
	return topology.ServicesOnHosts()
}

// JoinWorker makes the settings of a host that is a worker alone, with name as the cluster's. isolated says that its
// pods must run under users of their own. A directory of another host is refused.
func JoinWorker(dir, name string, m Member, isolated bool) (*Cluster, error) {
	dir, unlock, err := takeHostDir(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := absent(dir, hostFile, settingsFile, "pki", "services", "node", joining); err != nil {
		return nil, err
	}
	m.Worker, m.Begun, m.Registered = true, true, true
	c := &Cluster{dir: dir, Settings: Settings{
		Name: name, Format: Format, Created: time.Now().UTC().Truncate(time.Second), Member: &m,
	}}
	if err := c.joinPodUsers(isolated); err != nil {
		return nil, err
	}
	return c, c.Save()
}

// Programs returns the names of the programs that the cluster runs here, in the order in which they start.
func (c *Cluster) Programs() []string {
	var out []string
	for _, s := range c.services() {
		out = append(out, s.Name)
	}
	return out
}

// HostPorts returns the ports that the programs of a host open, its own member of etcd and the bootstrap member
// included.
func HostPorts() []int {
	ports := []int{clientPort, peerPort, bootstrapClientPort, bootstrapPeerPort}
	for _, s := range topology.ServicesOnHosts() {
		ports = append(ports, s.Port, s.Port+topology.MetricsStep)
	}
	return ports
}
