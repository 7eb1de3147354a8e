package discovery

import (
	"cmp"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"
)

// byDistance is the balancer of the targets of this package: connections to all addresses are kept, and each call takes
// the nearest that is there. pick_first, gRPC's own, stays where it is while that address is listed, so a call would
// pass over two hosts long after the process of its own is back.
const byDistance = "windlass_by_distance"

func init() {
	balancer.Register(builderByDistance{base.NewBalancerBuilder(byDistance, choice{}, base.Config{})})
}

type builderByDistance struct{ balancer.Builder }

// Build implements balancer.Builder.
func (b builderByDistance) Build(cc balancer.ClientConn, options balancer.BuildOptions) balancer.Balancer {
	return b.Builder.Build(patient{cc}, options)
}

// patient has calls wait while a first connection to new addresses is made. The base balancer would have them fail with
// the error of the former addresses.
type patient struct{ balancer.ClientConn }

func (p patient) UpdateState(s balancer.State) {
	if s.ConnectivityState == connectivity.Connecting {
		s.Picker = base.NewErrPicker(balancer.ErrNoSubConnAvailable)
	}
	p.ClientConn.UpdateState(s)
}

type distanceKey struct{}

func distance(a resolver.Address) uint32 {
	n, _ := a.Attributes.Value(distanceKey{}).(uint32)
	return n
}

// choice implements base.PickerBuilder.
type choice struct{}

func (choice) Build(info base.PickerBuildInfo) balancer.Picker {
	var nearest balancer.SubConn
	var at resolver.Address
	for conn, i := range info.ReadySCs {
		if nearest == nil || cmp.Or(cmp.Compare(distance(i.Address), distance(at)),
			cmp.Compare(i.Address.Addr, at.Addr)) < 0 {
			nearest, at = conn, i.Address
		}
	}
	if nearest == nil {
		return base.NewErrPicker(balancer.ErrNoSubConnAvailable)
	}
	return picked{nearest}
}

type picked struct{ conn balancer.SubConn }

func (p picked) Pick(balancer.PickInfo) (balancer.PickResult, error) {
	return balancer.PickResult{SubConn: p.conn}, nil
}
