package discovery

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
)

// Schemes of gRPC targets, such as "nearest:///scheduler".
const (
	nearest = "nearest" // any process of the service, by View.Nearest
	leader  = "leader"  // the one that leads it
)

// Target is the gRPC target of the nearest process of a service, with the option Resolve.
func Target(service string) string { return nearest + ":///" + service }

// Resolve returns the option of a gRPC client that resolves Target for a process on host.
func (d *Directory) Resolve(host string) grpc.DialOption {
	return grpc.WithResolvers(d.resolvers(host)...)
}

// resolvers returns what resolves the targets of both schemes for a process on host. Each address demands a certificate
// of its own host. A service of which none is known any more keeps its last addresses: it may be back there.
func (d *Directory) resolvers(host string) []resolver.Builder {
	return []resolver.Builder{
		builder{d, nearest, func(v View, service string) (out []string) {
			list := v.Nearest(service, host)
			for _, e := range list {
				// Only those that serve, if any does: a connection may stay at each that is listed.
				if e.Ready == list[0].Ready {
					out = append(out, e.Address)
				}
			}
			return out
		}},
		builder{d, leader, func(v View, service string) []string {
			if address := v.Leaders[service]; address != "" {
				return []string{address}
			}
			return nil
		}},
	}
}

type builder struct {
	directory *Directory
	scheme    string
	addresses func(v View, service string) []string
}

func (b builder) Scheme() string { return b.scheme }

// Build implements resolver.Builder.
func (b builder) Build(target resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver,
	error,
) {
	service := target.Endpoint()
	if service == "" {
		return nil, errors.New("the target names no service")
	}
	var last []string
	stop := b.directory.Subscribe(func(v View) {
		addresses := b.addresses(v, service)
		if len(addresses) == 0 && len(last) == 0 {
			cc.ReportError(fmt.Errorf("no process of %s is known", service))
			return
		}
		if len(addresses) == 0 || slices.Equal(addresses, last) {
			return
		}
		// A connection stays where it is while its address is listed: where another address comes first now, that is listed
		// alone for a moment. Calls that are under way are finished on the former connection.
		if len(last) > 0 && last[0] != addresses[0] {
			update(cc, addresses[:1])
		}
		last = addresses
		update(cc, addresses)
	})
	return follower{stop}, nil
}

// update gives a client its addresses. What does not suit the balancer is an error of the calls.
func update(cc resolver.ClientConn, addresses []string) {
	state := resolver.State{}
	for _, a := range addresses {
		if name, _, err := net.SplitHostPort(a); err == nil {
			state.Addresses = append(state.Addresses, resolver.Address{Addr: a, ServerName: name})
		}
	}
	_ = cc.UpdateState(state)
}

// follower is a resolver that says changes by itself.
type follower struct{ stop func() }

func (follower) ResolveNow(resolver.ResolveNowOptions) {}

func (f follower) Close() { f.stop() }
