package command

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

type rotateFlags struct {
	prepare, finish, status bool
	timeout                 time.Duration
}

const rotatable = "api, etcd-client, etcd-peer"

// rotateCommand is the command line that rotates an authority of c.
func rotateCommand(c *cluster.Cluster, what string) string {
	if c.Containers {
		return inContainers + " " + what
	}
	return "windlass auth rotate " + what + nameFlag(c)
}

// inContainers begins the command line where the programs are in containers: that of the certificates has the authorities.
const inContainers = "docker compose exec certificates /windlass container rotate"

// clusterToRotate returns the cluster on this machine that the user means.
func (e *env) clusterToRotate() (*cluster.Cluster, error) {
	c, err := e.cluster()
	if errors.Is(err, cluster.ErrNone) {
		return nil, fmt.Errorf("%w; authorities are rotated where their keys are: for a cluster of compose.yaml run `%s`", err, inContainers)
	}
	return c, err
}

func newRotate(e *env, open func() (*cluster.Cluster, error)) *cobra.Command {
	var f rotateFlags
	cmd := &cobra.Command{
		Use:   "rotate (api | etcd-client | etcd-peer | --status)",
		Short: "Replace an authority that signs certificates, while the cluster runs",
		Long: `Replace an authority while the cluster runs: that of services, machines and users (api), that of etcd's clients (etcd-client), or that of its
members among themselves (etcd-peer). It is done in three steps:

  prepare   the next authority is made, and everything trusts it besides the one that signs
  activate  the next authority signs: the certificates of all programs, and for api those of machines and the administrator, are renewed by it
  finish    the former authority is no longer trusted: the certificates that it signed are refused

For api, without a flag the first two are done. Users whose certificates and ca.crt are elsewhere get new ones then (windlass auth issue), and
--finish ends the trust in the former authority. Who verifies the gateway by a copy of ca.crt needs the new one, which holds both, before
the second step: --prepare stops after the first.

For the authorities of etcd all three steps are done, since no user has certificates of theirs. etcd reads authorities when it starts: in the first
and in the last step etcd-guardian starts every member again, one at a time under the disruption permit, the leader last (windlass quorum -w
shows it). It needs three healthy voters on machines, and one rotation of the two at a time.

Each step can be interrupted at any moment and is completed when the command is run again. The command runs where the keys of the authorities are: on the
host of "windlass up", or for compose.yaml in the container of the certificates, as "` + inContainers + `".`,
		Example: `  windlass auth rotate api
  windlass auth rotate api --finish
  windlass auth rotate etcd-client
  windlass auth rotate etcd-peer
  windlass auth rotate --status`,
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: []string{"api", cluster.EtcdClientAuthority, cluster.EtcdPeerAuthority},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := open()
			if err != nil {
				return err
			}
			switch {
			case f.status: // whatever is named: who asks how far a rotation has come does not want one
				return e.rotationStatus(c)
			case len(args) == 0:
				return errors.New("name what to rotate: " + rotatable)
			}
			name := args[0]
			switch name {
			case "api":
				name = cluster.APIAuthority
			case cluster.EtcdClientAuthority, cluster.EtcdPeerAuthority:
			default:
				return fmt.Errorf("%q cannot be rotated: name one of %s", name, rotatable)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
			defer cancel()
			return e.rotate(ctx, c, name, f)
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&f.prepare, "prepare", false, "stop when the next authority is trusted")
	fs.BoolVar(&f.finish, "finish", false, "also end the trust in the former authority")
	fs.BoolVar(&f.status, "status", false, "show how far the rotations have come")
	fs.DurationVar(&f.timeout, "timeout", 5*time.Minute, "how long to wait for the services, the members of etcd, and machines that join")
	cmd.MarkFlagsMutuallyExclusive("prepare", "finish", "status")
	return cmd
}

func (e *env) rotationStatus(c *cluster.Cluster) error {
	rows := [][]string{{"AUTHORITY", "STEP", "EXPIRES", "HASH"}}
	for _, name := range cluster.Authorities() {
		step, err := c.Rotation(name)
		if err != nil {
			return err
		}
		trust, err := identity.LoadTrust(c.Dir("pki"), name)
		if err != nil {
			return err
		}
		rows = append(rows, []string{name, string(step), trust.NotAfter().Format(time.DateOnly), trust.Hash()})
	}
	return table.New(e.out).Print(rows...)
}

// rotate does the steps that are left, up to the one that the flags name.
func (e *env) rotate(ctx context.Context, c *cluster.Cluster, name string, f rotateFlags) error {
	o, end, err := newObserver(c)
	if err != nil {
		return err
	}
	defer end()
	s := newSteps(e.out)
	step, err := c.Rotation(name)
	if err != nil {
		return err
	}
	if step == identity.Steady && f.finish {
		_, err := fmt.Fprintln(e.out, "nothing to finish: one authority is trusted")
		return err
	}
	arrived, who := o.byNewAuthority, "every service"
	ofEtcd := name != cluster.APIAuthority
	if ofEtcd && step == identity.Steady { // what has begun is completed, and waits where it has to
		if err := o.mayRotate(ctx, name); err != nil {
			return err
		}
	}
	if ofEtcd {
		arrived, who = o.membersByNewAuthority, "every member of etcd"
	}
	if step == identity.Retired { // all that is left of an earlier call
		return finishRotation(ctx, c, s, name, arrived)
	}
	if step != identity.Activated {
		s.begin("prepare")
		if err := c.PrepareRotation(name); err != nil {
			return err
		}
		if err := until(ctx, s, arrived(name)); err != nil {
			return fmt.Errorf("prepare: %w", err)
		}
		s.done(who + " trusts the next authority")
		if f.prepare {
			return nil
		}
	}
	if step != identity.Activated && !ofEtcd { // members of etcd get what is trusted from the guardian when they start
		s.begin("machines")
		if err := until(ctx, s, o.joined); err != nil {
			return fmt.Errorf("activate: %w", err)
		}
		s.done("none is about to join by the former authority")
	}
	s.begin("activate")
	if err := c.ActivateRotation(name); err != nil {
		return err
	}
	if err := until(ctx, s, arrived(name)); err != nil {
		return fmt.Errorf("activate: %w", err)
	}
	s.done(who + " shows a certificate of the next authority")
	if !f.finish && !ofEtcd {
		fmt.Fprintf(e.out, "give users new certificates, then: %s --finish\n", rotateCommand(c, "api"))
		return nil
	}
	return finishRotation(ctx, c, s, name, arrived)
}

func finishRotation(ctx context.Context, c *cluster.Cluster, s *steps, name string, arrived func(string) func(context.Context) (bool, string, error)) error {
	s.begin("finish")
	if err := c.RetireFormer(name); err != nil {
		return err
	}
	if err := until(ctx, s, arrived(name)); err != nil {
		return fmt.Errorf("finish: %w", err)
	}
	if err := c.EndRotation(name); err != nil {
		return err
	}
	s.done("the former authority is refused")
	return nil
}

// joined waits until no machine is about to join: its token names the authorities that were trusted when its instance was made.
func (o *observer) joined(ctx context.Context) (bool, string, error) {
	list, err := machinev1.NewMachineServiceClient(o.client.Conn()).ListMachines(ctx, &machinev1.ListMachinesRequest{})
	if err != nil {
		return false, "machine-api", err
	}
	var waits []string
	for _, m := range list.GetItems() {
		if m.GetStatus().GetNodeRef() == nil && m.GetMetadata().GetDeletionTimestamp() == nil && m.GetStatus().GetPhase() != "Failed" {
			waits = append(waits, m.GetMetadata().GetName())
		}
	}
	return len(waits) == 0, "machines that join: " + strings.Join(waits, ", "), nil
}

// byNewAuthority waits until every program answers a caller whose certificate is of the authority that a rotation leads to.
func (o *observer) byNewAuthority(name string) func(context.Context) (bool, string, error) {
	left := cluster.Programs()
	return func(ctx context.Context) (bool, string, error) {
		for len(left) > 0 {
			if err := o.probe(ctx, name, left[0]); err != nil {
				return false, fmt.Sprintf("%s: %v", left[0], err), nil
			}
			left = left[1:]
		}
		return true, "", nil
	}
}

// probe calls a program on a new connection.
func (o *observer) probe(ctx context.Context, name, program string) error {
	address := o.cluster.Address(program)
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	var cfg *tls.Config
	if cfg, err = o.cluster.ProbeTLS(name, host); err != nil {
		return err
	}
	cfg = identity.WithURI(cfg, identity.ServiceURI(program))
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return err
}
