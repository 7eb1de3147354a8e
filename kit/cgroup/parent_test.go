package cgroup

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// parents returns those of a new owner, where its groups can be made.
func parents(t *testing.T, owner string) Parents {
	t.Helper()
	p := FindParents(owner)
	if err := p.CanLimitProcesses(); err != nil {
		t.Skip(err)
	}
	return p
}

func TestTheGroupOfAPoolIsMadeAndRemoved(t *testing.T) {
	dir := t.TempDir()
	p, other := parents(t, dir), parents(t, dir+"/none")
	if p.Path("a") == other.Path("a") {
		t.Fatal("two owners have the same groups")
	}
	t.Cleanup(func() {
		for _, of := range []Parents{p, other} {
			for _, pool := range []string{"a", "b"} {
				_ = of.Remove(pool)
			}
		}
	})
	for _, of := range []Parents{p, other} {
		if _, err := of.Make("a", Limits{Processes: 1}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		n    int64
		want string
	}{{20, "20"}, {1 << 40, "4194304"}, {0, "max"}, {30, "30"}} {
		path, err := p.Make("a", Limits{Processes: tc.n})
		if err != nil || path != p.Path("a") {
			t.Fatal(path, err)
		}
		if got := text(t, filepath.Join(p.pids, path, maxFile)); got != tc.want+"\n" {
			t.Errorf("limit %q, want %s", got, tc.want)
		}
	}
	if _, counted := p.Processes("a"); p.Used("a") || counted {
		t.Error("a group that a runtime has put nothing into is used")
	}
	below := filepath.Join(p.pids, p.Path("a"), "container")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	process := exec.Command("/bin/sleep", "1000")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = process.Process.Kill(), process.Wait() })
	if err := write(below, "cgroup.procs", int64(process.Process.Pid)); err != nil {
		t.Fatal(err)
	}
	if n, counted := p.Processes("a"); n != 1 || !counted || !p.Used("a") {
		t.Errorf("%d processes, %v", n, counted)
	}
	if pools, err := p.Pools(); err != nil || !slices.Equal(pools, []string{"a"}) {
		t.Errorf("pools %v, %v", pools, err)
	}
	if err := p.Remove("a"); err != nil {
		t.Errorf("of a group with a process: %v", err)
	}
	var killed *exec.ExitError
	if err := process.Wait(); !errors.As(err, &killed) || killed.ExitCode() != -1 {
		t.Errorf("what was left in the group: %v", err)
	}
	for range 2 {
		if err := p.Remove("a"); err != nil {
			t.Error(err)
		}
	}
	for _, mount := range p.hierarchies {
		if _, err := os.Stat(filepath.Join(mount, p.Path("a"))); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("in %s: %v", mount, err)
		}
	}
	if pools, err := p.Pools(); err != nil || len(pools) > 0 {
		t.Errorf("pools %v, %v", pools, err)
	}
	if pools, err := other.Pools(); err != nil || !slices.Equal(pools, []string{"a"}) {
		t.Errorf("pools of the other owner %v, %v", pools, err)
	}
}

func text(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestTheGroupOfAPoolInTheUnifiedHierarchy has plain files for that hierarchy.
func TestTheGroupOfAPoolInTheUnifiedHierarchy(t *testing.T) {
	root := plain(t, "cgroup.subtree_control")
	p := Parents{owner: "x-", hierarchies: []string{root}, pids: root, cpu: root, unified: true}
	if _, err := p.Make("a", Limits{}); err == nil {
		t.Error("a controller that is not passed on")
	}
	if err := os.MkdirAll(filepath.Join(root, "windlass/x-a"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"cgroup.subtree_control", "cpu.weight", "x-a/cpu.weight", "x-a/pids.max"} {
		if err := os.WriteFile(filepath.Join(root, "windlass", file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if path, err := p.Make("a", Limits{Processes: 20, MilliCPURequest: 250}); path != "/windlass/x-a" || err != nil {
		t.Errorf("%q, %v", path, err)
	}
	for file, want := range map[string]string{
		"cgroup.subtree_control": "+pids +cpu", "windlass/cgroup.subtree_control": "+pids +cpu",
		"windlass/x-a/pids.max": "20", "windlass/x-a/cpu.weight": "10",
	} {
		if got := text(t, filepath.Join(root, file)); got != want {
			t.Errorf("%s: %q, want %q", file, got, want)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "windlass/x-a/cgroup.subtree_control")); err == nil {
		t.Error("the agent passes controllers on to the groups of the runtime")
	}
}

func TestWithoutHierarchiesThereAreNoGroups(t *testing.T) {
	var p Parents
	if _, err := p.Make("a", Limits{Processes: 1}); !errors.Is(err, errNoPids) {
		t.Error(err)
	}
	if err := p.CanLimitProcesses(); !errors.Is(err, errNoPids) {
		t.Error(err)
	}
	if pools, err := p.Pools(); err != nil || len(pools) > 0 || p.Remove("a") != nil {
		t.Errorf("pools %v, %v", pools, err)
	}
	readOnly := Parents{owner: "x-", hierarchies: []string{"/proc"}, pids: "/proc"}
	if _, err := readOnly.Make("a", Limits{Processes: 1}); !errors.Is(err, errNoPids) {
		t.Error(err)
	}
	if err := readOnly.Remove("a"); err != nil {
		t.Error(err)
	}
}
