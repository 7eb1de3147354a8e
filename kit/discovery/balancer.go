package discovery

import (
	"cmp"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/resolver"
)

// byDistance is the balancer of the targets of this package: connections to all addresses are kept, and each call takes
// the nearest that is there. pick_first, gRPC's own, stays where it is while that address is listed, so a call would
// pass over two hosts long after the process of its own is back.
const byDistance = "windlass_by_distance"

func init() {
	balancer.Register(base.NewBalancerBuilder(byDistance, choice{}, base.Config{}))
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
		if nearest == nil || cmp.Or(cmp.Compare(distance(i.Address), distance(at)), cmp.Compare(i.Address.Addr, at.Addr)) < 0 {
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
