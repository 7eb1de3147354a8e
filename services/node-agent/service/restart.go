package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	systemddbus "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"github.com/windlass-dev/windlass/services/node-agent/agent"
)

const (
	// restartAgain is how long a restart of the host may take before it is asked for again.
	restartAgain = 3 * time.Minute
	// restartPatience is how long logind or systemd have to accept it.
	restartPatience = 15 * time.Second
)

// awaitRestart waits for the restart of the host, which ends this process and all else by systemd: the unit of Windlass
// ends its programs in their order. It returns agent.ErrReboot when ctx ends. A restart that does not come is asked for
// again.
func (i *instance) awaitRestart(ctx context.Context) error {
	for {
		i.log.InfoContext(ctx, "host restarts")
		if err := restartHost(ctx); err != nil && ctx.Err() == nil {
			i.log.ErrorContext(ctx, "host does not restart", "error", err)
		}
		select {
		case <-ctx.Done():
			return agent.ErrReboot
		case <-time.After(restartAgain):
		}
	}
}

// restartHost asks logind for a restart of the host, or systemd itself where that does not answer.
func restartHost(ctx context.Context) error {
	err := limited(ctx, rebootByLogind)
	if err == nil {
		return nil
	}
	if direct := limited(ctx, rebootBySystemd); direct != nil {
		return errors.Join(fmt.Errorf("logind: %w", err), fmt.Errorf("systemd: %w", direct))
	}
	return nil
}

// limited calls what may not heed its context.
func limited(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, restartPatience)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- call(ctx) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// rebootByLogind asks logind. Source: org.freedesktop.login1(5).
func rebootByLogind(ctx context.Context) error {
	conn, err := dbus.ConnectSystemBus()
	if err != nil {
		return err
	}
	defer conn.Close()
	const asks = false // this process is root, and there is no user to authenticate
	return conn.Object("org.freedesktop.login1", "/org/freedesktop/login1").CallWithContext(ctx,
		"org.freedesktop.login1.Manager.Reboot", 0, asks).Err
}

// rebootBySystemd asks systemd without a bus, as systemctl reboot does for root.
func rebootBySystemd(ctx context.Context) error {
	conn, err := systemddbus.NewSystemdConnectionContext(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.StartUnitContext(ctx, "reboot.target", "replace-irreversibly", nil)
	return err
}
