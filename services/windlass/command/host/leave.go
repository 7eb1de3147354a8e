package host

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/waiting"
)

// masterRole is that of control-plane machines in provider.v1.
const masterRole = "master"

func newLeave(e *session.Env) *cobra.Command {
	var dir string
	var timeout time.Duration
	var force bool
	cmd := &cobra.Command{
		Use:   "leave NAME",
		Short: "Have a host leave the cluster",
		Long: `Have a host leave the cluster: cordon it, delete its machine, wait until the host is wiped, and remove it from
the inventory. The machine of a control-plane host is deleted only if another host can take its place in the
quorum; --force deletes it all the same, and it waits for one then.

The programs of a control-plane host run on, and its keys stay on its disk: end them there with
` + "`windlass host stop`" + `, and remove its directory.`,
		Example: "  windlass host leave rack-1-a",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if timeout > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, timeout)
				defer cancel()
			}
			if err := aim(e, dir); err != nil {
				return err
			}
			return e.WithClient(func(c *client.Client) error { return leave(ctx, e, c, args[0], force) })
		},
	}
	dirFlag(cmd, &dir)
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "how long to wait; 0 means no limit")
	cmd.Flags().BoolVar(&force, "force", false, "delete the machine of a control-plane host though no other host is free")
	return cmd
}

func leave(ctx context.Context, e *session.Env, c *client.Client, name string, force bool) error {
	hosts := hostv1.NewHostServiceClient(c.Conn())
	if err := carriesNoBootstrap(ctx, c, name); err != nil {
		return err
	}
	h, err := hosts.CordonHost(ctx, &hostv1.CordonHostRequest{Name: name, Reason: "it leaves the cluster"})
	if err != nil {
		return err
	}
	if ref := h.GetStatus().GetMachineRef(); ref != nil {
		if err := deleteMachine(ctx, e, c, ref, force); err != nil {
			return err
		}
	}
	kind, err := client.KindOf("windlass.dev/v1", "Host")
	if err != nil {
		return err
	}
	uid := h.GetMetadata().GetUid()
	gone := func(o object.Object) bool { return o == nil || o.GetMetadata().GetUid() != uid }
	if err := waiting.Await(ctx, e, c, waiting.Goal{
		Kind: kind, Name: name, What: "end of its machine",
		Met: func(o object.Object) (bool, error) {
			return gone(o) || free(o.(*hostv1.Host).GetStatus()), nil
		},
		Reason: func(_ context.Context, o object.Object) string {
			if gone(o) {
				return ""
			}
			s := o.(*hostv1.Host).GetStatus()
			return strings.TrimSuffix(s.GetMessage()+"; "+s.GetUnblock(), "; ")
		},
	}); err != nil {
		return err
	}
	if _, err := hosts.RemoveHost(ctx, &hostv1.RemoveHostRequest{Name: name, Uid: uid}); err != nil {
		return err
	}
	fmt.Fprintf(e.Out, "host.windlass.dev/%s removed\n", name)
	fmt.Fprintf(e.Err,
		"What is left of the cluster on %s is ended there: `windlass host stop`, then remove its directory.\n", name)
	return nil
}

// carriesNoBootstrap returns an error while the first member of etcd is a member and on a host: no machine is deleted
// for it, so that it would be missed.
func carriesNoBootstrap(ctx context.Context, c *client.Client, name string) error {
	h, err := hostv1.NewHostServiceClient(c.Conn()).GetHost(ctx, &hostv1.GetHostRequest{Name: name})
	if err != nil {
		return err
	}
	q, err := etcdv1.NewQuorumServiceClient(c.Conn()).GetQuorum(ctx, &etcdv1.GetQuorumRequest{})
	if err != nil {
		return err
	}
	for _, m := range q.GetMembers() {
		for _, address := range m.GetPeerUrls() {
			if u, err := url.Parse(address); err == nil && m.GetBootstrap() && u.Hostname() == h.GetSpec().GetAddress() {
				return fmt.Errorf(
					"host %s has the first member of etcd, which leaves when the member of the host's own machine votes: "+
						"wait until `windlass quorum` shows that", name)
			}
		}
	}
	return nil
}

// free reports whether no machine has a host, and nothing of one is left on it; also of one that has never attended.
func free(s *hostv1.HostStatus) bool {
	const available = "Available"
	return s.GetMachineRef() == nil && (s.GetPhase() == available || s.GetPhase() == "Lost" &&
		s.GetResumePhase() == available)
}

// deleteMachine deletes the machine that has a host, and waits until it is gone.
func deleteMachine(ctx context.Context, e *session.Env, c *client.Client, ref *metav1.ObjectReference,
	force bool,
) error {
	machines := machinev1.NewMachineServiceClient(c.Conn())
	m, err := machines.GetMachine(ctx, &machinev1.GetMachineRequest{Namespace: ref.GetNamespace(), Name: ref.GetName()})
	if status.Code(err) == codes.NotFound || err == nil && m.GetMetadata().GetUid() != ref.GetUid() {
		return nil
	}
	if err != nil {
		return err
	}
	if role := m.GetMetadata().GetLabels()["machine.openshift.io/cluster-api-machine-role"]; role == masterRole &&
		!force &&
		!object.Deleting(m) {
		p, err := hostv1.NewHostServiceClient(c.Conn()).PlanHosts(ctx, &hostv1.PlanHostsRequest{
			ProviderSpec: m.GetSpec().GetProviderSpec().GetValue(), Role: masterRole,
		})
		if err != nil {
			return err
		}
		if p.GetWaitsFor() != "" {
			return errors.New("no other host can take the place of machine " + ref.GetName() + ": " + p.GetWaitsFor() +
				"; join another control-plane host first. The host stays cordoned")
		}
	}
	kind, err := client.KindOf("machine.openshift.io/v1beta1", "Machine")
	if err != nil {
		return err
	}
	uid := ref.GetUid()
	if _, err := machines.DeleteMachine(ctx, &machinev1.DeleteMachineRequest{
		Namespace: ref.GetNamespace(), Name: ref.GetName(), Preconditions: &metav1.Preconditions{Uid: uid},
	}); err != nil && status.Code(err) != codes.NotFound {
		return err
	}
	fmt.Fprintf(e.Out, "machine.machine.openshift.io/%s deleted\n", ref.GetName())
	return waiting.Await(ctx, e, c, waiting.Goal{
		Kind: kind, Namespace: ref.GetNamespace(), Name: ref.GetName(), What: "deletion", Reason: waiting.Deletion(c),
		Met: func(o object.Object) (bool, error) { return o == nil || o.GetMetadata().GetUid() != uid, nil },
	})
}
