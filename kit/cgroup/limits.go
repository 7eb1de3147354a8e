package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Limits are what the processes of a group may use at most, and what they get if the machine has less than all want.
// A field that is 0 says nothing.
type Limits struct {
	MilliCPU        int64 `json:"milliCPU,omitempty"`        // at most, in thousandths of a core
	Memory          int64 `json:"memory,omitempty"`          // at most, in bytes, without swap: more ends a process
	MilliCPURequest int64 `json:"milliCPURequest,omitempty"` // its weight among the groups of its pool
	MemoryRequest   int64 `json:"memoryRequest,omitempty"`   // not reclaimed first, in bytes
	// At most, of a pool only: processes and their threads, also ended ones that their parent has not waited for. More
	// cannot be started (EAGAIN). It is no bound: a pool runs without it on a host without its controller.
	Processes int64 `json:"processes,omitempty"`
}

// Bound reports whether l has limits, not only requests.
func (l Limits) Bound() bool { return l.MilliCPU > 0 || l.Memory > 0 }

// Controllers are the groups of one process in the hierarchies of version 1; empty where the controllers are in the
// unified hierarchy or not used.
type Controllers struct {
	CPU    string `json:"cpu,omitempty"`
	Memory string `json:"memory,omitempty"`
	PIDs   string `json:"pids,omitempty"` // only if the pool has a limit of processes
}

const (
	cpuPeriod = 100_000 // microseconds, as Kubernetes has it
	minQuota  = 1_000   // the least that the kernel takes
	// A core has the weight sharesOfCore in version 1, of minShares to maxShares, and massOfCore in the unified hierarchy,
	// of 1 to maxWeight. Source: Kubernetes' conversion.
	sharesOfCore = 1024
	minShares    = 2
	maxShares    = 262_144
	maxWeight    = 10_000
	massOfCore   = 100
	// The most that the kernel takes as a limit of processes: more do not exist. Source: PID_MAX_LIMIT of Linux.
	maxProcesses = 4 << 20
)

// errNoControllers means that a host has no controllers that this process can use.
var errNoControllers = errors.New("the controllers cpu and memory of control groups cannot be used by this process")

// CanLimit returns why the groups of pools can have no limits; nil if they can.
func (t Tree) CanLimit() error {
	switch {
	case t.base == "":
		return errors.New("control groups cannot be used by this process")
	case t.unified:
		return t.enable(t.pools())
	case t.cpu == "" || t.memory == "":
		return errNoControllers
	}
	return nil
}

// findControllers finds where groups with limits can be made: below the root of the unified hierarchy if it has the
// controllers, since a group with processes cannot pass them on; else in the hierarchies of version 1.
func (t *Tree) findControllers(mount string) {
	data, err := os.ReadFile(filepath.Join(mount, "cgroup.controllers"))
	if err == nil && hasControllers(string(data)) {
		probe := filepath.Join(mount, t.name+"-probe-"+strconv.Itoa(os.Getpid()))
		if err := os.Mkdir(probe, 0o755); err == nil || errors.Is(err, fs.ErrExist) {
			_ = os.Remove(probe)
			t.unified, t.root, t.counts = true, mount, slices.Contains(strings.Fields(string(data)), "pids")
		}
		return
	}
	for name, at := range map[string]*string{"cpu": &t.cpu, "memory": &t.memory, "pids": &t.pids} {
		mount, err := controllerMount(name)
		if err != nil || mount == "" {
			continue
		}
		own, err := controllerPath("self", name)
		if err != nil {
			continue
		}
		base := filepath.Join(mount, own)
		probe := filepath.Join(base, t.name+"-probe-"+strconv.Itoa(os.Getpid()))
		if err := os.Mkdir(probe, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			continue
		}
		_ = os.Remove(probe)
		*at = base
	}
}

func hasControllers(list string) bool {
	found := map[string]bool{}
	for name := range strings.FieldsSeq(list) {
		found[name] = true
	}
	return found["cpu"] && found["memory"]
}

