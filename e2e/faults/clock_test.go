package faults

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/e2e/harness"
)

const (
	clockStep  = time.Hour
	clockTaint = "faults.windlass.dev/clock"
	bears      = 12 * time.Second // that one of the pods tolerates the taint
)

// clockedDocument is two pods on one node that tolerate a taint for a while, one of them longer than the test takes,
// and a cron job whose next time comes in half an hour.
const clockedDocument = `
apiVersion: v1
kind: Pod
metadata: {name: clocked-short, namespace: default, labels: {app: clocked}}
spec:
  nodeSelector: {kubernetes.io/hostname: %[1]s}
  terminationGracePeriodSeconds: 1
  tolerations: [{key: %[2]s, operator: Exists, effect: NoExecute, tolerationSeconds: %[3]d}]
  containers: [{name: hello, image: docker.io/ocpqe/hello-pod}]
---
apiVersion: v1
kind: Pod
metadata: {name: clocked-long, namespace: default, labels: {app: clocked}}
spec:
  nodeSelector: {kubernetes.io/hostname: %[1]s}
  terminationGracePeriodSeconds: 1
  tolerations: [{key: %[2]s, operator: Exists, effect: NoExecute, tolerationSeconds: 3000}]
  containers: [{name: hello, image: docker.io/ocpqe/hello-pod}]
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: clocked, namespace: default}
spec:
  schedule: "%[4]s"
  timeZone: Etc/UTC
  jobTemplate:
    spec:
      template:
        metadata: {labels: {app: clocked-run}}
        spec:
          restartPolicy: Never
          containers: [{name: run, command: ["true"]}]
`

const laterPod = `
apiVersion: v1
kind: Pod
metadata: {name: clocked-later, namespace: default, labels: {app: clocked}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: hello, image: docker.io/ocpqe/hello-pod}]
`

// The wall clocks of the services that evict and schedule are set forward by an hour, and back, while a pod has some
// seconds left on its node and a cron job half an hour. No pod is evicted before its time, no node is lost, the time of
// the cron job has one job, and both services go on with their work. With WINDLASS_FAULTS=all that is so three times in
// a row, and both services are killed while their clocks are ahead.
func TestFaultsTheClockOfAServiceIsSet(t *testing.T) {
	c := shared.Cluster(t)
	c.SettleAll(patience)
	worker := c.MustMachines("worker")[0].GetMetadata().GetName()
	t.Cleanup(func() {
		setClocks(c, 0)
		_ = run(c, "adm", "taint", "nodes", worker, clockTaint+"-") // it is gone if all went well
		insist(c, "delete", "cronjob/clocked", "pod/clocked-short", "pod/clocked-long", "pod/clocked-later",
			"--ignore-not-found")
		c.SettleAll(patience)
	})
	stepClocks(t, c, worker, false)
	if os.Getenv("WINDLASS_FAULTS") == "all" {
		stepClocks(t, c, worker, true)
		stepClocks(t, c, worker, true)
	}
}

// clocks are the services whose clocks are set.
var clocks = []string{"eviction-controller", "scheduler"}

func setClocks(c *harness.Cluster, ahead time.Duration) {
	for _, name := range clocks {
		c.SetClock(name, ahead)
	}
}

