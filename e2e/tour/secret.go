package main

import (
	"context"
	"fmt"
	"strings"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

const loginSecret = "tour-login"

// changeSecret runs a pod that needs a secret before there is one, and changes the secret while the pod runs.
func (t *tour) changeSecret(ctx context.Context) error {
	if err := t.apply(ctx, "secret.yaml"); err != nil {
		return err
	}
	waiting := func(p *schedulingv1.Pod) *schedulingv1.ContainerStateWaiting {
		for _, c := range p.GetStatus().GetContainerStatuses() {
			return c.GetState().GetWaiting()
		}
		return nil
	}
	pod, err := t.podWhen(ctx, "tour-secret", "a pod that waits for its secret", func(p *schedulingv1.Pod) bool {
		return waiting(p).GetReason() == "CreateContainerConfigError"
	})
	if err != nil {
		return err
	}
	t.saw("%s: %s", waiting(pod).GetReason(), waiting(pod).GetMessage())
	if err := t.check(mentions("the reason", waiting(pod).GetMessage(), loginSecret)); err != nil {
		return err
	}
	if _, err := t.windlass(ctx, "create", "secret", "generic", loginSecret, "--from-literal=password=first"); err != nil {
		return err
	}
	if pod, err = t.podWhen(ctx, "tour-secret", "the pod tour-secret ready", serves); err != nil {
		return err
	}
	if err := t.hasPassword(ctx, "first first"); err != nil {
		return err
	}
	if _, err := t.windlass(ctx, "patch", "secret", loginSecret, "--type=merge", "-p",
		`{"stringData":{"password":"second"}}`); err != nil {
		return err
	}
	if err := t.hasPassword(ctx, "first second"); err != nil {
		return err
	}
	id := func(p *schedulingv1.Pod) string { return p.GetStatus().GetContainerStatuses()[0].GetContainerId() }
	after, err := t.podWhen(ctx, "tour-secret", "the pod tour-secret", serves)
	if err != nil {
		return err
	}
	if err := t.check(expect(id(after) == id(pod), "the same container", "%s, then %s", id(pod), id(after))); err != nil {
		return err
	}
	t.paragraph(
		`The pod waited for its secret. The file follows the secret while the container runs; the variable is that of its start.`)
	if err := t.remove(ctx, "secret.yaml"); err != nil {
		return err
	}
	return t.removeSecret(ctx)
}

// hasPassword waits until the variable and the file of the pod have some words.
func (t *tour) hasPassword(ctx context.Context, words string) error {
	args := []string{"exec", "tour-secret", "--", "sh", "-c", `echo "$PASSWORD $(cat "$WINDLASS_VOLUME_LOGIN/password")"`}
	err := within(ctx, placed, fmt.Sprintf("%q in the pod", words), func(ctx context.Context) (bool, string, error) {
		out, err := t.shell.output(ctx, "windlass", args...)
		return strings.TrimSpace(out) == words, out, err
	})
	if err != nil {
		return err
	}
	out, err := t.windlass(ctx, args...)
	t.saw("%s", strings.TrimSpace(out))
	return err
}

// removeSecret deletes the secret of the step, which no document has, if it is there.
func (t *tour) removeSecret(ctx context.Context) error {
	_, err := t.shell.output(ctx, "windlass", "delete", "secret", loginSecret, "--ignore-not-found")
	return err
}
