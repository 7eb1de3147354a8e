package recovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/kit/snapshot"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
)

// Files below the guardian's directory of the bootstrap member.
const (
	workDir = "restoring" // new data until it takes the place of the old
	// in workDir: the new data is complete; the token of its cluster, and the name of the directory for the old data
	readyFile = "ready"
	tokenFile = "token" // of the cluster that the bootstrap member begins
	// allowedFile lets the guardian start an empty bootstrap member; a cluster that has not pivoted has it.
	allowedFile = "allowed"
)

func guardian(c *cluster.Cluster, elem ...string) string {
	return c.Service(topology.EtcdGuardian, append([]string{bootstrap}, elem...)...)
}

// FromMember recreates the etcd of a cluster from the data of one of its members. The cluster must be down. It returns
// the directory to which the old data was moved.
func FromMember(ctx context.Context, c *cluster.Cluster, m Member, now time.Time) (string, error) {
	if err := clear(c); err != nil {
		return "", err
	}
	file := guardian(c, workDir, "survivor.db")
	if err := snapshot.Extract(ctx, m.Copy.DataDir, guardian(c, workDir), file); err != nil {
		return "", errors.Join(fmt.Errorf("data of member %s: %w", m.Name, err), Discard(c))
	}
	return replace(c, file, true, now)
}

// CheckSpace returns an error unless there is space for new data that is made from so many bytes of a database. It is
// written up to three times.
func CheckSpace(c *cluster.Cluster, bytes int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(c.Service(topology.EtcdGuardian), &st); err != nil {
		return err
	}
	if free := int64(st.Bavail) * st.Bsize; free < 3*bytes {
		return fmt.Errorf("%s has %d MiB of free space, and %d MiB are needed", c.Service(topology.EtcdGuardian), free>>20,
			3*bytes>>20)
	}
	return nil
}

