// Package program lists the programs that the one executable holds.
package program

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	etcdmember "github.com/windlass-dev/windlass/services/etcd-member/service"
	nodeagent "github.com/windlass-dev/windlass/services/node-agent/service"
)

// find returns the entry of a program.
func find(name string) (func(ctx context.Context, args []string, stderr io.Writer) error, bool) {
	switch name {
	case helloPod:
		return nodeagent.HelloPod, true
	case containerLogger:
		return nodeagent.ContainerLogger, true
	}
	run, ok := services[name]
	return run, ok
}

// helloPod is the process of the image that the documents' pods name.
const helloPod = "hello-pod"

// containerLogger writes the logs of an agent's containers.
const containerLogger = "container-logger"

// List returns the names of all programs in order.
func List() []string {
	names := append(slices.Collect(maps.Keys(services)), helloPod, containerLogger)
	slices.Sort(names)
	return names
}

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
	run, ok := find(name)
	if !ok {
		return fmt.Errorf("no program %q: it must be one of %s", name, Names())
	}
	if err := run(ctx, args, stderr); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
