package faults

import (
	"context"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/protobuf/types/known/durationpb"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"

	"github.com/windlass-dev/windlass/e2e/harness"
)

const (
	ownerName  = "my-backup-controller" // the policy has a role for it
	ownerHook  = "BackupFileSystem"
	mergePatch = "application/merge-patch+json"
)

// owner answers for hooks as a program of a user would: it claims each task that it is shown, works, and completes it.
// It resumes what was interrupted.
type owner struct {
	tasks hookv1.HookTaskServiceClient
	work  time.Duration
	done  sync.WaitGroup

	mu        sync.Mutex
	completed []string // machines
}

// own runs the owner until the test ends.
func own(t *testing.T, c *harness.Cluster, work time.Duration) *owner {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	o := &owner{tasks: hookv1.NewHookTaskServiceClient(c.As(ownerName).Conn()), work: work}
	o.done.Go(func() {
		for ctx.Err() == nil {
			o.serve(ctx)
			pause(ctx, 100*time.Millisecond)
		}
	})
	t.Cleanup(func() {
		cancel()
		o.done.Wait()
	})
	return o
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// serve is one stream of tasks.
func (o *owner) serve(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := o.tasks.StreamHookTasks(ctx, &hookv1.StreamHookTasksRequest{Owners: []string{ownerName}})
	for err == nil {
		var r *hookv1.StreamHookTasksResponse
		if r, err = stream.Recv(); err != nil || r.GetGone() || r.GetTask().GetStatus().GetPhase() == "Completed" {
			continue
		}
		err = o.complete(ctx, r.GetTask())
	}
}

func (o *owner) complete(ctx context.Context, task *hookv1.HookTask) error {
	name := task.GetMetadata().GetName()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if _, err := o.tasks.ClaimHookTask(ctx, &hookv1.ClaimHookTaskRequest{
		Name: name, Duration: durationpb.New(5 * time.Second),
	}); err != nil {
		return err
	}
	pause(ctx, o.work)
	if _, err := o.tasks.CompleteHookTask(ctx, &hookv1.CompleteHookTaskRequest{
		Name: name, Message: "backed up",
	}); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.completed = append(o.completed, task.GetSpec().GetMachineRef().GetName())
	return nil
}

// hookOn puts the owner's preTerminate hook on a machine.
func hookOn(t *testing.T, c *harness.Cluster, machine string) {
	t.Helper()
	patch := []byte(`{"spec":{"lifecycleHooks":{"preTerminate":[{"name":"` + ownerHook + `","owner":"` + ownerName +
		`"}]}}}`)
	c.Wait(20*time.Second, "the hook on "+machine, func(ctx context.Context) (bool, string, error) {
		_, err := machinev1.NewMachineServiceClient(c.Conn()).PatchMachine(ctx, &machinev1.PatchMachineRequest{
			Namespace: harness.Namespace, Name: machine, Patch: &httpbody.HttpBody{ContentType: mergePatch, Data: patch},
		})
		return err == nil, "", err
	})
}
