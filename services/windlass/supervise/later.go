package supervise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/recovery"
)

const (
	// laterLimit is how long a host that starts waits for the others: one that is off must not hold up a boot.
	laterLimit = time.Second
	// laterEvery is how often the others are asked while this host runs, for what begins while it is cut off.
	laterEvery = 5 * time.Second
)

// errLater is the end of runHost that begins again, and sets the data of etcd on this host aside.
var errLater = errors.New("etcd was recovered or restored on another host")

// others are the gateways of the other control-plane hosts.
type others struct {
	cluster *cluster.Cluster
	conns   map[string]*grpc.ClientConn
}

func newOthers(c *cluster.Cluster) *others {
	return &others{cluster: c, conns: map[string]*grpc.ClientConn{}}
}

func (o *others) close() {
	for _, conn := range o.conns {
		conn.Close()
	}
}

// later returns what the first other host says that knows of a later recovery of etcd than this one does; nil if none
// says so within laterLimit. Hosts that do not answer count for nothing.
func (o *others) later(ctx context.Context) (*etcdv1.Quorum, error) {
	ctx, cancel := context.WithTimeout(ctx, laterLimit)
	defer cancel()
	answers, asked := make(chan *etcdv1.Quorum), 0
	for _, gateway := range o.cluster.Gateways()[1:] { // the first one is this host's own
		conn := o.conns[gateway]
		if conn == nil {
			files := o.cluster.AdminFiles()
			var err error
			conn, err = client.Dial(client.Target{Server: gateway, CA: files.CA, Cert: files.Cert, Key: files.Key})
			if err != nil {
				return nil, err
			}
			o.conns[gateway] = conn
		}
		asked++
		go func() {
			q, _ := etcdv1.NewQuorumServiceClient(conn).GetQuorum(ctx, &etcdv1.GetQuorumRequest{})
			select {
			case answers <- q:
			case <-ctx.Done():
			}
		}()
	}
	for range asked {
		select {
		case q := <-answers:
			if recovery.IsLater(o.cluster, q) {
				return q, nil
			}
		case <-ctx.Done():
			return nil, nil
		}
	}
	return nil, nil
}

// awaitLater returns errLater once another host says that etcd was recovered since; nil when ctx ends.
func awaitLater(ctx context.Context, c *cluster.Cluster, log *slog.Logger) error {
	o := newOthers(c)
	defer o.close()
	tick := time.NewTicker(laterEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		q, err := o.later(ctx)
		if err != nil {
			log.WarnContext(ctx, "other hosts are not asked about their etcd", "error", err)
		}
		if q != nil {
			return errLater
		}
	}
}

// setAsideIfLater ends the programs of a control-plane host and its member of etcd, and moves the member's data aside,
// if another host recovered etcd since: this host missed that, and would run the cluster of before beside the new one.
// Pods run on. No supervisor of the host may run.
func setAsideIfLater(ctx context.Context, c *cluster.Cluster, log *slog.Logger) error {
	if recovery.Unfinished(c) {
		return errors.New("a recovery of etcd was cut off on this host: finish it with `windlass quorum recover --yes`")
	}
	o := newOthers(c)
	defer o.close()
	q, err := o.later(ctx)
	if err != nil || q == nil {
		return err
	}
	log.WarnContext(ctx, "etcd was recovered on another host: the data of this one is moved aside", "recovered",
		q.GetRecoveryTime().AsTime(), "bootstrap", q.GetBootstrapUrl())
	if err := stopPrograms(ctx, c, log, func(string) {}); err != nil {
		return err
	}
	now, err := cluster.OpenHost(c.Dir()) // a user may have changed settings since
	if err != nil {
		return err
	}
	c.Settings = now.Settings
	aside, err := recovery.SetAside(c, q)
	if err != nil {
		return fmt.Errorf("set the data of etcd aside: %w", err)
	}
	log.WarnContext(ctx, "data of etcd moved aside", "directory", aside)
	return nil
}
