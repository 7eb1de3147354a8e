package harness

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	electionsPrefix = "/windlass/elections/"
	// machineKinds are the objects of machine-api: no two of them ever have the same name, if a test does not give it
	// twice.
	machineKinds = "/windlass/machine-api/machine"
)

// History is what happens to elections and to the objects of machine-api in etcd, past Windlass and past any proxy: no
// change between two looks is missed.
type History struct {
	c    *Cluster
	stop context.CancelFunc
	done chan struct{}

	mu      sync.Mutex
	err     error
	created map[string]int           // how often, by key
	without map[string]time.Time     // services without a leader, since when
	longest map[string]time.Duration // a service was without a leader
	changes map[string]int           // of a service's leadership
}

// History begins one. It ends with Check, or when the test ends. All members must be up, and one of them must stay.
func (c *Cluster) History() *History {
	c.t.Helper()
	root, err := c.Root()
	if err != nil {
		c.t.Fatal(err)
	}
	var urls []string
	for _, u := range urlsOf(c.mustMembers()) {
		urls = append(urls, c.beyond(u))
	}
	client, err := root.client(urls)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	h := &History{
		c: c, stop: cancel, done: make(chan struct{}), created: map[string]int{}, without: map[string]time.Time{},
		longest: map[string]time.Duration{}, changes: map[string]int{},
	}
	limited, end := context.WithTimeout(ctx, callPatience)
	leaders, err := client.Get(limited, electionsPrefix, clientv3.WithPrefix())
	end()
	if err != nil {
		cancel()
		client.Close()
		c.t.Fatal(err)
	}
	for _, kv := range leaders.Kvs {
		h.longest[strings.TrimPrefix(string(kv.Key), electionsPrefix)] = 0
	}
	go func() {
		defer close(h.done)
		defer client.Close()
		// A member that loses its leader for a moment, as on a busy host, ends the watch: it goes on where it broke off.
		for at := leaders.Header.Revision; ctx.Err() == nil; {
			watch, end := context.WithCancel(clientv3.WithRequireLeader(ctx))
			at = h.follow(at, client.Watch(watch, "/windlass/", clientv3.WithPrefix(), clientv3.WithRev(at+1)))
			end()
			select {
			case <-ctx.Done():
			case <-time.After(lookEvery):
			}
		}
	}()
	c.t.Cleanup(h.end)
	return h
}

func (h *History) end() {
	h.stop()
	<-h.done
}

// follow notes the changes after a revision until the watch ends, and returns the revision of the last one.
func (h *History) follow(at int64, watch clientv3.WatchChan) int64 {
	for r := range watch {
		h.mu.Lock()
		if r.CompactRevision > 0 { // what is missing cannot be had any more
			h.err = r.Err()
			at = max(at, r.CompactRevision-1)
		}
		for _, e := range r.Events {
			h.note(e)
			at = max(at, e.Kv.ModRevision)
		}
		h.mu.Unlock()
	}
	return at
}

// note takes one change. The lock is held.
func (h *History) note(e *clientv3.Event) {
	key := string(e.Kv.Key)
	if strings.HasPrefix(key, machineKinds) && e.IsCreate() {
		h.created[key]++
	}
	service, ok := strings.CutPrefix(key, electionsPrefix)
	if !ok {
		return
	}
	if e.Type == clientv3.EventTypeDelete {
		h.without[service] = time.Now()
		h.changes[service]++
		return
	}
	if since, ok := h.without[service]; ok {
		h.longest[service] = max(h.longest[service], time.Since(since))
		delete(h.without, service)
	}
}

// Check ends the history. The test fails if a name was created twice, or if a service had no leader for longer than an
// election may take.
func (h *History) Check(election time.Duration) {
	t := h.c.t
	t.Helper()
	h.end()
	if h.err != nil {
		t.Errorf("the history is not complete: %v", h.err)
	}
	for key, n := range h.created {
		if n > 1 {
			t.Errorf("%s was created %d times", key, n)
		}
	}
	if len(h.created) == 0 {
		t.Error("nothing was created")
	}
	if len(h.longest) == 0 {
		t.Error("no service had a leader")
	}
	for service, since := range h.without {
		h.longest[service] = max(h.longest[service], time.Since(since))
	}
	var all []string
	for _, service := range slices.Sorted(maps.Keys(h.longest)) {
		all = append(all, fmt.Sprintf("%s %d/%s", service, h.changes[service],
			h.longest[service].Round(100*time.Millisecond)))
		if h.longest[service] > election {
			t.Errorf("%s had no leader for %s", service, h.longest[service].Round(time.Millisecond))
		}
	}
	t.Logf("%d objects were created, each once; leaders lost, and the longest time without one: %s", len(h.created),
		strings.Join(all, ", "))
}
