package plan_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/proto"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

// TestScenarios plays the files of testdata: each has what happens to a deployment with its replica sets, a job and a
// daemon set, and what their controllers do about it and hold back. Run it with -rewrite to write what they do now into
// them. What happens is one of these, a line each:
//
//	deployment 4 v1     the deployment "web" with so many replicas of an image; again: it is changed
//	surge 1 missing 0   its maxSurge and maxUnavailable
//	pause, resume       of the deployment
//	broken v2           pods of that image never become ready; repaired v2: from now on they do
//	job 3 2             the job "sums": so many completions, so many pods at once
//	daemonset v1        the daemon set "eye"; again: it is changed
//	beside 1            its maxSurge, with maxUnavailable 0
//	stateful 3 v1       the stateful set "db" with so many replicas of an image; again: it is changed
//	policy Parallel, partition 2, unavailable 2, ondelete    of the stateful set
//	node a, node a gone, taint a      the nodes of the daemon set
//	fails NAME, ends NAME, lost NAME  a pod fails, ends well, or is deleted by a user
//
// "pass 30s" lets time pass, in which pods become ready 2 s after they were made and are gone 1 s after their deletion.
// Times are seconds since the begin.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		c := &course{now: start, broken: map[string]bool{}, held: map[string]string{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			c.out.Reset()
			switch d.Cmd {
			case "happens":
				for line := range strings.Lines(d.Input) {
					c.happens(t, strings.Fields(line))
				}
			case "pass":
				span, err := time.ParseDuration(d.CmdArgs[0].Key)
				if err != nil {
					t.Fatal(err)
				}
				for range span / time.Second {
					c.now = c.now.Add(time.Second)
					c.agents()
					for c.decide() { // until nothing is left to do
					}
				}
			default:
				t.Fatalf("unknown command %q", d.Cmd)
			}
			return c.out.String()
		})
	})
}

// course is the objects of a scenario, and the agents that run its pods.
type course struct {
	now    time.Time
	web    *schedulingv1.Deployment
	sets   []*schedulingv1.ReplicaSet
	sums   *schedulingv1.Job
	eye    *schedulingv1.DaemonSet
	db     *schedulingv1.StatefulSet
	past   []*schedulingv1.ControllerRevision // of db
	seen   []*schedulingv1.ControllerRevision // of eye
	nodes  []*nodev1.Node
	pods   []*schedulingv1.Pod
	broken map[string]bool
	made   int
	held   map[string]string // what was printed last as held back, and of conditions
	out    strings.Builder
}

func number(t *testing.T, s string) *int32 {
	t.Helper()
	var n int32
	if _, err := fmt.Sscan(s, &n); err != nil {
		t.Fatal(err)
	}
	return &n
}

