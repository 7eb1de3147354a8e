// Command operators simulates the operators of the example releases: it watches the desired release of the cluster and,
// when an update reaches an operator, works for a while and then reports the new version in its ClusterOperator, after
// which the update continues. Use it as a starting point for your own operator: it needs gRPC and the generated
// messages, nothing else.
//
//	eval "$(windlass env)"
//	go run ./deploy/examples/operators --work 5s
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "operators:", err)
		os.Exit(1)
	}
}

// settings are the command-line settings of the program.
type settings struct {
	target target
	names  []string
	work   time.Duration
}

func parse(args []string, stderr io.Writer) (settings, error) {
	var s settings
	var names string
	fs := flag.NewFlagSet("operators", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&s.target.server, "server", os.Getenv("WINDLASS_SERVER"), "address of the cluster's gateway, host:port")
	fs.StringVar(&s.target.ca, "cacert", os.Getenv("WINDLASS_CACERT"), "file of the certificate that signs the cluster's")
	fs.StringVar(&s.target.cert, "cert", os.Getenv("WINDLASS_CERT"), "file of this program's certificate")
	fs.StringVar(&s.target.key, "key", os.Getenv("WINDLASS_KEY"), "file of this program's key")
	fs.StringVar(&names, "operators", "archive,beacon,ledger", "names of the operators to simulate, separated by commas")
	fs.DurationVar(&s.work, "work", 3*time.Second, "how long an operator works on a new version")
	if err := fs.Parse(args); err != nil {
		return s, err
	}
	s.names = strings.FieldsFunc(names, func(r rune) bool { return r == ',' || r == ' ' })
	switch {
	case fs.NArg() > 0:
		return s, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case len(s.names) == 0:
		return s, errors.New("--operators must name at least one")
	case s.target.server == "":
		return s, errors.New(`--server is required: give host:port of the gateway, or run eval "$(windlass env)" first`)
	}
	return s, nil
}

// run simulates the operators until ctx ends.
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
	c := newCompany(s, updatev1.NewClusterVersionServiceClient(conn), updatev1.NewClusterOperatorServiceClient(conn),
		stdout)
	return c.run(ctx)
}
