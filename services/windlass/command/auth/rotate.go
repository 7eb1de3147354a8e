package auth

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/probe"
	"github.com/windlass-dev/windlass/services/windlass/command/progress"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/rotation"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

type rotateFlags struct {
	prepare, finish, status bool
	timeout                 time.Duration
}

const rotatable = "api, etcd-client, etcd-peer"

// rotateCommand returns the command that rotates an authority of c.
func rotateCommand(c *cluster.Cluster, what string) string {
	if c.Containers {
		return inContainers + " " + what
	}
	return "windlass auth rotate " + what + session.NameFlag(c)
}

// inContainers is the command for a cluster in containers; only the certificates container has the authorities' keys.
const inContainers = "docker compose exec certificates /windlass container rotate"

// clusterToRotate returns the selected cluster on this machine.
func clusterToRotate(e *session.Env) (*cluster.Cluster, error) {
	c, err := e.Cluster()
	if errors.Is(err, cluster.ErrNone) && !e.Target.Named() {
		if h, err := cluster.OpenHost(cluster.HostDir()); err == nil && h.Member.Worker {
			return nil, fmt.Errorf("host %s is a worker: run the command on a control-plane host", h.Member.Name)
		} else if err == nil {
			return h, nil
		}
	}
	if errors.Is(err, cluster.ErrNone) {
		return nil, fmt.Errorf("%w; rotation needs the authorities' keys: for a cluster of compose.yaml, run `%s`",
			err, inContainers)
	}
	return c, err
}

