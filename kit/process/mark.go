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

// newMark returns what tells one start of a process from every other.
func newMark() string { return strings.ToLower(rand.Text()[:20]) }

// pidNamespace identifies the namespace that pids are counted in: a restarted container has another one.
func pidNamespace() (string, error) {
	ns, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return "", fmt.Errorf("pid namespace: %w", err)
	}
	return ns, nil
}

// reachable reports whether the process may still be there: pids and start times mean nothing after a reboot or in
// another container.
func (r record) reachable() (bool, error) {
	boot, err := bootID()
	if err != nil {
		return false, err
	}
	ns, err := pidNamespace()
	return r.Boot == boot && (r.Namespace == ns || r.Namespace == ""), err
}

// marks reports whether a process carries the marker of r: in its control group, in its environment, or, where the
// environment of another user's process cannot be read, by that user, which no other process has.
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
	case r.Mark == "": // written before there were marks
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
	sweepRounds = 50 // a process that forks all the time is caught between two forks
	sweepPause  = 2 * time.Millisecond
)

// sweep ends what a process that has ended left behind: all of its control group, else each process with its marker.
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

// left reports whether a process was left behind by r. The environment of another user's process may not be readable:
// it counts then if it has r's user and is in r's session.
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

// killEach ends every process that is meant, until there is none.
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
				continue // it has ended, and its parent has not taken note yet
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
	return errors.Join(append(errs, errors.New("processes that were killed are still there"))...)
}

// killOne ends a process if it is still meant once its pidfd is held, so that a pid given to another one in between is
// harmless.
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

// whenGone takes what says that a process is gone for no error.
func whenGone(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}
