package clusteroperator

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/version"
)

// orchestrator keeps one ClusterOperator, and can be set to refuse requests.
type orchestrator struct {
	updatev1.UnimplementedClusterOperatorServiceServer

	mu     sync.Mutex
	away   bool
	have   *updatev1.ClusterOperator
	calls  int
	writes int
}

func (o *orchestrator) answer(f func() (*updatev1.ClusterOperator, error)) (*updatev1.ClusterOperator, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.calls++; o.away {
		return nil, status.Error(codes.Unavailable, "away")
	}
	return f()
}

func (o *orchestrator) GetClusterOperator(context.Context, *updatev1.GetClusterOperatorRequest) (
	*updatev1.ClusterOperator, error,
) {
	return o.answer(func() (*updatev1.ClusterOperator, error) {
		if o.have == nil {
			return nil, status.Error(codes.NotFound, "none")
		}
		return proto.CloneOf(o.have), nil
	})
}

func (o *orchestrator) CreateClusterOperator(_ context.Context, r *updatev1.CreateClusterOperatorRequest) (
	*updatev1.ClusterOperator, error,
) {
	return o.answer(func() (*updatev1.ClusterOperator, error) {
		o.have = r.GetClusterOperator()
		return proto.CloneOf(o.have), nil
	})
}

func (o *orchestrator) UpdateClusterOperatorStatus(_ context.Context, r *updatev1.UpdateClusterOperatorStatusRequest) (
	*updatev1.ClusterOperator, error,
) {
	return o.answer(func() (*updatev1.ClusterOperator, error) {
		o.writes++
		o.have = r.GetClusterOperator()
		return proto.CloneOf(o.have), nil
	})
}

func (o *orchestrator) set(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f()
}

// says returns a condition's status as it is stored, and how often something was written.
func (o *orchestrator) says(typ string) (is string, writes int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range o.have.GetStatus().GetConditions() {
		if c.GetType() == typ {
			is = c.GetStatus()
		}
	}
	return is, o.writes
}

func TestAReportFollowsTheStateAndCostsNothingWhileThatStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &orchestrator{away: true}
		pipe := bufconn.Listen(1 << 16)
		s := grpc.NewServer()
		updatev1.RegisterClusterOperatorServiceServer(s, o)
		go func() { _ = s.Serve(pipe) }()
		conn, err := grpc.NewClient("passthrough:///orchestrator", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return pipe.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		state := State{Available: true}
		var leads atomic.Bool
		leads.Store(true)
		var stopped atomic.Int64 // how long the service is suspended at the next read of its state
		become := func(s State) {
			mu.Lock()
			defer mu.Unlock()
			state = s
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- New("scheduler", conn, func(context.Context) State {
				time.Sleep(time.Duration(stopped.Swap(0)))
				mu.Lock()
				defer mu.Unlock()
				return state
			}, func() bool { return leads.Load() }, slog.New(slog.DiscardHandler)).Run(ctx)
		}()
		expect := func(what, available string, writes int) {
			t.Helper()
			time.Sleep(lookEvery)
			synctest.Wait()
			if is, n := o.says("Available"); is != available || n != writes {
				t.Errorf("%s: Available is %q after %d writes, want %q after %d", what, is, n, available, writes)
			}
		}
		expect("the orchestrator is away", "", 0)
		o.set(func() { o.away = false })
		expect("it is back", "True", 1)
		o.set(func() { o.calls = 0 })
		time.Sleep(sureEvery - 3*lookEvery)
		o.set(func() {
			if o.calls > 0 {
				t.Errorf("%d calls while nothing changed", o.calls)
			}
		})
		become(State{Degraded: true, Reason: "NotReady"})
		expect("the service is degraded", "False", 2)
		become(State{Available: true})
		expect("the service is available", "True", 3)
		o.set(func() { o.have = nil })
		time.Sleep(sureEvery)
		expect("the report was deleted", "True", 4)
		time.Sleep(sureEvery)
		expect("it is unchanged", "True", 4)
		o.set(func() { o.have.Status.Conditions[0].Status = "Unknown" })
		time.Sleep(sureEvery)
		expect("it was replaced by Unknown", "True", 5)
		stopped.Store(int64(standstill))
		time.Sleep(lookEvery)
		o.set(func() { o.have.Status.Conditions[0].Status = "Unknown" })
		time.Sleep(standstill)
		expect("it was suspended and has resumed", "True", 6)
		leads.Store(false)
		become(State{Degraded: true, Reason: "NotReady"})
		expect("another process leads", "True", 6)
		leads.Store(true)
		expect("this one leads", "False", 7)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		_ = conn.Close()
		s.Stop()
	})
}