// NewRotate returns the command rotate.
func NewRotate(e *session.Env, open func() (*cluster.Cluster, error)) *cobra.Command {
	var f rotateFlags
	cmd := &cobra.Command{
		Use:   "rotate (api | etcd-client | etcd-peer | --status)",
		Short: "Replace a certificate authority while the cluster runs",
		Long: `Replace a certificate authority while the cluster runs: the authority of services, machines and
users (api), of etcd clients (etcd-client), or of etcd members among each other (etcd-peer). A
rotation has three steps:

  prepare   create the next authority, and distribute trust in it besides the current one
  activate  sign with the next authority, and renew the certificates of all programs; for api, also
            those of machines and the administrator
  finish    remove trust in the former authority, so that its certificates are rejected

For api, the command runs prepare and activate. Then issue new certificates to users with copies
elsewhere (windlass auth issue), and run the command with --finish. Clients that verify the gateway
with a copy of ca.crt need the new ca.crt, which contains both authorities, before activate; use
--prepare to stop after the first step.

For the authorities of etcd, the command runs all three steps, because users have no certificates of
these authorities. etcd reads them only on start, so etcd-guardian restarts the members in the first
and last step: one at a time, under the disruption permit, the leader last (see "windlass quorum
-w"). This needs three healthy voters on machines. The two authorities of etcd cannot be rotated at
the same time.

Each step can be interrupted and is completed when the command runs again. Run the command where the
keys of the authorities are: on the host of "windlass up", on any control-plane host ("windlass
host"), where all hosts take each step, or for compose.yaml in the certificates container, as
"` + inContainers + `".`,
		Example: `  windlass auth rotate api
  windlass auth rotate api --finish
  windlass auth rotate etcd-client
  windlass auth rotate etcd-peer
  windlass auth rotate --status`,
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: []string{"api", topology.EtcdClientAuthority, topology.EtcdPeerAuthority},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := open()
			if err != nil {
				return err
			}
			switch {
			case f.status: // ignores the argument: it never rotates
				if err := rotationStatus(e, c); err != nil || c.Member == nil {
					return err
				}
				return statusOnHosts(cmd.Context(), e)
			case len(args) == 0:
				return errors.New("specify what to rotate: " + rotatable)
			}
			name := args[0]
			switch name {
			case "api":
				name = topology.APIAuthority
			case topology.EtcdClientAuthority, topology.EtcdPeerAuthority:
			default:
				return fmt.Errorf("%q cannot be rotated: must be one of %s", name, rotatable)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
			defer cancel()
			if c.Member != nil {
				return rotateOnHosts(ctx, e, c, name, f)
			}
			return rotate(ctx, e, c, name, f)
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&f.prepare, "prepare", false, "stop after the prepare step")
	fs.BoolVar(&f.finish, "finish", false, "also remove trust in the former authority")
	fs.BoolVar(&f.status, "status", false, "show the state of all rotations")
	fs.DurationVar(&f.timeout, "timeout", 5*time.Minute,
		"how long to wait for services, etcd members and joining machines")
	cmd.MarkFlagsMutuallyExclusive("prepare", "finish", "status")
	return cmd
}

func rotationStatus(e *session.Env, c *cluster.Cluster) error {
	rows := [][]string{{"AUTHORITY", "STEP", "EXPIRES", "HASH"}}
	for _, name := range topology.Authorities() {
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
	return table.New(e.Out).Print(rows...)
}

// rotate runs the remaining steps, up to the one that the flags select.
func rotate(ctx context.Context, e *session.Env, c *cluster.Cluster, name string, f rotateFlags) error {
	o, end, err := probe.New(c)
	if err != nil {
		return err
	}
	defer end()
	s := progress.New(e.Out)
	step, err := c.Rotation(name)
	if err != nil {
		return err
	}
	if step == identity.Steady && f.finish {
		_, err := fmt.Fprintln(e.Out, "no rotation to finish: only one authority is trusted")
		return err
	}
	type check = func(context.Context) (done bool, waits string, err error)
	arrived, who := func(name string) check { return byNewAuthority(o, name) }, "every service"
	ofEtcd := name != topology.APIAuthority
	if ofEtcd && step == identity.Steady { // checked at the start only: a rotation in progress is completed
		if err := mayRotate(ctx, o, name); err != nil {
			return err
		}
	}
	if ofEtcd {
		arrived, who = func(name string) check { return membersByNewAuthority(o, name) }, "every etcd member"
	}
	if step == identity.Retired { // an earlier call was interrupted in the last step
		return finishRotation(ctx, c, s, name, arrived)
	}
	if step != identity.Activated {
		s.Begin("prepare")
		if err := c.PrepareRotation(name); err != nil {
			return err
		}
		if err := probe.Until(ctx, s, arrived(name)); err != nil {
			return fmt.Errorf("prepare: %w", err)
		}
		s.Done(who + " trusts the next authority")
		if f.prepare {
			return nil
		}
	}
	if step != identity.Activated && !ofEtcd { // etcd members get the trusted authorities from the guardian on start
		s.Begin("machines")
		if err := probe.Until(ctx, s, func(ctx context.Context) (bool, string, error) { return joined(ctx, o) }); err != nil {
			return fmt.Errorf("activate: %w", err)
		}
		s.Done("no machine is joining with the former authority")
	}
	s.Begin("activate")
	if err := c.ActivateRotation(name); err != nil {
		return err
	}
	if err := probe.Until(ctx, s, arrived(name)); err != nil {
		return fmt.Errorf("activate: %w", err)
	}
	s.Done(who + " uses a certificate of the next authority")
	if !f.finish && !ofEtcd {
		fmt.Fprintf(e.Out, "issue new certificates to users, then run: %s --finish\n", rotateCommand(c, "api"))
		return nil
	}
	return finishRotation(ctx, c, s, name, arrived)
}

func finishRotation(ctx context.Context, c *cluster.Cluster, s *progress.Steps, name string,
	arrived func(string) func(context.Context) (bool, string, error),
) error {
	s.Begin("finish")
	if err := c.RetireFormer(name); err != nil {
		return err
	}
	if err := probe.Until(ctx, s, arrived(name)); err != nil {
		return fmt.Errorf("finish: %w", err)
	}
	if err := c.EndRotation(name); err != nil {
		return err
	}
	s.Done("the former authority is rejected")
	return nil
}

// joined waits until no machine is joining: a join token lists the authorities that were trusted when the machine's
// instance was created.
func joined(ctx context.Context, o *probe.Cluster) (bool, string, error) {
	list, err := machinev1.NewMachineServiceClient(o.Client.Conn()).ListMachines(ctx, &machinev1.ListMachinesRequest{})
	if err != nil {
		return false, topology.MachineAPI, err
	}
	var waits []string
	for _, m := range list.GetItems() {
		if m.GetStatus().GetNodeRef() == nil && m.GetMetadata().GetDeletionTimestamp() == nil &&
			m.GetStatus().GetPhase() != "Failed" {
			waits = append(waits, m.GetMetadata().GetName())
		}
	}
	return len(waits) == 0, "joining machines: " + strings.Join(waits, ", "), nil
}

// byNewAuthority waits until every program accepts a client certificate of the next authority.
func byNewAuthority(o *probe.Cluster, name string) func(context.Context) (bool, string, error) {
	left := topology.Names()
	return func(ctx context.Context) (bool, string, error) {
		for len(left) > 0 {
			if err := rotation.ProbeProgram(ctx, o.Cluster, name, left[0]); err != nil {
				return false, fmt.Sprintf("%s: %v", left[0], err), nil
			}
			left = left[1:]
		}
		return true, "", nil
	}
}
