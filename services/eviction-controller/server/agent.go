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

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/nodeid"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/services/eviction-controller/kinds"
	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// Agent serves NodeAgentService: each agent reports only about its own node.
type Agent struct {
	nodev1.UnimplementedNodeAgentServiceServer
	tables   *kinds.Tables
	listener Listener
	permits  Permits
	machines Machines
	log      *slog.Logger
	waits    sync.Map // by node, the logged reason why its reboot waits
}

// Listener receives the heartbeats of agents.
type Listener interface {
	// Beat records a heartbeat. It reports false if this process is not the leader.
	Beat(beat *nodev1.HeartbeatRequest) bool
}

// Machines is machine-api, the owner of machines.
type Machines interface {
	GetMachine(ctx context.Context, r *machinev1.GetMachineRequest, opts ...grpc.CallOption) (*machinev1.Machine, error)
}

// machinePatience is the timeout of one request to machine-api, which answers after one read.
const machinePatience = 3 * time.Second

// NewAgent returns the NodeAgentService.
func NewAgent(tables *kinds.Tables, listener Listener, permits Permits, machines Machines, log *slog.Logger) *Agent {
	return &Agent{tables: tables, listener: listener, permits: permits, machines: machines, log: log}
}

// RegisterNode creates a node, or updates what its agent reports. Only the agent of an existing machine may register a
// node.
func (s *Agent) RegisterNode(ctx context.Context, r *nodev1.RegisterNodeRequest) (*nodev1.Node, error) {
	if err := identity.NamedAgentOf(ctx, r.GetName()); err != nil {
		return nil, err
	}
	if foreign := plan.ForeignLabels(r); len(foreign) > 0 {
		return nil, rpcerr.Forbidden("an agent may not set the labels " + strings.Join(foreign, ", "))
	}
	if m := r.GetMachine().GetName(); m != "" && m != r.GetName() {
		return nil, rpcerr.Forbidden(fmt.Sprintf("node %q does not belong to machine %q: both must have the same name",
			r.GetName(), m))
	}
	caller, _ := identity.CallerFrom(ctx)
	for {
		old, err := s.tables.Nodes.Get(ctx, "", r.GetName())
		if err != nil && rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
			return nil, err
		}
		was := old.GetMetadata().GetAnnotations()[nodeid.MachineUID]
		var m *machinev1.Machine
		if was != caller.UID {
			if m, err = s.machineOf(ctx, r, caller.UID); err != nil {
				return nil, err
			}
		}
		if err := identity.BeforeChange(ctx); err != nil {
			return nil, err
		}
		node, err := s.register(ctx, old, was == "" || was == caller.UID, r, m)
		switch rpcerr.Reason(err) {
		case metav1.ErrorReason_ERROR_REASON_NOT_FOUND, metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS,
			metav1.ErrorReason_ERROR_REASON_CONFLICT:
			continue // another process wrote first
		}
		return node, err
	}
}

// machineOf reads the machine of an agent from machine-api, not from a cache: it may have just been created or deleted.
func (s *Agent) machineOf(ctx context.Context, r *nodev1.RegisterNodeRequest, uid string) (*machinev1.Machine, error) {
	ctx, cancel := context.WithTimeout(ctx, machinePatience)
	defer cancel()
	m, err := s.machines.GetMachine(ctx, &machinev1.GetMachineRequest{
		Namespace: r.GetMachine().GetNamespace(),
		Name:      r.GetName(),
	})
	if err != nil && rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		return nil, rpcerr.Unavailable("machine-api, the owner of the node's machine, does not answer: " +
			status.Convert(err).Message())
	}
	if fault := plan.RegistrationFault(uid, m); fault != "" {
		return nil, rpcerr.Forbidden(fmt.Sprintf("node %q may not register: %s", r.GetName(), fault))
	}
	return m, nil
}

// register writes a node from its agent's registration. A node of a previous machine with that name is deleted first,
// together with its pods.
func (s *Agent) register(ctx context.Context, old *nodev1.Node, same bool, r *nodev1.RegisterNodeRequest,
	m *machinev1.Machine,
) (*nodev1.Node, error) {
	own := resource.WriteOptions{Own: true}
	if old != nil && same {
		next := plan.Registered(old, r, m, time.Now().UTC())
		return s.tables.Nodes.Modify(ctx, object.Key{Name: r.GetName()}, func(node *nodev1.Node) error {
			if node.GetMetadata().GetResourceVersion() != old.GetMetadata().GetResourceVersion() {
				return rpcerr.Conflict("Node", r.GetName(), "")
			}
			node.Metadata, node.Spec, node.Status = next.Metadata, next.Spec, next.Status
			return nil
		}, own)
	}
	if old != nil {
		left, err := s.tables.Nodes.Delete(ctx, "", r.GetName(), &metav1.Preconditions{Uid: old.GetMetadata().GetUid()},
			own)
		if err != nil {
			return nil, err
		}
		if f := left.GetMetadata().GetFinalizers(); len(f) > 0 {
			return nil,
				rpcerr.Unavailable(fmt.Sprintf("the node of the previous machine %s still exists: it waits for %s to be removed",
					r.GetName(), strings.Join(f, ", ")))
		}
	}
	node, err := s.tables.Nodes.Create(ctx, plan.Registered(nil, r, m, time.Now().UTC()), own)
	if err == nil {
		s.log.InfoContext(ctx, "node registered", "node", r.GetName())
	}
	return node, err
}

// Heartbeat receives an agent's heartbeats until its stream ends. Each is acknowledged.
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
	if err := identity.NamedAgentOf(ctx, r.GetName()); err != nil {
		return nil, err
	}
	if !s.tables.Nodes.IsSynced() {
		return nil, rpcerr.Unavailable("this process is starting and has not read the nodes yet")
	}
	node, ok := s.tables.Nodes.Lookup("", r.GetName())
	if !ok || node.GetMetadata().GetAnnotations()[nodeid.MachineUID] == "" {
		return nil, rpcerr.NotFound("Node", r.GetName()) // it was deleted or never registered: the agent must register it
	}
	if err := identity.AgentOf(ctx, r.GetName(), node.GetMetadata()); err != nil {
		return nil, err
	}
	if !s.listener.Beat(r) {
		return nil, rpcerr.Unavailable("this process is not the leader and accepts no heartbeats")
	}
	if s.reboots(ctx, plan.RebootView{Now: time.Now().UTC(), Node: node, Boot: r.GetBootId()}) {
		return &nodev1.HeartbeatResponse{Command: "Reboot", BootId: r.GetBootId()}, nil
	}
	return &nodev1.HeartbeatResponse{}, nil
}

// reboots reports whether the agent is ordered to restart its node. While the permit is refused, each heartbeat
// requests it again.
func (s *Agent) reboots(ctx context.Context, v plan.RebootView) bool {
	p := plan.Reboot(v)
	if p.Asks(plan.AcquirePermit) {
		v.Permit.Code = plan.Granted
		if _, err := s.permits.Acquire(ctx, p.Ask[0].Machine, "reboot"); err != nil {
			v.Permit = plan.Answer{Code: plan.Refused, Why: err.Error()}
		}
		p = plan.Reboot(v)
	}
	name := v.Node.GetMetadata().GetName()
	if p.WaitsFor == "" {
		s.waits.Delete(name)
	} else if logged, ok := s.waits.Swap(name, p.WaitsFor); !ok || logged != p.WaitsFor {
		s.log.InfoContext(ctx, "reboot waits for the disruption permit", "node", name, "error", p.WaitsFor)
	}
	return p.Does(plan.RebootNode)
}
