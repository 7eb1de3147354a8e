package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/servetest"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/services/scheduler/kinds"
	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
)

func TestACreatedPodIsBound(t *testing.T) {
	c := start(t)
	c.addNode("node-1", "4")
	pods := c.pods()
	made := c.create(pods, newPod("web", "100m"))
	if made.GetStatus().GetPhase() != "Pending" || made.GetStatus().GetQosClass() != "Burstable" ||
		made.GetSpec().GetSchedulerName() != "default-scheduler" ||
		made.GetSpec().GetTerminationGracePeriodSeconds() != 30 || len(made.GetSpec().GetTolerations()) != 3 {
		t.Errorf("created %v, want the defaults", made)
	}
	pod := c.awaitPod(pods, "web", bound)
	if pod.GetSpec().GetNodeName() != "node-1" || placement.PodCondition(pod, plan.PodScheduled).GetStatus() != "True" {
		t.Errorf("bound to %q with %v", pod.GetSpec().GetNodeName(), pod.GetStatus())
	}
	if m := c.awaitEvent("web", "Scheduled"); m != "Successfully assigned default/web to node-1" {
		t.Errorf("event says %q", m)
	}
	if _, err := pods.BindPod(t.Context(), &schedulingv1.BindPodRequest{Name: "web", NodeName: "node-1"}); rpcerr.Reason(
		err) != metav1.ErrorReason_ERROR_REASON_CONFLICT {
		t.Errorf("second binding = %v, want CONFLICT", err)
	}
}

