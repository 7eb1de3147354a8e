package command

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
)

// fewestVoters is how many voters etcd must have for one of them to be started again.
const fewestVoters = 3

// mayRotate returns why the rotation of one of etcd's authorities cannot begin.
func (o *observer) mayRotate(ctx context.Context, name string) error {
	other := cluster.EtcdClientAuthority
	if name == other {
		other = cluster.EtcdPeerAuthority
	}
	its, err := o.cluster.Rotation(other)
	if err != nil {
		return err
	}
	if its != identity.Steady {
		return fmt.Errorf("the rotation of %s is not finished (%s): finish it first, with `%s`", other, its, rotateCommand(o.cluster, other))
	}
	q, err := o.quorum(ctx)
	if err != nil {
		return fmt.Errorf("the quorum: %w", err)
	}
	for _, m := range q.GetMembers() {
		switch {
		case m.GetBootstrap():
			return fmt.Errorf("%s cannot be rotated yet: the bootstrap member has not left etcd, and is not started again; see `windlass quorum`", name)
		case !m.GetHealthy():
			return fmt.Errorf("%s cannot be rotated while the quorum is damaged: member %s: %s; see `windlass quorum`", name, m.GetName(), m.GetMessage())
		}
	}
	if q.GetVoters() < fewestVoters {
		return fmt.Errorf("%s cannot be rotated with %d voters: etcd must keep its majority while one of them starts again, which takes %d", name, q.GetVoters(), fewestVoters)
	}
	return nil
}

// membersByNewAuthority waits until every member of etcd trusts what it has to since its start, and answers a caller whose certificate is of the authority that
// a rotation leads to.
func (o *observer) membersByNewAuthority(name string) func(context.Context) (bool, string, error) {
	return func(ctx context.Context) (bool, string, error) {
		q, err := o.quorum(ctx)
		if err != nil {
			return false, "etcd-guardian", err
		}
		trust, err := o.cluster.MemberTrust()
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
			return false, fmt.Sprintf("members of etcd to start again: %d of %d have, not %s; %s", n-len(left), n, strings.Join(left, ", "), progress(q)), nil
		}
		for _, m := range q.GetMembers() {
			if err := o.probeMember(ctx, name, m); err != nil {
				return false, fmt.Sprintf("member %s: %v", m.GetName(), err), nil
			}
		}
		return true, "", nil
	}
}

// progress says what the guardian does or waits for.
func progress(q *etcdv1.Quorum) string {
	switch {
	case q.GetWaitsFor() != "":
		return "waits for " + q.GetWaitsFor()
	case q.GetNext() != nil:
		return strings.TrimSpace(q.GetNext().GetAction() + " " + q.GetNext().GetObject().GetName())
	}
	return "see `windlass plan quorum`"
}

// probeMember connects to a member's port for clients or for peers, and returns when the member has answered something: only then has it accepted the certificate.
func (o *observer) probeMember(ctx context.Context, name string, m *etcdv1.Member) error {
	urls, protocol, hello := m.GetClientUrls(), "h2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	if name == cluster.EtcdPeerAuthority {
		urls, protocol, hello = m.GetPeerUrls(), "http/1.1", "GET / HTTP/1.0\r\n\r\n"
	}
	if len(urls) == 0 {
		return errors.New("its address is not known yet")
	}
	u, err := url.Parse(urls[0])
	if err != nil {
		return err
	}
	cfg, err := o.cluster.ProbeTLS(name, u.Hostname())
	if err != nil {
		return err
	}
	cfg.NextProtos = []string{protocol}
	conn, err := (&tls.Dialer{Config: cfg}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(probePatience)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte(hello)); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}

const probePatience = 2 * time.Second // for a member to answer
