package controller_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/store"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/services/scheduler/kinds"
	workload "github.com/windlass-dev/windlass/services/scheduler/workload/controller"
	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

// cluster is controllers over a store of their own, with an agent that runs every pod.
type cluster struct {
	workload.Tables
	t      *testing.T
	ctx    context.Context
	client *clientv3.Client
	prefix string
	nodes  *resource.Cache[*nodev1.Node]
	at     int64 // revision of nodes
	moved  chan struct{}
	agent  *agent
	work   *workload.Controllers
	resign func() // ends the lead of these controllers, as if their process had been stopped

	mu     sync.Mutex
	events map[string]int // by reason
	watch  bool           // watchReady was called
	lowest int            // fewest ready pods seen since then
}

// agent binds pods, makes them ready and ends them. It can leave new ones alone.
type agent struct {
	pods *resource.Table[*schedulingv1.Pod]
	work chan object.Key

	mu   sync.Mutex
	idle bool
}

func start(t *testing.T) *cluster {
	t.Helper()
	return join(t, etcdtest.Client(t), etcdtest.Prefix(t), "first")
}

// join starts controllers over a store that others may use, too. One of them leads; address distinguishes them.
func join(t *testing.T, client *clientv3.Client, prefix, address string) *cluster {
	t.Helper()
	c := &cluster{
		t: t, client: client, prefix: prefix, nodes: resource.NewCache[*nodev1.Node](), moved: make(chan struct{}, 1),
		events: map[string]int{},
	}
	v, err := protovalidate.New()
	if err != nil {
		t.Fatal(err)
	}
	all := kinds.New(kinds.Config{
		Store: store.New(c.client, c.prefix), Validator: v, Nodes: c, Log: slog.New(slog.DiscardHandler),
		MayBind: func(identity.Caller, string, string) bool { return true },
	})
	c.Tables = workload.Tables{
		Pods: all.Pods, ReplicaSets: all.ReplicaSets, ReplicationControllers: all.ReplicationControllers,
		Deployments:  all.Deployments,
		StatefulSets: all.StatefulSets, Revisions: all.Revisions, Claims: all.Claims,
		DaemonSets: all.DaemonSets, Jobs: all.Jobs, CronJobs: all.CronJobs, Budgets: all.Budgets,
	}
	c.agent = &agent{pods: c.Pods, work: make(chan object.Key, 10000)}
	follow(c, c.Pods)
	follow(c, c.ReplicaSets)
	follow(c, c.ReplicationControllers)
	follow(c, c.Deployments)
	follow(c, c.StatefulSets)
	follow(c, c.Revisions)
	follow(c, c.Claims)
	follow(c, c.DaemonSets)
	follow(c, c.Jobs)
	follow(c, c.CronJobs)
	follow(c, c.Budgets)
	c.Pods.Subscribe(func(ch resource.Change[*schedulingv1.Pod]) { c.agent.work <- ch.Key })
	c.Pods.Subscribe(func(resource.Change[*schedulingv1.Pod]) { c.noteReady() })
	control := workload.New(workload.Config{
		Tables: c.Tables, Nodes: c.nodes, Events: c,
		Log: slog.New(slog.DiscardHandler), Now: time.Now,
	})
	c.work = control

	ctx, cancel := context.WithCancel(context.Background())
	group, ctx := errgroup.WithContext(ctx)
	c.ctx = ctx
	for _, run := range []func(context.Context) error{
		c.Pods.Run, c.ReplicaSets.Run, c.ReplicationControllers.Run, c.Deployments.Run, c.DaemonSets.Run, c.Jobs.Run,
		c.CronJobs.Run,
		c.StatefulSets.Run, c.Revisions.Run, c.Claims.Run,
		c.Budgets.Run, c.agent.run,
	} {
		group.Go(func() error { return run(ctx) })
	}
	elector := controller.NewElector(c.client, "workload"+strings.ReplaceAll(c.prefix, "/", "-"), address,
		slog.New(slog.DiscardHandler))
	leading, resign := context.WithCancel(ctx)
	c.resign = resign
	group.Go(func() error { return elector.Run(leading, control.Lead) })
	t.Cleanup(func() {
		cancel()
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
	})
	c.setNodes("a", "b", "c")
	return c
}

