package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/windlass-dev/windlass/kit/clusteroperator"
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/discovery"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/kit/version"
)

// presence is what a gateway on one of several hosts does besides serving: it announces itself, and one of the gateways
// reports for all. The zero value is that of the only gateway, which reports.
type presence struct {
	directory *discovery.Directory
	announcer *discovery.Announcer
	elector   *controller.Elector
}

// newPresence returns the presence of a gateway at an address that others reach.
func newPresence(config Config, etcd *clientv3.Client, directory *discovery.Directory, address string,
	log *slog.Logger,
) (presence, error) {
	if config.Host == "" {
		return presence{}, nil
	}
	if etcd == nil {
		return presence{}, errors.New("--host needs --etcd-endpoints at the first start")
	}
	if err := serve.CheckAdvertised(address); err != nil {
		return presence{}, fmt.Errorf("--advertise: %w", err)
	}
	return presence{
		directory: directory,
		announcer: discovery.NewAnnouncer(etcd, discovery.Endpoint{
			Service: topology.Gateway, Address: address, Host: config.Host, Version: version.Number,
		}, log),
		elector: controller.NewElector(etcd, topology.Gateway, address, log),
	}, nil
}

// run announces the gateway and takes part in the election, until ctx ends.
func (p presence) run(ctx context.Context) []func() error {
	if p.announcer == nil {
		return nil
	}
	return []func() error{
		func() error { return p.announcer.Run(ctx) },
		func() error {
			return p.elector.Run(ctx, func(ctx context.Context) error { <-ctx.Done(); return nil })
		},
	}
}

// set says whether the gateway serves, and why not.
func (p presence) set(why error) {
	switch {
	case p.announcer == nil:
	case why == nil:
		p.announcer.Set(true, "")
	default:
		p.announcer.Set(false, why.Error())
	}
}

// fault says why the gateway refuses callers although it serves; nil: it does not.
func (p presence) fault(why error) {
	switch {
	case p.announcer == nil:
	case why == nil:
		p.announcer.Fault("")
	default:
		p.announcer.Fault("users and agents are refused: " + why.Error())
	}
}

// reports returns whether this gateway reports the ClusterOperator now; nil means always.
func (p presence) reports() func() bool {
	if p.elector == nil {
		return nil
	}
	return p.elector.Leads
}

// replicated returns the state with that of the gateways on the other hosts.
func (p presence) replicated(state func(context.Context) clusteroperator.State,
) func(context.Context) clusteroperator.State {
	if p.directory == nil {
		return state
	}
	return serve.Replicated(p.directory.View, topology.Gateway, state)
}
