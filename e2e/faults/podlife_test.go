package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// lifeStep is the time between two moments of a pod's life at which its agent is killed.
const lifeStep = 5 * time.Millisecond

// mortal is a pod with everything that an agent makes for one: an init container, volumes, a process that leaves its
// session. It writes down each start.
const mortal = `apiVersion: v1
kind: Pod
metadata:
  name: %[1]s
  labels: {app: faults}
spec:
  nodeSelector: {kubernetes.io/hostname: %[2]s}
  terminationGracePeriodSeconds: 1
  initContainers:
  - name: before
    command: [/bin/sh, -c, "exit 0"]
  containers:
  - name: main
    command: [/bin/sh, -c, "echo $$ >> $WINDLASS_VOLUME_STARTS/%[1]s; setsid sleep 1000 & exec sleep 1000"]
    volumeMounts:
    - {name: starts, mountPath: /starts}
    - {name: scratch, mountPath: /scratch}
  volumes:
  - name: starts
    hostPath: {path: %[3]s}
  - name: scratch
    emptyDir: {}
`

// TestFaultsKillsOfAnAgentInALifeOfAPod kills the agent of a node at moments of the beginning and of the end of a pod,
// one moment after the other: the pod runs once, and nothing of it is left. With WINDLASS_FAULTS=all there are more
// moments.
func TestFaultsKillsOfAnAgentInALifeOfAPod(t *testing.T) {
	c := shared.Cluster(t)
	c.SettleAll(patience)
	rounds := 8
	if os.Getenv("WINDLASS_FAULTS") == "all" {
		rounds = 40
	}
	worker := c.MustMachines("worker")[0].GetMetadata().GetName()
	starts := t.TempDir()
	if err := os.Chmod(starts, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(starts), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sendHome(t, c) })
	// The moments are spread over all of a life, whose two halves take about a tenth of a second each.
	spread := time.Duration(max(1, 40/rounds)) * lifeStep
	for i := range rounds {
		name, after := fmt.Sprintf("mortal-%d", i), time.Duration(i)*spread
		apply(t, c, fmt.Sprintf(mortal, name, worker, starts))
		killAfter(t, c, worker, after)
		pod := alive(t, c, name)
		uid := pod.GetMetadata().GetUid()
		if n := times(t, c, worker, uid, "main"); n != 1 {
			t.Errorf("killed %s after the creation: the container runs %d times", after, n)
		}
		var raw []byte
		c.Wait(patience, "the container to begin", func(context.Context) (bool, string, error) {
			raw, _ = os.ReadFile(filepath.Join(starts, name))
			return len(raw) > 0, "no start", nil
		})
		if n, said := bytes.Count(raw, []byte("\n")), restarts([]*schedulingv1.Pod{pod}); n > 1+said[name+" "+uid] {
			t.Errorf("killed %s after the creation: %d starts, restarts %v", after, n, said)
		}
		if left := traces(t, c, uid); len(left) == 0 {
			t.Fatal("the test does not find what there is of a pod")
		}
		c.MustCLI("delete", "pod", name, "--wait=false")
		killAfter(t, c, worker, after)
		c.Wait(patience, name+" to go", func(ctx context.Context) (bool, string, error) {
			list, err := c.Pods(ctx, "app=faults")
			return err == nil && !slices.ContainsFunc(list, func(p *schedulingv1.Pod) bool {
				return p.GetMetadata().GetUid() == uid
			}), fmt.Sprintf("%d pods", len(list)), err
		})
		// The agent forgets a pod after the cluster did.
		c.Wait(patience, "nothing to be left of "+name, func(context.Context) (bool, string, error) {
			left := traces(t, c, uid)
			return len(left) == 0, strings.Join(left, "\n"), nil
		})
	}
	c.SettleAll(patience)
}

// killAfter kills the agent of a machine after a while.
func killAfter(t *testing.T, c *harness.Cluster, machine string, after time.Duration) {
	t.Helper()
	time.Sleep(after)
	if err := c.Kill(harness.Agent(machine)); err != nil {
		t.Fatal(err)
	}
}

// alive waits until a pod is ready, and returns it.
func alive(t *testing.T, c *harness.Cluster, name string) (pod *schedulingv1.Pod) {
	t.Helper()
	c.Wait(patience, name+" to be ready", func(ctx context.Context) (bool, string, error) {
		var err error
		pod, err = schedulingv1.NewPodServiceClient(c.Conn()).GetPod(ctx, &schedulingv1.GetPodRequest{
			Namespace: "default", Name: name,
		})
		return slices.ContainsFunc(pod.GetStatus().GetConditions(), func(c *schedulingv1.PodCondition) bool {
			return c.GetType() == "Ready" && c.GetStatus() == "True"
		}), fmt.Sprint(pod.GetStatus()), err
	})
	return pod
}

// times counts the first processes of a container of a pod.
func times(t *testing.T, c *harness.Cluster, machine, uid, container string) (n int) {
	t.Helper()
	for _, p := range containers(t, c, machine) {
		// What left its session leads one of its own. A child has the arguments of the shim until it runs its command.
		if strings.HasSuffix(p.Name, "/"+uid+"."+container) && isShim(p.PID) && !isShim(parentOf(p.PID)) {
			n++
		}
	}
	return n
}

// isShim reports whether a process is a container's first. Its arguments say so from its start, the name that it gives
// itself only some milliseconds later: a pod is Ready by then.
func isShim(pid int) bool {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // it may have ended
	args := strings.Split(string(raw), "\x00")
	return len(args) > 2 && args[1] == "container-shim"
}

// parentOf returns the parent of a process, 0 if it has ended.
func parentOf(pid int) (parent int) {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if i := strings.LastIndex(string(raw), ") "); i >= 0 {
		var state string
		_, _ = fmt.Sscan(string(raw)[i+2:], &state, &parent)
	}
	return parent
}

// traces returns what a host has of a pod: processes, files and directories, control groups, and its address.
func traces(t *testing.T, c *harness.Cluster, uid string) (out []string) {
	t.Helper()
	environs, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range environs {
		if raw, err := os.ReadFile(file); err == nil && bytes.Contains(raw, []byte(uid)) {
			out = append(out, "process "+filepath.Base(filepath.Dir(file)))
		}
	}
	var settings struct {
		PodsDir string `json:"podsDirectory"`
	}
	raw, err := os.ReadFile(c.Dir("cluster.json"))
	if err == nil {
		err = json.Unmarshal(raw, &settings)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{c.Dir("services/provider-local"), settings.PodsDir, "/sys/fs/cgroup"} {
		if dir == "" {
			continue
		}
		// What goes while it is read is no trace.
		_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err == nil && strings.Contains(filepath.Base(path), uid) {
				out = append(out, path)
			}
			return nil
		})
	}
	claims, err := filepath.Glob(c.Dir("services/provider-local/host/pods/*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range claims {
		if raw, err := os.ReadFile(file); err == nil && bytes.Contains(raw, []byte(uid)) {
			out = append(out, "address "+filepath.Base(file))
		}
	}
	return out
}
