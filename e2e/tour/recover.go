package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// recoveryCluster is a cluster of its own, since most of its etcd is destroyed.
const recoveryCluster = "tour-recovery"

// recoverQuorum destroys a majority of the members of a second cluster, and then all of them.
func (t *tour) recoverQuorum(ctx context.Context) (err error) {
	lab := &tour{story: t.story, shell: shell{name: recoveryCluster}, dir: t.dir}
	purge := []string{"down", "--purge"}
	// An interrupted tour left it there. Without one the command fails.
	_, _ = lab.shell.output(ctx, "windlass", purge...)
	if _, err := lab.windlass(ctx, "up"); err != nil {
		return err
	}
	defer func() {
		if _, end := lab.windlass(context.WithoutCancel(ctx), purge...); err == nil {
			err = end
		}
	}()
	if lab.cluster, err = connect(ctx, lab.shell); err != nil {
		return err
	}
	defer lab.cluster.close()
	if err := lab.apply(ctx, "recover.yaml"); err != nil {
		return err
	}
	if _, err := lab.windlass(ctx, "wait", "snapshot/tour-before",
		"--for=jsonpath={.status.phase}=Completed"); err != nil {
		return err
	}
	if err := lab.loseMajority(ctx); err != nil {
		return err
	}
	if err := lab.restoreAll(ctx); err != nil {
		return err
	}
	t.paragraph(
		`Both recoveries work without etcd. The first keeps all that a survivor knew to be agreed on and names beforehand what could be lost; the second returns to the snapshot. ` +
			`Revisions jump by a billion, so that no watch misses that, and the other machines join again as new members.`)
	return nil
}

// loseMajority destroys two of three members and recovers from the third.
func (t *tour) loseMajority(ctx context.Context) error {
	masters, err := t.cluster.listMachines(ctx, "master")
	if err != nil {
		return err
	}
	p, err := t.listProcesses(ctx)
	if err != nil {
		return err
	}
	for _, m := range names(masters)[1:] {
		data := filepath.Join(t.cluster.dir, "services", "provider-local", "machines", m, "etcd", "data")
		if err := os.RemoveAll(data); err != nil {
			return err
		}
		t.command("rm -r "+data, 0, "")
		key := memberProcess(m)
		if err := t.kill(key, p.pids[key]); err != nil {
			return err
		}
	}
	err = within(ctx, settled, "a quorum that waits for a majority", func(ctx context.Context) (bool, string, error) {
		out, err := t.shell.output(ctx, "windlass", "quorum")
		return strings.Contains(out, "a majority of the voters"), lastLines(out, 20), err
	})
	if err != nil {
		return err
	}
	began := time.Now()
	said, err := t.shell.output(ctx, "windlass", "quorum", "recover")
	t.command(t.shell.line("windlass", "quorum", "recover"), time.Since(began), said)
	_, lost, _ := strings.Cut(said, "Could be lost:")
	t.saw("Could be lost:%s", lost)
	if err := t.check(expect(err != nil && strings.Contains(err.Error(), "--yes"), "a recovery that asks for --yes", "%v",
		err), mentions("windlass quorum recover", said, "Could be lost:", "survivor", "silent since")); err != nil {
		return err
	}
	return t.comesBackWith(ctx, "quorum", "recover", "--yes")
}

// restoreAll makes an object that the snapshot lacks, takes the cluster down and makes a new etcd from the snapshot.
func (t *tour) restoreAll(ctx context.Context) error {
	if err := t.apply(ctx, "later.yaml"); err != nil {
		return err
	}
	out, err := t.windlass(ctx, "quorum", "drill")
	if err != nil {
		return err
	}
	if err := t.check(mentions("windlass quorum drill", out, "can be restored")); err != nil {
		return err
	}
	file, err := t.windlass(ctx, "get", "snapshot", "tour-before", "-o", "jsonpath={.status.location}")
	if err != nil {
		return err
	}
	if _, err := t.windlass(ctx, "down"); err != nil {
		return err
	}
	if err := t.comesBackWith(ctx, "quorum", "restore", strings.TrimSpace(file), "--yes"); err != nil {
		return err
	}
	out, err = t.windlass(ctx, "get", "namespaces", "-o", "name")
	if err != nil {
		return err
	}
	return t.check(expect(!strings.Contains(out, "tour-later"),
		"no namespace tour-later, which is younger than the snapshot",
		"%s", out))
}

// comesBackWith runs a command that replaces etcd, starts the cluster, and waits until it is at rest with what it had.
func (t *tour) comesBackWith(ctx context.Context, args ...string) error {
	if _, err := t.windlass(ctx, args...); err != nil {
		return err
	}
	began := time.Now()
	if _, err := t.windlass(ctx, "up"); err != nil {
		return err
	}
	t.cluster.close()
	var err error
	if t.cluster, err = connect(ctx, t.shell); err != nil {
		return err
	}
	if err := within(ctx, settled, "three healthy voters", t.ready); err != nil {
		return err
	}
	t.saw("three healthy voters after %.1f s", time.Since(began).Seconds())
	out, err := t.windlass(ctx, "get", "namespaces", "-o", "name")
	if err != nil {
		return err
	}
	return t.check(expect(strings.Contains(out, "tour-kept"), "namespace tour-kept", "%s", out))
}
