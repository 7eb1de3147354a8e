package harness

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
)

const (
	probeEvery = 100 * time.Millisecond
	// probePatience is for the answer of one member. One that is alive answers within a few milliseconds; a host with two
	// cores that runs a whole cluster and its test may need more.
	probePatience = 2 * time.Second
	// silentFor is how long a member must leave all probes without an answer to count as down. A member that waits for a
	// processor or for its disk is slow and not down, and two on one host are slow together. A member that Windlass stops
	// is not silent: its port is closed, and it is down at once.
	silentFor = 10 * time.Second
)

// Prober asks each voter by itself, ten times a second, from outside: past Windlass and past etcd's own agreement. It
// holds against Windlass what it promises: there are never fewer healthy voters than a majority, and never two down, by
// its own doing. Those that the test stopped count as healthy until they were seen alive again.
type Prober struct {
	c    *Cluster
	tls  *tls.Config // of etcd's root
	stop context.CancelFunc
	done chan struct{}

	mu         sync.Mutex
	conns      map[string]*grpc.ClientConn // by client URL
	list       []*etcdserverpb.Member
	silent     map[uint64]time.Time // since when each member that does not answer is silent
	last       time.Time
	samples    int
	lowest     Sample
	longest    time.Duration // between the begins of two samples
	violations []string
}

// Sample is what one probe saw.
type Sample struct {
	At       time.Time
	Voters   int
	Healthy  int
	Majority int
	Down     []string // names of those that Windlass itself has to answer for
	Excused  []string
}

// String is for the texts of failures.
func (s Sample) String() string {
	return fmt.Sprintf("%s: %d of %d voters healthy, a majority is %d; down: %v; stopped by the test: %v",
		s.At.Format("15:04:05.000"), s.Healthy, s.Voters, s.Majority, s.Down, s.Excused)
}

// Probe starts a prober; all members must be up. It stops with Check, or when the test ends.
func (c *Cluster) Probe() *Prober {
	c.t.Helper()
	root, err := c.Root()
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Prober{
		c: c, tls: root.tls, stop: cancel, done: make(chan struct{}), conns: map[string]*grpc.ClientConn{},
		list: c.mustMembers(), silent: map[uint64]time.Time{},
	}
	c.mu.Lock()
	clear(c.stopped) // what a test before this one did excuses nothing now
	c.mu.Unlock()
	go p.run(ctx)
	c.t.Cleanup(p.end)
	return p
}

func (p *Prober) end() {
	p.stop()
	<-p.done
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keep(nil)
}

// Check stops the prober and fails the test if Windlass broke its promise.
func (p *Prober) Check() {
	t := p.c.t
	t.Helper()
	const shown = 10
	for i, v := range p.Violations() {
		if i == shown {
			t.Errorf("… and %d more", len(p.violations)-shown)
			break
		}
		t.Error(v)
	}
	if p.samples == 0 {
		t.Error("nothing was probed")
	}
	t.Logf("%d probes, the longest pause between two %s; the fewest healthy voters were at %s", p.samples,
		p.longest.Round(time.Millisecond), p.lowest)
}

// Violations stops the prober and returns what it holds against Windlass.
func (p *Prober) Violations() []string {
	p.end()
	return p.violations
}

// run begins a probe with each tick, whether the ones before have all their answers or not.
func (p *Prober) run(ctx context.Context) {
	defer close(p.done)
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	var group sync.WaitGroup
	defer group.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			group.Go(func() { p.probe(ctx) })
		}
	}
}

// probe asks all members at once: each for a sign of life, and for the list of members.
func (p *Prober) probe(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	at := time.Now()
	p.mu.Lock()
	before := p.list
	p.mu.Unlock()
	errs := make([]error, len(before))
	lists := make([][]*etcdserverpb.Member, len(before))
	var group sync.WaitGroup
	for i, e := range before {
		group.Go(func() { lists[i], errs[i] = p.ask(limited, e) })
	}
	group.Wait()
	if ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := newest(lists); now != nil && !at.Before(p.last) {
		p.list = now
		p.keep(now)
	} // else no majority answered, so no client can have changed it
	s := Sample{At: at}
	for i, e := range before {
		if gone(e, p.list) || e.GetIsLearner() {
			delete(p.silent, e.GetID())
			continue
		}
		p.count(&s, e, errs[i])
	}
	s.Majority = s.Voters/2 + 1
	p.judge(s)
}

