package main

import (
	"context"
	"os"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

const (
	nodeZone     = "topology.kubernetes.io/zone"
	documentZone = "rack-a" // what volume.yaml says in place of the zone of the first worker
	ofVolumes    = "persistentvolumeclaim"
	dataVariable = "WINDLASS_VOLUME_DATA" // says where the pod's volume is
)

// volume has volumes of one zone tie pods to it, and a pod that was deleted find its data again.
func (t *tour) volume(ctx context.Context) error {
	nodes, err := t.cluster.listNodes(ctx)
	if err != nil {
		return err
	}
	zone, inside, outside := zoneOfVolume(nodes)
	if len(inside) == 0 || len(outside) == 0 {
		t.saw("left out: there must be a worker in a zone, and a node in another one")
		return nil
	}
	if err := t.applyVolumes(ctx, zone); err != nil {
		return err
	}
	if err := t.tiedToZone(ctx, "volume-disk.yaml", "NoVolumeZoneConflict", "volume tour-disk is in "+nodeZone+"="+zone,
		inside, outside); err != nil {
		return err
	}
	if err := t.tiedToZone(ctx, "volume-pod.yaml", "CheckVolumeBinding", "asked by claim tour-data", inside,
		outside); err != nil {
		return err
	}
	pod, err := t.boundTogether(ctx, inside)
	if err != nil {
		return err
	}
	if err := t.findsData(ctx, pod, names(nodes)); err != nil {
		return err
	}
	t.paragraph(
		`A volume decides where its pods may run: those of the zone %s can use it. The claim on a class with WaitForFirstConsumer got its volume when its pod had a node, %s, and `+
			`since then the pod belongs there: made again, it found its data.`, zone, pod.GetSpec().GetNodeName())
	return t.remove(ctx, "volume-pod.yaml", "volume.yaml")
}

// zoneOfVolume returns the zone of the first worker that is Ready, and the names of the nodes inside and outside it.
func zoneOfVolume(nodes []*nodev1.Node) (zone string, inside, outside []string) {
	for _, n := range nodes {
		labels := n.GetMetadata().GetLabels()
		if _, worker := labels[workerLabel]; worker && isReady(n) && zone == "" {
			zone = labels[nodeZone]
		}
	}
	for _, n := range nodes {
		switch at, labelled := n.GetMetadata().GetLabels()[nodeZone]; {
		case zone == "" || !labelled: // a volume's zone is only compared with a node that has one
		case at == zone:
			inside = append(inside, n.GetMetadata().GetName())
		default:
			outside = append(outside, n.GetMetadata().GetName())
		}
	}
	slices.Sort(inside)
	slices.Sort(outside)
	return zone, inside, outside
}

// applyVolumes creates the volumes and claims: one claim is bound, the other one waits for a pod.
func (t *tour) applyVolumes(ctx context.Context, zone string) error {
	path, err := t.document("volume.yaml")
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(raw), documentZone, zone)), 0o600); err != nil {
		return err
	}
	out, err := t.windlass(ctx, "apply", "-f", path)
	if err != nil {
		return err
	}
	t.saw("%s", strings.TrimSpace(out))
	if err := t.phase(ctx, "tour-disk", "Bound"); err != nil {
		return err
	}
	out, err = t.windlass(ctx, "get", "pv,pvc,sc")
	if err != nil {
		return err
	}
	t.saw("%s", strings.TrimSpace(narrow(out)))
	if err := t.check(mentions("windlass get pv,pvc,sc", out, "tour-zone", "WaitForFirstConsumer"),
		has("windlass get pv,pvc,sc", out, ofVolumes+"/tour-disk", "Bound"),
		has("windlass get pv,pvc,sc", out, ofVolumes+"/tour-data", "Pending")); err != nil {
		return err
	}
	return t.says(ctx, []string{"BindClaim", "waiting for first consumer to be created before binding"}, "plan", ofVolumes,
		"tour-data")
}

// has says that a line of an output has all of some words.
func has(command, out string, words ...string) fact {
	for line := range strings.Lines(out) {
		if mentions("", line, words...).holds {
			return expect(true, "", "")
		}
	}
	return expect(false, "a line of `"+command+"` with "+strings.Join(words, " and "), "%s", out)
}

// phase waits until a claim is in a phase.
func (t *tour) phase(ctx context.Context, claim, phase string) error {
	return within(ctx, answers, "claim "+claim+" "+phase, func(ctx context.Context) (bool, string, error) {
		out, err := t.shell.output(ctx, "windlass", "get", ofVolumes, claim, "-o", "jsonpath={.status.phase}")
		return err == nil && out == phase, out, err
	})
}

