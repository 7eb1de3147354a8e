// Package recovery makes etcd work again where it cannot by itself: after the loss of a majority, from the data of a
// surviving member, and after the loss of all, from a snapshot. It works on the files of a cluster on this machine, and
// needs neither etcd nor any service.
package recovery

import (
	"cmp"
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
	Members   []Member // as the guardian listed them last and as the data here has them, by name
	Listed    bool     // the guardian listed them, or the data here was read; otherwise there may be more
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
		s.add(d, c.Member != nil)
	}
	s.complete()
	slices.SortFunc(s.Members, func(a, b Member) int {
		if a.Name != b.Name {
			return compare(a.Name < b.Name)
		}
		return compare(a.ID < b.ID)
	})
	return s, nil
}

// complete adds the members that the data here has, and drops those that it knows to be removed: the guardian of a host
// that does not lead lists the members late.
func (s *Survey) complete() {
	var copies []*snapshot.Copy
	for _, m := range s.Members {
		if m.Copy != nil {
			copies = append(copies, m.Copy)
		}
	}
	for _, c := range copies {
		s.Listed = s.Listed || c.Whole
		for id, is := range c.Members {
			i := slices.IndexFunc(s.Members, func(m Member) bool { return m.ID == id })
			if i < 0 {
				s.Members = append(s.Members, Member{ID: id, Name: cmp.Or(is.Name, fmt.Sprintf("%x", id)), Learner: is.Learner})
				continue
			}
			s.Members[i].Name = cmp.Or(s.Members[i].Name, is.Name)
			s.Members[i].Learner = s.Members[i].Learner && is.Learner // a promotion is not taken back
		}
	}
	s.Members = slices.DeleteFunc(s.Members, func(m Member) bool {
		return m.Copy == nil && slices.ContainsFunc(copies, func(c *snapshot.Copy) bool { return c.Removed[m.ID] })
	})
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
	if c.Member == nil {
		return out, nil
	}
	// The machine of a host has its member below the host's directory, and the record has the member's name.
	own := memberDir{
		name: c.Member.Name, data: c.Dir("node", "etcd", "data"),
		record: c.Dir("node", "etcd", "member.json"),
	}
	raw, err := os.ReadFile(own.record)
	if errors.Is(err, fs.ErrNotExist) {
		return append(out, own), nil
	}
	if err != nil {
		return nil, err
	}
	var r struct {
		Name string `json:"name"`
	}
	if err := json.Unmarshal(raw, &r); err == nil && r.Name != "" { // one that is broken does not hold a recovery up
		own.name = filepath.Base(r.Name)
	}
	return append(out, own), nil
}

// add notes the data of one directory. That of another cluster, or of a member that was removed, is none of this one's.
// late says that the guardian here may not have listed this member yet, as on a host whose guardian does not lead.
func (s *Survey) add(d memberDir, late bool) {
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
	case s.ClusterID == 0 || late:
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
