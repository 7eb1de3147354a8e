package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/windlass-dev/windlass/kit/cgroup"
)

// Use is what the processes of a pool use.
type Use struct {
	// Memory is what they hold, in bytes: their working set where a control group counts it, else what is resident of
	// each, in which shared memory counts more than once.
	Memory int64
	// CPU is the processor time that they have used: of all that were ever in the pool where a control group counts it,
	// else of those that run.
	CPU       time.Duration
	Processes int
}

// Uses returns what the processes of each of these pools use. One whose processes have ended uses nothing.
func (s *Supervisor) Uses(pools []string) (map[string]Use, error) {
	s.mu.Lock()
	ss, dir := s.session, s.dir
	s.mu.Unlock()
	if ss == nil {
		return nil, fmt.Errorf("use of pools: %w", ErrNotRunning)
	}
	if len(pools) == 0 {
		return map[string]Use{}, nil
	}
	members, err := membersOf(ss.cgroups, dir, pools)
	if err != nil {
		return nil, fmt.Errorf("use of pools: %w", err)
	}
	out := make(map[string]Use, len(pools))
	for _, pool := range pools {
		u := Use{Processes: len(members[pool])}
		var memoryErr, cpuErr error
		u.Memory, memoryErr = ss.cgroups.Memory(pool)
		u.CPU, cpuErr = ss.cgroups.CPU(pool)
		for _, pid := range members[pool] {
			memory, cpu := useOf(pid)
			if memoryErr != nil {
				u.Memory += memory
			}
			if cpuErr != nil {
				u.CPU += cpu
			}
		}
		out[pool] = u
	}
	return out, nil
}

// membersOf returns the processes of pools: of their control groups, or else those with the marker of one of their
// processes, and all that these started.
func membersOf(groups cgroup.Tree, dir string, pools []string) (map[string][]int, error) {
	out := map[string][]int{}
	if groups.Usable() {
		for _, pool := range pools {
			pids, err := groups.Pids(pool)
			if err != nil {
				return nil, err
			}
			out[pool] = pids
		}
		return out, nil
	}
	running, err := all()
	if err != nil {
		return nil, err
	}
	of := map[int]string{} // by pid: the pool
	for pid := range running {
		if name, ok := markedName(pid, dir); ok {
			of[pid] = poolAmong(pools, name)
		}
	}
	for more := true; more; { // children that dropped their environment
		more = false
		for pid, st := range running {
			if _, known := of[pid]; known {
				continue
			}
			if pool, ok := of[st.parent]; ok {
				of[pid], more = pool, true
			}
		}
	}
	for pid, pool := range of {
		out[pool] = append(out[pool], pid)
	}
	return out, nil
}

// poolAmong returns the pool that a process belongs to by its name; empty if it is none of these.
func poolAmong(pools []string, name string) string {
	for _, pool := range pools {
		if strings.HasPrefix(name, pool+".") {
			return pool
		}
	}
	return ""
}

// markedName returns the name in a process's marker, if its supervisor has this directory.
func markedName(pid int, dir string) (string, bool) {
	environ, err := environOf(pid)
	if err != nil {
		return "", false
	}
	marker := []byte("\x00" + markerName + "=" + dir + string(filepath.Separator))
	_, rest, ok := bytes.Cut(append([]byte{0}, environ...), marker)
	name, _, _ := bytes.Cut(rest, []byte{0})
	return string(name), ok
}

// useOf returns the resident memory of a process and the processor time that it has used; nothing if it is gone.
func useOf(pid int) (memory int64, cpu time.Duration) {
	dir := "/proc/" + strconv.Itoa(pid)
	if raw, err := os.ReadFile(dir + "/statm"); err == nil {
		if fields := strings.Fields(string(raw)); len(fields) > 1 {
			pages, _ := strconv.ParseInt(fields[1], 10, 64)
			memory = pages * int64(os.Getpagesize())
		}
	}
	raw, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return memory, 0
	}
	// The field numbers of proc(5), minus 3: they count from 1, and pid and command are skipped.
	const userTime, systemTime = 11, 12
	line := string(raw)
	if fields := strings.Fields(line[strings.LastIndexByte(line, ')')+1:]); len(fields) > systemTime {
		for _, at := range []int{userTime, systemTime} {
			ticks, _ := strconv.ParseInt(fields[at], 10, 64)
			cpu += time.Duration(ticks) * (time.Second / ticksPerSecond)
		}
	}
	return memory, cpu
}
