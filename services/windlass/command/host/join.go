package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/topology"
	nodeagent "github.com/windlass-dev/windlass/services/node-agent/service"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/hostcheck"
	"github.com/windlass-dev/windlass/services/windlass/hosttoken"
)

// joinFlags are the flags of commands that make the files of a host.
type joinFlags struct {
	dir, address, hostname, zone, files, runtime string
	observe                                      bool
}

func newJoin(e *session.Env) *cobra.Command {
	var f joinFlags
	cmd := &cobra.Command{
		Use:   "join TOKEN --address ADDRESS",
		Short: "Join this host to a cluster",
		Long: `Join this host to a cluster, by a token that ` + "`windlass host token`" + ` printed on a control-plane host: as a
worker, or as another control-plane host. Nothing is started; ` + "`windlass host run`" + ` does that. A join that was cut
off is repeated with the same command, until the token expires.

With "-" the token is read from the standard input: other users of this host see what a command line has.`,
		Example: `  windlass host join - --address 192.0.2.2 --zone rack-2 < token
  windlass host join windlass1.eyJpZCI6… --address 192.0.2.2`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return join(cmd.Context(), e, args[0], f) },
	}
	f.add(cmd)
	return cmd
}

// add adds the flags to a command.
func (f *joinFlags) add(cmd *cobra.Command) {
	dirFlag(cmd, &f.dir)
	cmd.Flags().StringVar(&f.address, "address", "",
		"IP address of this host at which all other hosts reach it (required)")
	cmd.Flags().StringVar(&f.hostname, "hostname", "", "name of this host in the cluster (default: the host's own)")
	cmd.Flags().StringVar(&f.zone, "zone", "", "failure domain of this host, such as its rack")
	cmd.Flags().StringVar(&f.files, "files", "",
		"what machine configurations change: host (its own files, with units of its systemd), or machine, which is a "+
			"directory in --dir (default: host if systemd runs this host, this is root, and --dir is "+cluster.DefaultHostDir+
			")")
	cmd.Flags().StringVar(&f.runtime, "runtime", "process",
		"what runs the containers of pods: process, or cri=unix:///PATH, the socket of containerd or CRI-O; requires root")
	cmd.Flags().BoolVar(&f.observe, "observe", false,
		"compare this host with its machine configuration, and change nothing")
}

// member returns the settings of this host.
func (f *joinFlags) member(ctx context.Context, e *session.Env) (cluster.Member, error) {
	if f.address == "" {
		return cluster.Member{}, errAddress
	}
	name := f.hostname
	if name == "" {
		own, err := os.Hostname()
		if err != nil {
			return cluster.Member{}, fmt.Errorf("--hostname: %w", err)
		}
		name, _, _ = strings.Cut(strings.ToLower(own), ".")
	}
	m, err := cluster.NewMember(name, f.address, f.zone)
	if err != nil {
		return m, err
	}
	if net.ParseIP(m.Address).IsLoopback() {
		fmt.Fprintf(e.Err, "Warning: %s is a loopback address: only hosts that are processes of this one reach it\n",
			m.Address)
	}
	if err := nodeagent.CheckRuntime(ctx, f.runtime); err != nil {
		return m, fmt.Errorf("--runtime %w", err)
	}
	if f.runtime != "process" {
		if err := cluster.CheckIsolation(); err != nil {
			return m, fmt.Errorf("--runtime %s: pods must run under users of their own: %w", f.runtime, err)
		}
		m.Runtime = f.runtime
	}
	able := cluster.CheckFiles()
	switch f.files {
	case "":
		if dir, err := filepath.Abs(f.dir); err != nil {
			return m, err
		} else if able == nil && dir == cluster.DefaultHostDir {
			m.Files = cluster.FilesOfHost
		}
	case cluster.FilesOfHost:
		if able != nil {
			return m, fmt.Errorf("--files %s: %w", f.files, able)
		}
		m.Files = cluster.FilesOfHost
	case "machine":
	default:
		return m, fmt.Errorf("--files %q: must be host or machine", f.files)
	}
	if m.Observe = f.observe; m.Observe && m.Files != cluster.FilesOfHost {
		return m, errors.New("--observe: only the files of a host are observed: see --files")
	}
	return m, nil
}

