package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

const noCPU = "Insufficient cpu"

// place has pods of three sorts placed, asks why another one is not, and has it placed.
func (t *tour) place(ctx context.Context) error {
	single, err := t.placeSorts(ctx)
	if err != nil {
		return err
	}
	fits, err := t.placeNowhere(ctx, single)
	if err != nil {
		return err
	}
	if err := t.placeAfterAll(ctx, fits); err != nil {
		return err
	}
	t.paragraph(
		`A pod goes to the best of the nodes that suit it. Where none does, the scheduler says of every node which predicate fails, with the figures, `+
			`and what would help; that was done for one of them, %s, and the pod went there.`, fits)
	if err := t.remove(ctx, "pending.yaml", "place.yaml"); err != nil {
		return err
	}
	_, err = t.windlass(ctx, "label", "node", fits, placeLabel+"-")
	return err
}

// placeSorts has a deployment, a daemon set and a single pod placed, and returns the node of the single pod.
func (t *tour) placeSorts(ctx context.Context) (string, error) {
	workers, err := t.workerNodes(ctx)
	if err != nil {
		return "", err
	}
	began := time.Now()
	if err := t.apply(ctx, "place.yaml"); err != nil {
		return "", err
	}
	web, err := t.running(ctx, "tour-web", 2)
	if err != nil {
		return "", err
	}
	eye, err := t.running(ctx, "tour-eye", len(workers))
	if err != nil {
		return "", err
	}
	single, err := t.running(ctx, "tour-single", 1)
	if err != nil {
		return "", err
	}
	took := time.Since(began)
	out, err := t.windlass(ctx, "get", "pods", "-l", "tour.windlass.dev/step=place", "-o", "wide")
	if err != nil {
		return "", err
	}
	t.saw("%s\nall ready after %.1f s", strings.TrimSpace(narrow(out)), took.Seconds())
	node := single[0].GetSpec().GetNodeName()
	if err := t.check(
		expect(len(nodesOf(web)) == min(2, len(workers)), "the pods of tour-web on different workers", "on %s",
			strings.Join(nodesOf(web), ", ")),
		expect(slices.Equal(nodesOf(eye), workers), "a pod of tour-eye on each of "+strings.Join(workers, ", "), "on %s",
			strings.Join(nodesOf(eye), ", ")),
		expect(slices.Contains(workers, node), "tour-single on a worker", "on %s", node),
		mentions("windlass get pods -o wide", out, append(names(slices.Concat(web, eye, single)),
			workers...)...)); err != nil {
		return "", err
	}
	if err := t.says(ctx, []string{"UpdateReplicaSet", "the deployment was given the size 5"}, "plan", "deployment",
		"tour-web", "--replicas=5"); err != nil {
		return "", err
	}
	return node, t.happened(ctx, "pod/tour-single", "Scheduled", "Successfully assigned default/tour-single to "+node)
}

// happened waits until the events of an object have some words, and shows them. Events are written beside other work,
// so they may come late.
func (t *tour) happened(ctx context.Context, object string, words ...string) error {
	args := []string{"events", "--for", object}
	err := within(ctx, answers, "`"+t.shell.line("windlass", args...)+"` speaks of "+strings.Join(words, ", "),
		func(ctx context.Context) (bool, string, error) {
			out, err := t.shell.output(ctx, "windlass", args...)
			return mentions("", out, words...).holds, out, err
		})
	if err != nil {
		return err
	}
	out, err := t.windlass(ctx, args...)
	if err != nil {
		return err
	}
	t.saw("%s", lastLines(out, 1))
	return t.check(mentions(t.shell.line("windlass", args...), out, words...))
}

