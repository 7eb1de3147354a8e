package pods

import (
	"bufio"
	"context"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

const (
	measureEvery = 10 * time.Second
	disksEvery   = 30 * time.Second // walking through files is dear
	blockSize    = 512              // of stat(2)
)

// measure reads periodically what the pods use and what the host has left, until ctx ends, and ends pods that the node
// cannot keep.
func (s *Pods) measure(ctx context.Context) error {
	return every(ctx, measureEvery, func() { s.look(ctx) })
}

// walk measures periodically what the pods hold of the disk, until ctx ends. Millions of files take long, and nothing
// else waits for that.
func (s *Pods) walk(ctx context.Context) error {
	return every(ctx, disksEvery, func() { s.measureDisks(ctx) })
}

// every calls f at once and then periodically until ctx ends.
func every(ctx context.Context, period time.Duration, f func()) error {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		f()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// look measures once.
func (s *Pods) look(ctx context.Context) {
	pods := s.uses(ctx)
	usage := s.usage(pods)
	s.note(ctx, usage)
	s.publish(usage.Now, pods)
	s.mu.Lock()
	pressures := s.pressures
	s.mu.Unlock()
	for _, e := range plan.Evictions(pressures, pods) {
		s.evict(ctx, e)
	}
}

// evict has a pod end that the node cannot keep.
func (s *Pods) evict(ctx context.Context, e plan.Eviction) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pods[e.UID]
	if p == nil || p.record.Verdict.Phase != "" || !p.record.Ending.IsZero() {
		return
	}
	s.cfg.Log.WarnContext(ctx, "pod evicted", "pod", p.object.GetMetadata().GetName(), "namespace",
		p.object.GetMetadata().GetNamespace(), "cause", e.Verdict.Message)
	p.evicted = e.Verdict
	s.settled.Add(e.UID)
}

// uses returns the pods that were taken up and have not ended, and what their processes use.
func (s *Pods) uses(ctx context.Context) []plan.PodUse {
	s.mu.Lock()
	var out []plan.PodUse
	var pools []string
	for uid, p := range s.pods {
		if p.record.Started.IsZero() || p.over || ended(p) {
			continue
		}
		out = append(out, plan.PodUse{
			UID: uid, Pod: p.object, Disk: s.disks[uid],
			Ends: p.gone || !p.record.Ending.IsZero() || p.record.Verdict.Phase != "" || p.evicted.Phase != "",
		})
		pools = append(pools, processPrefix+uid)
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, measureEvery) // a container runtime that does not answer holds up nothing else
	defer cancel()
	for _, d := range s.drivers() {
		used, err := d.Uses(ctx, pools)
		if err != nil {
			s.cfg.Log.WarnContext(ctx, "use of pods not measured", "error", err)
			continue
		}
		for i := range out {
			u := used[processPrefix+out[i].UID]
			out[i].Memory += u.Memory
			out[i].Processes += u.Processes
			out[i].CPU += u.CPU
		}
	}
	return out
}

// ended reports whether a pod has a verdict and nothing of it runs. The lock is held.
func ended(p *pod) bool {
	if p.record.Verdict.Phase == "" {
		return false
	}
	for _, c := range p.record.Containers {
		if c.Starts > 0 && c.Exit == nil {
			return false
		}
	}
	return true
}

// usage returns what the machine has and what is used of it. What the kernel does not say is not known.
func (s *Pods) usage(pods []plan.PodUse) plan.Usage {
	u := plan.Usage{
		Now: time.Now(), MemoryCapacity: s.cfg.MemoryCapacity, DiskCapacity: s.cfg.DiskCapacity, Address: s.cfg.Address,
		AddressMissing: addressMissing(s.cfg.Address),
	}
	for _, p := range pods {
		u.Memory += p.Memory
		u.Disk += p.Disk.Total + p.Disk.Images
	}
	u.HostMemory, u.HostMemoryTotal = meminfo("MemAvailable:"), meminfo("MemTotal:")
	var st unix.Statfs_t
	if unix.Statfs(s.cfg.Dir, &st) == nil {
		u.FreeDisk, u.DiskSize = int64(st.Bavail)*st.Frsize, int64(st.Blocks)*st.Frsize
		u.FreeInodes, u.Inodes = int64(st.Ffree), int64(st.Files)
	}
	u.Processes, u.MostProcesses = threads()
	return u
}

// note replaces the conditions if they changed.
func (s *Pods) note(ctx context.Context, u plan.Usage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pressures = plan.Observe(u, s.pressures)
	list := plan.Conditions(u, s.pressures)
	same := len(list) == len(s.conditions)
	for i := 0; same && i < len(list); i++ {
		same = proto.Equal(list[i], s.conditions[i])
	}
	if same {
		return
	}
	s.conditions = list
	for _, c := range list {
		s.cfg.Log.InfoContext(ctx, "condition of the node", "type", c.GetType(), "status", c.GetStatus(), "message",
			c.GetMessage())
	}
}

// meminfo returns an entry of /proc/meminfo in bytes; 0 if it cannot be read.
func meminfo(name string) int64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 1 && fields[0] == name {
			n, _ := strconv.ParseInt(fields[1], 10, 64)
			return n << 10
		}
	}
	return 0
}