// tiedToZone explains a pod that does not exist: because of its volume, it fits on none of the nodes outside the zone.
func (t *tour) tiedToZone(ctx context.Context, document, predicate, words string, inside, outside []string) error {
	fit, refused, err := t.verdictsOf(ctx, document, predicate, words)
	if err != nil {
		return err
	}
	return t.check(
		expect(slices.Equal(refused, outside), predicate+" refuses just "+strings.Join(outside, ", "), "it refuses %s",
			strings.Join(refused, ", ")),
		expect(len(fit) > 0 && !slices.ContainsFunc(fit, func(n string) bool { return !slices.Contains(inside, n) }),
			"the pod fits on some of "+strings.Join(inside, ", "), "it fits on %s", strings.Join(fit, ", ")))
}

// verdictsOf explains the pod of a document, and returns the nodes that it fits on, and those that a predicate refuses
// for a reason that has some words, in order.
func (t *tour) verdictsOf(ctx context.Context, document, predicate, words string) (fit, refused []string, err error) {
	path, err := t.document(document)
	if err != nil {
		return nil, nil, err
	}
	out, err := t.windlass(ctx, "explain", "pod", "-f", path, "-o", "json")
	if err != nil {
		return nil, nil, err
	}
	var said schedulingv1.ExplainPodResponse
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(out), &said); err != nil {
		return nil, nil, err
	}
	for _, v := range said.GetNodes() {
		if v.GetFits() {
			fit = append(fit, v.GetNode())
			t.saw("%s: the pod fits", v.GetNode())
		}
		for _, f := range v.GetFailures() {
			if f.GetPredicate() == predicate && strings.Contains(f.GetReason(), words) {
				refused = append(refused, v.GetNode())
			}
			t.saw("%s", wrap(v.GetNode()+": "+f.GetPredicate()+": "+f.GetReason(), 96))
		}
	}
	slices.Sort(fit)
	slices.Sort(refused)
	return fit, refused, nil
}

// boundTogether creates the pod and checks that its claim got a volume on its node.
func (t *tour) boundTogether(ctx context.Context, inside []string) (*schedulingv1.Pod, error) {
	if err := t.apply(ctx, "volume-pod.yaml"); err != nil {
		return nil, err
	}
	pods, err := t.running(ctx, "tour-keeper", 1)
	if err != nil {
		return nil, err
	}
	node := pods[0].GetSpec().GetNodeName()
	out, err := t.windlass(ctx, "get", "pv,pvc")
	if err != nil {
		return nil, err
	}
	t.saw("%s", strings.TrimSpace(narrow(out)))
	t.saw("tour-keeper runs on %s", node)
	if err := t.happened(ctx, ofVolumes+"/tour-data", "ProvisioningSucceeded"); err != nil {
		return nil, err
	}
	return pods[0], t.check(has("windlass get pv,pvc", out, ofVolumes+"/tour-data", "Bound"),
		has("windlass get pv,pvc", out, "persistentvolume/pvc-", "Bound", podNamespace+"/tour-data"),
		expect(slices.Contains(inside, node), "the pod in the zone", "on %s", node))
}

// findsData deletes the pod and makes it again: only the node that has its data will do. Where nodes have a shell, it
// leaves a file there, and finds it.
func (t *tour) findsData(ctx context.Context, pod *schedulingv1.Pod, nodes []string) error {
	node := pod.GetSpec().GetNodeName()
	if t.here() {
		if _, err := t.windlass(ctx, "exec", "tour-keeper", "--", "sh", "-c", "echo "+t.run+` > "$`+dataVariable+
			`/note"`); err != nil {
			return err
		}
	}
	if _, err := t.windlass(ctx, "delete", "pod", "tour-keeper"); err != nil {
		return err
	}
	fit, refused, err := t.verdictsOf(ctx, "volume-pod.yaml", "CheckVolumeBinding", "cannot be used there")
	if err != nil {
		return err
	}
	others := slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return n == node })
	if err := t.check(
		expect(slices.Equal(fit, []string{node}), "the pod fits on "+node+" only", "on %s", strings.Join(fit, ", ")),
		expect(slices.Equal(refused, others), "CheckVolumeBinding refuses "+strings.Join(others, ", "), "it refuses %s",
			strings.Join(refused, ", "))); err != nil {
		return err
	}
	if err := t.apply(ctx, "volume-pod.yaml"); err != nil {
		return err
	}
	again, err := t.running(ctx, "tour-keeper", 1)
	if err != nil {
		return err
	}
	if err := t.check(expect(nodesOf(again)[0] == node && again[0].GetMetadata().GetUid() != pod.GetMetadata().GetUid(),
		"another pod on "+node, "%s on %s", again[0].GetMetadata().GetUid(), nodesOf(again)[0])); err != nil {
		return err
	}
	if !t.here() {
		return nil
	}
	out, err := t.windlass(ctx, "exec", "tour-keeper", "--", "sh", "-c", `cat "$`+dataVariable+`/note"`)
	if err != nil {
		return err
	}
	t.saw("%s", strings.TrimSpace(out))
	return t.check(expect(strings.TrimSpace(out) == t.run, "the file of the former pod, with "+t.run, "%q", out))
}
