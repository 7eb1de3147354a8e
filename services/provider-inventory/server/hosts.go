package server

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"

	"github.com/windlass-dev/windlass/services/provider-inventory/plan"
	"github.com/windlass-dev/windlass/services/provider-inventory/records"
)

// gatewaysEvery is how soon an agent gets gateways that have changed.
const gatewaysEvery = 5 * time.Second

// retryAgent is when an agent that sent too much may come again.
const retryAgent = 10 * time.Second

// mostHosts is how many hosts a plan request may give.
const mostHosts = 1000

// Hosts serves what HostService has beyond the standard methods.
type Hosts struct {
	hostv1.UnimplementedHostServiceServer
	Config
}

// NewHosts returns the custom methods of HostService.
func NewHosts(cfg Config) *Hosts { return &Hosts{Config: cfg} }

// RegisterHost creates a host, or returns the one that was registered before.
func (s *Hosts) RegisterHost(ctx context.Context, r *hostv1.RegisterHostRequest) (*hostv1.Host, error) {
	h := &hostv1.Host{
		Metadata: &metav1.ObjectMeta{Name: r.GetName(), Labels: r.GetLabels()},
		Spec:     &hostv1.HostSpec{Roles: r.GetRoles(), Zone: r.GetZone(), Address: r.GetAddress()},
		Status:   plan.New(s.Now().UTC()),
	}
	if err := s.Expect(ctx, r.GetName()); err != nil {
		return nil, err
	}
	out, err := s.Records.Hosts.Create(ctx, h)
	if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
		return out, err
	}
	have, getErr := s.Records.Hosts.Get(ctx, "", r.GetName())
	if getErr != nil {
		return nil, err // of the creation, as when another host has the address
	}
	is := have.GetSpec()
	if slices.Equal(is.GetRoles(), r.GetRoles()) && is.GetZone() == r.GetZone() && is.GetAddress() == r.GetAddress() {
		return have, nil
	}
	return nil, err
}

// CordonHost makes a host unschedulable.
func (s *Hosts) CordonHost(ctx context.Context, r *hostv1.CordonHostRequest) (*hostv1.Host, error) {
	h, changed, err := s.schedulable(ctx, r.GetName(), true, r.GetReason())
	if err == nil && changed {
		s.event(ctx, h, events.Normal, "HostCordoned", "No machine claims the host", r.GetReason())
	}
	return h, err
}

// UncordonHost makes a host schedulable again.
func (s *Hosts) UncordonHost(ctx context.Context, r *hostv1.UncordonHostRequest) (*hostv1.Host, error) {
	h, changed, err := s.schedulable(ctx, r.GetName(), false, "")
	if err == nil && changed {
		s.event(ctx, h, events.Normal, "HostUncordoned", "Machines may claim the host again", "")
	}
	return h, err
}

// event records what the caller did to a host, and why.
func (s *Hosts) event(ctx context.Context, h *hostv1.Host, typ, reason, effect, why string) {
	caller, _ := identity.CallerFrom(ctx)
	text := fmt.Sprintf("%s, by order of user %q", effect, caller.User)
	if why != "" {
		text += ": " + why
	}
	s.Events.Event(h, typ, reason, text)
}

// schedulable returns the host, and whether that changed it.
func (s *Hosts) schedulable(ctx context.Context, name string, not bool, reason string) (out *hostv1.Host, changed bool,
	err error,
) {
	out, err = s.Records.Hosts.Modify(ctx, object.Key{Name: name}, func(h *hostv1.Host) error {
		changed = h.GetSpec().GetUnschedulable() != not || h.GetSpec().GetUnschedulableReason() != reason
		h.Spec.Unschedulable, h.Spec.UnschedulableReason = not, reason
		return nil
	})
	return out, changed, err
}

// FenceHost notes that a Lost host is off. Its machine has no instance any more.
func (s *Hosts) FenceHost(ctx context.Context, r *hostv1.FenceHostRequest) (*hostv1.Host, error) {
	caller, _ := identity.CallerFrom(ctx)
	ctx, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	h, err := s.Records.Change(ctx, r.GetName(), r.GetUid(), func(h *hostv1.Host) (records.Change, error) {
		now := s.Now().UTC()
		status, err := plan.Fence(h, s.answered(r.GetName()), caller.User, r.GetReason(), now)
		if err != nil {
			return records.Change{}, statusOf(err)
		}
		c := records.Change{Status: status, Further: []store.Op{records.DropBootstrap(r.GetName())}}
		if token := h.GetStatus().GetRequestToken(); token != "" {
			c.Further = append(c.Further, records.Use(token, now))
		}
		return c, nil
	})
	if err == nil {
		s.event(ctx, h, events.Warning, "HostFenced", "The host counts as off, and its machine has no instance any more",
			r.GetReason())
	}
	return h, err
}

// answered reports whether the agent of a host sent a message lately, or attends. Of a Lost one, a message that is
// older than Silence is from before it was lost.
func (s *Hosts) answered(name string) bool {
	last, _ := s.Agents.Of(name)
	return !last.IsZero() && s.Now().Sub(last) < s.Silence
}

