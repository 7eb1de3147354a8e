package faults

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"

	"github.com/windlass-dev/windlass/e2e/harness"
)

const (
	annotation    = "machineconfiguration.openshift.io/"
	currentConfig = annotation + "currentConfig"
	desiredConfig = annotation + "desiredConfig"
	stateOfConfig = annotation + "state"
)

// hello is the budget of the example's pods: a disruption leaves two of them ready.
var hello = harness.Promise{Namespace: "default", Labels: map[string]string{"app": "hello"}, Ready: 2}

// course is something that takes its course: a drain, a roll-out or an update.
type course struct {
	name    string
	moments []string // at which programs are killed
	// run has it take its course, calls at with each moment that is reached, and returns when it has ended.
	run func(c *passage)
}

var courses = []course{
	{"drain", []string{"cordoned", "evicting"}, drain},
	{"roll-out", []string{"ordered", "emptied", "applied"}, rollOut},
	{"update", []string{"accepted", "waiting", "rolling"}, update},
	{"eviction", []string{"tainted", "leaving"}, evict},
}

// passage is one run of a course.
type passage struct {
	t    *testing.T
	c    *harness.Cluster
	r    *harness.Record
	at   func(moment string)
	node string // that things happen to at the moment
}

// moment is a point of a course, and how it is seen in the record.
type moment struct {
	name string
	seen func([]harness.Step) bool
}

// follow waits for one moment after the other and calls at with each.
func (p *passage) follow(moments ...moment) {
	p.t.Helper()
	for _, m := range moments {
		p.c.Wait(patience, m.name, func(context.Context) (bool, string, error) { return m.seen(p.r.Steps()), "", nil })
		p.at(m.name)
	}
}

// after returns the steps that are not recorded yet: it shows what comes from now on.
func (p *passage) after() func([]harness.Step) []harness.Step {
	had := int64(0)
	for _, s := range p.r.Steps() {
		had = max(had, s.Revision)
	}
	return func(all []harness.Step) []harness.Step {
		i := slices.IndexFunc(all, func(s harness.Step) bool { return s.Revision > had })
		if i < 0 {
			return nil
		}
		return all[i:]
	}
}

// ask asks until there is an answer: a program may be dead at the moment.
func (p *passage) ask(what string, call func(context.Context) error) {
	p.t.Helper()
	p.c.Wait(patience, what, func(ctx context.Context) (bool, string, error) {
		err := call(ctx)
		return err == nil, "", err
	})
}

// drain empties a worker and gives it back.
func drain(p *passage) {
	const name = "faults"
	p.node = busiest(p.t, p.c)
	drains := nodev1.NewDrainServiceClient(p.c.Conn())
	fresh := p.after()
	p.ask("the drain to be accepted", func(ctx context.Context) error {
		_, err := drains.CreateDrain(ctx, &nodev1.CreateDrainRequest{Drain: &nodev1.Drain{
			Metadata: &metav1.ObjectMeta{Name: name},
			Spec: &nodev1.DrainSpec{
				NodeName: p.node, Reason: "to see it through", IgnoreDaemonSets: proto.Bool(true),
				DeleteEmptyDirData: proto.Bool(true),
			},
		}})
		if status.Code(err) == codes.AlreadyExists {
			return nil // the answer was lost
		}
		return err
	})
	p.follow(
		moment{"cordoned", func(all []harness.Step) bool {
			return slices.ContainsFunc(fresh(all), func(s harness.Step) bool {
				n, ok := s.Object.(*nodev1.Node)
				return ok && n.GetMetadata().GetName() == p.node && n.GetSpec().GetUnschedulable()
			})
		}},
		moment{"evicting", func(all []harness.Step) bool { return leaving(fresh(all), p.node) }},
		moment{"emptied", func(all []harness.Step) bool { return emptied(fresh(all), name) }},
	)
	for _, pod := range podsOn(p.t, p.c, p.node) {
		if !daemon(pod) {
			p.t.Errorf("node %s is drained, and pod %s is there", p.node, pod.GetMetadata().GetName())
		}
	}
	p.ask("the drain to be taken back", func(ctx context.Context) error {
		if _, err := drains.DeleteDrain(ctx, &nodev1.DeleteDrainRequest{Name: name}); !isGone(err) {
			return err
		}
		return nil
	})
}

