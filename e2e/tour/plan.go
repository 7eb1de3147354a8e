package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// plan asks what would be done, about live objects and about files, and checks that asking does nothing.
func (t *tour) plan(ctx context.Context) error {
	dir, err := os.MkdirTemp(t.dir, "plan-")
	if err != nil {
		return err
	}
	before, err := t.revisions(ctx)
	if err != nil {
		return err
	}
	for _, ask := range []func(context.Context, string) error{
		t.planWorkers, t.planControlPlane, t.planHooks,
		t.planQuorum,
	} {
		if err := ask(ctx, dir); err != nil {
			return err
		}
	}
	after, err := t.revisions(ctx)
	if err != nil {
		return err
	}
	t.paragraph(
		`Each answer comes from the very code that decides. Nothing was done: every machine and every set is as it was.`)
	return t.check(expect(slices.Equal(before, after), "objects at the same revisions as before: "+
		strings.Join(before, ", "), "%s", strings.Join(after, ", ")))
}

// revisions returns everything that the plans are about, with its revision.
func (t *tour) revisions(ctx context.Context) ([]string, error) {
	machines, err := t.cluster.listMachines(ctx, "")
	if err != nil {
		return nil, err
	}
	sets, err := t.cluster.listSets(ctx, "")
	var out []string
	for _, m := range machines {
		out = append(out, fmt.Sprintf("machine %s at %d", m.GetMetadata().GetName(), revision(m)))
	}
	for _, s := range sets {
		out = append(out, fmt.Sprintf("set %s at %d", s.GetMetadata().GetName(), revision(s)))
	}
	slices.Sort(out)
	return out, err
}

// says asks for a plan and checks that the answer has some words.
func (t *tour) says(ctx context.Context, words []string, args ...string) error {
	out, err := t.windlass(ctx, args...)
	if err != nil {
		return err
	}
	t.saw("%s", strings.Trim(strings.ReplaceAll(out, "\n\n", "\n"), "\n"))
	return t.check(mentions(t.shell.line("windlass", args...), out, words...))
}

func (t *tour) planWorkers(ctx context.Context, _ string) error {
	set, err := t.workerSet(ctx)
	if err != nil {
		return err
	}
	name, n := set.GetMetadata().GetName(), set.GetSpec().GetReplicas()
	if err := t.says(ctx, []string{"create 3 machines"}, "plan", "machineset", name,
		fmt.Sprintf("--replicas=%d", n+3)); err != nil {
		return err
	}
	return t.says(ctx, []string{"delete machine/"}, "plan", "machineset", name, fmt.Sprintf("--replicas=%d", n-1))
}

// planControlPlane asks about the control plane as it is, and as it would be without one of its machines.
func (t *tour) planControlPlane(ctx context.Context, dir string) error {
	machines, err := t.cluster.listMachines(ctx, "master")
	if err != nil {
		return err
	}
	if err := t.says(ctx, append(names(machines), "Nothing to do"), "plan", "controlplanemachineset"); err != nil {
		return err
	}
	missing := machines[0].GetMetadata()
	var documents []string
	for _, object := range append([]string{"controlplanemachineset/cluster"},
		without(prefixed("machine/", names(machines)), "machine/"+missing.GetName())...) {
		out, err := t.shell.output(ctx, "windlass", "get", object, "-o", "yaml")
		if err != nil {
			return err
		}
		documents = append(documents, out)
	}
	file := filepath.Join(dir, "without-one.yaml")
	if err := os.WriteFile(file, []byte(strings.Join(documents, "---\n")), 0o600); err != nil {
		return err
	}
	t.saw("and without %s, in a file:", missing.GetName())
	return t.says(ctx, []string{"CreateMachine", missing.GetLabels()["machine.openshift.io/zone"]}, "plan",
		"controlplanemachineset", "-f", file)
}

func prefixed(prefix string, list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = prefix + s
	}
	return out
}

