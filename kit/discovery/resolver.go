package discovery

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/attributes"
	"google.golang.org/grpc/resolver"
)

// Schemes of gRPC targets, such as "nearest:///scheduler".
const (
	nearest = "nearest" // any process of the service, by View.Nearest
	leader  = "leader"  // the one that leads it
)

// Target is the gRPC target of the nearest process of a service, with the option Resolve.
func Target(service string) string { return nearest + ":///" + service }

// Resolve returns the options of a gRPC client that resolve Target for a process on host. Each address demands a
// certificate of its own host. A service of which none is known any more keeps its last addresses: it may be back
// there.
func (d *Directory) Resolve(host string) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithResolvers(
			builder{d, nearest, func(v View, service string) (out []place) {
				list := v.Nearest(service, host)
				for _, e := range list {
					// Only those that serve, if any does: calls go to each that is listed.
					if e.Ready == list[0].Ready {
						out = append(out, place{e.Address, e.distance(host)})
					}
				}
				return out
			}},
			builder{d, leader, func(v View, service string) []place {
				if address := v.Leaders[service]; address != "" {
					return []place{{address: address}}
				}
				return nil
			}}),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"` + byDistance + `": {}}]}`),
	}
}

type builder struct {
	directory *Directory
	scheme    string
	places    func(v View, service string) []place
}

// place is an address, and how far it is from the caller.
type place struct {
	address  string
	distance uint32
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
	var last []place
	stop := b.directory.Subscribe(func(v View) {
		places := b.places(v, service)
		if len(places) == 0 && len(last) == 0 {
			cc.ReportError(fmt.Errorf("no process of %s is known", service))
			return
		}
		if len(places) == 0 || slices.Equal(places, last) {
			return
		}
		last = places
		state := resolver.State{}
		for _, p := range places {
			if name, _, err := net.SplitHostPort(p.address); err == nil {
				state.Addresses = append(state.Addresses, resolver.Address{
					Addr: p.address, ServerName: name, Attributes: attributes.New(distanceKey{}, p.distance),
				})
			}
		}
		_ = cc.UpdateState(state) // what does not suit the balancer is an error of the calls
	})
	return follower{stop}, nil
}

// follower is a resolver that says changes by itself.
type follower struct{ stop func() }

func (follower) ResolveNow(resolver.ResolveNowOptions) {}

func (f follower) Close() { f.stop() }