// TestAPodIsStoredOnce creates pods by each call until one is stored once: a busy host may be too late for some.
func TestAPodIsStoredOnce(t *testing.T) {
	c := start(t)
	c.addNode("node-1", "64")
	pods, batches, n := c.pods(), c.batches(), 0
	for what, create := range map[string]func(*schedulingv1.Pod){
		"one": func(pod *schedulingv1.Pod) { c.create(pods, pod) },
		"many": func(pod *schedulingv1.Pod) {
			if _, err := batches.BatchCreatePods(t.Context(), &schedulingv1.BatchCreatePodsRequest{
				Pods: []*schedulingv1.Pod{pod},
			}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		var name string
		servetest.Await(t, func() string {
			n++
			name = fmt.Sprint("p-", n)
			create(newPod(name, "1m"))
			c.awaitPod(pods, name, bound)
			got, err := etcdtest.Client(t).Get(t.Context(), "/windlass/scheduler/pods/default/"+name)
			if err != nil || got.Kvs[0].Version != 1 {
				return fmt.Sprintf("%s: %v, %v", what, got, err)
			}
			return ""
		})
		if m := c.awaitEvent(name, "Scheduled"); m != "Successfully assigned default/"+name+" to node-1" {
			t.Errorf("%s: event says %q", what, m)
		}
	}
}

func TestTheEventOfABindingNamesWhoBoundThePod(t *testing.T) {
	c := start(t)
	c.addNode("node-1", "4")
	pods := c.pods()
	pod := newPod("custom", "100m")
	pod.Spec.SchedulerName = "custom-scheduler"
	c.create(pods, pod)
	servetest.Await(t, func() string { // until the scheduler knows the node
		_, err := pods.BindPod(t.Context(), &schedulingv1.BindPodRequest{Name: "custom", NodeName: "node-1"})
		if err != nil {
			return err.Error()
		}
		return ""
	})
	if e := c.event("custom", "Scheduled"); e.GetSource().GetComponent() == "scheduler" ||
		e.GetSource().GetComponent() == "" || e.GetMessage() != "Successfully assigned custom to node-1" {
		t.Errorf("the event is %v, want one by the caller", e)
	}
}

func TestAPodThatFitsNowhereIsToldWhyAndBoundWhenANodeComes(t *testing.T) {
	c := start(t)
	c.addNode("small", "500m")
	pods := c.pods()
	c.create(pods, newPod("big", "2"))
	if m := c.awaitEvent("big", "FailedScheduling"); !strings.HasPrefix(m, "0/1 nodes are available: 1 Insufficient cpu") {
		t.Errorf("event says %q", m)
	}
	pod := c.awaitPod(pods, "big", func(p *schedulingv1.Pod) bool {
		return placement.PodCondition(p, plan.PodScheduled) != nil
	})
	if cond := placement.PodCondition(pod, plan.PodScheduled); cond.GetStatus() != "False" ||
		cond.GetReason() != "Unschedulable" {
		t.Errorf("condition %v", cond)
	}
	c.addNode("large", "4")
	if pod := c.awaitPod(pods, "big", bound); pod.GetSpec().GetNodeName() != "large" {
		t.Errorf("bound to %q", pod.GetSpec().GetNodeName())
	}
}

func TestAPodStaysUntilItsAgentSaysThatItIsGone(t *testing.T) {
	c := start(t)
	c.addNode("node-1", "4")
	pods, agent := c.pods(), c.agent("node-1")
	c.create(pods, newPod("web", "100m"))
	pod := c.awaitPod(pods, "web", bound)
	if err := report(t, agent, pod, "Running", "True"); err != nil {
		t.Fatal(err)
	}
	pod = c.awaitPod(pods, "web", placement.IsReady)
	if placement.PodCondition(pod, plan.PodScheduled).GetStatus() != "True" ||
		pod.GetStatus().GetQosClass() != "Burstable" {
		t.Errorf("status %v: the agent's report took away what others wrote", pod.GetStatus())
	}
	gone := &schedulingv1.ConfirmPodGoneRequest{
		NodeName: "node-1", Namespace: "default", Name: "web",
		Uid: pod.GetMetadata().GetUid(),
	}
	if _, err := agent.ConfirmPodGone(t.Context(), gone); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("ConfirmPodGone of a pod that was not deleted = %v", err)
	}
	out, err := pods.DeletePod(t.Context(), &schedulingv1.DeletePodRequest{Namespace: "default", Name: "web"})
	if err != nil || out.GetMetadata().GetDeletionGracePeriodSeconds() != 30 {
		t.Fatalf("DeletePod = %v, %v", out, err)
	}
	c.awaitPod(pods, "web", func(p *schedulingv1.Pod) bool { return p.GetMetadata().GetDeletionTimestamp() != nil })
	for range 2 { // the second time it is gone already
		if _, err := agent.ConfirmPodGone(t.Context(), gone); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := pods.GetPod(t.Context(), &schedulingv1.GetPodRequest{Namespace: "default", Name: "web"}); status.Code(
		err) != codes.NotFound {
		t.Errorf("GetPod = %v, want NOT_FOUND", err)
	}
}

func TestAnAgentSpeaksForItsOwnNodeAlone(t *testing.T) {
	c := start(t)
	c.addNode("node-1", "4")
	pods, other := c.pods(), c.agent("node-2")
	c.create(pods, newPod("web", "100m"))
	pod := c.awaitPod(pods, "web", bound)
	c.addNode("node-2", "4") // now that the pod is bound
	ctx := t.Context()
	calls := map[string]func() error{
		"ReportPod": func() error { return report(t, other, pod, "Failed", "False") },
		"ReportPod in its own name": func() error {
			_, err := other.ReportPod(ctx, &schedulingv1.ReportPodRequest{
				NodeName: "node-2", Namespace: "default", Name: "web", Uid: pod.GetMetadata().GetUid(),
				Status: &schedulingv1.PodStatus{},
			})
			return err
		},
		"ConfirmPodGone": func() error {
			_, err := other.ConfirmPodGone(ctx, &schedulingv1.ConfirmPodGoneRequest{
				NodeName: "node-1", Namespace: "default",
				Name: "web", Uid: "x",
			})
			return err
		},
		"WatchOwnPods": func() error {
			s, err := other.WatchOwnPods(ctx, &schedulingv1.WatchOwnPodsRequest{NodeName: "node-1"})
			if err == nil {
				_, err = s.Recv()
			}
			return err
		},
		"Attend": func() error {
			s, err := other.Attend(ctx, &schedulingv1.AttendRequest{NodeName: "node-1"})
			if err == nil {
				_, err = s.Recv()
			}
			return err
		},
		"GetPod": func() error {
			_, err := schedulingv1.NewPodServiceClient(c.as(servetest.User("bob"))).GetPod(ctx, &schedulingv1.GetPodRequest{
				Namespace: "default", Name: "web",
			})
			return err
		},
	}
	for name, call := range calls {
		if err := call(); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s = %v, want PERMISSION_DENIED", name, err)
		}
	}
}

func TestAStatusIsWrittenByTheAgentAlone(t *testing.T) {
	c := start(t)
	c.addNode("node-1", "4")
	pods := c.pods()
	c.create(pods, newPod("web", "100m"))
	pod := c.awaitPod(pods, "web", bound)
	pod.Status.Phase, pod.Metadata.ResourceVersion = proto.String("Succeeded"), ""
	if _, err := pods.UpdatePodStatus(t.Context(), &schedulingv1.UpdatePodStatusRequest{
		Namespace: "default", Name: "web",
		Pod: pod,
	}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("UpdatePodStatus = %v, want PERMISSION_DENIED", err)
	}
	patch := &httpbody.HttpBody{
		ContentType: "application/merge-patch+json",
		Data:        []byte(`{"status":{"phase":"Succeeded"}}`),
	}
	if _, err := pods.PatchPod(t.Context(), &schedulingv1.PatchPodRequest{
		Namespace: "default", Name: "web",
		Subresource: "status", Patch: patch,
	}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("PatchPod of the status = %v, want PERMISSION_DENIED", err)
	}
	// What a write of the whole pod says of its status does not count.
	pod.Metadata.Labels = map[string]string{"app": "other"}
	out, err := pods.UpdatePod(t.Context(), &schedulingv1.UpdatePodRequest{Namespace: "default", Name: "web", Pod: pod})
	if err != nil || out.GetStatus().GetPhase() != "Pending" {
		t.Errorf("UpdatePod = %v, %v", out.GetStatus(), err)
	}
}

func TestAnAgentSeesThePodsOfItsNode(t *testing.T) {
	c := start(t)
	c.addNode("node-1", "4")
	pods, agent := c.pods(), c.agent("node-1")
	c.create(pods, newPod("first", "100m"))
	c.awaitPod(pods, "first", bound)
	stream, err := agent.WatchOwnPods(t.Context(), &schedulingv1.WatchOwnPodsRequest{NodeName: "node-1"})
	if err != nil {
		t.Fatal(err)
	}
	want := func(event, name string) {
		t.Helper()
		for {
			m, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range m.GetEvents() {
				if e.GetType() == event && e.GetObject().GetMetadata().GetName() == name {
					return
				}
			}
		}
	}
	want("ADDED", "first")
	c.create(pods, newPod("second", "100m"))
	want("ADDED", "second")
	if _, err := pods.DeletePod(t.Context(), &schedulingv1.DeletePodRequest{
		Namespace: "default", Name: "first",
		GracePeriodSeconds: proto.Int32(0),
	}); err != nil {
		t.Fatal(err)
	}
	want("DELETED", "first")
}

func TestPodsOfANodeThatIsGoneGo(t *testing.T) {
	c := start(t)
	c.addNode("node-1", "4")
	pods := c.pods()
	c.create(pods, newPod("web", "100m"))
	c.awaitPod(pods, "web", bound)
	if _, err := c.nodes.Delete(t.Context(), "", "node-1", nil); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, pods, "default", "web")
}

