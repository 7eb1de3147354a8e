package cluster

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/process"
)

// podsIn has the blocks of users of the test be in a directory of its own.
func podsIn(t *testing.T) string {
	t.Helper()
	home := t.TempDir()
	if err := os.Chmod(filepath.Dir(home), 0o711); err != nil {
		t.Fatal(err)
	}
	if err := passable(home); err != nil {
		t.Skip(err)
	}
	t.Setenv(envPods, home)
	return home
}

func TestBlocksOfClustersThatAreGoneAreTakenBack(t *testing.T) {
	home, clusters := podsIn(t), t.TempDir()
	lives, ours := filepath.Join(clusters, "lives"), filepath.Join(clusters, "ours")
	for _, dir := range []string{lives, ours} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, owner := range map[string]string{
		"1": filepath.Join(clusters, "gone"), "2": lives,
		"3": "",   // a start that was cut off before it wrote the name down
		"4": ours, // or before it wrote the block down with the cluster
	} {
		dir := filepath.Join(home, name)
		if err := os.MkdirAll(filepath.Join(dir, "machine"), 0o711); err != nil {
			t.Fatal(err)
		}
		if owner == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, clusterFile), []byte(owner+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	took, err := takeBlock(ours)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	entries, err := os.ReadDir(home)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		left = append(left, e.Name())
	}
	want := []string{"2", filepath.Base(took)}
	slices.Sort(want)
	if !slices.Equal(left, want) {
		t.Errorf("blocks %q are left, want %q", left, want)
	}
}

// A cluster whose directory was away, as when it was not mounted, does not share its users with the cluster that has
// them by now.
func TestABlockThatAnotherClusterHasByNowIsNotUsed(t *testing.T) {
	if block(0).Check() != nil {
		t.Skip("only root runs pods under users of their own")
	}
	podsIn(t)
	c := &Cluster{dir: t.TempDir()}
	if err := c.EnsurePodUsers(); err != nil {
		t.Fatal(err)
	}
	first := c.PodsDir
	if err := c.EnsurePodUsers(); err != nil || c.PodsDir != first {
		t.Fatalf("asked again: %s, %v, want %s", c.PodsDir, err, first)
	}
	if err := os.WriteFile(filepath.Join(first, clusterFile), []byte(t.TempDir()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.EnsurePodUsers(); err != nil || c.PodsDir == first || !c.PodsIsolated() {
		t.Errorf("block %s, %v, want another one than %s", c.PodsDir, err, first)
	}
}

// A volume in memory, which is mounted, goes with its cluster.
func TestAClusterIsRemovedWithItsMounts(t *testing.T) {
	if err := process.CanMount(); err != nil {
		t.Skip("no mounts here: ", err)
	}
	podsIn(t)
	c := &Cluster{dir: t.TempDir()}
	if err := c.EnsurePodUsers(); err != nil {
		t.Fatal(err)
	}
	volume := filepath.Join(c.PodsDir, "volume")
	if err := os.Mkdir(volume, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := process.InMemory(volume, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(volume, unix.MNT_DETACH) })
	if err := c.Remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(c.PodsDir); !os.IsNotExist(err) {
		t.Errorf("the directory of its pods: %v", err)
	}
}