func TestAStatusKeepsTheTimesOfWhatStays(t *testing.T) {
	then, now := time.Unix(1000, 0), time.Unix(2000, 500)
	first := statusOf(nil, State{Available: true}, then)
	condition := func(typ, is, reason string, at int64) *metav1.Condition {
		return &metav1.Condition{Type: typ, Status: is, Reason: &reason, LastTransitionTime: &timestamppb.Timestamp{
			Seconds: at,
		}}
	}
	want := &updatev1.ClusterOperatorStatus{
		Conditions: []*metav1.Condition{
			condition("Available", "True", "AsExpected", 1000), condition("Progressing", "False", "AsExpected", 1000),
			condition("Degraded", "False", "AsExpected", 1000), condition("Upgradeable", "True", "AsExpected", 1000),
		},
		Versions: []*updatev1.OperandVersion{
			{Name: Operand, Version: version.Number}, {Name: Program, Version: version.Number},
		},
	}
	if diff := cmp.Diff(want, first, protocmp.Transform()); diff != "" {
		t.Errorf("a first status (-want +got)\n%s", diff)
	}
	// What others say beside that stays: other conditions, and versions of other parts.
	first.Conditions = append(first.Conditions, condition("RecentBackup", "True", "Done", 500))
	first.Versions = append([]*updatev1.OperandVersion{{Name: "etcd", Version: "3.6"}}, first.Versions...)
	before := proto.CloneOf(first)
	second := statusOf(first, State{
		Available: true, Progressing: true, Reason: "Moving", Message: "to 2",
		Version: "2.0.0",
	},
		now)
	want = &updatev1.ClusterOperatorStatus{
		Conditions: []*metav1.Condition{
			condition("Available", "True", "AsExpected", 1000), condition("Progressing", "True", "Moving", 2000),
			condition("Degraded", "False", "AsExpected", 1000), condition("Upgradeable", "True", "AsExpected", 1000),
			condition("RecentBackup", "True", "Done", 500),
		},
		Versions: []*updatev1.OperandVersion{
			{Name: "etcd", Version: "3.6"}, {Name: Operand, Version: "2.0.0"}, {Name: Program, Version: version.Number},
		},
	}
	want.Conditions[1].Message = proto.String("to 2")
	if diff := cmp.Diff(want, second, protocmp.Transform()); diff != "" {
		t.Errorf("the next status (-want +got)\n%s", diff)
	}
	if !proto.Equal(first, before) {
		t.Error("the status that was given was changed")
	}
}

// The reason of a state is that of the conditions that it causes; a service that is not well objects to updates.
func TestAReasonBelongsToWhatItCauses(t *testing.T) {
	for name, tt := range map[string]struct {
		state State
		want  string
	}{
		"healthy": {
			State{Available: true, Reason: "Known", Message: "m"},
			"Available True Known m, Progressing False AsExpected, Degraded False AsExpected, Upgradeable True AsExpected",
		},
		"degraded": {
			State{Available: true, Degraded: true, Reason: "Lost", Message: "m"},
			"Available True AsExpected, Progressing False AsExpected, Degraded True Lost m, Upgradeable False Lost m",
		},
		"not available": {
			State{Degraded: true, Reason: "NotReady", Message: "m"},
			"Available False NotReady m, Progressing False AsExpected, Degraded True NotReady m, Upgradeable False NotReady m",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, c := range statusOf(nil, tt.state, time.Unix(1000, 0)).GetConditions() {
				got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", c.GetType(), c.GetStatus(), c.GetReason(),
					c.GetMessage())))
			}
			if diff := cmp.Diff(tt.want, strings.Join(got, ", ")); diff != "" {
				t.Errorf("conditions (-want +got)\n%s", diff)
			}
		})
	}
}

func TestAnObjectionIsUpgradeableFalse(t *testing.T) {
	s := State{Available: true, Objection: Objection{Reason: "PoolPaused", Message: "pool infra is paused"}}
	conditions := statusOf(nil, s, time.Unix(1000, 0)).GetConditions()
	if c := object.FindCondition(conditions, "Upgradeable"); c.GetStatus() != "False" ||
		c.GetReason() != "PoolPaused" || c.GetMessage() != "pool infra is paused" {
		t.Errorf("Upgradeable is %v", c)
	}
	if c := object.FindCondition(conditions, "Available"); c.GetStatus() != "True" || c.GetReason() != "AsExpected" {
		t.Errorf("Available is %v", c)
	}
	s.Objection = Objection{}
	conditions = statusOf(nil, s, time.Unix(1000, 0)).GetConditions()
	if c := object.FindCondition(conditions, "Upgradeable"); c.GetStatus() != "True" {
		t.Errorf("Upgradeable is %v", c)
	}
}
