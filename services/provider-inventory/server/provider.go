// Package server answers the calls of machine-api, of users, and of the agents of hosts.
package server

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/ledger"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"

	"github.com/windlass-dev/windlass/services/provider-inventory/attend"
	"github.com/windlass-dev/windlass/services/provider-inventory/kinds"
	"github.com/windlass-dev/windlass/services/provider-inventory/plan"
	"github.com/windlass-dev/windlass/services/provider-inventory/records"
)

// maxToken is the longest request token; it is part of a key in etcd. A uid has 36 bytes.
const maxToken = 256

// Config is what the server works with; nothing in it may be nil.
type Config struct {
	Cluster  string // name of the cluster, part of the provider ids
	Host     string // of this process; empty where services do not find each other in etcd
	Records  *records.Records
	Agents   *attend.Registry
	Silence  time.Duration // of an agent, after which its host is Lost
	Events   events.Sink
	Now      func() time.Time
	Gateways func() []string // endpoints of the cluster's gateways
	// Forget and Expect say to all services that a host was removed, and that one of its name is registered.
	Forget, Expect func(ctx context.Context, host string) error
	Log            *slog.Logger
}

// Provider implements provider.v1.ProviderService. Only the leader answers about instances: its answer that there is
// none must be right.
type Provider struct {
	providerv1.UnimplementedProviderServiceServer
	Config
	waiting waiting
}

// NewProvider returns the server of machine-api's calls.
func NewProvider(cfg Config) *Provider { return &Provider{Config: cfg} }

// GetProviderInfo says what the inventory provider is.
func (s *Provider) GetProviderInfo(context.Context, *providerv1.GetProviderInfoRequest) (
	*providerv1.GetProviderInfoResponse, error,
) {
	return &providerv1.GetProviderInfoResponse{
		Name: "inventory", Platform: "Inventory", ProviderSpecKinds: []string{specKind},
		FailureDomainFields: map[string]string{"zone": "zone"}, TokenRetention: durationpb.New(ledger.Retention),
	}, nil
}

// ValidateProviderSpec says what is wrong with a provider spec.
func (s *Provider) ValidateProviderSpec(_ context.Context, r *providerv1.ValidateProviderSpecRequest) (
	*providerv1.ValidateProviderSpecResponse, error,
) {
	if _, faults := parse(r.GetProviderSpec(), "", ""); len(faults) > 0 {
		return nil, rpcerr.Invalid(faults...)
	}
	return &providerv1.ValidateProviderSpecResponse{}, nil
}

// current returns a context whose writes are fenced, once the table has all that was stored before the call.
func (s *Config) current(ctx context.Context) (context.Context, error) {
	ctx, ok := s.Agents.Fenced(ctx)
	if !ok {
		return ctx, notLeading()
	}
	return ctx, s.Records.Hosts.CatchUp(ctx)
}

// CreateInstance has the machine claim a host, or returns the one that it claimed by the same request token.
func (s *Provider) CreateInstance(ctx context.Context, r *providerv1.CreateInstanceRequest) (*providerv1.Instance,
	error,
) {
	ask, faults := parse(r.GetProviderSpec(), r.GetBootstrap().GetRole(), "providerSpec.")
	if len(r.GetRequestToken()) > maxToken {
		faults = append(faults, object.Faultf("requestToken", "must have at most %d bytes", maxToken))
	}
	if r.GetMachine().GetUid() == "" {
		faults = append(faults, object.Fault{Path: "machine.uid", Description: "must be given"})
	}
	if len(faults) > 0 {
		return nil, rpcerr.Invalid(faults...)
	}
	return records.Again(func() (*providerv1.Instance, error) { return s.create(ctx, r, ask) })
}

