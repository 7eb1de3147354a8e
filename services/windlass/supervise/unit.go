package supervise

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"

	"github.com/windlass-dev/windlass/services/windlass/cluster"
)

// Unit is what runs `windlass host run` on a host with systemd (deploy/host/windlass.service).
const Unit = "windlass.service"

// CheckUnit returns an error if systemd runs the programs of a host, or is about to: it would start again what is
// ended.
func CheckUnit(ctx context.Context, c *cluster.Cluster) error {
	pid, err := Alive(c)
	if err != nil {
		return err
	}
	// The main process is the launcher on a control-plane host. There is none between two starts.
	main := unitPID(ctx)
	if pid != 0 && pid == main || pid == 0 && main == 0 && c.Dir() == cluster.HostDir() && unitState(ctx) == "activating" {
		return fmt.Errorf("%s would start the programs again: use `systemctl stop windlass`", Unit)
	}
	return nil
}

// unitState returns the state of the unit; empty if this host is without systemd.
func unitState(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "systemctl", "show", "--property=ActiveState", "--value", Unit).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// unitPID returns the main process of the unit; 0 if it is not active, or this host is without systemd.
func unitPID(ctx context.Context) int {
	out, err := exec.CommandContext(ctx, "systemctl", "show", "--property=MainPID", "--value", Unit).Output()
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		return 0
	}
	return pid
}