// controllerMount returns where the hierarchy of a controller of version 1 is mounted; empty if it is not.
func controllerMount(name string) (string, error) {
	return findMount(func(fstype, options string) bool {
		return fstype == "cgroup" && strings.Contains(","+options+",", ","+name+",")
	})
}

// controllerPath returns the path of a process in the hierarchy of a controller of version 1.
func controllerPath(pid, name string) (string, error) {
	data, err := os.ReadFile(filepath.Join("/proc", pid, "cgroup"))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) { // 4:memory:/path
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) == 3 && strings.Contains(","+fields[1]+",", ","+name+",") {
			return fields[2], nil
		}
	}
	return "", fmt.Errorf("no hierarchy of %s", name)
}

// enable passes the controllers cpu and memory on to what is below the root of the unified hierarchy, and below each
// group on the way to dir, which is made.
func (t Tree) enable(dir string) error {
	if err := t.pass("+cpu +memory", dir); err != nil {
		return fmt.Errorf("%w: %w", errNoControllers, err)
	}
	return nil
}

// pass passes controllers on to what is below the root of the unified hierarchy, and below each group on the way to
// dir, which is made.
func (t Tree) pass(controllers, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	rel, err := filepath.Rel(t.root, dir)
	if err != nil {
		return err
	}
	at := t.root
	for _, part := range append([]string{""}, strings.Split(rel, "/")...) {
		at = filepath.Join(at, part)
		if err := os.WriteFile(filepath.Join(at, "cgroup.subtree_control"), []byte(controllers), 0); err != nil {
			return err
		}
	}
	return nil
}

// limit makes the groups of a process with controllers: in of them, at path below what the pools are in, is the group
// of its pool. The weights of all pools together are those of the whole machine.
func (t Tree) limit(g *Group, pool, mark string, of, group Limits) error {
	cores := int64(runtime.NumCPU())
	if t.unified {
		if err := t.enable(t.pool(pool)); err != nil {
			return err
		}
		return errors.Join(
			write(t.pools(), "cpu.weight", min(maxWeight, cores*massOfCore)),
			of.writeUnified(t.pool(pool)), group.writeUnified(g.Path))
	}
	if t.cpu == "" || t.memory == "" {
		return errNoControllers
	}
	g.CPU, g.Memory = filepath.Join(t.cpu, t.name, pool, mark), filepath.Join(t.memory, t.name, pool, mark)
	for _, dir := range []string{g.CPU, g.Memory} {
		if err := mkdirAgain(dir); err != nil {
			return err
		}
	}
	return errors.Join(
		write(filepath.Join(t.cpu, t.name), "cpu.shares", min(maxShares, cores*sharesOfCore)),
		of.writeCPU(filepath.Dir(g.CPU)), of.writeMemory(filepath.Dir(g.Memory)),
		group.writeCPU(g.CPU), group.writeMemory(g.Memory))
}

func (l Limits) shares() int64 {
	return min(maxShares, max(minShares, l.MilliCPURequest*sharesOfCore/1000))
}

func (l Limits) quota() int64 { return max(minQuota, l.MilliCPU*cpuPeriod/1000) }

// Weigh gives the group, which is in a pool, and the pool the weights of their requests. It comes after the start of
// the process: a start in a group of little weight takes long on a busy host.
func (g Group) Weigh(pool, group Limits) error {
	switch {
	case g.CPU != "":
		return errors.Join(write(filepath.Dir(g.CPU), "cpu.shares", pool.shares()),
			write(g.CPU, "cpu.shares", group.shares()))
	case g.None():
		return nil
	}
	err := errors.Join(write(filepath.Dir(g.Path), "cpu.weight", pool.weight()),
		write(g.Path, "cpu.weight", group.weight()))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // there is no controller
	}
	return err
}