func leaving(steps []harness.Step, node string) bool {
	return slices.ContainsFunc(steps, func(s harness.Step) bool {
		pod, ok := s.Object.(*schedulingv1.Pod)
		return ok && pod.GetSpec().GetNodeName() == node && pod.GetMetadata().GetDeletionTimestamp() != nil
	})
}

// emptied reports whether a drain has succeeded. The node of a roll-out may have gone on since.
func emptied(steps []harness.Step, name string) bool {
	return slices.ContainsFunc(steps, func(s harness.Step) bool {
		d, ok := s.Object.(*nodev1.Drain)
		return ok && d.GetMetadata().GetName() == name && d.GetStatus().GetPhase() == "Succeeded"
	})
}

// busiest is the worker with the most pods that a drain evicts.
func busiest(t *testing.T, c *harness.Cluster) string {
	t.Helper()
	name, most := "", 0
	for _, m := range c.MustMachines("worker") {
		n := 0
		for _, pod := range podsOn(t, c, m.GetMetadata().GetName()) {
			if !daemon(pod) {
				n++
			}
		}
		if n > most {
			name, most = m.GetMetadata().GetName(), n
		}
	}
	if name == "" {
		t.Fatal("no worker has a pod to evict")
	}
	return name
}

func podsOn(t *testing.T, c *harness.Cluster, node string) []*schedulingv1.Pod {
	t.Helper()
	var out []*schedulingv1.Pod
	c.Wait(patience, "a list of pods", func(ctx context.Context) (bool, string, error) {
		list, err := c.Pods(ctx, "")
		out = slices.DeleteFunc(list, func(p *schedulingv1.Pod) bool { return p.GetSpec().GetNodeName() != node })
		return err == nil, "", err
	})
	return out
}

func daemon(pod *schedulingv1.Pod) bool {
	return slices.ContainsFunc(pod.GetMetadata().GetOwnerReferences(), func(o *metav1.OwnerReference) bool {
		return o.GetKind() == "DaemonSet"
	})
}

// rollOut brings another file to the workers.
func rollOut(p *passage) {
	before := target(p.t, p.c, "worker")
	fresh := p.after()
	apply(p.t, p.c, machineConfig("60-worker-faults", fmt.Sprintf("made at %s", time.Now().Format(time.RFC3339Nano)), ""))
	p.follow(
		moment{"ordered", func(all []harness.Step) bool { return p.changing(fresh(all)) }},
		moment{"emptied", func(all []harness.Step) bool { return emptied(fresh(all), "machine-config-"+p.node) }},
		moment{"applied", func(all []harness.Step) bool {
			return slices.ContainsFunc(fresh(all), func(s harness.Step) bool {
				n, ok := s.Object.(*nodev1.Node)
				marks := n.GetMetadata().GetAnnotations()
				return ok && n.GetMetadata().GetName() == p.node && marks[currentConfig] != before &&
					marks[currentConfig] == marks[desiredConfig] && marks[stateOfConfig] == "Done"
			})
		}},
	)
	rolledOut(p.t, p.c, "worker", before)
}

// changing reports whether a node must change, and keeps the first one.
func (p *passage) changing(steps []harness.Step) bool {
	for _, s := range steps {
		n, ok := s.Object.(*nodev1.Node)
		marks := n.GetMetadata().GetAnnotations()
		if ok && marks[desiredConfig] != marks[currentConfig] && marks[currentConfig] != "" {
			p.node = n.GetMetadata().GetName()
			return true
		}
	}
	return false
}

// target returns the desired configuration of a pool's nodes.
func target(t *testing.T, c *harness.Cluster, pool string) string {
	t.Helper()
	var name string
	c.Wait(patience, "pool "+pool, func(ctx context.Context) (bool, string, error) {
		have, err := c.Pool(ctx, pool)
		name = have.GetSpec().GetConfiguration().GetName()
		return name != "", "it has no configuration", err
	})
	return name
}

// rolledOut waits until a pool's nodes have another configuration than before.
func rolledOut(t *testing.T, c *harness.Cluster, pool, before string) {
	t.Helper()
	c.Wait(patience, "the roll-out of pool "+pool, func(ctx context.Context) (bool, string, error) {
		have, err := c.Pool(ctx, pool)
		is, text := harness.Condition(have.GetStatus().GetConditions(), "Updated")
		name := have.GetSpec().GetConfiguration().GetName()
		return is == "True" && name != before && have.GetStatus().GetConfiguration().GetName() == name, text, err
	})
}

