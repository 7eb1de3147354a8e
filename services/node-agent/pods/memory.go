package pods

import (
	"fmt"
	"os"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

// mediumMemory is the medium of an emptyDir that is in memory.
const mediumMemory = "Memory"

// mountMemory puts a file system in memory on the directory of an emptyDir, if none is there. It has the size of the
// volume's limit, else of half the host's memory, and counts as memory of the pod that writes to it. It stays until the
// pod has ended or the host restarts.
func (s *Pods) mountMemory(dir string, v *schedulingv1.EmptyDirVolumeSource, user *process.User) error {
	if why := s.driver().lacks().Roots; why != nil {
		return fmt.Errorf("%w: an emptyDir in memory: %w", errConfig, why)
	}
	options := "mode=0700"
	if user != nil {
		options = fmt.Sprintf("mode=%#o,uid=%d,gid=%d", ownDir, user.UID, os.Getegid())
	}
	if limit, _ := plan.SizeLimit(v); limit > 0 { // 0 would be no limit
		options += fmt.Sprintf(",size=%d", limit)
	}
	if err := process.InMemory(dir, options); err != nil {
		return fmt.Errorf("an emptyDir in memory: %w", err)
	}
	return nil
}