// weight returns the shares of l in the unit of the unified hierarchy.
func (l Limits) weight() int64 { return 1 + (l.shares()-minShares)*(maxWeight-1)/(maxShares-minShares) }

// writeCPU writes the limit of l to a group of the controller cpu of version 1.
func (l Limits) writeCPU(dir string) error {
	if l.MilliCPU == 0 {
		return nil
	}
	return errors.Join(write(dir, "cpu.cfs_period_us", cpuPeriod), write(dir, "cpu.cfs_quota_us", l.quota()))
}

// writeMemory writes what l says of memory to a group of the controller memory of version 1.
func (l Limits) writeMemory(dir string) error {
	if l.MemoryRequest > 0 {
		if err := write(dir, "memory.soft_limit_in_bytes", l.MemoryRequest); err != nil {
			return err
		}
	}
	if l.Memory == 0 {
		return nil
	}
	if err := write(dir, "memory.limit_in_bytes", l.Memory); err != nil {
		return err
	}
	err := write(dir, "memory.memsw.limit_in_bytes", l.Memory)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil // swap is not counted here
	}
	return err
}

// writeUnified writes what l says, but for its weight, to a group of the unified hierarchy.
func (l Limits) writeUnified(dir string) error {
	if l.MilliCPU > 0 {
		if err := writeText(dir, "cpu.max", fmt.Sprintf("%d %d", l.quota(), cpuPeriod)); err != nil {
			return err
		}
	}
	if l.MemoryRequest > 0 {
		if err := write(dir, "memory.low", l.MemoryRequest); err != nil {
			return err
		}
	}
	if l.Memory == 0 {
		return nil
	}
	if err := write(dir, "memory.max", l.Memory); err != nil {
		return err
	}
	if err := write(dir, "memory.swap.max", 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // if there is no such file, swap is not counted here
	}
	return nil
}

func write(dir, file string, n int64) error { return writeText(dir, file, strconv.FormatInt(n, 10)) }

// writeText does not create the file.
func writeText(dir, file, text string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// Enter moves the calling thread into the groups of version 1, if there are any: a process that it starts then is in
// them from the beginning. The thread must be none that does anything else, and not the first one of this process.
func (g Group) Enter() error {
	for _, dir := range []string{g.CPU, g.Memory, g.PIDs} {
		if dir == "" {
			continue
		}
		if err := writeText(dir, "tasks", "0"); err != nil { // 0 is the thread that writes
			return err
		}
	}
	return nil
}

// Killed returns how many processes of the group the kernel killed for lack of memory, such as at its limit; 0 if
// that is not known.
func (g Group) Killed() int {
	if g.Memory != "" {
		return counter(filepath.Join(g.Memory, "memory.oom_control"), "oom_kill ")
	}
	if g.Path == "" {
		return 0
	}
	return counter(filepath.Join(g.Path, "memory.events"), "oom_kill ")
}

// counter returns the number after a name in a file of names and numbers.
func counter(file, name string) int {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(rest))
			return n
		}
	}
	return 0
}

// endController removes a group of version 1. What is in it, though no longer in the group of the unified hierarchy, is
// killed. This process is never: one of its threads may be in the group for as long as it takes it to end.
func endController(path string) error {
	if path == "" {
		return nil
	}
	for stop := time.Now().Add(emptyPatience); ; time.Sleep(emptyPause) {
		err := remove(path)
		if err == nil || time.Now().After(stop) {
			return err
		}
		pids, err := pidsIn(path)
		if err != nil {
			return err
		}
		for _, pid := range pids {
			if pid != os.Getpid() {
				kill(path, pid)
			}
		}
	}
}

// kill kills a process if it is in a group of version 1.
func kill(group string, pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	for _, name := range []string{"cpu", "memory", "pids"} {
		if at, err := controllerPath(strconv.Itoa(pid), name); err == nil && at != "/" &&
			strings.Contains(at+"/", "/"+filepath.Base(group)+"/") {
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			return
		}
	}
}
