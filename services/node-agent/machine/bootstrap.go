// Package machine reads what a machine is: what its provider wrote down for it, which boot this is, and what it runs
// on.
package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/windlass-dev/windlass/kit/durable"
)

// Roles of machines.
const (
	Master = "master" // a control-plane machine
	Worker = "worker"
)

// bootstrapFile is written by the provider before the agent starts for the first time. It holds a secret.
const bootstrapFile = "bootstrap.json"

// Bootstrap is what the provider gives a machine to begin with.
type Bootstrap struct {
	Endpoints  []string `json:"endpoints"` // host:port of the cluster's gateways
	Token      string   `json:"token"`
	Role       string   `json:"role"`
	Address    string   `json:"address"` // IP address of the machine inside the cluster
	NodeName   string   `json:"nodeName"`
	ProviderID string   `json:"providerID"`
	// Capacity is what the machine has, as quantities: numbers, or strings such as "4Gi".
	Capacity map[string]any `json:"capacity,omitempty"`
}

// LoadBootstrap reads the machine's bootstrap file.
func LoadBootstrap(dir string) (Bootstrap, error) {
	var b Bootstrap
	data, err := os.ReadFile(filepath.Join(dir, bootstrapFile))
	if err != nil {
		return b, err
	}
	if err := json.Unmarshal(data, &b); err != nil {
		return b, fmt.Errorf("%s: %w", bootstrapFile, err)
	}
	if len(b.Endpoints) == 0 || b.Token == "" {
		return b, fmt.Errorf("%s: %w", bootstrapFile, errors.New("endpoints and token are required"))
	}
	for i, e := range b.Endpoints {
		b.Endpoints[i] = strings.TrimPrefix(e, "https://")
	}
	return b, nil
}

// Save writes the bootstrap file of a machine.
func (b Bootstrap) Save(dir string) error {
	data, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, bootstrapFile), append(data, '\n'), 0o600)
}

// AuthorityHash returns the hash of the cluster's authority, which the token carries as its last part.
func (b Bootstrap) AuthorityHash() (string, error) {
	i := strings.LastIndexByte(b.Token, '.')
	if i < 0 || !strings.HasPrefix(b.Token[i+1:], "sha256:") {
		return "", errors.New("the token does not end with the hash of an authority")
	}
	return b.Token[i+1:], nil
}