// machineConfig is a document with a file and a unit for the workers. A unit without command is none.
func machineConfig(name, text, command string) string {
	unit := ""
	if command != "" {
		unit = `
    systemd:
      units:
      - name: faults.service
        enabled: true
        contents: |
          [Service]
          ExecStart=` + command + `
          [Install]
          WantedBy=multi-user.target`
	}
	return `apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: ` + name + `
  labels:
    machineconfiguration.openshift.io/role: worker
spec:
  config:
    ignition:
      version: 3.4.0
    storage:
      files:
      - path: /etc/faults
        mode: 0644
        overwrite: true
        contents: {source: "data:;base64,` + base64.StdEncoding.EncodeToString([]byte(text)) + `"}` + unit + "\n"
}

// apply applies documents until that is acknowledged.
func apply(t *testing.T, c *harness.Cluster, documents string) {
	t.Helper()
	c.Wait(patience, "documents to be applied", func(context.Context) (bool, string, error) {
		r, err := c.Admin().CLI(documents, "apply", "-f", "-")
		if strings.Contains(r.Stderr, "(Invalid)") {
			t.Fatal(r.Stderr) // it stays so
		}
		return err == nil && r.Code == 0, r.Stderr, err
	})
}

// update brings the cluster to the next release.
func update(p *passage) {
	p.c.Play("example-operators", "--work", "300ms")
	p.node = busiest(p.t, p.c) // until nodes change
	have := version(p.t, p.c)
	was := have.GetStatus().GetHistory()
	next := following(p.t, have.GetStatus().GetDesired().GetVersion())
	image := newRelease(p.t, p.c, next, have.GetStatus().GetDesired().GetVersion())
	master, worker := target(p.t, p.c, "master"), target(p.t, p.c, "worker")
	fresh := p.after()
	p.ask("the desired update to be accepted", func(context.Context) error {
		r, err := p.c.Admin().CLI("", "adm", "upgrade", "--to-image", image, "--allow-explicit-upgrade")
		if err == nil && r.Code != 0 {
			err = fmt.Errorf("%s", r.Stderr)
		}
		return err
	})
	of := func(steps []harness.Step, holds func(*updatev1.ClusterVersion) bool) bool {
		return slices.ContainsFunc(fresh(steps), func(s harness.Step) bool {
			v, ok := s.Object.(*updatev1.ClusterVersion)
			return ok && len(v.GetStatus().GetHistory()) > 0 && v.GetStatus().GetHistory()[0].GetVersion() == next && holds(v)
		})
	}
	p.follow(
		moment{"accepted", func(all []harness.Step) bool {
			return of(all, func(*updatev1.ClusterVersion) bool { return true })
		}},
		moment{"waiting", func(all []harness.Step) bool {
			return of(all, func(v *updatev1.ClusterVersion) bool { return len(v.GetStatus().GetProgress().GetWaits()) > 0 })
		}},
		moment{"rolling", func(all []harness.Step) bool { return p.changing(fresh(all)) }},
	)
	p.c.Wait(patience, "the update to be complete", func(ctx context.Context) (bool, string, error) {
		v, err := p.c.Version(ctx)
		h := v.GetStatus().GetHistory()
		return len(h) > 0 && h[0].GetVersion() == next && h[0].GetState() == "Completed",
			fmt.Sprint(v.GetStatus().GetConditions()), err
	})
	rolledOut(p.t, p.c, "master", master)
	rolledOut(p.t, p.c, "worker", worker)
	now := version(p.t, p.c).GetStatus().GetHistory()
	if len(now) != len(was)+1 || now[0].GetImage() != image || !now[0].GetVerified() {
		p.t.Errorf("after the update to %s (%s) the history is %v, it was %v", next, image, now, was)
	}
}

func version(t *testing.T, c *harness.Cluster) *updatev1.ClusterVersion {
	t.Helper()
	var out *updatev1.ClusterVersion
	c.Wait(patience, "the cluster's version", func(ctx context.Context) (bool, string, error) {
		v, err := c.Version(ctx)
		out = v
		return err == nil && v.GetStatus().GetDesired().GetVersion() != "", "none is known", err
	})
	return out
}

