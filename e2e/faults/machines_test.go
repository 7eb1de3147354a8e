package faults

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/protobuf/types/known/durationpb"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"

	"github.com/windlass-dev/windlass/e2e/harness"
)

func TestFaultsTwoReplacementsAtOnce(t *testing.T) {
	c := shared.Cluster(t)
	c.Settle(patience)
	writers, prober := c.Write(), c.Probe()
	masters := c.MustMachines("master")
	one, two := masters[0].GetMetadata().GetName(), masters[1].GetMetadata().GetName()
	first, second := follow(t, c, one), follow(t, c, two)
	c.DeleteMachine(one)
	c.DeleteMachine(two)
	most := 0
	c.Wait(2*patience, "both replacements", func(ctx context.Context) (bool, string, error) {
		list, err := c.Machines(ctx, "master")
		if err != nil {
			return false, "", err
		}
		most = max(most, len(list))
		for _, r := range []*replacement{first, second} {
			if _, err := r.advance(ctx); err != nil {
				return false, "", err
			}
		}
		return first.has(ended) && second.has(ended), fmt.Sprintf("the first is at %q, the second at %q", first.at(),
			second.at()), nil
	})
	for _, f := range append(first.faults, second.faults...) {
		t.Error(f)
	}
	if most > 4 {
		t.Errorf("there were %d control-plane machines: they are to be replaced one after the other", most)
	}
	c.Settle(patience)
	prober.Check()
	writers.Check()
}

func TestFaultsAReplacementMachineThatNeverBoots(t *testing.T) {
	c := shared.Cluster(t)
	c.Settle(patience)
	writers, prober := c.Write(), c.Probe()
	// OnDelete: the others must not be replaced because of the template.
	template(t, c, "OnDelete", `"Never"`)
	masters := c.MustMachines("master")
	old := masters[0].GetMetadata().GetName()
	r := follow(t, c, old)
	c.DeleteMachine(old)
	c.Wait(patience, "the machine that does not boot", func(ctx context.Context) (bool, string, error) {
		_, err := r.advance(ctx)
		return r.has(created), "", err
	})
	broken := r.new
	c.Hold(8*time.Second, "everything waits for the replacement", func(ctx context.Context) (string, error) {
		v, err := r.look(ctx)
		if err != nil {
			return "", err
		}
		done := r.done(v)
		for _, s := range []step{learning, left, unhooked, drained, terminated, ended} {
			if done[s] {
				return s.String(), nil
			}
		}
		return "", nil
	})
	q, err := c.Quorum(t.Context())
	if err != nil || !strings.Contains(q.GetWaitsFor(), broken) {
		t.Errorf("the quorum waits for %q, which does not name %s (%v)", q.GetWaitsFor(), broken, err)
	}
	// A user corrects the template; the machine that was made by the wrong one never joined, so it is no
	// loss.
	template(t, c, "RollingUpdate", "null")
	c.Wait(patience, broken+" to go, and "+old+" to be replaced", func(ctx context.Context) (bool, string, error) {
		_, errBroken := c.Machine(ctx, broken)
		_, errOld := c.Machine(ctx, old)
		return isGone(errBroken) && isGone(errOld), fmt.Sprintf("%v, %v", errBroken, errOld), nil
	})
	c.Settle(patience)
	prober.Check()
	writers.Check()
}

// template sets how the control plane is replaced, and how its new machines fail to boot.
func template(t *testing.T, c *harness.Cluster, strategy, boot string) {
	t.Helper()
	failure := `{"boot":` + boot + `}`
	if boot == "null" {
		failure = "null"
	}
	patch := []byte(
		fmt.Sprintf(
			`{"spec":{"strategy":{"type":%q},"template":{"machines_v1beta1_machine_openshift_io":{"spec":{"providerSpec":{"value":{"failure":%s}}}}}}}`,
			strategy, failure))
	c.Wait(20*time.Second, "the template to be changed", func(ctx context.Context) (bool, string, error) {
		_, err := machinev1.NewControlPlaneMachineSetServiceClient(c.Conn()).PatchControlPlaneMachineSet(ctx,
			&machinev1.PatchControlPlaneMachineSetRequest{
				Namespace: harness.Namespace, Name: "cluster", Patch: &httpbody.HttpBody{ContentType: mergePatch, Data: patch},
			})
		return err == nil, "", err
	})
}

func TestFaultsALearnerThatNeverCatchesUp(t *testing.T) {
	c := shared.Cluster(t)
	c.Settle(patience)
	writers, prober := c.Write(), c.Probe()
	const tries = 3 // the learner may vote before it is paused: then the next replacement has to do
	for i := range tries {
		r := follow(t, c, c.MustMachines("master")[0].GetMetadata().GetName())
		c.DeleteMachine(r.old)
		learner, paused := pauseLearner(t, r)
		if paused {
			givenUp(t, r, learner)
		}
		r.run(t, func(step) {})
		c.Settle(patience)
		if paused {
			break
		}
		if i == tries-1 {
			t.Errorf("in %d replacements no learner could be paused in time", tries)
		}
	}
	prober.Check()
	writers.Check()
}

