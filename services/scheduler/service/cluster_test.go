package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/store"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

// grants is what the tests need beyond the default policy: a service that makes and binds pods in batches.
const grants = `
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: test-batches}
rules: [{apiGroups: [""], resources: [pods, pods/binding], verbs: [create, get, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: test-batches}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: test-batches}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: "system:windlass:batches"}]
`

// cluster is a scheduler with an owner of nodes that keeps them as the real one does.
type cluster struct {
	t         testing.TB
	authority *identity.Authority
	policy    string
	nodes     *resource.Table[*nodev1.Node]
	nodeOwner string // address
	dir       string // the scheduler's
	address   string
	stop      func()
}

// start runs both over the embedded etcd, with real certificates and real interceptors.
func start(t testing.TB) *cluster {
	t.Helper()
	authority, err := identity.NewAuthority("windlass", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, authority: authority, dir: t.TempDir(), policy: filepath.Join(t.TempDir(), "policy.yaml")}
	if err := os.WriteFile(c.policy, append(identity.DefaultPolicy(), grants...), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := etcdtest.Client(t).Delete(t.Context(), "/windlass/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	c.startNodeOwner()
	c.startScheduler()
	return c
}

func (c *cluster) startNodeOwner() {
	c.t.Helper()
	p := c.process(nodeOwner, c.t.TempDir())
	c.nodes = resource.NewTable(store.New(etcdtest.Client(c.t), "/windlass/"+nodeOwner+"/"), p.Validator, resource.Config[*nodev1.Node]{KeepStatus: true})
	if err := resource.Register(p.GRPC, &nodev1.NodeService_ServiceDesc, nil, c.nodes); err != nil {
		c.t.Fatal(err)
	}
	c.nodeOwner = p.Address()
	c.run(p, c.nodes.Run)
	if err := c.nodes.WaitSynced(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) startScheduler() {
	c.t.Helper()
	p := c.process("scheduler", c.dir)
	parts, err := build(p, etcdtest.Client(c.t), "scheduler")
	if err != nil {
		c.t.Fatal(err)
	}
	c.address = p.Address()
	c.stop = c.run(p, parts...)
}

func (c *cluster) process(name, dir string) *serve.Process {
	c.t.Helper()
	files := c.files(identity.Request{CommonName: name, URI: identity.ServiceURI(name), IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true, Client: true})
	p, err := serve.New(serve.Config{
		Name: name, Listen: "127.0.0.1:0", Dir: dir, TLSDir: filepath.Dir(files.Cert), Policy: c.policy, Peers: map[string]string{nodeOwner: c.nodeOwner},
	}, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		c.t.Fatal(err)
	}
	return p
}

func (c *cluster) run(p *serve.Process, parts ...func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, parts...) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			c.t.Errorf("Run: %v", err)
		}
	})
	c.t.Cleanup(stop)
	return stop
}

func (c *cluster) files(r identity.Request) identity.Files {
	c.t.Helper()
	dir := c.t.TempDir()
	cert, key, err := c.authority.Issue(r)
	if err != nil {
		c.t.Fatal(err)
	}
	f := identity.Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), CA: filepath.Join(dir, "ca.crt")}
	for path, data := range map[string][]byte{f.Cert: cert, f.Key: key, f.CA: c.authority.PEM()} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
	return f
}

