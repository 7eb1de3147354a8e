package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	writerCount = 4
	writeEvery  = 20 * time.Millisecond // 50 a second each
	// writeTry is how long a writer waits for an answer before it asks again with the same name.
	writeTry = 3 * time.Second
	// catchUp is how long a member may be behind the others after the writes: one that was just killed has to start first.
	catchUp = leastPatience

	setsPrefix = "/windlass/machine-api/machinesets/" + Namespace + "/"
)

// Writers create MachineSets of zero replicas over REST while a test does its worst: four of them, 50 a second each.
// Each asks with the same name until it is acknowledged, and remembers that.
type Writers struct {
	c      *Cluster
	prefix string
	caller *Caller
	stop   context.CancelFunc
	done   sync.WaitGroup

	members []*etcdserverpb.Member // that were asked in the end

	mu      sync.Mutex
	acked   []string
	gap     time.Duration // longest time between two acknowledgements of one writer
	strange []string      // answers that are neither an acknowledgement nor a reason to ask again
}

// Write starts the writers. They stop with Check, or when the test ends.
func (c *Cluster) Write() *Writers {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w := &Writers{c: c, prefix: fmt.Sprintf("writer-%d-", time.Now().UnixNano()), caller: c.Admin(), stop: cancel}
	for i := range writerCount {
		w.done.Go(func() { w.write(ctx, i) })
	}
	c.t.Cleanup(func() {
		cancel()
		w.done.Wait()
	})
	return w
}

// write is one writer.
func (w *Writers) write(ctx context.Context, writer int) {
	tick := time.NewTicker(writeEvery)
	defer tick.Stop()
	last := time.Now()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		name := fmt.Sprintf("%s%d-%d", w.prefix, writer, n)
		if !w.create(ctx, name) {
			return
		}
		w.mu.Lock()
		w.acked = append(w.acked, name)
		w.gap = max(w.gap, time.Since(last))
		w.mu.Unlock()
		last = time.Now()
	}
}

// create asks until the set is acknowledged; false if ctx ended before.
func (w *Writers) create(ctx context.Context, name string) bool {
	body, _ := json.Marshal(map[string]any{ // plain values always encode
		"apiVersion": "machine.openshift.io/v1beta1", "kind": "MachineSet",
		"metadata": map[string]any{"name": name}, "spec": map[string]any{"replicas": 0},
	})
	for try := 1; ctx.Err() == nil; try++ {
		limited, cancel := context.WithTimeout(ctx, writeTry)
		resp, err := w.caller.REST(limited, http.MethodPost, "/v1/namespaces/"+Namespace+"/machinesets", "application/json",
			body)
		cancel()
		switch {
		case err == nil && resp.Code == http.StatusOK:
			return true
		case err == nil && resp.Code == http.StatusConflict && try > 1:
			return true // an earlier try came through, and its answer was lost
		case err == nil && resp.Code < 500 && resp.Code != http.StatusTooManyRequests:
			w.mu.Lock()
			w.strange = append(w.strange, fmt.Sprintf("%s: %d %s", name, resp.Code, resp.Body))
			w.mu.Unlock()
		}
		pause := time.NewTimer(10 * time.Millisecond)
		select {
		case <-ctx.Done():
			pause.Stop()
		case <-pause.C:
		}
	}
	return false
}

// Acknowledged returns how many sets were acknowledged so far.
func (w *Writers) Acknowledged() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.acked)
}

// LongestGap returns the longest time between two acknowledgements of one writer so far, 20 ms of which are its pause.
func (w *Writers) LongestGap() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gap
}

// Claim makes the writers believe that a set was acknowledged.
func (w *Writers) Claim(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acked = append(w.acked, w.prefix+name)
}

// Lost stops the writers and returns, for each member of etcd that does not have all acknowledged sets, what it lacks.
func (w *Writers) Lost() []string {
	w.c.t.Helper()
	w.stop()
	w.done.Wait()
	m, err := w.c.MachineAPI()
	if err != nil {
		w.c.t.Fatal(err)
	}
	defer m.Close()
	w.members = w.c.mustMembers()
	lost := make([]string, len(w.members))
	var group sync.WaitGroup
	for i, e := range w.members {
		group.Go(func() { lost[i] = w.lostBy(m, e) })
	}
	group.Wait()
	// A request may be lost with a leader that a busy host kept from running.
	if saw, ok := await(context.Background(), catchUp, func(context.Context) (bool, string, error) {
		err := w.remove(m, urlsOf(w.members))
		return err == nil, "", err
	}); !ok {
		w.c.t.Errorf("remove the sets: %s", saw)
	}
	return slices.DeleteFunc(lost, func(s string) bool { return s == "" })
}