// pauseLearner stops the new member right after its start, and returns its id and whether it was still a learner then.
func pauseLearner(t *testing.T, r *replacement) (id uint64, paused bool) {
	t.Helper()
	r.c.Wait(patience, "the process of the learner", func(ctx context.Context) (bool, string, error) {
		v, err := r.look(ctx)
		if err != nil {
			return false, "", err
		}
		r.done(v)
		running, err := runs(r.c, harness.Member(r.new))
		return running, "", err
	})
	if err := r.c.Pause(harness.Member(r.new)); err != nil {
		t.Fatal(err)
	}
	r.c.Wait(patience, "the list of members", func(ctx context.Context) (bool, string, error) {
		v, err := r.look(ctx)
		for _, m := range v.members {
			if m.GetIsLearner() {
				id, paused = m.GetID(), true
			}
		}
		return err == nil, "", err
	})
	if !paused {
		if err := r.c.Continue(harness.Member(r.new)); err != nil {
			t.Fatal(err)
		}
	}
	return id, paused
}

// givenUp waits until the guardian removes a learner, and fails the test if it lets it vote.
func givenUp(t *testing.T, r *replacement, learner uint64) {
	t.Helper()
	began := time.Now()
	r.c.Wait(patience, "the guardian to give the learner up", func(ctx context.Context) (bool, string, error) {
		v, err := r.look(ctx)
		if err != nil {
			return false, "", err
		}
		for _, m := range v.members {
			if m.GetID() == learner {
				if !m.GetIsLearner() {
					t.Fatalf("learner %x votes and does not answer", learner)
				}
				return false, "", nil
			}
		}
		return true, "", nil
	})
	t.Logf("learner %x was given up after %s", learner, time.Since(began).Round(100*time.Millisecond))
}

func runs(c *harness.Cluster, name string) (bool, error) {
	list, err := c.Processes()
	for _, p := range list {
		if p.Name == name {
			return true, nil
		}
	}
	return false, err
}

func TestFaultsAHookOwnerThatDiesAfterItsClaim(t *testing.T) {
	c := shared.Cluster(t)
	c.Settle(patience)
	worker := c.MustMachines("worker")[0].GetMetadata().GetName()
	hookOn(t, c, worker)
	c.DeleteMachine(worker)
	tasks := hookv1.NewHookTaskServiceClient(c.As(ownerName).Conn())
	var task string
	c.Wait(patience, "the task", func(ctx context.Context) (bool, string, error) {
		list, err := tasks.ListHookTasks(ctx, &hookv1.ListHookTasksRequest{})
		for _, h := range list.GetItems() {
			if h.GetSpec().GetMachineRef().GetName() == worker && h.GetSpec().GetHookName() == ownerHook {
				task = h.GetMetadata().GetName()
			}
		}
		return task != "", "", err
	})
	const claim = 3 * time.Second
	claimed, err := tasks.ClaimHookTask(t.Context(), &hookv1.ClaimHookTaskRequest{
		Name: task, Duration: durationpb.New(claim),
	})
	if err != nil {
		t.Fatal(err)
	}
	// This owner does not answer any more. While its claim exists, the machine stays.
	c.Hold(time.Until(claimed.GetStatus().GetClaimExpiryTime().AsTime())-200*time.Millisecond, "the machine waits",
		func(ctx context.Context) (string, error) {
			m, err := c.Machine(ctx, worker)
			if isGone(err) || err == nil && len(m.GetSpec().GetLifecycleHooks().GetPreTerminate()) == 0 {
				return "the hook is gone", nil
			}
			return "", err
		})
	c.Wait(patience, "the task to be free again", func(ctx context.Context) (bool, string, error) {
		h, err := tasks.GetHookTask(ctx, &hookv1.GetHookTaskRequest{Name: task})
		return err == nil && h.GetStatus().GetPhase() == "Pending", h.GetStatus().GetPhase(), err
	})
	next := own(t, c, 0)
	c.Wait(patience, worker+" to go", func(ctx context.Context) (bool, string, error) {
		m, err := c.Machine(ctx, worker)
		return isGone(err), m.GetStatus().GetPhase(), nil
	})
	next.mu.Lock()
	defer next.mu.Unlock()
	if len(next.completed) != 1 || next.completed[0] != worker {
		t.Errorf("the next owner completed the tasks of %v", next.completed)
	}
}
