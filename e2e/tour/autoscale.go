package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
)

const (
	autoscaleDocument = "autoscale.yaml"
	autoscaleLabel    = "tour.windlass.dev/step=autoscale"
)

// autoscale lets a set of workers grow for a pod that fits nowhere, and shrink when the pods are gone.
func (t *tour) autoscale(ctx context.Context) error {
	out, err := t.shell.output(ctx, "windlass", "get", "clusterautoscalers", "-o", "name")
	if err != nil {
		return err
	}
	if strings.Contains(out, "/") {
		t.saw("the cluster has a ClusterAutoscaler of its own, which this step would replace: left out")
		return nil
	}
	set, err := t.workerSet(ctx)
	if err != nil {
		return err
	}
	before, err := t.workersOf(ctx, set)
	if err != nil {
		return err
	}
	if err := t.crowd(ctx, set); err != nil {
		return err
	}
	if err := t.thinOut(ctx, set, len(before)); err != nil {
		return err
	}
	t.paragraph(
		`One pod more than the workers hold made set %s grow by one machine: the scheduler answered that the pod fits on the set's next node. `+
			`When the pods were gone, the machine that was needed least went, together with its replica, so the set did not replace it.`,
		set.GetMetadata().GetName())
	return t.endAutoscale(ctx)
}

// crowd applies the document for a set, with a pod for each worker and one more, and waits for the machine of that one.
func (t *tour) crowd(ctx context.Context, set *machinev1.MachineSet) error {
	name, n := set.GetMetadata().GetName(), int(set.GetSpec().GetReplicas())
	raw, err := documents.ReadFile("documents/" + autoscaleDocument)
	if err != nil {
		return err
	}
	path, err := t.document(autoscaleDocument)
	if err != nil {
		return err
	}
	text := strings.NewReplacer("minReplicas: 2", fmt.Sprintf("minReplicas: %d", n), "maxReplicas: 3",
		fmt.Sprintf("maxReplicas: %d", n+1), "replicas: 3", fmt.Sprintf("replicas: %d", n+1), "name: workers",
		"name: "+name).Replace(string(raw))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	began := time.Now()
	if _, err := t.windlass(ctx, "apply", "-f", path); err != nil {
		return err
	}
	pods, err := t.running(ctx, "tour-crowd", n+1)
	if err != nil {
		return err
	}
	after, err := t.workersOf(ctx, set)
	if err != nil {
		return err
	}
	t.saw("%d pods run on %s after %.1f s", len(pods), strings.Join(nodesOf(pods), ", "), time.Since(began).Seconds())
	if err := t.check(expect(len(after) == n+1, fmt.Sprintf("%d workers", n+1), "%q", names(after)),
		expect(len(nodesOf(pods)) == n+1, "each pod on a node of its own", "%q", nodesOf(pods))); err != nil {
		return err
	}
	return t.happened(ctx, "machineset/"+name, "ScaledUpGroup", fmt.Sprintf("Scaled up from %d to %d", n, n+1),
		"default/tour-crowd-")
}

// thinOut takes the pods away, and waits until the set is as small as before.
func (t *tour) thinOut(ctx context.Context, set *machinev1.MachineSet, n int) error {
	began := time.Now()
	if _, err := t.windlass(ctx, "scale", "deployment", "tour-crowd", "--replicas=0"); err != nil {
		return err
	}
	err := within(ctx, scaled, fmt.Sprintf("%d workers again", n), func(ctx context.Context) (bool, string, error) {
		return t.hasMachines(ctx, set, n)
	})
	if err != nil {
		return err
	}
	t.saw("%d workers again after %.1f s", n, time.Since(began).Seconds())
	if err := t.says(ctx, []string{"LITTLE USED", fmt.Sprintf("minReplicas is %d", n), "Nothing to do."}, "plan",
		"autoscaler"); err != nil {
		return err
	}
	return t.happened(ctx, "machineset/"+set.GetMetadata().GetName(), "ScaledDownGroup", "has not been needed since")
}

// endAutoscale removes what the step applied. It selects by label: the cluster may have a ClusterAutoscaler of its own.
func (t *tour) endAutoscale(ctx context.Context) error {
	for _, what := range [][]string{
		{"machineautoscalers", "-l", autoscaleLabel},
		{"clusterautoscalers", "-l", autoscaleLabel},
		{"deployment", "tour-crowd", "--ignore-not-found"},
	} {
		if out, err := t.shell.output(ctx, "windlass", append([]string{"delete"}, what...)...); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
	}
	return nil
}