// following is the next minor version.
func following(t *testing.T, v string) string {
	t.Helper()
	var major, minor, patch int
	if _, err := fmt.Sscanf(v, "%d.%d.%d", &major, &minor, &patch); err != nil {
		t.Fatalf("version %q: %v", v, err)
	}
	return fmt.Sprintf("%d.%d.0", major, minor+1)
}

// newRelease makes the example's second release again under another version, among the cluster's own, and returns its
// image.
func newRelease(t *testing.T, c *harness.Cluster, version, previous string) string {
	t.Helper()
	return strings.TrimSpace(c.MustCLI("adm", "release", "new", "--from-dir", manifests(t, version), "--version", version,
		"--previous", previous,
		"--to", c.Dir("release", "images"), "--signing-key", c.Dir("release", "signing-key.asc"), "--signature-store",
		c.Dir("release", "signatures"), "-o", "name"))
}

// manifests returns a directory with the example's second release under another version.
func manifests(t *testing.T, version string) string {
	t.Helper()
	const example = "1.1.0"
	from, to := filepath.Join(harness.Root(), "services", "windlass", "example", "releases", example), t.TempDir()
	files, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		raw, err := os.ReadFile(filepath.Join(from, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, f.Name()), bytes.ReplaceAll(raw, []byte(example), []byte(version)),
			0o644); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// evict taints a worker, so that its pods leave: those of the example after two seconds.
func evict(p *passage) {
	const key, bears = "example.com/faults", 2 * time.Second
	p.node = p.c.MustMachines("worker")[0].GetMetadata().GetName()
	apply(p.t, p.c, guests(p.node, key, int(bears.Seconds())))
	p.c.SettleAll(patience)
	fresh := p.after()
	p.ask("the taint", func(context.Context) error {
		return run(p.c, "adm", "taint", "node", p.node, key+"=yes:NoExecute")
	})
	p.follow(
		moment{"tainted", func(all []harness.Step) bool {
			return slices.ContainsFunc(fresh(all), func(s harness.Step) bool {
				n, ok := s.Object.(*nodev1.Node)
				return ok && slices.ContainsFunc(n.GetSpec().GetTaints(), func(t *nodev1.Taint) bool { return t.GetKey() == key })
			})
		}},
		moment{"leaving", func(all []harness.Step) bool { return leaving(fresh(all), p.node) }},
	)
	p.c.Wait(patience, "the pods to leave", func(ctx context.Context) (bool, string, error) {
		list, err := p.c.Pods(ctx, "app=faults")
		return err == nil && len(list) == 1 && list[0].GetMetadata().GetName() == "faults-stays",
			fmt.Sprintf("%d are there", len(list)), err
	})
	p.ask("the taint to go", func(context.Context) error { return run(p.c, "adm", "taint", "node", p.node, key+"-") })
	p.ask("the last pod to go", func(ctx context.Context) error {
		_, err := schedulingv1.NewPodServiceClient(p.c.Conn()).DeletePod(ctx, &schedulingv1.DeletePodRequest{
			Namespace: "default", Name: "faults-stays",
		})
		if isGone(err) {
			return nil
		}
		return err
	})
	p.c.Wait(patience, "the last pod to be gone", func(ctx context.Context) (bool, string, error) {
		list, err := p.c.Pods(ctx, "app=faults")
		return err == nil && len(list) == 0, "", err
	})
}

// run runs the command line as the administrator.
func run(c *harness.Cluster, args ...string) error {
	r, err := c.Admin().CLI("", args...)
	if err == nil && r.Code != 0 {
		err = fmt.Errorf("windlass %v: %s", args, r.Stderr)
	}
	return err
}

// guests are three pods on a node: one tolerates a taint for a while, one permanently, one not at all.
func guests(node, key string, seconds int) string {
	pod := func(name, tolerations string) string {
		return `---
apiVersion: v1
kind: Pod
metadata:
  name: faults-` + name + `
  labels: {app: faults}
spec:
  nodeSelector: {kubernetes.io/hostname: ` + node + `}
  terminationGracePeriodSeconds: 1
  containers:
  - name: hello-pod
    image: docker.io/ocpqe/hello-pod
  tolerations: ` + tolerations + "\n"
	}
	return pod("waits", fmt.Sprintf("[{key: %s, operator: Exists, tolerationSeconds: %d}]", key, seconds)) +
		pod("stays", fmt.Sprintf("[{key: %s, operator: Exists}]", key)) + pod("leaves", "[]")
}
