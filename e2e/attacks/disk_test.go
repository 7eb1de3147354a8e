package attacks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// diskBytes holds a fresh cluster twice: its members reserve 64 MiB or more each for their logs.
const diskBytes = 768 << 20

// TestAFullDiskLosesNothingAndEndsNothing fills the disk of a whole cluster: changes are refused with the reason,
// `windlass status` says so, every program lives on, and once there is space the cluster takes changes by itself and
// has all that it had acknowledged. A member of etcd whose disk is full ends, and is started again. At last the disk is
// full once more when the cluster is removed: nothing of it is left, though a member was started that a full disk has
// no record of.
func TestAFullDiskLosesNothingAndEndsNothing(t *testing.T) {
	shared.Cluster(t) // it holds the lock of the host
	disk, err := os.MkdirTemp("", "d-")
	if err != nil {
		t.Fatal(err)
	}
	harness.MountDisk(t, disk, diskBytes)
	t.Setenv("TMPDIR", disk)
	c := harness.Second(t)
	before := programs(t, c)
	client := schedulingv1.NewNamespaceServiceClient(c.Conn())
	create := func(name string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := client.CreateNamespace(ctx, &schedulingv1.CreateNamespaceRequest{
			Namespace: &schedulingv1.Namespace{Metadata: &metav1.ObjectMeta{Name: name}},
		})
		return err
	}

	file := filepath.Join(disk, "fill")
	var acknowledged []string
	n := 0
	c.Wait(time.Minute, "a change that is refused for want of space, and a status that says so",
		func(context.Context) (bool, string, error) {
			harness.FillDisk(t, file)
			n++
			name := fmt.Sprintf("full-%d", n)
			err := create(name)
			if err == nil {
				acknowledged = append(acknowledged, name)
			}
			if said := status.Convert(err).Message(); status.Code(err) != codes.ResourceExhausted ||
				!strings.Contains(said, "its disk is full") {
				return false, said, err
			}
			r := c.CLI("status")
			return r.Code == 3 && strings.Contains(r.Stdout, "State:       NotReady") &&
				strings.Contains(r.Stdout, "changes are rejected by"), r.Stdout, nil
		})
	t.Logf("%d changes were acknowledged on a full disk", len(acknowledged))

	remove(t, file)
	c.Wait(time.Minute, "a change once there is space", func(context.Context) (bool, string, error) {
		n++
		err := create(fmt.Sprintf("full-%d", n))
		return err == nil, "", err
	})
	c.Wait(time.Minute, "a status that is ready again", func(context.Context) (bool, string, error) {
		r := c.CLI("status")
		return r.Code == 0, r.Stdout, nil
	})
	for _, name := range acknowledged {
		if _, err := client.GetNamespace(t.Context(), &schedulingv1.GetNamespaceRequest{Name: name}); err != nil {
			t.Errorf("the acknowledged namespace %s: %v", name, err)
		}
	}
	for name, pid := range programs(t, c) {
		if before[name] != pid {
			t.Errorf("%s ended: process %d is %d now", name, before[name], pid)
		}
	}

	member, _ := processOf(t, c, "etcd-member/")
	record := filepath.Join(member.RunDir, "etcd-member.json")
	c.Wait(time.Minute, member.Name+" without a record", func(context.Context) (bool, string, error) {
		harness.FillDisk(t, file) // also the place of the record of the process that was killed
		_, missing := os.Stat(record)
		p, runs := processOf(t, c, member.Name)
		if runs && errors.Is(missing, os.ErrNotExist) {
			return true, "", nil
		}
		if runs && missing == nil {
			return false, "it has a record", c.Kill(p.Name)
		}
		return false, fmt.Sprint(p, missing), nil
	})
	// The cleanup runs `windlass down --purge` and fails the test if a process is left.
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// programs returns the processes of the cluster by name, but those that a full disk ends: the members of etcd, and
// pods.
func programs(t *testing.T, c *harness.Cluster) map[string]int {
	t.Helper()
	out := pids(t, c)
	for name := range out {
		if strings.HasPrefix(name, "etcd-member/") || strings.HasPrefix(name, "pod/") {
			delete(out, name)
		}
	}
	return out
}

// processOf returns a process of the cluster whose name begins with a text.
func processOf(t *testing.T, c *harness.Cluster, name string) (harness.Process, bool) {
	t.Helper()
	list, err := c.Processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if strings.HasPrefix(p.Name, name) {
			return p, true
		}
	}
	return harness.Process{}, false
}
