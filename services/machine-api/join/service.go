package join

import (
	"context"
	"errors"
	"slices"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
)

// Instances knows the instances of machines.
type Instances interface {
	Look(ctx context.Context, m *machinev1.Machine) (i *providerv1.Instance, absent bool, err error)
}

// Service is the JoinService.
type Service struct {
	machinev1.UnimplementedJoinServiceServer
	tokens    *Tokens
	signer    *Signer
	machines  *resource.Table[*machinev1.Machine]
	instances Instances
}

// NewService returns the service that lets machines in.
func NewService(tokens *Tokens, signer *Signer, machines *resource.Table[*machinev1.Machine], instances Instances) *Service {
	return &Service{tokens: tokens, signer: signer, machines: machines, instances: instances}
}

// Join exchanges a one-time token for certificates.
func (s *Service) Join(ctx context.Context, req *machinev1.JoinRequest) (*machinev1.JoinResponse, error) {
	uid, err := s.tokens.Machine(ctx, req.GetToken())
	if err != nil {
		return nil, tokenError(err)
	}
	m, err := s.machine(ctx, func(m *machinev1.Machine) bool { return m.GetMetadata().GetUid() == uid })
	if err != nil {
		return nil, tokenError(err)
	}
	out, r, err := s.answer(ctx, m, req.GetAgentRequest(), req.GetEtcdServerRequest(), req.GetEtcdPeerRequest())
	if err != nil {
		return nil, err
	}
	// The certificates leave this process only after the token is used up.
	if m.GetStatus().GetNodeRef() != nil {
		err = s.tokens.used(ctx, uid, r.keys())
	} else {
		_, err = s.tokens.Use(ctx, uid, r.keys())
	}
	if err != nil {
		return nil, tokenError(err)
	}
	return out, nil
}

// tokenError returns what the one who joins may know of an error.
func tokenError(err error) error {
	if errors.Is(err, errBadToken) || errors.Is(err, errOtherKeys) {
		return rpcerr.BadToken(err.Error())
	}
	return err
}

// machine returns the machine that matches and is not being deleted, as it is in etcd now.
func (s *Service) machine(ctx context.Context, match func(*machinev1.Machine) bool) (*machinev1.Machine, error) {
	if err := s.machines.WaitSynced(ctx); err != nil {
		return nil, err
	}
	for _, m := range s.machines.All() {
		if !match(m) {
			continue
		}
		now, err := s.machines.Get(ctx, m.GetMetadata().GetNamespace(), m.GetMetadata().GetName())
		if err != nil {
			return nil, err
		}
		if match(now) && !resource.Deleting(now) {
			return now, nil
		}
	}
	return nil, errBadToken
}

// Renew gives a node new certificates.
func (s *Service) Renew(ctx context.Context, req *machinev1.RenewRequest) (*machinev1.JoinResponse, error) {
	caller, _ := identity.CallerFrom(ctx)
	node, ok := caller.Node()
	if !ok {
		return nil, rpcerr.Forbidden("only a node may renew its certificates")
	}
	m := s.machineOf(node)
	if m == nil {
		return nil, rpcerr.Forbidden("node " + node + " belongs to no machine")
	}
	out, _, err := s.answer(ctx, m, req.GetAgentRequest(), req.GetEtcdServerRequest(), req.GetEtcdPeerRequest())
	return out, err
}

// machineOf returns the machine of a node, also while it is being deleted: its hooks may need it for long.
func (s *Service) machineOf(node string) *machinev1.Machine {
	for _, m := range s.machines.All() {
		if ref := m.GetStatus().GetNodeRef(); ref.GetName() == node || ref == nil && m.GetMetadata().GetName() == node {
			return m
		}
	}
	return nil
}

func (s *Service) answer(ctx context.Context, m *machinev1.Machine, agent, server, peer []byte) (*machinev1.JoinResponse, requests, error) {
	i, err := s.instance(ctx, m)
	if err != nil {
		return nil, requests{}, err
	}
	m = resource.Clone(m)
	if m.Spec == nil {
		m.Spec = &machinev1.MachineSpec{}
	}
	if m.Spec.ProviderId == "" {
		m.Spec.ProviderId = i.GetProviderId()
	}
	out, r, err := s.certificates(m, address(m, i), agent, server, peer)
	bad := new(fault)
	if errors.As(err, &bad) {
		return nil, r, rpcerr.Invalid(rpcerr.Field{Path: bad.field, Description: bad.text})
	}
	return out, r, err
}

func (s *Service) certificates(m *machinev1.Machine, address string, agent, server, peer []byte) (*machinev1.JoinResponse, requests, error) {
	r, err := parseRequests(agent, server, peer, plan.Role(m))
	if err != nil {
		return nil, r, err
	}
	if address == "" {
		return nil, r, rpcerr.Unavailable("the machine's address is not known yet")
	}
	out, err := s.signer.sign(m, address, r)
	return out, r, err
}

// instance asks the provider only where the machine does not say enough: an instance may join before its machine was written.
func (s *Service) instance(ctx context.Context, m *machinev1.Machine) (*providerv1.Instance, error) {
	if m.GetSpec().GetProviderId() != "" && address(m, nil) != "" {
		return nil, nil
	}
	i, absent, err := s.instances.Look(ctx, m)
	if err != nil || absent {
		return nil, rpcerr.Unavailable("the machine's instance is not known yet")
	}
	return i, nil
}

func address(m *machinev1.Machine, i *providerv1.Instance) string {
	for _, a := range slices.Concat(m.GetStatus().GetAddresses(), i.GetAddresses()) {
		if a.GetType() == "InternalIP" {
			return a.GetAddress()
		}
	}
	return ""
}
