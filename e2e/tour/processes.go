package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// processes is what `windlass status` says of the processes of the cluster on this machine.
type processes struct {
	supervisor int            // 0 if none runs
	pids       map[string]int // by what it belongs to, a slash, and its name
}

// Keys of processes.
func serviceProcess(name string) string   { return "./" + name }
func agentProcess(machine string) string  { return "services/provider-local/" + machine }
func memberProcess(machine string) string { return machineProcess(machine, "etcd-member") }
func machineProcess(machine, name string) string {
	return "services/provider-local/machines/" + machine + "/" + name
}

// spoken says of a key what people need of it.
func spoken(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "./"), "services/provider-local/")
	if machine, ok := strings.CutPrefix(key, "machines/"); ok {
		machine, name, _ := strings.Cut(machine, "/")
		return name + " of " + machine
	}
	return key
}

// listProcesses asks for all processes. A cluster that is not ready is no error: the tour shows it.
func (t *tour) listProcesses(ctx context.Context) (processes, error) {
	out, err := t.shell.output(ctx, "windlass", "status")
	p := parseStatus(out)
	if len(p.pids) == 0 && err != nil {
		return p, err
	}
	return p, nil
}

// parseStatus reads what `windlass status` prints.
func parseStatus(text string) processes {
	p := processes{pids: map[string]int{}}
	if pid, ok := strings.CutPrefix(field(text, "Supervisor"), "pid "); ok {
		p.supervisor, _ = strconv.Atoi(pid) // 0 means none, as it should if this is no number
	}
	_, table, _ := strings.Cut(text, "\nPROCESS")
	_, rows, _ := strings.Cut(table, "\n")
	for row := range strings.Lines(rows) {
		columns := strings.Fields(row) // name, pid, age, of
		if len(columns) != 4 {
			continue
		}
		if pid, err := strconv.Atoi(columns[1]); err == nil {
			p.pids[columns[3]+"/"+columns[0]] = pid
		}
	}
	return p
}

// field returns what follows a name and a colon at the beginning of a line.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// changed returns the processes that are not the same in both, and those that are only in one.
func (p processes) changed(other processes) []string {
	var out []string
	for key, pid := range p.pids {
		if other.pids[key] != pid {
			out = append(out, fmt.Sprintf("%s: %d, then %d", key, pid, other.pids[key]))
		}
	}
	for key, pid := range other.pids {
		if p.pids[key] == 0 {
			out = append(out, fmt.Sprintf("%s: none, then %d", key, pid))
		}
	}
	slices.Sort(out)
	return out
}

// dead returns the names of those of p that no longer run, without asking windlass.
func (p processes) dead() []string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(p.pids)) {
		if !alive(p.pids[key]) {
			out = append(out, key)
		}
	}
	return out
}

// alive reports whether a process runs that is no zombie.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, ok := strings.Cut(string(stat), ") ")
	return ok && !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

// kill ends a process of the cluster with SIGKILL and prints that.
func (t *tour) kill(key string, pid int) error {
	if pid <= 1 {
		return mismatch{{expected: "process " + key + " in `windlass status`", seen: "none"}}
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill -9 %d (%s): %w", pid, key, err)
	}
	t.command(fmt.Sprintf("kill -9 %d   # %s", pid, spoken(key)), 0, "")
	return nil
}

// comesBack waits until another process replaces one that was killed.
func (t *tour) comesBack(ctx context.Context, key string, old int) (pid int, took time.Duration, err error) {
	const limit = 15 * time.Second
	began := time.Now()
	err = within(ctx, limit, spoken(key)+" runs again with another pid", func(ctx context.Context) (bool, string, error) {
		p, err := t.listProcesses(ctx)
		pid = p.pids[key]
		return pid != 0 && pid != old, fmt.Sprintf("pid %d, formerly %d", pid, old), err
	})
	return pid, time.Since(began), err
}
