package cluster

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/kit/topology"
	nodeagent "github.com/windlass-dev/windlass/services/node-agent/service"
)

// Each cluster whose pods run under users of their own has a block of users that no other one has. The blocks are
// beyond what systemd gives to containers and services, and below 2^31, where some programs stop. Those of clusters on
// the host come first: a directory per block says which are taken. Those of clusters in containers follow; there is one
// container of pods per cluster, so that two with one block meet nowhere.
const (
	firstPodUser  = 0x70000000
	usersPerBlock = 1 << 18
	hostBlocks    = 512
	stackBlocks   = 512

	// envPods names another directory for the pods of clusters whose pods run under users of their own.
	envPods     = "WINDLASS_PODS"
	podsHome    = "/var/lib/windlass/pods"
	clusterFile = "cluster" // in the directory of a block: the directory of its cluster
)

func block(n uint32) process.Users {
	return process.Users{First: firstPodUser + n*usersPerBlock, Count: usersPerBlock}
}

// PodUsers returns the users that the cluster's pods run as, one each; none if pods run as the cluster's own user.
func (c *Cluster) PodUsers() process.Users {
	if c.Containers {
		h := fnv.New32a()
		h.Write([]byte(c.Subnet))
		return block(hostBlocks + h.Sum32()%stackBlocks)
	}
	if c.PodsDir == "" {
		return process.Users{}
	}
	n, err := strconv.ParseUint(filepath.Base(c.PodsDir), 10, 16)
	if err != nil || n >= hostBlocks {
		return process.Users{}
	}
	return block(uint32(n))
}

// PodsIsolated reports whether pods run under users of their own.
func (c *Cluster) PodsIsolated() bool { return c.PodUsers().Count > 0 }

// podsDir returns the directory of the pods; empty if they are in the machines' directories.
func (c *Cluster) podsDir() string {
	if c.Containers {
		return c.Service(topology.ProviderLocal, "pods")
	}
	return c.PodsDir
}

// PodsDirs returns the directories of the pods of all machines whose pods are not in their own directory.
func (c *Cluster) PodsDirs() ([]string, error) {
	if !c.PodsIsolated() || c.podsDir() == "" {
		return nil, nil
	}
	return machinesIn(c.podsDir())
}

func machinesIn(podsDir string) (dirs []string, err error) {
	entries, err := os.ReadDir(podsDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if e.IsDir() {
			dirs = append(dirs, filepath.Join(podsDir, e.Name()))
		}
	}
	return dirs, nil
}

// EnsurePodUsers gives the cluster users for its pods if this process can run others under them, as root can, and other
// ones if another cluster has its block by now: a block is reclaimed while the directory of its cluster is missing, for
// example not mounted. No process of the cluster may run. If this process cannot run others under other
// users but an earlier one could, it returns an error: editors may create pods in such a cluster.
func (c *Cluster) EnsurePodUsers() error {
	err := block(0).Check()
	if err != nil && c.PodsIsolated() {
		return fmt.Errorf("cluster %q runs pods under users of their own: %w", c.Name, err)
	}
	if err != nil || c.Containers {
		return nil
	}
	if has, err := c.hasBlock(); err != nil || has {
		return err
	}
	if c.PodsDir, err = takeBlock(c.dir); err != nil {
		return fmt.Errorf("users for pods: %w", err)
	}
	return nil
}

// CheckIsolation returns an error unless this process can run pods under users of their own.
func CheckIsolation() error { return block(0).Check() }

// joinPodUsers gives the cluster users for its pods on a host that joins. isolated says that pods run under users of
// their own on the other hosts: the policy is that of all hosts, and lets editors create pods then.
func (c *Cluster) joinPodUsers(isolated bool) error {
	c.PodsDir = ""
	if err := c.EnsurePodUsers(); err != nil || !isolated || c.PodsIsolated() {
		return err
	}
	return fmt.Errorf("cluster %q runs pods under users of their own, which this host cannot: %w", c.Name,
		CheckIsolation())
}

// hasBlock reports whether the cluster's block is there and its own.
func (c *Cluster) hasBlock() (bool, error) {
	if !c.PodsIsolated() {
		return false, nil
	}
	owner, err := os.ReadFile(filepath.Join(c.PodsDir, clusterFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return strings.TrimSuffix(string(owner), "\n") == c.dir, err
}

// takeBlock makes the directory of a block that no cluster has, and returns it. What clusters that are gone have left
// is removed first.
func takeBlock(cluster string) (string, error) {
	home := podsHome
	if set := os.Getenv(envPods); set != "" {
		home = set
	}
	if err := os.MkdirAll(home, 0o755); err != nil {
		return "", fmt.Errorf("%w; $%s names another directory, which every user must be able to pass through", err, envPods)
	}
	if err := passable(home); err != nil {
		return "", err
	}
	unlock, err := lock(home)
	if err != nil {
		return "", err
	}
	defer unlock()
	stuck := reclaim(home, cluster)
	h := fnv.New32a()
	h.Write([]byte(cluster))
	start := h.Sum32()
	for n := range uint32(hostBlocks) {
		dir := filepath.Join(home, strconv.Itoa(int((start+n)%hostBlocks)))
		err := os.Mkdir(dir, 0o711)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err == nil {
			err = errors.Join(os.Chmod(dir, 0o711), os.WriteFile(filepath.Join(dir, clusterFile), []byte(cluster+"\n"), 0o600))
		}
		return dir, err
	}
	return "", errors.Join(fmt.Errorf("all %d blocks in %s are taken", hostBlocks, home), stuck)
}

// endPods ends what is left of the pods of a block.
func endPods(dir string, users process.Users) error {
	machines, err := machinesIn(dir)
	if err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	if err := nodeagent.EndContainers(context.Background(), machines, log, func(string) {}); err != nil {
		return err
	}
	return users.Kill()
}

// passable returns an error unless every user can pass through all directories above dir and through dir.
func passable(dir string) error {
	for ; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o001 == 0 {
			return fmt.Errorf("users of pods cannot pass through %s; $%s names another directory for them", dir, envPods)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

// reclaim removes the blocks of clusters that are gone, with the processes of their users, and one that a start of this
// cluster left which was cut off: it has none yet. home is locked, so a block without the name of a cluster is not just
// being made.
func reclaim(home, cluster string) error {
	entries, err := os.ReadDir(home)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		n, err := strconv.ParseUint(e.Name(), 10, 16)
		if err != nil || n >= hostBlocks {
			continue
		}
		dir := filepath.Join(home, e.Name())
		owner, err := os.ReadFile(filepath.Join(dir, clusterFile))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
			continue
		}
		of := strings.TrimSuffix(string(owner), "\n")
		if there, err := exists(of); of != cluster && (there || err != nil) {
			continue
		}
		if err := endPods(dir, block(uint32(n))); err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, process.RemoveAll(dir))
	}
	return errors.Join(errs...)
}
