// Package service builds provider-docker and runs it.
package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/ledger"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/services/provider-docker/engine"
	"github.com/windlass-dev/windlass/services/provider-docker/fleet"
	"github.com/windlass-dev/windlass/services/provider-docker/server"
)

// Run runs provider-docker with its flags until ctx ends. The containers run on then.
func Run(ctx context.Context, args []string, stderr io.Writer) error {
	executable, err := os.Executable()
	if err != nil {
		return err
	}
	cfg := serve.Config{Name: "provider-docker"}
	f := fleet.Config{}
	var host, addresses string
	fs := pflag.NewFlagSet(cfg.Name, pflag.ContinueOnError)
	fs.SetOutput(stderr)
	cfg.Flags(fs)
	fs.StringVar(&f.Cluster, "cluster", "docker",
		"name of the cluster, part of the provider ids and of the containers' labels")
	fs.StringVar(&host, "docker-host", "",
		"address of the engine, such as unix:///var/run/docker.sock (default: $DOCKER_HOST, else that socket)")
	fs.StringVar(&addresses, "host-addresses", "127.250.0.0/16",
		"IPv4 network that machines on the host's network get addresses from")
	fs.StringVar(&executable, "windlass", executable, "static executable that holds the node-agent")
	fs.StringVar(&f.Images, "images", "",
		"directory on the engine's host with OCI layouts, each at the name of its image, for the machines' pods")
	if err := fs.Parse(args); errors.Is(err, pflag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	if f.Addresses, err = netip.ParsePrefix(addresses); err != nil || !f.Addresses.Addr().Is4() ||
		f.Addresses.Bits() > 30 {
		return fmt.Errorf("--host-addresses %q: must be an IPv4 network of at least 4 addresses, such as 127.250.0.0/16",
			addresses)
	}
	if f.Images != "" && !filepath.IsAbs(f.Images) {
		return fmt.Errorf("--images %q: must be an absolute path", f.Images)
	}
	if f.Image, err = engine.ImageOf(executable); err != nil {
		return fmt.Errorf("--windlass: %w", err)
	}
	return cfg.Run(ctx, stderr, false, func(p *serve.Process) ([]serve.Part, error) {
		l, problem, err := ledger.Open(filepath.Join(cfg.Dir, "ledger.json"))
		if err != nil {
			return nil, err
		}
		if problem != nil {
			p.Log.Error("ledger set aside", "error", problem)
		}
		e, err := engine.Open(host, f.Cluster)
		if err != nil {
			return nil, fmt.Errorf("--docker-host: %w", err)
		}
		f.Log, f.Identity = p.Log, filepath.Join(cfg.Dir, "engine-id")
		all := fleet.New(f, e, l)
		p.ReadyWhen(func(context.Context) error {
			_, _, err := all.Snapshot()
			return err
		})
		providerv1.RegisterProviderServiceServer(p.Services, server.New(all))
		return []serve.Part{func(ctx context.Context) error { return errors.Join(all.Run(ctx), e.Close()) }}, nil
	})
}
