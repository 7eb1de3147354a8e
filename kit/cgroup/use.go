package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Pids returns the processes of a pool; none if there is no such pool or groups cannot be used.
func (t Tree) Pids(pool string) ([]int, error) {
	if t.base == "" {
		return nil, nil
	}
	return pidsIn(t.pool(pool))
}

// Memory returns how many bytes of memory the processes of a pool hold, without files that the kernel can drop at once:
// their working set, as Kubernetes has it. An error means that no controller counts it.
func (t Tree) Memory(pool string) (int64, error) {
	group, usage, inactive := filepath.Join(t.memory, t.name, pool), "memory.usage_in_bytes", "total_inactive_file"
	switch {
	case t.unified:
		group, usage, inactive = t.pool(pool), "memory.current", "inactive_file"
	case t.memory == "":
		return 0, errNoControllers
	}
	used, err := number(filepath.Join(group, usage))
	if err != nil {
		return 0, err
	}
	idle, err := entry(filepath.Join(group, "memory.stat"), inactive)
	return max(0, used-idle), err
}

// CPU returns how much processor time the processes of a pool have used, also those that ended. An error means that no
// controller counts it.
func (t Tree) CPU(pool string) (time.Duration, error) {
	if t.unified {
		usec, err := entry(filepath.Join(t.pool(pool), "cpu.stat"), "usage_usec")
		return time.Duration(usec) * time.Microsecond, err
	}
	if t.cpu == "" {
		return 0, errNoControllers
	}
	ns, err := number(filepath.Join(t.cpu, t.name, pool, "cpuacct.usage")) // a hierarchy of both, as everywhere
	return time.Duration(ns), err
}

func number(path string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
}

// entry returns the number of one line of a file of names and numbers.
func entry(path, name string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
		}
	}
	return 0, fmt.Errorf("%s: %w", path, errors.New("no entry "+name))
}
