package process

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
	cgroupPrefix = "windlass-"

	// killed processes leave their group within milliseconds, unless they are in an uninterruptible system call
	emptyPatience = time.Second
	emptyPause    = time.Millisecond
)

// cgroups are the control groups of the processes of one run directory: one group per process, all siblings, so that
// killing the group of a supervisor does not kill what it started. They are created in the unified hierarchy, also on a
// host whose controllers are in version 1: only cgroup.kill is used. The zero cgroups means that control groups are not
// used.
type cgroups struct {
	base   string // directory in which groups are created; empty: none can be created
	prefix string // prefix of the names of this run directory's groups
}

// findCgroups returns where control groups of dir can be created. They cannot be used if the unified hierarchy is not
// mounted or belongs to another user, or if the kernel has no cgroup.kill (Linux 5.14).
func findCgroups(dir string) cgroups {
	mount, err := unifiedMount()
	if err != nil || mount == "" {
		return cgroups{}
	}
	own, err := cgroupOf("self")
	if err != nil {
		return cgroups{}
	}
	if strings.HasPrefix(filepath.Base(own), cgroupPrefix) {
		own = filepath.Dir(own) // a supervised supervisor: its processes outlive it, so their groups are siblings
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return cgroups{}
	}
	// Identified by device and inode, not by name: a container may have another directory with that name.
	c := cgroups{base: filepath.Join(mount, own), prefix: fmt.Sprintf("%s%x-%x-", cgroupPrefix, st.Dev, st.Ino)}
	probe := filepath.Join(c.base, c.prefix+"probe-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(probe, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return cgroups{}
	}
	defer os.Remove(probe)
	if unix.Access(filepath.Join(probe, "cgroup.kill"), unix.W_OK) != nil {
		return cgroups{}
	}
	return c
}

// unifiedMount returns where the unified hierarchy is mounted; empty if it is not.
func unifiedMount() (string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) { // 36 35 0:30 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw
		before, after, ok := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if ok && strings.HasPrefix(after, "cgroup2 ") && len(fields) > 4 && fields[3] == "/" {
			return fields[4], nil
		}
	}
	return "", nil
}

// cgroupOf returns the path of a process in the unified hierarchy.
func cgroupOf(pid string) (string, error) {
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

// make creates the group of the process with a mark and returns its path; empty if groups are not used.
func (c cgroups) make(mark string) (string, error) {
	if c.base == "" {
		return "", nil
	}
	path := filepath.Join(c.base, c.prefix+mark)
	return path, os.Mkdir(path, 0o755)
}

// killCgroup kills every process of a group and removes the group. It is no error if the group is gone.
func killCgroup(path string) error {
	err := os.WriteFile(filepath.Join(path, "cgroup.kill"), []byte("1"), 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for end := time.Now().Add(emptyPatience); ; time.Sleep(emptyPause) {
		if err = unix.Rmdir(path); err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if time.Now().After(end) {
			return &fs.PathError{Op: "remove", Path: path, Err: err}
		}
	}
}

// sweep kills what is left in groups of this run directory whose mark is not known: of processes that ended while no
// supervisor ran.
func (c cgroups) sweep(known map[string]bool) error {
	if c.base == "" {
		return nil
	}
	found, err := filepath.Glob(filepath.Join(c.base, c.prefix+"*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range found {
		if mark := strings.TrimPrefix(filepath.Base(path), c.prefix); !known[mark] {
			errs = append(errs, killCgroup(path))
		}
	}
	return errors.Join(errs...)
}