// ask returns no error for a member that serves. The list is only there if the member has a majority behind it.
func (p *Prober) ask(ctx context.Context, e *etcdserverpb.Member) ([]*etcdserverpb.Member, error) {
	if len(e.GetClientURLs()) == 0 {
		return nil, errors.New("it has no address")
	}
	conn, err := p.only(e.GetClientURLs()[0])
	if err != nil {
		return nil, err
	}
	var list []*etcdserverpb.Member
	var group sync.WaitGroup
	group.Go(func() {
		if got, err := etcdserverpb.NewClusterClient(conn).MemberList(ctx, &etcdserverpb.MemberListRequest{
			Linearizable: true,
		}); err == nil {
			list = got.GetMembers()
		}
	})
	_, err = etcdserverpb.NewKVClient(conn).Range(ctx, &etcdserverpb.RangeRequest{
		Key:          []byte("/windlass/"),
		Serializable: true, CountOnly: true,
	})
	group.Wait()
	return list, err
}

// only returns a connection to one member. It is not etcd's own client, which would ask again by itself where this is
// to see a failure.
func (p *Prober) only(url string) (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if conn := p.conns[url]; conn != nil {
		return conn, nil
	}
	conn, err := dial(strings.TrimPrefix(p.c.beyond(url), "https://"), p.tls.Clone())
	if err == nil {
		p.conns[url] = conn
	}
	return conn, err
}

// keep ends the connections to those that are no members any more. The lock is held.
func (p *Prober) keep(list []*etcdserverpb.Member) {
	for url, conn := range p.conns {
		if !slices.Contains(urlsOf(list), url) {
			conn.Close()
			delete(p.conns, url)
		}
	}
}

// newest returns one of the lists. Each had a majority behind it, so they differ for moments only.
func newest(lists [][]*etcdserverpb.Member) []*etcdserverpb.Member {
	for _, l := range lists {
		if l != nil {
			return l
		}
	}
	return nil
}

func gone(e *etcdserverpb.Member, list []*etcdserverpb.Member) bool {
	return !slices.ContainsFunc(list, func(o *etcdserverpb.Member) bool { return o.GetID() == e.GetID() })
}

func (p *Prober) count(s *Sample, e *etcdserverpb.Member, err error) {
	s.Voters++
	excused := p.excused(e.GetName(), err == nil, s.At)
	switch {
	case err == nil:
		delete(p.silent, e.GetID())
		s.Healthy++
		return
	case p.silent[e.GetID()].IsZero():
		p.silent[e.GetID()] = s.At
	}
	switch {
	case excused:
		s.Excused = append(s.Excused, e.GetName())
	case !closed(err) && s.At.Sub(p.silent[e.GetID()]) < silentFor:
		s.Healthy++
	default:
		s.Down = append(s.Down, fmt.Sprintf("%s (%v)", e.GetName(), err))
	}
}

// closed reports whether the member's port is closed.
func closed(err error) bool {
	return status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "connection refused")
}

// excused reports whether the test stopped a member that was not seen alive since.
func (p *Prober) excused(name string, alive bool, at time.Time) bool {
	s := p.c.site
	s.mu.Lock()
	defer s.mu.Unlock()
	since, ok := s.stopped[name]
	if ok && alive && since.Before(at) {
		delete(s.stopped, name)
		return false
	}
	return ok
}

// judge holds a sample against the promise. The lock is held.
func (p *Prober) judge(s Sample) {
	if p.samples == 0 || s.Healthy < p.lowest.Healthy {
		p.lowest = s
	}
	if p.samples > 0 {
		p.longest = max(p.longest, s.At.Sub(p.last))
	}
	p.samples++
	if s.At.After(p.last) {
		p.last = s.At
	}
	if len(s.Down) >= 2 {
		p.violations = append(p.violations, "two voters are down by Windlass' own doing at "+s.String())
	}
	if len(s.Down) > 0 && s.Voters-len(s.Down) < s.Majority {
		p.violations = append(p.violations, "fewer healthy voters than a majority by Windlass' own doing at "+s.String())
	}
}

// urlsOfQuorum returns the members' client addresses as the guardian reports them.
func urlsOfQuorum(q *etcdv1.Quorum) []string {
	urls := map[string]bool{}
	for _, u := range q.GetEndpoints() {
		urls[u] = true
	}
	for _, m := range q.GetMembers() {
		for _, u := range m.GetClientUrls() {
			urls[u] = true
		}
	}
	return slices.Sorted(maps.Keys(urls))
}

// Seen returns how many violations were seen so far.
func (p *Prober) Seen() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.violations)
}
