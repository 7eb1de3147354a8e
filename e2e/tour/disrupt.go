package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

const (
	silentLabel = "tour.windlass.dev/silent"
	silentNode  = "tour-silent-"
	unreachable = "node.kubernetes.io/unreachable"
	masterLabel = "node-role.kubernetes.io/master"

	leastLost   = 3  // nodes of a zone in partial disruption
	mostLost    = 55 // percent of a zone that is not in partial disruption yet
	mostWorkers = 20 // of a zone for which this step is run: a zone of more than 50 nodes is treated differently
)

// zoneLabels are what the zone of a node goes by.
var zoneLabels = []string{
	"topology.kubernetes.io/region", "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region",
	"failure-domain.beta.kubernetes.io/zone",
}

// disrupt adds nodes that never report to the zone of the workers, until most of the zone is lost: evictions stop.
func (t *tour) disrupt(ctx context.Context) error {
	nodes, err := t.cluster.listNodes(ctx)
	if err != nil {
		return err
	}
	zone, ready := zoneOfWorkers(nodes)
	if ready == 0 || ready > mostWorkers {
		t.saw("left out: the zone of the first worker has %d nodes, and this step is for 1 to %d", ready, mostWorkers)
		return nil
	}
	lost := leastLost
	for 100*lost < mostLost*(lost+ready) {
		lost++
	}
	silent, err := t.addSilent(ctx, zone, lost)
	if err != nil {
		return err
	}
	if err := t.stopped(ctx, silent, ready); err != nil {
		return err
	}
	if err := t.resumed(ctx, silent); err != nil {
		return err
	}
	t.paragraph(
		`When most nodes of a zone fall silent at once, the fault is likely in the network and not in them. So no more of them get the NoExecute taint, and no pod is evicted `+
			`from one that has it already; each node says so. When only one of them was left, the pod had to leave %s.`,
		silent[0])
	return nil
}

// zoneOfWorkers returns the labels of the zone of the first worker, and how many ready nodes are in it, without those
// of the control plane, which do not count for it.
func zoneOfWorkers(nodes []*nodev1.Node) (zone map[string]string, ready int) {
	zoneOf := func(n *nodev1.Node) map[string]string {
		out := map[string]string{}
		for _, l := range zoneLabels {
			if v, ok := n.GetMetadata().GetLabels()[l]; ok {
				out[l] = v
			}
		}
		return out
	}
	for _, n := range nodes {
		if _, master := n.GetMetadata().GetLabels()[masterLabel]; master || !isReady(n) {
			continue
		}
		if zone == nil {
			zone = zoneOf(n)
		}
		if fmt.Sprint(zoneOf(n)) == fmt.Sprint(zone) {
			ready++
		}
	}
	return zone, ready
}

// addSilent creates nodes that have no agent, and a pod on the first of them.
func (t *tour) addSilent(ctx context.Context, zone map[string]string, n int) ([]string, error) {
	var text strings.Builder
	var silent []string
	for i := range n {
		silent = append(silent, fmt.Sprint(silentNode, i+1))
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Node\nmetadata:\n  name: %s\n  labels:\n    %s: \"\"\n", silent[i],
			silentLabel)
		for _, l := range zoneLabels {
			if v, ok := zone[l]; ok {
				fmt.Fprintf(&text, "    %s: %q\n", l, v)
			}
		}
	}
	path := filepath.Join(t.dir, "silent.yaml")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		return nil, err
	}
	if _, err := t.windlass(ctx, "create", "-f", path); err != nil {
		return nil, err
	}
	return silent, t.apply(ctx, "stranded.yaml")
}

