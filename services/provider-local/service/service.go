// Package service builds provider-local and runs it.
package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/pflag"

	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/services/provider-local/address"
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
	var subnet, cluster, podsDir, runtime string
	var podUsers process.Users
	var network address.Interface
	var first int
	var podRange, clusterDNS string
	fs := pflag.NewFlagSet("provider-local", pflag.ContinueOnError)
	fs.SetOutput(stderr)
	cfg.Flags(fs)
	fs.StringVar(&subnet, "subnet", "", `first three numbers of the machines' addresses, as "127.1.2"`)
	fs.StringVar(&network.Name, "interface", "",
		"interface to put the machines' addresses on; empty for addresses of the loopback network")
	fs.StringVar(&podRange, "pod-range", "",
		"range of loopback addresses, as 127.240.16.0/20, of which each pod gets its own (default: pods have their machine's)")
	fs.StringVar(&clusterDNS, "cluster-dns", "",
		"loopback address at which agents answer the names of services (default: pods resolve names as the host does)")
	fs.IntVar(&first, "first-host", 10, "last number of the lowest address that machines get, 2 to 250")
	fs.StringVar(&cluster, "cluster", "local", "name of the cluster, part of the provider ids")
	fs.StringVar(&executable, "windlass", executable, "executable that holds the node-agent")
	fs.StringVar(&podsDir, "pods-dir", "",
		"directory of the machines' pods (default: each machine's own directory); the users of --pod-users must be able to pass through to it")
	fs.StringVar(&runtime, "runtime", instance.ProcessRuntime,
		"what machines run containers with: process, or cri=unix:///PATH, the socket of containerd or CRI-O; requires --pod-users")
	fs.Var(&podUsers, "pod-users",
		fmt.Sprintf(
			"users that pods run as, %d for each last number of an address from 0 to 255 (default: pods run as this program's user)", instance.UsersPerMachine))
	if err := fs.Parse(args); errors.Is(err, pflag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	base, err := netip.ParseAddr(subnet + ".0")
	if err != nil || !base.Is4() {
		return fmt.Errorf("--subnet %q: must be the first three numbers of an IPv4 network, as 127.1.2", subnet)
	}
	if first < 2 || first > 250 {
		return fmt.Errorf("--first-host %d: must be from 2 to 250", first)
	}
	pods, err := parseRange(podRange)
	if err != nil {
		return err
	}
	var dns netip.Addr
	if clusterDNS != "" {
		if dns, err = netip.ParseAddr(clusterDNS); err != nil || !dns.Is4() || !dns.IsLoopback() {
			return fmt.Errorf("--cluster-dns %q: must be a loopback address, as 127.224.16.10", clusterDNS)
		}
	}
	if runtime == instance.ProcessRuntime {
		runtime = ""
	} else if podUsers.Count == 0 || !strings.HasPrefix(runtime, "cri=unix:///") {
		return fmt.Errorf("--runtime %q: must be process, or cri=unix:///PATH with --pod-users", runtime)
	}
	if podUsers.Count > 0 {
		if err := podUsers.Check(); err != nil {
			return fmt.Errorf("--pod-users %s: %w", podUsers.String(), err)
		}
	}
	return cfg.Run(ctx, stderr, false, func(p *serve.Process) ([]serve.Part, error) {
		m, err := instance.New(instance.Config{
			Dir: cfg.Dir, Cluster: cluster, Subnet: base, First: first, Network: network,
			PodRange: pods, ClusterDNS: dns, Windlass: executable, PodsDir: podsDir, PodUsers: podUsers, Runtime: runtime,
			Log: p.Log,
		})
		if err != nil {
			return nil, err
		}
		providerv1.RegisterProviderServiceServer(p.Services, server.New(m))
		return []serve.Part{m.Run}, nil
	})
}

// parseRange reads a range of loopback addresses; an empty one is the zero prefix.
func parseRange(s string) (netip.Prefix, error) {
	if s == "" {
		return netip.Prefix{}, nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil || !p.Addr().Is4() || !p.Addr().IsLoopback() || p.Bits() < 8 || p.Bits() > 30 {
		return p, fmt.Errorf("--pod-range %q: must be a range of loopback addresses, as 127.240.16.0/20", s)
	}
	return p.Masked(), nil
}
