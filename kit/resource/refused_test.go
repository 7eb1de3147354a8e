package resource_test

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	clientv3 "go.etcd.io/etcd/client/v3"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/store"
)

// levels counts what is logged.
type levels struct {
	slog.Handler
	warnings, details *atomic.Int64
}

func (levels) Enabled(context.Context, slog.Level) bool { return true }

func (l levels) Handle(_ context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		l.warnings.Add(1)
	} else {
		l.details.Add(1)
	}
	return nil
}

// TestAKindThatEtcdRefusesIsLoggedOnceAndServedLater starts a table without the right to read its records, and gives it
// that.
func TestAKindThatEtcdRefusesIsLoggedOnceAndServedLater(t *testing.T) {
	const prefix = "/refused/"
	end := clientv3.GetPrefixRangeEnd(prefix)
	root, user := etcdtest.Users(t, etcdtest.StartMembers(t, 1), prefix)
	if _, err := root.RoleRevokePermission(t.Context(), "user", prefix, end); err != nil {
		t.Fatal(err)
	}
	log := levels{slog.DiscardHandler, new(atomic.Int64), new(atomic.Int64)}
	table := resource.NewTable(store.New(user, prefix), protovalidate.GlobalValidator,
		resource.Config[*machinev1.MachineSet]{Log: slog.New(log)})
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	go func() { done <- table.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	limit := time.After(2 * time.Minute)
	for log.details.Load() < 4 {
		select {
		case <-limit:
			t.Fatal("it is not tried again")
		case <-time.After(10 * time.Millisecond):
		}
	}
	if n := log.warnings.Load(); n != 1 {
		t.Errorf("%d warnings", n)
	}
	if _, err := root.RoleGrantPermission(t.Context(), "user", prefix, end,
		clientv3.PermissionType(clientv3.PermReadWrite)); err != nil {
		t.Fatal(err)
	}
	ready, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	if err := table.WaitSynced(ready); err != nil {
		t.Errorf("the kind is not served: %v", err)
	}
}
