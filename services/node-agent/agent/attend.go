package agent

import (
	"context"
	"errors"
	"time"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"

	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

// lookAtMember is how often the agent looks whether its member has data now, and whether the cluster removed it: the
// guardian's word comes on the stream, so the latter is for a removal that was missed.
const lookAtMember = time.Second

// Attend first has the member run as the disk says, and then offers it to the guardian and follows its orders, until
// ctx ends.
func (a *Agent) Attend(ctx context.Context) error { return a.again(ctx, "offer of a member", a.attend) }

// attend is one stream.
func (a *Agent) attend(ctx context.Context) error {
	m := a.cfg.Member
	if err := a.unlessRefused(ctx, m.Resume(ctx)); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	etcd, other := m.EtcdVersion(), m.Other()
	stream, err := etcdv1.NewQuorumServiceClient(a.cfg.Conn).AttendMember(ctx, &etcdv1.AttendMemberRequest{
		Node: a.cfg.Node, PeerUrl: m.PeerURL(), ClientUrl: m.ClientURL(), HasData: m.HasData(), EtcdVersion: etcd,
		OtherExecutable: other,
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
			if m.EtcdVersion() != etcd || m.Other() != other {
				return nil // it is offered again, as it is now
			}
			if err := m.Note(ctx); err != nil {
				return err
			}
			if m.RenewalDue(time.Now()) {
				if err := a.certify(ctx); err != nil {
					a.cfg.Log.WarnContext(ctx, "member's certificates not renewed", "error", err)
				}
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
	if m := a.cfg.Member; r.GetCommand() == plan.Start && (m.NeedsCertificates() || r.GetTrust() != "" &&
		!m.Trusts(r.GetTrust())) {
		if err := a.certify(ctx); err != nil {
			return err // the guardian orders the same again on the next stream
		}
	}
	return a.unlessRefused(ctx, a.cfg.Member.Follow(ctx, plan.Order{
		Command: r.GetCommand(), Name: r.GetName(), InitialCluster: r.GetInitialCluster(),
		ClusterToken: r.GetInitialClusterToken(),
		Trust:        r.GetTrust(), RenewExecutable: r.GetRenewExecutable(), QuotaBytes: r.GetQuotaBackendBytes(),
	}))
}

// certify gets the certificates of the member that the guardian has planned for this node.
func (a *Agent) certify(ctx context.Context) error {
	quorum := etcdv1.NewQuorumServiceClient(a.cfg.Conn)
	return a.cfg.Member.Certify(ctx, a.cfg.Node,
		func(ctx context.Context, r *etcdv1.CertifyMemberRequest) (*etcdv1.CertifyMemberResponse, error) {
			return quorum.CertifyMember(ctx, r)
		})
}

// unlessRefused takes a refusal for no error: another try would end the same way, and the guardian may order something
// else.
func (a *Agent) unlessRefused(ctx context.Context, err error) error {
	if errors.Is(err, plan.ErrRefused) {
		a.cfg.Log.WarnContext(ctx, "member not started", "error", err)
		return nil
	}
	return err
}
