package proxy

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

// HostPorts leads what arrives at ports of a machine to the pods on it that have them. Make it with Proxy.HostPorts;
// its methods may be called concurrently.
type HostPorts struct {
	flows *limits
	log   *slog.Logger

	mu      sync.Mutex
	running context.Context // of Run; nil while it does not run
	pods    map[string]map[portName]*port
}

// HostPorts returns the ports of a machine, none yet. They and the services of p have their connections and files
// together: one process serves both.
func (p *Proxy) HostPorts() *HostPorts {
	return &HostPorts{flows: p.flows, log: p.cfg.Log, pods: map[string]map[portName]*port{}}
}

// Set has the ports of a machine lead to a pod, and others no longer. notify is called, from any goroutine, when it has
// changed whether a port listens: with the reason why it does not, or with an empty one.
func (h *HostPorts) Set(pod string, ports []plan.HostPort, notify func(port plan.HostPort, why string)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	wanted := map[portName]plan.HostPort{}
	for _, p := range ports {
		wanted[portName{p.Protocol, p.Machine}] = p
	}
	var ending []*port
	for name, o := range h.pods[pod] {
		if _, ok := wanted[name]; !ok {
			ending = append(ending, o)
			delete(h.pods[pod], name)
		}
	}
	if h.running != nil {
		endPorts(ending)
	}
	for name, p := range wanted {
		o := h.pods[pod][name]
		if o == nil {
			o = newPort("pod "+pod, name, h.flows, rand.Uint(), h.log)
			o.notify = func(why string) { notify(p, why) }
			if h.pods[pod] == nil {
				h.pods[pod] = map[portName]*port{}
			}
			h.pods[pod][name] = o
			if h.running != nil {
				defer o.begin(h.running) // once it has an endpoint
			}
		}
		o.aim(target{endpoints: []plan.Endpoint{{Pod: pod, Address: p.Pod, Serving: true}}})
	}
	if len(h.pods[pod]) == 0 {
		delete(h.pods, pod)
	}
}

// Run leads connections until ctx ends.
func (h *HostPorts) Run(ctx context.Context) error {
	h.mu.Lock()
	h.running = ctx
	for _, ports := range h.pods {
		for _, o := range ports {
			o.begin(ctx)
		}
	}
	h.mu.Unlock()
	<-ctx.Done()
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []*port
	for _, ports := range h.pods {
		all = slices.AppendSeq(all, maps.Values(ports))
	}
	clear(h.pods)
	endPorts(all)
	h.running = nil
	return nil
}
