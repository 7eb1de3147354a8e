package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/api/httpbody"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// orderedPods are pods that leave a node in the order of a label.
const orderedPods = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: ordered-%[1]s}
spec:
  replicas: 2
  selector: {matchLabels: {app: ordered-%[1]s}}
  template:
    metadata: {labels: {app: ordered-%[1]s, drain-order: "%[1]s"}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: a, image: docker.io/ocpqe/hello-pod}]
---`

// TestTheUseCasesOfHooksWork runs the program of each use case of seed 002 for the hooks of a worker that is deleted.
func TestTheUseCasesOfHooksWork(t *testing.T) {
	c := shared.Cluster(t)
	c.SettleAll(patience)
	admin := c.Admin()
	docs := fmt.Sprintf(orderedPods, "1") + fmt.Sprintf(orderedPods, "2")
	cli(t, admin, docs, "apply", "-f", "-")
	t.Cleanup(func() { cli(t, admin, docs, "delete", "-f", "-") })
	c.SettleAll(patience)
	workers, err := c.Machines(t.Context(), "worker")
	if err != nil || len(workers) == 0 {
		t.Fatalf("workers %v, %v", workers, err)
	}
	machine := workers[0].GetMetadata().GetName()
	type hook struct {
		Name  string `json:"name"`
		Owner string `json:"owner"`
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"lifecycleHooks": map[string]any{
		"preDrain": []hook{
			{"ReplaceFirst", "my-replacement-operator"}, {"OrderedDrain", "my-app-migration-controller"},
		},
		"preTerminate": []hook{
			{"WaitForStorageDetach", "my-custom-storage-detach-controller"}, {"FlushLogs", "my-log-operator"},
		},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := machinev1.NewMachineServiceClient(c.Conn()).PatchMachine(t.Context(), &machinev1.PatchMachineRequest{
		Namespace: harness.Namespace, Name: machine, Patch: &httpbody.HttpBody{ContentType: mergePatch, Data: patch},
	}); err != nil {
		t.Fatal(err)
	}
	ends := []func() string{
		program(t, c, "sh replace-first.sh --once"),
		program(t, c, "sh ordered-drain.sh --once"),
		program(t, c,
			"backup-hook --owner my-custom-storage-detach-controller --once --work 0s --command 'sh storage-detached.sh'"),
		program(t, c, "backup-hook --owner my-log-operator --once --work 0s --command 'sh flush-logs.sh'"),
	}
	c.DeleteMachine(machine)
	c.Wait(patience, machine+" to go", func(ctx context.Context) (bool, string, error) {
		all, err := c.Machines(ctx, "")
		for _, m := range all {
			if m.GetMetadata().GetName() == machine {
				return false, fmt.Sprint(m.GetStatus().GetConditions()), err
			}
		}
		return err == nil, "", err
	})
	for i, want := range []string{
		"machines of workers are ready", "pods were moved in order", "nothing is attached to", "the logs of " + machine,
	} {
		if out := ends[i](); !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	c.Settle(patience)
}

// cli runs the command line as a user, which must succeed.
func cli(t *testing.T, c *harness.Caller, stdin string, args ...string) {
	t.Helper()
	if r, err := c.CLI(stdin, args...); err != nil || r.Code != 0 {
		t.Fatalf("windlass %s: %v\n%s%s", strings.Join(args, " "), err, r.Stdout, r.Stderr)
	}
}

// program starts a line of the shell in the folder of the use cases, with the settings that `windlass env` prints. The
// returned function waits for its end and returns what it printed.
func program(t *testing.T, c *harness.Cluster, line string) (end func() string) {
	t.Helper()
	var path []string
	binary, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"grpcurl", "backup-hook"} {
		tool, err := harness.Tool(name)
		if err != nil {
			t.Fatal(err)
		}
		path = append(path, filepath.Dir(tool))
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	cmd := exec.CommandContext(ctx, "/bin/sh", "-ec", `settings=$("$0" env); eval "$settings"; `+line, binary)
	cmd.Dir = filepath.Join("..", "..", "deploy", "examples", "hooks", "use-cases")
	cmd.Env = []string{
		"PATH=" + filepath.Dir(binary) + ":" + strings.Join(path, ":") + ":/usr/bin:/bin",
		"WINDLASS_HOME=" + c.Dir("..", ".."), "WINDLASS_CLUSTER=" + c.Name(),
	}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(cancel)
	return func() string {
		t.Helper()
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", line, err)
		}
		return out.String()
	}
}
