// Command provider-simulated is the provider plugin whose instances exist only in its memory.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/windlass-dev/windlass/services/provider-simulated/service"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := service.Run(ctx, os.Args[1:], os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "provider-simulated:", err)
		os.Exit(1)
	}
}
