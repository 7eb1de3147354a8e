package server

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/node-configurator/plan"
)

// Source is a copy of a kind that orders depend on.
type Source[T object.Object] interface {
	Subscribe(func(resource.Change[T]))
	filled
}

type filled interface{ WaitSynced(context.Context) error }

// Marker sets marks on nodes.
type Marker interface {
	// Node returns a node as its owner has it now.
	Node(ctx context.Context, name string) (*nodev1.Node, error)
	Change(ctx context.Context, node string, f func(*nodev1.Node) plan.Marks) error
	// Emptied returns nil if the drain of a node for its configuration has succeeded and is not over, as its owner has it
	// now.
	Emptied(ctx context.Context, node string) error
}

// Permits is the guardian of the quorum, as far as a restart needs it.
type Permits interface {
	// Acquire returns nil if the voter of a control-plane node, if it has one, may go down now.
	Acquire(ctx context.Context, node string) error
	// Release gives the permit of a node's machine back, if this service took it.
	Release(ctx context.Context, node string) error
}

// Agent serves ConfigAgentService: each agent speaks for its own node alone.
type Agent struct {
	configv1.UnimplementedConfigAgentServiceServer
	views   Views
	marks   Marker
	sources []filled
	permits Permits
	log     *slog.Logger

	mu      sync.Mutex
	streams map[string]map[chan struct{}]bool // by node; each channel holds one token: something changed
}

// NewAgent returns the ConfigAgentService over the copies of nodes, drains, machine configurations, their pools
// and settings.
func NewAgent(views Views, marks Marker, nodes Source[*nodev1.Node], drains Source[*nodev1.Drain],
	configs Source[*configv1.MachineConfig], pools Source[*configv1.MachineConfigPool],
	settings Source[*configv1.MachineConfiguration], permits Permits, log *slog.Logger,
) *Agent {
	a := &Agent{
		views: views, marks: marks, sources: []filled{nodes, drains, configs, pools, settings}, permits: permits, log: log,
		streams: map[string]map[chan struct{}]bool{},
	}
	nodes.Subscribe(func(ch resource.Change[*nodev1.Node]) { a.wake(ch.Key.Name) })
	drains.Subscribe(func(ch resource.Change[*nodev1.Drain]) {
		a.wake(strings.TrimPrefix(ch.Key.Name, plan.DrainPrefix))
	})
	configs.Subscribe(func(ch resource.Change[*configv1.MachineConfig]) {
		if plan.IsRendered(ch.Key.Name) {
			a.wakeAll()
		}
	})
	pools.Subscribe(func(ch resource.Change[*configv1.MachineConfigPool]) {
		if ch.Deleted || !proto.Equal(ch.Previous.GetSpec(), ch.Object.GetSpec()) {
			a.wakeAll() // it may be paused, or say something else about drift
		}
	})
	settings.Subscribe(func(ch resource.Change[*configv1.MachineConfiguration]) {
		if ch.Deleted || !proto.Equal(ch.Previous.GetSpec(), ch.Object.GetSpec()) {
			a.wakeAll()
		}
	})
	return a
}

func (s *Agent) wake(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	nudge(s.streams[node])
}

func (s *Agent) wakeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.streams {
		nudge(of)
	}
}

func nudge(streams map[chan struct{}]bool) {
	for c := range streams {
		select {
		case c <- struct{}{}:
		default: // it has a token already and will see everything
		}
	}
}

func (s *Agent) listen(node string) (woken <-chan struct{}, leave func()) {
	c := make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams[node] == nil {
		s.streams[node] = map[chan struct{}]bool{}
	}
	s.streams[node][c] = true
	return c, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.streams[node], c)
		if len(s.streams[node]) == 0 {
			delete(s.streams, node)
		}
	}
}

// speaksFor refuses a caller that is not the agent of a node, by a certificate of the machine that the node is of now.
// A node that registered a moment ago may not be in the copy yet, so a refusal comes from its owner.
func (s *Agent) speaksFor(ctx context.Context, name string) error {
	if node := s.views.Node(name).Node; node != nil && identity.AgentOf(ctx, name, node.GetMetadata()) == nil {
		return nil
	}
	if err := identity.NamedAgentOf(ctx, name); err != nil {
		return err
	}
	node, err := s.marks.Node(ctx, name)
	if err != nil && rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		return err
	}
	return identity.AgentOf(ctx, name, node.GetMetadata())
}

