// Package members speaks with each member of the etcd cluster by itself: whether it answers, what it sees, and the
// changes of membership, which etcd carries out only where they are asked for at the right member. It decides nothing.
package members

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/windlass-dev/windlass/kit/dial"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

var (
	// ErrNotNow means that etcd refused for a reason that passes by itself: an add soon after a promotion, a promotion of
	// a learner that has not caught up.
	ErrNotNow = errors.New("etcd does not accept this change yet")
	// ErrDone means that the change has been made before.
	ErrDone = errors.New("this change is made already")
)

// trustHeader is the header in which a member of ours says which authorities it trusts.
const trustHeader = "windlass-trust"

// Client keeps one connection to each member. Its methods may be called concurrently.
type Client struct {
	creds credentials.TransportCredentials

	mu    sync.Mutex
	conns map[string]*grpc.ClientConn
}

// New returns a client that shows the certificate of creds, which must be root's for changes.
func New(creds credentials.TransportCredentials) *Client {
	return &Client{creds: creds, conns: map[string]*grpc.ClientConn{}}
}

// Close closes all connections.
func (c *Client) Close() { c.Keep(nil) }

// Keep closes the connections to all but the given addresses.
func (c *Client) Keep(urls []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for u, conn := range c.conns {
		if !slices.Contains(urls, u) {
			_ = conn.Close() // no call is waiting on it
			delete(c.conns, u)
		}
	}
}

func (c *Client) conn(address string) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn, ok := c.conns[address]; ok {
		return conn, nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("address %q of a member is no URL", address)
	}
	conn, err := grpc.NewClient("passthrough:///"+u.Host,
		grpc.WithTransportCredentials(c.creds),
		dial.KeepAlive(3*time.Second),
		// A member that starts is seen soon after, one that is gone costs little. An attempt takes three round trips, which
		// a member that answers slowly has to get through.
		dial.Reconnect(30*time.Millisecond, 300*time.Millisecond, 5*time.Second))
	if err != nil {
		return nil, err
	}
	c.conns[address] = conn
	return conn, nil
}

// Answer is what one member said of itself.
type Answer struct {
	Status *etcdserverpb.StatusResponse
	List   *etcdserverpb.MemberListResponse // by a linearizable read; nil of a learner
	// hash of the authorities that it trusts since its start; empty if it did not say
	Trust   string
	Latency time.Duration
	Err     error // why it does not count as healthy
}

// Probe asks one member for its status and, unless it is a learner, has it carry out a linearizable read alone.
func (c *Client) Probe(ctx context.Context, address string, learner bool) Answer {
	conn, err := c.conn(address)
	if err != nil {
		return Answer{Err: err}
	}
	begin := time.Now()
	var a Answer
	var list *etcdserverpb.MemberListResponse
	var listErr error
	var group sync.WaitGroup // at once: a member that answers slowly has one limit for both
	if !learner {
		group.Go(func() { list, listErr = readList(ctx, etcdserverpb.NewClusterClient(conn)) })
	}
	var header metadata.MD
	a.Status, err = etcdserverpb.NewMaintenanceClient(conn).Status(ctx, &etcdserverpb.StatusRequest{},
		grpc.Header(&header))
	group.Wait()
	if err != nil {
		return Answer{Err: plain(err)}
	}
	if said := header.Get(trustHeader); len(said) == 1 {
		a.Trust = said[0]
	}
	if !learner && !a.Status.IsLearner {
		a.List, err = list, listErr
		if status.Code(err) == codes.DeadlineExceeded {
			err = errors.New("it runs, but no majority confirms what it reads")
		}
	}
	a.Latency, a.Err = time.Since(begin), plain(err)
	return a
}

// rereadAfter is how soon a read is repeated that a change of leaders cut off: an election takes several times as long.
const rereadAfter = 20 * time.Millisecond

// readList carries out a linearizable read. One that a change of leaders cut off says nothing about the member, so it
// is repeated while ctx lasts.
func readList(ctx context.Context, client etcdserverpb.ClusterClient) (*etcdserverpb.MemberListResponse, error) {
	for {
		list, err := client.MemberList(ctx, &etcdserverpb.MemberListRequest{Linearizable: true})
		if status.Convert(err).Message() != rpctypes.ErrLeaderChanged.Error() {
			return list, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(rereadAfter):
		}
	}
}

// plain returns what people need to know of an error. The texts of the transport are none of that.
func plain(err error) error {
	st, ok := status.FromError(err)
	switch text, ours := strings.CutPrefix(st.Message(), "etcdserver: "); {
	case err == nil, !ok:
		return err
	case ours:
		return errors.New(text)
	case st.Code() == codes.DeadlineExceeded, st.Code() == codes.Canceled:
		return errors.New("no answer in time")
	case st.Code() == codes.Unavailable:
		return errors.New("it cannot be reached")
	default:
		return errors.New(text)
	}
}

