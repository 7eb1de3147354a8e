package command_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
)

// serveWorkloads registers pods, and the kinds that make them.
func (w *world) serveWorkloads(t *testing.T, srv *grpc.Server) {
	t.Helper()
	pods := &pods{}
	pods.table = kindOf(t, srv, &schedulingv1.PodService_ServiceDesc, pods, resource.Config[*schedulingv1.Pod]{
		KeepStatus: true, Grace: grace,
	})
	w.sets = kindOf(t, srv, &schedulingv1.ReplicaSetService_ServiceDesc,
		schedulingv1.UnimplementedReplicaSetServiceServer{}, resource.Config[*schedulingv1.ReplicaSet]{})
	w.deployments = kindOf(t, srv, &schedulingv1.DeploymentService_ServiceDesc,
		schedulingv1.UnimplementedDeploymentServiceServer{}, resource.Config[*schedulingv1.Deployment]{})
	kind[*schedulingv1.Policy](t, srv, &schedulingv1.PolicyService_ServiceDesc, nil)
	kind[*schedulingv1.ConfigMap](t, srv, &schedulingv1.ConfigMapService_ServiceDesc, nil)
	kind[*schedulingv1.Secret](t, srv, &schedulingv1.SecretService_ServiceDesc, nil)
	kind[*schedulingv1.Service](t, srv, &schedulingv1.ServiceService_ServiceDesc, services{})
	kind[*schedulingv1.CronJob](t, srv, &schedulingv1.CronJobService_ServiceDesc,
		schedulingv1.UnimplementedCronJobServiceServer{})
	kind[*schedulingv1.Job](t, srv, &schedulingv1.JobService_ServiceDesc, schedulingv1.UnimplementedJobServiceServer{})
	kind[*schedulingv1.StatefulSet](t, srv, &schedulingv1.StatefulSetService_ServiceDesc,
		schedulingv1.UnimplementedStatefulSetServiceServer{})
	kind[*schedulingv1.DaemonSet](t, srv, &schedulingv1.DaemonSetService_ServiceDesc,
		schedulingv1.UnimplementedDaemonSetServiceServer{})
}

// services knows the endpoints of the service "web".
type services struct {
	schedulingv1.UnimplementedServiceServiceServer
}

func (services) PlanServiceEndpoints(_ context.Context, r *schedulingv1.PlanServiceEndpointsRequest) (
	*schedulingv1.ServiceEndpoints, error,
) {
	if r.GetNamespace() != "default" || cmp.Or(r.GetName(), r.GetService().GetMetadata().GetName()) != "web" {
		return nil, rpcerr.NotFound("Service", r.GetName())
	}
	out := &schedulingv1.ServiceEndpoints{
		Namespace: "default", Name: "web", ClusterIp: "127.224.0.7", Ports: []*schedulingv1.ServiceEndpointsPort{
			{Name: "http", Protocol: "TCP", Port: 80}, {Name: "metrics", Protocol: "TCP", Port: 81},
		},
		Endpoints: []*schedulingv1.ServiceEndpoint{
			{Pod: "web-1", Address: "127.240.0.1", Node: "one", Ports: []int32{8080, 0}, Serving: true},
			{Pod: "web-2", Address: "127.240.0.2", Node: "two", Ports: []int32{8080, 9090}, Why: "it is not ready"},
		},
	}
	if len(r.GetPods().GetItems()) > 0 { // those of a file
		out.Endpoints = out.GetEndpoints()[:len(r.GetPods().GetItems())]
	}
	return out, nil
}

// endpointRows are what the command line shows of services.
var endpointRows = []string{
	"  POD     ADDRESS       PORTS             NODE   SERVES\n",
	"  web-1   127.240.0.1   8080,no metrics   one    yes\n",
	"  web-2   127.240.0.2   8080,9090         two    no: it is not ready\n",
}

const webService = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  clusterIP: 127.224.0.7
  selector: {app: web}
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}
  ports: [{name: http, port: 80, targetPort: 8080}, {name: metrics, port: 81, targetPort: metrics}]