func (c *cluster) dial(r identity.Request) *grpc.ClientConn {
	c.t.Helper()
	settings, err := c.files(r).ClientTLS("127.0.0.1")
	if err != nil {
		c.t.Fatal(err)
	}
	conn, err := grpc.NewClient(c.address, grpc.WithTransportCredentials(credentials.NewTLS(settings)),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (c *cluster) as(user string, groups ...string) *grpc.ClientConn {
	c.t.Helper()
	return c.dial(identity.Request{CommonName: user, URI: identity.UserURI(user), Organizations: groups, Client: true})
}

func (c *cluster) admin() *grpc.ClientConn { return c.as("alice", identity.GroupMasters) }

func (c *cluster) pods() schedulingv1.PodServiceClient {
	return schedulingv1.NewPodServiceClient(c.admin())
}

func (c *cluster) agent(node string) schedulingv1.PodAgentServiceClient {
	return schedulingv1.NewPodAgentServiceClient(c.dial(identity.Request{CommonName: node, URI: identity.NodeURI(node), Client: true}))
}

// batches returns the client of a service that makes pods in batches.
func (c *cluster) batches() schedulingv1.PodServiceClient {
	return schedulingv1.NewPodServiceClient(c.dial(identity.Request{CommonName: "batches", URI: identity.ServiceURI("batches"), Client: true}))
}

func amounts(cpu, memory, pods string) map[string]*structpb.Value {
	return map[string]*structpb.Value{
		"cpu": structpb.NewStringValue(cpu), "memory": structpb.NewStringValue(memory), "pods": structpb.NewStringValue(pods),
	}
}

// addNode makes a node that is ready.
func (c *cluster) addNode(name, cpu string) {
	c.t.Helper()
	if _, err := c.nodes.Create(c.t.Context(), &nodev1.Node{
		Metadata: &metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name}},
		Status: &nodev1.NodeStatus{
			Capacity: amounts(cpu, "32Gi", "110"), Allocatable: amounts(cpu, "32Gi", "110"),
			Conditions: []*nodev1.NodeCondition{{Type: "Ready", Status: "True"}},
		},
	}); err != nil {
		c.t.Fatal(err)
	}
}

func newPod(name, cpu string) *schedulingv1.Pod {
	return &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": "test"}},
		Spec: &schedulingv1.PodSpec{Containers: []*schedulingv1.Container{{
			Name: "main", Image: "pause",
			Resources: &schedulingv1.ResourceRequirements{Requests: map[string]*structpb.Value{
				"cpu": structpb.NewStringValue(cpu), "memory": structpb.NewStringValue("500Mi"),
			}},
		}}},
	}
}

func (c *cluster) create(client schedulingv1.PodServiceClient, pod *schedulingv1.Pod) *schedulingv1.Pod {
	c.t.Helper()
	out, err := client.CreatePod(c.t.Context(), &schedulingv1.CreatePodRequest{Pod: pod})
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// awaitPod waits for a pod of the default namespace as it is wanted.
func (c *cluster) awaitPod(client schedulingv1.PodServiceClient, name string, want func(*schedulingv1.Pod) bool) *schedulingv1.Pod {
	c.t.Helper()
	var pod *schedulingv1.Pod
	await(c.t, func() string {
		var err error
		if pod, err = client.GetPod(c.t.Context(), &schedulingv1.GetPodRequest{Namespace: "default", Name: name}); err != nil {
			return err.Error()
		}
		if !want(pod) {
			return "pod is " + pod.String()
		}
		return ""
	})
	return pod
}

func bound(pod *schedulingv1.Pod) bool { return pod.GetSpec().GetNodeName() != "" }

// awaitEvent waits for an event about a pod and returns its message.
func (c *cluster) awaitEvent(name, reason string) string {
	c.t.Helper()
	client := eventv1.NewEventServiceClient(c.admin())
	var message string
	await(c.t, func() string {
		list, err := client.ListEvents(c.t.Context(), &eventv1.ListEventsRequest{})
		if err != nil {
			return err.Error()
		}
		for _, e := range list.GetItems() {
			if e.GetReason() == reason && e.GetInvolvedObject().GetName() == name {
				message = e.GetMessage()
				return ""
			}
		}
		return fmt.Sprintf("no event %s of %s", reason, name)
	})
	return message
}

// report reports a pod as its agent would once it runs.
func report(t testing.TB, agent schedulingv1.PodAgentServiceClient, pod *schedulingv1.Pod, phase, ready string) error {
	t.Helper()
	m := pod.GetMetadata()
	_, err := agent.ReportPod(t.Context(), &schedulingv1.ReportPodRequest{
		NodeName: pod.GetSpec().GetNodeName(), Namespace: m.GetNamespace(), Name: m.GetName(), Uid: m.GetUid(),
		Status: &schedulingv1.PodStatus{Phase: proto.String(phase), Conditions: []*schedulingv1.PodCondition{{Type: "Ready", Status: ready}}},
	})
	return err
}

// await looks until f returns "" or the test has waited for too long.
func await(t testing.TB, f func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		missing := f()
		if missing == "" {
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatal(errors.New("waited in vain: " + missing))
		}
	}
}
