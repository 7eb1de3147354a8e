// Package cgroup puts processes into control groups of their own, so that everything a process started can be ended
// with it, whatever sessions or process groups its children are in. Groups are made in the unified hierarchy, also on a
// host whose controllers are in version 1: it has no controllers then, but cgroup.kill. A group can be in a pool, which
// is ended as one; only such a group has limits, and on such a host it has further groups in the hierarchies of version
// 1. All groups of a directory are found again by the next process that uses that directory. Processes that may write
// to the hierarchy themselves, as those of root may, can leave their group.
package cgroup

import (
	"bufio"
	"bytes"
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

const (
	namePrefix = "windlass-"

	// killed processes leave their group within milliseconds, unless they are in an uninterruptible system call
	emptyPatience = time.Second
	emptyPause    = time.Millisecond

	makeTries = 10
)

// Tree is where the groups of the processes of one directory are made: one group per process. Groups outside pools are
// siblings, so that killing the group of a supervisor does not kill what it started. The zero Tree means that control
// groups are not used.
type Tree struct {
	base string // directory in which groups are made; empty: none can be made
	name string // of this directory: of the group of its pools, and the beginning of the names of its other groups

	unified bool   // the unified hierarchy has the controllers cpu and memory
	counts  bool   // it has the controller pids, too
	root    string // of the unified hierarchy, if it has the controllers: pools are below it
	// directories in hierarchies of version 1; empty where groups cannot be made
	cpu, memory, pids string
}

// Group is the control group of one process. The zero Group is none.
type Group struct {
	Path string // in the unified hierarchy
	Controllers
}

// Find returns where groups of dir can be made. They cannot be used if the unified hierarchy is not mounted or belongs
// to another user, or if the kernel has no cgroup.kill (Linux 5.14).
func Find(dir string) Tree {
	mount, err := unifiedMount()
	if err != nil || mount == "" {
		return Tree{}
	}
	own, err := pathOf("self")
	if err != nil {
		return Tree{}
	}
	if strings.HasPrefix(filepath.Base(own), namePrefix) {
		own = filepath.Dir(own) // a supervised supervisor: its processes outlive it, so their groups are siblings
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return Tree{}
	}
	// Identified by device and inode, not by name: a container may have another directory with that name.
	t := Tree{base: filepath.Join(mount, own), name: fmt.Sprintf("%s%x-%x", namePrefix, st.Dev, st.Ino)}
	probe := t.single("probe-" + strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(probe, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return Tree{}
	}
	defer os.Remove(probe)
	if unix.Access(filepath.Join(probe, "cgroup.kill"), unix.W_OK) != nil {
		return Tree{}
	}
	t.findControllers(mount)
	return t
}

// unifiedMount returns where the unified hierarchy is mounted; empty if it is not.
func unifiedMount() (string, error) {
	return findMount(func(fstype, _ string) bool { return fstype == "cgroup2" })
}

// findMount returns where a file system of a type and with options is mounted; empty if it is not.
func findMount(wanted func(fstype, options string) bool) (string, error) {
	mounts, err := findMounts(wanted)
	if err != nil || len(mounts) == 0 {
		return "", err
	}
	return mounts[0], nil
}

// findMounts returns where all file systems of a type and with options are mounted.
func findMounts(wanted func(fstype, options string) bool) (mounts []string, err error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(data)) { // 36 35 0:30 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw
		before, after, ok := strings.Cut(line, " - ")
		fields, of := strings.Fields(before), strings.Fields(after)
		if ok && len(fields) > 4 && fields[3] == "/" && len(of) > 2 && wanted(of[0], of[2]) {
			mounts = append(mounts, fields[4])
		}
	}
	return mounts, nil
}

// pathOf returns the path of a process in the unified hierarchy.
func pathOf(pid string) (string, error) {
	data, err := os.ReadFile(filepath.Join("/proc", pid, "cgroup"))
	if err != nil {
		return "", err
	}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		if path, ok := strings.CutPrefix(lines.Text(), "0::"); ok {
			return path, nil
		}
	}
	return "", errors.New("no unified hierarchy")
}