// Discard removes what an earlier call prepared, also new data that is complete.
func Discard(c *cluster.Cluster) error {
	if err := durable.Remove(guardian(c, workDir, readyFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(guardian(c, workDir))
}

// FromSnapshot recreates the etcd of a cluster from a snapshot. The cluster must be down. It returns the directory to
// which the old data was moved.
func FromSnapshot(c *cluster.Cluster, file string, now time.Time) (string, error) {
	if err := clear(c); err != nil {
		return "", err
	}
	return replace(c, file, false, now)
}

// clear begins with an empty work directory. New data that is complete is not thrown away: the old is moved already, or
// in part.
func clear(c *cluster.Cluster) error {
	if Unfinished(c) {
		return errors.New("an earlier restore was interrupted and has to be finished first")
	}
	if err := os.RemoveAll(guardian(c, workDir)); err != nil {
		return err
	}
	return os.MkdirAll(guardian(c, workDir), 0o700)
}

// replace makes new data, writes down that it is complete, and then puts it in the place of the old.
func replace(c *cluster.Cluster, file string, raw bool, now time.Time) (string, error) {
	token, err := snapshot.NewToken()
	if err != nil {
		return "", err
	}
	if c.Member != nil { // the bootstrap member is on this host from now on
		c.Member.First = c.Member.Address
	}
	_, peer := c.BootstrapURLs()
	err = snapshot.Restore(snapshot.Restored{
		File: file, Raw: raw, DataDir: guardian(c, workDir, "data"), Name: bootstrap, Token: token, PeerURL: peer,
	})
	if err != nil {
		return "", errors.Join(err, Discard(c))
	}
	ready := fmt.Sprintf("%s\n%s\n%s\n", token, asideName(now), now.UTC().Format(time.RFC3339Nano))
	if err := durable.WriteFile(guardian(c, workDir, readyFile), []byte(ready), 0o600); err != nil {
		return "", errors.Join(err, Discard(c))
	}
	return Finish(c, now)
}

// Unfinished reports whether a restore was interrupted while the new data took the place of the old, or may have been.
func Unfinished(c *cluster.Cluster) bool {
	_, err := os.Stat(guardian(c, workDir, readyFile))
	return !errors.Is(err, fs.ErrNotExist)
}

// MadeTime returns when the data of an interrupted restore was made; now if that is not written down.
func MadeTime(c *cluster.Cluster, now time.Time) time.Time {
	ready, err := os.ReadFile(guardian(c, workDir, readyFile))
	if lines := strings.Split(string(ready), "\n"); err == nil && len(lines) > 2 {
		if at, err := time.Parse(time.RFC3339, lines[2]); err == nil {
			return at
		}
	}
	return now
}

func asideName(now time.Time) string { return "etcd-before-" + now.UTC().Format("20060102-150405") }

// Finish puts new data that is complete in the place of the old. Each of its steps may be repeated; the cluster cannot
// start in between, since the guardian is not allowed to start an empty member any more. It returns the directory to
// which the old data was moved, which is the same if an earlier call moved a part of it.
func Finish(c *cluster.Cluster, now time.Time) (string, error) {
	ready, err := os.ReadFile(guardian(c, workDir, readyFile))
	if err != nil {
		return "", err
	}
	token, name, _ := strings.Cut(strings.TrimSpace(string(ready)), "\n")
	name, _, _ = strings.Cut(name, "\n")
	aside := c.Dir(cmp.Or(name, asideName(now))) // there is no name in the file of an earlier version
	if err := recovered(c, MadeTime(c, now)); err != nil {
		return "", err
	}
	if _, err := os.Stat(guardian(c, workDir, "data")); errors.Is(err, fs.ErrNotExist) {
		return aside, os.RemoveAll(guardian(c, workDir)) // only the end was missing
	}
	if err := moveAside(c, aside); err != nil {
		return "", err
	}
	// Without its data and what was noted of the cluster, nothing else keeps the guardian from starting an empty member.
	if err := durable.Remove(guardian(c, allowedFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := forget(c); err != nil {
		return "", err
	}
	if err := durable.WriteFile(guardian(c, tokenFile), []byte(token+"\n"), 0o600); err != nil {
		return "", err
	}
	if err := durable.Rename(guardian(c, workDir, "data"), guardian(c, "data")); err != nil {
		return "", err
	}
	return aside, os.RemoveAll(guardian(c, workDir))
}

// recovered notes on a host that what others have of etcd is of the time before, and that the bootstrap member is here.
// It may be repeated.
func recovered(c *cluster.Cluster, now time.Time) error {
	if c.Member == nil {
		return nil
	}
	at := now.UTC()
	if last := c.Member.Recovered; at.Before(last) { // the clock was set back
		at = last.Add(time.Second)
	}
	c.Member.First, c.Member.Recovered = c.Member.Address, at
	if _, err := cluster.OpenHost(c.Dir()); errors.Is(err, cluster.ErrNone) { // a host that is being made
		return c.Save()
	}
	settings, err := cluster.ChangeHost(c.Dir(), func(s *cluster.Settings) {
		s.Member.First, s.Member.Recovered = s.Member.Address, at
	})
	c.Settings = settings
	return err
}

// moveAside takes the data of all members out of their reach: a member on its old data would make a second cluster.
func moveAside(c *cluster.Cluster, aside string) error {
	dirs, err := dataDirs(c)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(aside, 0o700); err != nil {
		return err
	}
	for _, d := range dirs {
		if err := durable.Rename(d.data, filepath.Join(aside, d.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if d.record == "" {
			continue
		}
		if err := durable.Remove(d.record); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// forget removes what the guardian and the services noted of the old cluster: its members, their addresses, and the
// certificates of its bootstrap member.
func forget(c *cluster.Cluster) error {
	addresses, err := filepath.Glob(c.Dir("services", "*", "endpoints"))
	if err != nil {
		return err
	}
	for _, path := range append(addresses, c.Service(topology.EtcdGuardian, "cluster.json")) {
		if err := durable.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.RemoveAll(guardian(c, "tls"))
}

// Snapshots returns the directory of a cluster's snapshots: the guardian's own, or the one that it is set up with.
func Snapshots(c *cluster.Cluster) string {
	dir := c.Service(topology.EtcdGuardian, "snapshots")
	for _, s := range c.ProgramFlags {
		if path, ok := strings.CutPrefix(s, topology.EtcdGuardian+".snapshot-dir="); ok {
			dir = path
		}
	}
	return dir
}
