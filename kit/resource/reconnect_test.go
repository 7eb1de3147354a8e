package resource_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/store"
)

// BenchmarkReconnect is 5,000 watches that begin at once, as those of agents whose service was started again, each of
// 20 among 100,000 objects, until each has its objects. It reports the processor time of the whole process and by how
// much its heap grew.
func BenchmarkReconnect(b *testing.B) {
	const watches, objects, batch = 5000, 100_000, 100
	st := etcdtest.Store(b)
	table := resource.NewTable(st, protovalidate.GlobalValidator, resource.Config[*machinev1.MachineSet]{
		Indexes: map[string]func(*machinev1.MachineSet) []string{
			"spec.deletePolicy": func(s *machinev1.MachineSet) []string { return []string{s.GetSpec().GetDeletePolicy()} },
		},
	})
	for n := 0; n < objects; n += batch {
		var ops []store.Op
		for i := n; i < n+batch; i++ {
			record, err := proto.Marshal(&machinev1.MachineSet{
				Metadata: &metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprintf("set-%06d", i), Uid: fmt.Sprintf("%032d", i)},
				Spec:     &machinev1.MachineSetSpec{DeletePolicy: fmt.Sprintf("node-%04d", i%watches)},
			})
			if err != nil {
				b.Fatal(err)
			}
			ops = append(ops, store.Put(fmt.Sprintf("machinesets/%s/set-%06d", ns, i), record, 0))
		}
		if _, err := st.Commit(b.Context(), ops...); err != nil {
			b.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- table.Run(ctx) }()
	defer func() {
		cancel()
		<-done
	}()
	if err := table.WaitSynced(ctx); err != nil {
		b.Fatal(err)
	}
	enough := errors.New("enough")
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	runtime.GC()
	before, cpu := heap(), processorTime(b)
	var most uint64
	for b.Loop() {
		var group errgroup.Group
		for i := range watches {
			sel, err := resource.ParseSelection("", fmt.Sprintf("spec.deletePolicy=node-%04d", i))
			if err != nil {
				b.Fatal(err)
			}
			group.Go(func() error {
				got := 0
				err := table.Watching(ctx, "", sel, 0, true, func(e resource.Events[*machinev1.MachineSet]) error {
					if got += len(e.Events); e.Bookmark {
						return enough
					}
					return nil
				})
				if !errors.Is(err, enough) || got != objects/watches {
					return fmt.Errorf("%d objects: %w", got, err)
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			b.Fatal(err)
		}
		most = max(most, heap())
	}
	b.ReportMetric((processorTime(b)-cpu).Seconds()/float64(b.N), "cpu-s/op")
	b.ReportMetric(float64(most-min(most, before))/(1<<20), "MiB-grown")
}

func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
