package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// stopRollout rolls out a template whose pods never become ready, and takes it back.
func (t *tour) stopRollout(ctx context.Context) error {
	if err := t.apply(ctx, "ready.yaml"); err != nil {
		return err
	}
	before, err := t.running(ctx, "tour-ready", 4)
	if err != nil {
		return err
	}
	if err := t.apply(ctx, "unready.yaml"); err != nil {
		return err
	}
	next, err := t.unready(ctx, before)
	if err != nil {
		return err
	}
	if err := t.happened(ctx, "pod/"+next, "Unhealthy", "Readiness probe failed"); err != nil {
		return err
	}
	out, err := t.windlass(ctx, "get", "deployment", "tour-ready")
	if err != nil {
		return err
	}
	if err := t.check(mentions("windlass get deployment tour-ready", strings.Join(strings.Fields(out), " "),
		"tour-ready 4/4 1 4")); err != nil {
		return err
	}
	if _, err := t.windlass(ctx, "rollout", "undo", "deployment", "tour-ready"); err != nil {
		return err
	}
	after, err := t.running(ctx, "tour-ready", 4)
	if err != nil {
		return err
	}
	was, is := uidsOf(before), uidsOf(after)
	if err := t.check(expect(slices.Equal(was, is), "the pods that ran before run on", "%v, then %v", was,
		is)); err != nil {
		return err
	}
	t.paragraph(`The readiness probe of the new pod fails, so it takes the place of no other: all four pods stayed.`)
	return t.remove(ctx, "ready.yaml")
}

// unready waits for a pod of the new template that runs and is not ready, and returns its name.
func (t *tour) unready(ctx context.Context, before []*schedulingv1.Pod) (name string, err error) {
	was := uidsOf(before)
	err = within(ctx, placed, "a new pod that runs and is not ready", func(ctx context.Context) (bool, string, error) {
		pods, err := t.cluster.listPods(ctx, "app=tour-ready")
		for _, p := range pods {
			if !slices.Contains(was, p.GetMetadata().GetUid()) && p.GetStatus().GetPhase() == "Running" && !serves(p) {
				name = p.GetMetadata().GetName()
			}
		}
		return name != "", fmt.Sprintf("%d pods", len(pods)), err
	})
	return name, err
}

func uidsOf(pods []*schedulingv1.Pod) (uids []string) {
	for _, p := range pods {
		uids = append(uids, p.GetMetadata().GetUid())
	}
	slices.Sort(uids)
	return uids
}
