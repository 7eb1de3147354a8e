package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// drain deletes a worker from which pods leave as their budgets allow, one of which at first allows nothing.
func (t *tour) drain(ctx context.Context) error {
	if err := t.apply(ctx, "drain.yaml"); err != nil {
		return err
	}
	shop, err := t.running(ctx, "tour-shop", 3)
	if err != nil {
		return err
	}
	vault, err := t.running(ctx, "tour-vault", 1)
	if err != nil {
		return err
	}
	worker := vault[0].GetSpec().GetNodeName()
	set, others, err := t.setOf(ctx, worker)
	if err != nil {
		return err
	}
	leave := slices.DeleteFunc(slices.Concat(shop, vault), func(p *schedulingv1.Pod) bool {
		return p.GetSpec().GetNodeName() != worker
	})
	if err := t.check(expect(len(leave) > 1, "a pod of tour-shop beside tour-vault on "+worker, "tour-shop is on %s",
		strings.Join(nodesOf(shop), ", "))); err != nil {
		return err
	}
	patch := fmt.Sprintf(`{"spec":{"lifecycleHooks":{"preTerminate":[{"name":%q,"owner":%q}]}}}`, backupHook, backupOwner)
	if _, err := t.windlass(ctx, "patch", "machine", worker, "--type=merge", "-p", patch); err != nil {
		return err
	}
	t.saw("%s are on %s; budget tour-shop wants 2 of 3, budget tour-vault wants 1 of 1", strings.Join(names(leave), ", "),
		worker)
	backups, err := os.MkdirTemp(t.dir, "backups-")
	if err != nil {
		return err
	}
	c := newChronicle(worker, others)
	c.worker = true
	r := &replacement{tour: t, chronicle: c, backups: backups, cordoned: func(ctx context.Context) error {
		return t.loosen(ctx, worker)
	}}
	watching, stop := context.WithCancel(ctx)
	g, watching := errgroup.WithContext(watching)
	w, err := t.watchPods(watching, g, "tour.windlass.dev/step=drain", "tour-shop", "tour-vault")
	if err == nil {
		err = r.watch(ctx)
	}
	if err == nil {
		err = t.drained(ctx, r, w, set, leave)
	}
	stop()
	if err := errors.Join(err, g.Wait()); err != nil {
		return err
	}
	t.paragraph(
		`The pods of %s left one by one and were ready elsewhere; not for a moment there were fewer of them than their budgets want. The pod that its budget lets no client `+
			`disrupt held the drain, which said so, until there were two of it. Only then came the hook, the instance, the node and the machine.`, worker)
	return t.remove(ctx, "drain.yaml")
}

// setOf returns the set that a machine belongs to, and the names of all other machines.
func (t *tour) setOf(ctx context.Context, machine string) (*machinev1.MachineSet, []string, error) {
	machines, err := t.cluster.listMachines(ctx, "")
	if err != nil {
		return nil, nil, err
	}
	sets, err := t.cluster.listSets(ctx, "")
	if err != nil {
		return nil, nil, err
	}
	i := slices.IndexFunc(machines, func(m *machinev1.Machine) bool { return m.GetMetadata().GetName() == machine })
	if i < 0 {
		return nil, nil, mismatch{{expected: "a machine " + machine, seen: strings.Join(names(machines), ", ")}}
	}
	for _, s := range sets {
		if belongs(machines[i], s) {
			return s, without(names(machines), machine), nil
		}
	}
	return nil, nil, mismatch{{expected: "a set that " + machine + " belongs to", seen: "none"}}
}

// loosen waits until a budget holds the drain of a node, shows what is said of it, and adds the pod that lets it go on.
func (t *tour) loosen(ctx context.Context, node string) error {
	var name string
	err := within(ctx, placed, "a drain of "+node+" that budget tour-vault holds", func(ctx context.Context) (bool, string,
		error,
	) {
		list, err := t.cluster.drains.ListDrains(ctx, &nodev1.ListDrainsRequest{}, patient)
		for _, d := range list.GetItems() {
			if d.GetSpec().GetNodeName() == node {
				name = d.GetMetadata().GetName()
				return strings.Contains(strings.Join(d.GetStatus().GetBlocked(), " "), "default/tour-vault"),
					fmt.Sprint(d.GetStatus()), err
			}
		}
		return false, "no drain of it", err
	})
	if err != nil {
		return err
	}
	const words = "The disruption budget tour-vault needs 1 healthy pods and has 1 currently"
	for _, verb := range []string{"plan", "describe"} {
		out, err := t.windlass(ctx, verb, "drain", name)
		if err != nil {
			return err
		}
		t.saw("%s", linesWith(out, words))
		if err := t.check(mentions("windlass "+verb+" drain "+name, out, words)); err != nil {
			return err
		}
	}
	_, err = t.windlass(ctx, "scale", "deployment", "tour-vault", "--replicas=2")
	return err
}

// linesWith returns the lines of a text that have a word.
func linesWith(text, word string) string {
	var out []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, word) {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return strings.Join(out, "\n")
}

// drained checks what the deletion of a worker promises, and that the cluster is settled again.
func (t *tour) drained(ctx context.Context, r *replacement, w *podWatch, set *machinev1.MachineSet,
	leave []*schedulingv1.Pod,
) error {
	c := r.chronicle
	shop, err := t.running(ctx, "tour-shop", 3)
	if err != nil {
		return err
	}
	vault, err := t.running(ctx, "tour-vault", 2)
	if err != nil {
		return err
	}
	left := names(leave)
	var stayed []string
	for _, p := range leave {
		if _, gone := w.leaving(p); !gone {
			stayed = append(stayed, p.GetMetadata().GetName())
		}
	}
	all := c.seen[machineGone].at.Sub(c.seen[deletionAsked].at)
	t.saw("gone after %.1f s, of which the owner of %s took %.1f s; now ready on %s: %s", all.Seconds(), backupHook,
		c.seen[taskCompleted].at.Sub(c.seen[taskPending].at).Seconds(), strings.Join(nodesOf(slices.Concat(shop, vault)),
			", "), strings.Join(names(slices.Concat(shop, vault)), ", "))
	facts := []fact{
		r.backedUp(), w.never("tour-shop", 2), w.never("tour-vault", 1),
		expect(len(stayed) == 0, strings.Join(left, ", ")+" gone", "%s are there", strings.Join(stayed, ", ")),
		expect(!slices.Contains(nodesOf(slices.Concat(shop, vault)), c.old), "no pod on "+c.old, "there are"),
		c.waitedFor(backupHook, taskPending, backupHookGone),
	}
	facts = append(facts, c.inOrder(deletionAsked, nodeCordoned, nodeDrained, machineDrained, taskPending, taskClaimed,
		taskCompleted,
		backupHookGone, instanceGone, nodeGone, machineGone)...)
	if err := t.check(facts...); err != nil {
		return err
	}
	n := int(set.GetSpec().GetReplicas())
	return within(ctx, settled, fmt.Sprintf("%d machines of set %s with nodes that are Ready", n,
		set.GetMetadata().GetName()), func(ctx context.Context) (bool, string, error) {
		return t.hasMachines(ctx, set, n)
	})
}