`

func TestDescribeShowsWhereTheConnectionsToAServiceAreLed(t *testing.T) {
	w := newWorld(t)
	if code, _, stderr := w.run(t, webService, "create", "-f", "-"); code != 0 {
		t.Fatal(stderr)
	}
	code, out, stderr := w.run(t, "", "describe", "service", "web")
	if code != 0 {
		t.Fatal(stderr)
	}
	wantLines(t, out, append([]string{
		"Selector:           app=web\n", "Type:               ClusterIP\n", "IP:                 127.224.0.7\n",
		"Ports:              http 80/TCP to 8080\n", "                    metrics 81/TCP to metrics\n",
		"Session Affinity:   ClientIP for 60 seconds after the last connection\n", "Endpoints:\n",
	}, endpointRows...)...)
	if code, out, stderr = w.run(t, "", "get", "svc", "web"); code != 0 {
		t.Fatal(stderr)
	}
	wantLines(t, out, "CLUSTER-IP", "127.224.0.7")
}

func TestPlanShowsWhereTheConnectionsToAServiceAreLed(t *testing.T) {
	w := newWorld(t)
	code, out, stderr := w.run(t, "", "plan", "service", "web")
	if code != 0 {
		t.Fatal(stderr)
	}
	wantLines(t, out, append([]string{"IP: 127.224.0.7\n"}, endpointRows...)...)
	const pod = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: web-1}\n"
	if code, out, stderr = w.run(t, webService+pod, "plan", "svc", "-f", "-"); code != 0 {
		t.Fatal(stderr)
	}
	if wantLines(t, out, endpointRows[1]); strings.Contains(out, "web-2") {
		t.Errorf("the pods are not those of the file:\n%s", out)
	}
}

// grace has the pod of a node stay for as long as is asked for.
func grace(p *schedulingv1.Pod, asked *int32) (int32, bool) {
	if asked == nil {
		asked = proto.Int32(30)
	}
	return *asked, p.GetSpec().GetNodeName() != "" && *asked > 0
}

// pods is a node's agent and a scheduler as the command line sees them: the container of a pod on the node "one" runs,
// and other nodes have no agent.
type pods struct {
	schedulingv1.UnimplementedPodServiceServer
	table *resource.Table[*schedulingv1.Pod]
}

func (p *pods) find(ctx context.Context, namespace, name, container string) (*schedulingv1.Pod, error) {
	pod, err := p.table.Get(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	known := slices.ContainsFunc(pod.GetSpec().GetContainers(), func(c *schedulingv1.Container) bool {
		return container == "" || c.GetName() == container
	})
	switch {
	case !known:
		return nil,
			rpcerr.Invalid(object.Fault{Path: "container", Description: fmt.Sprintf("pod %q has no container %q", name,
				container)})
	case pod.GetSpec().GetNodeName() != "one":
		return nil, rpcerr.Unavailable(fmt.Sprintf("no agent attends to node %q", pod.GetSpec().GetNodeName()))
	}
	return pod, nil
}

// GetPodLog sends a log of three lines in two parts.
func (p *pods) GetPodLog(r *schedulingv1.GetPodLogRequest, stream grpc.ServerStreamingServer[httpbody.HttpBody]) error {
	if _, err := p.find(stream.Context(), r.GetNamespace(), r.GetName(), r.GetContainer()); err != nil {
		return err
	}
	lines := []string{"first\n", "second\n", "third\n"}
	if r.TailLines != nil {
		lines = lines[max(0, len(lines)-int(r.GetTailLines())):]
	}
	if r.GetPrevious() {
		lines = []string{"before\n"}
	}
	for _, l := range lines {
		if err := stream.Send(&httpbody.HttpBody{Data: []byte(l)}); err != nil {
			return err
		}
	}
	return nil
}

// ExecPod knows three commands: cat, echo and false.
func (p *pods) ExecPod(stream grpc.BidiStreamingServer[schedulingv1.ExecPodRequest,
	schedulingv1.ExecPodResponse],
) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if _, err := p.find(stream.Context(), start.GetNamespace(), start.GetName(), start.GetContainer()); err != nil {
		return err
	}
	switch start.GetCommand()[0] {
	case "echo":
		return stream.Send(&schedulingv1.ExecPodResponse{
			Stdout:   []byte(strings.Join(start.GetCommand()[1:], " ") + "\n"),
			ExitCode: proto.Int32(0),
		})
	case "cat":
		return echo(stream)
	}
	return stream.Send(&schedulingv1.ExecPodResponse{Stderr: []byte("it went wrong\n"), ExitCode: proto.Int32(3)})
}

// echo sends standard input back until it is closed.
func echo(stream grpc.BidiStreamingServer[schedulingv1.ExecPodRequest, schedulingv1.ExecPodResponse]) error {
	for {
		r, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case r.GetStdinClosed():
			return stream.Send(&schedulingv1.ExecPodResponse{ExitCode: proto.Int32(0)})
		}
		if err := stream.Send(&schedulingv1.ExecPodResponse{Stdout: r.GetStdin()}); err != nil {
			return err
		}
	}
}

// ExplainPod explains a pod that is bound, and one that is not.
func (p *pods) ExplainPod(ctx context.Context, r *schedulingv1.ExplainPodRequest) (*schedulingv1.ExplainPodResponse,
	error,
) {
	pod := r.GetPod()
	if pod == nil {
		var err error
		if pod, err = p.table.Get(ctx, r.GetNamespace(), r.GetName()); err != nil {
			return nil, err
		}
	}
	out := &schedulingv1.ExplainPodResponse{SchedulerName: cmp.Or(pod.GetSpec().GetSchedulerName(),
		"default-scheduler"), BoundTo: pod.GetSpec().GetNodeName()}
	if out.GetBoundTo() != "" {
		return out, nil
	}
	if r.GetSummaryOnly() {
		lacks := &schedulingv1.ExplainPodResponse_Obstacle{
			Reason: "Insufficient cpu", NodeCount: 12, Examples: []string{"two"},
		}
		out.Best = "one"
		out.Extenders = []*schedulingv1.ExplainPodResponse_ExtenderVerdict{{Url: "https://x", Message: "it was not asked"}}
		out.Pending = &schedulingv1.ExplainPodResponse_Pending{
			SinceTime: timestamppb.Now(), LastTryTime: timestamppb.Now(), Tries: 3, WaitsFor: "a pod leaves a node",
			Obstacles: []*schedulingv1.ExplainPodResponse_Obstacle{lacks, {NodeCount: 4}},
			Changes: []*schedulingv1.ExplainPodResponse_Change{
				{Change: "tolerate the taint k=v:NoSchedule", NodeCount: 2, Examples: []string{"two", "three"}},
			},
		}
		return out, nil
	}
	out.Best, out.Nodes = "one", []*schedulingv1.ExplainPodResponse_NodeVerdict{
		{Node: "one", Fits: true, Total: 25, Scores: []*schedulingv1.ExplainPodResponse_Score{
			{Priority: "LeastRequestedPriority", Score: 5, Weight: 1}, {Priority: "Zone", Score: 10, Weight: 2},
		}},
		{Node: "two", Failures: []*schedulingv1.ExplainPodResponse_Failure{
			{
				Predicate: "GeneralPredicates", Part: "PodFitsResources", Reason: "Insufficient cpu",
				Unblock: "the node gets more cpu",
			},
			{
				Predicate: "Taints", Part: "PodToleratesNodeTaints", Reason: "node(s) had taint {k: v}",
				Unblock: "the taint k goes",
			},
		}},
	}
	out.Nodes = slices.DeleteFunc(out.Nodes, func(n *schedulingv1.ExplainPodResponse_NodeVerdict) bool {
		return slices.Contains(r.GetWithoutNodes(), n.GetNode())
	})
	for _, l := range r.GetNodeLabels() {
		out.Nodes = append(out.Nodes, &schedulingv1.ExplainPodResponse_NodeVerdict{
			Node: fmt.Sprint(l.GetNode(), l.GetLabels()), Failures: []*schedulingv1.ExplainPodResponse_Failure{{
				Part: "Policy", Reason: fmt.Sprint(len(r.GetPolicy().GetPredicates()), " predicates"),
			}},
		})
	}
	return out, nil
}

func TestTheHistoryOfADeploymentIsThatOfItsReplicaSets(t *testing.T) {
	w := newWorld(t)
	template := func(image string) *schedulingv1.PodTemplateSpec {
		return &schedulingv1.PodTemplateSpec{
			Metadata: &metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
			Spec:     &schedulingv1.PodSpec{Containers: []*schedulingv1.Container{{Name: "web", Image: image}}},
		}
	}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	d, err := w.deployments.Create(t.Context(), &schedulingv1.Deployment{
		Metadata: &metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec:     &schedulingv1.DeploymentSpec{Selector: selector, Template: template("example.com/web:2")},
	})
	check(t, err)
	set := func(name, image string, annotations map[string]string, owner string) {
		t.Helper()
		_, err := w.sets.Create(t.Context(), &schedulingv1.ReplicaSet{
			Metadata: &metav1.ObjectMeta{
				Name: name, Namespace: "default", Annotations: annotations,
				OwnerReferences: []*metav1.OwnerReference{{
					ApiVersion: "apps/v1", Kind: "Deployment", Name: "web", Uid: owner, Controller: proto.Bool(true),
				}},
			},
			Spec: &schedulingv1.ReplicaSetSpec{Selector: selector, Template: template(image)},
		})
		check(t, err)
	}
	const revision = "deployment.kubernetes.io/revision"
	uid := d.GetMetadata().GetUid()
	set("web-b", "example.com/web:2", map[string]string{revision: "10", "kubernetes.io/change-cause": "a better web"}, uid)
	set("web-a", "example.com/web:1", map[string]string{revision: "9"}, uid)
	set("web-c", "example.com/web:3", map[string]string{revision: "11"}, "of-one-that-is-gone")
	code, out, stderr := w.run(t, "", "rollout", "history", "deployment/web")
	if want := "deployment.apps/web\nREVISION   CHANGE-CAUSE\n9          <none>\n10         a better web\n"; code != 0 ||
		out != want {
		t.Errorf("%d\n%s%s\nwant\n%s", code, out, stderr, want)
	}
	code, out, stderr = w.run(t, "", "rollout", "history", "deployment/web", "--revision=9")
	if code != 0 {
		t.Fatal(stderr)
	}
	wantLines(t, out, "deployment.apps/web with revision #9\n", "image: example.com/web:1\n")
	if code, _, stderr := w.run(t, "", "rollout", "history", "deployment/web", "--revision=11"); code != 1 ||
		!strings.Contains(stderr, "unable to find the specified revision 11 of deployment.apps/web") {
		t.Errorf("%d %s", code, stderr)
	}
}

func TestAPodWithoutANodeIsDescribedWithTheReason(t *testing.T) {
	w := newWorld(t)
	if code, _, stderr := w.run(t, `{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image:
 "example.com/c:1"}]}}`, "apply", "-f", "-"); code != 0 {
		t.Fatal(stderr)
	}
	code, out, stderr := w.run(t, "", "describe", "pod", "p")
	if code != 0 {
		t.Fatal(stderr)
	}
	text := strings.Join(strings.Fields(out), " ")
	for _, want := range []string{
		"3 times in a row", "tried again after one of these: a pod leaves a node",
		"Fits Now: on one, unless an extender of the policy rejects it",
		"REASON NODES SUCH AS Insufficient cpu 12 two further reasons 4",
		"CHANGE NODES SUCH AS tolerate the taint k=v:NoSchedule 2 two, three",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}
