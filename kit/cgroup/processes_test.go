package cgroup

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// counting returns the tree of a new directory whose pools can have limits of processes.
func counting(t *testing.T) Tree {
	t.Helper()
	tree, _ := usable(t)
	if err := tree.CanLimitProcesses(); err != nil {
		t.Skip(err)
	}
	return tree
}

// holding makes a group in a pool with a limit of processes.
func holding(t *testing.T, tree Tree, pool, mark string, n int64) Group {
	t.Helper()
	g, err := tree.Make(Pool{Name: pool, Limits: Limits{Processes: n}}, mark, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// countedIn starts a process in a group, also in that of the controller pids.
func countedIn(t *testing.T, g Group) (pid int, ended <-chan struct{}) {
	t.Helper()
	pid, ended = startIn(t, g)
	if g.PIDs != "" {
		if err := writeText(g.PIDs, "cgroup.procs", strconv.Itoa(pid)); err != nil {
			t.Fatal(err)
		}
	}
	return pid, ended
}

func TestTheLimitOfProcessesIsThatOfThePool(t *testing.T) {
	tree := counting(t)
	for i, tc := range []struct {
		pool    string
		n, want int64
	}{{"a", 20, 20}, {"b", 0, 0}, {"a", 30, 30}, {"c", 1 << 40, 4 << 20}} {
		g := holding(t, tree, tc.pool, strconv.Itoa(i), tc.n)
		if got := g.ProcessLimit(); got != tc.want {
			t.Errorf("pool %s with %d: %d, want %d", tc.pool, tc.n, got, tc.want)
		}
		if (g.PIDs != "") != (tc.n > 0 && !tree.unified) {
			t.Errorf("pool %s with %d: group %q", tc.pool, tc.n, g.PIDs)
		}
	}
}

// TestAGroupThatCountsEnds ends groups, and a pool, in which the controller pids has processes.
func TestAGroupThatCountsEnds(t *testing.T) {
	tree := counting(t)
	if tree.unified {
		t.Skip("groups have no other directories here")
	}
	one, two, last := holding(t, tree, "a", "one", 20), holding(t, tree, "a", "two", 20), holding(t, tree, "b", "last", 20)
	unused, kept := holding(t, tree, "a", "unused", 20), holding(t, tree, "c", "kept", 20)
	pid, oneEnded := countedIn(t, one)
	_, twoEnded := countedIn(t, two)
	_, lastEnded := countedIn(t, last)
	if of, ok := Of(pid, "one"); !ok || of.PIDs != one.PIDs {
		t.Errorf("group of the process: %v, %v, want %v", of, ok, one)
	}
	there := func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	}
	unused.Discard()
	if there(unused.PIDs) || !there(one.PIDs) {
		t.Error("a group that was discarded is there, or another one is not")
	}
	// A process that left its group of the unified hierarchy alone is found.
	if err := writeText(tree.base, "cgroup.procs", strconv.Itoa(pid)); err != nil {
		t.Fatal(err)
	}
	if err := one.End(); err != nil || there(one.PIDs) || !there(two.PIDs) {
		t.Errorf("end of a group: %v", err)
	}
	<-oneEnded
	if err := tree.End("a"); err != nil || there(filepath.Dir(two.PIDs)) {
		t.Errorf("end of a pool: %v", err)
	}
	<-twoEnded
	err := tree.Sweep(map[string]bool{"kept": true})
	if err != nil || there(filepath.Dir(last.PIDs)) || !there(kept.PIDs) {
		t.Errorf("sweep: %v", err)
	}
	<-lastEnded
	if err := kept.End(); err != nil || there(filepath.Dir(filepath.Dir(kept.PIDs))) {
		t.Errorf("end of the last group: %v", err)
	}
}

// TestALimitOfProcessesRefusesNothing is about hosts whose controllers cannot be used.
func TestALimitOfProcessesRefusesNothing(t *testing.T) {
	tree, _ := usable(t)
	tree.pids, tree.counts = "", false
	for name, tree := range map[string]Tree{"no control groups": {}, "no controller pids": tree} {
		if tree.CanLimitProcesses() == nil {
			t.Errorf("%s: a limit is possible", name)
		}
		if g := holding(t, tree, "a", "mark", 20); g.PIDs != "" || tree.Usable() == g.None() {
			t.Errorf("%s: group %v", name, g)
		}
	}
	if tree.CanLimit() == nil {
		g, err := tree.Make(Pool{Name: "b", Limits: Limits{Processes: 20}}, "mark", Limits{Memory: 64 << 20})
		if err != nil || tree.unified == (g.Memory != "") {
			t.Errorf("a process with another limit: %v, %v", g, err)
		}
	}
	if (Limits{Processes: 20}).Bound() {
		t.Error("a process must not run without this limit")
	}
	// And where the other controllers cannot be used, this one is.
	if other := counting(t); !other.unified {
		other.cpu = ""
		if g := holding(t, other, "a", "mark", 20); g.ProcessLimit() != 20 || g.CPU != "" {
			t.Errorf("without the controller cpu: %v, limit %d", g, g.ProcessLimit())
		}
	}
}

// TestTheLimitOfProcessesInTheUnifiedHierarchy has plain files for that hierarchy, with the controller in it.
func TestTheLimitOfProcessesInTheUnifiedHierarchy(t *testing.T) {
	root := plain(t, "cgroup.subtree_control")
	tree := Tree{base: root, root: root, name: "windlass-x", unified: true, counts: true}
	pool := filepath.Join(root, "windlass-x", "a")
	if err := os.MkdirAll(filepath.Join(pool, "mark"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "windlass-x/cgroup.subtree_control"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	said := func(path string) string {
		data, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	g := Group{Path: filepath.Join(pool, "mark")}
	limit := Pool{Name: "a", Limits: Limits{Processes: 20}}
	// The kernel makes the file when the controller is passed on.
	if err := tree.limitProcesses(&g, limit, "mark"); err == nil || g.ProcessLimit() != 0 {
		t.Errorf("a limit without its file: %v", err)
	}
	for _, at := range []string{"cgroup.subtree_control", "windlass-x/cgroup.subtree_control"} {
		if got := said(at); got != "+pids" {
			t.Errorf("%s: %q", at, got)
		}
	}
	if _, err := os.Stat(filepath.Join(pool, "cgroup.subtree_control")); err == nil {
		t.Error("the groups of the pool have the controller, too")
	}
	if err := os.WriteFile(filepath.Join(pool, maxFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := tree.limitProcesses(&g, limit, "mark")
	if got := said("windlass-x/a/pids.max"); err != nil || got != "20" || g.ProcessLimit() != 20 || g.PIDs != "" {
		t.Errorf("the limit is %q, %v, of %v", got, err, g)
	}
	if err := tree.CanLimitProcesses(); err != nil {
		t.Error(err)
	}
	if err := os.RemoveAll(root); err != nil {
		t.Fatal(err)
	}
	tree.root = "/dev/null"
	if err := tree.CanLimitProcesses(); err == nil || !strings.Contains(err.Error(), errNoPids.Error()) {
		t.Errorf("the controller cannot be passed on: %v", err)
	}
}
