package controller

import (
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/windlass-dev/windlass/services/etcd-guardian/members"
	"github.com/windlass-dev/windlass/services/etcd-guardian/plan"
	"github.com/windlass-dev/windlass/services/etcd-guardian/store"
)

// memory is what one look leaves for the next.
type memory struct {
	members []store.NoteMember        // as listed last
	answers map[uint64]members.Answer // by member
	looked  time.Time
	acted   time.Time // when something was changed last
	fresh   bool      // whether the list of the last look was fresh

	silent   map[uint64]time.Time
	progress map[uint64]progress
	stopped  map[uint64]time.Time
	failures map[string]failure // by node
	refused  bool               // the last add
	records  store.State
	recorded time.Time            // when records were read
	hooked   map[string]time.Time // when a machine's hooks were last changed; only hooks touches it
	// bootstrap is why the bootstrap member is not started; nil if it is, or has left.
	bootstrap error
}

type progress struct {
	applied uint64
	size    int64
	healthy bool
	at      time.Time
}

// failure is a node whose learner did not catch up.
type failure struct {
	until time.Time
	wait  time.Duration
}

func newMemory(n store.Note) memory {
	return memory{
		members: n.Members, silent: map[uint64]time.Time{}, progress: map[uint64]progress{}, stopped: map[uint64]time.Time{},
		failures: map[string]failure{}, hooked: map[string]time.Time{},
	}
}

// listed takes in a list of members, and forgets what was noted of others.
func (m *memory) listed(list []*etcdserverpb.Member) {
	m.members = make([]store.NoteMember, 0, len(list))
	known := map[uint64]bool{}
	for _, e := range list {
		m.members = append(m.members, store.NoteMember{ID: e.ID, Name: e.Name, PeerURLs: e.PeerURLs, ClientURLs: e.ClientURLs, Learner: e.IsLearner})
		known[e.ID] = true
	}
	slices.SortFunc(m.members, func(a, b store.NoteMember) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	forget(m.silent, known)
	forget(m.progress, known)
	forget(m.stopped, known)
}

func forget[T any](notes map[uint64]T, known map[uint64]bool) {
	for id := range notes {
		if !known[id] {
			delete(notes, id)
		}
	}
}

// heard notes of a member whether it is silent and how a learner comes on.
func (m *memory) heard(e store.NoteMember, a members.Answer, now time.Time) {
	healthy := a.Err == nil && a.Status != nil
	if healthy {
		delete(m.silent, e.ID)
	} else if _, ok := m.silent[e.ID]; !ok {
		m.silent[e.ID] = now
	}
	if !e.Learner {
		delete(m.progress, e.ID)
		return
	}
	p, known := m.progress[e.ID]
	next := progress{applied: a.Status.GetRaftAppliedIndex(), size: a.Status.GetDbSize(), healthy: healthy, at: p.at}
	if !known || next.applied > p.applied || next.size > p.size || healthy && !p.healthy {
		next.at = now
	}
	m.progress[e.ID] = next
}

// awake forgives all silence up to now.
func (m *memory) awake(now time.Time) {
	for id := range m.silent {
		m.silent[id] = now
	}
	for id, p := range m.progress {
		p.at = now
		m.progress[id] = p
	}
}

// failed notes that a node's learner did not catch up.
func (m *memory) failed(node string, now time.Time) {
	if node == "" {
		return
	}
	f := m.failures[node]
	f.wait = min(max(2*f.wait, retryFirst), retryMost)
	f.until = now.Add(f.wait)
	m.failures[node] = f
}

// freshen returns v with the members as they are listed now.
func (m *memory) freshen(v plan.View) plan.View {
	old := v.Members
	v.Members = nil
	for _, e := range m.members {
		next := planMember(e)
		if i := slices.IndexFunc(old, func(o plan.Member) bool { return o.ID == e.ID }); i >= 0 {
			o := old[i]
			o.Name, o.PeerURLs, o.ClientURLs, o.Learner = next.Name, next.PeerURLs, next.ClientURLs, next.Learner
			next = o
		}
		next.StopTime = m.stopped[e.ID]
		v.Members = append(v.Members, next)
	}
	return v
}

func planMember(e store.NoteMember) plan.Member {
	return plan.Member{ID: e.ID, Name: e.Name, PeerURLs: e.PeerURLs, ClientURLs: e.ClientURLs, Learner: e.Learner}
}
