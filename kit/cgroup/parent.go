package cgroup

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// parentsDir is the group that the groups of all owners are in, in each hierarchy.
const parentsDir = "windlass"

// Parents is where groups are made that a container runtime puts its own into: one per pool, whose limit of processes
// and weight are those of all containers of the pool together. The runtime makes the groups below them, ends what is in
// these and removes them. Nothing is kept in memory: the groups of an owner are found by their names. The zero Parents
// can make none.
type Parents struct {
	owner       string   // beginning of the names
	hierarchies []string // where all are mounted: a runtime uses each of version 1
	pids, cpu   string   // where those with these controllers are mounted; empty: nowhere
	unified     bool     // they are the unified hierarchy
}

// FindParents returns where the groups of an owner's pools are made. An owner that is the path of a directory is known
// by its device and inode, too: a container may have another directory with that name.
func FindParents(owner string) Parents {
	h := fnv.New64a()
	h.Write([]byte(owner))
	var st unix.Stat_t
	if filepath.IsAbs(owner) && unix.Stat(owner, &st) == nil {
		fmt.Fprintf(h, "\x00%x-%x", st.Dev, st.Ino)
	}
	p := Parents{owner: fmt.Sprintf("%016x-", h.Sum64())}
	var err error
	if p.hierarchies, err = findMounts(func(fstype, _ string) bool {
		return fstype == "cgroup" || fstype == "cgroup2"
	}); err != nil {
		return Parents{}
	}
	mount, err := unifiedMount()
	if err != nil {
		return Parents{}
	}
	data, _ := os.ReadFile(filepath.Join(mount, "cgroup.controllers")) // without that hierarchy there is no such file
	if has := strings.Fields(string(data)); mount != "" && slices.Contains(has, "pids") {
		p.pids, p.unified = mount, true
		if slices.Contains(has, "cpu") {
			p.cpu = mount
		}
		return p
	}
	for name, at := range map[string]*string{"pids": &p.pids, "cpu": &p.cpu} {
		if mount, err := controllerMount(name); err == nil {
			*at = mount
		}
	}
	return p
}

// CanLimitProcesses returns why no groups can be made; nil if they can.
func (p Parents) CanLimitProcesses() error {
	probe := filepath.Join("/", parentsDir, "probe-"+p.owner+strconv.Itoa(os.Getpid()))
	defer p.removeEmpty(probe)
	return p.make(probe, Limits{})
}

// Path returns the path of the group of a pool in each hierarchy, whether it exists or not. The name of a pool must be
// that of a file.
func (p Parents) Path(pool string) string { return filepath.Join("/", parentsDir, p.owner+pool) }

// Make makes the group of a pool, or brings it up to date, and returns its path in each hierarchy. Of the limits only
// Processes and MilliCPURequest are put in force; that is without the weight where the controller cpu cannot be used.
// After an error there is no group unless it existed before.
func (p Parents) Make(pool string, of Limits) (string, error) {
	path := p.Path(pool)
	if err := p.make(path, of); err != nil {
		p.removeEmpty(path)
		return "", err
	}
	return path, nil
}

func (p Parents) make(path string, of Limits) error {
	if p.pids == "" {
		return errNoPids
	}
	if err := p.makeGroups(path); err != nil {
		return fmt.Errorf("%w: %w", errNoPids, err)
	}
	if p.cpu != "" {
		all, file, weight := int64(runtime.NumCPU())*sharesOfCore, "cpu.shares", of.shares()
		most := int64(maxShares)
		if p.unified {
			all, file, weight, most = int64(runtime.NumCPU())*massOfCore, "cpu.weight", of.weight(), maxWeight
		}
		if err := errors.Join(write(filepath.Join(p.cpu, parentsDir), file, min(most, all)),
			write(filepath.Join(p.cpu, path), file, weight)); err != nil {
			return err
		}
	}
	limit := "max"
	if of.Processes > 0 {
		limit = strconv.FormatInt(min(of.Processes, maxProcesses), 10)
	}
	return writeText(filepath.Join(p.pids, path), maxFile, limit)
}

// makeGroups makes a group in all hierarchies: it is found there as long as the pool exists, so that the end of the
// last other pool, of any owner, does not remove the group that it is in while the runtime makes one there.
func (p Parents) makeGroups(path string) error {
	for _, mount := range p.hierarchies {
		err := again(func() error { return os.MkdirAll(filepath.Join(mount, path), 0o755) })
		if err != nil && (mount == p.pids || mount == p.cpu) {
			return err
		}
	}
	if !p.unified {
		return nil
	}
	controllers := "+pids"
	if p.cpu != "" {
		controllers = "+pids +cpu"
	}
	return Tree{root: p.pids}.pass(controllers, filepath.Join(p.pids, parentsDir))
}

// again does something once more while it fails because a group was removed at the same time.
func again(do func() error) error {
	for tries := 1; ; tries++ {
		if err := do(); !errors.Is(err, fs.ErrNotExist) || tries == makeTries {
			return err
		}
	}
}

// Pools returns the sorted names of the pools of the owner that have a group.
func (p Parents) Pools() (pools []string, err error) {
	for _, mount := range p.hierarchies {
		entries, err := os.ReadDir(filepath.Join(mount, parentsDir))
		if gone(err) != nil {
			return nil, err
		}
		for _, e := range entries {
			if pool, ok := strings.CutPrefix(e.Name(), p.owner); ok && e.IsDir() {
				pools = append(pools, pool)
			}
		}
	}
	slices.Sort(pools)
	return slices.Compact(pools), nil
}

// Processes returns how many processes and threads the group of a pool has; false if there is no group that counts
// them, or a container runtime has put nothing into it.
func (p Parents) Processes(pool string) (int, bool) {
	if p.pids == "" || !p.Used(pool) {
		return 0, false
	}
	n, err := number(filepath.Join(p.pids, p.Path(pool), "pids.current"))
	return int(n), err == nil
}

// Used reports whether there are groups in that of a pool.
func (p Parents) Used(pool string) bool {
	if p.pids == "" {
		return false
	}
	entries, err := os.ReadDir(filepath.Join(p.pids, p.Path(pool)))
	return err == nil && slices.ContainsFunc(entries, fs.DirEntry.IsDir)
}

// Remove removes the group of a pool and what is in it, in all hierarchies; nil if it is gone. A process that is left
// in it is killed: a runtime that ended while it started a container leaves one. An error means that one may be left.
func (p Parents) Remove(pool string) error {
	path := p.Path(pool)
	for _, mount := range p.hierarchies {
		group := filepath.Join(mount, path)
		err := remove(group)
		if errors.Is(err, unix.EROFS) { // it is removed where it was made, in another mount
			continue
		}
		if err != nil {
			err = endController(group)
		}
		if err != nil {
			return err
		}
	}
	p.removeEmpty(path)
	return nil
}

// removeEmpty removes a group, and the one that all are in, where nothing is in them.
func (p Parents) removeEmpty(path string) {
	for _, mount := range p.hierarchies {
		_ = unix.Rmdir(filepath.Join(mount, path))
		_ = unix.Rmdir(filepath.Join(mount, parentsDir))
	}
}