// threads returns how many threads the host runs, and how many it may; 0 if the kernel does not say it.
func threads() (run, most int64) {
	if fields := fieldsOf("/proc/loadavg"); len(fields) > 3 {
		_, all, _ := strings.Cut(fields[3], "/")
		run, _ = strconv.ParseInt(all, 10, 64)
	}
	for _, file := range []string{"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"} {
		if fields := fieldsOf(file); len(fields) == 1 {
			if n, err := strconv.ParseInt(fields[0], 10, 64); err == nil && (most == 0 || n < most) {
				most = n
			}
		}
	}
	if run == 0 {
		return 0, 0
	}
	return run, most
}

// fieldsOf returns the words of a short file; none if it cannot be read.
func fieldsOf(path string) []string {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return strings.Fields(string(data))
}

// addressMissing reports whether no interface that is up has an address. One of the loopback network is there without
// being set.
func addressMissing(address string) bool {
	ip := net.ParseIP(address)
	if ip == nil || ip.IsLoopback() || ip.IsUnspecified() {
		return false
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return false // not known
	}
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		list, err := i.Addrs()
		if err != nil {
			return false
		}
		for _, a := range list {
			if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip) {
				return false
			}
		}
	}
	return true
}

// measureDisks notes what each pod holds of the disk.
func (s *Pods) measureDisks(ctx context.Context) {
	type measuring struct {
		pod    *schedulingv1.Pod
		copies map[string]int64 // by container; missing: all of its root is the image's
	}
	s.mu.Lock()
	pods := make(map[string]measuring, len(s.pods))
	for uid, p := range s.pods {
		if p.record.Started.IsZero() {
			continue
		}
		m := measuring{p.object, map[string]int64{}}
		for name, c := range p.record.Containers {
			if c.CopyBytes > 0 && c.Exit == nil {
				m.copies[name] = c.CopyBytes
			}
		}
		pods[uid] = m
	}
	s.mu.Unlock()
	disks := make(map[string]plan.DiskUse, len(pods))
	layers := s.driver().written(ctx)
	for uid, m := range pods {
		u := plan.DiskUse{Containers: map[string]int64{}, Volumes: map[string]int64{}}
		for _, c := range slices.Concat(m.pod.GetSpec().GetInitContainers(), m.pod.GetSpec().GetContainers()) {
			dir := s.containerDir(uid, c.GetName())
			root := rootOf(dir)
			written, image := diskOf(ctx, dir, root, partialOf(root)), diskOf(ctx, root)
			if known, ok := m.copies[c.GetName()]; ok && image > known {
				written, image = written+image-known, known
			}
			written += layers[processName(uid, c.GetName())]
			u.Containers[c.GetName()] = written
			u.Total += written
			u.Images += image + diskOf(ctx, partialOf(root))
		}
		for _, v := range m.pod.GetSpec().GetVolumes() {
			u.Volumes[v.GetName()] = diskOf(ctx, filepath.Join(s.dir(uid), "volumes", v.GetName()))
			if v.GetEmptyDir().GetMedium() != mediumMemory {
				u.Total += u.Volumes[v.GetName()]
			}
		}
		disks[uid] = u
	}
	if ctx.Err() != nil {
		return // not all was counted
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.disks = disks
}

// diskOf returns how many bytes of the disk a directory holds, without some that are below it. A file with several
// names counts for each with its share, so that files of an image that several containers use count once in all.
func diskOf(ctx context.Context, dir string, without ...string) (bytes int64) {
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return fs.SkipAll
		case slices.Contains(without, path):
			return fs.SkipDir
		case err != nil:
			return nil // gone since
		}
		if info, err := e.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				if n := st.Blocks * blockSize; e.IsDir() {
					bytes += n
				} else {
					bytes += n / max(1, int64(st.Nlink))
				}
			}
		}
		return nil
	})
	return bytes
}
