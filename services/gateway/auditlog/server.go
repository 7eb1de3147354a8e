// Package auditlog reads the audit logs of all hosts: those of its own host from the disk, and those of the others
// through their gateways. It sends records as they were written, holds a bounded part of them, and says what is
// missing.
package auditlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	auditv1 "github.com/windlass-dev/windlass/gen/windlass/audit/v1"
	"github.com/windlass-dev/windlass/kit/audit"
	"github.com/windlass-dev/windlass/kit/discovery"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/topology"
)

const (
	// most calls of users are answered at once, and mostPeers of other gateways. Each kind has slots of its own: two
	// gateways that ask each other must not refuse one another.
	most      = 4
	mostPeers = 4 * most
	again     = 5 * time.Second
	// patience is how long another gateway may be silent. It sends something every aliveEvery.
	patience = 10 * time.Second
	// unconfirmed is how old the list of hosts may be.
	unconfirmed = 30 * time.Second
)

// resource is what a caller needs the right to get.
var resource = identity.Attributes{Verb: "get", Group: "windlass.dev", Resource: "auditlogs"}

// Config is what a Server works with.
type Config struct {
	Policy   *identity.Policy
	Trail    *audit.Trail
	Host     string                // of this gateway; empty if there are no others
	Dirs     []string              // in which, and in whose directories, the logs of this host are
	Programs []string              // those that have a log on this host
	View     func() discovery.View // used with Host only
	Dial     func(address string) (*grpc.ClientConn, error)
}

// Server implements audit.v1.AuditService.
type Server struct {
	auditv1.UnimplementedAuditServiceServer
	config   Config
	users    chan struct{}
	peers    chan struct{}
	patience time.Duration // how long another gateway may be silent
}

// New returns a server.
func New(config Config) *Server {
	return &Server{
		config: config, users: make(chan struct{}, most), peers: make(chan struct{}, mostPeers), patience: patience,
	}
}

// ReadAuditLogs sends the records of all hosts, or of this one.
func (s *Server) ReadAuditLogs(q *auditv1.ReadAuditLogsRequest,
	stream grpc.ServerStreamingServer[auditv1.ReadAuditLogsResponse],
) error {
	ctx := stream.Context()
	caller, _ := identity.CallerFrom(ctx)
	// A gateway can act as every user (docs/security.md), so it needs no right of its own to ask for another one.
	peer := q.GetLocal() && caller.User == identity.ServiceUser(topology.Gateway)
	if !peer {
		if err := s.allow(caller); err != nil {
			s.config.Trail.Refused(record(caller, err))
			return err
		}
	}
	slots := s.users
	if peer {
		slots = s.peers
	}
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	default:
		return rpcerr.TooMany(fmt.Sprintf("%d calls read the audit logs already", cap(slots)), again)
	}
	s.config.Trail.Read(record(caller, nil))
	to := func(m *auditv1.ReadAuditLogsResponse) error {
		if !peer {
			if err := s.allow(caller); err != nil { // the policy may have changed since the call began
				return err
			}
		}
		return stream.Send(m)
	}
	here := host{name: s.config.Host, dirs: s.config.Dirs, programs: s.config.Programs}
	if q.GetLocal() {
		return ended(ctx, here.read(ctx, q, to))
	}
	sources, missing := s.sources(here, q)
	if len(missing) > 0 {
		if err := to(&auditv1.ReadAuditLogsResponse{Missing: missing}); err != nil {
			return err
		}
	}
	return ended(ctx, merge(ctx, sources, to))
}

// ended is the status of a call. Of one that the caller ended, other errors only follow from that.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return rpcerr.From(ctx.Err())
	}
	return err
}

func (s *Server) allow(caller identity.Caller) error {
	_, err := s.config.Policy.Require(caller, resource)
	return err
}

// record is the record of a call, in the logs that it reads.
func record(caller identity.Caller, refusal error) audit.Record {
	r := audit.Record{
		Time: time.Now().UTC(), RequestID: caller.RequestID, User: caller.User, Groups: caller.Groups,
		Source: caller.Source, Service: topology.Gateway, Method: auditv1.AuditService_ReadAuditLogs_FullMethodName,
		Verb: resource.Verb, Group: resource.Group, Resource: resource.Resource,
	}
	if refusal != nil {
		r.Reason, r.Code = status.Convert(refusal).Message(), status.Code(refusal).String()
	}
	return r
}

// sources returns where the records of the hosts come from, and the hosts of which it is known that theirs are missing.
func (s *Server) sources(here host, q *auditv1.ReadAuditLogsRequest) (sources []source,
	missing []*auditv1.MissingAuditLog,
) {
	lacks := func(host, reason string) {
		missing = append(missing, &auditv1.MissingAuditLog{Host: host, Reason: reason})
	}
	selected := func(host string) bool {
		return len(q.GetHosts()) == 0 || slices.Contains(q.GetHosts(), host)
	}
	if selected(here.name) {
		sources = append(sources, source{here.name, func(ctx context.Context, to send) error {
			return here.read(ctx, q, to)
		}})
	}
	known := []string{here.name}
	if here.name != "" {
		view := s.config.View()
		if now := time.Now(); now.Sub(view.Confirmed) > unconfirmed {
			lacks("", "this gateway cannot read etcd, so it may not know all hosts")
		}
		gateways := view.Gateways()
		for _, name := range view.Hosts() {
			if name == here.name {
				continue
			}
			known = append(known, name)
			at, has := gateways[name]
			switch {
			case !selected(name):
			case !has:
				lacks(name, "no gateway runs there")
			default:
				sources = append(sources, source{name, func(ctx context.Context, to send) error {
					return s.ask(ctx, at, q, to)
				}})
			}
		}
	}
	for _, name := range q.GetHosts() {
		if !slices.Contains(known, name) {
			lacks(name, "there is no such host of the control plane")
		}
	}
	return sources, missing
}

// ask sends what the gateway of another host sends.
func (s *Server) ask(ctx context.Context, at discovery.Endpoint, q *auditv1.ReadAuditLogsRequest, to send) error {
	conn, err := s.config.Dial(at.Address)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(s.patience, func() { cancel(errSilent) })
	defer silent.Stop()
	local := proto.CloneOf(q)
	local.Local, local.Hosts = true, nil
	stream, err := auditv1.NewAuditServiceClient(conn).ReadAuditLogs(ctx, local)
	if err != nil {
		return reason(ctx, at, err)
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return reason(ctx, at, err)
		}
		silent.Stop() // while this side is busy
		for _, r := range m.GetRecords() {
			r.Host = at.Host // whatever that gateway says
		}
		for _, lack := range m.GetMissing() {
			lack.Host = at.Host
		}
		if err := to(m); err != nil {
			return err
		}
		silent.Reset(s.patience)
	}
}

var errSilent = errors.New("it sends nothing")

// reason says why a host's records are missing.
func reason(ctx context.Context, at discovery.Endpoint, err error) error {
	code := status.Code(err)
	switch err = errors.New(status.Convert(err).Message()); {
	case errors.Is(context.Cause(ctx), errSilent):
		err = errSilent
	case code != codes.Unavailable && code != codes.DeadlineExceeded && code != codes.Canceled:
		return fmt.Errorf("its gateway refuses (%s): %w", code, err)
	}
	if !at.Gone.IsZero() {
		return fmt.Errorf("it does not answer since %s: %w", at.Gone.UTC().Format(time.RFC3339), err)
	}
	return fmt.Errorf("it does not answer: %w", err)
}
