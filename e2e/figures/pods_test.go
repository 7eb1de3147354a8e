package figures

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/e2e/harness"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/critest"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

func TestPods(t *testing.T) {
	n := 5 * rounds(t)
	c := harness.Up(t)
	c.Settle(time.Minute)
	withoutWorkloads(t, c)
	pods := watchPods(t, c)
	bound := figure{what: "pod: Create called → its binding seen by a watcher", unit: "ms"}
	running := figure{what: "pod: Create called → Running (a process that comes with Windlass)", unit: "ms"}
	left := figure{what: "NoExecute taint: PatchNode called → the pod's deletion seen by a watcher", unit: "ms"}
	after := figure{what: "NoExecute taint set (PatchNode returned) → the pod's deletion seen by a watcher", unit: "ms"}
	for i := range n {
		name := fmt.Sprintf("figure-%d", i)
		start := time.Now()
		createPod(t, c, name)
		bound.addTime(pods.until(t, name, func(p *schedulingv1.Pod) bool { return p.GetSpec().GetNodeName() != "" }).Sub(
			start))
		running.addTime(pods.until(t, name, func(p *schedulingv1.Pod) bool {
			return p.GetStatus().GetPhase() == "Running"
		}).Sub(start))
		node := pods.last[name].GetSpec().GetNodeName()
		start = time.Now()
		patchTaints(t, c, node, `[{"key":"figure","effect":"NoExecute"}]`)
		set := time.Now()
		deleted := pods.until(t, name, func(p *schedulingv1.Pod) bool {
			return p.GetMetadata().GetDeletionTimestamp() != nil
		})
		left.addTime(deleted.Sub(start))
		after.addTime(max(0, deleted.Sub(set)))
		patchTaints(t, c, node, `null`)
		pods.until(t, name, func(p *schedulingv1.Pod) bool { return p == nil })
	}
	bound.print()
	running.print()
	left.print()
	after.print()
}

// TestPodsOfAContainerRuntime measures how soon a pod runs whose containers containerd has.
func TestPodsOfAContainerRuntime(t *testing.T) {
	n := 2 * rounds(t)
	engine := critest.Start(t)
	c := harness.Up(t, "--set", "provider-local.runtime=cri="+engine.Endpoint)
	c.Settle(time.Minute)
	withoutWorkloads(t, c)
	pods := watchPods(t, c)
	running := figure{what: "pod: Create called → Running (`hello-pod`, containerd 1.6)", unit: "ms"}
	gone := figure{what: "pod: Delete called → gone (`hello-pod`, containerd 1.6)", unit: "ms"}
	for i := range n {
		name := fmt.Sprintf("figure-%d", i)
		start := time.Now()
		createPod(t, c, name)
		took := pods.until(t, name, func(p *schedulingv1.Pod) bool { return p.GetStatus().GetPhase() == "Running" }).Sub(
			start)
		if id := pods.last[name].GetStatus().GetContainerStatuses()[0].GetContainerId(); !strings.HasPrefix(id,
			"containerd://") {
			t.Fatalf("%s runs as %q", name, id)
		}
		if i > 1 { // the first pods of the nodes have the image brought to the runtime
			running.addTime(took)
		}
		start = time.Now()
		c.MustCLI("delete", "pod", name)
		gone.addTime(pods.until(t, name, func(p *schedulingv1.Pod) bool { return p == nil }).Sub(start))
	}
	running.print()
	gone.print()
}