func join(ctx context.Context, e *session.Env, text string, f joinFlags) error {
	if text == "-" {
		raw, err := io.ReadAll(io.LimitReader(e.In, 64<<10))
		if err != nil {
			return err
		}
		text = string(raw)
	}
	token, err := hosttoken.Parse(text)
	if err != nil {
		return err
	}
	m, err := f.member(ctx, e)
	if err != nil {
		return err
	}
	switch _, err := cluster.OpenHost(f.dir); {
	case err == nil:
		return fmt.Errorf("%s: this host is in a cluster already", f.dir)
	case !errors.Is(err, cluster.ErrNone):
		return err
	}
	if token.Isolated { // before the host is registered
		if err := cluster.CheckIsolation(); err != nil {
			return fmt.Errorf("the cluster runs pods under users of their own, which this host cannot: %w", err)
		}
	}
	ports := cluster.HostPorts()
	if token.Worker {
		ports = nil
	}
	list := hostcheck.Judge(hostcheck.Observe(m.Address, f.dir, ports, false))
	if !hostcheck.Usable(list) {
		if err := printChecks(e, list); err != nil {
			return err
		}
		return errUnusable
	}
	for _, r := range list {
		if r.Verdict != "OK" {
			fmt.Fprintf(e.Err, "Warning: %s: %s\n", r.Check, r.Message)
		}
	}
	if err := durable.MkdirAll(filepath.Join(f.dir, "host"), 0o700); err != nil {
		return err
	}
	unlock, err := lock(filepath.Join(f.dir, "host"))
	if err != nil {
		return err
	}
	defer unlock()
	// The key is made once: a join that is repeated must be by the same.
	request, err := identity.RequestFor(filepath.Join(f.dir, "host", "tls.key"), m.Name)
	if err != nil {
		return err
	}
	answer, err := ask(ctx, token, &machinev1.JoinHostRequest{
		Id: token.ID, Proof: token.Proof(), Name: m.Name, Address: m.Address, Zone: m.Zone, AgentRequest: request,
	})
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"tls.crt": answer.GetAgentCertificate(), "ca.crt": answer.GetAuthority(),
		"gateways": []byte(strings.Join(answer.GetGateways(), "\n") + "\n"),
	} {
		if err := durable.WriteFile(filepath.Join(f.dir, "host", name), content, 0o600); err != nil {
			return err
		}
	}
	c, err := enter(f.dir, m, token, answer)
	if err != nil {
		return err
	}
	fmt.Fprintf(e.Out, "host %s joined cluster %q: run `windlass host run%s`\n", m.Name, c.Name, dirOption(f.dir))
	return nil
}

// enter makes the files of a host that was let in.
func enter(dir string, m cluster.Member, token hosttoken.Token, answer *machinev1.JoinHostResponse) (*cluster.Cluster,
	error,
) {
	if !slices.Contains(answer.GetRoles(), "control-plane") {
		return cluster.JoinWorker(dir, answer.GetCluster(), m, token.Isolated)
	}
	bundle, err := token.Open(answer.GetBundle())
	if err != nil {
		return nil, err
	}
	c, err := cluster.JoinHost(dir, m, cluster.Joined{
		Bundle: bundle, Authority: answer.GetAuthority(), Endpoints: answer.GetEtcdEndpoints(),
	})
	if err != nil {
		return nil, err
	}
	return c, prepare(c)
}

// lock keeps another join from this directory until unlock is called.
func lock(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: another join is under way: %w", dir, err), d.Close())
	}
	return func() { _ = d.Close() }, nil
}

// ask sends the request to the token's gateways, one after the other, until one answers. Each must show a certificate
// of the authority that the token names.
func ask(ctx context.Context, token hosttoken.Token, request *machinev1.JoinHostRequest) (*machinev1.JoinHostResponse,
	error,
) {
	const patience = 20 * time.Second // for each
	var failed []error
	for _, gateway := range token.Gateways {
		host, _, err := net.SplitHostPort(gateway)
		if err != nil {
			return nil, err
		}
		settings := identity.WithURI(identity.PinnedTLS(token.CA, host), identity.ServiceURI(topology.Gateway))
		conn, err := grpc.NewClient("passthrough:///"+gateway, grpc.WithTransportCredentials(credentials.NewTLS(settings)))
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, patience)
		answer, err := machinev1.NewHostJoinServiceClient(conn).JoinHost(ctx, request)
		cancel()
		conn.Close()
		switch status.Code(err) {
		case codes.OK:
			return answer, nil
		case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.ResourceExhausted:
			failed = append(failed, fmt.Errorf("gateway %s: %w", gateway, err))
		default:
			return nil, err
		}
	}
	return nil, errors.Join(failed...)
}
