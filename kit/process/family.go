package process

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	sweepRounds = 50 // one round may miss a process that forks repeatedly
	sweepPause  = 2 * time.Millisecond
)

// sweep kills everything that belongs to an ended process: all processes of its control group, or without one its
// family. led says that the process was known to run until its end was seen. An error means that something may be left.
func (r record) sweep(led bool) error {
	if here, err := r.reachable(); err != nil || !here {
		return err
	}
	if r.Cgroup != "" {
		return r.group().End()
	}
	if r.Mark == "" {
		return nil
	}
	return killAll(func() (processes, error) { return r.family(led) })
}

// signalFamily sends sig to the process and to everything that belongs to it.
func (h *handle) signalFamily(sig syscall.Signal) error {
	of, err := h.members()
	if err != nil {
		return err
	}
	var errs []error
	for pid, st := range of {
		errs = append(errs, signalOne(pid, st, sig))
	}
	return errors.Join(errs...)
}

// members returns the processes of the control group, or of the family where there is none.
func (h *handle) members() (processes, error) {
	if h.Cgroup == "" {
		return h.family(true)
	}
	pids, err := h.group().Pids()
	if err != nil {
		return nil, err
	}
	out := processes{}
	for _, pid := range pids {
		if st, err := readStat(pid); err == nil && h.group().Has(pid) {
			out[pid] = st
		}
	}
	return out, nil
}

// processes are running processes, by their pid.
type processes map[int]stat

// all returns every process but this one. Zombies are not among them.
func all() (processes, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	out := processes{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if st, err := readStat(pid); err == nil {
			out[pid] = st
		}
	}
	return out, nil
}

// family returns what is found of a process and its children without a control group: those with its marker, those of
// its session if it is known to have led it until now, and then all that share a session with one of them, or that one
// of them started. A process that dropped its environment is found by its session or its parent; one that left both is
// not found.
func (r record) family(led bool) (processes, error) {
	running, err := all()
	if err != nil {
		return nil, err
	}
	if st, ok := running[r.PID]; ok && st.startTime != r.StartTime {
		led = false // its number is another process's, and so is the session of that number
	}
	found := processes{}
	for pid, st := range running {
		if led && r.PID != 0 && st.session == r.PID || r.left(pid, st) {
			found[pid] = st
		}
	}
	return found, running.addRelated(found)
}

// addRelated adds to found what shares a session with one of them, or was started by one of them and has no marker of
// another start: the processes of a supervised supervisor outlive it. This process's own session is never added.
func (running processes) addRelated(found processes) error {
	own, err := unix.Getsid(0)
	if err != nil {
		return fmt.Errorf("own session: %w", err)
	}
	for more := len(found) > 0; more; {
		more = false
		sessions := map[int]bool{}
		for _, st := range found {
			sessions[st.session] = true
		}
		for pid, st := range running {
			if _, known := found[pid]; known || st.session == own {
				continue
			}
			if _, child := found[st.parent]; sessions[st.session] || child && !hasMarker(pid) {
				found[pid], more = st, true
			}
		}
	}
	return nil
}

// hasMarker reports whether a process has the marker of any start.
func hasMarker(pid int) bool {
	environ, err := environOf(pid)
	return err == nil && bytes.Contains(append([]byte{0}, environ...), []byte("\x00"+markerName+"="))
}

// left reports whether a process has the marker of r. If the environment of another user's process is not readable, it
// counts if it has r's user and is in r's session.
func (r record) left(pid int, st stat) bool {
	if !r.marks(pid) {
		return false
	}
	_, err := environOf(pid)
	return !errors.Is(err, fs.ErrPermission) || st.session == r.PID
}

// descended returns the processes with the marker of a process of dir whose name begins with prefix, and all that are
// related to them.
func descended(dir, prefix string) (processes, error) {
	running, err := all()
	if err != nil {
		return nil, err
	}
	marker := []byte("\x00" + markerName + "=" + filepath.Join(dir, prefix))
	if prefix == "" {
		marker = append(marker, filepath.Separator)
	}
	found := processes{}
	for pid, st := range running {
		if environ, err := environOf(pid); err == nil && bytes.Contains(append([]byte{0}, environ...), marker) {
			found[pid] = st
		}
	}
	return found, running.addRelated(found)
}

// killEach kills every process that meant selects, until there is none.
func killEach(meant func(pid int) bool) error {
	return killAll(func() (processes, error) {
		running, err := all()
		for pid := range running {
			if !meant(pid) {
				delete(running, pid)
			}
		}
		return running, err
	})
}

// killAll kills every process that find returns, until it returns none.
func killAll(find func() (processes, error)) error {
	var errs []error
	for range sweepRounds {
		found, err := find()
		if err != nil || len(found) == 0 {
			return err
		}
		errs = nil
		for pid, st := range found {
			errs = append(errs, signalOne(pid, st, unix.SIGKILL))
		}
		time.Sleep(sweepPause)
	}
	return errors.Join(append(errs, errors.New("processes that were killed still exist"))...)
}

// signalOne sends sig to a process unless its pid belongs to another one by now.
func signalOne(pid int, st stat, sig syscall.Signal) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return whenGone(pid, err)
	}
	defer unix.Close(fd)
	if now, err := readStat(pid); err != nil || now.startTime != st.startTime {
		return nil
	}
	return whenGone(pid, unix.PidfdSendSignal(fd, sig, nil, 0))
}

// whenGone returns err unless it means that a process is gone.
func whenGone(pid int, err error) error {
	if err == nil || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return fmt.Errorf("signal %d: %w", pid, err)
}
