// Package pki keeps the keys and certificates of a machine: it joins the cluster with the machine's token and renews
// the certificates in time. Keys are made once, before they are used, and stay: so a join that was interrupted is
// repeated with the same keys, and certificate and key on the disk always belong together.
package pki

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/services/node-agent/gateway"
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
	dir          string
	bootstrap    []string
	gatewaysFile string
}

// NewStore returns the store of a machine. bootstrap are the endpoints that its provider wrote down, at least one.
// gatewaysFile has the endpoints of all gateways, one per line, as another process on the host knows them now; empty if
// there is none.
func NewStore(dir string, bootstrap []string, gatewaysFile string) *Store {
	return &Store{dir: dir, bootstrap: bootstrap, gatewaysFile: gatewaysFile}
}

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
// agent to agent. Those of the time of the certificates come after those that are known now, and those of the bootstrap
// file last: a list that turns out to be wrong is replaced through them.
func (s *Store) Endpoints() ([]string, error) {
	n, err := s.Node()
	if err != nil {
		return nil, err
	}
	now, err := s.gatewaysNow()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range slices.Concat(ordered(n.Name, now), ordered(n.Name, n.Gateways), s.bootstrap) {
		if !slices.Contains(out, e) {
			out = append(out, e)
		}
	}
	return out, nil
}

// gatewaysNow returns what the file of the gateways has, if that can be used.
func (s *Store) gatewaysNow() ([]string, error) {
	if s.gatewaysFile == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(s.gatewaysFile)
	if errors.Is(err, fs.ErrNotExist) { // none is known yet
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	list := strings.Fields(string(raw))
	if checkGateways(list) != nil {
		return nil, nil
	}
	return list, nil
}

// ordered returns gateways in the order in which a node prefers them.
func ordered(node string, gateways []string) []string {
	out := slices.Clone(gateways)
	slices.SortFunc(out, func(a, b string) int { return bytes.Compare(weight(node, a), weight(node, b)) })
	return out
}

// Follow has conn use the gateways of the file as they change, until ctx ends.
func (s *Store) Follow(ctx context.Context, conn *gateway.Conn, log *slog.Logger) error {
	return conn.FollowFile(ctx, s.gatewaysFile, s.Endpoints, log)
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
	data, err := json.Marshal(n)
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		data []byte
	}{
		{"ca.crt", r.GetAuthority()},
		{"agent.crt", r.GetAgentCertificate()},
		{"node.json", append(data, '\n')},
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