func (s *Provider) create(ctx context.Context, r *providerv1.CreateInstanceRequest, ask plan.Ask) (*providerv1.Instance,
	error,
) {
	token := r.GetRequestToken()
	fence, err := s.admit(ctx, r.GetFence(), token)
	if err != nil {
		return nil, err
	}
	if ctx, err = s.current(ctx); err != nil {
		return nil, err
	}
	used := refused(token, "the request token's instance was deleted")
	if h := s.find("", token); h != nil {
		i := plan.Instance(h)
		if i.GetState() == deleting {
			return nil, used
		}
		return i, s.Records.Raise(ctx, fence, r.GetFence())
	}
	if is, err := s.Records.Used(ctx, token); err != nil {
		return nil, err
	} else if is {
		return nil, used
	}
	choice := plan.Choose(ask, s.Records.Hosts.All())
	if choice.Host == nil {
		return nil, rpcerr.TooMany(choice.WaitsFor(), s.waiting.add(token, s.Now()))
	}
	s.waiting.remove(token)
	h, err := s.claim(ctx, choice.Host, r, fence)
	return plan.Instance(h), err
}

// claim stores the claim of a host and what its machine joins with.
func (s *Provider) claim(ctx context.Context, h *hostv1.Host, r *providerv1.CreateInstanceRequest,
	fence records.Fence,
) (*hostv1.Host, error) {
	name, b := h.GetMetadata().GetName(), r.GetBootstrap()
	keep, err := records.KeepBootstrap(name, &hostv1.HostBootstrap{
		Endpoints: b.GetEndpoints(), Token: b.GetToken(), Role: b.GetRole(),
	})
	if err != nil {
		return nil, err
	}
	status := plan.Claim(h, plan.Claimant{
		Machine: r.GetMachine(), Token: r.GetRequestToken(), Fence: r.GetFence(),
		ProviderID: fmt.Sprintf("inventory://%s/%s/%s", s.Cluster, name, r.GetMachine().GetUid()),
	}, s.Now().UTC())
	return s.Records.Replace(ctx, h, records.Change{
		Status: status, Further: []store.Op{keep, fence.Raised(r.GetFence())},
	})
}

// admit refuses a call of a caller that no longer leads.
func (s *Provider) admit(ctx context.Context, fence int64, subject string) (records.Fence, error) {
	f, err := s.Records.Fence(ctx)
	if err == nil && fence < f.Highest {
		err = refused(subject, fmt.Sprintf("the caller no longer leads: its fence %d is lower than %d", fence, f.Highest))
	}
	return f, err
}

// deleting is the state of an instance whose host is being wiped.
const deleting = "Deleting"

// find returns the host of the instance with a provider id, with a request token, or with both; nil without one.
func (s *Provider) find(id, token string) *hostv1.Host {
	index, value := kinds.ByToken, token
	if id != "" {
		index, value = kinds.ByProviderID, id
	}
	if value == "" {
		return nil
	}
	for _, h := range s.Records.Hosts.ByIndex(index, value) {
		if token == "" || h.GetStatus().GetRequestToken() == token {
			return h
		}
	}
	return nil
}

// GetInstance returns the instance of a machine as it is stored.
func (s *Provider) GetInstance(ctx context.Context, r *providerv1.GetInstanceRequest) (*providerv1.Instance, error) {
	if _, err := s.current(ctx); err != nil {
		return nil, err
	}
	h := s.find(r.GetProviderId(), r.GetRequestToken())
	if names := s.Records.Unreadable(); h == nil && len(names) > 0 {
		return nil, rpcerr.Unavailable("a host whose record cannot be read may have the machine: " +
			strings.Join(names, ", "))
	}
	if h == nil {
		return nil, rpcerr.NotFound("instance", cmp.Or(r.GetProviderId(), r.GetRequestToken()))
	}
	return plan.Instance(h), nil
}

