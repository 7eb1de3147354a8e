// Package program lists the programs that the one executable holds.
package program

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	etcdguardian "github.com/windlass-dev/windlass/services/etcd-guardian/service"
	etcdmember "github.com/windlass-dev/windlass/services/etcd-member/service"
	evictioncontroller "github.com/windlass-dev/windlass/services/eviction-controller/service"
	gateway "github.com/windlass-dev/windlass/services/gateway/service"
	hookbroker "github.com/windlass-dev/windlass/services/hook-broker/service"
	machineapi "github.com/windlass-dev/windlass/services/machine-api/service"
	nodeagent "github.com/windlass-dev/windlass/services/node-agent/service"
	nodeconfigurator "github.com/windlass-dev/windlass/services/node-configurator/service"
	providerlocal "github.com/windlass-dev/windlass/services/provider-local/service"
	scheduler "github.com/windlass-dev/windlass/services/scheduler/service"
	updateorchestrator "github.com/windlass-dev/windlass/services/update-orchestrator/service"
)

// runs is the entry of every program: its service.Run.
var runs = map[string]func(ctx context.Context, args []string, stderr io.Writer) error{
	"etcd-guardian":       etcdguardian.Run,
	"etcd-member":         etcdmember.Run,
	"eviction-controller": evictioncontroller.Run,
	"gateway":             gateway.Run,
	"hello-pod":           nodeagent.HelloPod,
	"hook-broker":         hookbroker.Run,
	"machine-api":         machineapi.Run,
	"node-agent":          nodeagent.Run,
	"node-configurator":   nodeconfigurator.Run,
	"provider-local":      providerlocal.Run,
	"scheduler":           scheduler.Run,
	"update-orchestrator": updateorchestrator.Run,
}

// List returns the names of all programs in order.
func List() []string { return slices.Sorted(maps.Keys(runs)) }

// Names returns the names of all programs as one line.
func Names() string { return strings.Join(List(), ", ") }

// ExitCode returns the exit code of a program that ended with an error: mostly 1, but a member of etcd says with it
// whether starting it again makes sense.
func ExitCode(name string, err error) int {
	if name == "etcd-member" {
		return etcdmember.ExitCode(err)
	}
	return 1
}

// Run runs a program with its flags until ctx ends.
func Run(ctx context.Context, name string, args []string, stderr io.Writer) error {
	run, ok := runs[name]
	if !ok {
		return fmt.Errorf("no program %q: it must be one of %s", name, Names())
	}
	if err := run(ctx, args, stderr); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