// follow has the test look again whenever an object of a kind changes.
func follow[T object.Object](c *cluster, table *resource.Table[T]) {
	table.Subscribe(func(resource.Change[T]) { c.poke() })
}

func (c *cluster) poke() {
	select {
	case c.moved <- struct{}{}:
	default:
	}
}

// HasNode reports whether a node exists.
func (c *cluster) HasNode(name string) bool {
	_, ok := c.nodes.Lookup("", name)
	return ok
}

// Event counts the events.
func (c *cluster) Event(_ object.Object, _, reason, _ string) {
	c.mu.Lock()
	c.events[reason]++
	c.mu.Unlock()
	c.poke()
}

func (c *cluster) told(reason string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.events[reason]
}

func (c *cluster) setNodes(names ...string) {
	var nodes []*nodev1.Node
	for _, n := range names {
		nodes = append(nodes, &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: n}, Spec: &nodev1.NodeSpec{}})
	}
	c.at++
	c.nodes.Replace(nodes, c.at)
}

func (a *agent) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case k := <-a.work:
			if err := a.look(ctx, k); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

func (a *agent) look(ctx context.Context, k object.Key) error {
	pod, ok := a.pods.Lookup(k.Namespace, k.Name)
	switch {
	case !ok:
		return nil
	case object.Deleting(pod):
		_, err := a.pods.Delete(ctx, k.Namespace, k.Name, nil, resource.WriteOptions{Grace: proto.Int32(0)})
		if resourceGone(err) {
			return nil
		}
		return err
	case placement.Terminated(pod), placement.IsReady(pod), a.isIdle():
		return nil
	}
	_, err := a.pods.Modify(ctx, k, func(p *schedulingv1.Pod) error {
		p.Spec.NodeName = plan.TargetNode(p)
		if p.Spec.NodeName == "" {
			p.Spec.NodeName = "a"
		}
		p.Status = &schedulingv1.PodStatus{Phase: proto.String("Running"), Conditions: []*schedulingv1.PodCondition{{
			Type: "Ready", Status: "True", LastTransitionTime: timestamppb.Now(),
		}}}
		return nil
	})
	if resourceGone(err) {
		return nil
	}
	return err
}

func resourceGone(err error) bool { return err != nil && strings.Contains(err.Error(), "not found") }

func (a *agent) isIdle() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.idle
}

func (a *agent) setIdle(idle bool) {
	a.mu.Lock()
	a.idle = idle
	a.mu.Unlock()
	for _, p := range a.pods.All() {
		a.work <- object.KeyOf(p)
	}
}

// patience is for what must happen; a busy machine needs some of it.
const patience = 2 * time.Minute

// until waits for something to become true.
func (c *cluster) until(what string, f func() bool) {
	c.t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for !f() {
		select {
		case <-c.moved:
		case <-limit.C:
			c.t.Fatalf("%s: not so after %s; %d pods, %d of them run, such as %s", what, patience,
				len(c.Pods.All()), c.count(running), c.describe())
		}
	}
}

func (c *cluster) describe() string {
	var b strings.Builder
	for _, p := range c.Pods.All()[:min(10, len(c.Pods.All()))] {
		fmt.Fprintf(&b, "%s (%s, node %q, ready %t, deleting %t) ", p.Metadata.Name, p.GetStatus().GetPhase(),
			p.Spec.NodeName, placement.IsReady(p), object.Deleting(p))
	}
	return b.String()
}

func (c *cluster) count(f func(*schedulingv1.Pod) bool) (n int) {
	for _, p := range c.Pods.All() {
		if f(p) {
			n++
		}
	}
	return n
}

func running(p *schedulingv1.Pod) bool { return placement.Active(p) && placement.IsReady(p) }

func image(name string) func(*schedulingv1.Pod) bool {
	return func(p *schedulingv1.Pod) bool { return running(p) && p.Spec.Containers[0].Image == name }
}

// watchReady begins to note the fewest ready pods.
func (c *cluster) watchReady() {
	n := c.count(running)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watch, c.lowest = true, n
}

func (c *cluster) noteReady() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watch {
		c.lowest = min(c.lowest, c.count(running))
	}
}

