package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/grpc"

	"github.com/windlass-dev/windlass/services/eviction-controller/kinds"
	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// Agent serves NodeAgentService: each agent speaks for its own node alone.
type Agent struct {
	nodev1.UnimplementedNodeAgentServiceServer
	tables  *kinds.Tables
	heard   Listener
	permits Permits
	log     *slog.Logger
	waits   sync.Map // by node, why its reboot waits, as it was logged
}

// NewAgent returns the NodeAgentService.
func NewAgent(tables *kinds.Tables, heard Listener, permits Permits, log *slog.Logger) *Agent {
	return &Agent{tables: tables, heard: heard, permits: permits, log: log}
}

// speaksFor refuses a caller that is not the agent of a node.
func speaksFor(ctx context.Context, node string) error {
	caller, _ := identity.CallerFrom(ctx)
	if own, ok := caller.Node(); !ok || own != node {
		return rpcerr.Forbidden(fmt.Sprintf("%s does not speak for node %q: only the node's own agent does", who(caller), node))
	}
	return nil
}

func who(c identity.Caller) string {
	if c.User == "" {
		return "an unknown caller"
	}
	return fmt.Sprintf("%q", c.User)
}

// RegisterNode makes a node known, or brings what its agent knows up to date.
func (s *Agent) RegisterNode(ctx context.Context, r *nodev1.RegisterNodeRequest) (*nodev1.Node, error) {
	if err := speaksFor(ctx, r.GetName()); err != nil {
		return nil, err
	}
	if foreign := plan.ForeignLabels(r); len(foreign) > 0 {
		return nil, rpcerr.Forbidden("an agent may not set the labels " + strings.Join(foreign, ", "))
	}
	if m := r.GetMachine().GetName(); m != "" && m != r.GetName() {
		return nil, rpcerr.Forbidden(fmt.Sprintf("node %q is not of machine %q: both have the same name", r.GetName(), m))
	}
	if err := identity.BeforeChange(ctx); err != nil {
		return nil, err
	}
	for {
		node, err := s.tables.Nodes.Modify(kinds.Own(ctx), resource.Key{Name: r.GetName()}, func(node *nodev1.Node) error {
			next := plan.Registered(node, r, time.Now().UTC())
			node.Metadata, node.Spec, node.Status = next.Metadata, next.Spec, next.Status
			return nil
		})
		if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
			return node, err
		}
		node, err = s.tables.Nodes.Create(kinds.Own(ctx), plan.Registered(nil, r, time.Now().UTC()))
		if err == nil {
			s.log.InfoContext(ctx, "node registered", "node", r.GetName())
		}
		if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
			return node, err
		}
	}
}

// Heartbeat listens to an agent until its stream ends. Each message is answered, so that the agent knows that it was heard.
func (s *Agent) Heartbeat(stream grpc.BidiStreamingServer[nodev1.HeartbeatRequest, nodev1.HeartbeatResponse]) error {
	for {
		beat, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		answer, err := s.beat(stream.Context(), beat)
		if err != nil {
			return err
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}

func (s *Agent) beat(ctx context.Context, r *nodev1.HeartbeatRequest) (*nodev1.HeartbeatResponse, error) {
	if err := speaksFor(ctx, r.GetName()); err != nil {
		return nil, err
	}
	if !synced(s.tables) {
		return nil, rpcerr.Unavailable("this process is starting and does not know the nodes yet")
	}
	node, ok := s.tables.Nodes.Lookup("", r.GetName())
	if !ok {
		return nil, rpcerr.NotFound("Node", r.GetName()) // it was deleted, or never registered: the agent registers
	}
	if !s.heard.Beat(r) {
		return nil, rpcerr.Unavailable("this process does not listen to agents now: another one leads")
	}
	if boot := r.GetBootId(); boot != "" && node.GetMetadata().GetAnnotations()[plan.RebootOf] == boot {
		if s.mayGoDown(ctx, node) {
			return &nodev1.HeartbeatResponse{Command: "Reboot", BootId: boot}, nil
		}
	}
	return &nodev1.HeartbeatResponse{}, nil
}

// mayGoDown asks for the permit of a control-plane node once more, right before its agent is told to restart it: another voter may have died since
// the reboot was requested. While the permit is refused, each heartbeat asks again.
func (s *Agent) mayGoDown(ctx context.Context, node *nodev1.Node) bool {
	if !plan.ControlPlane(node) {
		return true
	}
	name := node.GetMetadata().GetName()
	_, err := s.permits.Acquire(ctx, plan.MachineOfNode(name), "reboot")
	if err == nil {
		s.waits.Delete(name)
		return true
	}
	if said, ok := s.waits.Swap(name, err.Error()); !ok || said != err.Error() {
		s.log.InfoContext(ctx, "reboot waits for the disruption permit", "node", name, "error", err)
	}
	return false
}

func synced(t *kinds.Tables) bool {
	select {
	case <-t.Nodes.Synced():
		return true
	default:
		return false
	}
}
