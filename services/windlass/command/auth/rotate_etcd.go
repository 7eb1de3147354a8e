package auth

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/windlass/command/probe"
	"github.com/windlass-dev/windlass/services/windlass/rotation"
)

// fewestVoters is the number of voters that etcd needs before one of them is restarted.
const fewestVoters = 3

// mayRotate returns an error if the rotation of an authority of etcd cannot start.
func mayRotate(ctx context.Context, o *probe.Cluster, name string) error {
	other := topology.EtcdClientAuthority
	if name == other {
		other = topology.EtcdPeerAuthority
	}
	its, err := o.Cluster.Rotation(other)
	if err != nil {
		return err
	}
	if its != identity.Steady {
		return fmt.Errorf("the rotation of %s is not finished (%s): finish it first with `%s`", other, its,
			rotateCommand(o.Cluster, other))
	}
	q, err := o.Quorum(ctx)
	if err != nil {
		return fmt.Errorf("the quorum: %w", err)
	}
	for _, m := range q.GetMembers() {
		switch {
		case m.GetBootstrap():
			return fmt.Errorf(
				"%s cannot be rotated yet: the bootstrap member has not left etcd, and cannot be restarted; see `windlass quorum`",
				name)
		case !m.GetHealthy():
			return fmt.Errorf("%s cannot be rotated while a member is unhealthy: member %s: %s; see `windlass quorum`", name,
				m.GetName(), m.GetMessage())
		}
	}
	if q.GetVoters() < fewestVoters {
		return fmt.Errorf(
			"%s cannot be rotated with %d voters: etcd needs %d to keep its majority while one of them restarts",
			name, q.GetVoters(), fewestVoters)
	}
	return nil
}

// membersByNewAuthority waits until every etcd member has restarted with the authorities that it has to trust, and
// accepts a client certificate of the next authority.
func membersByNewAuthority(o *probe.Cluster, name string) func(context.Context) (bool, string, error) {
	return func(ctx context.Context) (bool, string, error) {
		q, err := o.Quorum(ctx)
		if err != nil {
			return false, topology.EtcdGuardian, err
		}
		trust, err := o.Cluster.MemberTrust()
		if err != nil {
			return false, "", err
		}
		if q.GetTrust() != trust {
			return false, "etcd-guardian to read the authorities", nil
		}
		var left []string
		for _, m := range q.GetMembers() {
			switch {
			case !m.GetHealthy():
				left = append(left, fmt.Sprintf("%s (%s)", m.GetName(), cmp.Or(m.GetMessage(), "not healthy")))
			case m.GetTrust() != trust:
				left = append(left, m.GetName())
			}
		}
		if n := len(q.GetMembers()); len(left) > 0 || n == 0 {
			return false, fmt.Sprintf("etcd members to restart: %d of %d done, remaining: %s; %s", n-len(left), n,
				strings.Join(left, ", "), voterProgress(q)), nil
		}
		for _, m := range q.GetMembers() {
			if err := rotation.ProbeMember(ctx, o.Cluster, name, m); err != nil {
				return false, fmt.Sprintf("member %s: %v", m.GetName(), err), nil
			}
		}
		return true, "", nil
	}
}

// voterProgress returns what the guardian does next or waits for.
func voterProgress(q *etcdv1.Quorum) string {
	switch {
	case q.GetWaitsFor() != "":
		return "waits for " + q.GetWaitsFor()
	case q.GetNext() != nil:
		return strings.TrimSpace(q.GetNext().GetAction() + " " + q.GetNext().GetObject().GetName())
	}
	return "see `windlass plan quorum`"
}
