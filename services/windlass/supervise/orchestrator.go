package supervise

import (
	"context"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	programv1 "github.com/windlass-dev/windlass/gen/windlass/program/v1"
	"github.com/windlass-dev/windlass/kit/dial"
	"github.com/windlass-dev/windlass/kit/topology"
)

const (
	// anyOrchestrator is the scheme and the name of the connection to the update-orchestrators of all hosts.
	anyOrchestrator = "orchestrators"
	// avoided is how long an update-orchestrator that did not do what it was asked is not the first.
	avoided = 30 * time.Second
)

// orchestrators are the update-orchestrators that are asked, where the control plane is on hosts: that of this host
// first, and another one while it does not answer or refuses. It may be the very program to be repaired.
type orchestrators struct {
	places    *manual.Resolver
	addresses []string // that it has
	first     int      // of those that the host knows
	until     time.Time
}

// avoid has another one asked first for a while, if an error is of the kind that another one may not have.
func (u *orchestrators) avoid(err error) {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Unauthenticated, codes.PermissionDenied:
		u.first, u.until = u.first+1, time.Now().Add(avoided)
	}
}

// follow takes in the addresses that the host knows, its own first.
func (u *orchestrators) follow(known []string) {
	if time.Now().After(u.until) {
		u.first = 0
	}
	at := u.first % len(known)
	addresses := slices.Concat(known[at:], known[:at])
	if slices.Equal(addresses, u.addresses) {
		return
	}
	// A connection stays where it is while its address is listed: another first one is listed alone for a moment.
	if len(u.addresses) > 0 && u.addresses[0] != addresses[0] {
		u.places.UpdateState(stateOf(addresses[:1]))
	}
	u.places.UpdateState(stateOf(addresses))
	u.addresses = addresses
}

// stateOf lists addresses, each of which must show a certificate of its own host.
func stateOf(addresses []string) (s resolver.State) {
	for _, a := range addresses {
		if host, _, err := net.SplitHostPort(a); err == nil {
			s.Addresses = append(s.Addresses, resolver.Address{Addr: a, ServerName: host})
		}
	}
	return s
}

// orchestrator returns the connection over which update-orchestrator is asked.
func (ps *programs) orchestrator() (*grpc.ClientConn, error) {
	if ps.cluster.Member == nil {
		return ps.conn(topology.UpdateOrchestrator)
	}
	ps.updates.follow(ps.cluster.AddressesOf(topology.UpdateOrchestrator))
	if c := ps.conns[anyOrchestrator]; c != nil {
		return c, nil
	}
	creds, err := ps.cluster.SupervisorFiles().ServiceCredentials(topology.UpdateOrchestrator)
	if err != nil {
		return nil, err
	}
	c, err := connect(anyOrchestrator+":///"+topology.UpdateOrchestrator, creds, grpc.WithResolvers(ps.updates.places))
	if err == nil {
		ps.conns[anyOrchestrator] = c
	}
	return c, err
}

func connect(target string, creds credentials.TransportCredentials, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient(target, append(append(dial.Sibling(callLimit), grpc.WithTransportCredentials(creds)),
		more...)...)
}

// wanted returns the programs that the cluster has.
func (ps *programs) wanted(ctx context.Context) (map[string]*programv1.Program, error) {
	conn, err := ps.orchestrator()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	list, err := programv1.NewProgramServiceClient(conn).ListPrograms(ctx, &programv1.ListProgramsRequest{})
	if err != nil {
		return nil, err
	}
	out := map[string]*programv1.Program{}
	for _, p := range list.GetItems() {
		out[p.GetMetadata().GetName()] = p
	}
	return out, nil
}

// again reads a program once more.
func (ps *programs) again(ctx context.Context, o *programv1.Program) (*programv1.Program, error) {
	conn, err := ps.orchestrator()
	if err != nil {
		return o, err
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	now, err := programv1.NewProgramServiceClient(conn).GetProgram(ctx,
		&programv1.GetProgramRequest{Name: o.GetMetadata().GetName()})
	if err != nil {
		return o, err
	}
	return now, nil
}
