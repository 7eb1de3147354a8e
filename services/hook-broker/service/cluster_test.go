package service

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/kit/store"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

const (
	namespace = "openshift-machine-api"
	backup    = "my-backup-controller"
)

// grants is what the tests need beyond the default policy: a second user who answers for the backup, and one who
// answers for the storage alone.
const grants = `
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: test-backup}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: hook-owner-my-backup-controller}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: backup-2}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: test-storage}
rules: [{apiGroups: [windlass.dev], resources: [hooks], verbs: [claim, complete], resourceNames: [my-storage-controller]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: test-storage}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: test-storage}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: my-storage-controller}]
`

// cluster is a hook-broker with a machine-api that keeps machines as the real one does.
type cluster struct {
	t          testing.TB
	ground     *servetest.Ground
	policy     string
	machines   *resource.Table[*machinev1.Machine]
	machineAPI string      // address
	closed     atomic.Bool // machine-api takes no hook off a machine
	refused    atomic.Int32
	dir        string // the broker's
	options    options
	address    string
	stop       func()
}

// start runs both over the embedded etcd, with real certificates and real interceptors.
func start(t testing.TB) *cluster {
	t.Helper()
	return startWith(t, options{})
}

// startWith is start with settings of the broker.
func startWith(t testing.TB, o options) *cluster {
	t.Helper()
	c := &cluster{
		t: t, options: o, ground: servetest.New(t), dir: t.TempDir(),
		policy: filepath.Join(t.TempDir(), "policy.yaml"),
	}
	if err := os.WriteFile(c.policy, append(identity.DefaultPolicy(), grants...), 0o600); err != nil {
		t.Fatal(err)
	}
	servetest.Clear(t, etcdtest.Client(t))
	c.startMachineAPI()
	c.startBroker()
	return c
}

func (c *cluster) startMachineAPI() {
	c.t.Helper()
	p := c.ground.Process(serve.Config{Name: machineAPI, Policy: c.policy})
	c.machines = resource.NewTable(store.New(etcdtest.Client(c.t), "/windlass/machine-api/"), p.Validator,
		resource.Config[*machinev1.Machine]{
			Finalizers: []string{"machine.machine.openshift.io"}, KeepStatus: true,
			Admit: func(w *resource.Write[*machinev1.Machine]) error { return c.admit(p.Policy, w) },
		})
	if err := resource.Register(p.Services, &machinev1.MachineService_ServiceDesc, nil, c.machines); err != nil {
		c.t.Fatal(err)
	}
	c.machineAPI = p.Address()
	servetest.Run(c.t, p, c.machines.Run)
	if err := c.machines.WaitSynced(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
}

// admit lets only those take a hook off who answer for it, as the real machine-api does.
func (c *cluster) admit(policy *identity.Policy, w *resource.Write[*machinev1.Machine]) error {
	if w.Own || w.Creates() || w.Deletes() {
		return nil
	}
	if c.closed.Load() {
		c.refused.Add(1)
		return rpcerr.Unavailable("closed")
	}
	stay := map[string]bool{}
	for _, h := range w.New.GetSpec().GetLifecycleHooks().GetPreTerminate() {
		stay[h.GetName()] = true
	}
	for _, h := range w.Old.GetSpec().GetLifecycleHooks().GetPreTerminate() {
		ok, why := policy.Allowed(w.By, identity.Attributes{
			Verb: "complete", Group: "windlass.dev", Resource: "hooks",
			Name: h.GetOwner(),
		})
		if !stay[h.GetName()] && !ok {
			return rpcerr.Forbidden(why)
		}
	}
	return nil
}

func (c *cluster) startBroker() {
	c.t.Helper()
	p := c.ground.Process(serve.Config{Name: "hook-broker", Dir: c.dir, Policy: c.policy, Peers: map[string]string{
		machineAPI: c.machineAPI,
	}})
	parts, err := build(p, etcdtest.Client(c.t), "hook-broker", c.options)
	if err != nil {
		c.t.Fatal(err)
	}
	c.address = p.Address()
	c.stop = servetest.Run(c.t, p, parts...)
}

// as returns a connection to the broker as a user.
func (c *cluster) as(r identity.Request) *grpc.ClientConn {
	c.t.Helper()
	return c.ground.Dial(c.address, r)
}

func (c *cluster) admin() *grpc.ClientConn { return c.as(servetest.Admin()) }

func (c *cluster) tasks(user string) hookv1.HookTaskServiceClient {
	return hookv1.NewHookTaskServiceClient(c.as(servetest.User(user)))
}

// deleteMachine makes a machine that has been drained for its deletion, and waits for the one hook that holds it.
func (c *cluster) deleteMachine(name string, hooks ...*machinev1.LifecycleHook) {
	c.t.Helper()
	if _, err := c.machines.Create(c.t.Context(), &machinev1.Machine{
		Metadata: &metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:     &machinev1.MachineSpec{LifecycleHooks: &machinev1.LifecycleHooks{PreTerminate: hooks}},
		Status: &machinev1.MachineStatus{
			Conditions: []*metav1.Condition{{Type: "Drained", Status: "True", LastTransitionTime: timestamppb.Now()}},
		},
	}); err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.machines.Delete(c.t.Context(), namespace, name, nil); err != nil {
		c.t.Fatal(err)
	}
}

// theTask waits for the task of the one hook of a machine.
func (c *cluster) theTask(machine string, want func(*hookv1.HookTask) bool) *hookv1.HookTask {
	c.t.Helper()
	client := hookv1.NewHookTaskServiceClient(c.admin())
	var found *hookv1.HookTask
	servetest.Await(c.t, func() string {
		list, err := client.ListHookTasks(c.t.Context(), &hookv1.ListHookTasksRequest{})
		if err != nil {
			return err.Error()
		}
		for _, task := range list.GetItems() {
			if task.GetSpec().GetMachineRef().GetName() == machine && want(task) {
				found = task
				return ""
			}
		}
		return "no such task among " + list.String()
	})
	return found
}

func anyTask(*hookv1.HookTask) bool { return true }

// stream opens a stream of an owner's tasks once the broker leads, and returns what it sends first.
func (c *cluster) stream(ctx context.Context, client hookv1.HookTaskServiceClient) (
	grpc.ServerStreamingClient[hookv1.StreamHookTasksResponse], *hookv1.HookTask,
) {
	c.t.Helper()
	var stream grpc.ServerStreamingClient[hookv1.StreamHookTasksResponse]
	var first *hookv1.StreamHookTasksResponse
	servetest.Await(c.t, func() string {
		s, err := client.StreamHookTasks(ctx, &hookv1.StreamHookTasksRequest{Owners: []string{backup}})
		if err != nil {
			return err.Error()
		}
		if first, err = s.Recv(); err != nil {
			return err.Error()
		}
		stream = s
		return ""
	})
	return stream, first.GetTask()
}

// next returns what a stream sends until want holds for it.
func next(t *testing.T, s grpc.ServerStreamingClient[hookv1.StreamHookTasksResponse],
	want func(*hookv1.StreamHookTasksResponse) bool,
) *hookv1.StreamHookTasksResponse {
	t.Helper()
	for {
		m, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if want(m) {
			return m
		}
	}
}
