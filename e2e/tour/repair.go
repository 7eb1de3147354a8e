package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
)

// lostOwner is an owner of hooks that no program answers for.
const lostOwner = "tour-lost-controller"

// repaired is how long it may take until a worker is gone and another one is in its place.
const repaired = time.Minute

// override deletes a worker whose hook nothing completes, and completes it in place of its owner.
func (t *tour) override(ctx context.Context) error {
	if err := t.apply(ctx, "late.yaml"); err != nil {
		return err
	}
	worker, before, err := t.someWorker(ctx)
	if err != nil {
		return err
	}
	patch := fmt.Sprintf(`{"spec":{"lifecycleHooks":{"preTerminate":[{"name":%q,"owner":%q}]}}}`, backupHook, lostOwner)
	if _, err := t.windlass(ctx, "patch", "machine", worker, "--type=merge", "-p", patch); err != nil {
		return err
	}
	if _, err := t.windlass(ctx, "delete", "machine", worker, "--wait=false"); err != nil {
		return err
	}
	var state string
	err = within(ctx, repaired, "hook "+backupHook+" of "+worker+" overdue", func(ctx context.Context) (bool, string,
		error,
	) {
		state, err = t.shell.output(ctx, "windlass", "describe", "machine", worker)
		return strings.Contains(state, "Pending (overdue"), lastLines(state, 20), err
	})
	if err != nil {
		return err
	}
	if state, err = t.windlass(ctx, "describe", "machine", worker); err != nil {
		return err
	}
	t.saw("%s", linesWith(state, "overdue"))
	held, err := t.windlass(ctx, "plan", "hooktasks", worker)
	if err != nil {
		return err
	}
	hint := "windlass hooks override " + worker + " " + backupHook
	if err := t.check(mentions("windlass describe machine "+worker, state, "HookOverdue", hint),
		mentions("windlass plan hooktasks "+worker, held, "Held back", lostOwner+" completes task")); err != nil {
		return err
	}
	if _, err := t.windlass(ctx, "hooks", "override", worker, backupHook, "--reason=its owner was removed"); err != nil {
		return err
	}
	after, err := t.replacedBy(ctx, worker, before)
	if err != nil {
		return err
	}
	if err := t.happened(ctx, "machine/"+worker, "HookOverridden", "its owner was removed"); err != nil {
		return err
	}
	t.saw("%s is gone, %s is in its place", worker, strings.Join(after, ", "))
	t.paragraph(
		`A hook whose owner never comes holds its machine, and says so: since when it is overdue, and the command that continues the deletion. Who overrode it, and why, `+
			`is in the events of %s and in the audit log.`, worker)
	return t.remove(ctx, "late.yaml")
}

// someWorker returns a worker of the set that the tour scales, and all machines of that set.
func (t *tour) someWorker(ctx context.Context) (worker string, all []string, err error) {
	set, err := t.workerSet(ctx)
	if err != nil {
		return "", nil, err
	}
	machines, err := t.workersOf(ctx, set)
	if err != nil {
		return "", nil, err
	}
	all = names(machines)
	return all[0], all, t.check(expect(len(all) > 1, "more than one worker", "%q", all))
}

// replacedBy waits until a worker is gone and the cluster is at rest, and returns the machines that took its place.
func (t *tour) replacedBy(ctx context.Context, worker string, before []string) ([]string, error) {
	var now []*machinev1.Machine
	err := within(ctx, repaired, worker+" gone and another worker in its place", func(ctx context.Context) (bool, string,
		error,
	) {
		set, err := t.workerSet(ctx)
		if err != nil {
			return false, "", err
		}
		if now, err = t.workersOf(ctx, set); err != nil {
			return false, "", err
		}
		if slices.Contains(names(now), worker) || len(now) != len(before) {
			return false, strings.Join(names(now), ", "), nil
		}
		return t.ready(ctx)
	})
	made := slices.DeleteFunc(names(now), func(n string) bool { return slices.Contains(before, n) })
	if err != nil {
		return nil, err
	}
	return made, t.check(expect(len(made) == 1, "one new worker", "%q", made))
}

// repair stops the agent of a worker for good; a health check has the machine replaced.
func (t *tour) repair(ctx context.Context) error {
	if err := t.apply(ctx, "health.yaml"); err != nil {
		return err
	}
	worker, before, err := t.someWorker(ctx)
	if err != nil {
		return err
	}
	out, err := t.windlass(ctx, "plan", "machinehealthcheck", "tour-workers")
	if err != nil {
		return err
	}
	if err := t.check(expect(!strings.Contains(out, worker), "a plan that leaves "+worker+" alone", "%s",
		out)); err != nil {
		return err
	}
	p, err := t.listProcesses(ctx)
	if err != nil {
		return err
	}
	agent := p.pids[agentProcess(worker)]
	if err := t.check(expect(agent > 1, "a process of the agent of "+worker, "none")); err != nil {
		return err
	}
	began := time.Now()
	if err := t.signal("STOP", syscall.SIGSTOP, agent, "the agent of "+worker); err != nil {
		return err
	}
	defer func() {
		if p, err := t.listProcesses(ctx); err == nil && p.pids[agentProcess(worker)] == agent {
			_ = syscall.Kill(agent, syscall.SIGCONT) // the step failed, and the machine is still there
		}
	}()
	err = within(ctx, repaired, "machine "+worker+" deleted", func(ctx context.Context) (bool, string, error) {
		m, err := t.cluster.machines.GetMachine(ctx, &machinev1.GetMachineRequest{Namespace: namespace, Name: worker},
			patient)
		if m.GetMetadata().GetDeletionTimestamp() == nil {
			return false, fmt.Sprint(m.GetStatus().GetConditions()), err
		}
		d := m.GetStatus().GetDeletion()
		t.moment(time.Since(began), fmt.Sprintf("%s %s deletes %s: %s", d.GetTrigger(), d.GetRequestedBy(), worker,
			d.GetReason()))
		return true, "", t.check(expect(d.GetTrigger() == "MachineHealthCheck" && d.GetRequestedBy() == "tour-workers",
			"the cause of the deletion", "%v", d))
	})
	if err != nil {
		return err
	}
	made, err := t.replacedBy(ctx, worker, before)
	if err != nil {
		return err
	}
	t.moment(time.Since(began), fmt.Sprintf("%s is gone, %s is in its place and Ready", worker, strings.Join(made, ", ")))
	if out, err = t.windlass(ctx, "get", "machinehealthcheck", "tour-workers"); err != nil {
		return err
	}
	t.saw("%s", strings.TrimSpace(out))
	t.paragraph(
		`A node that does not report is Unknown after a few seconds, and the health check waits two more. It deletes only as long as no more than one worker is unhealthy: `+
			`otherwise the fault is likely elsewhere, and replacing %s would not help.`, worker)
	return t.remove(ctx, "health.yaml")
}
