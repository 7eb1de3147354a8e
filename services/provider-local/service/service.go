// Package service builds provider-local and runs it.
package service

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"

	"github.com/spf13/pflag"

	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/services/provider-local/instance"
	"github.com/windlass-dev/windlass/services/provider-local/server"
)

// Run runs provider-local with its flags until ctx ends. The machines run on then.
func Run(ctx context.Context, args []string, stderr io.Writer) error {
	executable, err := os.Executable()
	if err != nil {
		return err
	}
	cfg := serve.Config{Name: "provider-local"}
	var subnet, cluster string
	fs := pflag.NewFlagSet("provider-local", pflag.ContinueOnError)
	cfg.Flags(fs)
	fs.StringVar(&subnet, "subnet", "", `first three numbers of the machines' addresses, as "127.1.2"`)
	fs.StringVar(&cluster, "cluster", "local", "name of the cluster, part of the provider ids")
	fs.StringVar(&executable, "windlass", executable, "executable that holds the node-agent")
	if err := fs.Parse(args); err != nil {
		return err
	}
	base, err := netip.ParseAddr(subnet + ".0")
	if err != nil || !base.Is4() {
		return fmt.Errorf("--subnet %q: must be the first three numbers of an IPv4 network, as 127.1.2", subnet)
	}
	log, err := cfg.Logger(stderr)
	if err != nil {
		return err
	}
	m, err := instance.New(instance.Config{Dir: cfg.Dir, Cluster: cluster, Subnet: base, Windlass: executable, Log: log})
	if err != nil {
		return err
	}
	p, err := serve.New(cfg, log)
	if err != nil {
		return err
	}
	providerv1.RegisterProviderServiceServer(p.GRPC, server.New(m))
	return p.Run(ctx, m.Run)
}
