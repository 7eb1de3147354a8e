// Package server answers the calls of QuorumService: it checks the request, asks the controller's last observation or
// its records, and holds no rules of its own.
package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	kitstore "github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/services/etcd-guardian/controller"
	"github.com/windlass-dev/windlass/services/etcd-guardian/peers"
	"github.com/windlass-dev/windlass/services/etcd-guardian/plan"
	"github.com/windlass-dev/windlass/services/etcd-guardian/store"
)

// Server serves QuorumService.
type Server struct {
	etcdv1.UnimplementedQuorumServiceServer
	Controller *controller.Controller
	Records    *store.Records
	Signer     *peers.Signer
	Snapshots  *controller.Snapshots
	Now        func() time.Time
}

// GetQuorum returns what was observed last, at most about a second ago; it answers also while etcd does not.
func (s *Server) GetQuorum(context.Context, *etcdv1.GetQuorumRequest) (*etcdv1.Quorum, error) {
	o, _ := s.Controller.Last()
	return o.Quorum, nil
}

// WatchQuorum sends the quorum, and again when something in it changed that is not just a measurement.
func (s *Server) WatchQuorum(_ *etcdv1.WatchQuorumRequest,
	stream grpc.ServerStreamingServer[etcdv1.WatchQuorumResponse],
) error {
	var sent *etcdv1.Quorum
	for {
		o, changed := s.Controller.Last()
		if essence := essenceOf(o.Quorum); !proto.Equal(sent, essence) {
			if err := stream.Send(&etcdv1.WatchQuorumResponse{Quorum: o.Quorum}); err != nil {
				return err
			}
			sent = essence
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// essenceOf leaves out what differs at every look. How far a learner is stays: people wait for it.
func essenceOf(q *etcdv1.Quorum) *etcdv1.Quorum {
	q = proto.CloneOf(q)
	q.ObserveTime = nil
	learning := false
	for _, m := range q.GetMembers() {
		learning = learning || m.GetLearner()
	}
	for _, m := range q.GetMembers() {
		m.LatencyUs, m.DbSizeBytes, m.DbSizeInUseBytes, m.Revision = 0, 0, 0, 0
		if !learning {
			m.AppliedIndex = 0
		}
	}
	return q
}

// What a plan request may give: a plan compares members and machines with each other.
const (
	maxObjects = 10_000 // machines, nodes, snapshots or schedules
	maxMembers = 100    // members or offers; etcd recommends at most 7 members
)

// count is how many of something a request gives.
type count struct {
	path string
	n    int
	most int
}

// bounded returns an error if there are too many of something.
func bounded(counts ...count) error {
	var bad []object.Fault
	for _, c := range counts {
		if c.n > c.most {
			bad = append(bad, object.Faultf(c.path, "has %d items, at most %d can be planned for", c.n, c.most))
		}
	}
	if len(bad) > 0 {
		return rpcerr.Invalid(bad...)
	}
	return nil
}

// PlanQuorum runs the plan on the quorum in the request, or on the live one.
func (s *Server) PlanQuorum(_ context.Context, r *etcdv1.PlanQuorumRequest) (*etcdv1.PlanQuorumResponse, error) {
	if err := bounded(count{"quorum.members", len(r.GetQuorum().GetMembers()), maxMembers},
		count{"quorum.endpoints", len(r.GetQuorum().GetEndpoints()), maxMembers},
		count{"offers", len(r.GetOffers()), maxMembers}, count{"machines.items", len(r.GetMachines().GetItems()), maxObjects},
		count{"nodes.items", len(r.GetNodes().GetItems()), maxObjects}); err != nil {
		return nil, err
	}
	if r.GetQuorum() != nil {
		v := plan.GivenBy(r).View()
		return plan.Next(v).Answer(v, proto.CloneOf(r.GetQuorum())), nil
	}
	o, _ := s.Controller.Last()
	v, p := o.View, o.Plan
	if r.GetMachines() != nil {
		v.Machines, v.MachinesKnown = plan.Machines(r.GetMachines().GetItems()), true
	}
	if r.GetNodes() != nil {
		v.Nodes, v.NodesKnown = plan.NodeNames(r.GetNodes().GetItems()), true
	}
	if r.GetRollOut() != "" {
		v.RollOut = r.GetRollOut()
	}
	if r.GetMachines() != nil || r.GetNodes() != nil || r.GetRollOut() != "" {
		p = plan.Next(v)
	}
	return p.Answer(v, proto.CloneOf(o.Quorum)), nil
}

// PlanMaintenance runs the plan of databases and snapshots on what is in the request, or on the live cluster.
func (s *Server) PlanMaintenance(ctx context.Context, r *etcdv1.PlanMaintenanceRequest) (
	*etcdv1.PlanMaintenanceResponse, error,
) {
	if err := bounded(count{"quorum.members", len(r.GetQuorum().GetMembers()), maxMembers},
		count{"machines.items", len(r.GetMachines().GetItems()), maxObjects},
		count{"snapshots.items", len(r.GetSnapshots().GetItems()), maxObjects},
		count{"schedules.items", len(r.GetSchedules().GetItems()), maxObjects}); err != nil {
		return nil, err
	}
	return plan.Maintenance(plan.GivenMaintenance(r, s.Snapshots.View(ctx))), nil
}

// AcquireDisruptionPermit gives the permit, decided on an observation made after the call came in.
func (s *Server) AcquireDisruptionPermit(ctx context.Context, r *etcdv1.AcquireDisruptionPermitRequest) (
	*etcdv1.DisruptionPermit, error,
) {
	caller, _ := identity.CallerFrom(ctx)
	for {
		o, err := s.Controller.Refresh(ctx)
		if err != nil {
			return nil, err
		}
		machine, err := find(o.View, r.GetMachine())
		if err != nil {
			return nil, err
		}
		p := &etcdv1.DisruptionPermit{
			Machine: machine.Reference(), Reason: r.GetReason(), Holder: caller.User, AcquireTime: timestamppb.New(s.Now()),
			Held: true,
		}
		d := plan.Disrupt(o.View, machine)
		switch {
		case d.Needless:
			p.Held, p.AcquireTime = false, nil
			return p, nil
		case d.Reason == metav1.ErrorReason_ERROR_REASON_HELD_BY_OTHER:
			return nil, rpcerr.HeldByOther("the disruption permit", d.Why)
		case d.Withdraw:
			if err := s.Records.Free(ctx, *o.Permit); err != nil && !lost(err) {
				return nil, err
			}
			s.Controller.Wake()
			return nil, rpcerr.Precondition(d.Reason, "machine "+machine.Name, d.Why+"; the permit was withdrawn, ask again")
		case d.Why != "":
			return nil, rpcerr.Precondition(d.Reason, "machine "+machine.Name, d.Why)
		case o.Permit != nil && !o.Permit.Released:
			return o.Permit.Message, nil
		}
		if o.Permit != nil { // the same machine's work of before; the new work has it from now on
			if err := s.Records.Free(ctx, *o.Permit); err != nil && !lost(err) {
				return nil, err
			}
		}
		if err := s.Records.Acquire(ctx, p); err == nil {
			s.Controller.Wake()
			return p, nil
		} else if !lost(err) {
			return nil, err
		}
	}
}

// lost reports whether another writer was first, so that everything has to be read again.
func lost(err error) bool {
	return errors.Is(err, kitstore.ErrExists) || errors.Is(err, kitstore.ErrConflict) ||
		errors.Is(err, kitstore.ErrNotFound)
}

// ReleaseDisruptionPermit notes that the work is done; without a permit for that machine there is nothing to do.
func (s *Server) ReleaseDisruptionPermit(ctx context.Context, r *etcdv1.ReleaseDisruptionPermitRequest) (
	*etcdv1.ReleaseDisruptionPermitResponse, error,
) {
	caller, _ := identity.CallerFrom(ctx)
	for {
		o, err := s.Controller.Refresh(ctx)
		if err != nil {
			return nil, err
		}
		if !o.View.Fresh {
			return nil, rpcerr.Unavailable("no majority of etcd answers: " + o.View.Trouble)
		}
		if o.Permit == nil || o.Permit.Released || !means(o.View, r.GetMachine(), o.Permit.Message.GetMachine()) {
			return &etcdv1.ReleaseDisruptionPermitResponse{}, nil
		}
		holder := o.Permit.Message.GetHolder()
		if only := r.GetHolder(); only != "" && only != holder {
			return &etcdv1.ReleaseDisruptionPermitResponse{}, nil
		}
		// A permit is for a machine: a service that asked again after it was withdrawn holds it for the one that gives it
		// back.
		if caller.User != holder && !caller.In(identity.GroupMasters) && !caller.In(identity.GroupServices) {
			return nil, rpcerr.Forbidden(fmt.Sprintf("the disruption permit is held by %s", holder))
		}
		err = s.Records.Release(ctx, *o.Permit)
		if err == nil {
			s.Controller.Wake()
			return &etcdv1.ReleaseDisruptionPermitResponse{}, nil
		}
		if !lost(err) {
			return nil, err
		}
	}
}

// means reports whether what the caller names is the machine of the permit, which may be gone by now.
func means(v plan.View, asked, held *metav1.ObjectReference) bool {
	if m, err := find(v, asked); err == nil {
		return m.UID == held.GetUid()
	}
	return asked.GetUid() != "" && asked.GetUid() == held.GetUid() || asked.GetUid() == "" &&
		asked.GetName() == held.GetName()
}

// find returns the control-plane machine that a reference means: by uid, by namespace and name, or by its node. A
// machine that is none of the control plane has no voter.
func find(v plan.View, ref *metav1.ObjectReference) (plan.Machine, error) {
	if !v.MachinesKnown {
		return plan.Machine{}, rpcerr.Unavailable("machine-api has not said yet which machines there are")
	}
	for _, m := range v.Machines {
		switch {
		case ref.GetKind() == "Node":
			if ref.GetName() == m.Node {
				return m, nil
			}
		case ref.GetUid() != "":
			if ref.GetUid() == m.UID {
				return m, nil
			}
		case ref.GetName() == m.Name && (ref.GetNamespace() == "" || ref.GetNamespace() == m.Namespace):
			return m, nil
		}
	}
	if ref.GetName() == "" && ref.GetUid() == "" {
		return plan.Machine{}, rpcerr.Invalid(object.Fault{Path: "machine", Description: "must have a uid or a name"})
	}
	return plan.Machine{Namespace: ref.GetNamespace(), Name: ref.GetName(), UID: ref.GetUid(), Node: ref.GetName()}, nil
}
