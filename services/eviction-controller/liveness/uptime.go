package liveness

import (
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// bootID returns the ID of the host's boot; empty if the host does not say.
var bootID = sync.OnceValue(func() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
})

// Uptime returns the reading of the host's clock that is never set, and counts while the host is suspended. All
// processes of a host read the same clock, so a restart does not affect it. It is the zero Clock on a host without one.
func Uptime() plan.Clock {
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil || bootID() == "" {
		return plan.Clock{}
	}
	return plan.Clock{Boot: bootID(), Uptime: time.Duration(up.Nano())}
}
