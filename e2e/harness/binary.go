package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// envBinary names the executable under test.
const envBinary = "WINDLASS_BIN"

// Binary returns the executable under test: $WINDLASS_BIN, else the one that `make build` makes, else the one on the
// PATH.
func Binary() (string, error) {
	if path := os.Getenv(envBinary); path != "" {
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("$%s: %w", envBinary, err)
		}
		return filepath.Abs(path)
	}
	if path := filepath.Join(Root(), ".bin", "windlass"); isFile(path) {
		return path, nil
	}
	if path, err := exec.LookPath("windlass"); err == nil {
		return filepath.Abs(path)
	}
	return "", errors.New("no windlass executable to test: run `make build` first, or set $" + envBinary)
}

// Tool returns an executable that `make` builds beside windlass, such as grpcurl, or the one on the PATH.
func Tool(name string) (string, error) {
	if path := filepath.Join(Root(), ".bin", name); isFile(path) {
		return path, nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is needed: run `make .bin/%s` first: %w", name, name, err)
	}
	return path, nil
}

// Root returns the root of the repository: where go.work is, upwards from the test's directory.
func Root() string {
	dir, err := os.Getwd()
	if err != nil {
		return ""
	}
	for {
		if isFile(filepath.Join(dir, "go.work")) {
			return dir
		}
		if dir == filepath.Dir(dir) {
			return ""
		}
		dir = filepath.Dir(dir)
	}
}

func isFile(path string) bool {
	s, err := os.Stat(path)
	return err == nil && s.Mode().IsRegular()
}
