// Package pki keeps the keys and certificates of a machine: it joins the cluster with the machine's token and renews
// the certificates in time. Keys are made once, before they are used, and stay: so a join that was interrupted is
// repeated with the same keys, and certificate and key on the disk always belong together.
package pki

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/kit/identity"
)

// Node is the machine's identity in the cluster, as returned when it joined.
type Node struct {
	Name             string `json:"name"`
	MachineNamespace string `json:"machineNamespace"`
	MachineName      string `json:"machineName"`
	ProviderID       string `json:"providerID"`
	Role             string `json:"role"`
	Address          string `json:"address"`
	// Gateways are the endpoints of the cluster's gateways, as they were when the certificates were made.
	Gateways []string `json:"gateways,omitempty"`
}

// maxGateways is how many gateways a cluster may name.
const maxGateways = 16

// Store is the agent's key and certificate below a machine's directory.
type Store struct {
	dir       string
	bootstrap []string
}

// NewStore returns the store of a machine. bootstrap are the endpoints that its provider wrote down, at least one.
func NewStore(dir string, bootstrap []string) *Store { return &Store{dir: dir, bootstrap: bootstrap} }

func (s *Store) agent(name string) string { return filepath.Join(s.dir, "pki", name) }

// Files returns what the agent calls the cluster with.
func (s *Store) Files() identity.Files {
	return identity.Files{Cert: s.agent("agent.crt"), Key: s.agent("agent.key"), CA: s.agent("ca.crt")}
}

// Node returns who the machine is; the error wraps fs.ErrNotExist if it has not joined yet.
func (s *Store) Node() (Node, error) {
	var n Node
	data, err := os.ReadFile(s.agent("node.json"))
	if err != nil {
		return n, err
	}
	if err := json.Unmarshal(data, &n); err != nil || n.Name == "" {
		return n, fmt.Errorf("node.json: %w", errors.Join(err, errors.New("it names no node")))
	}
	return n, nil
}

// Endpoints returns the endpoints of the gateways in the order in which this agent prefers them, which differs from
// agent to agent. Those of the bootstrap file come last: a list that turns out to be wrong is replaced through them.
func (s *Store) Endpoints() ([]string, error) {
	n, err := s.Node()
	if err != nil {
		return nil, err
	}
	preferred := slices.Clone(n.Gateways)
	slices.SortFunc(preferred, func(a, b string) int { return bytes.Compare(weight(n.Name, a), weight(n.Name, b)) })
	var out []string
	for _, e := range append(preferred, s.bootstrap...) {
		if !slices.Contains(out, e) {
			out = append(out, e)
		}
	}
	return out, nil
}

// weight orders the gateways for a node: always in the same way, so that the node returns to the same gateway, and
// differently for each node, so that nodes are spread evenly.
func weight(node, endpoint string) []byte {
	sum := sha256.Sum256([]byte(endpoint + "\x00" + node)) // of simpler hashes the order is much the same for all nodes
	return sum[:]
}

// checkGateways returns an error unless a list of gateways can be used.
func checkGateways(list []string) error {
	if len(list) > maxGateways {
		return fmt.Errorf("%d gateways are more than %d", len(list), maxGateways)
	}
	for _, e := range list {
		if host, port, err := net.SplitHostPort(e); err != nil || host == "" || port == "" {
			return fmt.Errorf("gateway %q is not host:port", e)
		}
	}
	return nil
}

// request returns a certificate request of the agent's key, in DER.
func (s *Store) request(name string) ([]byte, error) {
	return identity.RequestFor(s.agent("agent.key"), name)
}

// save writes what the cluster answered. The note of who the machine is comes last: with it the join is done. Gateways
// that cannot be used, or none, leave the former ones in force: without any the agent would never get others.
func (s *Store) save(r *machinev1.JoinResponse, log *slog.Logger) error {
	n := Node{
		Name: r.GetNodeName(), MachineNamespace: r.GetMachineNamespace(), MachineName: r.GetMachineName(),
		ProviderID: r.GetProviderId(), Role: r.GetRole(), Address: r.GetAddress(), Gateways: r.GetGateways(),
	}
	if err := checkGateways(n.Gateways); err != nil {
		log.Error("list of gateways ignored", "error", err)
		n.Gateways = nil
	}
	if former, err := s.Node(); err == nil && len(n.Gateways) == 0 {
		n.Gateways = former.Gateways
	}
	data, err := n.marshal()
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		data []byte
	}{
		{"ca.crt", r.GetAuthority()},
		{"agent.crt", r.GetAgentCertificate()},
		{"node.json", data},
	} {
		if len(f.data) == 0 {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(s.agent(f.name)), 0o700); err != nil {
			return err
		}
		if err := durable.WriteFile(s.agent(f.name), f.data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (n Node) marshal() ([]byte, error) {
	data, err := json.Marshal(n)
	return append(data, '\n'), err
}

// AddGateway has the agent know another gateway when it starts next. The error wraps fs.ErrNotExist if the machine has
// not joined yet.
func (s *Store) AddGateway(endpoint string) error {
	n, err := s.Node()
	if err != nil || slices.Contains(n.Gateways, endpoint) {
		return err
	}
	n.Gateways = append([]string{endpoint}, n.Gateways[:min(len(n.Gateways), maxGateways-1)]...)
	if err := checkGateways(n.Gateways); err != nil {
		return err
	}
	data, err := n.marshal()
	if err != nil {
		return err
	}
	return durable.WriteFile(s.agent("node.json"), data, 0o600)
}

// lifetime returns when the certificate was issued, by the time of its file, since a certificate is dated back a
// little, and when it ends.
func (s *Store) lifetime() (issued, expires time.Time, err error) {
	info, err := os.Stat(s.agent("agent.crt"))
	if err != nil {
		return issued, expires, err
	}
	cert, err := identity.ReadCertificate(s.agent("agent.crt"))
	if err != nil {
		return issued, expires, err
	}
	return info.ModTime(), cert.NotAfter, nil
}