// lostBy says what a member lacks once it has caught up; nothing if it has all.
func (w *Writers) lostBy(m *Members, e *etcdserverpb.Member) string {
	var missing []string
	saw, ok := await(context.Background(), catchUp, func(ctx context.Context) (bool, string, error) {
		var err error
		missing, err = w.missing(ctx, m, e)
		return err == nil, "", err
	})
	switch {
	case !ok:
		return fmt.Sprintf("member %s does not say which of %d acknowledged writes it has: %s", e.GetName(), len(w.acked),
			saw)
	case len(missing) == 0:
		return ""
	}
	return fmt.Sprintf("member %s, of %d acknowledged writes: %d are missing, the first is %s", e.GetName(), len(w.acked),
		len(missing), missing[0])
}

// Check stops the writers and fails the test unless each acknowledged set is read from each member of etcd. It removes
// the sets then.
func (w *Writers) Check() {
	t := w.c.t
	t.Helper()
	for _, l := range w.Lost() {
		t.Error(l)
	}
	for _, s := range w.strange {
		t.Errorf("a writer was refused: %s", s)
	}
	if len(w.acked) == 0 {
		t.Error("no write was acknowledged")
	}
	t.Logf("%d writes were acknowledged and read from %d members; the longest gap of a writer was %s", len(w.acked),
		len(w.members), w.gap.Round(time.Millisecond))
}

// missing returns which acknowledged writes a member does not have. It has caught up with the others by then: a read
// that is linearizable waits for that.
func (w *Writers) missing(ctx context.Context, m *Members, e *etcdserverpb.Member) ([]string, error) {
	if len(e.GetClientURLs()) == 0 {
		return nil, errors.New("it has no address yet")
	}
	c, err := m.Only(e.GetClientURLs()[0])
	if err != nil {
		return nil, err
	}
	if _, err := c.Get(ctx, setsPrefix, clientv3.WithCountOnly()); err != nil {
		return nil, err
	}
	have, err := m.Keys(ctx, e.GetClientURLs()[0], setsPrefix+w.prefix)
	if err != nil {
		return nil, err
	}
	var missing []string
	for _, name := range w.acked {
		if !have[name[len(w.prefix):]] {
			missing = append(missing, name)
		}
	}
	return missing, nil
}

// remove takes the sets away again, past machine-api: they are thousands, and the next test must not wait for that.
func (w *Writers) remove(m *Members, urls []string) error {
	const perTransaction = 100
	ctx, cancel := context.WithTimeout(context.Background(), leastPatience)
	defer cancel()
	c, err := m.Only(urls[0])
	if err != nil {
		return err
	}
	have, err := m.Keys(ctx, urls[0], setsPrefix+w.prefix)
	if err != nil {
		return err
	}
	var ops []clientv3.Op
	for name := range have {
		ops = append(ops, clientv3.OpDelete(setsPrefix+w.prefix+name))
	}
	for part := range slices.Chunk(ops, perTransaction) {
		if _, err := c.Txn(ctx).Then(part...).Commit(); err != nil {
			return err
		}
	}
	return nil
}

// mustMembers returns etcd's members as a majority of them knows them.
func (c *Cluster) mustMembers() []*etcdserverpb.Member {
	c.t.Helper()
	root, err := c.Root()
	if err != nil {
		c.t.Fatal(err)
	}
	defer root.Close()
	var list []*etcdserverpb.Member
	c.Wait(callPatience, "etcd's members", func(ctx context.Context) (bool, string, error) {
		q, err := c.Quorum(ctx)
		if err != nil {
			return false, "", err
		}
		list, err = root.List(ctx, urlsOfQuorum(q))
		return err == nil && len(list) > 0, "", err
	})
	return list
}
