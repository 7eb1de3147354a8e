package harness

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Names of processes: those of the programs that the supervisor runs, Supervisor itself, and with the machine's name
// those of a machine.
const (
	Supervisor   = "supervisor"
	agentPrefix  = "node-agent/"
	memberPrefix = "etcd-member/"
	podPrefix    = "pod/"
)

// Agent returns the name of the process that is a machine's agent.
func Agent(machine string) string { return agentPrefix + machine }

// Member returns the name of the process that is the etcd member on a machine; that of the bootstrap member is on
// "bootstrap".
func Member(machine string) string { return memberPrefix + machine }

// Containers are the processes among a list that are those of a machine's pods.
func Containers(list []Process, machine string) []Process {
	return slices.DeleteFunc(slices.Clone(list), func(p Process) bool {
		return !strings.HasPrefix(p.Name, podPrefix+machine+"/")
	})
}

// Process is one process of a cluster.
type Process struct {
	Name   string
	PID    int
	RunDir string // of the program that supervises it; empty for the supervisor
}

// String is for the texts of failures.
func (p Process) String() string { return fmt.Sprintf("%s (%d)", p.Name, p.PID) }

// Processes returns everything that runs of the cluster, as the operating system shows it: by the markers in their
// environment, whatever the records on disk say.
func (s *site) Processes() ([]Process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, ok := s.processOf(pid); ok {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b Process) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// processOf reads one process. One that only inherited a marker does not lead a session.
func (s *site) processOf(pid int) (Process, bool) {
	if session, err := unix.Getsid(pid); err != nil || session != pid {
		return Process{}, false
	}
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(cmdline) == 0 { // a zombie has none
		return Process{}, false
	}
	args := strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00")
	if slices.Contains(args, "supervise") && slices.Contains(args, s.name) {
		return Process{Name: Supervisor, PID: pid}, true
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return Process{}, false
	}
	for _, kv := range bytes.Split(environ, []byte{0}) {
		if marker, ok := bytes.CutPrefix(kv, []byte("WINDLASS_PROCESS="+s.dir+"/")); ok {
			return s.named(string(marker), pid), true
		}
	}
	return Process{}, false
}

// named finds a process's name from its marker: the run directory of its supervisor and its name there, from the
// cluster's directory.
func (s *site) named(marker string, pid int) Process {
	dir, name := filepath.Split(marker)
	p := Process{Name: name, PID: pid, RunDir: filepath.Join(s.dir, dir)}
	switch owner := filepath.Base(filepath.Dir(filepath.Clean(dir))); {
	case filepath.Clean(dir) == "run":
	case strings.HasPrefix(dir, "services/provider-local/run"):
		p.Name = Agent(name)
	case strings.HasPrefix(dir, "services/etcd-guardian/"):
		p.Name = Member("bootstrap")
	case strings.HasPrefix(name, "pod."):
		p.Name = podPrefix + owner + "/" + strings.TrimPrefix(name, "pod.")
	default:
		p.Name = Member(owner)
	}
	return p
}

// find returns the process of that name, if it runs.
func (s *site) find(name string) (Process, error) {
	list, err := s.Processes()
	if err != nil {
		return Process{}, err
	}
	for _, p := range list {
		if p.Name == name {
			return p, nil
		}
	}
	return Process{}, fmt.Errorf("no process %q: %w", name, errGone)
}

var errGone = errors.New("it does not run")

// Kill ends a process by SIGKILL. One that does not run at this moment is no error: it is dead, too.
func (s *site) Kill(name string) error {
	return s.signal(name, unix.SIGKILL)
}

// Pause stops a process with SIGSTOP.
func (s *site) Pause(name string) error { return s.signal(name, unix.SIGSTOP) }

// Continue lets a paused process go on.
func (s *site) Continue(name string) error { return s.signal(name, unix.SIGCONT) }

func (s *site) signal(name string, sig unix.Signal) error {
	if machine, ok := strings.CutPrefix(name, memberPrefix); ok && sig != unix.SIGCONT {
		s.excuse(machine)
	}
	p, err := s.find(name)
	if errors.Is(err, errGone) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := unix.Kill(p.PID, sig); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("%s: %w", p, err)
	}
	return nil
}

// excuse notes that a test took a member down, for the prober.
func (s *site) excuse(machine string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped[machine] = time.Now()
}

// PauseAll stops every process of the cluster, supervisors first, and those that were started in the meantime.
func (s *site) PauseAll() error {
	paused := map[int]bool{}
	for {
		list, err := s.Processes()
		if err != nil {
			return err
		}
		fresh := false
		for _, p := range byRank(list) {
			if paused[p.PID] {
				continue
			}
			fresh = true
			paused[p.PID] = true
			if machine, ok := strings.CutPrefix(p.Name, memberPrefix); ok {
				s.excuse(machine)
			}
			if err := unix.Kill(p.PID, unix.SIGSTOP); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("pause %s: %w", p, err)
			}
		}
		if !fresh {
			return nil
		}
	}
}

// ContinueAll lets everything go on that is paused.
func (s *site) ContinueAll() error {
	list, err := s.Processes()
	for _, p := range list {
		if e := unix.Kill(p.PID, unix.SIGCONT); e != nil && !errors.Is(e, unix.ESRCH) {
			err = errors.Join(err, fmt.Errorf("continue %s: %w", p, e))
		}
	}
	return err
}

// KillAll ends every process of the cluster at one moment, as the end of the host does: first none may go on, then none
// is left.
func (s *site) KillAll() error {
	if err := s.PauseAll(); err != nil {
		return err
	}
	for {
		list, err := s.Processes()
		if err != nil || len(list) == 0 {
			return err
		}
		for _, p := range list {
			// Each leads a group of its own, of which nothing outlives the end of the host.
			if err := unix.Kill(-p.PID, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill %s: %w", p, err)
			}
		}
	}
}

// byRank orders processes so that those which start others come first.
func byRank(list []Process) []Process {
	rank := func(p Process) int {
		switch {
		case p.Name == Supervisor:
			return 0
		case strings.HasPrefix(p.Name, agentPrefix):
			return 2
		case strings.HasPrefix(p.Name, memberPrefix), strings.HasPrefix(p.Name, podPrefix):
			return 3
		}
		return 1
	}
	out := slices.Clone(list)
	slices.SortStableFunc(out, func(a, b Process) int { return rank(a) - rank(b) })
	return out
}
