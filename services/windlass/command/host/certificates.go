package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/probe"
	"github.com/windlass-dev/windlass/services/windlass/command/progress"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/rotation"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

type certificatesFlags struct {
	dir     string
	all     bool
	timeout time.Duration
}

func newCertificates(e *session.Env) *cobra.Command {
	cmd := &cobra.Command{Use: "certificates", Short: "Renew the certificates of hosts"}
	var f certificatesFlags
	rotate := &cobra.Command{
		Use:   "rotate [NAME... | --all]",
		Short: "Renew all certificates of hosts now",
		Long: `Renew all certificates of this host, of the named hosts, or of all hosts now: those of the services, the gateway,
the administrator, the agents and the members of etcd. The keys and the authorities stay; ` + "`windlass auth rotate`" + `
replaces an authority. Nothing is restarted: programs read new certificates at the next connection.

Certificates are renewed automatically after 70 to 90 % of their lifetime. On a control-plane host the
command needs no other program for this host. Other hosts get a request, which ` + "`windlass host run`" + ` there carries
out within seconds; a host that is away carries it out when it is back.`,
		Example: `  windlass host certificates rotate
  windlass host certificates rotate rack-2-a
  windlass host certificates rotate --all`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.all && len(args) > 0 {
				return errors.New("--all cannot be combined with names")
			}
			if !f.all && len(args) == 0 {
				return renewHere(e, f.dir)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
			defer cancel()
			return asAdministrator(ctx, e, f.dir, func(ctx context.Context, conn *grpc.ClientConn) error {
				return renewHosts(ctx, e, hostv1.NewHostServiceClient(conn), args)
			})
		},
	}
	dirFlag(rotate, &f.dir)
	rotate.Flags().BoolVar(&f.all, "all", false, "all hosts of the inventory")
	rotate.Flags().DurationVar(&f.timeout, "timeout", time.Minute, "how long to wait for the hosts")
	cmd.AddCommand(rotate)
	return cmd
}

// renewHere renews the certificates of this host, by the authorities on its disk.
func renewHere(e *session.Env, dir string) error {
	c, err := cluster.OpenHost(dir)
	if err != nil {
		return err
	}
	if c.Member.Worker {
		return fmt.Errorf("host %s is a worker, whose certificates the cluster signs: run "+
			"`windlass host certificates rotate %s` on a control-plane host", c.Member.Name, c.Member.Name)
	}
	list, err := rotation.Renew(c)
	if printErr := printRenewed(e, list); printErr != nil {
		return errors.Join(err, printErr)
	}
	if err == nil {
		fmt.Fprintf(e.Out, "host %s: %s\n", c.Member.Name, summary(list))
	}
	return err
}

func printRenewed(e *session.Env, list []*hostv1.HostCertificate) error {
	rows := [][]string{{"CERTIFICATE", "EXPIRES"}}
	for _, c := range list {
		rows = append(rows, []string{c.GetName(), c.GetExpiryTime().AsTime().UTC().Format(time.RFC3339)})
	}
	return table.New(e.Out).Print(rows...)
}

// summary says how many certificates were renewed, and until when all of them are valid.
func summary(list []*hostv1.HostCertificate) string {
	if len(list) == 0 {
		return "no certificate renewed"
	}
	first := slices.MinFunc(list, func(a, b *hostv1.HostCertificate) int {
		return cmp.Compare(a.GetExpiryTime().AsTime().Unix(), b.GetExpiryTime().AsTime().Unix())
	})
	return fmt.Sprintf("%d certificates renewed, valid until %s", len(list),
		first.GetExpiryTime().AsTime().UTC().Format(time.RFC3339))
}

// renewHosts has hosts renew their certificates, and waits until they have; all hosts if names is empty.
func renewHosts(ctx context.Context, e *session.Env, hosts hostv1.HostServiceClient, names []string) error {
	if len(names) == 0 {
		list, err := hosts.ListHosts(ctx, &hostv1.ListHostsRequest{})
		if err != nil {
			return err
		}
		for _, h := range list.GetItems() {
			names = append(names, h.GetMetadata().GetName())
		}
	}
	asked := map[string]string{} // by host, the ID of the renewal
	for _, name := range names {
		h, err := hosts.RenewHostCertificates(ctx, &hostv1.RenewHostCertificatesRequest{Name: name})
		if err != nil {
			return err
		}
		asked[name] = h.GetStatus().GetRenewalId()
	}
	var failed []error
	s := progress.New(e.Out)
	for _, name := range names {
		s.Begin("host " + name)
		done, err := awaitRenewal(ctx, s, hosts, name, asked[name])
		if err != nil {
			failed = append(failed, err)
			continue
		}
		s.Done(done)
	}
	return errors.Join(failed...)
}

// renewalPoll is how often the state of a renewal is read.
const renewalPoll = 200 * time.Millisecond

// awaitRenewal waits until a host has carried a renewal out, and returns what it renewed.
func awaitRenewal(ctx context.Context, s *progress.Steps, hosts hostv1.HostServiceClient, name, id string) (string,
	error,
) {
	tick := time.NewTicker(renewalPoll)
	defer tick.Stop()
	for {
		h, err := hosts.GetHost(ctx, &hostv1.GetHostRequest{Name: name})
		st := h.GetStatus()
		c := st.GetCertificates()
		renewed := c.GetRenewalId() >= id // a later request was carried out after this one was made
		switch {
		case err != nil && !probe.Passing(err):
			return "", err
		case err == nil && renewed && c.GetRenewalFailure() != "":
			return "", fmt.Errorf("host %s has not renewed all: %s", name, c.GetRenewalFailure())
		case err == nil && renewed:
			return summary(c.GetRenewed()), nil
		case err == nil && st.GetPhase() == "Lost":
			return "", fmt.Errorf("host %s is away since %s, and renews its certificates when it is back; start it, or "+
				"remove it with `windlass host remove %s`", name, st.GetLastTransitionTime().AsTime().UTC().Format(time.RFC3339),
				name)
		}
		s.Wait("`windlass host run` on " + name)
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("host %s has not renewed its certificates: `windlass host run` must run there: %w", name,
				ctx.Err())
		case <-tick.C:
		}
	}
}
