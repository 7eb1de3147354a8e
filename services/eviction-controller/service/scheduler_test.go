package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	rbacv1 "github.com/windlass-dev/windlass/gen/windlass/rbac/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/kit/store"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"
)

// podOwner plays the scheduler as far as this service meets it: it keeps pods, budgets and roles, of which there are
// none, and answers evictions. Pods with the annotation "slow" stay on their way out until a test lets them go.
type podOwner struct {
	schedulingv1.UnimplementedPodServiceServer
	t       testing.TB
	pods    *resource.Table[*schedulingv1.Pod]
	budgets *resource.Table[*schedulingv1.PodDisruptionBudget]
	others  []func(*grpc.Server) error // the kinds of roles
	creds   credentials.TransportCredentials
	server  *grpc.Server

	mu      sync.Mutex
	deleted map[string]time.Time // when the deletion of a pod was written, by its name
	asked   map[string]int       // how often an eviction was asked for
	most    int                  // evictions that were asked for at once
	now     int
}

func newPodOwner(t testing.TB) *podOwner {
	st := etcdtest.Store(t)
	o := &podOwner{t: t, deleted: map[string]time.Time{}, asked: map[string]int{}}
	o.pods = resource.NewTable(st, protovalidate.GlobalValidator, resource.Config[*schedulingv1.Pod]{
		KeepStatus: true,
		Grace: func(p *schedulingv1.Pod, asked *int32) (int32, bool) {
			slow := p.GetMetadata().GetAnnotations()["slow"] != "" && (asked == nil || *asked > 0)
			return p.GetSpec().GetTerminationGracePeriodSeconds(), slow
		},
	})
	o.budgets = resource.NewTable(st, protovalidate.GlobalValidator, resource.Config[*schedulingv1.PodDisruptionBudget]{
		KeepStatus: true,
	})
	o.pods.Subscribe(o.note)
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { _ = o.pods.Run(ctx) })
	done.Go(func() { _ = o.budgets.Run(ctx) })
	t.Cleanup(func() { cancel(); done.Wait() })
	o.others = []func(*grpc.Server) error{
		empty[*rbacv1.ClusterRole](ctx, &done, st, &rbacv1.ClusterRoleService_ServiceDesc),
		empty[*rbacv1.Role](ctx, &done, st, &rbacv1.RoleService_ServiceDesc),
		empty[*rbacv1.ClusterRoleBinding](ctx, &done, st, &rbacv1.ClusterRoleBindingService_ServiceDesc),
		empty[*rbacv1.RoleBinding](ctx, &done, st, &rbacv1.RoleBindingService_ServiceDesc),
	}
	if err := errors.Join(o.pods.WaitSynced(t.Context()), o.budgets.WaitSynced(t.Context())); err != nil {
		t.Fatal(err)
	}
	return o
}

// empty returns what serves a kind of which there are no objects.
func empty[T object.Object](ctx context.Context, done *sync.WaitGroup, st *store.Store, desc *grpc.ServiceDesc,
) func(*grpc.Server) error {
	table := resource.NewTable(st, protovalidate.GlobalValidator, resource.Config[T]{})
	done.Go(func() { _ = table.Run(ctx) })
	return func(s *grpc.Server) error { return resource.Register(s, desc, nil, table) }
}

// serve begins to answer and returns the address.
func (o *podOwner) serve(creds credentials.TransportCredentials) string {
	o.t.Helper()
	o.creds = creds
	return o.listen("127.0.0.1:0")
}

func (o *podOwner) listen(address string) string {
	o.t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		o.t.Fatal(err)
	}
	s := grpc.NewServer(grpc.Creds(o.creds),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			resp, err := h(ctx, req)
			return resp, rpcerr.From(err)
		}))
	err = errors.Join(
		resource.Register(s, &schedulingv1.PodService_ServiceDesc, o, o.pods),
		resource.Register(s, &schedulingv1.PodDisruptionBudgetService_ServiceDesc, nil, o.budgets),
	)
	for _, register := range o.others {
		err = errors.Join(err, register(s))
	}
	if err != nil {
		o.t.Fatal(err)
	}
	go func() { _ = s.Serve(l) }()
	o.server = s
	o.t.Cleanup(s.Stop)
	return l.Addr().String()
}

// note keeps the time when a pod was first seen terminating or gone.
func (o *podOwner) note(ch resource.Change[*schedulingv1.Pod]) {
	if !ch.Deleted && !object.Deleting(ch.Object) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.deleted[ch.Key.Name].IsZero() {
		o.deleted[ch.Key.Name] = time.Now()
	}
}

// SettleBindings has nothing to wait for: only tests bind pods.
func (o *podOwner) SettleBindings(context.Context, *schedulingv1.SettleBindingsRequest) (
	*schedulingv1.SettleBindingsResponse, error,
) {
	return &schedulingv1.SettleBindingsResponse{}, nil
}

