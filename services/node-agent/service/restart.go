package service

import (
	"context"
	"fmt"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/windlass-dev/windlass/services/node-agent/agent"
)

// restartAgain is how long a restart of the host may take before it is asked for again.
const restartAgain = 3 * time.Minute

// restartHost has logind restart the host, which ends this process and all else by systemd: the unit of Windlass ends
// its programs in their order. It returns agent.ErrReboot when ctx ends. A restart that does not come is asked for
// again.
func (i *instance) restartHost(ctx context.Context) error {
	for {
		i.log.InfoContext(ctx, "host restarts")
		if err := rebootByLogind(ctx); err != nil && ctx.Err() == nil {
			i.log.ErrorContext(ctx, "host does not restart", "error", err)
		}
		select {
		case <-ctx.Done():
			return agent.ErrReboot
		case <-time.After(restartAgain):
		}
	}
}

// rebootByLogind asks for a restart of the host. Source: org.freedesktop.login1(5).
func rebootByLogind(ctx context.Context) error {
	conn, err := dbus.ConnectSystemBus()
	if err != nil {
		return fmt.Errorf("system bus: %w", err)
	}
	defer conn.Close()
	const asks = false // this process is root, and there is no user to authenticate
	return conn.Object("org.freedesktop.login1", "/org/freedesktop/login1").CallWithContext(ctx,
		"org.freedesktop.login1.Manager.Reboot", 0, asks).Err
}
