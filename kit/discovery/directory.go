package discovery

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/renameio/v2"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/windlass-dev/windlass/kit/topology"
)

const (
	// retryFollow is short against a lease and long against an election of etcd's own.
	retryFollow = time.Second
	// lookAgain is how often all is read again: a change that a watch does not bring is seen then.
	lookAgain = 10 * time.Second
	// saveAfter is how long changes are collected before they are written to the disk.
	saveAfter = time.Second
)

var errMissed = errors.New("a watch brought no change that was made")

// Directory follows what the processes of the cluster announce. Make one with Open; it may be used by several
// goroutines at once.
type Directory struct {
	file string
	log  *slog.Logger

	mu   sync.Mutex
	view View
	subs map[int]func(View)
	next int
}

// Open returns a directory that has what its file had last, and keeps that up to date while it runs. An unreadable file
// is logged and counts as none; with "" nothing is kept.
func Open(file string, log *slog.Logger) *Directory {
	d := &Directory{file: file, log: log, subs: map[int]func(View){}}
	if file == "" {
		return d
	}
	raw, err := os.ReadFile(file)
	if err == nil {
		d.view, err = decode(raw)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Error("the addresses of other services that were known last cannot be read", "file", file, "error", err)
	}
	return d
}

// View returns what is known now.
func (d *Directory) View() View {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.view
}

// Subscribe has f called with what is known now and after each change, one call at a time. f must return soon and not
// call the directory. stop ends that.
func (d *Directory) Subscribe(f func(View)) (stop func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	id := d.next
	d.next++
	d.subs[id] = f
	f(d.view)
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.subs, id)
	}
}

// Run follows the keys with the prefixes, topology.EndpointsPrefix and topology.ElectionsPrefix or one of them, until
// ctx ends, and returns nil then. While etcd is away what was known last stays.
func (d *Directory) Run(ctx context.Context, c *clientv3.Client, prefixes ...string) error {
	unsaved := make(chan struct{}, 1)
	stop := d.Subscribe(func(View) {
		select {
		case unsaved <- struct{}{}:
		default:
		}
	})
	defer stop()
	var saver sync.WaitGroup
	saver.Go(func() { d.save(ctx, unsaved) })
	defer saver.Wait()
	logged := ""
	for {
		err := d.follow(ctx, c, prefixes)
		if ctx.Err() != nil {
			return nil
		}
		if text := fmt.Sprint(err); text != logged {
			logged = text
			d.log.WarnContext(ctx, "endpoints and elections are not followed", "error", err)
		}
		select {
		case <-time.After(retryFollow):
		case <-ctx.Done():
			return nil
		}
	}
}

