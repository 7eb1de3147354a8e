// Windlass is the command line, the supervisor and every program of a cluster in one executable.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/windlass-dev/windlass/services/windlass/command"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := command.Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
