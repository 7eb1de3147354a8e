package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// evicted is how long it may take until a pod leaves after its time is over.
const evicted = 30 * time.Second

// taint makes pods leave a node by a taint, and then by silence.
func (t *tour) taint(ctx context.Context) error {
	if err := t.taintByHand(ctx); err != nil {
		return err
	}
	if !t.here() {
		t.saw("left out, as this cluster runs elsewhere: an agent is stopped, and its node becomes unreachable")
		return nil
	}
	return t.taintBySilence(ctx)
}

// watched runs something while the pods of the step are watched.
func (t *tour) watched(ctx context.Context, do func(context.Context, *podWatch) error) error {
	watching, stop := context.WithCancel(ctx)
	g, watching := errgroup.WithContext(watching)
	w, err := t.watchPods(watching, g, "tour.windlass.dev/step=taint")
	if err == nil {
		err = do(ctx, w)
	}
	stop()
	return errors.Join(err, g.Wait())
}

func (t *tour) taintByHand(ctx context.Context) error {
	if err := t.apply(ctx, "taint.yaml"); err != nil {
		return err
	}
	pods, err := t.running(ctx, "tour-plain", 1)
	if err != nil {
		return err
	}
	node := pods[0].GetSpec().GetNodeName()
	if _, err := t.windlass(ctx, "label", "node", node, taintLabel+"=here"); err != nil {
		return err
	}
	for _, app := range []string{"tour-while", "tour-always"} {
		p, err := t.running(ctx, app, 1)
		if err != nil {
			return err
		}
		pods = append(pods, p...)
	}
	t.saw("%s are on %s", strings.Join(names(pods), ", "), strings.Join(nodesOf(pods), ", "))
	if err := t.check(expect(slices.Equal(nodesOf(pods), []string{node}), "all three on "+node, "on %s",
		strings.Join(nodesOf(pods), ", "))); err != nil {
		return err
	}
	if err := t.watched(ctx, func(ctx context.Context, w *podWatch) error {
		return t.evict(ctx, w, node, pods[0], pods[1], pods[2])
	}); err != nil {
		return err
	}
	t.paragraph(
		`A NoExecute taint drives pods out: at once those that do not tolerate it, others when their time is over, and those that tolerate it for good never.`)
	for _, args := range [][]string{
		{"adm", "taint", "nodes", node, taintKey + "-"},
		{"label", "node", node, taintLabel + "-"},
	} {
		if _, err := t.windlass(ctx, args...); err != nil {
			return err
		}
	}
	return t.remove(ctx, "taint.yaml")
}

// evict taints a node and checks which pods leave it, and when.
func (t *tour) evict(ctx context.Context, w *podWatch, node string, plain, while, always *schedulingv1.Pod) error {
	const patience = 3 * time.Second // of tour-while
	if _, err := t.windlass(ctx, "adm", "taint", "nodes", node, taintKey+"=value1:"+noExecute); err != nil {
		return err
	}
	out, err := t.windlass(ctx, "plan", "evictions", node)
	if err != nil {
		return err
	}
	t.saw("%s", linesWith(out, "tour-"))
	if err := t.check(mentions("windlass plan evictions "+node, linesWith(out, "tour-always"), "Keep",
		"it tolerates every NoExecute taint")); err != nil {
		return err
	}
	n, err := t.cluster.nodes.GetNode(ctx, &nodev1.GetNodeRequest{Name: node}, patient)
	if err != nil {
		return err
	}
	since := findTaint(n, taintKey, noExecute).GetTimeAdded()
	if err := t.check(expect(since != nil, "the time at which "+taintKey+" was put on "+node, "%v",
		n.GetSpec().GetTaints())); err != nil {
		return err
	}
	first, err := w.leftAfter(ctx, plain, evicted, since.AsTime())
	if err != nil {
		return err
	}
	again, err := t.running(ctx, "tour-plain", 1)
	if err != nil {
		return err
	}
	t.saw("%s was deleted after %s; %s is ready on %s", plain.GetMetadata().GetName(), first,
		again[0].GetMetadata().GetName(), nodesOf(again)[0])
	second, err := w.leftAfter(ctx, while, evicted, since.AsTime())
	if err != nil {
		return err
	}
	for _, p := range []*schedulingv1.Pod{plain, while} {
		if err := w.disappears(ctx, p, evicted); err != nil {
			return err
		}
	}
	t.saw("%s, which tolerates the taint for %s, after %s", while.GetMetadata().GetName(), patience, second)
	stays, err := t.running(ctx, "tour-always", 1)
	if err != nil {
		return err
	}
	return t.check(
		expect(first < second, "tour-plain deleted before tour-while", "after %s and %s", first, second),
		expect(first < patience, "tour-plain deleted at once", "after %s", first),
		expect(second >= patience, "tour-while deleted after "+patience.String()+" and not before", "after %s", second),
		expect(nodesOf(again)[0] != node, "tour-plain on another node than "+node, "on %s", nodesOf(again)[0]),
		expect(slices.Equal(uids(stays), uids([]*schedulingv1.Pod{always})), "tour-always where it was", "%s",
			strings.Join(uids(stays), ", ")))
}

