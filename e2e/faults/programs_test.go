package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	programv1 "github.com/windlass-dev/windlass/gen/windlass/program/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/topology"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// A release brings the programs of Windlass. Each is restarted from it, while the supervisor is killed in between; the
// machines run on. One that does not come up goes back by itself, and the update says so. The way back to a release
// without programs ends where the cluster began.
func TestWindlassUpdatesItselfAndGoesBack(t *testing.T) {
	c := harness.Second(t)
	binary, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	if binary, err = filepath.EvalSymlinks(binary); err != nil {
		t.Fatal(err)
	}
	initial := versionOf(t, c).GetStatus().GetDesired().GetImage()
	machines := agents(t, c)

	upgrade(c, releaseOf(t, c, "1.1.0", "1.0.0", binary))
	c.Wait(patience, "the second program on trial", func(ctx context.Context) (bool, string, error) {
		p, err := listPrograms(ctx, c)
		on := len(p) >= 2
		for _, o := range p {
			on = on && o.GetStatus().GetVersion() != ""
		}
		return on, fmt.Sprint(p), err
	})
	list, err := c.Processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if p.Name == harness.Supervisor {
			if err := unix.Kill(p.PID, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.Up()
	completed(c, "1.1.0")
	image := ""
	p, err := listPrograms(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range topology.Names() {
		o := p[name]
		if image = o.GetSpec().GetImage(); image == "" || o.GetStatus().GetImage() != image ||
			conditionOf(o.GetStatus().GetConditions(), "Progressing").GetStatus() != "False" {
			t.Errorf("program %s once the update is completed: %v", name, o)
		}
	}
	_, digest, _ := strings.Cut(image, "@sha256:")
	runFrom(t, c, c.Dir("executables", digest, "windlass"))
	if now := agents(t, c); now != machines {
		t.Errorf("agents and members were %s before the update and %s after it", machines, now)
	}

	upgrade(c, releaseOf(t, c, "1.2.0", "1.1.0", harness.BrokenExecutable(t)))
	c.Wait(patience, "the update to fail for update-orchestrator", func(ctx context.Context) (bool, string, error) {
		cv, err := readVersion(ctx, c)
		f := conditionOf(cv.GetStatus().GetConditions(), "Failing")
		return f.GetStatus() == "True" && f.GetReason() == "ProgramNotUpdated" &&
			strings.Contains(f.GetMessage(), "this version cannot read its state"), fmt.Sprint(f), err
	})
	runFrom(t, c, c.Dir("executables", digest, "windlass"))
	c.MustCLI("adm", "upgrade", "--abort")
	completed(c, "1.1.0")

	c.MustCLI("adm", "upgrade", "--to-image", initial, "--allow-explicit-upgrade", "--waive",
		"ClusterVersionRollback=the test goes back")
	completed(c, "1.0.0")
	if p, err := listPrograms(t.Context(), c); err != nil || len(p) > 0 {
		t.Errorf("programs at a release that brings none: %v, %v", p, err)
	}
	runFrom(t, c, binary)
	if now := agents(t, c); now != machines {
		t.Errorf("agents and members were %s before and %s at the end", machines, now)
	}
}

// releaseOf makes a release of the example's manifests with an executable, and returns its image.
func releaseOf(t *testing.T, c *harness.Cluster, version, previous, executable string) string {
	t.Helper()
	releases := func(elem string) string { return c.Dir("release", elem) }
	out := c.MustCLI("adm", "release", "new", "--from-dir",
		filepath.Join(harness.Root(), "deploy/examples/releases/1.0.0"),
		"--version", version, "--previous", previous, "--to", releases("images"), "--executable", executable,
		"--signing-key", releases("signing-key.asc"), "--signature-store", releases("signatures"), "-o", "name")
	return strings.TrimSpace(out)
}

func upgrade(c *harness.Cluster, image string) {
	c.MustCLI("adm", "upgrade", "--to-image", image, "--allow-explicit-upgrade")
}

func completed(c *harness.Cluster, version string) {
	c.Wait(3*time.Minute, version+" to be completed", func(ctx context.Context) (bool, string, error) {
		cv, err := readVersion(ctx, c)
		h := cv.GetStatus().GetHistory()
		return err == nil && h[0].GetVersion() == version && h[0].GetState() == "Completed",
			fmt.Sprint(cv.GetStatus().GetConditions(), cv.GetStatus().GetProgress()), err
	})
}

func versionOf(t *testing.T, c *harness.Cluster) *updatev1.ClusterVersion {
	t.Helper()
	cv, err := readVersion(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return cv
}

func readVersion(ctx context.Context, c *harness.Cluster) (*updatev1.ClusterVersion, error) {
	return updatev1.NewClusterVersionServiceClient(c.Conn()).GetClusterVersion(ctx,
		&updatev1.GetClusterVersionRequest{Name: "version"})
}

func listPrograms(ctx context.Context, c *harness.Cluster) (map[string]*programv1.Program, error) {
	list, err := programv1.NewProgramServiceClient(c.Conn()).ListPrograms(ctx, &programv1.ListProgramsRequest{})
	out := map[string]*programv1.Program{}
	for _, p := range list.GetItems() {
		out[p.GetMetadata().GetName()] = p
	}
	return out, err
}

// runFrom checks from which executable the kernel says that the programs run.
func runFrom(t *testing.T, c *harness.Cluster, want string) {
	t.Helper()
	list, err := c.Processes()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, p := range list {
		if _, service := topology.Find(p.Name); !service {
			continue
		}
		seen++
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.PID)); err != nil || exe != want {
			t.Errorf("%s runs from %s (%v), not from %s", p, exe, err, want)
		}
	}
	if seen != len(topology.Names()) {
		t.Errorf("%d programs run: %v", seen, list)
	}
}

// agents names the processes of the cluster that are no programs: they must not be disturbed.
func agents(t *testing.T, c *harness.Cluster) string {
	t.Helper()
	list, err := c.Processes()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range list {
		if _, service := topology.Find(p.Name); !service && p.Name != harness.Supervisor {
			out = append(out, p.String())
		}
	}
	return strings.Join(out, ", ")
}

func conditionOf(list []*metav1.Condition, kind string) *metav1.Condition {
	for _, c := range list {
		if c.GetType() == kind {
			return c
		}
	}
	return nil
}
