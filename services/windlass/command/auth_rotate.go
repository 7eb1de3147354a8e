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

func newRotate(e *env) *cobra.Command {
	var f rotateFlags
	cmd := &cobra.Command{
		Use:   "rotate (api | --status)",
		Short: "Replace the authority that signs the certificates of services, machines and users, while the cluster runs",
		Long: `Replace the authority that signs the certificates of services, machines and users, while the cluster runs. It is done in three steps:

  prepare   the next authority is made, and every service and machine trusts it besides the one that signs
  activate  the next authority signs: the certificates of services, machines and the administrator are renewed by it
  finish    the former authority is no longer trusted: the certificates that it signed are refused

Without a flag the first two are done. Users whose certificates and ca.crt are elsewhere get new ones then (windlass auth issue), and
--finish ends the trust in the former authority. Who verifies the gateway by a copy of ca.crt needs the new one, which holds both, before
the second step: --prepare stops after the first.

Each step can be interrupted at any moment and is completed when the command is run again. The command runs on the host of "windlass up".`,
		Example: `  windlass auth rotate api
  windlass auth rotate api --finish
  windlass auth rotate --status`,
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: []string{"api"},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := e.cluster()
			if err != nil {
				return err
			}
			switch {
			case f.status && len(args) == 0:
				return e.rotationStatus(c)
			case len(args) == 0:
				return errors.New("name what to rotate: api")
			case args[0] != "api":
				return fmt.Errorf("%q cannot be rotated: only api can", args[0])
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
			defer cancel()
			return e.rotate(ctx, c, f)
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&f.prepare, "prepare", false, "stop when the next authority is trusted")
	fs.BoolVar(&f.finish, "finish", false, "also end the trust in the former authority")
	fs.BoolVar(&f.status, "status", false, "show how far the rotations have come")
	fs.DurationVar(&f.timeout, "timeout", 5*time.Minute, "how long to wait for the services and for machines that join")
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
func (e *env) rotate(ctx context.Context, c *cluster.Cluster, f rotateFlags) error {
	const name = cluster.APIAuthority
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
	if step != identity.Activated {
		s.begin("prepare")
		if err := c.PrepareRotation(name); err != nil {
			return err
		}
		if err := until(ctx, s, o.byNewAuthority(name)); err != nil {
			return fmt.Errorf("prepare: %w", err)
		}
		s.done("every service trusts the next authority")
		if f.prepare {
			return nil
		}
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
	if err := until(ctx, s, o.byNewAuthority(name)); err != nil {
		return fmt.Errorf("activate: %w", err)
	}
	s.done("every service shows a certificate of the next authority")
	if !f.finish {
		fmt.Fprintf(e.out, "give users new certificates, then: windlass auth rotate api --finish%s\n", nameFlag(c))
		return nil
	}
	s.begin("finish")
	if err := c.RetireFormer(name); err != nil {
		return err
	}
	if err := until(ctx, s, o.byNewAuthority(name)); err != nil {
		return fmt.Errorf("finish: %w", err)
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
	if cfg, err = o.cluster.ProbeTLS(name, program, host); err != nil {
		return err
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return err
}
