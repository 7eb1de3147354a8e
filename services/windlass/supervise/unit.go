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

// CheckUnit returns an error if systemd runs the programs of a host: it would start again what is ended.
func CheckUnit(ctx context.Context, c *cluster.Cluster) error {
	pid, err := Alive(c)
	if err != nil {
		return err
	}
	if pid != 0 && pid == unitPID(ctx) { // the launcher's, on a control-plane host
		return fmt.Errorf("%s would start the programs again: use `systemctl stop windlass`", Unit)
	}
	return nil
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