// taintBySilence stops the agent of a node and has it go on later.
func (t *tour) taintBySilence(ctx context.Context) error {
	if err := t.apply(ctx, "unreachable.yaml"); err != nil {
		return err
	}
	pods, err := t.running(ctx, "tour-lone", 1)
	if err != nil {
		return err
	}
	node := pods[0].GetSpec().GetNodeName()
	p, err := t.listProcesses(ctx)
	if err != nil {
		return err
	}
	agent := p.pids[agentProcess(node)]
	if err := t.check(expect(agent > 1, "a process of the agent of "+node, "none")); err != nil {
		return err
	}
	err = t.watched(ctx, func(ctx context.Context, w *podWatch) error {
		defer func() { _ = syscall.Kill(agent, syscall.SIGCONT) }() // whatever happens; one that runs does not mind
		return t.silence(ctx, w, node, agent, pods[0])
	})
	if err != nil {
		return err
	}
	t.paragraph(
		`An agent that does not report says nothing about its pods: they may still run. So what belongs to them is started elsewhere, but they are not struck off before ` +
			`the agent itself has ended them and said so.`)
	return t.remove(ctx, "unreachable.yaml")
}

// signal sends a signal to a process of the cluster and prints that.
func (t *tour) signal(name string, s syscall.Signal, pid int, what string) error {
	if err := syscall.Kill(pid, s); err != nil {
		return fmt.Errorf("kill -%s %d (%s): %w", name, pid, what, err)
	}
	t.command(fmt.Sprintf("kill -%s %d   # %s", name, pid, what), 0, "")
	return nil
}

func (t *tour) silence(ctx context.Context, w *podWatch, node string, agent int, pod *schedulingv1.Pod) error {
	const patience = 5 * time.Second // of tour-lone
	began := time.Now()
	if err := t.signal("STOP", syscall.SIGSTOP, agent, "the agent of "+node); err != nil {
		return err
	}
	var since time.Time
	err := within(ctx, settled, "node "+node+" found unreachable", func(ctx context.Context) (bool, string, error) {
		n, err := t.cluster.nodes.GetNode(ctx, &nodev1.GetNodeRequest{Name: node}, patient)
		taint := findTaint(n, "node.kubernetes.io/unreachable", noExecute)
		since = taint.GetTimeAdded().AsTime()
		return taint != nil && !isReady(n), fmt.Sprint(n.GetStatus().GetConditions()), err
	})
	if err != nil {
		return err
	}
	t.moment(time.Since(began), "node "+node+" has the taint node.kubernetes.io/unreachable:NoExecute")
	left, err := w.leftAfter(ctx, pod, evicted, since)
	if err != nil {
		return err
	}
	t.moment(time.Since(began), fmt.Sprintf("%s, which tolerates that for %s, is deleted %s after the taint",
		pod.GetMetadata().GetName(), patience, left))
	again, err := t.running(ctx, "tour-lone", 1)
	if err != nil {
		return err
	}
	t.moment(time.Since(began), again[0].GetMetadata().GetName()+" is ready on "+nodesOf(again)[0])
	runs, err := t.podProcesses(ctx, pod)
	if err != nil {
		return err
	}
	_, gone := w.leaving(pod)
	if err := t.check(
		expect(left >= patience, "tour-lone deleted after "+patience.String()+" and not before", "after %s", left),
		expect(nodesOf(again)[0] != node, "tour-lone on another node than "+node, "on %s", nodesOf(again)[0]),
		expect(!gone && len(runs) > 0, pod.GetMetadata().GetName()+" still there, since its processes run on",
			"gone: %v, processes: %v", gone, runs)); err != nil {
		return err
	}
	return t.speakAgain(ctx, w, node, agent, pod, runs)
}

// speakAgain has the agent go on, and checks that nothing is left of the pod that had to leave.
func (t *tour) speakAgain(ctx context.Context, w *podWatch, node string, agent int, pod *schedulingv1.Pod,
	runs []int,
) error {
	began := time.Now()
	if err := t.signal("CONT", syscall.SIGCONT, agent, "the agent of "+node); err != nil {
		return err
	}
	if err := w.disappears(ctx, pod, evicted); err != nil {
		return err
	}
	t.moment(time.Since(began), pod.GetMetadata().GetName()+" has ended and is gone")
	err := within(ctx, evicted, "node "+node+" Ready, without a taint", func(ctx context.Context) (bool, string, error) {
		n, err := t.cluster.nodes.GetNode(ctx, &nodev1.GetNodeRequest{Name: node}, patient)
		return isReady(n) && len(n.GetSpec().GetTaints()) == 0,
			fmt.Sprint(n.GetSpec().GetTaints(), n.GetStatus().GetConditions()), err
	})
	if err != nil {
		return err
	}
	t.moment(time.Since(began), "node "+node+" is Ready again")
	still, err := t.podProcesses(ctx, pod)
	if err != nil {
		return err
	}
	runs = slices.DeleteFunc(runs, func(pid int) bool { return !alive(pid) })
	return t.check(expect(len(still) == 0 && len(runs) == 0, "no process of "+pod.GetMetadata().GetName(), "%v %v", still,
		runs))
}

// podProcesses returns the processes of a pod that run.
func (t *tour) podProcesses(ctx context.Context, pod *schedulingv1.Pod) ([]int, error) {
	p, err := t.listProcesses(ctx)
	var out []int
	for key, pid := range p.pids {
		if strings.HasPrefix(key, machineProcess(pod.GetSpec().GetNodeName(), "pod."+pod.GetMetadata().GetUid()+".")) &&
			alive(pid) {
			out = append(out, pid)
		}
	}
	return out, err
}

// wakeAgents has agents go on that a tour which was interrupted left stopped.
func (t *tour) wakeAgents(ctx context.Context) error {
	p, err := t.listProcesses(ctx)
	if err != nil {
		return err
	}
	for key, pid := range p.pids {
		if key != agentProcess(spoken(key)) || !stopped(pid) {
			continue
		}
		if err := t.signal("CONT", syscall.SIGCONT, pid, "the agent of "+spoken(key)+
			", which an earlier tour left stopped"); err != nil {
			return err
		}
	}
	return nil
}

// stopped reports whether a process was stopped by a signal.
func stopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	return err == nil && strings.HasPrefix(rest, "T")
}
