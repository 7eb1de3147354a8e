package service

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"
	"github.com/windlass-dev/windlass/kit/serve"

	"github.com/windlass-dev/windlass/services/update-orchestrator/apply"
	"github.com/windlass-dev/windlass/services/update-orchestrator/controller"
)

const (
	// defaultPoll is the Cluster Version Operator's; each process adds a part of its own, so that a fleet does not ask at
	// once.
	defaultPoll      = 2 * time.Minute
	defaultReconcile = 4 * time.Minute
)

type config struct {
	serve.Config
	images    []string
	keys      []string
	stores    []string
	initial   string
	poll      time.Duration
	reconcile time.Duration
}

func parse(args []string, out io.Writer) (config, error) {
	c := config{Config: serve.Config{Name: "update-orchestrator"}}
	fs := pflag.NewFlagSet(c.Name, pflag.ContinueOnError)
	fs.SetOutput(out)
	c.Flags(fs)
	fs.StringArrayVar(&c.images, "release-images", nil,
		"directory with an OCI layout in which release images are looked up; may be repeated")
	fs.StringArrayVar(&c.keys, "release-keys", nil,
		"directory of public key rings, each of which must have signed a release; may be repeated")
	fs.StringArrayVar(&c.stores, "signature-store", nil,
		"directory or address where the signatures of releases are; may be repeated")
	fs.StringVar(&c.initial, "initial-release", "", "release image that a new cluster begins with; empty: none")
	fs.DurationVar(&c.poll, "poll", defaultPoll,
		"how often the graph of updates is asked for; up to as much again is added")
	fs.DurationVar(&c.reconcile, "reconcile", defaultReconcile, "how often all manifests of the release are applied again")
	if err := fs.Parse(args); err != nil {
		return c, err
	}
	switch {
	case fs.NArg() > 0:
		return c, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case c.poll < time.Second:
		return c, fmt.Errorf("--poll %v: must be a second or more", c.poll)
	case c.reconcile < time.Second:
		return c, fmt.Errorf("--reconcile %v: must be a second or more", c.reconcile)
	}
	for _, service := range apply.Packages() {
		if c.Peers[service] == "" {
			return c, fmt.Errorf("--peer %s=host:port is required", service)
		}
	}
	for i, place := range c.stores {
		var err error
		if c.stores[i], err = controller.StoreAddress(place); err != nil {
			return c, fmt.Errorf("--signature-store: %w", err)
		}
	}
	return c, nil
}