func stepClocks(t *testing.T, c *harness.Cluster, worker string, kill bool) {
	t.Helper()
	due := time.Now().UTC().Add(clockStep / 2)
	apply(t, c, fmt.Sprintf(clockedDocument, worker, clockTaint, bears/time.Second, fmt.Sprintf("%d %d * * *",
		due.Minute(), due.Hour())))
	c.Wait(patience, "pods that run", func(ctx context.Context) (bool, string, error) {
		list, err := c.Pods(ctx, "app=clocked")
		n := 0
		for _, p := range list {
			if isReady(p) {
				n++
			}
		}
		return n == 2, fmt.Sprintf("%d of 2", n), err
	})
	record := c.Record()
	began := time.Now()
	insist(c, "adm", "taint", "nodes", worker, clockTaint+"=:NoExecute")

	setClocks(c, clockStep)
	apply(t, c, laterPod)
	c.Wait(patience, "a pod that is placed by a clock that is ahead", func(ctx context.Context) (bool, string, error) {
		p, err := clocked(ctx, c, "clocked-later")
		return err == nil && isReady(p), fmt.Sprint(p.GetStatus()), err
	})
	first := runsOf(t, c, "forward", 1)
	if kill {
		for _, name := range clocks {
			if err := c.Kill(name); err != nil {
				t.Fatal(err)
			}
		}
		c.Wait(patience, "others in their place", func(ctx context.Context) (bool, string, error) {
			_, err := c.Nodes(ctx)
			return err == nil && run(c, "get", "pods") == nil, "", err
		})
	} else {
		setClocks(c, 0)
	}
	back := runsOf(t, c, "back", 1)
	setClocks(c, clockStep)
	again := runsOf(t, c, "forward-again", 1)
	for when, runs := range map[string]string{"back": back, "forward again": again} {
		if runs != first {
			t.Errorf("the clock was set %s: the cron job has the jobs %s, and had %s", when, runs, first)
		}
	}
	setClocks(c, 0)

	var after time.Duration
	c.Wait(patience, "clocked-short to be evicted", func(ctx context.Context) (bool, string, error) {
		p, err := clocked(ctx, c, "clocked-short")
		after = time.Since(began)
		return isGone(err) || err == nil && p.GetMetadata().GetDeletionTimestamp() != nil, fmt.Sprint(p.GetStatus()), err
	})
	t.Logf("evicted %v after the taint was requested", after.Round(time.Millisecond))
	if after < bears {
		t.Errorf("clocked-short, which tolerates the taint for %v, is evicted %v after it", bears, after)
	}
	if p, err := clocked(t.Context(), c, "clocked-long"); err != nil || p.GetMetadata().GetDeletionTimestamp() != nil {
		t.Errorf("clocked-long is evicted: %v, %v", p.GetMetadata(), err)
	}
	insist(c, "adm", "taint", "nodes", worker, clockTaint+"-")
	for _, step := range record.Steps() {
		if n, ok := step.Object.(*nodev1.Node); ok && !step.Deleted && readyOf(n) != "True" {
			t.Errorf("revision %d: node %s is Ready=%s, and its agent was never stopped", step.Revision,
				n.GetMetadata().GetName(), readyOf(n))
		}
	}
	insist(c, "delete", "cronjob/clocked", "pod/clocked-short", "pod/clocked-long", "pod/clocked-later",
		"--ignore-not-found")
	c.SettleAll(patience)
	record.Check()
}

// clocked returns a pod of the documents.
func clocked(ctx context.Context, c *harness.Cluster, name string) (*schedulingv1.Pod, error) {
	return schedulingv1.NewPodServiceClient(c.Conn()).GetPod(ctx, &schedulingv1.GetPodRequest{
		Namespace: "default", Name: name,
	})
}

// runsOf has the cron job be decided on again, waits until it has that many jobs, and returns them.
func runsOf(t *testing.T, c *harness.Cluster, mark string, n int) string {
	t.Helper()
	insist(c, "annotate", "cronjob", "clocked", "faults.windlass.dev/mark="+mark, "--overwrite")
	var jobs []string
	look := func(ctx context.Context) (string, error) {
		list, err := schedulingv1.NewJobServiceClient(c.Conn()).ListJobs(ctx, &schedulingv1.ListJobsRequest{
			Namespace: "default",
		})
		if err != nil {
			return "", err // what was seen before counts
		}
		jobs = nil
		for _, j := range list.GetItems() {
			if strings.HasPrefix(j.GetMetadata().GetName(), "clocked-") {
				jobs = append(jobs, j.GetMetadata().GetName()+" "+j.GetMetadata().GetUid())
			}
		}
		if len(jobs) > n {
			return fmt.Sprintf("%d jobs, at most %d wanted: %s", len(jobs), n, jobs), nil
		}
		return "", nil
	}
	c.Wait(patience, fmt.Sprintf("%d jobs of the cron job", n), func(ctx context.Context) (bool, string, error) {
		wrong, err := look(ctx)
		return len(jobs) >= n, fmt.Sprint(jobs, wrong), err
	})
	c.Hold(time.Second, "a job for each time", look) // a decision on the cron job takes much less
	slices.Sort(jobs)
	return strings.Join(jobs, ", ")
}
