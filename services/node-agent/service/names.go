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
func (i *instance) resolve() {
	if !i.cfg.dns.IsValid() {
		return
	}
	if err := pods.CanResolve(); err != nil {
		i.log.Info("pods resolve names as their host does", "reason", err)
		i.cfg.dns = netip.Addr{}
	}
}

// answerNames answers the names of services until ctx ends. While its address cannot be had, it is tried again.
func (i *instance) answerNames(ctx context.Context, services *proxy.Proxy) error {
	if !i.cfg.dns.IsValid() {
		<-ctx.Done()
		return nil
	}
	names := &names{of: services}
	return stream.Again(ctx, i.log, "names of services", nil, func(ctx context.Context) error {
		return dns.Run(ctx, dns.Config{
			Address: net.JoinHostPort(i.cfg.dns.String(), "53"), Services: names.current, Log: i.log,
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

// current returns the services as of now; nil as long as they are not known.
func (n *names) current() dns.Services {
	if !n.of.Known() {
		return nil
	}
	list := n.of.Services()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.made != nil && len(list) == len(n.from) && (len(list) == 0 || &list[0] == &n.from[0]) {
		return n.made
	}
	n.from, n.made = list, make(dns.Services, len(list))
	for _, s := range list {
		n.made[s.GetNamespace()+"/"+s.GetName()] = s
	}
	return n.made
}