// placeNowhere creates a pod that no node suits, and checks what is said about it. It returns a node that lacks nothing
// but the label.
func (t *tour) placeNowhere(ctx context.Context, single string) (string, error) {
	if err := t.apply(ctx, "pending.yaml"); err != nil {
		return "", err
	}
	err := within(ctx, placed, "tour-picky found to suit no node", func(ctx context.Context) (bool, string, error) {
		p, err := t.cluster.pods.GetPod(ctx, &schedulingv1.GetPodRequest{Namespace: podNamespace, Name: "tour-picky"},
			patient)
		for _, c := range p.GetStatus().GetConditions() {
			if c.GetType() == "PodScheduled" && c.GetReason() == "Unschedulable" {
				return true, "", nil
			}
		}
		return false, fmt.Sprint(p.GetStatus()), err
	})
	if err != nil {
		return "", err
	}
	out, err := t.windlass(ctx, "explain", "pod", "tour-picky")
	if err != nil {
		return "", err
	}
	t.saw("%s", strings.TrimSpace(out))
	said, err := t.cluster.pods.ExplainPod(ctx, &schedulingv1.ExplainPodRequest{
		Namespace: podNamespace,
		Name:      "tour-picky",
	}, patient)
	if err != nil {
		return "", err
	}
	nodes, err := t.cluster.listNodes(ctx)
	if err != nil {
		return "", err
	}
	fits, short, facts := verdicts(said.GetNodes(), names(nodes), single)
	words := append(names(nodes), "MatchNodeSelector", noCPU, "the node gets the label "+placeLabel+"=here", "more cpu")
	if err := t.check(append(facts, mentions("windlass explain pod tour-picky",
		strings.Join(strings.Fields(out), " "), words...))...); err != nil {
		return "", err
	}
	return fits, t.happened(ctx, "pod/tour-picky", "FailedScheduling", fmt.Sprintf("0/%d nodes are available", len(nodes)),
		fmt.Sprintf("%d %s", short, noCPU), fmt.Sprintf("%d node(s) didn't match node selector", len(nodes)),
		fmt.Sprintf("MatchNodeSelector (%d)", len(nodes)))
}

// verdicts checks what is said of each node: that it lacks the label, that there is too little left beside tour-single,
// and what would help. It returns a node that lacks only the label, and how many have too little left.
func verdicts(said []*schedulingv1.ExplainPodResponse_NodeVerdict, nodes []string, single string) (fits string,
	short int, facts []fact,
) {
	var about []string
	for _, v := range said {
		about = append(about, v.GetNode())
		var reasons []string
		helps := true
		for _, f := range v.GetFailures() {
			reasons = append(reasons, f.GetReason())
			helps = helps && f.GetPredicate() != "" && f.GetUnblock() != ""
		}
		lacks := func(words string) bool {
			return slices.ContainsFunc(reasons, func(s string) bool { return strings.Contains(s, words) })
		}
		if lacks(noCPU) {
			short++
		}
		if len(reasons) == 1 && lacks("node selector") {
			fits = v.GetNode()
		}
		facts = append(facts,
			expect(!v.GetFits() && lacks("node selector"), v.GetNode()+" lacks the label", "%q", reasons),
			expect(helps, "for each reason why not "+v.GetNode()+", its predicate and what would help", "%s", v),
			expect(v.GetNode() != single || lacks(noCPU), "too little left on "+single+", where tour-single is", "%q", reasons))
	}
	slices.Sort(about)
	return fits, short, append(facts,
		expect(slices.Equal(about, nodes), "a verdict for each of "+strings.Join(nodes, ", "), "%s",
			strings.Join(about, ", ")),
		expect(fits != "", "a node that lacks nothing but the label", "none"))
}

// placeAfterAll gives a node the label and sees the pod placed there.
func (t *tour) placeAfterAll(ctx context.Context, node string) error {
	began := time.Now()
	if _, err := t.windlass(ctx, "label", "node", node, placeLabel+"=here"); err != nil {
		return err
	}
	picky, err := t.running(ctx, "tour-picky", 1)
	if err != nil {
		return err
	}
	t.saw("tour-picky is ready on %s after %.1f s", picky[0].GetSpec().GetNodeName(), time.Since(began).Seconds())
	if err := t.check(expect(nodesOf(picky)[0] == node, "tour-picky on "+node, "on %s", nodesOf(picky)[0])); err != nil {
		return err
	}
	return t.happened(ctx, "pod/tour-picky", "Scheduled", "Successfully assigned default/tour-picky to "+node)
}