// TestService measures how soon a service leads to a pod that became ready, and no more to one that is deleted.
func TestService(t *testing.T) {
	n := 5 * rounds(t)
	c := harness.Up(t)
	c.Settle(time.Minute)
	withoutWorkloads(t, c)
	svc, err := schedulingv1.NewServiceServiceClient(c.Conn()).CreateService(t.Context(),
		&schedulingv1.CreateServiceRequest{
			Service: &schedulingv1.Service{
				Metadata: &metav1.ObjectMeta{Name: "figure", Namespace: "default"},
				Spec: &schedulingv1.ServiceSpec{
					Selector: map[string]string{"app": "figure"},
					Ports:    []*schedulingv1.ServicePort{{Port: 80, TargetPort: structpb.NewNumberValue(8080)}},
				},
			},
		})
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort(svc.GetSpec().GetClusterIp(), "80")
	pods := watchPods(t, c)
	leads := figure{
		what: "service: its pod's Ready condition seen by a watcher → a connection to the service is led to it", unit: "ms",
	}
	for i := range n {
		name := fmt.Sprintf("figure-%d", i)
		createPod(t, c, name)
		ready := pods.until(t, name, readyPod)
		for !answers(address) {
			if time.Since(ready) > time.Minute {
				t.Fatalf("%s does not lead to %s", address, name)
			}
			time.Sleep(time.Millisecond)
		}
		leads.addTime(max(0, time.Since(ready)))
		if _, err := schedulingv1.NewPodServiceClient(c.Conn()).DeletePod(t.Context(), &schedulingv1.DeletePodRequest{
			Namespace: "default", Name: name,
		}); err != nil {
			t.Fatal(err)
		}
		pods.until(t, name, func(p *schedulingv1.Pod) bool { return p == nil })
	}
	leads.print()
}

// answers reports whether an address answers a request over a connection of its own.
func answers(address string) bool {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get("http://" + address)
	if err != nil {
		return false
	}
	r.Body.Close()
	return r.StatusCode == http.StatusOK
}

func createPod(t *testing.T, c *harness.Cluster, name string) {
	t.Helper()
	_, err := schedulingv1.NewPodServiceClient(c.Conn()).CreatePod(t.Context(), &schedulingv1.CreatePodRequest{
		Pod: &schedulingv1.Pod{
			Metadata: &metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"app": "figure"}},
			Spec: &schedulingv1.PodSpec{
				TerminationGracePeriodSeconds: proto.Int32(2),
				Containers:                    []*schedulingv1.Container{{Name: "hello", Image: "docker.io/ocpqe/hello-pod"}},
			},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
}

func patchTaints(t *testing.T, c *harness.Cluster, node, taints string) {
	t.Helper()
	_, err := nodev1.NewNodeServiceClient(c.Conn()).PatchNode(t.Context(), &nodev1.PatchNodeRequest{
		Name: node, Patch: &httpbody.HttpBody{
			ContentType: "application/merge-patch+json", Data: []byte(`{"spec":{"taints":` + taints + `}}`),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// podWatch is a watch of pods with the times at which its events came.
type podWatch struct {
	events chan podEvent
	last   map[string]*schedulingv1.Pod
}

type podEvent struct {
	pod  *schedulingv1.Pod
	gone bool
	at   time.Time
}

func watchPods(t *testing.T, c *harness.Cluster) *podWatch {
	t.Helper()
	stream, err := schedulingv1.NewPodServiceClient(c.Conn()).WatchPods(t.Context(), &schedulingv1.WatchPodsRequest{
		Namespace: "default",
	})
	if err != nil {
		t.Fatal(err)
	}
	w := &podWatch{events: make(chan podEvent, 1024), last: map[string]*schedulingv1.Pod{}}
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				close(w.events)
				return
			}
			at := time.Now()
			for _, e := range m.GetEvents() {
				w.events <- podEvent{e.GetObject(), e.GetType() == "DELETED", at}
			}
		}
	}()
	return w
}

// until takes events until a pod is as wanted (nil once it is gone), and returns when the event came that showed it.
func (w *podWatch) until(t *testing.T, name string, met func(*schedulingv1.Pod) bool) time.Time {
	t.Helper()
	at := time.Now()
	for !met(w.last[name]) {
		select {
		case e, ok := <-w.events:
			if !ok {
				t.Fatal("the watch of pods broke off")
			}
			at = e.at
			if e.gone {
				delete(w.last, e.pod.GetMetadata().GetName())
			} else {
				w.last[e.pod.GetMetadata().GetName()] = e.pod
			}
		case <-time.After(time.Minute):
			t.Fatalf("pod %s is not as wanted after a minute: %v", name, w.last[name])
		}
	}
	return at
}
