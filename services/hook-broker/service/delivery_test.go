package service

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/servetest"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	deliveryOwners = 100
	deliveryTasks  = 10_000
	deliveryEvery  = 10 * time.Millisecond // between the deletions that are measured
)

func deliveryOwner(i int) string { return fmt.Sprintf("owner-%03d", i%deliveryOwners) }

// BenchmarkDelivery measures how long it takes from the deletion of a machine until the owner of its hook has the task
// from its stream, with 10,000 tasks that wait and 100 owners that are connected. Each iteration is one deletion.
func BenchmarkDelivery(b *testing.B) {
	c := start(b)
	client := hookv1.NewHookTaskServiceClient(c.admin())
	var mu sync.Mutex
	received := map[string]chan time.Time{}
	arrival := func(machine string) chan time.Time {
		mu.Lock()
		defer mu.Unlock()
		if received[machine] == nil {
			received[machine] = make(chan time.Time, 1)
		}
		return received[machine]
	}
	for i := range deliveryOwners {
		var stream interface {
			Recv() (*hookv1.StreamHookTasksResponse, error)
		}
		servetest.Await(b, func() string {
			s, err := client.StreamHookTasks(b.Context(), &hookv1.StreamHookTasksRequest{Owners: []string{deliveryOwner(i)}})
			if err == nil {
				_, err = s.Recv()
			}
			if err != nil {
				return err.Error()
			}
			stream = s
			return ""
		})
		go func() {
			for {
				r, err := stream.Recv()
				if err != nil {
					return
				}
				select {
				case arrival(r.GetTask().GetSpec().GetMachineRef().GetName()) <- time.Now():
				default: // a later change of the task
				}
			}
		}()
	}
	var standing errgroup.Group
	standing.SetLimit(64)
	for i := range deliveryTasks {
		standing.Go(func() error { return c.delete(b, fmt.Sprintf("standing-%05d", i), deliveryOwner(i), nil) })
	}
	if err := standing.Wait(); err != nil {
		b.Fatal(err)
	}
	for i := range deliveryTasks {
		<-arrival(fmt.Sprintf("standing-%05d", i))
	}
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		name := fmt.Sprintf("measured-%05d", i)
		var marked time.Time
		if err := c.delete(b, name, deliveryOwner(i), &marked); err != nil {
			b.Fatal(err)
		}
		took = append(took, (<-arrival(name)).Sub(marked))
		time.Sleep(deliveryEvery)
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
	b.ReportMetric(0, "ns/op")
}

// delete makes a machine with a hook of an owner and deletes it; marked is when the deletion was asked for.
func (c *cluster) delete(b *testing.B, name, owner string, marked *time.Time) error {
	_, err := c.machines.Create(b.Context(), &machinev1.Machine{
		Metadata: &metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: &machinev1.MachineSpec{LifecycleHooks: &machinev1.LifecycleHooks{
			PreTerminate: []*machinev1.LifecycleHook{{Name: "Measured", Owner: owner}},
		}},
		Status: &machinev1.MachineStatus{
			Conditions: []*metav1.Condition{{Type: "Drained", Status: "True", LastTransitionTime: timestamppb.Now()}},
		},
	})
	if err != nil {
		return err
	}
	if marked != nil {
		*marked = time.Now()
	}
	_, err = c.machines.Delete(b.Context(), namespace, name, nil)
	return err
}