// ListInstances returns the instances of all machines.
func (s *Provider) ListInstances(ctx context.Context, _ *providerv1.ListInstancesRequest) (
	*providerv1.ListInstancesResponse, error,
) {
	if _, err := s.current(ctx); err != nil {
		return nil, err
	}
	out := &providerv1.ListInstancesResponse{}
	for h := range s.Records.Hosts.Objects() {
		if i := plan.Instance(h); i != nil {
			out.Instances = append(out.Instances, i)
		}
	}
	slices.SortFunc(out.Instances, func(a, b *providerv1.Instance) int {
		return cmp.Compare(a.GetProviderId(), b.GetProviderId())
	})
	return out, nil
}

// DeleteInstance has the host of a machine wiped, and uses the request token up.
func (s *Provider) DeleteInstance(ctx context.Context, r *providerv1.DeleteInstanceRequest) (
	*providerv1.DeleteInstanceResponse, error,
) {
	if len(r.GetRequestToken()) > maxToken {
		return nil, rpcerr.Invalid(object.Faultf("requestToken", "must have at most %d bytes", maxToken))
	}
	return records.Again(func() (*providerv1.DeleteInstanceResponse, error) { return s.delete(ctx, r) })
}

func (s *Provider) delete(ctx context.Context, r *providerv1.DeleteInstanceRequest) (*providerv1.DeleteInstanceResponse,
	error,
) {
	id, token := r.GetProviderId(), r.GetRequestToken()
	fence, err := s.admit(ctx, r.GetFence(), cmp.Or(id, token))
	if err != nil {
		return nil, err
	}
	if ctx, err = s.current(ctx); err != nil {
		return nil, err
	}
	now := s.Now().UTC()
	out := &providerv1.DeleteInstanceResponse{RequestToken: token, Fence: max(r.GetFence(), fence.Highest)}
	h := s.find(id, token)
	if h == nil && (id != "" && s.find(id, "") != nil || token != "" && s.find("", token) != nil) {
		return nil, refused(cmp.Or(id, token), "provider id and request token are of different instances")
	}
	if h == nil {
		return out, s.Records.UseOnly(ctx, fence, r.GetFence(), token, now)
	}
	out.RequestToken = h.GetStatus().GetRequestToken()
	_, err = s.Records.Replace(ctx, h, records.Change{
		Status: plan.Delete(h, r.GetFence(), now),
		Further: []store.Op{
			fence.Raised(r.GetFence()), records.Use(out.GetRequestToken(), now),
			records.DropBootstrap(h.GetMetadata().GetName()),
		},
	})
	return out, err
}

// WatchInstances sends the instances and then each one that changed. Any replica does: what it sends may be late, as
// with every watch.
func (s *Provider) WatchInstances(_ *providerv1.WatchInstancesRequest,
	stream grpc.ServerStreamingServer[providerv1.WatchInstancesResponse],
) error {
	w := &watch{sent: map[string]*providerv1.Instance{}, send: stream.Send}
	return s.Records.Hosts.Watching(stream.Context(), "", resource.Selection{}, 0, false, w.take)
}

// watch is what one stream has sent.
type watch struct {
	synced bool
	sent   map[string]*providerv1.Instance // by the host's name
	send   func(*providerv1.WatchInstancesResponse) error
}

func (w *watch) take(e resource.Events[*hostv1.Host]) error {
	for _, ev := range e.Events {
		name := ev.Object.GetMetadata().GetName()
		i, was := plan.Instance(ev.Object), w.sent[name]
		if ev.Type == resource.Deleted {
			i = nil
		}
		if was != nil && was.GetProviderId() != i.GetProviderId() {
			delete(w.sent, name)
			if err := w.send(&providerv1.WatchInstancesResponse{Instance: was, Deleted: true}); err != nil {
				return err
			}
		}
		if i == nil || proto.Equal(i, was) {
			continue
		}
		w.sent[name] = i
		if err := w.send(&providerv1.WatchInstancesResponse{Instance: i}); err != nil {
			return err
		}
	}
	if e.Bookmark && !w.synced {
		w.synced = true
		return w.send(&providerv1.WatchInstancesResponse{Synced: true})
	}
	return nil
}
