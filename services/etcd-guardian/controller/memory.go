package controller

import (
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/windlass-dev/windlass/services/etcd-guardian/members"
	"github.com/windlass-dev/windlass/services/etcd-guardian/plan"
	"github.com/windlass-dev/windlass/services/etcd-guardian/store"
)

// memory is what one look leaves for the next. Its moments are what Config.Elapsed said: a step of the host's clock
// does not move them.
type memory struct {
	members []store.NoteMember        // as listed last
	answers map[uint64]members.Answer // by member
	looked  time.Duration             // 0: never
	acted   time.Duration             // when something was changed last
	fresh   bool                      // whether the list of the last look was fresh

	silent   map[uint64]silence
	progress map[uint64]progress
	stopped  map[uint64]time.Duration
	restarts map[uint64]time.Duration // when agents were last commanded to restart their member
	failures map[string]failure       // by node
	refused  bool                     // the last add
	records  store.State
	recorded time.Duration // when records were read; 0: never
	urls     []string      // published addresses, as read or written last
	// noSpace is when it was first seen, for people, that etcd refuses writes; zero if it does not.
	noSpace     time.Time
	defragments map[uint64]defragmentation // by member; those after which its database is smaller are forgotten
	compact     time.Duration              // when old revisions were last dropped for want of space; 0: never
	urlsAt      time.Duration              // when they were first seen
	hooked      map[string]time.Duration   // when a machine's hooks were last changed; only hooks touches it
	// term is the leadership at the last look; nil if this process did not lead
	term *leadership
	// bootstrap is why the bootstrap member is not started; nil if it is, or has left.
	bootstrap error
}

// defragmentation is that of a member.
type defragmentation struct {
	running bool
	size    int64         // of the database before it
	tries   int           // in a row, this one included
	at      time.Duration // when it ended
}

// full notes whether etcd refuses writes and returns since when, for people.
func (m *memory) full(refuses bool, clock time.Time) string {
	switch {
	case !refuses:
		m.noSpace = time.Time{}
		return ""
	case m.noSpace.IsZero():
		m.noSpace = clock
	}
	return m.noSpace.UTC().Format(time.RFC3339)
}

type progress struct {
	applied uint64
	size    int64
	healthy bool
	at      time.Duration
}

// silence is that of a member: since when, and for people the time of day when it began.
type silence struct {
	at    time.Duration
	since time.Time
}

// failure is a node whose learners did not catch up.
type failure struct {
	times int
	until time.Duration
	wait  time.Duration
}

func newMemory(n store.Note) memory {
	return memory{
		members: n.Members, silent: map[uint64]silence{}, progress: map[uint64]progress{},
		stopped: map[uint64]time.Duration{}, restarts: map[uint64]time.Duration{},
		defragments: map[uint64]defragmentation{},
		failures:    map[string]failure{}, hooked: map[string]time.Duration{},
	}
}

// listed takes in a list of members, and forgets what was noted of others.
func (m *memory) listed(list []*etcdserverpb.Member) {
	m.members = make([]store.NoteMember, 0, len(list))
	known := map[uint64]bool{}
	for _, e := range list {
		m.members = append(m.members, store.NoteMember{
			ID: e.ID, Name: e.Name, PeerURLs: e.PeerURLs, ClientURLs: e.ClientURLs,
			Learner: e.IsLearner,
		})
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
	forget(m.restarts, known)
	forget(m.defragments, known)
}

func forget[T any](notes map[uint64]T, known map[uint64]bool) {
	for id := range notes {
		if !known[id] {
			delete(notes, id)
		}
	}
}

// track records whether a member is silent, and the progress of a learner.
func (m *memory) track(e store.NoteMember, a members.Answer, now time.Duration, clock time.Time) {
	healthy := a.Err == nil && a.Status != nil
	if healthy {
		delete(m.silent, e.ID)
	} else if _, ok := m.silent[e.ID]; !ok {
		m.silent[e.ID] = silence{now, clock}
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
func (m *memory) awake(now time.Duration) {
	for id, s := range m.silent {
		m.silent[id] = silence{now, s.since}
	}
	for id, p := range m.progress {
		p.at = now
		m.progress[id] = p
	}
}

// failed notes that a node's learner did not catch up.
func (m *memory) failed(node string, now time.Duration) {
	if node == "" {
		return
	}
	f := m.failures[node]
	f.times++
	f.wait = min(max(2*f.wait, retryFirst), retryMost)
	f.until = now + f.wait
	m.failures[node] = f
}

// freshen returns v with the members as they are listed now.
func (m *memory) freshen(v plan.View, now time.Duration) plan.View {
	old := v.Members
	v.Members = nil
	for _, e := range m.members {
		next := planMember(e)
		if i := slices.IndexFunc(old, func(o plan.Member) bool { return o.ID == e.ID }); i >= 0 {
			o := old[i]
			o.Name, o.PeerURLs, o.ClientURLs, o.Learner = next.Name, next.PeerURLs, next.ClientURLs, next.Learner
			next = o
		}
		next.Stopping, next.StoppingFor = since(m.stopped, e.ID, now)
		next.Restarting, next.RestartFor = since(m.restarts, e.ID, now)
		v.Members = append(v.Members, next)
	}
	return v
}

// since reports whether there is a note of a member, and for how long.
func since(notes map[uint64]time.Duration, id uint64, now time.Duration) (bool, time.Duration) {
	at, ok := notes[id]
	if !ok {
		return false, 0
	}
	return true, now - at
}

// addresses notes the published addresses and returns for how long they have been these.
func (m *memory) addresses(urls []string, now time.Duration) time.Duration {
	if m.urlsAt == 0 || !slices.Equal(m.urls, urls) {
		m.urls, m.urlsAt = urls, now
	}
	return now - m.urlsAt
}

func planMember(e store.NoteMember) plan.Member {
	return plan.Member{ID: e.ID, Name: e.Name, PeerURLs: e.PeerURLs, ClientURLs: e.ClientURLs, Learner: e.Learner}
}
