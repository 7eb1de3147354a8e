// Package pki keeps the keys and certificates of a machine: it joins the cluster with the machine's token and renews the certificates
// in time. Keys are made once, before they are used, and stay: so a join that was interrupted is repeated with the same keys, and
// certificate and key on the disk always belong together.
package pki

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/identity"
)

// Node is who the machine is in the cluster, as it was told when it joined.
type Node struct {
	Name             string `json:"name"`
	MachineNamespace string `json:"machineNamespace"`
	MachineName      string `json:"machineName"`
	ProviderID       string `json:"providerID"`
	Role             string `json:"role"`
	Address          string `json:"address"`
}

// Store is the agent's key and certificate below a machine's directory.
type Store struct{ dir string }

// NewStore returns the store of a machine.
func NewStore(dir string) *Store { return &Store{dir: dir} }

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

// request returns a certificate request of the agent's key, in DER.
func (s *Store) request(name string) ([]byte, error) {
	return identity.RequestFor(s.agent("agent.key"), name)
}

// save writes what the cluster answered. The note of who the machine is comes last: with it the join is done.
func (s *Store) save(r *machinev1.JoinResponse) error {
	files := []struct {
		path string
		data []byte
	}{
		{s.agent("ca.crt"), r.GetAuthority()},
		{s.agent("agent.crt"), r.GetAgentCertificate()},
	}
	for _, f := range files {
		if len(f.data) == 0 {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
			return err
		}
		if err := renameio.WriteFile(f.path, f.data, 0o600); err != nil {
			return err
		}
	}
	data, err := json.Marshal(Node{
		Name: r.GetNodeName(), MachineNamespace: r.GetMachineNamespace(), MachineName: r.GetMachineName(),
		ProviderID: r.GetProviderId(), Role: r.GetRole(), Address: r.GetAddress(),
	})
	if err != nil {
		return err
	}
	return renameio.WriteFile(s.agent("node.json"), append(data, '\n'), 0o600)
}

// lifetime returns when the certificate was issued, by the time of its file, since a certificate is dated back a little, and when it ends.
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