func awaitGone(t *testing.T, pods schedulingv1.PodServiceClient, namespace, name string) {
	t.Helper()
	servetest.Await(t, func() string {
		_, err := pods.GetPod(t.Context(), &schedulingv1.GetPodRequest{Namespace: namespace, Name: name})
		if status.Code(err) != codes.NotFound {
			return fmt.Sprintf("GetPod = %v", err)
		}
		return ""
	})
}

// TestManyEvictionsAtOnceKeepTheBudget evicts ten pods at once under a budget that lets three go.
func TestManyEvictionsAtOnceKeepTheBudget(t *testing.T) {
	c := start(t)
	c.addNode("node-1", "8")
	pods, agent := c.pods(), c.agent("node-1")
	budgets := schedulingv1.NewPodDisruptionBudgetServiceClient(c.admin())
	const all, stay = 10, 7
	for i := range all {
		name := fmt.Sprintf("web-%d", i)
		c.create(pods, newPod(name, "100m"))
		if err := report(t, agent, c.awaitPod(pods, name, bound), "Running", "True"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := budgets.CreatePodDisruptionBudget(t.Context(), &schedulingv1.CreatePodDisruptionBudgetRequest{
		PodDisruptionBudget: &schedulingv1.PodDisruptionBudget{
			Metadata: &metav1.ObjectMeta{Namespace: "default", Name: "web"},
			Spec: &schedulingv1.PodDisruptionBudgetSpec{
				MinAvailable: structpb.NewNumberValue(stay), Selector: &metav1.LabelSelector{
					MatchLabels: map[string]string{"app": "test"},
				},
			},
		},
	}); err != nil {
		t.Fatal(err)
	}
	servetest.Await(t, func() string {
		b, err := budgets.GetPodDisruptionBudget(t.Context(), &schedulingv1.GetPodDisruptionBudgetRequest{
			Namespace: "default", Name: "web",
		})
		if err != nil || b.GetStatus().GetDisruptionsAllowed() != all-stay {
			return fmt.Sprintf("budget is %v, %v", b, err)
		}
		return ""
	})
	var evicted atomic.Int32
	var group sync.WaitGroup
	for i := range all {
		group.Go(func() {
			_, err := pods.EvictPod(t.Context(), &schedulingv1.EvictPodRequest{
				Namespace: "default",
				Name:      fmt.Sprintf("web-%d", i),
			})
			switch {
			case err == nil:
				evicted.Add(1)
			case rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_TOO_MANY ||
				!strings.Contains(err.Error(), "The disruption budget web"):
				t.Errorf("EvictPod = %v", err)
			}
		})
	}
	group.Wait()
	if n := evicted.Load(); n != all-stay {
		t.Errorf("%d pods were evicted, want %d", n, all-stay)
	}
	_, err := pods.EvictPod(t.Context(), &schedulingv1.EvictPodRequest{Namespace: "default", Name: "none"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("EvictPod of no pod = %v", err)
	}
}

// TestALeaderThatIsStoppedAndStartedBindsNothingTwice stops the scheduler again and again while pods arrive, and
// follows every pod.
func TestALeaderThatIsStoppedAndStartedBindsNothingTwice(t *testing.T) {
	c := start(t)
	for i := range 5 {
		c.addNode(fmt.Sprintf("node-%d", i), "16")
	}
	const rounds, each = 4, 60
	was := map[string]string{}
	for round := range rounds {
		if round > 0 {
			c.stop()
			c.startScheduler()
		}
		batch := &schedulingv1.BatchCreatePodsRequest{}
		for i := range each {
			batch.Pods = append(batch.Pods, newPod(fmt.Sprintf("p-%d-%d", round, i), "10m"))
		}
		out, err := c.batches().BatchCreatePods(t.Context(), batch)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range out.GetResults() {
			if r.GetCode() != 0 {
				t.Fatal(r)
			}
		}
		list, err := c.pods().ListPods(t.Context(), &schedulingv1.ListPodsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		moved(t, was, list.GetItems())
	}
	pods := c.pods()
	servetest.Await(t, func() string {
		list, err := pods.ListPods(t.Context(), &schedulingv1.ListPodsRequest{})
		if err != nil {
			return err.Error()
		}
		moved(t, was, list.GetItems())
		if len(was) != rounds*each {
			return fmt.Sprintf("%d pods are bound", len(was))
		}
		return ""
	})
}

// moved notes where pods are and complains of those that were elsewhere before.
func moved(t *testing.T, was map[string]string, pods []*schedulingv1.Pod) {
	t.Helper()
	for _, p := range pods {
		uid, node := p.GetMetadata().GetUid(), p.GetSpec().GetNodeName()
		if before := was[uid]; before != "" && before != node {
			t.Errorf("pod %s went from %s to %q", p.GetMetadata().GetName(), before, node)
		}
		if node != "" {
			was[uid] = node
		}
	}
}

// attend answers the requests of a node as an agent would: logs with three lines, commands by giving back what they are
// given.
func attend(t *testing.T, agent schedulingv1.PodAgentServiceClient, node string) {
	t.Helper()
	stream, err := agent.Attend(t.Context(), &schedulingv1.AttendRequest{NodeName: node})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); err != nil || m.GetId() != "" {
		t.Fatalf("the stream begins with %v, %v", m, err)
	}
	go func() {
		for {
			request, err := stream.Recv()
			if err != nil {
				return
			}
			go deliver(t.Context(), agent, node, request)
		}
	}()
}

func deliver(ctx context.Context, agent schedulingv1.PodAgentServiceClient, node string,
	request *schedulingv1.AttendResponse,
) {
	stream, err := agent.Deliver(ctx)
	if err != nil {
		return
	}
	say := func(m *schedulingv1.DeliverRequest) { _ = stream.Send(m) }
	say(&schedulingv1.DeliverRequest{NodeName: node, Id: request.GetId()})
	if request.GetLog() != nil {
		for i := range 3 {
			say(&schedulingv1.DeliverRequest{Stdout: fmt.Appendf(nil, "%s line %d\n", request.GetLog().GetContainer(), i)})
		}
		_ = stream.CloseSend()
		return
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return
		}
		say(&schedulingv1.DeliverRequest{Stdout: m.GetStdin()})
		if m.GetStdinClosed() {
			say(&schedulingv1.DeliverRequest{Stderr: []byte("bye"), ExitCode: proto.Int32(3)})
			_ = stream.CloseSend()
			return
		}
	}
}

func TestLogsAndCommandsReachTheAgentAndComeBack(t *testing.T) {
	c := start(t)
	c.addNode("node-1", "4")
	pods, agent := c.pods(), c.agent("node-1")
	c.create(pods, newPod("web", "100m"))
	c.awaitPod(pods, "web", bound)

	log := func() (string, error) {
		stream, err := pods.GetPodLog(t.Context(), &schedulingv1.GetPodLogRequest{Namespace: "default", Name: "web"})
		if err != nil {
			return "", err
		}
		var out strings.Builder
		for {
			m, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return out.String(), nil
			}
			if err != nil {
				return out.String(), err
			}
			out.Write(m.GetData())
		}
	}
	if _, err := log(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "is not connected") {
		t.Errorf("log without an agent = %v", err)
	}
	attend(t, agent, "node-1")
	if text, err := log(); err != nil || text != "main line 0\nmain line 1\nmain line 2\n" {
		t.Errorf("log = %q, %v", text, err)
	}

	exec, err := pods.ExecPod(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []*schedulingv1.ExecPodRequest{
		{Start: &schedulingv1.ExecPodStart{Namespace: "default", Name: "web", Command: []string{"cat"}, Stdin: true}},
		{Stdin: []byte("hello ")},
		{Stdin: []byte("world"), StdinClosed: true},
	} {
		if err := exec.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	var stdout, stderr strings.Builder
	code := int32(-1)
	for {
		m, err := exec.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		stdout.Write(m.GetStdout())
		stderr.Write(m.GetStderr())
		if m.ExitCode != nil {
			code = m.GetExitCode()
		}
	}
	if stdout.String() != "hello world" || stderr.String() != "bye" || code != 3 {
		t.Errorf("exec = %q, %q, %d", stdout.String(), stderr.String(), code)
	}

	stranger, err := schedulingv1.NewPodServiceClient(c.as(servetest.User("bob"))).ExecPod(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = stranger.Send(&schedulingv1.ExecPodRequest{Start: &schedulingv1.ExecPodStart{
		Namespace: "default", Name: "web",
		Command: []string{"id"},
	}})
	if _, err := stranger.Recv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("exec by a stranger = %v", err)
	}
}

func TestWhatBelongsToADeploymentGoesWithIt(t *testing.T) {
	c := start(t)
	c.addNode("node-1", "8")
	pods := c.pods()
	deployments := schedulingv1.NewDeploymentServiceClient(c.admin())
	template := newPod("", "100m")
	deploy := func(name string) {
		if _, err := deployments.CreateDeployment(t.Context(), &schedulingv1.CreateDeploymentRequest{
			Deployment: &schedulingv1.Deployment{
				Metadata: &metav1.ObjectMeta{Namespace: "default", Name: name},
				Spec: &schedulingv1.DeploymentSpec{
					Replicas: proto.Int32(3), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
					Template: &schedulingv1.PodTemplateSpec{
						Metadata: &metav1.ObjectMeta{Labels: map[string]string{"app": name}},
						Spec:     template.GetSpec(),
					},
				},
			},
		}); err != nil {
			t.Fatal(err)
		}
	}
	count := func(name string, want int) {
		t.Helper()
		servetest.Await(t, func() string {
			list, err := pods.ListPods(t.Context(), &schedulingv1.ListPodsRequest{LabelSelector: "app=" + name})
			if err != nil || len(list.GetItems()) != want {
				return fmt.Sprintf("%d pods of %s, %v", len(list.GetItems()), name, err)
			}
			for _, p := range list.GetItems() {
				if !bound(p) {
					return "a pod is not bound"
				}
			}
			return ""
		})
	}
	deploy("goes")
	deploy("orphans")
	count("goes", 3)
	count("orphans", 3)
	if _, err := c.nodes.Delete(t.Context(), "", "node-1", nil); err != nil {
		t.Fatal(err)
	}
	c.addNode("node-1", "8") // so that the pods of before, which no agent ends, are gone
	count("goes", 3)
	if d, err := deployments.DeleteDeployment(t.Context(), &schedulingv1.DeleteDeploymentRequest{
		Namespace: "default", Name: "goes", PropagationPolicy: "Orphan", DryRun: "All",
	}); err != nil || len(d.GetMetadata().GetFinalizers()) > 0 {
		t.Errorf("a rehearsed deletion left %v, %v", d, err)
	}
	for name, policy := range map[string]string{"goes": "", "orphans": "Orphan"} {
		if _, err := deployments.DeleteDeployment(t.Context(), &schedulingv1.DeleteDeploymentRequest{
			Namespace: "default",
			Name:      name, PropagationPolicy: policy,
		}); err != nil {
			t.Fatal(err)
		}
	}
	sets := schedulingv1.NewReplicaSetServiceClient(c.admin())
	servetest.Await(t, func() string {
		list, err := sets.ListReplicaSets(t.Context(), &schedulingv1.ListReplicaSetsRequest{})
		if err != nil || len(list.GetItems()) != 1 || len(list.GetItems()[0].GetMetadata().GetOwnerReferences()) != 0 {
			return fmt.Sprintf("replica sets %v, %v", list, err)
		}
		return ""
	})
	servetest.Await(t, func() string {
		list, err := pods.ListPods(t.Context(), &schedulingv1.ListPodsRequest{LabelSelector: "app=goes"})
		if err != nil {
			return err.Error()
		}
		for _, p := range list.GetItems() {
			if p.GetMetadata().GetDeletionTimestamp() == nil {
				return "pod " + p.GetMetadata().GetName() + " stays"
			}
		}
		return ""
	})
	count("orphans", 3)
}

func TestANamespaceTakesWhatIsInItAlong(t *testing.T) {
	c := start(t)
	pods := c.pods()
	namespaces := schedulingv1.NewNamespaceServiceClient(c.admin())
	ctx := t.Context()
	servetest.Await(t, func() string {
		list, err := namespaces.ListNamespaces(ctx, &schedulingv1.ListNamespacesRequest{})
		if err != nil || len(list.GetItems()) != len(kinds.BuiltIns()) {
			return fmt.Sprintf("%d namespaces, %v", len(list.GetItems()), err)
		}
		return ""
	})
	if _, err := namespaces.DeleteNamespace(ctx, &schedulingv1.DeleteNamespaceRequest{Name: "default"}); status.Code(
		err) != codes.PermissionDenied {
		t.Errorf("deletion of a built-in namespace = %v", err)
	}
	pod := newPod("web", "100m")
	pod.Metadata.Namespace = "mine"
	if _, err := pods.CreatePod(ctx, &schedulingv1.CreatePodRequest{Pod: pod}); status.Code(err) != codes.NotFound {
		t.Errorf("pod in a namespace that is not there = %v", err)
	}
	if _, err := namespaces.CreateNamespace(ctx, &schedulingv1.CreateNamespaceRequest{
		Namespace: &schedulingv1.Namespace{Metadata: &metav1.ObjectMeta{Name: "mine"}},
	}); err != nil {
		t.Fatal(err)
	}
	held := proto.CloneOf(pod)
	held.Metadata.Name, held.Metadata.Finalizers = "held", []string{"example.com/hold"}
	c.create(pods, pod)
	c.create(pods, held)
	if _, err := namespaces.DeleteNamespace(ctx, &schedulingv1.DeleteNamespaceRequest{Name: "mine"}); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, pods, "mine", "web")
	servetest.Await(t, func() string {
		ns, err := namespaces.GetNamespace(ctx, &schedulingv1.GetNamespaceRequest{Name: "mine"})
		if err != nil || ns.GetStatus().GetPhase() != "Terminating" {
			return fmt.Sprintf("namespace is %v, %v", ns, err)
		}
		return ""
	})
	if _, err := pods.CreatePod(ctx, &schedulingv1.CreatePodRequest{Pod: pod}); status.Code(
		err) != codes.PermissionDenied {
		t.Errorf("pod in a namespace that goes = %v", err)
	}
	now, err := pods.GetPod(ctx, &schedulingv1.GetPodRequest{Namespace: "mine", Name: "held"})
	if err != nil {
		t.Fatal(err)
	}
	now.Metadata.Finalizers = nil
	if _, err := pods.UpdatePod(ctx, &schedulingv1.UpdatePodRequest{
		Namespace: "mine", Name: "held",
		Pod: now,
	}); err != nil {
		t.Fatal(err)
	}
	servetest.Await(t, func() string {
		if _, err := namespaces.GetNamespace(ctx, &schedulingv1.GetNamespaceRequest{Name: "mine"}); status.Code(
			err) != codes.NotFound {
			return fmt.Sprintf("GetNamespace = %v", err)
		}
		return ""
	})
}

func TestAPodCanBeAdmittedAndExplainedBeforeItIsMade(t *testing.T) {
	c := start(t)
	c.addNode("node-1", "1")
	c.addNode("node-2", "8")
	pods := c.pods()
	c.create(pods, newPod("first", "10m"))
	c.awaitPod(pods, "first", bound)
	ctx := t.Context()
	admitted, err := pods.AdmitPod(ctx, &schedulingv1.AdmitPodRequest{Pod: newPod("web", "2")})
	if err != nil || !admitted.GetAllowed() || len(admitted.GetPod().GetSpec().GetTolerations()) != 3 {
		t.Errorf("AdmitPod = %v, %v", admitted, err)
	}
	empty := newPod("web", "2")
	empty.Spec.Containers = nil
	if refused, err := pods.AdmitPod(ctx, &schedulingv1.AdmitPodRequest{Pod: empty}); err != nil || refused.GetAllowed() ||
		!strings.Contains(refused.GetReason(), "spec.containers") {
		t.Errorf("AdmitPod without containers = %v, %v", refused, err)
	}
	said, err := pods.ExplainPod(ctx, &schedulingv1.ExplainPodRequest{Pod: newPod("web", "2")})
	if err != nil || said.GetBest() != "node-2" || len(said.GetNodes()) != 2 || said.GetNodes()[1].GetFits() {
		t.Errorf("ExplainPod = %v, %v", said, err)
	}
	if list, err := pods.ListPods(ctx, &schedulingv1.ListPodsRequest{}); err != nil || len(list.GetItems()) != 1 {
		t.Errorf("asking made pods: %v, %v", list, err)
	}
}

func TestABatchOfBindingsRefusesEachForItself(t *testing.T) {
	c := start(t)
	c.addNode("node-1", "8")
	pods := c.pods()
	c.create(pods, newPod("first", "10m"))
	c.awaitPod(pods, "first", bound) // so the nodes are known
	batches := c.batches()
	mine := newPod("mine", "10m")
	mine.Spec.SchedulerName = "my-scheduler"
	made, err := batches.BatchCreatePods(t.Context(), &schedulingv1.BatchCreatePodsRequest{
		Pods: []*schedulingv1.Pod{mine, mine, newPod("Bad_Name", "10m")},
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []codes.Code
	for _, r := range made.GetResults() {
		got = append(got, codes.Code(r.GetCode()))
	}
	if want := []codes.Code{codes.OK, codes.AlreadyExists, codes.InvalidArgument}; !slices.Equal(got, want) {
		t.Errorf("creations = %v, want %v", got, want)
	}
	out, err := batches.BatchBindPods(t.Context(), &schedulingv1.BatchBindPodsRequest{
		Bindings: []*schedulingv1.BindPodRequest{
			{Name: "mine", NodeName: "node-2"}, {Name: "mine", NodeName: "node-1"}, {Name: "none", NodeName: "node-1"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	got = nil
	for _, r := range out.GetResults() {
		got = append(got, codes.Code(r.GetCode()))
	}
	if want := []codes.Code{codes.NotFound, codes.OK, codes.NotFound}; !slices.Equal(got, want) {
		t.Errorf("bindings = %v, want %v", got, want)
	}
	if _, err := pods.BatchBindPods(t.Context(), &schedulingv1.BatchBindPodsRequest{
		Bindings: []*schedulingv1.BindPodRequest{{Name: "mine", NodeName: "node-1"}},
	}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("batch of a user = %v, want PERMISSION_DENIED", err)
	}
}

func TestWhatOwnersOfPodsDoCanBeAskedBefore(t *testing.T) {
	c := start(t)
	c.addNode("node-1", "4")
	deployments := schedulingv1.NewDeploymentServiceClient(c.admin())
	template := &schedulingv1.PodTemplateSpec{
		Metadata: &metav1.ObjectMeta{Labels: map[string]string{"app": "test"}}, Spec: newPod("", "100m").GetSpec(),
	}
	web := &schedulingv1.Deployment{
		Metadata: &metav1.ObjectMeta{Name: "web"},
		Spec: &schedulingv1.DeploymentSpec{Replicas: proto.Int32(2), Selector: &metav1.LabelSelector{
			MatchLabels: map[string]string{"app": "test"},
		}, Template: template},
	}
	ask := func(r *schedulingv1.PlanDeploymentRequest) []string {
		t.Helper()
		p, err := deployments.PlanDeployment(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, a := range p.GetActions() {
			out = append(out, a.GetAction()+" to "+a.GetDetails()["replicas"]+": "+a.GetReason())
		}
		return out
	}
	const created = "CreateReplicaSet to 2: no replica set has the present template"
	if got := ask(&schedulingv1.PlanDeploymentRequest{Deployment: web}); !slices.Equal(got, []string{created}) {
		t.Errorf("a deployment that is not there would do %q", got)
	}
	if _, err := deployments.CreateDeployment(t.Context(), &schedulingv1.CreateDeploymentRequest{
		Deployment: web,
	}); err != nil {
		t.Fatal(err)
	}
	sets, pods := schedulingv1.NewReplicaSetServiceClient(c.admin()), c.pods()
	set := ""
	servetest.Await(t, func() string {
		l, err := sets.ListReplicaSets(t.Context(), &schedulingv1.ListReplicaSetsRequest{})
		if err != nil || len(l.GetItems()) != 1 || l.GetItems()[0].GetStatus().GetReplicas() != 2 {
			return fmt.Sprint("sets: ", l, err)
		}
		set = l.GetItems()[0].GetMetadata().GetName()
		return ""
	})
	if got := ask(&schedulingv1.PlanDeploymentRequest{Name: "web", Replicas: proto.Int32(5)}); !slices.Equal(got,
		[]string{"UpdateReplicaSet to 5: the deployment was given the size 5"}) {
		t.Errorf("with 5 pods it would do %q", got)
	}
	other := proto.CloneOf(web)
	other.Spec.Template.Spec.Containers[0].Image = "other"
	if got := ask(&schedulingv1.PlanDeploymentRequest{Deployment: other}); len(got) != 1 ||
		!strings.HasPrefix(got[0], "CreateReplicaSet to 1: ") {
		t.Errorf("with another template in its place it would do %q", got)
	}
	p, err := sets.PlanReplicaSet(t.Context(), &schedulingv1.PlanReplicaSetRequest{Name: set, Replicas: proto.Int32(1)})
	if err != nil || len(p.GetActions()) != 1 || p.GetActions()[0].GetAction() != "DeletePod" {
		t.Errorf("PlanReplicaSet = %v, %v", p, err)
	}
	budgets := schedulingv1.NewPodDisruptionBudgetServiceClient(c.admin())
	b, err := budgets.PlanPodDisruptionBudget(t.Context(), &schedulingv1.PlanPodDisruptionBudgetRequest{
		PodDisruptionBudget: &schedulingv1.PodDisruptionBudget{
			Metadata: &metav1.ObjectMeta{Name: "web"},
			Spec: &schedulingv1.PodDisruptionBudgetSpec{
				Selector:       web.GetSpec().GetSelector(),
				MaxUnavailable: structpb.NewStringValue("50%"),
			},
		},
	})
	if s := b.GetStatus(); err != nil || s.GetExpectedPods() != 2 || s.GetDesiredHealthy() != 1 ||
		s.GetCurrentHealthy() != 0 {
		t.Errorf("PlanPodDisruptionBudget = %v, %v", b, err)
	}
	daemons := schedulingv1.NewDaemonSetServiceClient(c.admin())
	d, err := daemons.PlanDaemonSet(t.Context(), &schedulingv1.PlanDaemonSetRequest{DaemonSet: &schedulingv1.DaemonSet{
		Metadata: &metav1.ObjectMeta{Name: "watch"}, Spec: &schedulingv1.DaemonSetSpec{
			Selector: web.GetSpec().GetSelector(),
			Template: template,
		},
	}})
	if err != nil || len(d.GetActions()) != 2 || d.GetActions()[0].GetAction() != "CreateControllerRevision" ||
		d.GetActions()[1].GetDetails()["node"] != "node-1" {
		t.Errorf("PlanDaemonSet = %v, %v", d, err)
	}
	if l, err := pods.ListPods(t.Context(), &schedulingv1.ListPodsRequest{}); err != nil || len(l.GetItems()) != 2 {
		t.Errorf("a plan did something: %v, %v", l, err)
	}

	template.Spec.RestartPolicy = "Never"
	jobs := schedulingv1.NewJobServiceClient(c.admin())
	j, err := jobs.PlanJob(t.Context(), &schedulingv1.PlanJobRequest{
		Job: &schedulingv1.Job{Metadata: &metav1.ObjectMeta{Name: "sum"}, Spec: &schedulingv1.JobSpec{Template: template}},
	})
	if err != nil || len(j.GetActions()) != 1 || j.GetActions()[0].GetDetails()["generateName"] != "sum-" {
		t.Errorf("PlanJob = %v, %v", j, err)
	}
	bad := &schedulingv1.Deployment{Metadata: &metav1.ObjectMeta{Name: "bad"}}
	for path, r := range map[string]*schedulingv1.PlanDeploymentRequest{
		"name": {}, "deployment.spec.selector": {Deployment: bad}, "deployment.metadata.name": {
			Deployment: &schedulingv1.Deployment{},
		},
	} {
		_, err := deployments.PlanDeployment(t.Context(), r)
		if fields, _ := rpcerr.Fields(err); !slices.ContainsFunc(fields, func(f object.Fault) bool {
			return f.Path == path
		}) {
			t.Errorf("want %s wrong, got %v", path, err)
		}
	}
	if _, err := deployments.PlanDeployment(t.Context(), &schedulingv1.PlanDeploymentRequest{Name: "none"}); status.Code(
		err) != codes.NotFound {
		t.Errorf("a deployment that is not there: %v", err)
	}
}
