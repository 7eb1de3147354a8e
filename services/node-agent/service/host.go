package service

import (
	"context"

	"github.com/windlass-dev/windlass/services/node-agent/hostagent"
)

// HostConfig says which host of the inventory it is, and how its machine is run. EndContainers is set by NewHost.
type HostConfig = hostagent.Config

// ProcessName is the name of the process of the machine's agent on a host.
const ProcessName = hostagent.ProcessName

// NewHost returns the agent of a host on which nothing was started yet.
func NewHost(cfg HostConfig) *hostagent.Agent {
	cfg.EndContainers = func(ctx context.Context, podsDir string) error {
		return EndContainers(ctx, []string{podsDir}, cfg.Log, func(string) {})
	}
	return hostagent.New(cfg)
}
