package identity

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"time"

	"github.com/google/renameio/v2"
)

// Revocation is an entry of the deny list. Exactly one of User, Serial and MachineUID is set.
type Revocation struct {
	User string `json:"user,omitempty"`
	// only with User: what was issued later is accepted; zero refuses everything
	IssuedBefore time.Time `json:"issuedBefore,omitzero"`
	Serial       string    `json:"serial,omitempty"` // as SerialNumber writes it
	MachineUID   string    `json:"machineUID,omitempty"`
	Reason       string    `json:"reason,omitempty"`
}

// SerialNumber returns a certificate's serial number as revocations write it: hexadecimal, lower case, without leading
// zeros.
func SerialNumber(cert *x509.Certificate) string { return formatSerial(cert.SerialNumber) }

func formatSerial(n *big.Int) string { return n.Text(16) }

// IssuedAt returns when an authority of Windlass issued a certificate: they are dated back, for hosts whose clocks are
// behind.
func IssuedAt(cert *x509.Certificate) time.Time {
	at := cert.NotBefore.Add(skew)
	if at.After(cert.NotAfter) {
		return cert.NotBefore
	}
	return at
}

// denied is the deny list, by what it refuses.
type denied struct {
	users    map[string]Revocation
	serials  map[string]Revocation
	machines map[string]Revocation
}

func index(list []Revocation) denied {
	d := denied{users: map[string]Revocation{}, serials: map[string]Revocation{}, machines: map[string]Revocation{}}
	for _, r := range list {
		switch {
		case r.Serial != "":
			d.serials[r.Serial] = r
		case r.MachineUID != "":
			d.machines[r.MachineUID] = r
		case r.User != "":
			if before, ok := d.users[r.User]; !ok || r.refusesMoreThan(before) {
				d.users[r.User] = r
			}
		}
	}
	return d
}

func (r Revocation) refusesMoreThan(o Revocation) bool {
	return !o.IssuedBefore.IsZero() && (r.IssuedBefore.IsZero() || r.IssuedBefore.After(o.IssuedBefore))
}

// refusal returns why c is refused, nil if it is not.
func (d denied) refusal(c Credential) error {
	if r, ok := d.serials[c.serial]; ok && c.serial != "" {
		return r.error(fmt.Sprintf("the certificate with serial number %s", c.serial))
	}
	if r, ok := d.machines[c.machine]; ok && c.machine != "" {
		return r.error(fmt.Sprintf("machine %s", c.machine))
	}
	r, ok := d.users[c.User]
	// Certificates know whole seconds: what was issued in the second of the revocation is refused.
	if ok && c.User != "" && (r.IssuedBefore.IsZero() || !c.Issued.Truncate(time.Second).After(r.IssuedBefore)) {
		return r.error(fmt.Sprintf("user %q", c.User))
	}
	return nil
}

func (r Revocation) error(what string) error {
	text := what + " is revoked"
	if !r.IssuedBefore.IsZero() {
		text += " for what was issued up to " + r.IssuedBefore.UTC().Format(time.RFC3339)
	}
	if r.Reason != "" {
		text += ": " + r.Reason
	}
	return &badCredential{text}
}

// revocationsFile is what is kept on disk. The checksum detects a list that was truncated or changed on disk.
type revocationsFile struct {
	SHA256      string       `json:"sha256"` // of the revocations, in hex
	Revocations []Revocation `json:"revocations"`
}

func sumOf(list []Revocation) (string, error) {
	raw, err := json.Marshal(list)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:]), nil
}

// readRevocations returns the last copy of the list; an empty one if there is none.
func readRevocations(path string) ([]Revocation, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("revocations: %w", err)
	}
	var file revocationsFile
	if err := json.Unmarshal(raw, &file); err != nil {
		return nil, fmt.Errorf("revocations %s: %w", path, err)
	}
	if sum, err := sumOf(file.Revocations); err != nil || sum != file.SHA256 {
		return nil, fmt.Errorf("revocations %s: the list is not the one that was written", path)
	}
	return file.Revocations, nil
}

func writeRevocations(path string, list []Revocation) error {
	sum, err := sumOf(list)
	if err != nil {
		return fmt.Errorf("revocations: %w", err)
	}
	raw, err := json.MarshalIndent(revocationsFile{SHA256: sum, Revocations: list}, "", " ")
	if err != nil {
		return fmt.Errorf("revocations: %w", err)
	}
	if err := renameio.WriteFile(path, append(raw, '\n'), 0o600); err != nil {
		return fmt.Errorf("revocations: %w", err)
	}
	return nil
}