// FollowConfig sends what the agent of a node is ordered, at once and whenever that changes.
func (s *Agent) FollowConfig(r *configv1.FollowConfigRequest,
	stream grpc.ServerStreamingServer[configv1.FollowConfigResponse],
) error {
	ctx, node := stream.Context(), r.GetNodeName()
	if err := s.speaksFor(ctx, node); err != nil {
		return err
	}
	for _, source := range s.sources {
		if err := source.WaitSynced(ctx); err != nil {
			return err
		}
	}
	woken, leave := s.listen(node)
	defer leave()
	var sent *plan.Order
	owed := true // an earlier process may have died between acquiring the permit and giving it back
	for {
		p := s.follow(ctx, node, r.GetRenewsServices(), sent, owed)
		for _, a := range p.Do {
			switch a.Verb {
			case plan.ReleasePermit:
				err := s.giveBack(ctx, node)
				if owed = err != nil; owed {
					s.log.InfoContext(ctx, "permit is not given back", "node", node, "error", err)
				}
			case plan.SendOrder:
				if err := stream.Send(&configv1.FollowConfigResponse{
					MachineConfig: a.Order.Config, Apply: a.Order.Apply, Reboot: a.Order.Reboot, Services: a.Order.Services,
					Repairs: a.Order.Repairs, CurrentConfig: proto.String(a.Order.From),
				}); err != nil {
					return err
				}
				sent = &a.Order
			}
		}
		var again <-chan time.Time
		if !p.Wake.IsZero() {
			again = time.After(time.Until(p.Wake))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-woken:
		case <-again:
		}
	}
}

// follow decides about the agent of a node, and again with the permit if it is needed.
func (s *Agent) follow(ctx context.Context, node string, renews bool, sent *plan.Order, owed bool) plan.Plan {
	v := plan.FollowView{
		NodeView: s.views.Node(node), Now: time.Now().UTC(), Renews: renews, Sent: sent, Owed: owed,
	}
	p := plan.Follow(v)
	if !p.Asks(plan.AcquirePermit) {
		return p
	}
	v.Permit = plan.Answer{Code: plan.Granted}
	if err := s.mayRestart(ctx, node); err != nil {
		s.log.InfoContext(ctx, "restart waits", "node", node, "error", err)
		v.Permit = plan.Answer{Code: plan.Refused, Why: status.Convert(err).Message()}
	}
	v.Now = time.Now().UTC()
	return plan.Follow(v)
}

// mayRestart asks for the permit of a control-plane node once more, right before it is ordered to restart: its drain
// got it a while ago, and another voter may have died since. The drain gives it back when it ends. So it is asked for
// only while there is a drain; what is taken from a drain that ended at that moment is for giveBack.
func (s *Agent) mayRestart(ctx context.Context, node string) error {
	if err := s.marks.Emptied(ctx, node); err != nil {
		return err
	}
	err := s.permits.Acquire(ctx, node) // without an answer it may have been taken all the same
	return errors.Join(err, s.marks.Emptied(ctx, node))
}

// giveBack gives back the permit that this service took for a node without a drain which would do it. The agent may be
// gone.
func (s *Agent) giveBack(ctx context.Context, node string) error {
	ctx = context.WithoutCancel(ctx)
	switch err := s.marks.Emptied(ctx, node); status.Code(err) {
	case codes.OK:
		return nil
	case codes.NotFound, codes.Unknown: // it has none, or one that has yet to ask for itself
		return s.permits.Release(ctx, node)
	default:
		return err
	}
}

// ReportConfig notes on the node what its agent says of it.
func (s *Agent) ReportConfig(ctx context.Context, r *configv1.ReportConfigRequest) (*configv1.ReportConfigResponse,
	error,
) {
	if err := s.speaksFor(ctx, r.GetNodeName()); err != nil {
		return nil, err
	}
	if err := identity.BeforeChange(ctx); err != nil {
		return nil, err
	}
	var noted plan.Marks
	err := s.marks.Change(ctx, r.GetNodeName(), func(n *nodev1.Node) plan.Marks {
		noted = plan.Reported(n, r)
		return noted
	})
	if err != nil {
		return nil, err
	}
	if state := noted[plan.State]; state != "" {
		s.log.InfoContext(ctx, "node reported", "node", r.GetNodeName(), "state", state, "config", r.GetCurrentConfig(),
			"reason", noted[plan.Reason])
	}
	return &configv1.ReportConfigResponse{}, nil
}