// follow reads all keys and then each change, until that fails.
func (d *Directory) follow(ctx context.Context, c *clientv3.Client, prefixes []string) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	keys, revision, err := read(ctx, c, prefixes)
	if err != nil {
		return err
	}
	d.set(keys)
	changes := make(chan change)
	for _, p := range prefixes {
		go func() { // the call itself waits for the server
			defer cancel()
			for r := range c.Watch(ctx, p, clientv3.WithPrefix(), clientv3.WithRev(revision+1)) {
				select {
				case changes <- change{r, p}:
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	seen := map[string]int64{} // revision of the last change, by prefix
	take := func(r change) error {
		if err := r.Err(); err != nil {
			return err
		}
		for _, e := range r.Events {
			if e.Type == clientv3.EventTypeDelete {
				delete(keys, string(e.Kv.Key))
			} else {
				keys[string(e.Kv.Key)] = e.Kv.Value
			}
		}
		seen[r.prefix] = r.Header.Revision
		d.set(keys)
		return nil
	}
	look := time.NewTicker(lookAgain)
	defer look.Stop()
	for {
		select {
		case r := <-changes:
			if err := take(r); err != nil {
				return err
			}
		case <-ctx.Done():
			return fmt.Errorf("watch ended: %w", context.Cause(ctx))
		case <-look.C: // a stream may hang without an error
			now, at, err := read(ctx, c, prefixes)
			if err != nil {
				return err
			}
			for end := time.After(callLimit); ; {
				if !slices.ContainsFunc(prefixes, func(p string) bool { return seen[p] < at && differ(now, keys, p) }) {
					break
				}
				select { // changes may be under way
				case r := <-changes:
					if err := take(r); err != nil {
						return err
					}
					continue
				case <-ctx.Done():
					return fmt.Errorf("watch ended: %w", context.Cause(ctx))
				case <-end:
					return errMissed
				}
			}
			d.confirm()
		}
	}
}

// change is what a watch of a prefix has brought.
type change struct {
	clientv3.WatchResponse
	prefix string
}

// differ reports whether the keys with a prefix are not the same.
func differ(a, b map[string][]byte, prefix string) bool {
	of := func(m map[string][]byte) map[string][]byte {
		out := maps.Clone(m)
		maps.DeleteFunc(out, func(key string, _ []byte) bool { return !strings.HasPrefix(key, prefix) })
		return out
	}
	return !maps.EqualFunc(of(a), of(b), bytes.Equal)
}

// read returns all keys with the prefixes, at one revision.
func read(ctx context.Context, c *clientv3.Client, prefixes []string) (map[string][]byte, int64, error) {
	got, err := limited(ctx, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		var reads []clientv3.Op
		for _, p := range prefixes {
			reads = append(reads, clientv3.OpGet(p, clientv3.WithPrefix()))
		}
		return c.Txn(ctx).Then(reads...).Commit()
	})
	if err != nil {
		return nil, 0, err
	}
	keys := map[string][]byte{}
	for _, r := range got.Responses {
		for _, kv := range r.GetResponseRange().Kvs {
			keys[string(kv.Key)] = kv.Value
		}
	}
	return keys, got.Header.Revision, nil
}

// confirm notes that what is known is as in etcd now.
func (d *Directory) confirm() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.view.Confirmed = time.Now()
}

// set replaces what is known by what the keys say. A value that cannot be read counts as absent.
func (d *Directory) set(keys map[string][]byte) {
	v := View{
		Endpoints: map[string][]Endpoint{}, Away: map[string][]Endpoint{}, Leaders: map[string]string{},
		Confirmed: time.Now(),
	}
	lasts, gone := map[string][]Endpoint{}, map[string]bool{}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if service, ok := strings.CutPrefix(key, topology.ElectionsPrefix); ok {
			var leader struct {
				Address string `json:"address"`
			}
			if err := json.Unmarshal(keys[key], &leader); err == nil && leader.Address != "" {
				v.Leaders[service] = leader.Address
			}
			continue
		}
		if host, ok := removed(key); ok {
			gone[host] = true
			continue
		}
		if key, ok := strings.CutSuffix(key, lastSuffix); ok {
			if e, err := parse([]byte(key), keys[key+lastSuffix]); err == nil {
				e.Reason, e.Gone = "no process runs there", seen(keys[key+lastSuffix])
				lasts[e.Service] = append(lasts[e.Service], e)
			}
			continue
		}
		e, err := parse([]byte(key), keys[key])
		if err != nil {
			d.log.Error("endpoint is ignored", "error", err)
			continue
		}
		v.Endpoints[e.Service] = append(v.Endpoints[e.Service], e)
	}
	for service, list := range lasts {
		for _, e := range list {
			same := func(o Endpoint) bool { return o.Host == e.Host }
			if !gone[e.Host] && !slices.ContainsFunc(v.Endpoints[service], same) && !slices.ContainsFunc(v.Away[service], same) {
				v.Away[service] = append(v.Away[service], e)
			}
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for service, list := range v.Away {
		for i, e := range list {
			same := func(o Endpoint) bool { return o.Host == e.Host }
			if slices.ContainsFunc(d.view.Endpoints[service], same) {
				list[i].Gone = v.Confirmed
			} else if at := slices.IndexFunc(d.view.Away[service], same); at >= 0 {
				list[i].Gone = d.view.Away[service][at].Gone
			}
		}
	}
	d.view = v
	for _, f := range d.subs {
		f(v)
	}
}

// seen returns when a process that is remembered was last there.
func seen(value []byte) time.Time {
	var l last
	_ = json.Unmarshal(value, &l) // parse has read it
	return l.Seen
}

// save writes what is known to the disk, some time after each change and when ctx ends.
func (d *Directory) save(ctx context.Context, unsaved <-chan struct{}) {
	failed := false
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			select {
			case <-unsaved:
			default:
				return
			}
		case <-unsaved:
			select {
			case <-ctx.Done():
			case <-time.After(saveAfter):
			}
		}
		v := d.View()
		if d.file == "" || len(v.Endpoints) == 0 {
			continue // nothing was read yet, or nothing that would help
		}
		raw, err := encode(v)
		if err == nil {
			err = renameio.WriteFile(d.file, raw, 0o600)
		}
		if err != nil && !failed {
			d.log.ErrorContext(ctx, "addresses of other services are not saved", "error", err)
		}
		failed = err != nil
	}
}