func template(image string) *schedulingv1.PodTemplateSpec {
	return &schedulingv1.PodTemplateSpec{
		Metadata: &metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:     &schedulingv1.PodSpec{Containers: []*schedulingv1.Container{{Name: "web", Image: image}}},
	}
}

func meta() *metav1.ObjectMeta { return &metav1.ObjectMeta{Name: "web", Namespace: "default"} }

func selector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
}

func must[T any](c *cluster) func(T, error) T {
	return func(v T, err error) T {
		c.t.Helper()
		if err != nil {
			c.t.Fatal(err)
		}
		return v
	}
}

var web = object.Key{Namespace: "default", Name: "web"}

func (c *cluster) deploy(replicas int) {
	c.t.Helper()
	must[*schedulingv1.Deployment](c)(c.Deployments.Create(c.ctx, &schedulingv1.Deployment{
		Metadata: meta(), Spec: &schedulingv1.DeploymentSpec{
			Replicas: proto.Int32(int32(replicas)), Selector: selector(), Template: template("v1"),
			Strategy: &schedulingv1.DeploymentStrategy{RollingUpdate: &schedulingv1.RollingUpdateDeployment{
				MaxSurge: structpb.NewNumberValue(1), MaxUnavailable: structpb.NewNumberValue(1),
			}},
		},
	}))
}

func (c *cluster) deployment() *schedulingv1.Deployment {
	d, _ := c.Deployments.Lookup("default", "web")
	return d
}

func (c *cluster) change(f func(*schedulingv1.DeploymentSpec)) {
	c.t.Helper()
	must[*schedulingv1.Deployment](c)(c.Deployments.Modify(c.ctx, web, func(d *schedulingv1.Deployment) error {
		f(d.Spec)
		return nil
	}))
}

func TestDeploymentMakesRollsAndScales(t *testing.T) {
	c := start(t)
	c.deploy(3)
	c.until("three pods and all known of them", func() bool {
		return c.count(running) == 3 && c.deployment().GetStatus().GetAvailableReplicas() == 3 &&
			object.IsTrue(c.deployment().GetStatus().GetConditions(), "Available")
	})
	for _, p := range c.Pods.All() {
		set := object.ControllerOf(p).GetName()
		if !strings.HasPrefix(p.Metadata.Name, set+"-") || len(p.Metadata.Name) != len(set)+6 ||
			p.Metadata.Labels[plan.HashLabel] == "" {
			t.Errorf("pod %q with labels %v of %q", p.Metadata.Name, p.Metadata.Labels, set)
		}
	}
	if n := c.told("SuccessfulCreate"); n != 3 {
		t.Errorf("%d pods were made, want 3", n)
	}

	c.watchReady()
	c.change(func(s *schedulingv1.DeploymentSpec) { s.Template = template("v2") })
	c.until("three new pods", func() bool {
		return c.count(image("v2")) == 3 && c.count(func(*schedulingv1.Pod) bool { return true }) == 3 &&
			object.FindCondition(c.deployment().GetStatus().GetConditions(),
				"Progressing").GetReason() == "NewReplicaSetAvailable"
	})
	c.mu.Lock()
	if c.lowest < 2 {
		t.Errorf("only %d pods were ready during the update, want 2", c.lowest)
	}
	c.mu.Unlock()
	if r := c.deployment().Metadata.Annotations[plan.RevisionAnnotation]; r != "2" {
		t.Errorf("revision %q", r)
	}

	c.change(func(s *schedulingv1.DeploymentSpec) { s.Replicas = proto.Int32(1) })
	c.until("one pod", func() bool {
		return len(c.Pods.All()) == 1 && c.deployment().GetStatus().GetReplicas() == 1
	})
	if c.told("ScalingReplicaSet") < 4 || c.told("SuccessfulDelete") < 5 {
		t.Errorf("events %v", c.events)
	}
}