// AddLearner adds a learner with a peer address by asking the member at address, and returns all members.
func (c *Client) AddLearner(ctx context.Context, address, peerURL string) (*etcdserverpb.MemberAddResponse, error) {
	conn, err := c.conn(address)
	if err != nil {
		return nil, err
	}
	resp, err := etcdserverpb.NewClusterClient(conn).MemberAdd(ctx, &etcdserverpb.MemberAddRequest{
		PeerURLs: []string{peerURL}, IsLearner: true,
	})
	return resp, classify("add a learner", err)
}

// Promote makes a learner a voter; address is the leader's.
func (c *Client) Promote(ctx context.Context, address string, id uint64) error {
	conn, err := c.conn(address)
	if err != nil {
		return err
	}
	_, err = etcdserverpb.NewClusterClient(conn).MemberPromote(ctx, &etcdserverpb.MemberPromoteRequest{ID: id})
	return classify("promote", err)
}

// Remove removes a member by asking another one at address.
func (c *Client) Remove(ctx context.Context, address string, id uint64) error {
	conn, err := c.conn(address)
	if err != nil {
		return err
	}
	_, err = etcdserverpb.NewClusterClient(conn).MemberRemove(ctx, &etcdserverpb.MemberRemoveRequest{ID: id})
	return classify("remove", err)
}

// MoveLeader makes another voter the leader; address is the present leader's.
func (c *Client) MoveLeader(ctx context.Context, address string, to uint64) error {
	conn, err := c.conn(address)
	if err != nil {
		return err
	}
	_, err = etcdserverpb.NewMaintenanceClient(conn).MoveLeader(ctx, &etcdserverpb.MoveLeaderRequest{TargetID: to})
	return classify("move the leader", err)
}

// Compact drops all revisions but the present ones; address is the leader's. It returns when their space is free for
// use.
func (c *Client) Compact(ctx context.Context, address string) error {
	conn, err := c.conn(address)
	if err != nil {
		return err
	}
	st, err := etcdserverpb.NewMaintenanceClient(conn).Status(ctx, &etcdserverpb.StatusRequest{})
	if err != nil {
		return plain(err)
	}
	_, err = etcdserverpb.NewKVClient(conn).Compact(ctx, &etcdserverpb.CompactionRequest{
		Revision: st.GetHeader().GetRevision(), Physical: true,
	})
	if status.Convert(err).Message() == rpctypes.ErrorDesc(rpctypes.ErrGRPCCompacted) {
		return nil // nothing is older
	}
	return classify("compact", err)
}

// Defragment has the member at address give free space in its database's file back. It serves no request until that
// ends.
func (c *Client) Defragment(ctx context.Context, address string) error {
	conn, err := c.conn(address)
	if err != nil {
		return err
	}
	_, err = etcdserverpb.NewMaintenanceClient(conn).Defragment(ctx, &etcdserverpb.DefragmentRequest{})
	return classify("defragment", err)
}

// Snapshot writes a snapshot of the database of the member at address to w, with the hash that etcd appends to it.
func (c *Client) Snapshot(ctx context.Context, address string, w io.Writer) error {
	conn, err := c.conn(address)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := etcdserverpb.NewMaintenanceClient(conn).Snapshot(ctx, &etcdserverpb.SnapshotRequest{})
	if err != nil {
		return classify("take a snapshot", err)
	}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return classify("take a snapshot", err)
		}
		if _, err := w.Write(part.GetBlob()); err != nil {
			return err
		}
	}
}

// Disarm ends all alarms of members without space, by asking the member at address.
func (c *Client) Disarm(ctx context.Context, address string) error {
	conn, err := c.conn(address)
	if err != nil {
		return err
	}
	client := etcdserverpb.NewMaintenanceClient(conn)
	list, err := client.Alarm(ctx, &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_GET,
		Alarm:  etcdserverpb.AlarmType_NOSPACE,
	})
	for _, a := range list.GetAlarms() {
		_, failed := client.Alarm(ctx, &etcdserverpb.AlarmRequest{
			Action: etcdserverpb.AlarmRequest_DEACTIVATE, Alarm: etcdserverpb.AlarmType_NOSPACE, MemberID: a.GetMemberID(),
		})
		err = errors.Join(err, failed)
	}
	return classify("end the alarm", err)
}

func classify(what string, err error) error {
	if err == nil {
		return nil
	}
	text := status.Convert(err).Message()
	is := func(list ...error) bool {
		return slices.ContainsFunc(list, func(e error) bool { return rpctypes.ErrorDesc(e) == text })
	}
	switch {
	case is(rpctypes.ErrGRPCUnhealthy, rpctypes.ErrGRPCLearnerNotReady, rpctypes.ErrGRPCMemberNotEnoughStarted,
		rpctypes.ErrGRPCTooManyLearners):
		return fmt.Errorf("%s: %w: %s", what, ErrNotNow, text)
	case is(rpctypes.ErrGRPCMemberNotFound, rpctypes.ErrGRPCMemberNotLearner, rpctypes.ErrGRPCPeerURLExist,
		rpctypes.ErrGRPCMemberExist):
		return fmt.Errorf("%s: %w: %s", what, ErrDone, text)
	}
	return fmt.Errorf("%s: %s", what, text)
}
