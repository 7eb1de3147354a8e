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
	g, err := tree.Make(pool, mark)
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
	if of, ok := Of(one, "mark"); !ok || of != g {
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
		g, err := tree.Make("other", strconv.Itoa(i))
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
