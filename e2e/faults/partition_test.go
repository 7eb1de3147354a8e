package faults

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// partedDocument is pods that leave a node one second after it cannot be reached, some of which have an identity of
// their own.
const partedDocument = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: parted, namespace: default}
spec:
  replicas: 2
  selector: {matchLabels: {app: parted}}
  template:
    metadata: {labels: {app: parted}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations:
      - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
      containers: [{name: hello, image: docker.io/ocpqe/hello-pod}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: single, namespace: default}
spec:
  serviceName: single
  replicas: 1
  selector: {matchLabels: {app: single}}
  template:
    metadata: {labels: {app: single}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations:
      - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
      containers: [{name: hello, image: docker.io/ocpqe/hello-pod}]
`

// A worker's agent is cut off from the gateway while its pods run on. The node is lost, its pods are evicted in their
// time, and those of a deployment are replaced elsewhere. That of a stateful set is not, since nothing says that it has
// ended. When the agent is back it ends all that was evicted, and each pod runs once. With WINDLASS_FAULTS=all that is
// so three times in a row.
func TestFaultsAnAgentIsCutOffFromTheGateway(t *testing.T) {
	c := shared.Cluster(t)
	c.SettleAll(patience)
	workers := c.MustMachines("worker")
	cut, other := workers[0].GetMetadata().GetName(), workers[1].GetMetadata().GetName()
	link := c.LinkOf(cut)
	c.SettleAll(patience)
	t.Cleanup(func() {
		insist(c, "delete", "deployment/parted", "statefulset/single", "--ignore-not-found", "--wait=false")
		link.Heal()
		c.SettleAll(patience)
	})
	times := 1
	if os.Getenv("WINDLASS_FAULTS") == "all" {
		times = 3
	}
	for range times {
		partition(t, c, link, cut, other)
	}
}

func partition(t *testing.T, c *harness.Cluster, link *harness.Link, cut, other string) {
	t.Helper()
	insist(c, "adm", "cordon", other) // so that all pods of the test begin on the node that is cut off
	apply(t, c, partedDocument)
	begun := running(t, c, 3, func(p *schedulingv1.Pod) bool { return p.GetSpec().GetNodeName() == cut })
	insist(c, "adm", "uncordon", other)
	c.SettleAll(patience)
	record := c.Record()
	twice := watchSingle(t, c, record)

	link.Cut()
	c.Wait(patience, "the node to be lost", func(ctx context.Context) (bool, string, error) {
		n, err := node(ctx, c, cut)
		return err == nil && readyOf(n) == "Unknown", readyOf(n), err
	})
	c.Wait(patience, "the pods on it to be evicted, and replaced elsewhere", func(ctx context.Context) (bool, string,
		error,
	) {
		list, err := testPods(ctx, c)
		leave, fresh := 0, 0
		for _, p := range list {
			switch uid := p.GetMetadata().GetUid(); {
			case slices.Contains(begun, uid) && p.GetMetadata().GetDeletionTimestamp() != nil:
				leave++
			case !slices.Contains(begun, uid) && p.GetSpec().GetNodeName() == other && isReady(p):
				fresh++
			}
		}
		return leave == 3 && fresh == 2, fmt.Sprintf("%d of 3 are to leave, %d of 2 run elsewhere", leave, fresh), err
	})
	// Their processes know nothing of that, and the one of the stateful set is not replaced.
	c.Hold(5*time.Second, "the pods that are cut off", func(ctx context.Context) (string, error) {
		list, err := testPods(ctx, c)
		if err != nil {
			return "", err
		}
		for _, p := range list {
			if p.GetMetadata().GetName() == "single-0" && !slices.Contains(begun, p.GetMetadata().GetUid()) {
				return "single-0 is made again, and the former one may still run", nil
			}
		}
		here := containers(t, c, cut)
		for _, uid := range begun {
			if !slices.ContainsFunc(here, func(p harness.Process) bool { return strings.Contains(p.Name, uid) }) {
				return fmt.Sprintf("no process of pod %s in %v", uid, here), nil
			}
		}
		return "", nil
	})

	link.Heal()
	c.Wait(patience, "the pods that were evicted to end", func(ctx context.Context) (bool, string, error) {
		list, err := testPods(ctx, c)
		for _, p := range list {
			if slices.Contains(begun, p.GetMetadata().GetUid()) {
				return false, p.GetMetadata().GetName() + " is there", err
			}
		}
		for _, p := range containers(t, c, cut) {
			if slices.ContainsFunc(begun, func(uid string) bool { return strings.Contains(p.Name, uid) }) {
				return false, p.Name + " runs", err
			}
		}
		return err == nil, "", err
	})
	c.SettleAll(patience)
	running(t, c, 3, func(p *schedulingv1.Pod) bool { return !slices.Contains(begun, p.GetMetadata().GetUid()) })
	for _, fault := range twice() {
		t.Error(fault)
	}
	record.Check()
	insist(c, "delete", "deployment/parted", "statefulset/single", "--ignore-not-found", "--wait=false")
	c.Wait(patience, "the test's pods to go", func(ctx context.Context) (bool, string, error) {
		list, err := testPods(ctx, c)
		return err == nil && len(list) == 0, fmt.Sprintf("%d are there", len(list)), err
	})
}

// watchSingle looks whether two pods of the one name of the stateful set have a process at once, until the returned
// function is called, which says what was seen.
func watchSingle(t *testing.T, c *harness.Cluster, record *harness.Record) (faults func() []string) {
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	var seen []string
	looks := 0
	done.Go(func() {
		for ; ctx.Err() == nil; pause(ctx, 100*time.Millisecond) {
			list, err := c.Processes()
			if err != nil {
				continue
			}
			uids := map[string]bool{}
			for _, step := range record.Steps() {
				if p, ok := step.Object.(*schedulingv1.Pod); ok && p.GetMetadata().GetName() == "single-0" {
					uids[p.GetMetadata().GetUid()] = true
				}
			}
			if text := runAtOnce(list, uids); text != "" && !slices.Contains(seen, text) {
				seen = append(seen, text)
			}
			looks++
		}
	})
	stop := func() { cancel(); done.Wait() }
	t.Cleanup(stop)
	return func() []string {
		stop()
		if looks == 0 {
			seen = append(seen, "the processes of the stateful set were never checked")
		}
		return seen
	}
}

// runAtOnce says which processes are of different pods of a set of uids; nothing if all are of one.
func runAtOnce(list []harness.Process, uids map[string]bool) string {
	var found []string
	of := map[string]bool{}
	for _, p := range list {
		for uid := range uids {
			if strings.HasPrefix(p.Name, "pod/") && strings.Contains(p.Name, uid) {
				of[uid] = true
				found = append(found, p.String())
			}
		}
	}
	if len(of) < 2 {
		return ""
	}
	return fmt.Sprintf("pods of one name run at once: %v", found)
}

func TestPodsOfOneNameThatRunAtOnceAreSeen(t *testing.T) {
	uids := map[string]bool{"a": true, "b": true}
	one, again := harness.Process{Name: "pod/m-1/a.hello", PID: 1}, harness.Process{Name: "pod/m-2/b.hello", PID: 2}
	if got := runAtOnce([]harness.Process{one, {Name: "pod/m-1/c.hello", PID: 3}, {Name: "b", PID: 4}}, uids); got != "" {
		t.Errorf("of one it is said: %s", got)
	}
	if got := runAtOnce([]harness.Process{one, again}, uids); !strings.Contains(got, "(1)") ||
		!strings.Contains(got, "(2)") {
		t.Errorf("of two it is said: %q", got)
	}
}

// testPods returns the pods of the document.
func testPods(ctx context.Context, c *harness.Cluster) ([]*schedulingv1.Pod, error) {
	return c.Pods(ctx, "app in (parted,single)")
}

// running waits until there are n pods of the document, all of them ready and as wanted, and returns their uids.
func running(t *testing.T, c *harness.Cluster, n int, wanted func(*schedulingv1.Pod) bool) (uids []string) {
	t.Helper()
	c.Wait(patience, fmt.Sprintf("%d pods that run", n), func(ctx context.Context) (bool, string, error) {
		list, err := testPods(ctx, c)
		uids = nil
		for _, p := range list {
			if isReady(p) && p.GetMetadata().GetDeletionTimestamp() == nil && wanted(p) {
				uids = append(uids, p.GetMetadata().GetUid())
			}
		}
		return len(uids) == n && len(list) == n, fmt.Sprintf("%d of %d pods", len(uids), len(list)), err
	})
	return uids
}

func isReady(p *schedulingv1.Pod) bool {
	return slices.ContainsFunc(p.GetStatus().GetConditions(), func(c *schedulingv1.PodCondition) bool {
		return c.GetType() == "Ready" && c.GetStatus() == "True"
	})
}

// readyOf returns the status of a node's condition Ready.
func readyOf(n *nodev1.Node) string {
	for _, c := range n.GetStatus().GetConditions() {
		if c.GetType() == "Ready" {
			return c.GetStatus()
		}
	}
	return ""
}
