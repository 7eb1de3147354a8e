package main

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

const (
	// python runs the example programs that are written in it.
	python = "python3"
	// examplesDir has them, from where the tour runs.
	examplesDir = "deploy/examples"

	schedulersNamespace = "tour-schedulers"
	schedulerUser       = "my-scheduler"
)

// addScheduler has one pod placed by another policy of Windlass' own scheduler, and one by a program of another
// language.
func (t *tour) addScheduler(ctx context.Context) error {
	if err := t.apply(ctx, "scheduler.yaml"); err != nil {
		return err
	}
	if err := t.podReady(ctx, "packed"); err != nil {
		return err
	}
	if err := t.says(ctx, []string{"Best now", "MostRequestedPriority="}, "explain", "pod", "packed", "-n",
		schedulersNamespace); err != nil {
		return err
	}
	out, err := t.windlass(ctx, "get", "pods", "-n", schedulersNamespace)
	if err != nil {
		return err
	}
	t.saw("%s", strings.TrimSpace(out))
	if err := t.check(matches("windlass get pods", out, `^custom-scheduler +0/1 +Pending `)); err != nil {
		return err
	}
	dir := filepath.Join(t.dir, schedulerUser)
	if _, err := t.windlass(ctx, "auth", "issue", "--user", schedulerUser, "--for", "1h", "--out", dir); err != nil {
		return err
	}
	p, err := t.startScheduler(ctx, dir)
	if err != nil {
		return err
	}
	defer p.end()
	if err := t.podReady(ctx, "custom-scheduler"); err != nil {
		return fmt.Errorf("%w\nscheduler.py said:\n%s", err, p.said())
	}
	if err := t.schedulerSeen(ctx); err != nil {
		return err
	}
	t.paragraph(
		`A pod names its scheduler. scheduler.py binds the pods of its name to the node with the fewest pods; it may read pods and nodes and bind pods, and nothing else. ` +
			`Each binding names the revision that the program decided on, so that two schedulers do not overcommit a node.`)
	p.end()
	return t.remove(ctx, "scheduler.yaml")
}

// startScheduler runs the example with the certificate in a directory.
func (t *tour) startScheduler(ctx context.Context, dir string) (*program, error) {
	script := filepath.Join(examplesDir, "scheduler", "scheduler.py")
	t.command(fmt.Sprintf("WINDLASS_CERT=%s/tls.crt WINDLASS_KEY=%[1]s/tls.key %s %s custom-scheduler &", schedulerUser,
		python, script), 0, "")
	return t.start(ctx, "sh", "-c", `set -e; settings=$(`+t.shell.line("windlass", "env")+`); eval "$settings"; `+
		`export WINDLASS_CERT=`+quote(filepath.Join(dir, "tls.crt"))+` WINDLASS_KEY=`+quote(filepath.Join(dir, "tls.key"))+
		`; exec `+python+` `+script+` custom-scheduler`)
}

// podReady waits until a pod of the step runs.
func (t *tour) podReady(ctx context.Context, name string) error {
	return within(ctx, placed, name+" ready", func(ctx context.Context) (bool, string, error) {
		p, err := t.cluster.pods.GetPod(ctx, &schedulingv1.GetPodRequest{Namespace: schedulersNamespace, Name: name},
			patient)
		return serves(p), fmt.Sprint(p.GetStatus()), err
	})
}

// schedulerSeen checks that the event of the binding names the scheduler. Events are written beside other work, so they
// may come late.
func (t *tour) schedulerSeen(ctx context.Context) error {
	p, err := t.cluster.pods.GetPod(ctx, &schedulingv1.GetPodRequest{
		Namespace: schedulersNamespace, Name: "custom-scheduler",
	}, patient)
	if err != nil {
		return err
	}
	line := `Normal +Scheduled +\S+ +` + schedulerUser + ` +Successfully assigned custom-scheduler to ` +
		regexp.QuoteMeta(p.GetSpec().GetNodeName()) + `$`
	args := []string{"describe", "pod", "custom-scheduler", "-n", schedulersNamespace}
	if err := within(ctx, answers, "the event "+line, func(ctx context.Context) (bool, string, error) {
		out, err := t.shell.output(ctx, "windlass", args...)
		return matches("", out, line).holds, lastLines(out, 5), err
	}); err != nil {
		return err
	}
	out, err := t.windlass(ctx, args...)
	if err != nil {
		return err
	}
	t.saw("%s", linesWith(out, schedulerUser))
	workers, err := t.workerNodes(ctx)
	if err != nil {
		return err
	}
	return t.check(matches("windlass describe pod custom-scheduler", out, line),
		expect(slices.Contains(workers, p.GetSpec().GetNodeName()), "custom-scheduler on a worker", "on %s",
			p.GetSpec().GetNodeName()))
}

// matches says that an output has a line that matches a pattern.
func matches(command, out, pattern string) fact {
	return expect(regexp.MustCompile(`(?m)`+pattern).MatchString(out), "`"+command+"` with a line "+pattern, "%s",
		lastLines(out, 20))
}
