package agent

import (
	"context"
	"time"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"

	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

// lookAtMember is how often the agent looks whether the cluster removed its member: the guardian's word comes on the stream, so this is for
// a removal that was missed.
const lookAtMember = time.Second

// Attend first has the member run as the disk says, and then offers it to the guardian and follows its orders, until ctx ends.
func (a *Agent) Attend(ctx context.Context) error { return a.again(ctx, "offer of a member", a.attend) }

// attend is one stream.
func (a *Agent) attend(ctx context.Context) error {
	m := a.cfg.Member
	if err := m.Resume(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := etcdv1.NewQuorumServiceClient(a.cfg.Conn).AttendMember(ctx, &etcdv1.AttendMemberRequest{
		Node: a.cfg.Node, PeerUrl: m.PeerURL(), ClientUrl: m.ClientURL(), HasData: m.HasData(),
	})
	if err != nil {
		return err
	}
	orders := receive(ctx, stream.Recv)
	ticker := time.NewTicker(lookAtMember)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if m.Removed() {
				// Its data is of no use any more: without it the machine offers again, as a new one.
				return m.Follow(ctx, plan.Order{})
			}
		case r := <-orders:
			if r.err != nil {
				return r.err
			}
			if err := a.follow(ctx, r.message); err != nil {
				return err
			}
		}
	}
}

func (a *Agent) follow(ctx context.Context, r *etcdv1.AttendMemberResponse) error {
	a.cfg.Log.InfoContext(ctx, "member ordered", "member", r.GetName(), "command", r.GetCommand())
	return a.cfg.Member.Follow(ctx, plan.Order{
		Command: r.GetCommand(), Name: r.GetName(), InitialCluster: r.GetInitialCluster(), ClusterToken: r.GetInitialClusterToken(),
	})
}
