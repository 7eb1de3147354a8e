// Package fleet keeps the instances of the simulated provider in memory. Its latencies and faults follow from a seed.
package fleet

import (
	"cmp"
	"container/heap"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
)

// States of an instance.
const (
	creating = "Creating"
	Running  = "Running" // from then on it is a node
	deleting = "Deleting"
)

// Errors that callers distinguish.
var (
	ErrNotFound = errors.New("no such instance")
	ErrFull     = errors.New("no address is free")
	ErrUsed     = errors.New("the request token's instance was deleted")
	ErrOther    = errors.New("provider id and request token are of different instances")
	ErrFenced   = errors.New("the caller no longer leads")
)

// Config says how the provider behaves.
type Config struct {
	Cluster string       // name of the cluster, part of the provider ids
	Network netip.Prefix // IPv4 network that instances get addresses from
	Seed    uint64       // of all latencies and faults
	Call    Range        // until a call is carried out
	Create  Range        // from the call until the instance is Running
	Delete  Range        // from the call until the instance is gone
	Detach  Range        // from Running until a volume is detached
	Stuck   float64      // part of the volumes, from 0 to 1, that are never detached
	Faults  Faults
	Absent  float64 // part of the instances, from 0 to 1, whose node never joins
	Silent  float64 // part of the instances whose node falls silent
	Silence Range   // from its first heartbeat until it does
}

// Order is what a machine asks for.
type Order struct {
	Token, Machine, UID string
	Type, Region, Zone  string
	Volumes             int                        // attached from its creation on
	Fence               int64                      // of the caller; 0 if it has none
	Capacity            map[string]*structpb.Value // of the node, as quantities
	Bootstrap           *providerv1.Bootstrap      // what it needs to join the cluster
}

// NodeFate is what happens to the node of one instance.
type NodeFate struct {
	Absent bool          // it never joins
	Silent bool          // it falls silent
	After  time.Duration // its first heartbeat
}

// Fleet is all instances. Its methods may be called concurrently.
type Fleet struct {
	cfg  Config
	boot string // part of the provider ids, so that a later process gives none of them again

	mu        sync.Mutex
	instances map[string]*providerv1.Instance // by provider id; the values are never modified, only replaced
	byToken   map[string]string               // provider id by request token
	orders    map[string]Order                // by provider id
	used      map[string]bool                 // request tokens that make no instance any more
	calls     map[string]int                  // by method and token
	addresses map[netip.Addr]bool             // that are given
	next      netip.Addr                      // address to try next
	made      int
	fence     int64         // the highest of all calls
	due       queue         // what happens next
	wake      chan struct{} // has room for one: due has a new first entry
	watches   map[*Watch]bool
}

// New returns an empty fleet.
func New(cfg Config) *Fleet {
	return &Fleet{
		cfg: cfg, boot: strings.ToLower(rand.Text()[:6]), instances: map[string]*providerv1.Instance{},
		byToken: map[string]string{}, orders: map[string]Order{}, used: map[string]bool{}, calls: map[string]int{},
		addresses: map[netip.Addr]bool{},
		next:      cfg.Network.Masked().Addr(), wake: make(chan struct{}, 1), watches: map[*Watch]bool{},
	}
}

// Fate draws what happens to a call of a method for a token. Creations and deletions take the time of their kind.
func (f *Fleet) Fate(method, token string) Fate {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := method + " " + token
	f.calls[key]++
	span := f.cfg.Create
	if method == "DeleteInstance" {
		span = f.cfg.Delete
	}
	return fateOf(f.cfg.Seed, method, token, f.calls[key], f.cfg.Faults, f.cfg.Call, span)
}

// Node returns what an instance was ordered as, and draws what happens to its node; false if there is no such instance.
func (f *Fleet) Node(id string) (Order, NodeFate, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o, ok := f.orders[id]
	fate := fateOf(f.cfg.Seed, "node", o.Token, 1, Faults{Fail: f.cfg.Absent, Lose: f.cfg.Silent}, Range{}, f.cfg.Silence)
	return o, NodeFate{Absent: fate.Fail, Silent: fate.Lose, After: fate.Span}, ok
}

// Create makes an instance that is Running after span, or returns the one that was made for the same token.
func (f *Fleet) Create(o Order, span time.Duration) (*providerv1.Instance, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.admit(o.Fence); err != nil {
		return nil, err
	}
	if f.used[o.Token] {
		return nil, ErrUsed
	}
	if id, ok := f.byToken[o.Token]; ok {
		return f.instances[id], nil
	}
	address, err := f.address()
	if err != nil {
		return nil, err
	}
	f.made++
	i := &providerv1.Instance{
		ProviderId:  fmt.Sprintf("simulated://%s/%s-%d", f.cfg.Cluster, f.boot, f.made),
		MachineName: o.Machine, MachineUid: o.UID, RequestToken: o.Token, Fence: o.Fence, State: creating,
		InstanceType: o.Type, Region: o.Region, Zone: o.Zone,
		CreateTime: timestamppb.Now(),
		Addresses: []*nodev1.NodeAddress{
			{Type: "InternalIP", Address: address.String()}, {Type: "Hostname", Address: o.Machine},
		},
	}
	i.VolumesKnown = true
	for n := range o.Volumes {
		i.Volumes = append(i.Volumes, &providerv1.AttachedVolume{
			Id: fmt.Sprintf("%s-vol%03d", i.GetProviderId(), n), DevicePath: fmt.Sprintf("/dev/disk/by-id/virtual-%d", n),
			AttachTime: i.GetCreateTime(),
		})
	}
	f.byToken[o.Token], f.orders[i.GetProviderId()] = i.GetProviderId(), o
	f.put(i)
	f.plan(entry{at: time.Now().Add(span), id: i.GetProviderId(), state: Running})
	return i, nil
}

