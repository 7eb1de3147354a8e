package controller

import (
	"context"
	"log/slog"
	"sync"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/informer"
	"github.com/windlass-dev/windlass/kit/resource"
	"google.golang.org/grpc"
)

// Pods is a copy of all pods that are bound to nodes, found by their node. Its messages are shared: nobody may modify them.
// All methods may be called concurrently.
type Pods struct {
	cache *informer.Informer[*schedulingv1.Pod]

	mu          sync.RWMutex
	byNode      map[string]map[resource.Key]struct{}
	nodeOf      map[resource.Key]string
	subscribers []func(pod resource.Key, node string, gone bool)
}

// NewPods returns a copy of the pods of a scheduler. Nothing is read before Run.
func NewPods(scheduler grpc.ClientConnInterface, log *slog.Logger) (*Pods, error) {
	pods, err := informer.New[*schedulingv1.Pod](scheduler, log)
	if err != nil {
		return nil, err
	}
	p := &Pods{cache: pods, byNode: map[string]map[resource.Key]struct{}{}, nodeOf: map[resource.Key]string{}}
	pods.Subscribe(p.changed)
	return p, nil
}

// Run keeps the copy in step until ctx ends.
func (p *Pods) Run(ctx context.Context) error { return p.cache.Run(ctx) }

// WaitSynced waits until the scheduler has said which pods there are, or ctx ends.
func (p *Pods) WaitSynced(ctx context.Context) error { return p.cache.WaitSynced(ctx) }

// Known reports whether the scheduler has said which pods there are.
func (p *Pods) Known() bool {
	select {
	case <-p.cache.Synced():
		return true
	default:
		return false
	}
}

// On returns the pods of a node, in any order.
func (p *Pods) On(node string) []*schedulingv1.Pod {
	p.mu.RLock()
	keys := make([]resource.Key, 0, len(p.byNode[node]))
	for k := range p.byNode[node] {
		keys = append(keys, k)
	}
	p.mu.RUnlock()
	out := make([]*schedulingv1.Pod, 0, len(keys))
	for _, k := range keys {
		if pod, ok := p.cache.Lookup(k.Namespace, k.Name); ok && pod.GetSpec().GetNodeName() == node {
			out = append(out, pod)
		}
	}
	return out
}

// Subscribe has f called with each pod of a node that changes, and with the node; gone says that the pod is there no more.
// Call it before Run. f must return at once.
func (p *Pods) Subscribe(f func(pod resource.Key, node string, gone bool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.subscribers = append(p.subscribers, f)
}

func (p *Pods) changed(k resource.Key) {
	pod, ok := p.cache.Lookup(k.Namespace, k.Name)
	is := pod.GetSpec().GetNodeName()
	p.mu.Lock()
	was := p.nodeOf[k]
	if was != is {
		p.move(k, was, is)
	}
	subscribers := p.subscribers
	p.mu.Unlock()
	for _, f := range subscribers {
		if was != "" && was != is {
			f(k, was, !ok)
		}
		if is != "" {
			f(k, is, false)
		}
	}
}

// move puts a pod under another node; empty names mean none. The lock is held.
func (p *Pods) move(k resource.Key, was, is string) {
	delete(p.byNode[was], k)
	if len(p.byNode[was]) == 0 {
		delete(p.byNode, was)
	}
	if is == "" {
		delete(p.nodeOf, k)
		return
	}
	if p.byNode[is] == nil {
		p.byNode[is] = map[resource.Key]struct{}{}
	}
	p.byNode[is][k] = struct{}{}
	p.nodeOf[k] = is
}
