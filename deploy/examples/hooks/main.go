// Command hooks is an example of the owner of a lifecycle hook, such as my-backup-controller: it streams the owner's
// tasks from a cluster, claims each, does its work and completes it. Windlass then removes the hook from the machine,
// and the deletion of the machine continues. Use it as a starting point for your own hook controller: it needs gRPC and
// the generated messages, nothing else.
//
//	eval "$(windlass env)"
//	go run ./deploy/examples/hooks --owner my-backup-controller --out /backups
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "hooks:", err)
		os.Exit(1)
	}
}

// settings are the command-line settings of the program.
type settings struct {
	target  target
	owner   string
	work    time.Duration
	command string
	out     string
	once    bool
}

func parse(args []string, stderr io.Writer) (settings, error) {
	var s settings
	fs := flag.NewFlagSet("hooks", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&s.target.server, "server", os.Getenv("WINDLASS_SERVER"), "address of the cluster's gateway, host:port")
	fs.StringVar(&s.target.ca, "cacert", os.Getenv("WINDLASS_CACERT"), "file of the certificate that signs the cluster's")
	fs.StringVar(&s.target.cert, "cert", os.Getenv("WINDLASS_CERT"), "file of this program's certificate")
	fs.StringVar(&s.target.key, "key", os.Getenv("WINDLASS_KEY"), "file of this program's key")
	fs.StringVar(&s.owner, "owner", "my-backup-controller", "owner of the hooks to answer for")
	fs.DurationVar(&s.work, "work", 2*time.Second, "minimum duration of the work")
	fs.StringVar(&s.command, "command", "", "shell command that does the work; empty writes a small archive")
	fs.StringVar(&s.out, "out", ".", "directory for the archives")
	fs.BoolVar(&s.once, "once", false, "exit after one completed task")
	if err := fs.Parse(args); err != nil {
		return s, err
	}
	switch {
	case fs.NArg() > 0:
		return s, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case s.target.server == "":
		return s, errors.New(`--server is required: give host:port of the gateway, or run eval "$(windlass env)" first`)
	}
	return s, nil
}

// run answers for the owner until ctx ends, or until one task is completed if settings.once is set.
func run(ctx context.Context, args []string, stdout io.Writer) error {
	s, err := parse(args, os.Stderr)
	if err != nil {
		return err
	}
	conn, err := s.target.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	o := newOwner(s, hookv1.NewHookTaskServiceClient(conn), stdout)
	return o.run(ctx)
}
