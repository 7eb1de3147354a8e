package cgroup

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
)

// usable returns the tree of a new directory.
func usable(t *testing.T) (tree Tree, dir string) {
	t.Helper()
	dir = t.TempDir()
	tree = Find(dir)
	if !tree.Usable() {
		t.Skip("no writable control groups here")
	}
	t.Cleanup(func() {
		if err := tree.Sweep(nil); err != nil {
			t.Error(err)
		}
	})
	return tree, dir
}

// startIn starts a process in a group, which is reaped when it ended.
func startIn(t *testing.T, g Group) (pid int, ended <-chan struct{}) {
	t.Helper()
	at, err := os.Open(g.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	cmd := exec.Command("/bin/sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(at.Fd())}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait()
	}()
	return cmd.Process.Pid, done
}

func made(t *testing.T, tree Tree, pool, mark string) Group {
	t.Helper()
	g, err := tree.Make(Pool{Name: pool}, mark, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func isThere(g Group) bool {
	_, err := os.Stat(g.Path)
	return err == nil
}

func TestAGroupEndsWithWhatIsBelowIt(t *testing.T) {
	tree, _ := usable(t)
	g, other := made(t, tree, "pool", "mark"), made(t, tree, "pool", "other")
	below := Group{Path: filepath.Join(g.Path, "of-its-own")}
	if err := os.Mkdir(below.Path, 0o755); err != nil {
		t.Fatal(err)
	}
	one, oneEnded := startIn(t, g)
	two, twoEnded := startIn(t, below)
	three, threeEnded := startIn(t, other)
	pids, err := g.Pids()
	slices.Sort(pids)
	if err != nil || !slices.Equal(pids, []int{one, two}) {
		t.Errorf("processes %v, %v, want %d and %d", pids, err, one, two)
	}
	if !g.Has(one) || !g.Has(two) || g.Has(three) || g.Has(os.Getpid()) {
		t.Error("wrong processes are in the group")
	}
	if of, ok := Of(one, "mark"); !ok || of.Path != g.Path {
		t.Errorf("group of the process: %v, %v", of, ok)
	}
	if _, ok := Of(three, "mark"); ok {
		t.Error("a process has the group of another")
	}
	if err := g.End(); err != nil || isThere(g) {
		t.Fatalf("the group is there: %v", err)
	}
	<-oneEnded
	<-twoEnded
	if err := g.End(); err != nil {
		t.Errorf("a group that is gone: %v", err)
	}
	if err := tree.End("pool"); err != nil || isThere(other) {
		t.Fatalf("the pool is there: %v", err)
	}
	<-threeEnded
	last := made(t, tree, "pool", "last")
	if err := last.End(); err != nil || isThere(Group{Path: tree.pools()}) {
		t.Errorf("the pool of the last group is left: %v", err)
	}
}

func TestASweepSparesWhatIsKnownAndOtherDirectories(t *testing.T) {
	tree, _ := usable(t)
	others, _ := usable(t)
	known, unknown := made(t, tree, "", "known"), made(t, tree, "", "unknown")
	pooled, lost, foreign := made(t, tree, "a", "known2"), made(t, tree, "b", "lost"), made(t, others, "b", "lost")
	_, unknownEnded := startIn(t, unknown)
	_, lostEnded := startIn(t, lost)
	if err := tree.Sweep(map[string]bool{"known": true, "known2": true}); err != nil {
		t.Fatal(err)
	}
	<-unknownEnded
	<-lostEnded
	if isThere(unknown) || isThere(lost) || isThere(Group{Path: filepath.Dir(lost.Path)}) {
		t.Error("what is unknown is left")
	}
	if !isThere(known) || !isThere(pooled) || !isThere(foreign) {
		t.Error("what is known, or of another directory, is gone")
	}
}

func TestAGroupIsMadeWhileTheLastPoolEnds(t *testing.T) {
	tree, _ := usable(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 300 {
			if err := tree.End("pool" + strconv.Itoa(i%3)); err != nil {
				t.Error(err)
			}
		}
	}()
	for i := range 300 {
		g, err := tree.Make(Pool{Name: "other"}, strconv.Itoa(i), Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if err := g.End(); err != nil {
			t.Fatal(err)
		}
		if err := tree.End("other"); err != nil {
			t.Fatal(err)
		}
	}
	<-done
}

// plain makes files as they are in a group, in a plain directory, as in a hierarchy that this host lacks.
func plain(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestWhatIsWrittenToGroups(t *testing.T) {
	bound := Limits{MilliCPU: 250, Memory: 100 << 20, MilliCPURequest: 100, MemoryRequest: 50 << 20}
	for name, tc := range map[string]struct {
		limits Limits
		write  func(Limits, string) error
		want   map[string]string
	}{
		"limits in the unified hierarchy": {bound, Limits.writeUnified, map[string]string{
			"cpu.max": "25000 100000", "memory.low": "52428800", "memory.max": "104857600",
			"memory.swap.max": "0",
		}},
		"nothing in the unified hierarchy": {Limits{}, Limits.writeUnified, map[string]string{
			"cpu.max": "", "memory.low": "", "memory.max": "", "memory.swap.max": "",
		}},
		"a tiny limit": {Limits{MilliCPU: 1}, Limits.writeUnified, map[string]string{
			"cpu.max": "1000 100000",
		}},
		"limits of cpu": {bound, Limits.writeCPU, map[string]string{
			"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "25000",
		}},
		"limits of memory without swap": {bound, Limits.writeMemory, map[string]string{
			"memory.soft_limit_in_bytes": "52428800", "memory.limit_in_bytes": "104857600",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var names []string
			for file := range tc.want {
				names = append(names, file)
			}
			dir := plain(t, names...)
			if err := tc.write(tc.limits, dir); err != nil {
				t.Fatal(err)
			}
			entries, err := os.ReadDir(dir)
			if err != nil || len(entries) != len(tc.want) {
				t.Errorf("files %v, %v", entries, err)
			}
			for file, want := range tc.want {
				if got, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(got) != want {
					t.Errorf("%s: %q, %v, want %q", file, got, err, want)
				}
			}
		})
	}
	if err := bound.writeUnified(plain(t, "cpu.max")); err == nil {
		t.Error("a limit without its file is no error")
	}
}

func TestWeights(t *testing.T) {
	for requests, want := range map[int64][2]string{
		0: {"2", "1"}, 100: {"102", "4"}, 1000: {"1024", "39"}, 1 << 40: {"262144", "10000"},
	} {
		of := Limits{MilliCPURequest: requests}
		pool := plain(t, "cpu.shares", "cpu.weight")
		at := filepath.Join(pool, "group")
		if err := os.Mkdir(at, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"cpu.shares", "cpu.weight"} {
			if err := os.WriteFile(filepath.Join(at, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for i, g := range []Group{{Path: at, Controllers: Controllers{CPU: at}}, {Path: at}} {
			if err := g.Weigh(of, of); err != nil {
				t.Fatal(err)
			}
			name := []string{"cpu.shares", "cpu.weight"}[i]
			for _, dir := range []string{pool, at} {
				if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want[i] {
					t.Errorf("%s for %d: %q, %v, want %q", name, requests, got, err, want[i])
				}
			}
		}
	}
	if err := (Group{Path: plain(t)}).Weigh(Limits{}, Limits{}); err != nil {
		t.Errorf("without a controller: %v", err)
	}
}

func TestWhatTheKernelKilledIsCounted(t *testing.T) {
	dir := plain(t)
	for file, text := range map[string]string{
		"memory.events": "low 0\noom 2\noom_kill 3\n", "memory.oom_control": "under_oom 0\noom_kill 4\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for want, g := range map[int]Group{
		3: {Path: dir}, 4: {Path: dir, Controllers: Controllers{Memory: dir}}, 0: {Path: filepath.Join(dir, "gone")},
	} {
		if got := g.Killed(); got != want {
			t.Errorf("%v: %d, want %d", g, got, want)
		}
	}
}

// TestLimitsNeedTheirControllers makes groups where there are none.
func TestLimitsNeedTheirControllers(t *testing.T) {
	if err := (Tree{}).CanLimit(); err == nil {
		t.Error("limits are possible without control groups")
	}
	if _, err := (Tree{}).Make(Pool{Name: "a"}, "mark", Limits{Memory: 1 << 20}); err == nil {
		t.Error("a process could run without its limit")
	}
	tree, _ := usable(t)
	tree.unified, tree.cpu, tree.memory = false, "", ""
	if err := tree.CanLimit(); err == nil {
		t.Error("limits are possible without controllers")
	}
	if g, err := tree.Make(Pool{Name: "a"}, "mark", Limits{Memory: 1 << 20}); err == nil {
		t.Errorf("group %v", g)
	}
	if g, err := tree.Make(Pool{Name: "a"}, "mark", Limits{MilliCPURequest: 100}); err != nil || g.None() {
		t.Errorf("a group with requests alone: %v, %v", g, err)
	}
}
