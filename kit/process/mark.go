package process

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// newMark returns a random ID for one start of a process.
func newMark() string { return strings.ToLower(rand.Text()[:20]) }

// pidNamespace identifies the pid namespace of this process: a restarted container has another one.
func pidNamespace() (string, error) {
	ns, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return "", fmt.Errorf("pid namespace: %w", err)
	}
	return ns, nil
}

// reachable reports whether the process may still exist: pids and start times are not valid after a reboot or in
// another container.
func (r record) reachable() (bool, error) {
	boot, err := bootID()
	if err != nil {
		return false, err
	}
	ns, err := pidNamespace()
	return r.Boot == boot && (r.Namespace == ns || r.Namespace == ""), err
}

// marks reports whether a process has the marker of r: in its control group, or in its environment. If the environment
// of another user's process cannot be read, the user counts as the marker, since no other process has it.
func (r record) marks(pid int) bool {
	if r.group().Has(pid) {
		return true
	}
	environ, err := environOf(pid)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return r.UID != 0 && userOf(pid) == r.UID
	case err != nil:
		return false
	case r.Mark == "": // a record of an earlier version
		return strings.Contains("\x00"+string(environ), "\x00"+markerName+"=")
	}
	return strings.Contains("\x00"+string(environ), "\x00"+idName+"="+r.Mark+"\x00")
}

// userOf returns the real user of a process; 0 if it is gone.
func userOf(pid int) uint32 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(data), "\nUid:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	uid, err := strconv.ParseUint(fields[0], 10, 32)
	if err != nil {
		return 0
	}
	return uint32(uid)
}