// planHooks asks for a change of hooks that is allowed and for one that is not.
func (t *tour) planHooks(ctx context.Context, _ string) error {
	machines, err := t.cluster.listMachines(ctx, "master")
	if err != nil {
		return err
	}
	name := names(machines)[0]
	if err := t.says(ctx, []string{"allowed"}, "plan", "hooks", name, "--add", "preTerminate:"+backupHook+"="+
		backupOwner); err != nil {
		return err
	}
	args := []string{"plan", "hooks", name, "--add", "preDrain:" + quorumHook + "=another"}
	began := time.Now()
	out, err := t.shell.output(ctx, "windlass", args...)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	t.command(t.shell.line("windlass", args...), time.Since(began), out)
	t.saw("%s", strings.TrimSpace(out))
	return t.check(expect(exitCode(err) == 1, "exit code 1 for a second hook "+quorumHook, "%v", err),
		mentions(t.shell.line("windlass", args...), out, "refused", "spec.lifecycleHooks.preDrain[1].name"))
}

// planQuorum asks about the quorum as it is; then, in a file, about one of its machines being deleted, first alive and
// then dead.
func (t *tour) planQuorum(ctx context.Context, dir string) error {
	if err := t.says(ctx, []string{"Stable", "Nothing to do"}, "plan", "quorum"); err != nil {
		return err
	}
	q, err := t.cluster.quorum(ctx)
	if err != nil {
		return err
	}
	goes := follower(q)
	alive, err := t.quorumFile(ctx, filepath.Join(dir, "deleting.json"), goes, true)
	if err != nil {
		return err
	}
	t.saw("and if %s were being deleted, in a file:", goes)
	if err := t.says(ctx, []string{"Replacing", "RemoveMember member/" + goes, "no replacement of machine " + goes +
		" runs a member", "Waits for: another control-plane machine"}, "plan", "quorum", "-f", alive); err != nil {
		return err
	}
	dead, err := t.quorumFile(ctx, filepath.Join(dir, "deleting-and-dead.json"), goes, false)
	if err != nil {
		return err
	}
	t.saw("and if its member were dead, too:")
	return t.says(ctx, []string{"Degraded", "1. RemoveMember member/" + goes, "it is down"}, "plan", "quorum", "-f", dead)
}

// quorumFile writes the live quorum and its machines to a file, with one machine being deleted and its member alive or
// dead.
func (t *tour) quorumFile(ctx context.Context, path, name string, alive bool) (string, error) {
	type object = map[string]any
	var q object
	var m struct {
		Items []object `json:"items"`
	}
	out, err := t.shell.output(ctx, "windlass", "quorum", "-o", "json")
	if err != nil {
		return "", err
	}
	if err := json.Unmarshal([]byte(out), &q); err != nil {
		return "", fmt.Errorf("windlass quorum -o json: %w", err)
	}
	if out, err = t.shell.output(ctx, "windlass", "get", "machines", "-l", roleLabel+"=master", "-o", "json"); err != nil {
		return "", err
	}
	if err := json.Unmarshal([]byte(out), &m); err != nil {
		return "", fmt.Errorf("windlass get machines -o json: %w", err)
	}
	members, _ := q["members"].([]any)
	for _, m := range members {
		if member, ok := m.(object); ok && member["name"] == name && !alive {
			delete(member, "healthy")
		}
	}
	for _, machine := range m.Items {
		if metadata, ok := machine["metadata"].(object); ok && metadata["name"] == name {
			metadata["deletionTimestamp"] = time.Now().UTC().Format(time.RFC3339)
		}
	}
	raw, err := json.MarshalIndent(object{"quorum": q, "machines": object{"items": m.Items}}, "", "  ")
	if err != nil {
		return "", err
	}
	return path, os.WriteFile(path, raw, 0o600)
}

// exitCode returns with which code a command ended; -1 if it did not end by itself.
func exitCode(err error) int {
	var exit interface{ ExitCode() int }
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	return -1
}
