package service

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"
	"github.com/windlass-dev/windlass/kit/serve"
)

// defaultGrace is Kubernetes' node-monitor-grace-period as it was for most of its life.
const defaultGrace = 40 * time.Second

// guardian is the sibling that gives the disruption permit.
const guardian = "etcd-guardian"

type config struct {
	serve.Config
	grace time.Duration
}

func parse(args []string, out io.Writer) (config, error) {
	c := config{Config: serve.Config{Name: "eviction-controller"}}
	fs := pflag.NewFlagSet(c.Name, pflag.ContinueOnError)
	fs.SetOutput(out)
	c.Flags(fs)
	fs.DurationVar(&c.grace, "node-grace", defaultGrace, "silence of a node's agent after which the node counts as lost")
	if err := fs.Parse(args); err != nil {
		return c, err
	}
	switch {
	case fs.NArg() > 0:
		return c, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case c.grace < time.Second:
		return c, fmt.Errorf("--node-grace %v: must be a second or more: agents speak once a second", c.grace)
	case c.Peers[guardian] == "":
		return c, errors.New("--peer etcd-guardian=host:port is required")
	}
	return c, nil
}
