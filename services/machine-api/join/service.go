package join

import (
	"context"
	"crypto/x509"
	"errors"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/services/machine-api/kinds"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
)

// Service is the JoinService.
type Service struct {
	machinev1.UnimplementedJoinServiceServer
	tokens   *Tokens
	signer   *Signer
	machines *resource.Table[*machinev1.Machine]
}

// NewService returns the service that lets machines in.
func NewService(tokens *Tokens, signer *Signer, machines *resource.Table[*machinev1.Machine]) *Service {
	return &Service{tokens: tokens, signer: signer, machines: machines}
}

// Join exchanges a one-time token for certificates.
func (s *Service) Join(ctx context.Context, req *machinev1.JoinRequest) (*machinev1.JoinResponse, error) {
	uid, err := s.tokens.Machine(ctx, req.GetToken())
	if err != nil {
		return nil, tokenError(err)
	}
	m, err := s.machine(ctx, uid)
	if err != nil {
		return nil, err
	}
	if m == nil || object.Deleting(m) {
		return nil, tokenError(errBadToken)
	}
	out, r, err := s.answer(ctx, m, req.GetAgentRequest())
	if err != nil {
		return nil, err
	}
	identity.Describe(ctx, m.GetMetadata().GetNamespace(), m.GetMetadata().GetName(), "certificates of a node that joins")
	if err := identity.BeforeChange(ctx); err != nil {
		return nil, err
	}
	// The certificates leave this process only after the token is used up.
	if m.GetStatus().GetNodeRef() != nil {
		err = s.tokens.used(ctx, uid, keyOf(r))
	} else {
		err = s.tokens.Use(ctx, m, keyOf(r))
	}
	if err != nil {
		return nil, tokenError(err)
	}
	return out, nil
}

// tokenError returns what the one who joins may know of an error.
func tokenError(err error) error {
	switch {
	case errors.Is(err, errLeaving):
		return rpcerr.BadToken(errBadToken.Error())
	case errors.Is(err, errBadToken), errors.Is(err, errOtherKeys):
		return rpcerr.BadToken(err.Error())
	}
	return err
}

// machine returns the machine with a uid as it is in etcd now; nil if there is none.
func (s *Service) machine(ctx context.Context, uid string) (*machinev1.Machine, error) {
	if err := s.machines.WaitSynced(ctx); err != nil {
		return nil, err
	}
	known := s.machines.ByIndex(kinds.ByUID, uid)
	if len(known) == 0 {
		return nil, nil
	}
	m := known[0].GetMetadata()
	now, err := s.machines.Get(ctx, m.GetNamespace(), m.GetName())
	if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_NOT_FOUND || now.GetMetadata().GetUid() != uid {
		return nil, rpcerr.IgnoreChanged(err)
	}
	return now, err
}

// Renew gives a node new certificates, also while its machine is being deleted: its hooks may need it for long.
func (s *Service) Renew(ctx context.Context, req *machinev1.RenewRequest) (*machinev1.JoinResponse, error) {
	caller, _ := identity.CallerFrom(ctx)
	node, ok := caller.Node()
	if !ok || caller.UID == "" {
		return nil, rpcerr.Forbidden("only a node may renew its certificates")
	}
	m, err := s.machine(ctx, caller.UID)
	if err != nil {
		return nil, err
	}
	if m == nil || m.GetMetadata().GetName() != node {
		return nil, rpcerr.Forbidden("node " + node + " belongs to no machine")
	}
	identity.Describe(ctx, m.GetMetadata().GetNamespace(), m.GetMetadata().GetName(), "certificates of a node")
	if err := identity.BeforeChange(ctx); err != nil {
		return nil, err
	}
	out, _, err := s.answer(ctx, m, req.GetAgentRequest())
	return out, err
}

func (s *Service) answer(ctx context.Context, m *machinev1.Machine, agent []byte) (*machinev1.JoinResponse,
	*x509.CertificateRequest, error,
) {
	sealed, err := s.tokens.sealedAs(ctx, m)
	// never sealed here: it would be kept after the machine, and a caller would choose the moment
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil, rpcerr.Forbidden("machine " + m.GetMetadata().GetName() +
			" has no join record: its deletion is complete")
	}
	if err != nil {
		return nil, nil, err
	}
	r, err := parseRequest(agent)
	bad := new(fault)
	if errors.As(err, &bad) {
		return nil, r, rpcerr.Invalid(object.Fault{Path: bad.field, Description: bad.text})
	}
	if err != nil {
		return nil, r, err
	}
	// What machine-api took over from the provider, after it was checked: an instance may join before that was written.
	address := plan.InternalAddress(m)
	if address == "" || m.GetSpec().GetProviderId() == "" {
		return nil, r, rpcerr.Unavailable("the machine's instance is not known yet")
	}
	out, err := s.signer.sign(sealed, m.GetSpec().GetProviderId(), address, r)
	if err != nil {
		return nil, r, err
	}
	out.Gateways = s.tokens.gateways()
	return out, r, nil
}
