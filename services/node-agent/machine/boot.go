package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/google/uuid"
)

// bootFile is in the directory that is cleared at boot. Its absence means that the machine was booted: a reboot removes
// it, and so does a provider that starts a stopped instance.
const bootFile = "run/boot.id"

// Boot identifies the time between two starts of a machine.
type Boot struct {
	ID   string `json:"id"`
	Host string `json:"host"` // boot of the host, whose end is the machine's end, too
}

// LoadBoot returns the present boot. It begins a new one if there is none yet, or if the host was booted since.
func LoadBoot(dir string) (Boot, error) {
	host := firstLine("/proc/sys/kernel/random/boot_id")
	path := filepath.Join(dir, bootFile)
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Boot{}, err
	}
	var b Boot
	if json.Unmarshal(data, &b) == nil && b.ID != "" && b.Host == host {
		return b, nil
	}
	b = Boot{ID: uuid.NewString(), Host: host}
	if data, err = json.Marshal(b); err != nil {
		return b, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return b, err
	}
	if err := renameio.WriteFile(path, data, 0o600); err != nil {
		return b, fmt.Errorf("boot: %w", err)
	}
	return b, nil
}

// EndBoot makes the next start of the agent a new boot.
func EndBoot(dir string) error {
	if err := os.Remove(filepath.Join(dir, bootFile)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// firstLine returns the first line of a file; empty if it cannot be read.
func firstLine(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(data), "\n")
	return strings.TrimSpace(line)
}
