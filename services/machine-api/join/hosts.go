package join

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
)

const (
	hostTokens = "join/hosts/" // and the id of the token
	// maxHostTokens is how many tokens may be valid at a time: each may have a bundle of 4 MiB.
	maxHostTokens = 32
	// tokenLabel of a Host is the id of the token that it joined with.
	tokenLabel = "windlass.dev/join-token"
)

// hostToken is what is stored of a token. The secret is not: who reads etcd cannot join with it, or read the bundle.
type hostToken struct {
	ProofHash []byte    `json:"proofHash"`
	Roles     []string  `json:"roles"`
	Expires   time.Time `json:"expires"`
	Bundle    []byte    `json:"bundle,omitempty"`
	Used      *usedBy   `json:"used,omitempty"`
}

// usedBy is the host that has used a token.
type usedBy struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	Zone    string `json:"zone,omitempty"`
	Keys    string `json:"keys"` // hash of its public key
}

// Hosts is the HostJoinService.
type Hosts struct {
	machinev1.UnimplementedHostJoinServiceServer
	store     *store.Store
	signer    *Signer
	inventory hostv1.HostServiceClient // nil where the control plane is not on hosts
	cluster   string                   // its name
	gateways  func() []string
	now       func() time.Time
	log       *slog.Logger
}

// NewHosts returns the service that lets hosts in. inventory is where they are registered; nil where there is none, and
// then no host can join.
func NewHosts(st *store.Store, signer *Signer, inventory hostv1.HostServiceClient, cluster string,
	gateways func() []string, now func() time.Time, log *slog.Logger,
) *Hosts {
	return &Hosts{
		store: st, signer: signer, inventory: inventory, cluster: cluster, gateways: gateways, now: now, log: log,
	}
}

// onHosts returns an error unless the control plane is on hosts.
func (h *Hosts) onHosts() error {
	if h.inventory != nil {
		return nil
	}
	return rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION, "Cluster/"+h.cluster,
		"the control plane of this cluster is not on hosts: no host can join")
}

// CreateHostToken stores a token. Those that have expired are removed.
func (h *Hosts) CreateHostToken(ctx context.Context, req *machinev1.CreateHostTokenRequest) (
	*machinev1.CreateHostTokenResponse, error,
) {
	if err := h.onHosts(); err != nil {
		return nil, err
	}
	if slices.Contains(req.GetRoles(), "control-plane") != (len(req.GetBundle()) > 0) {
		return nil, rpcerr.Invalid(object.Fault{
			Path: "bundle", Description: "is required for a control-plane host, and only for that",
		})
	}
	valid, err := h.sweep(ctx)
	if err != nil {
		return nil, err
	}
	if valid >= maxHostTokens {
		return nil, rpcerr.TooMany(fmt.Sprintf("%d tokens of hosts are valid: wait until one expires", valid), time.Minute)
	}
	t := hostToken{
		ProofHash: req.GetProofHash(), Roles: req.GetRoles(), Bundle: req.GetBundle(),
		Expires: h.now().Add(req.GetTtl().AsDuration()).UTC(),
	}
	identity.Describe(ctx, "", req.GetId(), fmt.Sprintf("token of a host, %v until %s", t.Roles,
		t.Expires.Format(time.RFC3339)))
	if err := h.put(ctx, req.GetId(), t, 0); errors.Is(err, store.ErrExists) {
		return nil, rpcerr.Exists("HostToken", req.GetId())
	} else if err != nil {
		return nil, err
	}
	return &machinev1.CreateHostTokenResponse{
		AuthorityHash: h.signer.AuthorityHash(), Gateways: h.gateways(), ExpiryTime: timestamppb.New(t.Expires),
	}, nil
}

func (h *Hosts) put(ctx context.Context, id string, t hostToken, ifRevision int64) error {
	value, err := json.Marshal(t)
	if err != nil {
		return err
	}
	_, err = h.store.Commit(ctx, store.Put(hostTokens+id, value, ifRevision))
	return err
}

// sweep removes the tokens that have expired, and returns how many others there are.
func (h *Hosts) sweep(ctx context.Context) (valid int, err error) {
	page, err := h.store.List(ctx, hostTokens, store.ListOptions{})
	if err != nil {
		return 0, err
	}
	for _, r := range page.Records {
		var t hostToken
		if err := json.Unmarshal(r.Value, &t); err == nil && h.now().Before(t.Expires) {
			valid++
			continue
		}
		_, err := h.store.Commit(ctx, store.Delete(r.Key, r.Revision))
		if err != nil && !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrNotFound) {
			return valid, err
		}
	}
	return valid, nil
}

