package service

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/loopback"
	"github.com/windlass-dev/windlass/kit/nodeid"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/kit/store"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/services/scheduler/admission/files"
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
	etcd      *clientv3.Client
	ground    *servetest.Ground
	policy    string
	nodes     *resource.Table[*nodev1.Node]
	nodeOwner string // address
	dir       string // the scheduler's
	tls       string // directory of its certificates and record keys
	address   string
	webhooks  []string // addresses that webhooks and extenders may have, from the next startScheduler on
	files     string   // the directory of files that admission plugins name, likewise
	stop      func()
}

// start runs both over the embedded etcd, with real certificates and real interceptors.
func start(t testing.TB) *cluster {
	t.Helper()
	return startOver(t, etcdtest.Client(t))
}

// startOver is start with an etcd of the caller.
func startOver(t testing.TB, etcd *clientv3.Client) *cluster {
	t.Helper()
	c := &cluster{
		t: t, etcd: etcd, ground: servetest.New(t), dir: t.TempDir(),
		policy: filepath.Join(t.TempDir(), "policy.yaml"),
	}
	if err := os.WriteFile(c.policy, append(identity.DefaultPolicy(), grants...), 0o600); err != nil {
		t.Fatal(err)
	}
	servetest.Clear(t, etcd)
	c.startNodeOwner()
	c.startScheduler()
	return c
}

func (c *cluster) startNodeOwner() {
	c.t.Helper()
	p := c.ground.Process(serve.Config{Name: nodeOwner, Policy: c.policy})
	c.nodes = resource.NewTable(store.New(c.etcd, "/windlass/"+nodeOwner+"/"), p.Validator,
		resource.Config[*nodev1.Node]{KeepStatus: true})
	if err := resource.Register(p.Services, &nodev1.NodeService_ServiceDesc, nil, c.nodes); err != nil {
		c.t.Fatal(err)
	}
	c.nodeOwner = p.Address()
	servetest.Run(c.t, p, c.nodes.Run)
	if err := c.nodes.WaitSynced(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) startScheduler() {
	c.t.Helper()
	if c.tls == "" {
		c.tls = filepath.Dir(c.ground.Files(servetest.Service("scheduler")).Cert)
		c.rotateRecordKeys()
	}
	p := c.ground.Process(serve.Config{
		Name: "scheduler", Dir: c.dir, TLSDir: c.tls, Policy: c.policy, Peers: map[string]string{nodeOwner: c.nodeOwner},
	})
	parts, err := build(p, c.etcd, "scheduler", options{
		webhooks: c.webhooks, files: files.Directory{Path: c.files}, services: loopback.ServiceRange(1),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.address = p.Address()
	c.stop = servetest.Run(c.t, p, parts...)
}

// as returns a connection to the scheduler in a user's name.
func (c *cluster) as(r identity.Request) *grpc.ClientConn {
	c.t.Helper()
	return c.ground.Dial(c.address, r, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
}

func (c *cluster) admin() *grpc.ClientConn { return c.as(servetest.Admin()) }

func (c *cluster) pods() schedulingv1.PodServiceClient {
	return schedulingv1.NewPodServiceClient(c.admin())
}

func (c *cluster) agent(node string) schedulingv1.PodAgentServiceClient {
	return schedulingv1.NewPodAgentServiceClient(c.as(servetest.Node(node)))
}

// batches returns the client of a service that makes pods in batches.
func (c *cluster) batches() schedulingv1.PodServiceClient {
	return schedulingv1.NewPodServiceClient(c.as(servetest.Service("batches")))
}

func amounts(cpu, memory, pods string) map[string]*structpb.Value {
	return map[string]*structpb.Value{
		"cpu": structpb.NewStringValue(cpu), "memory": structpb.NewStringValue(memory), "pods": structpb.NewStringValue(pods),
	}
}

// addNode makes a node that is ready.
func (c *cluster) addNode(name, cpu string) {
	c.t.Helper()
	if _, err := c.nodes.Create(c.t.Context(), newNode(name, cpu)); err != nil {
		c.t.Fatal(err)
	}
}

func newNode(name, cpu string) *nodev1.Node {
	return &nodev1.Node{
		Metadata: &metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"kubernetes.io/hostname": name}, Annotations: map[string]string{
				nodeid.MachineUID: servetest.NodeUID(name),
			},
		},
		Status: &nodev1.NodeStatus{
			Capacity: amounts(cpu, "32Gi", "110"), Allocatable: amounts(cpu, "32Gi", "110"),
			Conditions: []*nodev1.NodeCondition{{Type: "Ready", Status: "True"}},
		},
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
func (c *cluster) awaitPod(client schedulingv1.PodServiceClient, name string,
	want func(*schedulingv1.Pod) bool,
) *schedulingv1.Pod {
	c.t.Helper()
	var pod *schedulingv1.Pod
	servetest.Await(c.t, func() string {
		var err error
		if pod, err = client.GetPod(c.t.Context(), &schedulingv1.GetPodRequest{
			Namespace: "default",
			Name:      name,
		}); err != nil {
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
	return c.event(name, reason).GetMessage()
}

// event waits for an event about a pod.
func (c *cluster) event(name, reason string) (found *eventv1.Event) {
	c.t.Helper()
	client := eventv1.NewEventServiceClient(c.admin())
	servetest.Await(c.t, func() string {
		list, err := client.ListEvents(c.t.Context(), &eventv1.ListEventsRequest{})
		if err != nil {
			return err.Error()
		}
		for _, e := range list.GetItems() {
			if e.GetReason() == reason && e.GetInvolvedObject().GetName() == name {
				found = e
				return ""
			}
		}
		return fmt.Sprintf("no event %s of %s", reason, name)
	})
	return found
}

// report reports a pod as its agent would once it runs.
func report(t testing.TB, agent schedulingv1.PodAgentServiceClient, pod *schedulingv1.Pod, phase, ready string) error {
	t.Helper()
	m := pod.GetMetadata()
	_, err := agent.ReportPod(t.Context(), &schedulingv1.ReportPodRequest{
		NodeName: pod.GetSpec().GetNodeName(), Namespace: m.GetNamespace(), Name: m.GetName(), Uid: m.GetUid(),
		Status: &schedulingv1.PodStatus{Phase: proto.String(phase), Conditions: []*schedulingv1.PodCondition{
			{Type: "Ready", Status: ready},
		}},
	})
	return err
}
