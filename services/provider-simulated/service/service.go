// Package service builds provider-simulated and runs it.
package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/spf13/pflag"

	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/services/provider-simulated/fleet"
	"github.com/windlass-dev/windlass/services/provider-simulated/host"
	"github.com/windlass-dev/windlass/services/provider-simulated/server"
)

// Run runs provider-simulated with its flags until ctx ends. Its instances end with it.
func Run(ctx context.Context, args []string, stderr io.Writer) error {
	cfg := serve.Config{Name: "provider-simulated"}
	f := fleet.Config{
		Create: fleet.Range{Min: time.Second, Max: time.Second}, Silence: fleet.Range{Min: time.Minute, Max: time.Minute},
	}
	var network string
	fs := pflag.NewFlagSet(cfg.Name, pflag.ContinueOnError)
	fs.SetOutput(stderr)
	cfg.Flags(fs)
	fs.StringVar(&f.Cluster, "cluster", "simulated", "name of the cluster, part of the provider ids")
	fs.StringVar(&network, "network", "100.64.0.0/10", "IPv4 network that the instances get addresses from")
	fs.Uint64Var(&f.Seed, "seed", 1, "of all latencies and faults: the same seed gives each call the same ones")
	fs.Var(&f.Call, "call-time", `until a call is carried out, as "20ms" or "10ms-200ms"`)
	fs.Var(&f.Create, "create-time", "from the call until an instance is Running")
	fs.Var(&f.Delete, "delete-time", "from the call until an instance is gone")
	fs.Var(&f.Detach, "detach-time", "from Running until a virtual volume of the instance is detached")
	fs.Float64Var(&f.Stuck, "stuck-volumes", 0, "part of the virtual volumes, from 0 to 1, that are never detached")
	fs.Float64Var(&f.Faults.Fail, "fail", 0, "part of the calls, from 0 to 1, that fail with UNAVAILABLE and do nothing")
	fs.Float64Var(&f.Faults.Lose, "lose", 0, "part of the calls that are carried out and whose answer is lost")
	fs.Float64Var(&f.Faults.Hang, "hang", 0, "part of the calls that are carried out and never answered")
	fs.Float64Var(&f.Absent, "absent", 0, "part of the instances, from 0 to 1, whose node never joins the cluster")
	fs.Float64Var(&f.Silent, "silent", 0, "part of the instances whose node falls silent while the instance runs")
	fs.Var(&f.Silence, "silent-after", "from the first heartbeat of such a node until it falls silent")
	if err := fs.Parse(args); errors.Is(err, pflag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	var err error
	if f.Network, err = netip.ParsePrefix(network); err != nil || !f.Network.Addr().Is4() || f.Network.Bits() > 30 {
		return fmt.Errorf("--network %q: must be an IPv4 network of at least 4 addresses, such as 100.64.0.0/10", network)
	}
	for name, part := range map[string]float64{
		"fail": f.Faults.Fail, "lose": f.Faults.Lose, "hang": f.Faults.Hang,
		"stuck-volumes": f.Stuck, "absent": f.Absent, "silent": f.Silent,
	} {
		if !(part >= 0 && part <= 1) { // not a number either
			return fmt.Errorf("--%s %v: must be from 0 to 1", name, part)
		}
	}
	if sum := f.Faults.Fail + f.Faults.Lose + f.Faults.Hang; sum > 1 {
		return fmt.Errorf("--fail, --lose and --hang: together %v are more than 1", sum)
	}
	if sum := f.Absent + f.Silent; sum > 1 {
		return fmt.Errorf("--absent and --silent: together %v are more than 1", sum)
	}
	return cfg.Run(ctx, stderr, false, func(p *serve.Process) ([]serve.Part, error) {
		all := fleet.New(f)
		providerv1.RegisterProviderServiceServer(p.Services, server.New(all))
		return []serve.Part{
			all.Run, func(ctx context.Context) error { return host.Run(ctx, all, p.Log) },
		}, nil
	})
}
