package process

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
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
	if r.Cgroup != "" {
		if path, err := cgroupOf(strconv.Itoa(pid)); err == nil && filepath.Base(path) == filepath.Base(r.Cgroup) {
			return true
		}
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
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

const (
	sweepRounds = 50 // one round may miss a process that forks repeatedly
	sweepPause  = 2 * time.Millisecond
)

// sweep kills what an ended process left behind: all processes of its control group, or without one each process with
// its marker.
func (r record) sweep() error {
	if here, err := r.reachable(); err != nil || !here {
		return err
	}
	if r.Cgroup != "" {
		return killCgroup(r.Cgroup)
	}
	if r.Mark == "" {
		return nil
	}
	return killEach(r.left)
}

// left reports whether a process was left behind by r. If the environment of another user's process is not readable, it
// counts if it has r's user and is in r's session.
func (r record) left(pid int) bool {
	if !r.marks(pid) {
		return false
	}
	if _, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)); !errors.Is(err, fs.ErrPermission) {
		return true
	}
	st, err := readStat(pid)
	return err == nil && st.session == r.PID
}

// killEach kills every process that meant selects, until there is none.
func killEach(meant func(pid int) bool) error {
	var errs []error
	for range sweepRounds {
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return fmt.Errorf("list processes: %w", err)
		}
		found := false
		errs = nil
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil || pid == os.Getpid() || !meant(pid) {
				continue
			}
			if _, err := readStat(pid); errors.Is(err, ErrNoProcess) {
				continue // it has ended, and its parent has not reaped it yet
			}
			found = true
			if err := killOne(pid, meant); err != nil {
				errs = append(errs, fmt.Errorf("kill %d: %w", pid, err))
			}
		}
		if !found {
			return nil
		}
		time.Sleep(sweepPause)
	}
	return errors.Join(append(errs, errors.New("processes that were killed still exist"))...)
}

// killOne kills a process if meant still selects it once its pidfd is open: its pid may have been reused in between.
func killOne(pid int, meant func(pid int) bool) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return whenGone(err)
	}
	defer unix.Close(fd)
	if !meant(pid) {
		return nil
	}
	return whenGone(unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0))
}

// whenGone returns err unless it means that a process is gone.
func whenGone(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}