// Usable reports whether groups can be made.
func (t Tree) Usable() bool { return t.base != "" }

func (t Tree) single(mark string) string { return filepath.Join(t.base, t.name+"-"+mark) }

// pools returns the group that the pools are in.
func (t Tree) pools() string {
	if t.unified {
		return filepath.Join(t.root, t.name)
	}
	return filepath.Join(t.base, t.name)
}

func (t Tree) pool(name string) string { return filepath.Join(t.pools(), name) }

// Pool is what groups are in that are ended together. Its limits are those of all its groups together.
type Pool struct {
	Name   string
	Limits Limits
}

// Make creates the group of the process with a mark, in a pool unless that has no name. Without usable groups it
// returns none. Only a group in a pool has limits; an error means that they cannot be enforced. A limit of processes is
// of the pool alone, and on a host without its controller it is no error: see CanLimitProcesses.
func (t Tree) Make(pool Pool, mark string, limits Limits) (Group, error) {
	bound := limits.Bound() || pool.Limits.Bound()
	switch {
	case bound && (t.base == "" || pool.Name == ""):
		return Group{}, errNoControllers
	case t.base == "":
		return Group{}, nil
	case pool.Name == "":
		g := Group{Path: t.single(mark)}
		return g, os.Mkdir(g.Path, 0o755)
	}
	g := Group{Path: filepath.Join(t.pool(pool.Name), mark)}
	if err := mkdirAgain(g.Path); err != nil {
		return Group{}, err
	}
	if err := t.limit(&g, pool.Name, mark, pool.Limits, limits); err != nil {
		if bound {
			g.Discard()
			return Group{}, err
		}
		_ = removeAll(g.CPU, g.Memory)
		g.Controllers = Controllers{}
	}
	if err := t.limitProcesses(&g, pool, mark); err != nil && !errors.Is(err, errNoPids) {
		g.Discard()
		return Group{}, err
	}
	return g, nil
}

// mkdirAgain makes a group of a pool, and those that it is in. The end of another group may remove these at the same
// time.
func mkdirAgain(path string) error {
	for tries := 1; ; tries++ {
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.Mkdir(path, 0o755)
		}
		if !errors.Is(err, fs.ErrNotExist) || tries == makeTries {
			return err
		}
	}
}

// Of returns the group that a process has by its mark; false if it is not in such a group.
func Of(pid int, mark string) (Group, bool) {
	path, err := pathOf(strconv.Itoa(pid))
	if err != nil || mark == "" {
		return Group{}, false
	}
	base, above := filepath.Base(path), filepath.Base(filepath.Dir(filepath.Dir(path)))
	single := strings.HasPrefix(base, namePrefix) && strings.HasSuffix(base, "-"+mark)
	if !single && (base != mark || !strings.HasPrefix(above, namePrefix)) {
		return Group{}, false
	}
	mount, err := unifiedMount()
	if err != nil || mount == "" {
		return Group{}, false
	}
	g := Group{Path: filepath.Join(mount, path)}
	for name, at := range map[string]*string{"cpu": &g.CPU, "memory": &g.Memory, "pids": &g.PIDs} {
		mount, err := controllerMount(name)
		if err != nil || mount == "" {
			continue
		}
		if path, err := controllerPath(strconv.Itoa(pid), name); err == nil && filepath.Base(path) == mark {
			*at = filepath.Join(mount, path)
		}
	}
	return g, true
}

// None reports whether g is no group.
func (g Group) None() bool { return g.Path == "" }

// Has reports whether a process is in the group, or in one that was made below it.
func (g Group) Has(pid int) bool {
	path, err := pathOf(strconv.Itoa(pid))
	if err != nil || g.None() {
		return false
	}
	return strings.HasSuffix(g.Path, path) || strings.Contains(path+"/", "/"+filepath.Base(g.Path)+"/")
}

// Pids returns the processes of the group and of those below it.
func (g Group) Pids() ([]int, error) { return pidsIn(g.Path) }

