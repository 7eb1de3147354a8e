package faults

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// election is the longest that a service may be without a leader: a lease (5 s) runs out, and another is won by an etcd
// that answers late or not at all. That is at most 12 s on a quiet host, and several times that on a busy one.
const election = 2 * time.Minute

func TestFaultsASlowEtcd(t *testing.T) {
	c := shared.Cluster(t)
	c.Settle(patience)
	b := c.Between(harness.SlowAnswers)
	isSlow(t, c)
	replaceWhileAnswersFail(t, c, b, 0)
}

func TestFaultsAnswersOfEtcdAreLost(t *testing.T) {
	c := shared.Cluster(t)
	c.Settle(patience)
	b := c.Between(harness.LostAnswers)
	replaceWhileAnswersFail(t, c, b, 1)
	t.Logf("%d pieces of answers were lost", b.Lost())
}

// isSlow proves the proxy: who opens a connection to a member waits for its answer.
func isSlow(t *testing.T, c *harness.Cluster) {
	t.Helper()
	began := time.Now()
	if err := c.Handshake(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < harness.SlowBy {
		t.Errorf("a member greeted after %s", took)
	}
}

// replaceWhileAnswersFail replaces a control-plane machine and a worker while sets come and go. A replacement may be
// over before a connection is cut, so the sets go on until as many pieces of answers as given were lost.
func replaceWhileAnswersFail(t *testing.T, c *harness.Cluster, b *harness.Between, lost int64) {
	t.Helper()
	c.Settle(patience) // the proxy cut all connections: until the guardian has new ones, it knows no leader
	history := c.History()
	writers, prober, come := c.Write(), c.Probe(), comeAndGo(t, c)
	worker := c.MustMachines("worker")[0].GetMetadata().GetName()
	r := follow(t, c, victim(t, c, 0))
	c.DeleteMachine(r.old)
	c.DeleteMachine(worker)
	r.run(t, func(s step) { t.Logf("%s: %s", time.Now().Format("15:04:05.000"), s) })
	c.Wait(patience, worker+" to go", func(ctx context.Context) (bool, string, error) {
		m, err := c.Machine(ctx, worker)
		return isGone(err), m.GetStatus().GetPhase(), nil
	})
	c.Settle(patience)
	c.Wait(patience, "an answer to be lost", func(context.Context) (bool, string, error) {
		return b.Lost() >= lost, "",
			nil
	})
	come.check(t)
	prober.Check()
	writers.Check()
	history.Check(election)
	t.Logf("replaced in %s", r.took().Round(100*time.Millisecond))
}

// comers are sets that are created and deleted again, each under a name of its own, and each with one request to create
// it.
type comers struct {
	c    *harness.Cluster
	stop context.CancelFunc
	done sync.WaitGroup

	mu      sync.Mutex
	deleted []string // that were created and deleted, both acknowledged
	unknown []string // whose creation was not answered
	strange []string
}

func comeAndGo(t *testing.T, c *harness.Cluster) *comers {
	t.Helper()
	const at = 4 // at once
	ctx, cancel := context.WithCancel(context.Background())
	g := &comers{c: c, stop: cancel}
	sets := machinev1.NewMachineSetServiceClient(c.Conn())
	for i := range at {
		g.done.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				g.one(ctx, sets, fmt.Sprintf("comer-%d-%d-%d", time.Now().UnixNano(), i, n))
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		g.done.Wait()
	})
	return g
}

// one creates a set and deletes it. What it began it ends, also when it is to stop.
func (g *comers) one(ctx context.Context, sets machinev1.MachineSetServiceClient, name string) {
	patient, done := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer done()
	made, err := sets.CreateMachineSet(patient, &machinev1.CreateMachineSetRequest{MachineSet: &machinev1.MachineSet{
		Metadata: &metav1.ObjectMeta{Name: name, Namespace: harness.Namespace}, Spec: &machinev1.MachineSetSpec{
			Replicas: proto.Int32(0),
		},
	}})
	switch status.Code(err) {
	case codes.OK:
	case codes.AlreadyExists: // of a name that was asked for once
		g.note(&g.strange, fmt.Sprintf("%s was created twice: %v", name, err))
		fallthrough
	default:
		g.note(&g.unknown, name)
		return
	}
	for ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, 10*time.Second)
		_, err := sets.DeleteMachineSet(limited, &machinev1.DeleteMachineSetRequest{
			Namespace: harness.Namespace, Name: name, Preconditions: &metav1.Preconditions{Uid: made.GetMetadata().GetUid()},
		})
		cancel()
		switch status.Code(err) {
		case codes.OK, codes.NotFound:
			g.note(&g.deleted, name)
			return
		case codes.Aborted, codes.FailedPrecondition:
			g.note(&g.strange, fmt.Sprintf("%s is not the set that was created: %v", name, err))
			g.note(&g.unknown, name)
			return
		}
	}
	g.note(&g.unknown, name)
}

func (g *comers) note(list *[]string, text string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	*list = append(*list, text)
}

// check stops them. None whose deletion was acknowledged may be there; the history shows whether one came back in
// between.
func (g *comers) check(t *testing.T) {
	t.Helper()
	g.stop()
	g.done.Wait()
	for _, s := range g.strange {
		t.Error(s)
	}
	if len(g.deleted) == 0 {
		t.Error("no set came and went")
	}
	sets := machinev1.NewMachineSetServiceClient(g.c.Conn())
	g.c.Wait(patience, "the sets that were deleted to be gone", func(ctx context.Context) (bool, string, error) {
		list, err := sets.ListMachineSets(ctx, &machinev1.ListMachineSetsRequest{Namespace: harness.Namespace})
		there := map[string]bool{}
		for _, s := range list.GetItems() {
			there[s.GetMetadata().GetName()] = true
		}
		var left []string
		for _, name := range g.deleted {
			if there[name] {
				left = append(left, name)
			}
		}
		return err == nil && len(left) == 0, fmt.Sprint(left), err
	})
	for _, name := range g.unknown {
		g.c.Wait(patience, name+" to be deleted", func(ctx context.Context) (bool, string, error) {
			_, err := sets.DeleteMachineSet(ctx, &machinev1.DeleteMachineSetRequest{Namespace: harness.Namespace, Name: name})
			return err == nil || isGone(err), "", err
		})
	}
	t.Logf("%d sets came and went, of %d it was not said", len(g.deleted), len(g.unknown))
}
