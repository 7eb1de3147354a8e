package discovery

import (
	"context"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/windlass-dev/windlass/kit/topology"
)

// removedPrefix is the prefix of the hosts that were removed. It is below what provider-inventory announces, which
// alone can write there.
var removedPrefix = topology.EndpointsOf(topology.ProviderInventory) + "removed/"

// Forget has no process on a host expected any more, after it was removed. Those that run there are still found. It is
// called by provider-inventory.
func Forget(ctx context.Context, c *clientv3.Client, host string) error {
	// Longer than a process is remembered.
	lease, err := limited(ctx, func(ctx context.Context) (*clientv3.LeaseGrantResponse, error) {
		return c.Grant(ctx, int64((forgetAfter+24*time.Hour)/time.Second))
	})
	if err != nil {
		return err
	}
	_, err = limited(ctx, func(ctx context.Context) (*clientv3.PutResponse, error) {
		return c.Put(ctx, removedPrefix+host, "{}", clientv3.WithLease(lease.ID))
	})
	return err
}

// Expect takes Forget back, for a host of the same name.
func Expect(ctx context.Context, c *clientv3.Client, host string) error {
	_, err := limited(ctx, func(ctx context.Context) (*clientv3.DeleteResponse, error) {
		return c.Delete(ctx, removedPrefix+host)
	})
	return err
}

// removed returns the host that a key says was removed.
func removed(key string) (host string, ok bool) { return strings.CutPrefix(key, removedPrefix) }
