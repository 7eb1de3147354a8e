package service

import (
	"context"
	"log/slog"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/process"

	"github.com/windlass-dev/windlass/services/node-agent/hostagent"
)

// HostConfig says which host of the inventory a Host is, and how its machine is run.
type HostConfig struct {
	Name       string // of the host
	Address    string // IP address of the host
	Dir        string // of the host; its machine is in node below it
	Executable string // that holds the node-agent
	PodsDir    string // holds the pods; empty: they are in the machine's own directory, and run as this process's user
	PodUsers   process.Users
	Supervisor *process.Supervisor // of the machine's agent
	Files      identity.Files      // certificate of the host
	Renews     bool                // the certificate is renewed by the cluster, not by an authority on this host
	// Gateway is that of this host, which is preferred; empty if it has none. GatewaysFile has the endpoints of all, one
	// per line, as they were known last.
	Gateway, GatewaysFile string
	Log                   *slog.Logger
}

// Host is a host of the inventory: its machine, and the agent that speaks for it.
type Host struct {
	machine *hostagent.Machine
	agent   *hostagent.Agent
}

// NewHost returns a host on which nothing was started yet.
func NewHost(cfg HostConfig) *Host {
	h := &Host{machine: hostagent.NewMachine(hostagent.Config{
		Dir: cfg.Dir, Address: cfg.Address, Executable: cfg.Executable, PodsDir: cfg.PodsDir, PodUsers: cfg.PodUsers,
		Supervisor: cfg.Supervisor, Log: cfg.Log,
		EndContainers: func(ctx context.Context, podsDir string) error {
			return EndContainers(ctx, []string{podsDir}, cfg.Log, func(string) {})
		},
	})}
	h.agent = hostagent.New(hostagent.Identity{
		Name: cfg.Name, Files: cfg.Files, Own: cfg.Gateway, GatewaysFile: cfg.GatewaysFile, Renews: cfg.Renews,
	}, h.machine, cfg.Log)
	return h
}

// Resume starts the machine as the disk says, or ends a wipe that was cut off, without a call.
func (h *Host) Resume(ctx context.Context) error { return h.machine.Follow(ctx, nil) }

// Attend speaks for the host with the inventory until ctx ends. The machine runs on then.
func (h *Host) Attend(ctx context.Context) error { return h.agent.Run(ctx) }
