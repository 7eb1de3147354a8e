package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// preempt fills a node, and has a pod of higher priority take the room of another one there.
func (t *tour) preempt(ctx context.Context) error {
	workers, err := t.workerNodes(ctx)
	if err != nil {
		return err
	}
	if err := t.check(expect(len(workers) > 0, "a worker that takes pods", "none")); err != nil {
		return err
	}
	node := workers[0]
	if _, err := t.windlass(ctx, "label", "node", node, preemptLabel+"=here"); err != nil {
		return err
	}
	if err := t.apply(ctx, "preempt.yaml"); err != nil {
		return err
	}
	guarded, err := t.running(ctx, "tour-guarded", 1)
	if err != nil {
		return err
	}
	filler, err := t.running(ctx, "tour-filler", 1)
	if err != nil {
		return err
	}
	if err := t.takeRoom(ctx, node, guarded[0], filler[0]); err != nil {
		return err
	}
	t.paragraph(
		`The pod of higher priority fits nowhere. Of the pods that could make room, it takes the place of the one that no disruption budget guards. The event of that pod ` +
			`names who took its place, and its owner has made another one, which waits.`)
	if err := t.remove(ctx, "urgent.yaml", "preempt.yaml"); err != nil {
		return err
	}
	_, err = t.windlass(ctx, "label", "node", node, preemptLabel+"-")
	return err
}

// takeRoom creates the pod of higher priority, and checks what was said before and after about whom it evicts.
func (t *tour) takeRoom(ctx context.Context, node string, guarded, filler *schedulingv1.Pod) error {
	victim := filler.GetMetadata().GetName()
	path, err := t.document("urgent.yaml")
	if err != nil {
		return err
	}
	before := fmt.Sprintf("the pod gets room on node %s by the eviction of %s/%s", node, podNamespace, victim)
	out, err := t.windlass(ctx, "explain", "pod", "-f", path)
	if err != nil {
		return err
	}
	words := strings.Join(strings.Fields(out), " ") // the lines of a table are broken where they end
	_, why, _ := strings.Cut(words, "Preemption: ")
	why, _, _ = strings.Cut(why, " NODE ")
	t.saw("%s", wrap(why, 96))
	if err := t.check(mentions("windlass explain pod -f urgent.yaml", words, before)); err != nil {
		return err
	}
	if err := t.apply(ctx, "urgent.yaml"); err != nil {
		return err
	}
	if _, err := t.running(ctx, "tour-urgent", 1); err != nil {
		return err
	}
	if err := t.happened(ctx, "pod/"+victim, "Preempted",
		fmt.Sprintf("Preempted by pod %s/tour-urgent (priority 1000) on node %s", podNamespace, node)); err != nil {
		return err
	}
	if err := t.happened(ctx, "pod/tour-urgent", "FailedScheduling", before, "Scheduled"); err != nil {
		return err
	}
	if err := t.waits(ctx, "tour-filler", noCPU); err != nil {
		return err
	}
	still, err := t.running(ctx, "tour-guarded", 1)
	if err != nil {
		return err
	}
	return t.check(expect(slices.Equal(uids(still), uids([]*schedulingv1.Pod{guarded})), "tour-guarded where it was", "%v",
		uids(still)))
}
