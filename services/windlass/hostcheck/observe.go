package hostcheck

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/cgroup"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
)

const (
	syncWrites = 200     // that are measured
	syncBytes  = 2 << 10 // of each: the size of a small entry in etcd's log
	syncLimit  = 10 * time.Second
)

// Observe inspects the host. address is the one that it is to have, ports are those of its programs, own says whether
// it is in a cluster already. It writes to a temporary file in dir, or in the nearest directory above it that exists,
// for 10 s at most.
func Observe(address, dir string, ports []int, own bool) Facts {
	f := Facts{Address: address, Own: own, Taken: map[int]string{}, Root: os.Geteuid() == 0}
	if f.Local = cluster.CheckLocal(address); f.Local == nil {
		for _, port := range ports {
			if err := listen(address, port); err != nil {
				f.Taken[port] = err.Error()
			}
		}
	}
	there := nearest(dir)
	var st unix.Statfs_t
	if f.DiskErr = unix.Statfs(there, &st); f.DiskErr == nil {
		f.Free = st.Bavail * uint64(st.Bsize)
		f.Volatile = st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC
		f.Syncs, f.DiskErr = measure(there)
	}
	var timex unix.Timex
	state, err := unix.Adjtimex(&timex)
	f.Synced, f.ClockErr = err == nil && state != unix.TIME_ERROR && timex.Status&unix.STA_UNSYNC == 0, err
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		f.Memory = uint64(info.Totalram) * uint64(info.Unit)
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		f.Files = limit.Max // programs raise the soft limit to it
	}
	f.Cgroups = cgroup.Find(there) != cgroup.Tree{}
	return f
}

func listen(address string, port int) error {
	l, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return l.Close()
}

// nearest returns dir, or the nearest directory above it that exists.
func nearest(dir string) string {
	for {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			return dir
		}
		dir = up
	}
}

// measure returns how long each of some synced writes took.
func measure(dir string) (took []time.Duration, err error) {
	f, err := os.CreateTemp(dir, ".windlass-check-*")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	block := make([]byte, syncBytes)
	for end := time.Now().Add(syncLimit); len(took) < syncWrites && (len(took) == 0 || time.Now().Before(end)); {
		began := time.Now()
		if _, err := f.Write(block); err != nil {
			return nil, err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
	}
	return took, nil
}