// JoinHost exchanges a token for the certificate of a host.
func (h *Hosts) JoinHost(ctx context.Context, req *machinev1.JoinHostRequest) (*machinev1.JoinHostResponse, error) {
	if err := h.onHosts(); err != nil {
		return nil, err
	}
	r, err := h.store.Get(ctx, hostTokens+req.GetId())
	if errors.Is(err, store.ErrNotFound) {
		return nil, rpcerr.BadToken(errBadToken.Error())
	}
	if err != nil {
		return nil, err
	}
	var t hostToken
	if err := json.Unmarshal(r.Value, &t); err != nil {
		return nil, fmt.Errorf("record %q: %w", r.Key, err)
	}
	proof := sha256.Sum256(req.GetProof())
	if subtle.ConstantTimeCompare(proof[:], t.ProofHash) != 1 || !h.now().Before(t.Expires) {
		return nil, rpcerr.BadToken(errBadToken.Error())
	}
	csr, err := hostRequest(req.GetAgentRequest())
	if err != nil {
		return nil, err
	}
	by := usedBy{Name: req.GetName(), Address: req.GetAddress(), Zone: req.GetZone(), Keys: keyOf(csr)}
	if t.Used != nil && *t.Used != by {
		return nil, rpcerr.BadToken("the token was used already, for host " + t.Used.Name)
	}
	identity.Describe(ctx, "", by.Name, "certificate of a host that joins")
	if err := identity.BeforeChange(ctx); err != nil {
		return nil, err
	}
	// First the token is used up: of two hosts with it one gets a certificate.
	if t.Used == nil {
		unused := t
		t.Used = &by
		if err := h.put(ctx, req.GetId(), t, r.Revision); errors.Is(err, store.ErrConflict) {
			return nil, rpcerr.Conflict("HostToken", req.GetId(), "another host joins with it at the same time")
		} else if err != nil {
			return nil, err
		}
		if err := h.register(ctx, req, t.Roles); err != nil {
			h.release(ctx, req.GetId(), unused, err)
			return nil, err
		}
	} else if err := h.register(ctx, req, t.Roles); err != nil {
		return nil, err
	}
	out, err := h.answer(by.Name, csr)
	if err != nil {
		return nil, err
	}
	out.Roles, out.Bundle = t.Roles, t.Bundle
	return out, nil
}

// release makes a token usable again after the inventory has refused its host for good. If that does not succeed, the
// token stays with the host, and another one is needed.
func (h *Hosts) release(ctx context.Context, id string, unused hostToken, refusal error) {
	switch rpcerr.Reason(refusal) {
	case metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS, metav1.ErrorReason_ERROR_REASON_INVALID_FIELD:
	default:
		return // the host may be registered
	}
	r, err := h.store.Get(ctx, hostTokens+id)
	if err == nil {
		err = h.put(ctx, id, unused, r.Revision)
	}
	if err != nil {
		h.log.WarnContext(ctx, "token of a host stays used", "token", id, "host_refused", refusal, "error", err)
	}
}

// register has the inventory know the host. A host of the same name that joined by another token is refused: a token is
// no right to the certificate of a host that exists.
func (h *Hosts) register(ctx context.Context, req *machinev1.JoinHostRequest, roles []string) error {
	host, err := h.inventory.RegisterHost(ctx, &hostv1.RegisterHostRequest{
		Name: req.GetName(), Roles: roles, Zone: req.GetZone(), Address: req.GetAddress(),
		Labels: map[string]string{tokenLabel: req.GetId()},
	})
	if err != nil {
		return err
	}
	if host.GetMetadata().GetLabels()[tokenLabel] != req.GetId() {
		return rpcerr.Exists("Host", req.GetName())
	}
	return nil
}

// RenewHost gives a host a new certificate while it is in the inventory. A host that was fenced gets one, too: it needs
// it to attend, and gets no other order than to wipe itself.
func (h *Hosts) RenewHost(ctx context.Context, req *machinev1.RenewHostRequest) (*machinev1.JoinHostResponse, error) {
	if err := h.onHosts(); err != nil {
		return nil, err
	}
	caller, _ := identity.CallerFrom(ctx)
	name, ok := caller.Host()
	if !ok {
		return nil, rpcerr.Forbidden("only a host may renew its certificate")
	}
	host, err := h.inventory.GetHost(ctx, &hostv1.GetHostRequest{Name: name})
	if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		return nil, rpcerr.Forbidden("host " + name + " is not in the inventory")
	}
	if err != nil {
		return nil, err
	}
	csr, err := hostRequest(req.GetAgentRequest())
	if err != nil {
		return nil, err
	}
	identity.Describe(ctx, "", name, "certificate of a host")
	if err := identity.BeforeChange(ctx); err != nil {
		return nil, err
	}
	out, err := h.answer(name, csr)
	if err != nil {
		return nil, err
	}
	out.Roles = host.GetSpec().GetRoles()
	return out, nil
}

func hostRequest(der []byte) (*x509.CertificateRequest, error) {
	csr, err := parseRequest(der)
	if bad := new(fault); errors.As(err, &bad) {
		return nil, rpcerr.Invalid(object.Fault{Path: bad.field, Description: bad.text})
	}
	return csr, err
}

// answer makes the certificate of a host: its agent only calls, so it serves nothing.
func (h *Hosts) answer(name string, csr *x509.CertificateRequest) (*machinev1.JoinHostResponse, error) {
	a := h.signer.now()
	certificate, err := a.Sign(csr, identity.Request{
		CommonName: name, URI: identity.HostURI(name), Client: true, Lifetime: h.signer.lifetime,
	})
	if err != nil {
		return nil, err
	}
	out := &machinev1.JoinHostResponse{
		Cluster: h.cluster, AgentCertificate: certificate, Authority: bytes.Clone(a.Bundle()), Gateways: h.gateways(),
	}
	out.ExpiryTime, err = expiry(certificate)
	return out, err
}