func (c *course) happens(t *testing.T, what []string) {
	switch what[0] {
	case "deployment":
		if c.web == nil {
			c.web = &schedulingv1.Deployment{
				Metadata: &metav1.ObjectMeta{Name: "web", Namespace: "default", Uid: "web", CreationTimestamp: at(c.now)},
				Spec:     &schedulingv1.DeploymentSpec{Selector: selector()},
			}
		}
		c.web.Metadata.Generation++
		c.web.Spec.Replicas, c.web.Spec.Template = number(t, what[1]), template(what[2])
	case "surge":
		c.web.Spec.Strategy = &schedulingv1.DeploymentStrategy{RollingUpdate: &schedulingv1.RollingUpdateDeployment{
			MaxSurge: amount(float64(*number(t, what[1]))), MaxUnavailable: amount(float64(*number(t, what[3]))),
		}}
	case "pause", "resume":
		c.web.Metadata.Generation++
		c.web.Spec.Paused = proto.Bool(what[0] == "pause")
	case "broken", "repaired":
		c.broken[what[1]] = what[0] == "broken"
	case "job":
		c.sums = &schedulingv1.Job{
			Metadata: &metav1.ObjectMeta{
				Name: "sums", Namespace: "default", Uid: "sums", Generation: 1, CreationTimestamp: at(c.now),
			},
			Spec: &schedulingv1.JobSpec{
				Completions: number(t, what[1]), Parallelism: number(t, what[2]), Template: template("sum"),
			},
		}
		c.sums.Spec.Template.Metadata.Labels = plan.JobLabels(c.sums)
		c.sums.Spec.Selector = plan.JobSelector(c.sums)
	case "daemonset":
		if c.eye == nil {
			c.eye = &schedulingv1.DaemonSet{
				Metadata: &metav1.ObjectMeta{Name: "eye", Namespace: "default", Uid: "eye"},
				Spec:     &schedulingv1.DaemonSetSpec{Selector: selector()},
			}
		}
		c.eye.Metadata.Generation++
		c.eye.Spec.Template = template(what[1])
	case "beside":
		c.eye.Spec.UpdateStrategy = surging(float64(*number(t, what[1])))
	case "stateful":
		if c.db == nil {
			c.db = statefulSet(0, "")
			c.db.Metadata.Name, c.db.Metadata.Uid = "db", "db"
		}
		c.db.Metadata.Generation++
		c.db.Spec.Replicas, c.db.Spec.Template = number(t, what[1]), template(what[2])
	case "policy":
		c.db.Spec.PodManagementPolicy = what[1]
	case "ondelete":
		strategy("type", "OnDelete")(c.db)
	case "partition":
		rolling("partition", float64(*number(t, what[1])))(c.db)
	case "unavailable":
		rolling("maxUnavailable", float64(*number(t, what[1])))(c.db)
	case "node":
		c.nodes = slices.DeleteFunc(c.nodes, func(n *nodev1.Node) bool { return n.GetMetadata().GetName() == what[1] })
		if len(what) == 2 {
			c.nodes = append(c.nodes, node(what[1]))
		}
	case "taint":
		i := slices.IndexFunc(c.nodes, func(n *nodev1.Node) bool { return n.GetMetadata().GetName() == what[1] })
		taint("key", "NoExecute")(c.nodes[i])
	case "fails", "ends", "lost":
		i := slices.IndexFunc(c.pods, func(p *schedulingv1.Pod) bool { return p.GetMetadata().GetName() == what[1] })
		if i < 0 {
			t.Fatalf("there is no pod %s", what[1])
		}
		switch what[0] {
		case "fails":
			phase("Failed")(c.pods[i])
		case "ends":
			phase("Succeeded")(c.pods[i])
		default:
			c.pods[i].Metadata.DeletionTimestamp = at(c.now)
		}
	default:
		t.Fatalf("unknown event %q", what)
	}
}

// agents has pods become ready, and go.
func (c *course) agents() {
	for _, p := range c.pods {
		age := c.now.Sub(p.GetMetadata().GetCreationTimestamp().AsTime())
		image := p.GetSpec().GetContainers()[0].GetImage()
		if p.GetStatus().GetPhase() == "Pending" && age >= 2*time.Second && !c.broken[image] {
			p.Status.Phase, p.Spec.NodeName = proto.String("Running"), cmp.Or(plan.TargetNode(p), "a")
			ready(c.now)(p)
		}
	}
	c.pods = slices.DeleteFunc(c.pods, func(p *schedulingv1.Pod) bool {
		gone := p.GetMetadata().GetDeletionTimestamp()
		return gone != nil && c.now.Sub(gone.AsTime()) >= time.Second
	})
}

// decide has all controllers decide once and does what they say. It reports whether there was anything.
func (c *course) decide() bool {
	did := false
	if c.web != nil {
		p := plan.Deployment(plan.DeploymentView{Now: c.now, Deployment: c.web, Sets: c.sets})
		did = c.print("web", p.Actions(), p.Held)
		if p.Create != nil {
			p.Create.Set.Metadata.Uid, p.Create.Set.Metadata.CreationTimestamp = p.Create.Set.Metadata.Name, at(c.now)
			p.Create.Set.Metadata.Generation = 1
			c.sets = append(c.sets, p.Create.Set)
		}
		for _, ch := range p.Update {
			ch.Set.Metadata.Generation++
			c.sets[slices.IndexFunc(c.sets, sameSet(ch.Set))] = ch.Set
		}
		for _, s := range p.Delete {
			c.sets = slices.DeleteFunc(c.sets, sameSet(s))
		}
		c.web = plan.DeploymentAfter(c.web, p)
		conditions(c, "web", c.web.GetStatus().GetConditions())
	}
	for _, s := range c.sets {
		v := plan.ReplicaSetView(s, c.now)
		v.Pods = c.pods
		p := plan.Replicas(v)
		did = c.print("replicaset "+s.GetMetadata().GetName(), p.Actions(), p.Held) || did
		did = did || !proto.Equal(s.GetStatus(), p.Status)
		s.Status = p.Status
		c.store(p.Create, p.Delete)
	}
	if c.sums != nil {
		p := plan.Job(plan.JobView{Now: c.now, Job: c.sums, Pods: c.pods})
		did = c.print("job sums", p.Actions(), p.Held) || did
		c.sums = plan.JobAfter(c.sums, p)
		conditions(c, "job sums", c.sums.GetStatus().GetConditions())
		c.store(p.Create, p.Delete)
	}
	if c.eye != nil {
		p := plan.DaemonSet(plan.DaemonSetView{
			Now: c.now, Set: c.eye, Nodes: c.nodes, Pods: c.pods, Revisions: c.seen,
		})
		did = c.print("daemonset eye", p.Actions(), p.Held) || did
		c.seen = revisionsAfter(c.seen, p.History)
		c.eye.Status = p.Status
		c.store(p.Create, p.Delete)
	}
	if c.db != nil {
		p := plan.StatefulSet(plan.StatefulSetView{Now: c.now, Set: c.db, Pods: c.pods, Revisions: c.past})
		did = c.print("db", p.Actions(), p.Held) || did
		did = did || !proto.Equal(c.db.GetStatus(), p.Status)
		c.past = revisionsAfter(c.past, p.History)
		if was := c.db.GetStatus(); was != nil && was.GetCurrentRevision() != p.Status.GetCurrentRevision() {
			fmt.Fprintf(&c.out, "%3.0f db: all pods are of %s\n", c.now.Sub(start).Seconds(), p.Status.GetCurrentRevision())
		}
		c.db.Status = p.Status
		c.store(p.Create, p.Delete)
	}
	return did
}

