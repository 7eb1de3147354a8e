// Package pki keeps the keys and certificates of a machine: it joins the cluster with the machine's token and renews the certificates
// in time. Keys are made once, before they are used, and stay: so a join that was interrupted is repeated with the same keys, and
// certificate and key on the disk always belong together.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/identity"

	"github.com/windlass-dev/windlass/services/node-agent/machine"
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

// Store is the keys and certificates below a machine's directory.
type Store struct {
	dir    string
	master bool // whether it holds a member's certificates, too
}

// NewStore returns the store of a machine.
func NewStore(dir, role string) *Store { return &Store{dir: dir, master: role == machine.Master} }

func (s *Store) agent(name string) string { return filepath.Join(s.dir, "pki", name) }

// MemberDir returns the directory with the files that an etcd member needs.
func (s *Store) MemberDir() string { return filepath.Join(s.dir, "etcd", "tls") }

func (s *Store) member(name string) string { return filepath.Join(s.MemberDir(), name) }

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

// requests are the certificate requests of a machine, in DER; the last two only of a control-plane machine.
type requests struct{ agent, server, peer []byte }

// requests makes what keys are missing, and a request for each.
func (s *Store) requests(name string) (r requests, err error) {
	if r.agent, err = request(s.agent("agent.key"), name); err != nil || !s.master {
		return r, err
	}
	if r.server, err = request(s.member("etcd-server.key"), name); err != nil {
		return r, err
	}
	r.peer, err = request(s.member("peer.key"), name)
	return r, err
}

// request returns a certificate request of the key in a file. What stands in it besides the key is for people: nobody believes it.
func request(keyFile, name string) ([]byte, error) {
	key, err := loadKey(keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		key, err = makeKey(keyFile)
	}
	if err != nil {
		return nil, err
	}
	return x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}, key)
}

func loadKey(path string) (*ecdsa.PrivateKey, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s: no PEM block", path)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s: not an ECDSA key", path)
	}
	return key, nil
}

func makeKey(path string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	return key, renameio.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)
}

// save writes what the cluster answered. The note of who the machine is comes last: with it the join is done.
func (s *Store) save(r *machinev1.JoinResponse) error {
	files := []struct {
		path string
		data []byte
	}{
		{s.member("etcd-ca.crt"), r.GetEtcdClientAuthority()},
		{s.member("etcd-server.crt"), r.GetEtcdServerCertificate()},
		{s.member("peer-ca.crt"), r.GetEtcdPeerAuthority()},
		{s.member("peer.crt"), r.GetEtcdPeerCertificate()},
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

// lifetime returns when the certificates were issued, by the time of their file, since a certificate is dated back a little, and when
// the first of them ends.
func (s *Store) lifetime() (issued, expires time.Time, err error) {
	info, err := os.Stat(s.agent("agent.crt"))
	if err != nil {
		return issued, expires, err
	}
	paths := []string{s.agent("agent.crt")}
	if s.master {
		paths = append(paths, s.member("etcd-server.crt"), s.member("peer.crt"))
	}
	for _, path := range paths {
		end, err := expiry(path)
		if err != nil {
			return issued, expires, err
		}
		if expires.IsZero() || end.Before(expires) {
			expires = end
		}
	}
	return info.ModTime(), expires, nil
}

func expiry(path string) (time.Time, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return time.Time{}, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return time.Time{}, fmt.Errorf("%s: no PEM block", path)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}, fmt.Errorf("%s: %w", path, err)
	}
	return cert.NotAfter, nil
}
