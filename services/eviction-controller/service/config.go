package service

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"
	"github.com/windlass-dev/windlass/kit/serve"
)

// defaultGrace is the default of Kubernetes' node-monitor-grace-period before 1.32.
const defaultGrace = 40 * time.Second

// defaultRetry is kubectl drain's pause after an eviction that a budget refused.
const defaultRetry = 5 * time.Second

// defaultRate is Kubernetes' node-eviction-rate.
const defaultRate = 0.1

// Services that this one calls: the owners of the disruption permit, of pods, and of machines.
const (
	guardian  = "etcd-guardian"
	scheduler = "scheduler"
	machines  = "machine-api"
)

type config struct {
	serve.Config
	grace time.Duration
	retry time.Duration
	rate  float64
}

// pause is the time between two nodes of a zone whose pods are evicted.
func (c config) pause() time.Duration { return time.Duration(float64(time.Second) / c.rate) }

func parse(args []string, out io.Writer) (config, error) {
	c := config{Config: serve.Config{Name: "eviction-controller"}}
	fs := pflag.NewFlagSet(c.Name, pflag.ContinueOnError)
	fs.SetOutput(out)
	c.Flags(fs)
	fs.DurationVar(&c.grace, "node-grace", defaultGrace, "silence of a node's agent after which the node counts as lost")
	fs.DurationVar(&c.retry, "eviction-retry", defaultRetry,
		"how soon an eviction that a budget refused is tried again, if nothing changes before")
	fs.Float64Var(&c.rate, "node-eviction-rate", defaultRate,
		"nodes per second and zone whose pods have to leave because the node is not ready")
	if err := fs.Parse(args); err != nil {
		return c, err
	}
	switch {
	case fs.NArg() > 0:
		return c, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case c.grace < time.Second:
		return c, fmt.Errorf("--node-grace %v: must be 1s or more: agents send one heartbeat per second", c.grace)
	case c.retry < 100*time.Millisecond:
		return c, fmt.Errorf("--eviction-retry %v: must be 100ms or more", c.retry)
	case !(c.rate >= 0.001 && c.rate <= 1000):
		return c, fmt.Errorf("--node-eviction-rate %v: must be from 0.001 to 1000", c.rate)
	case !c.Knows(guardian):
		return c, errors.New("--peer etcd-guardian=host:port is required")
	case !c.Knows(scheduler):
		return c, errors.New("--peer scheduler=host:port is required")
	case !c.Knows(machines):
		return c, errors.New("--peer machine-api=host:port is required")
	}
	return c, nil
}
