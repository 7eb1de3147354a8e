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
	// Init is when the first process started, in ticks since the host's boot: the end of a container's first process ends
	// all of its processes, while the host runs on. It is empty in records of earlier agents, and where it cannot be read.
	Init string `json:"init,omitempty"`
}

// LoadBoot returns the present boot. It begins a new one if there is none yet, or if the host was booted since, or the
// container that is the machine was started.
func LoadBoot(dir string) (Boot, error) {
	return loadBoot(dir, firstLine("/proc/sys/kernel/random/boot_id"), startTime(firstLine("/proc/1/stat")))
}

func loadBoot(dir, host, first string) (Boot, error) {
	path := filepath.Join(dir, bootFile)
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Boot{}, err
	}
	var b Boot
	known := json.Unmarshal(data, &b) == nil && b.ID != "" && b.Host == host
	switch {
	case known && b.Init == first:
		return b, nil
	case known && b.Init == "":
		b.Init = first // of an earlier agent
	default:
		b = Boot{ID: uuid.NewString(), Host: host, Init: first}
	}
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

// startTime returns the field starttime of a line of /proc/PID/stat; empty if it has none. Source: proc(5). The name of
// the program before the other fields may contain anything.
func startTime(stat string) string {
	const field = 22 - 3 // after the number, the name and the state
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) <= field {
		return ""
	}
	return fields[field]
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
