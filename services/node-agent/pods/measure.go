package pods

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

const (
	measureEvery = 10 * time.Second
	diskEvery    = 3   // walking through files is dear: only every third time
	maxDepth     = 8   // of processes that are counted below a container's
	blockSize    = 512 // of stat(2)
)

// measure reads periodically what the pods use, until ctx ends. Without pods it reads nothing.
func (s *Pods) measure(ctx context.Context) error {
	tick := time.NewTicker(measureEvery)
	defer tick.Stop()
	var disk int64
	for n := 0; ; n++ {
		memory := s.memory()
		if n%diskEvery == 0 && s.cfg.DiskCapacity > 0 {
			disk = s.disk()
		}
		s.note(ctx, s.pressure(memory, disk))
		s.trimLogs(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (s *Pods) pressure(memory, disk int64) []*nodev1.NodeCondition {
	return plan.Pressure(plan.Usage{
		Memory: memory, MemoryCapacity: s.cfg.MemoryCapacity, Disk: disk, DiskCapacity: s.cfg.DiskCapacity,
	})
}

// note replaces the conditions if they changed.
func (s *Pods) note(ctx context.Context, list []*nodev1.NodeCondition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	same := len(list) == len(s.conditions)
	for i := 0; same && i < len(list); i++ {
		same = proto.Equal(list[i], s.conditions[i])
	}
	if same {
		return
	}
	s.conditions = list
	s.cfg.Log.InfoContext(ctx, "conditions of the node changed", "memory", list[0].GetStatus(), "disk",
		list[1].GetStatus())
}

// memory returns how many bytes of memory the processes of the pods hold.
func (s *Pods) memory() (bytes int64) {
	if s.cfg.MemoryCapacity == 0 {
		return 0
	}
	s.mu.Lock()
	var pids []int
	for _, p := range s.pods {
		for _, c := range p.record.Containers {
			if c.PID != 0 && c.Starts > 0 && c.Exit == nil {
				pids = append(pids, c.PID)
			}
		}
	}
	s.mu.Unlock()
	for _, pid := range pids {
		bytes += resident(pid, maxDepth)
	}
	return bytes
}

// resident returns the resident bytes of a process and of those below it; what is gone counts for nothing.
func resident(pid, depth int) int64 {
	dir := "/proc/" + strconv.Itoa(pid)
	raw, err := os.ReadFile(dir + "/statm")
	if err != nil || depth == 0 {
		return 0
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(raw), &size, &pages); err != nil {
		return 0
	}
	bytes := pages * int64(os.Getpagesize())
	children, err := os.ReadFile(dir + "/task/" + strconv.Itoa(pid) + "/children")
	if err != nil {
		return bytes
	}
	for f := range strings.FieldsSeq(string(children)) {
		if child, err := strconv.Atoi(f); err == nil {
			bytes += resident(child, depth-1)
		}
	}
	return bytes
}

// disk returns how many bytes of the disk the directories of the pods hold.
func (s *Pods) disk() (bytes int64) {
	_ = filepath.WalkDir(s.cfg.Dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil // gone since
		}
		if info, err := e.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				bytes += st.Blocks * blockSize
			}
		}
		return nil
	})
	return bytes
}

func (s *Pods) trimLogs(ctx context.Context) {
	s.mu.Lock()
	var logs []string
	for uid, p := range s.pods {
		for name, c := range p.record.Containers {
			if c.Starts > 0 && c.Exit == nil {
				logs = append(logs, filepath.Join(s.containerDir(uid, name), logFile))
			}
		}
	}
	s.mu.Unlock()
	for _, l := range logs {
		if err := process.TrimLog(l, maxLog); err != nil {
			s.cfg.Log.DebugContext(ctx, "log not shortened", "file", l, "error", err)
		}
	}
}
