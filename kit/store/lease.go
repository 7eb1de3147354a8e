package store

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// renewalsAtOnce is how many members are asked at a time to renew a lease.
const renewalsAtOnce = 3

// RenewLease renews a lease once, and returns until when it is valid then. Each request is a stream of its own. While
// there is no answer, the next member is asked too after each askNext: one that is cut off from the others hangs, and
// etcd's client takes its members in turn, so a process that asks as often as there are members would come to that one
// with every renewal. The first renewal that succeeds counts, also a late one. The error is rpctypes.ErrLeaseNotFound,
// that of the last request if all failed, or that of ctx.
func RenewLease(ctx context.Context, client *clientv3.Client, lease clientv3.LeaseID, askNext time.Duration) (
	until time.Time, err error,
) {
	var group sync.WaitGroup
	defer group.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		until time.Time
		err   error
	}
	answers := make(chan answer, renewalsAtOnce)
	ask := func() {
		asked := time.Now()
		resp, err := client.KeepAliveOnce(ctx, lease)
		if err != nil {
			answers <- answer{err: err}
			return
		}
		answers <- answer{until: asked.Add(time.Duration(resp.TTL) * time.Second)}
	}
	group.Go(ask)
	again := time.NewTicker(askNext)
	defer again.Stop()
	for asked, failed := 1, 0; ; {
		select {
		case a := <-answers:
			failed++
			if a.err == nil || errors.Is(a.err, rpctypes.ErrLeaseNotFound) || failed == asked {
				return a.until, a.err
			}
		case <-again.C:
			if asked < renewalsAtOnce {
				asked++
				group.Go(ask)
			}
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		}
	}
}