func TestReplicaSetAdoptsReplacesAndReleases(t *testing.T) {
	c := start(t)
	must[*schedulingv1.Pod](c)(c.Pods.Create(c.ctx, &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{Name: "loose", Namespace: "default", Labels: map[string]string{"app": "web"}},
		Spec:     template("v1").Spec,
	}))
	must[*schedulingv1.ReplicaSet](c)(c.ReplicaSets.Create(c.ctx, &schedulingv1.ReplicaSet{
		Metadata: meta(), Spec: &schedulingv1.ReplicaSetSpec{
			Replicas: proto.Int32(2), Selector: selector(), Template: template("v1"),
		},
	}))
	c.until("an adopted and a new pod", func() bool { return c.count(running) == 2 && c.told("SuccessfulCreate") > 0 })
	loose, _ := c.Pods.Lookup("default", "loose")
	if object.ControllerOf(loose).GetName() != "web" || c.told("SuccessfulCreate") != 1 {
		t.Errorf("owner %v, %d made", object.ControllerOf(loose), c.told("SuccessfulCreate"))
	}
	must[*schedulingv1.Pod](c)(c.Pods.Modify(c.ctx, object.KeyOf(loose), func(p *schedulingv1.Pod) error {
		p.Metadata.Labels = map[string]string{"app": "debug"}
		return nil
	}))
	c.until("a released pod and its replacement", func() bool { return c.count(running) == 3 })
	if loose, _ = c.Pods.Lookup("default", "loose"); object.ControllerOf(loose) != nil {
		t.Errorf("owner %v", object.ControllerOf(loose))
	}
	if _, err := c.ReplicaSets.Delete(c.ctx, "default", "web", nil); err != nil {
		t.Fatal(err)
	}
	for _, p := range c.Pods.All() {
		if _, err := c.Pods.Delete(c.ctx, "default", p.Metadata.Name, nil); err != nil {
			t.Fatal(err)
		}
	}
	c.until("no pods without an owner", func() bool { return len(c.Pods.All()) == 0 })
}

func TestReplicaSetSaysWhyItHasNoPods(t *testing.T) {
	c := start(t)
	failure := func() *metav1.Condition {
		set, _ := c.ReplicaSets.Lookup("default", "web")
		return object.FindCondition(set.GetStatus().GetConditions(), plan.ReplicaFailure)
	}
	must[*schedulingv1.ReplicaSet](c)(c.ReplicaSets.Create(c.ctx, &schedulingv1.ReplicaSet{
		Metadata: meta(), Spec: &schedulingv1.ReplicaSetSpec{
			Selector: selector(), Template: annotated("no spaces here"),
		},
	}))
	c.until("the reason", func() bool { return failure().GetReason() == "FailedCreate" && c.told("FailedCreate") > 0 })
	must[*schedulingv1.ReplicaSet](c)(c.ReplicaSets.Modify(c.ctx, web, func(s *schedulingv1.ReplicaSet) error {
		s.Spec.Template = annotated("fine")
		return nil
	}))
	c.until("a pod and no reason", func() bool { return c.count(running) == 1 && failure() == nil })
}

// TestADeploymentSaysThatItsReplicaSetIsRefused has a name that is as long as a name may be: those of its sets are
// longer.
func TestADeploymentSaysThatItsReplicaSetIsRefused(t *testing.T) {
	c := start(t)
	m := meta()
	m.Name = strings.Repeat("a", 253)
	must[*schedulingv1.Deployment](c)(c.Deployments.Create(c.ctx, &schedulingv1.Deployment{
		Metadata: m, Spec: &schedulingv1.DeploymentSpec{Selector: selector(), Template: template("v1")},
	}))
	c.until("the reason", func() bool {
		d, _ := c.Deployments.Lookup(m.Namespace, m.Name)
		cond := object.FindCondition(d.GetStatus().GetConditions(), "Progressing")
		return cond.GetStatus() == "False" && cond.GetReason() == "ReplicaSetCreateError" &&
			strings.Contains(cond.GetMessage(), "metadata.name") && c.told("ReplicaSetCreateError") > 0
	})
}

// annotated returns a template whose pods have an annotation; its name is checked when they are made.
func annotated(key string) *schedulingv1.PodTemplateSpec {
	t := template("v1")
	t.Metadata.Annotations = map[string]string{key: ""}
	return t
}