func sameSet(s *schedulingv1.ReplicaSet) func(*schedulingv1.ReplicaSet) bool {
	return func(o *schedulingv1.ReplicaSet) bool { return o.GetMetadata().GetUid() == s.GetMetadata().GetUid() }
}

// store creates and deletes pods as the API does.
func (c *course) store(create, remove []*schedulingv1.Pod) {
	for _, p := range create {
		c.made++
		if p.Metadata.Name == "" {
			p.Metadata.Name = fmt.Sprintf("%s%d", p.Metadata.GenerateName, c.made)
		}
		p.Metadata.Uid, p.Metadata.CreationTimestamp = p.Metadata.Name, at(c.now)
		p.Status = &schedulingv1.PodStatus{Phase: proto.String("Pending")}
		c.pods = append(c.pods, p)
	}
	for _, p := range remove {
		p.Metadata.DeletionTimestamp = at(c.now)
	}
}

// condition is one of a deployment or of a job.
type condition interface {
	GetType() string
	GetStatus() string
	GetReason() string
}

// conditions prints which conditions hold, and why, if that changed.
func conditions[T condition](c *course, who string, list []T) {
	text := ""
	for _, cond := range list {
		text += fmt.Sprintf(" %s=%s (%s)", cond.GetType(), cond.GetStatus(), cond.GetReason())
	}
	if text != c.held[who+" conditions"] {
		c.held[who+" conditions"] = text
		fmt.Fprintf(&c.out, "%3.0f %s:%s\n", c.now.Sub(start).Seconds(), who, text)
	}
}

// print prints actions, those of one kind and reason together, and what is held back if that changed. It reports
// whether there are actions.
func (c *course) print(who string, actions []*metav1.PlannedAction, held []*metav1.HeldBack) bool {
	clock := fmt.Sprintf("%3.0f %s", c.now.Sub(start).Seconds(), who)
	for i := 0; i < len(actions); {
		a, n := actions[i], 1
		for i+n < len(actions) && actions[i+n].GetAction() == a.GetAction() && actions[i+n].GetReason() == a.GetReason() {
			n++
		}
		what := a.GetAction() + " " + a.GetObject().GetName()
		if size := a.GetDetails()["replicas"]; size != "" {
			what += " to " + size
		}
		if n > 1 {
			what = fmt.Sprintf("%d times %s", n, a.GetAction())
		}
		fmt.Fprintf(&c.out, "%s: %s: %s\n", clock, strings.TrimSpace(what), a.GetReason())
		i += n
	}
	text := ""
	for _, h := range held {
		text += fmt.Sprintf("%s: %s is held back: %s", clock, h.GetAction(), h.GetReason())
		if h.GetUnblock() != "" {
			text += ", until: " + h.GetUnblock()
		}
		text += "\n"
	}
	if _, unclocked, _ := strings.Cut(text, ": "); unclocked != c.held[who] {
		c.held[who] = unclocked
		c.out.WriteString(text)
	}
	return len(actions) > 0
}
