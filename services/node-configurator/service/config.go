package service

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"
	"github.com/windlass-dev/windlass/kit/serve"
)

// evictionController is the sibling that has the nodes and the drains.
const evictionController = "eviction-controller"

// etcdGuardian is the sibling that says whether a voter may go down.
const etcdGuardian = "etcd-guardian"

// updateOrchestrator is the sibling that has the maintenance windows.
const updateOrchestrator = "update-orchestrator"

// defaultSettle is enough for documents that are applied together, and hardly noticed by a person.
const defaultSettle = 500 * time.Millisecond

type config struct {
	serve.Config
	settle time.Duration
}

func parse(args []string, out io.Writer) (config, error) {
	c := config{Config: serve.Config{Name: "node-configurator"}}
	fs := pflag.NewFlagSet(c.Name, pflag.ContinueOnError)
	fs.SetOutput(out)
	c.Flags(fs)
	fs.DurationVar(&c.settle, "settle", defaultSettle,
		"how long after a change of machine configs they are rendered, so that several make one roll-out")
	if err := fs.Parse(args); err != nil {
		return c, err
	}
	switch {
	case fs.NArg() > 0:
		return c, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case c.settle < 0:
		return c, fmt.Errorf("--settle %v: must not be negative", c.settle)
	case !c.Knows(evictionController):
		return c, errors.New("--peer eviction-controller=host:port is required")
	case !c.Knows(etcdGuardian):
		return c, errors.New("--peer etcd-guardian=host:port is required")
	case !c.Knows(updateOrchestrator):
		return c, errors.New("--peer update-orchestrator=host:port is required")
	}
	return c, nil
}