func TestReplicationControllerOfManyPods(t *testing.T) {
	c := start(t)
	c.agent.setIdle(true)
	must[*schedulingv1.ReplicationController](c)(c.ReplicationControllers.Create(c.ctx,
		&schedulingv1.ReplicationController{
			Metadata: meta(), Spec: &schedulingv1.ReplicationControllerSpec{
				Replicas: proto.Int32(700),
				Template: template("v1"),
			},
		}))
	c.until("all pods", func() bool {
		rc, _ := c.ReplicationControllers.Lookup("default", "web")
		return rc.GetStatus().GetReplicas() == 700
	})
	if n := len(c.Pods.All()); n != 700 {
		t.Errorf("%d pods, want 700", n)
	}
}

func TestTheNextLeaderGoesOnWhereTheLastOneStopped(t *testing.T) {
	first := start(t)
	first.deploy(1)
	first.until("the first leads", func() bool { return first.count(running) == 1 })
	second := join(t, first.client, first.prefix, "second")
	first.agent.setIdle(true)
	second.agent.setIdle(true)
	for range 3 {
		must[*schedulingv1.ReplicationController](first)(first.ReplicationControllers.Create(first.ctx,
			&schedulingv1.ReplicationController{
				Metadata: &metav1.ObjectMeta{GenerateName: "web-", Namespace: "default"},
				Spec: &schedulingv1.ReplicationControllerSpec{Replicas: proto.Int32(300), Template: &schedulingv1.PodTemplateSpec{
					Metadata: &metav1.ObjectMeta{Labels: map[string]string{"app": resource.GenerateName("app-")}},
					Spec:     template("v1").Spec,
				}},
			}))
	}
	first.until("some pods", func() bool { return len(first.Pods.All()) > 1 })
	first.resign()
	second.until("all pods, none twice", func() bool {
		pods := int32(0)
		for _, rc := range second.ReplicationControllers.All() {
			pods += rc.GetStatus().GetReplicas()
		}
		return pods == 900
	})
	if n := len(second.Pods.All()); n != 901 || first.told("SuccessfulDelete")+second.told("SuccessfulDelete") > 0 {
		t.Errorf("%d pods, %d were removed; want 901 and none", n, first.told("SuccessfulDelete")+
			second.told("SuccessfulDelete"))
	}
}

