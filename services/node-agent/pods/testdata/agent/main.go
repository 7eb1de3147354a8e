// Agent is what containers run of an agent, linked statically, for tests whose own executable is not: their first
// process and hello-pod.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/windlass-dev/windlass/services/node-agent/hellopod"
	_ "github.com/windlass-dev/windlass/services/node-agent/shim"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := hellopod.Run(ctx, os.Args[2:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
