package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// askMain sends sig to the main process alone: the child of a wrapper, else the process that was started. ErrNoProcess
// means that there is none, or not yet.
func (h *handle) askMain(sig syscall.Signal) error {
	if !h.Wrapper {
		var sent error
		err := h.conn.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), sig, nil, 0) })
		return h.unlessGone(errors.Join(err, sent))
	}
	pid, st, err := h.main()
	if err != nil {
		return err
	}
	if h.Cgroup == "" {
		if of, err := h.members(); err == nil {
			h.beside.Lock()
			h.asked = of
			h.beside.Unlock()
		}
	}
	select {
	case <-h.exited: // its pid may be another process's by now, and so may that one's children
		return ErrNoProcess
	default:
	}
	return signalOne(pid, st, sig)
}

// ask sends SIGTERM to what is to end the process, and reports whether that got it.
func (h *handle) ask() bool {
	if !h.Wrapper {
		_ = h.signal(syscall.SIGTERM) // fails only if the process is already gone
		return true
	}
	return !errors.Is(h.askMain(syscall.SIGTERM), ErrNoProcess)
}

// main returns the child of a wrapper. A child that has the command line of its parent has not begun with its own
// program: a signal would reach the wrapper's code in it.
func (h *handle) main() (int, stat, error) {
	own, err := commandLine(h.PID)
	if err != nil {
		return 0, stat{}, fmt.Errorf("main process of %d: %w", h.PID, ErrNoProcess)
	}
	children, err := childrenOf(h.PID)
	if err != nil {
		return 0, stat{}, err
	}
	for _, pid := range children {
		st, err := readStat(pid)
		if err != nil || st.parent != h.PID {
			continue
		}
		if line, err := commandLine(pid); err == nil && !bytes.Equal(line, own) {
			return pid, st, nil
		}
	}
	return 0, stat{}, fmt.Errorf("main process of %d: %w", h.PID, ErrNoProcess)
}

func commandLine(pid int) ([]byte, error) { return os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) }

// childrenOf returns the children of a process with one thread. Kernels may lack the file that lists them.
func childrenOf(pid int) (out []int, err error) {
	list, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err == nil {
		for field := range strings.FieldsSeq(string(list)) {
			if child, err := strconv.Atoi(field); err == nil {
				out = append(out, child)
			}
		}
		return out, nil
	}
	running, err := all()
	for child, st := range running {
		if st.parent == pid {
			out = append(out, child)
		}
	}
	return out, err
}
