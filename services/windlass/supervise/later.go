package supervise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

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

// others asks the other control-plane hosts about their etcd, all at once, for at most laterLimit. It returns the
// answer with the latest recovery, if that is later than the one that this host knows, and what is wrong otherwise: why
// hosts do not answer, and which ones have an earlier one. Hosts that do not answer count for nothing.
func others(ctx context.Context, c *cluster.Cluster, known time.Time) (later *etcdv1.Quorum, wrong []string) {
	ctx, cancel := context.WithTimeout(ctx, laterLimit)
	defer cancel()
	type answer struct {
		gateway string
		quorum  *etcdv1.Quorum
		err     error
	}
	gateways := c.Gateways()[1:] // the first one is this host's own
	answers := make(chan answer, len(gateways))
	for _, gateway := range gateways {
		go func() {
			q, err := quorumAt(ctx, c, gateway)
			answers <- answer{gateway, q, err}
		}()
	}
	for range gateways {
		a := <-answers
		switch {
		case a.err != nil:
			wrong = append(wrong, fmt.Sprintf("%s: %v", a.gateway, a.err))
		case recovery.IsLater(known, a.quorum):
			known, later = recoveredAt(a.quorum), a.quorum
		case recoveredAt(a.quorum).Before(known):
			wrong = append(wrong,
				a.gateway+": its host has the etcd of before the recovery on this one, and does not know this one")
		}
	}
	slices.Sort(wrong)
	return later, wrong
}

// recoveredAt returns when the etcd of an answer was recovered last; the zero time if it never was.
func recoveredAt(q *etcdv1.Quorum) time.Time {
	if q.GetRecoveryTime() == nil {
		return time.Time{}
	}
	return q.GetRecoveryTime().AsTime()
}

// quorumAt asks a gateway. The connection is made for the question: one that stays would trust the authorities of the
// time when it was made.
func quorumAt(ctx context.Context, c *cluster.Cluster, gateway string) (*etcdv1.Quorum, error) {
	files := c.AdminFiles()
	conn, err := client.Dial(client.Target{Server: gateway, CA: files.CA, Cert: files.Cert, Key: files.Key})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return etcdv1.NewQuorumServiceClient(conn).GetQuorum(ctx, &etcdv1.GetQuorumRequest{})
}

// awaitLater returns errLater once another host says that etcd was recovered since; nil when ctx ends.
func awaitLater(ctx context.Context, c *cluster.Cluster, log *slog.Logger) error {
	tick := time.NewTicker(laterEvery)
	defer tick.Stop()
	known, said := c.Member.Recovered, ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		later, wrong := others(ctx, c, known)
		if later != nil {
			return errLater
		}
		text := strings.Join(wrong, "; ")
		if text != said && text != "" && ctx.Err() == nil {
			log.InfoContext(ctx, "other control-plane hosts do not say which etcd they have, or have an earlier one", "error",
				text)
		}
		said = text
	}
}

// setAsideIfLater ends the programs of a control-plane host and its member of etcd, and moves the member's data aside,
// if another host recovered etcd since: this host missed that, and would run the cluster of before beside the new one.
// Pods run on. No supervisor of the host may run.
func setAsideIfLater(ctx context.Context, c *cluster.Cluster, log *slog.Logger) error {
	now, err := cluster.OpenHost(c.Dir()) // settings may have been changed since
	if err != nil {
		return err
	}
	c.Settings = now.Settings
	unfinished, known := recovery.Unfinished(c), c.Member.Recovered
	if made := recovery.MadeTime(c, known); unfinished && made.After(known) {
		known = made
	}
	q, _ := others(ctx, c, known)
	switch {
	case q == nil && unfinished:
		return errors.New(
			"a recovery of etcd was cut off on this host: finish it with `windlass quorum recover --yes`, or drop " +
				"it with --discard")
	case q == nil:
		return nil
	}
	log.WarnContext(ctx, "etcd was recovered on another host: the data of this one is moved aside", "recovered",
		q.GetRecoveryTime().AsTime(), "bootstrap", q.GetBootstrapUrl())
	if err := stopPrograms(ctx, c, log, func(string) {}); err != nil {
		return err
	}
	aside, err := recovery.SetAside(c, q)
	if err != nil {
		return fmt.Errorf("set the data of etcd aside: %w", err)
	}
	log.WarnContext(ctx, "data of etcd moved aside", "directory", aside)
	if unfinished { // an earlier recovery here, which was never in force
		return recovery.Discard(c)
	}
	return nil
}
