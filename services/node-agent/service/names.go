package service

import (
	"context"
	"net"
	"net/netip"
	"sync"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/services/node-agent/dns"
	"github.com/windlass-dev/windlass/services/node-agent/pods"
	"github.com/windlass-dev/windlass/services/node-agent/proxy"
	"github.com/windlass-dev/windlass/services/node-agent/stream"
)

// namesFile is what the host resolves names by.
const namesFile = "/etc/resolv.conf"

// resolve gives up the server of names where pods cannot be led to it.
func (i *instance) resolve(ctx context.Context) {
	if !i.cfg.dns.IsValid() {
		return
	}
	err := pods.CanResolve()
	if err == nil {
		err = dns.Free(ctx, i.namesAddress())
	}
	if err != nil {
		i.log.InfoContext(ctx, "pods resolve names as their host does", "reason", err)
		i.cfg.dns = netip.Addr{}
	}
}

// namesAddress is where the server of names listens.
func (i *instance) namesAddress() string { return net.JoinHostPort(i.cfg.dns.String(), "53") }

// answerNames answers the names of services until ctx ends. While its address cannot be had, it is tried again.
func (i *instance) answerNames(ctx context.Context, services *proxy.Proxy) error {
	if !i.cfg.dns.IsValid() {
		<-ctx.Done()
		return nil
	}
	names := &names{of: services}
	return stream.Again(ctx, i.log, "names of services", nil, func(ctx context.Context) error {
		return dns.Run(ctx, dns.Config{
			Address: i.namesAddress(), Services: names.now, Log: i.log,
			Others: func() ([]string, error) { return dns.ServersIn(namesFile) },
		})
	})
}

// names are the services by their names, made once for each change of them.
type names struct {
	of *proxy.Proxy

	mu   sync.Mutex
	from []*schedulingv1.ServiceEndpoints
	made dns.Services
}

// now returns the services as of now, and whether there are no others; nil as long as they are not known.
func (n *names) now() (services dns.Services, all bool) {
	known, current := n.of.Known()
	if !known {
		return nil, false
	}
	list := n.of.Services()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.made != nil && len(list) == len(n.from) && (len(list) == 0 || &list[0] == &n.from[0]) {
		return n.made, current
	}
	n.from, n.made = list, make(dns.Services, len(list))
	for _, s := range list {
		n.made[s.GetNamespace()+"/"+s.GetName()] = s
	}
	return n.made, current
}