// Get returns an instance by id, by token, or by both, which must match then.
func (f *Fleet) Get(id, token string) (*providerv1.Instance, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.find(id, token)
}

func (f *Fleet) find(id, token string) (*providerv1.Instance, error) {
	own := f.byToken[token]
	if id == "" {
		id = own
	}
	i, ok := f.instances[id]
	if !ok || token != "" && own != id {
		return nil, ErrNotFound
	}
	return i, nil
}

// admit refuses a call of a caller that no longer leads; the lock is held.
func (f *Fleet) admit(fence int64) error {
	if fence < f.fence {
		return ErrFenced
	}
	f.fence = fence
	return nil
}

// Delete has an instance be gone after span, and uses its request token up, also if there is no instance. It returns
// the highest fence of all calls.
func (f *Fleet) Delete(id, token string, fence int64, span time.Duration) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.admit(fence); err != nil {
		return 0, err
	}
	i, err := f.find(id, token)
	if err != nil && f.instances[cmp.Or(id, f.byToken[token])] != nil {
		return 0, ErrOther
	}
	if err != nil {
		f.used[token] = true
		return f.fence, nil
	}
	f.used[i.GetRequestToken()] = true
	if i.GetState() != deleting {
		next := proto.CloneOf(i)
		next.State, next.Fence = deleting, fence
		f.put(next)
		f.plan(entry{at: time.Now().Add(span), id: i.GetProviderId()})
	}
	return f.fence, nil
}

// List returns all instances by provider id.
func (f *Fleet) List() []*providerv1.Instance {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.SortedFunc(maps.Values(f.instances), compareIDs)
}

func compareIDs(a, b *providerv1.Instance) int {
	return cmp.Compare(a.GetProviderId(), b.GetProviderId())
}

// Run lets time pass for the instances until ctx ends.
func (f *Fleet) Run(ctx context.Context) error {
	for {
		timer := time.NewTimer(f.pass(time.Now()))
		select {
		case <-timer.C:
		case <-f.wake:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		timer.Stop()
	}
}

// pass carries out everything that is due and returns how long nothing is.
func (f *Fleet) pass(now time.Time) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.due) > 0 {
		e := f.due[0]
		if left := e.at.Sub(now); left > 0 {
			return left
		}
		heap.Pop(&f.due)
		i, ok := f.instances[e.id]
		switch {
		case !ok:
		case e.volume != "":
			f.detach(i, e.volume)
		case e.state == "":
			f.remove(i)
		case i.GetState() == creating:
			next := proto.CloneOf(i)
			next.State = e.state
			f.put(next)
			f.planDetach(next, e.at)
		}
	}
	return time.Hour
}

// planDetach notes when the volumes of an instance that is Running are detached; the lock is held.
func (f *Fleet) planDetach(i *providerv1.Instance, at time.Time) {
	for _, v := range i.GetVolumes() {
		fate := fateOf(f.cfg.Seed, "detach "+v.GetId()[strings.LastIndex(v.GetId(), "-"):], i.GetRequestToken(), 1,
			Faults{Fail: f.cfg.Stuck}, Range{}, f.cfg.Detach)
		if !fate.Fail {
			f.plan(entry{at: at.Add(fate.Span), id: i.GetProviderId(), volume: v.GetId()})
		}
	}
}

// detach removes a volume from an instance; the lock is held.
func (f *Fleet) detach(i *providerv1.Instance, volume string) {
	next := proto.CloneOf(i)
	next.Volumes = slices.DeleteFunc(next.Volumes, func(v *providerv1.AttachedVolume) bool { return v.GetId() == volume })
	f.put(next)
}

// plan notes what happens when; the lock is held.
func (f *Fleet) plan(e entry) {
	heap.Push(&f.due, e)
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *Fleet) put(i *providerv1.Instance) {
	f.instances[i.GetProviderId()] = i
	f.changed(i.GetProviderId())
}

func (f *Fleet) remove(i *providerv1.Instance) {
	delete(f.instances, i.GetProviderId())
	delete(f.byToken, i.GetRequestToken())
	delete(f.orders, i.GetProviderId())
	for _, a := range i.GetAddresses() {
		if ip, err := netip.ParseAddr(a.GetAddress()); err == nil {
			delete(f.addresses, ip)
		}
	}
	f.changed(i.GetProviderId())
}

// address gives out the next free address, in turn, so that one is not given again soon; the lock is held.
func (f *Fleet) address() (netip.Addr, error) {
	for begin := f.next; ; {
		f.next = f.next.Next()
		if !f.cfg.Network.Contains(f.next) {
			f.next = f.cfg.Network.Masked().Addr()
		}
		if !f.addresses[f.next] && f.next != f.cfg.Network.Masked().Addr() {
			f.addresses[f.next] = true
			return f.next, nil
		}
		if f.next == begin {
			return netip.Addr{}, ErrFull
		}
	}
}

// entry is something that will happen to an instance: a volume is detached, it comes to a state, or it is gone if both
// are empty.
type entry struct {
	at                time.Time
	id, state, volume string
}

// queue is a heap of entries, the earliest first.
type queue []entry

func (q queue) Len() int           { return len(q) }
func (q queue) Less(a, b int) bool { return q[a].at.Before(q[b].at) }
func (q queue) Swap(a, b int)      { q[a], q[b] = q[b], q[a] }
func (q *queue) Push(e any)        { *q = append(*q, e.(entry)) }
func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}
