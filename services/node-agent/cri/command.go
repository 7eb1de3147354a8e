package cri

import (
	"context"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CRI has no call that ends a command, and runtimes let it go on when its connection ends. Its process is found by what
// the kernel says of the processes of this host: it is in the control group of the container, which has the container's
// ID in its name, and its parent is not. Where this process sees no such control groups, as in a pid namespace of its
// own, the command goes on until it or the container ends.

// findPatience is how long the process of a command is looked for.
const findPatience = 2 * time.Second

// member is a process of a container.
type member struct {
	pid, parent int
	args        []string
}

// members returns the processes of a container by their pid.
func members(id string) map[int]member {
	files, _ := filepath.Glob("/proc/[0-9]*/cgroup") // the pattern is valid
	found := map[int]member{}
	for _, file := range files {
		groups, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(groups), id) {
			continue
		}
		dir := filepath.Dir(file)
		pid, _ := strconv.Atoi(filepath.Base(dir))
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		m := member{pid: pid, args: strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")}
		status, _ := os.ReadFile(filepath.Join(dir, "status"))
		for text := range strings.Lines(string(status)) {
			if parent, ok := strings.CutPrefix(text, "PPid:"); ok {
				m.parent, _ = strconv.Atoi(strings.TrimSpace(parent))
			}
		}
		found[pid] = m
	}
	return found
}

// runs reports whether a process runs a command, maybe as a script of an interpreter.
func (m member) runs(command []string) bool {
	at := len(m.args) - len(command)
	return at >= 0 && slices.Equal(m.args[at+1:], command[1:]) && path.Base(m.args[at]) == path.Base(command[0])
}

// seeker finds the process of a command that is begun after it was made.
type seeker struct {
	id      string
	command []string
	before  map[int]member
	done    chan struct{}
	pid, fd int // 0: not found; valid once done is closed
}

func newSeeker(id string, command []string) *seeker {
	return &seeker{id: id, command: command, before: members(id), done: make(chan struct{})}
}

// seek looks for the process until ctx ends, which is when the command has ended.
func (s *seeker) seek(ctx context.Context) {
	defer close(s.done)
	if len(s.before) == 0 {
		return // not even the container's own process is seen
	}
	until := time.Now().Add(findPatience)
	pause := 10 * time.Millisecond
	for ; time.Now().Before(until) && sleep(ctx, pause); pause = min(2*pause, 200*time.Millisecond) {
		all := members(s.id)
		for pid, m := range all {
			_, inside := all[m.parent]
			_, old := s.before[pid]
			if inside || old || !m.runs(s.command) {
				continue
			}
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				return // it has ended, or the kernel cannot
			}
			s.pid, s.fd = pid, fd
			return
		}
	}
}

// kill kills the process, if it was found, and what descends from it.
func (s *seeker) kill() {
	if s.pid == 0 {
		return
	}
	all := members(s.id) // first: when it has ended, its children have another parent
	if unix.PidfdSendSignal(s.fd, unix.SIGKILL, nil, 0) != nil {
		return // it has ended, and the pid may be that of another process
	}
	doomed := map[int]bool{s.pid: true}
	for grown := true; grown; {
		grown = false
		for pid, m := range all {
			if doomed[m.parent] && !doomed[pid] {
				doomed[pid], grown = true, true
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	}
}

func (s *seeker) close() {
	if s.pid != 0 {
		unix.Close(s.fd)
	}
}