func TestDaemonSetFollowsNodes(t *testing.T) {
	c := start(t)
	must[*schedulingv1.DaemonSet](c)(c.DaemonSets.Create(c.ctx, &schedulingv1.DaemonSet{
		Metadata: meta(), Spec: &schedulingv1.DaemonSetSpec{
			Selector: selector(), Template: template("v1"),
		},
	}))
	daemons := func() *schedulingv1.DaemonSetStatus {
		s, _ := c.DaemonSets.Lookup("default", "web")
		return s.GetStatus()
	}
	c.until("a pod on each node", func() bool { return c.count(running) == 3 && daemons().GetNumberReady() == 3 })
	c.setNodes("a", "b", "c", "d")
	c.until("a pod on the new node", func() bool {
		return c.count(running) == 4 &&
			daemons().GetDesiredNumberScheduled() == 4
	})
	on := map[string]int{}
	for _, p := range c.Pods.All() {
		on[p.Spec.NodeName]++
	}
	if len(on) != 4 {
		t.Errorf("pods on %v", on)
	}
	c.watchReady()
	must[*schedulingv1.DaemonSet](c)(c.DaemonSets.Modify(c.ctx, web, func(s *schedulingv1.DaemonSet) error {
		s.Spec.Template = template("v2")
		return nil
	}))
	c.until("all pods renewed", func() bool {
		return c.count(image("v2")) == 4 &&
			daemons().GetUpdatedNumberScheduled() == 4
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lowest < 3 {
		t.Errorf("only %d pods were ready during the update, want 3", c.lowest)
	}
}

// TestADaemonSetSurges updates a daemon set with new pods beside the old ones, while its leader stops, and goes back.
func TestADaemonSetSurges(t *testing.T) {
	c := start(t)
	must[*schedulingv1.DaemonSet](c)(c.DaemonSets.Create(c.ctx, &schedulingv1.DaemonSet{
		Metadata: meta(), Spec: &schedulingv1.DaemonSetSpec{
			Selector: selector(), Template: template("v1"),
			UpdateStrategy: &schedulingv1.DaemonSetUpdateStrategy{RollingUpdate: &schedulingv1.RollingUpdateDaemonSet{
				MaxUnavailable: structpb.NewNumberValue(0), MaxSurge: structpb.NewNumberValue(1),
			}},
		},
	}))
	all := func(of string) func() bool {
		return func() bool {
			s, _ := c.DaemonSets.Lookup("default", "web")
			return c.count(image(of)) == 3 && len(c.Pods.All()) == 3 && s.GetStatus().GetNumberAvailable() == 3 &&
				s.GetStatus().GetUpdatedNumberScheduled() == 3 &&
				s.GetStatus().GetObservedGeneration() == s.GetMetadata().GetGeneration()
		}
	}
	change := func(of string) {
		t.Helper()
		must[*schedulingv1.DaemonSet](c)(c.DaemonSets.Modify(c.ctx, web, func(s *schedulingv1.DaemonSet) error {
			s.Spec.Template = template(of)
			return nil
		}))
	}
	c.until("a pod on each node", all("v1"))
	next := join(t, c.client, c.prefix, "second")
	next.agent.setIdle(true) // one agent is enough
	c.watchReady()
	change("v2")
	c.until("a pod is updated", func() bool { return c.count(image("v2")) > 0 })
	c.resign()
	c.until("all are updated", all("v2"))
	c.mu.Lock()
	if c.lowest < 3 {
		t.Errorf("only %d pods were ready during the update, want 3", c.lowest)
	}
	c.mu.Unlock()
	change("v1")
	c.until("all are of the first again", all("v1"))
	for _, r := range c.Revisions.All() {
		if r.GetRevision() != 2 && r.GetRevision() != 3 || object.ControllerOf(r).GetKind() != "DaemonSet" {
			t.Errorf("revision %d of %v, want 2 and 3", r.GetRevision(), object.ControllerOf(r))
		}
	}
	if n := len(c.Revisions.All()); n != 2 {
		t.Errorf("%d revisions, want 2", n)
	}
}

func TestJobRunsToItsEnd(t *testing.T) {
	c := start(t)
	tmpl := template("v1")
	tmpl.Spec.RestartPolicy = "Never"
	must[*schedulingv1.Job](c)(c.Jobs.Create(c.ctx, &schedulingv1.Job{Metadata: meta(), Spec: &schedulingv1.JobSpec{
		Parallelism: proto.Int32(2), Completions: proto.Int32(3), Template: tmpl, TtlSecondsAfterFinished: proto.Int32(0),
	}}))
	for range 3 {
		c.until("a running pod", func() bool { return c.count(running) > 0 })
		for _, p := range c.Pods.All() {
			if running(p) {
				must[*schedulingv1.Pod](c)(c.Pods.Modify(c.ctx, object.KeyOf(p), func(p *schedulingv1.Pod) error {
					p.Status.Phase, p.Status.Conditions = proto.String("Succeeded"), nil
					return nil
				}))
				break
			}
		}
	}
	c.until("the job is done and gone", func() bool { return c.told("Completed") == 1 && len(c.Jobs.All()) == 0 })
	if n := c.told("SuccessfulCreate"); n != 3 {
		t.Errorf("%d pods were made, want 3", n)
	}
}

// TestJobCountsPodsThatAreGone takes each pod away once it has succeeded and is counted, as when its node goes.
func TestJobCountsPodsThatAreGone(t *testing.T) {
	c := start(t)
	tmpl := template("v1")
	tmpl.Spec.RestartPolicy = "Never"
	must[*schedulingv1.Job](c)(c.Jobs.Create(c.ctx, &schedulingv1.Job{Metadata: meta(), Spec: &schedulingv1.JobSpec{
		Parallelism: proto.Int32(1), Completions: proto.Int32(3), Template: tmpl,
	}}))
	for i := range 3 {
		c.until("a running pod", func() bool { return c.count(running) == 1 })
		pod := object.KeyOf(c.Pods.All()[0])
		must[*schedulingv1.Pod](c)(c.Pods.Modify(c.ctx, pod, func(p *schedulingv1.Pod) error {
			p.Status.Phase, p.Status.Conditions = proto.String("Succeeded"), nil
			return nil
		}))
		c.until("that it is counted", func() bool {
			j, _ := c.Jobs.Lookup("default", "web")
			return j.GetStatus().GetSucceeded() == int32(i+1)
		})
		must[*schedulingv1.Pod](c)(c.Pods.Delete(c.ctx, pod.Namespace, pod.Name, nil))
	}
	c.until("the job is done", func() bool { return c.told("Completed") == 1 })
	if n := c.told("SuccessfulCreate"); n != 3 {
		t.Errorf("%d pods were made, want 3", n)
	}
}

// TestPodsAreNotKeptForAJobThatIsGone deletes a job before its pod, as the deletion of a job with its dependents does.
func TestPodsAreNotKeptForAJobThatIsGone(t *testing.T) {
	c := start(t)
	tmpl := template("v1")
	tmpl.Spec.RestartPolicy = "Never"
	must[*schedulingv1.Job](c)(c.Jobs.Create(c.ctx, &schedulingv1.Job{
		Metadata: meta(), Spec: &schedulingv1.JobSpec{Template: tmpl},
	}))
	c.until("a running pod", func() bool { return c.count(running) == 1 })
	pod := object.KeyOf(c.Pods.All()[0])
	must[*schedulingv1.Pod](c)(c.Pods.Modify(c.ctx, pod, func(p *schedulingv1.Pod) error {
		p.Status.Phase, p.Status.Conditions = proto.String("Succeeded"), nil
		return nil
	}))
	c.until("the job is done", func() bool { return c.told("Completed") == 1 })
	must[*schedulingv1.Job](c)(c.Jobs.Delete(c.ctx, "default", "web", nil))
	c.until("the job is gone", func() bool { return len(c.Jobs.All()) == 0 })
	gone := make(chan struct{})
	c.Pods.Subscribe(func(ch resource.Change[*schedulingv1.Pod]) { // after the controllers
		if ch.Deleted {
			close(gone)
		}
	})
	must[*schedulingv1.Pod](c)(c.Pods.Delete(c.ctx, pod.Namespace, pod.Name, nil))
	<-gone
	if n := c.work.Departed(); n > 0 {
		t.Errorf("pods of %d jobs are kept in memory", n)
	}
}

// TestAJobWhosePodsAreRefusedFailsForItsDeadline has a job whose status is of use although no pod can be made.
func TestAJobWhosePodsAreRefusedFailsForItsDeadline(t *testing.T) {
	c := start(t)
	tmpl := annotated("no spaces here")
	tmpl.Spec.RestartPolicy = "Never"
	must[*schedulingv1.Job](c)(c.Jobs.Create(c.ctx, &schedulingv1.Job{Metadata: meta(), Spec: &schedulingv1.JobSpec{
		Template: tmpl, ActiveDeadlineSeconds: proto.Int32(1),
	}}))
	c.until("the job fails", func() bool { return c.told("FailedCreate") > 0 && c.told("DeadlineExceeded") == 1 })
}

func TestBudgetCountsHealthyPods(t *testing.T) {
	c := start(t)
	c.agent.setIdle(true)
	must[*schedulingv1.PodDisruptionBudget](c)(c.Budgets.Create(c.ctx, &schedulingv1.PodDisruptionBudget{
		Metadata: meta(), Spec: &schedulingv1.PodDisruptionBudgetSpec{
			MaxUnavailable: structpb.NewNumberValue(1), Selector: selector(),
		},
	}))
	c.deploy(3)
	numbers := func() string {
		b, _ := c.Budgets.Lookup("default", "web")
		s := b.GetStatus()
		return fmt.Sprintf("%d %d %d %d %s", s.GetExpectedPods(), s.GetDesiredHealthy(), s.GetCurrentHealthy(),
			s.GetDisruptionsAllowed(),
			object.FindCondition(s.GetConditions(), plan.DisruptionAllowed).GetReason())
	}
	c.until("none is healthy", func() bool { return numbers() == "3 2 0 0 InsufficientPods" })
	c.agent.setIdle(false)
	c.until("all are healthy", func() bool { return numbers() == "3 2 3 1 SufficientPods" })
	c.change(func(s *schedulingv1.DeploymentSpec) { s.Replicas = proto.Int32(4) })
	c.until("one more", func() bool { return numbers() == "4 3 4 1 SufficientPods" })
}
