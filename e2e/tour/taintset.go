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
)

const (
	specialSet   = "tour-special"
	specialLabel = "node-role.kubernetes.io/tour-special"
)

// addTaint is what an editor would do: it adds the document's taint to the template of the set in a file.
const addTaint = `sed -i '/^    spec:$/a\      taints:\n      - effect: NoExecute\n        key: key1\n        value: value1' "$1"`

// taintSet adds a taint to the template of a machine set, and replaces its machines: the new nodes have the taint.
func (t *tour) taintSet(ctx context.Context) error {
	apps := []string{"tour-equal", "tour-exists", "tour-neither"}
	if err := t.apply(ctx, "taint-machineset.yaml"); err != nil {
		return err
	}
	old := ""
	for _, app := range apps {
		pods, err := t.running(ctx, app, 1)
		if err != nil {
			return err
		}
		old = pods[0].GetSpec().GetNodeName()
	}
	t.saw("%s run on %s", strings.Join(apps, ", "), old)
	if err := t.edit(ctx, addTaint, "edit", "machineset", specialSet); err != nil {
		return err
	}
	if err := t.says(ctx, []string{"Nothing to do"}, "plan", "machineset", specialSet); err != nil {
		return err
	}
	n, err := t.cluster.nodes.GetNode(ctx, &nodev1.GetNodeRequest{Name: old}, patient)
	if err != nil {
		return err
	}
	if err := t.check(expect(findTaint(n, taintKey, noExecute) == nil, "the node that there is without the taint", "%v",
		n.GetSpec().GetTaints())); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"scale", "--replicas=0", "machineset", specialSet, "-n", namespace},
		{
			"wait", "machines", "-l", "machine.openshift.io/cluster-api-machineset=" + specialSet, "--for=delete",
			"--timeout=" + scaled.String(),
		},
		{"scale", "--replicas=2", "machineset", specialSet, "-n", namespace},
		{"wait", "machineset", specialSet, "--for=jsonpath={.status.readyReplicas}=2", "--timeout=" + scaled.String()},
	} {
		if _, err := t.windlass(ctx, args...); err != nil {
			return err
		}
	}
	if err := t.specialNodes(ctx, old); err != nil {
		return err
	}
	t.paragraph(
		`A changed template is for machines that are made later; those that there are keep their nodes as they are. So the set was scaled to 0 and back: its new nodes have ` +
			`the taint from the beginning, and only pods that tolerate it are placed there.`)
	return t.remove(ctx, "taint-machineset.yaml")
}

// edit runs an edit of the command line with a script as the editor, and prints that.
func (t *tour) edit(ctx context.Context, script string, args ...string) error {
	path := filepath.Join(t.dir, "editor.sh")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		return err
	}
	began := time.Now()
	words := append([]string{"KUBE_EDITOR=" + path, "windlass"}, t.shell.args("windlass", args)...)
	out, err := t.shell.output(ctx, "env", words...)
	if err != nil {
		return err
	}
	t.command(t.shell.line("windlass", args...), time.Since(began), out)
	t.saw("%s", strings.TrimSpace(out))
	return t.check(mentions(t.shell.line("windlass", args...), out, "edited"))
}

// specialNodes checks the two new nodes, and the pods that are for them.
func (t *tour) specialNodes(ctx context.Context, old string) error {
	var special []*nodev1.Node
	err := within(ctx, scaled, "two nodes with the taint and no other", func(ctx context.Context) (bool, string, error) {
		all, err := t.cluster.listNodes(ctx)
		special = slices.DeleteFunc(all, func(n *nodev1.Node) bool {
			_, ok := n.GetMetadata().GetLabels()[specialLabel]
			return !ok
		})
		seen, right := "", 0
		for _, n := range special {
			seen += fmt.Sprintln(n.GetMetadata().GetName(), n.GetSpec().GetTaints())
			if len(n.GetSpec().GetTaints()) == 1 && findTaint(n, taintKey, noExecute).GetValue() == "value1" && isReady(n) {
				right++
			}
		}
		return len(special) == 2 && right == 2, seen, err
	})
	if err != nil {
		return err
	}
	t.saw("%s have the taint %s=value1:%s", strings.Join(names(special), " and "), taintKey, noExecute)
	if err := t.check(expect(!slices.Contains(names(special), old), "new nodes", "%v", names(special))); err != nil {
		return err
	}
	for _, app := range []string{"tour-equal", "tour-exists"} {
		pods, err := t.running(ctx, app, 1)
		if err != nil {
			return err
		}
		t.saw("%s runs on %s", pods[0].GetMetadata().GetName(), nodesOf(pods)[0])
		if err := t.check(expect(slices.Contains(names(special), nodesOf(pods)[0]), app+" on one of them", "on %s",
			nodesOf(pods)[0])); err != nil {
			return err
		}
	}
	return t.waits(ctx, "tour-neither", fmt.Sprintf("2 node(s) had taint {%s: value1}, that the pod didn't tolerate",
		taintKey))
}

// waits waits until the one pod of an app is found to fit on no node, for a reason that has some words.
func (t *tour) waits(ctx context.Context, app, words string) error {
	return within(ctx, placed, app+" pending: "+words, func(ctx context.Context) (bool, string, error) {
		pods, err := t.cluster.listPods(ctx, "app="+app)
		seen := fmt.Sprintf("%d pods", len(pods))
		for _, p := range pods {
			for _, c := range p.GetStatus().GetConditions() {
				if c.GetType() != "PodScheduled" || c.GetStatus() == "True" {
					continue
				}
				if seen = c.GetMessage(); strings.Contains(seen, words) {
					t.saw("%s waits: %s", p.GetMetadata().GetName(), seen)
					return true, "", t.check(expect(true, words, ""))
				}
			}
		}
		return false, seen, err
	})
}