func pidsIn(group string) (pids []int, err error) {
	err = filepath.WalkDir(group, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !e.IsDir() {
			return err
		}
		data, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil {
			return gone(err)
		}
		for field := range strings.FieldsSeq(string(data)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids, err
}

// Discard removes a group in which no process was started. If that fails, the next Sweep removes it.
func (g Group) Discard() { _ = removeAll(g.Path, g.CPU, g.Memory, g.PIDs) }

// End kills every process of the group and removes it, and its pool if that is empty then; nil if it is gone. An error
// means that a process may be left.
func (g Group) End() error {
	if g.None() {
		return nil
	}
	err := errors.Join(end(g.Path), endController(g.CPU), endController(g.Memory), endController(g.PIDs))
	if err != nil {
		return err
	}
	for _, path := range []string{g.Path, g.CPU, g.Memory, g.PIDs} {
		pool := filepath.Dir(path)
		if pools := filepath.Dir(pool); strings.HasPrefix(filepath.Base(pools), namePrefix) && unix.Rmdir(pool) == nil {
			_ = unix.Rmdir(pools) // fails if there is another pool
		}
	}
	return nil
}

// End kills every process of a pool and removes it; nil if it is gone. An error means that a process may be left.
func (t Tree) End(pool string) error {
	if t.base == "" {
		return nil
	}
	if err := end(t.pool(pool)); err != nil {
		return err
	}
	_ = unix.Rmdir(t.pools()) // fails if there is another pool
	for _, base := range t.controllers() {
		if err := endController(filepath.Join(base, pool)); err != nil {
			return err
		}
		_ = unix.Rmdir(base)
	}
	return nil
}

// controllers returns the groups of version 1 that the pools are in.
func (t Tree) controllers() (groups []string) {
	for _, base := range []string{t.cpu, t.memory, t.pids} {
		if base != "" {
			groups = append(groups, filepath.Join(base, t.name))
		}
	}
	return groups
}

func end(path string) error {
	for stop := time.Now().Add(emptyPatience); ; time.Sleep(emptyPause) {
		// again each time: a process may have been started in it
		err := os.WriteFile(filepath.Join(path, "cgroup.kill"), []byte("1"), 0)
		if err == nil {
			err = remove(path)
		}
		if err = gone(err); err == nil || time.Now().After(stop) {
			return err
		}
	}
}

// removeAll removes groups in which no process is; an empty path is none.
func removeAll(paths ...string) error {
	var errs []error
	for _, path := range paths {
		if path != "" {
			errs = append(errs, remove(path))
		}
	}
	return errors.Join(errs...)
}

// remove removes a group in which no process is, and those that were made below it.
func remove(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return gone(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := remove(filepath.Join(path, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := gone(unix.Rmdir(path)); err != nil {
		return &fs.PathError{Op: "remove", Path: path, Err: err}
	}
	return nil
}

// gone returns err unless it means that a group does not exist.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// Sweep kills what is left in groups of the directory whose mark is not known: of processes that ended while no
// supervisor ran. Pools in which nothing is known go, too.
func (t Tree) Sweep(known map[string]bool) error {
	if t.base == "" {
		return nil
	}
	var errs []error
	singles, err := filepath.Glob(t.single("*"))
	if err != nil {
		return err
	}
	for _, path := range singles {
		if mark := strings.TrimPrefix(filepath.Base(path), t.name+"-"); !known[mark] {
			errs = append(errs, end(path))
		}
	}
	errs = append(errs, sweepPools(t.pools(), known, end))
	for _, pools := range t.controllers() {
		errs = append(errs, sweepPools(pools, known, endController))
	}
	return errors.Join(errs...)
}

// sweepPools ends the groups of all pools whose mark is not known, and removes pools that are empty then.
func sweepPools(pools string, known map[string]bool, end func(path string) error) error {
	pooled, err := filepath.Glob(filepath.Join(pools, "*", "*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range pooled {
		if info, err := os.Stat(path); err == nil && info.IsDir() && !known[filepath.Base(path)] {
			errs = append(errs, end(path))
		}
	}
	all, err := filepath.Glob(filepath.Join(pools, "*"))
	if err != nil {
		return err
	}
	for _, path := range append(all, pools) {
		_ = unix.Rmdir(path) // fails if it is not empty
	}
	return errors.Join(errs...)
}