// EvictPod decides by the budgets of the pod's namespace, which all name their pods by the label "app".
func (o *podOwner) EvictPod(ctx context.Context, r *schedulingv1.EvictPodRequest) (*schedulingv1.EvictPodResponse,
	error,
) {
	o.mu.Lock()
	o.asked[r.GetName()]++
	o.now++
	o.most = max(o.most, o.now)
	o.mu.Unlock()
	defer func() { o.mu.Lock(); o.now--; o.mu.Unlock() }()
	pod, err := o.pods.Get(ctx, r.GetNamespace(), r.GetName())
	if err != nil {
		return nil, err
	}
	for _, b := range o.budgets.All() {
		if b.GetSpec().GetSelector().GetMatchLabels()["app"] != pod.GetMetadata().GetLabels()["app"] {
			continue
		}
		_, err := o.budgets.Modify(ctx, object.KeyOf(b), func(b *schedulingv1.PodDisruptionBudget) error {
			if b.GetStatus().GetDisruptionsAllowed() <= 0 {
				return rpcerr.TooMany(fmt.Sprintf("budget %s/%s allows no disruption", b.GetMetadata().GetNamespace(),
					b.GetMetadata().GetName()), time.Second)
			}
			b.Status.DisruptionsAllowed = proto.Int32(b.GetStatus().GetDisruptionsAllowed() - 1)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	_, err = o.pods.Delete(ctx, r.GetNamespace(), r.GetName(), r.GetPreconditions())
	return &schedulingv1.EvictPodResponse{}, err
}

// add makes a pod that a replica set manages.
func (o *podOwner) add(node, name string, change ...func(*schedulingv1.Pod)) *schedulingv1.Pod {
	o.t.Helper()
	p := &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{
			Name: name, Labels: map[string]string{}, Annotations: map[string]string{},
			OwnerReferences: []*metav1.OwnerReference{{
				ApiVersion: "apps/v1", Kind: "ReplicaSet", Name: "r", Uid: "r",
				Controller: proto.Bool(true),
			}},
		},
		Spec:   &schedulingv1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: proto.Int32(30)},
		Status: &schedulingv1.PodStatus{Phase: proto.String("Running")},
	}
	for _, f := range change {
		f(p)
	}
	out, err := o.pods.Create(o.t.Context(), p)
	if err != nil {
		o.t.Fatal(err)
	}
	return out
}

// goes ends a pod that is slow.
func (o *podOwner) goes(name string) {
	o.t.Helper()
	if _, err := o.pods.Delete(o.t.Context(), "default", name, nil, resource.WriteOptions{
		Grace: proto.Int32(0),
	}); err != nil {
		o.t.Fatal(err)
	}
}

// goesSlowly begins the end of a pod that is slow.
func (o *podOwner) goesSlowly(name string) {
	o.t.Helper()
	if _, err := o.pods.Delete(o.t.Context(), "default", name, nil); err != nil {
		o.t.Fatal(err)
	}
}

// allow sets how many pods of an app may be disrupted, by a budget of the same name.
func (o *podOwner) allow(app string, disruptions int32) {
	o.t.Helper()
	status := &schedulingv1.PodDisruptionBudgetStatus{
		DisruptionsAllowed: proto.Int32(disruptions),
		ObservedGeneration: proto.Int32(1),
	}
	key := object.Key{Namespace: "default", Name: app}
	_, err := o.budgets.Modify(o.t.Context(), key, func(b *schedulingv1.PodDisruptionBudget) error {
		b.Status = status
		return nil
	})
	if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		_, err = o.budgets.Create(o.t.Context(), &schedulingv1.PodDisruptionBudget{
			Metadata: &metav1.ObjectMeta{Name: app}, Status: status,
			Spec: &schedulingv1.PodDisruptionBudgetSpec{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
			},
		})
	}
	if err != nil {
		o.t.Fatal(err)
	}
}

// deletedAt returns when the deletion of a pod was written; zero if it was not.
func (o *podOwner) deletedAt(name string) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.deleted[name]
}

func (o *podOwner) awaitDeleted(name string) time.Time {
	o.t.Helper()
	servetest.Await(o.t, func() string {
		if o.deletedAt(name).IsZero() {
			return "the deletion of pod " + name
		}
		return ""
	})
	return o.deletedAt(name)
}

func app(name string) func(*schedulingv1.Pod) {
	return func(p *schedulingv1.Pod) { p.Metadata.Labels["app"] = name }
}

func slow(p *schedulingv1.Pod) { p.Metadata.Annotations["slow"] = "yes" }

func by(kind string) func(*schedulingv1.Pod) {
	return func(p *schedulingv1.Pod) { p.Metadata.OwnerReferences[0].Kind = kind }
}

// bearing adds a toleration of a NoExecute taint; below 0 seconds it has no limit.
func bearing(key string, seconds int32) func(*schedulingv1.Pod) {
	return func(p *schedulingv1.Pod) {
		t := &schedulingv1.Toleration{Key: key, Operator: "Exists", Effect: "NoExecute"}
		if seconds >= 0 {
			t.TolerationSeconds = proto.Int32(seconds)
		}
		p.Spec.Tolerations = append(p.Spec.Tolerations, t)
	}
}