// stopped waits until the silent nodes are found lost, and checks that no pod is evicted from them, and who says so.
func (t *tour) stopped(ctx context.Context, silent []string, ready int) error {
	began := time.Now()
	t.saw("no agent reports for them; the zone of the workers has %d nodes that are Ready", ready)
	err := within(ctx, settled, "each of them in a zone in partial disruption", func(ctx context.Context) (bool, string,
		error,
	) {
		nodes, err := t.cluster.listNodes(ctx)
		seen, right := "", 0
		for _, n := range nodes {
			if !slices.Contains(silent, n.GetMetadata().GetName()) {
				continue
			}
			e := n.GetStatus().GetEvictions()
			seen += fmt.Sprintln(n.GetMetadata().GetName(), n.GetSpec().GetTaints(), e)
			if !isReady(n) && e.GetZoneState() == "PartialDisruption" && e.GetNodesPerSecond() == 0 {
				right++
			}
		}
		return right == len(silent), seen, err
	})
	if err != nil {
		return err
	}
	t.moment(time.Since(began), fmt.Sprintf("%d of %d nodes of the zone are lost", len(silent), len(silent)+ready))
	out, err := t.windlass(ctx, "plan", "evictions", silent[0])
	if err != nil {
		return err
	}
	t.saw("%s", wrap(linesWith(out, "tour-stranded"), 96))
	t.saw("%s", linesWith(out, "PartialDisruption"))
	if err := t.check(mentions("windlass plan evictions "+silent[0], out, "PartialDisruption",
		"most nodes of its zone are lost")); err != nil {
		return err
	}
	if err := t.happened(ctx, "node/"+silent[0], "ZonePartialDisruption", "evictions from them are stopped"); err != nil {
		return err
	}
	pod, err := t.stranded(ctx)
	return t.check(expect(err == nil && pod.GetMetadata().GetDeletionTimestamp() == nil, "the pod of "+silent[0]+
		" as it was", "%v %v", pod.GetMetadata(), err))
}

func (t *tour) stranded(ctx context.Context) (*schedulingv1.Pod, error) {
	return t.cluster.pods.GetPod(ctx, &schedulingv1.GetPodRequest{Namespace: podNamespace, Name: "tour-stranded"}, patient)
}

// resumed removes all silent nodes but the first: its pod has to leave now.
func (t *tour) resumed(ctx context.Context, silent []string) error {
	began := time.Now()
	if _, err := t.windlass(ctx, append([]string{"delete", "node"}, silent[1:]...)...); err != nil {
		return err
	}
	var since time.Time
	err := within(ctx, settled, silent[0]+" with the taint "+unreachable+":"+noExecute, func(ctx context.Context) (bool,
		string, error,
	) {
		n, err := t.cluster.nodes.GetNode(ctx, &nodev1.GetNodeRequest{Name: silent[0]}, patient)
		taint := findTaint(n, unreachable, noExecute)
		since = taint.GetTimeAdded().AsTime()
		return taint != nil, fmt.Sprint(n.GetSpec().GetTaints(), n.GetStatus().GetEvictions()), err
	})
	if err != nil {
		return err
	}
	t.moment(time.Since(began), silent[0]+" has the taint "+unreachable+":"+noExecute)
	var left time.Time
	err = within(ctx, evicted, "tour-stranded being deleted", func(ctx context.Context) (bool, string, error) {
		pod, err := t.stranded(ctx)
		left = asked(pod)
		return !left.IsZero(), fmt.Sprint(pod.GetStatus()), err
	})
	if err != nil {
		return err
	}
	t.moment(time.Since(began), "tour-stranded is being deleted")
	const patience = 2 * time.Second // of tour-stranded
	if err := t.check(expect(left.Sub(since.Truncate(time.Second)) >= patience, "not before "+patience.String()+
		" after the taint", "%s after %s", left, since)); err != nil {
		return err
	}
	if err := t.happened(ctx, "node/"+silent[0], "ZoneNormal"); err != nil {
		return err
	}
	if _, err := t.windlass(ctx, "delete", "node", silent[0]); err != nil {
		return err
	}
	return t.remove(ctx, "stranded.yaml")
}
