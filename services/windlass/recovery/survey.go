// Package recovery makes etcd work again where it cannot by itself: after the loss of a majority, from the data of a
// surviving member, and after the loss of all, from a snapshot. It works on the files of a cluster on this machine, and
// needs neither etcd nor any service.
package recovery

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/windlass-dev/windlass/kit/snapshot"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
)

// bootstrap is the name of the member that the guardian runs itself.
const bootstrap = "bootstrap"

// Member is one member of the etcd cluster, and what this machine has of its data.
type Member struct {
	ID      uint64
	Name    string
	Learner bool
	Copy    *snapshot.Copy // nil: there is no data of it
	Trouble string         // why its data cannot be read; empty if it can
}

// Survey is what this machine has of an etcd cluster.
type Survey struct {
	ClusterID uint64   // 0: unknown
	Members   []Member // as the guardian listed them last, by name; those with data if it never did
	Listed    bool     // the guardian listed them; otherwise there may be more, without data here
}

// note is the part of the guardian's record of its cluster that is of use here.
type note struct {
	ClusterID uint64 `json:"clusterID,string"`
	Members   []struct {
		ID      uint64 `json:"id,string"`
		Name    string `json:"name"`
		Learner bool   `json:"learner"`
	} `json:"members"`
}

// Look reads what this machine has of a cluster's etcd. It changes nothing, and the cluster may run.
func Look(c *cluster.Cluster) (Survey, error) {
	var n note
	path := c.Service(topology.EtcdGuardian, "cluster.json")
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &n)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Survey{}, fmt.Errorf("%s: %w", path, err)
	}
	s := Survey{ClusterID: n.ClusterID, Listed: len(n.Members) > 0}
	for _, m := range n.Members {
		s.Members = append(s.Members, Member{ID: m.ID, Name: m.Name, Learner: m.Learner})
	}
	dirs, err := dataDirs(c)
	if err != nil {
		return Survey{}, err
	}
	for _, d := range dirs {
		s.add(d)
	}
	slices.SortFunc(s.Members, func(a, b Member) int {
		if a.Name != b.Name {
			return compare(a.Name < b.Name)
		}
		return compare(a.ID < b.ID)
	})
	return s, nil
}

func compare(less bool) int {
	if less {
		return -1
	}
	return 1
}

// memberDir is where a member's data is.
type memberDir struct {
	name, data string
	record     string // the agent's record of its member; empty for the bootstrap member
}

// dataDirs returns the data directories of all members on this machine, whether or not there is data.
func dataDirs(c *cluster.Cluster) ([]memberDir, error) {
	out := []memberDir{{name: bootstrap, data: c.Service(topology.EtcdGuardian, bootstrap, "data")}}
	found, err := filepath.Glob(c.Dir("services", "*", "*", "*", "etcd"))
	if err != nil {
		return nil, err
	}
	for _, dir := range found {
		out = append(out, memberDir{
			name: filepath.Base(filepath.Dir(dir)), data: filepath.Join(dir, "data"), record: filepath.Join(dir, "member.json"),
		})
	}
	return out, nil
}

// add notes the data of one directory. That of another cluster, or of a member that was removed, is none of this one's.
func (s *Survey) add(d memberDir) {
	if _, err := os.Stat(filepath.Join(d.data, "removed")); err == nil {
		return
	}
	c, err := snapshot.Inspect(d.data)
	if errors.Is(err, snapshot.ErrNoData) {
		return
	}
	i := slices.IndexFunc(s.Members, func(m Member) bool {
		return err == nil && m.ID == c.MemberID || err != nil && m.Name == d.name
	})
	switch {
	case err != nil && i >= 0:
		s.Members[i].Trouble = err.Error()
	case err != nil:
		s.Members = append(s.Members, Member{Name: d.name, Trouble: err.Error()})
	case s.ClusterID != 0 && c.ClusterID != s.ClusterID:
	case i >= 0:
		s.Members[i].Copy = &c
	case s.ClusterID == 0:
		s.Members = append(s.Members, Member{ID: c.MemberID, Name: d.name, Copy: &c})
	}
}

// Voters returns how many members vote, and of how many there is data.
func (s Survey) Voters() (all, here int) {
	for _, m := range s.Members {
		if m.Learner {
			continue
		}
		all++
		if m.Copy != nil {
			here++
		}
	}
	return all, here
}

// Majority reports whether this machine is known to have the data of a majority of the voters, so that they only have
// to be started.
func (s Survey) Majority() bool {
	all, here := s.Voters()
	return s.Listed && here > all/2
}

// Survivor returns the voter whose data has most of the log; a learner's only if there is no voter's. False if there is
// no data.
func (s Survey) Survivor() (Member, bool) {
	var best Member
	for _, m := range s.Members {
		switch {
		case m.Copy == nil:
		case best.Copy == nil, best.Learner && !m.Learner, best.Learner == m.Learner && m.Copy.After(*best.Copy):
			best = m
		}
	}
	return best, best.Copy != nil
}
