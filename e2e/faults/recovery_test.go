package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/snapshot"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// keep creates a namespace.
func keep(t *testing.T, c *harness.Cluster, name string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), name+".yaml")
	text := "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + name + "}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Wait(patience, "the creation of "+name, func(context.Context) (bool, string, error) {
		r := c.CLI("apply", "-f", file)
		return r.Code == 0, r.Stderr, nil
	})
}

// kept waits until a namespace exists or not, as wanted, and returns the revision of a list.
func kept(c *harness.Cluster, name string, want bool) int64 {
	var revision int64
	c.Wait(patience, fmt.Sprintf("%s to exist: %t", name, want), func(ctx context.Context) (bool, string, error) {
		list, err := schedulingv1.NewNamespaceServiceClient(c.Conn()).ListNamespaces(ctx,
			&schedulingv1.ListNamespacesRequest{})
		if err != nil {
			return false, "", err
		}
		found := false
		for _, m := range list.GetItems() {
			found = found || m.GetMetadata().GetName() == name
		}
		_, err = fmt.Sscan(list.GetMetadata().GetResourceVersion(), &revision)
		return found == want, fmt.Sprintf("%d objects", len(list.GetItems())), err
	})
	return revision
}

// lose ends the members of etcd on all machines of the control plane but one, and removes their data.
func lose(t *testing.T, c *harness.Cluster) {
	t.Helper()
	for _, m := range c.MustMachines("master")[1:] {
		name := m.GetMetadata().GetName()
		found, err := filepath.Glob(c.Dir("services", "*", "*", name, "etcd", "data"))
		if err != nil || len(found) != 1 {
			t.Fatalf("data of machine %s: %v, %v", name, found, err)
		}
		if err := os.RemoveAll(found[0]); err != nil {
			t.Fatal(err)
		}
		if err := c.Kill(harness.Member(name)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTheLossOfAMajorityAndOfAll(t *testing.T) {
	c := harness.Second(t)
	c.Settle(patience)
	keep(t, c, "acknowledged")

	if r := c.CLI("quorum", "recover", "--yes"); r.Code == 0 || !strings.Contains(r.Stderr, "nothing to recover") {
		t.Fatalf("recovery of a cluster that works: %+v", r)
	}
	lose(t, c)
	c.Wait(patience, "the loss to be seen", func(ctx context.Context) (bool, string, error) {
		q, err := c.Quorum(ctx)
		return err == nil && strings.Contains(q.GetWaitsFor(), "a majority of the voters"), q.GetWaitsFor(), err
	})
	r := c.CLI("quorum", "recover")
	if r.Code == 0 || !strings.Contains(r.Stdout, "Could be lost:") || !strings.Contains(r.Stdout, "survivor") ||
		!strings.Contains(r.Stdout, "silent since") || !strings.Contains(r.Stderr, "--yes") {
		t.Fatalf("recovery without --yes: %+v", r)
	}
	if r := c.CLI("quorum", "recover", "--yes"); r.Code != 0 {
		t.Fatalf("recovery: %+v", r)
	}
	c.Up()
	c.Settle(patience)
	after := kept(c, "acknowledged", true)
	if after < snapshot.RevisionBump {
		t.Errorf("revision %d after the recovery, want %d or more", after, snapshot.RevisionBump)
	}

	file := take(c, "before")
	keep(t, c, "later")
	if r := c.CLI("quorum", "drill"); r.Code != 0 || !strings.Contains(r.Stdout, "can be restored") {
		t.Errorf("drill: %+v", r)
	}
	if r := c.CLI("quorum", "snapshots"); r.Code != 0 || !strings.Contains(r.Stdout, "before") {
		t.Errorf("list of snapshots: %+v", r)
	}
	if r := c.CLI("quorum", "restore", file, "--yes"); r.Code == 0 || !strings.Contains(r.Stderr, "--force") {
		t.Fatalf("restore over a cluster that works: %+v", r)
	}
	c.Down() // without any service
	if r := c.CLI("quorum", "restore", file, "--yes"); r.Code != 0 {
		t.Fatalf("restore: %+v", r)
	}
	c.Up()
	c.Settle(patience)
	kept(c, "later", false)
	if again := kept(c, "acknowledged", true); again < after+snapshot.RevisionBump/2 {
		t.Errorf("revision %d after the restore, want far more than %d", again, after)
	}
	keep(t, c, "afterwards")
}

// take has a snapshot taken and returns its file.
func take(c *harness.Cluster, name string) string {
	location := ""
	client := etcdv1.NewSnapshotServiceClient(c.Conn())
	c.Wait(patience, "snapshot "+name, func(ctx context.Context) (bool, string, error) {
		s, err := client.GetSnapshot(ctx, &etcdv1.GetSnapshotRequest{Name: name})
		if err != nil {
			_, err = client.CreateSnapshot(ctx, &etcdv1.CreateSnapshotRequest{Snapshot: &etcdv1.Snapshot{
				Metadata: &metav1.ObjectMeta{Name: name},
			}})
			return false, "not requested yet", err
		}
		location = s.GetStatus().GetLocation()
		return s.GetStatus().GetPhase() == "Completed", s.GetStatus().GetPhase() + ": " + s.GetStatus().GetMessage(), nil
	})
	return location
}