// RemoveHost removes a host that no machine has.
func (s *Hosts) RemoveHost(ctx context.Context, r *hostv1.RemoveHostRequest) (*hostv1.Host, error) {
	ctx, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	removed, err := records.Again(func() (*hostv1.Host, error) {
		h, err := s.Records.Hosts.Get(ctx, "", r.GetName())
		if err != nil {
			return nil, err
		}
		if err := plan.Removable(h); err != nil {
			return nil, statusOf(err)
		}
		m := h.GetMetadata()
		return s.Records.Hosts.Delete(ctx, "", r.GetName(), &metav1.Preconditions{
			Uid: cmp.Or(r.GetUid(), m.GetUid()), ResourceVersion: m.GetResourceVersion(),
		}, resource.WriteOptions{Own: true})
	})
	if err != nil {
		return nil, err
	}
	if err := s.Forget(ctx, r.GetName()); err != nil {
		return nil, rpcerr.Unavailable(fmt.Sprintf(
			"host %s was removed, but all services expect it for a week yet: register and remove it again", r.GetName()))
	}
	return removed, nil
}

// PlanHosts returns which host a machine would claim.
func (s *Hosts) PlanHosts(ctx context.Context, r *hostv1.PlanHostsRequest) (*hostv1.PlanHostsResponse, error) {
	ask, faults := parse(r.GetProviderSpec(), r.GetRole(), "providerSpec.")
	if n := len(r.GetHosts().GetItems()); n > mostHosts {
		faults = append(faults, object.Faultf("hosts.items", "has %d hosts, at most %d can be planned for", n, mostHosts))
	}
	if len(faults) > 0 {
		return nil, rpcerr.Invalid(faults...)
	}
	hosts := r.GetHosts().GetItems()
	if r.GetHosts() == nil {
		if err := s.Records.Hosts.CatchUp(ctx); err != nil {
			return nil, err
		}
		hosts = s.Records.Hosts.All()
	}
	c := plan.Choose(ask, hosts)
	actions, held := c.Steps()
	return &hostv1.PlanHostsResponse{Actions: actions, HeldBack: held, WaitsFor: c.WaitsFor()}, nil
}

// AttendHost takes in the messages of a host's agent and sends it the orders for its host.
func (s *Hosts) AttendHost(stream grpc.BidiStreamingServer[hostv1.AttendHostRequest, hostv1.AttendHostResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	ctx, name := stream.Context(), first.GetName()
	ctx, h, err := s.itself(ctx, name)
	if err != nil {
		return err
	}
	uid := h.GetMetadata().GetUid()
	if first.GetFacts() == nil { // they say which machine's files the host has
		return rpcerr.Invalid(object.Fault{Path: "facts", Description: "is required in the first message"})
	}
	s.Agents.Received(name) // before it is stored that the host is no longer Lost
	if err := s.received(ctx, uid, first); err != nil {
		return err
	}
	visit, ok := s.Agents.Join(name)
	if !ok {
		return notLeading()
	}
	defer visit.Leave()
	gateways := s.Gateways()
	if err := stream.Send(&hostv1.AttendHostResponse{Gateways: gateways}); err != nil {
		return err
	}
	received := make(chan error, 1) // the goroutine ends with the stream
	go func() {
		for {
			m, err := stream.Recv()
			if err == nil {
				s.Agents.Received(name)
				err = s.received(ctx, uid, m)
			}
			if err != nil {
				received <- err
				return
			}
		}
	}()
	again := time.NewTicker(gatewaysEvery)
	defer again.Stop()
	for {
		select {
		case err := <-received:
			return err
		case <-again.C:
			if now := s.Gateways(); !slices.Equal(now, gateways) {
				if err := stream.Send(&hostv1.AttendHostResponse{Gateways: now}); err != nil {
					return err
				}
				gateways = now
			}
		case <-visit.Over():
			return notLeading()
		case <-visit.Ousted():
			return rpcerr.Conflict("Host", name, "its agent attends on a newer stream")
		case <-visit.Wake():
			if o := visit.Take(); o != nil {
				if err := stream.Send(&hostv1.AttendHostResponse{Order: o}); err != nil {
					return err
				}
			}
		}
	}
}

// received stores what a message of an agent changes of its host. A heartbeat changes nothing unless the host is Lost.
func (s *Hosts) received(ctx context.Context, uid string, m *hostv1.AttendHostRequest) error {
	name := m.GetName()
	h, ok := s.Records.Hosts.Lookup("", name)
	if !ok || h.GetMetadata().GetUid() != uid {
		return rpcerr.NotFound("Host", name)
	}
	speaks := m.GetFacts() != nil || m.GetReport() != nil
	if !speaks && h.GetStatus().GetPhase() != plan.Lost {
		return nil
	}
	if speaks && !s.Agents.Stores(name) {
		return rpcerr.TooMany(fmt.Sprintf("the agent of host %q sends facts and reports too often", name), retryAgent)
	}
	_, err := s.Records.Change(ctx, name, uid, func(h *hostv1.Host) (records.Change, error) {
		c := records.Change{Status: plan.Received(h, m, s.Now().UTC())}
		if proto.Equal(c.Status, h.GetStatus()) {
			return records.Change{}, nil
		}
		if c.Status.GetPhase() == plan.InUse {
			c.Further = []store.Op{records.DropBootstrap(name)}
		}
		return c, nil
	})
	return err
}
