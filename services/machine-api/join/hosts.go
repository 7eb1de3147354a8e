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
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
)

const (
	hostTokens  = "join/hosts/"        // and the id of the token
	hostBundles = "join/host-bundles/" // and the id of the token: it is read for who has shown the proof alone
	// maxHostTokens is how many tokens may be valid at a time: each may have a bundle of 1 MiB.
	maxHostTokens = 32
	sweepTokens   = time.Minute
	// hostLives is how many lives of other certificates that of a host has, 90 days by default: a host that was off that
	// long can still renew it. One that is removed is refused by its uid.
	hostLives    = 90
	controlPlane = "control-plane" // role of a host
	// tokenLabel of a Host is the id of the token that it joined with.
	tokenLabel = "windlass.dev/join-token"
)

// hostToken is what is stored of a token. The secret is not: who reads etcd cannot join with it, or read the bundle.
type hostToken struct {
	ProofHash []byte    `json:"proofHash"`
	Roles     []string  `json:"roles"`
	Expires   time.Time `json:"expires"`
	Used      *usedBy   `json:"used,omitempty"`
}

// usedBy is the host that has used a token.
type usedBy struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	Zone    string `json:"zone,omitempty"`
	Keys    string `json:"keys"`          // hash of its public key
	UID     string `json:"uid,omitempty"` // of its Host; empty until it is registered
}

// is reports whether a host is the one that has used the token.
func (u usedBy) is(o usedBy) bool {
	u.UID, o.UID = "", ""
	return u == o
}

// Hosts is the HostJoinService.
type Hosts struct {
	machinev1.UnimplementedHostJoinServiceServer
	store     *store.Store
	signer    *Signer
	inventory hostv1.HostServiceClient // nil where the control plane is not on hosts
	cluster   string                   // its name
	gateways  func() []string
	etcd      func() []string // URLs of etcd's members
	now       func() time.Time
	log       *slog.Logger
}

// NewHosts returns the service that lets hosts in. inventory is where they are registered; nil where there is none, and
// then no host can join.
func NewHosts(st *store.Store, signer *Signer, inventory hostv1.HostServiceClient, cluster string,
	gateways, etcd func() []string, now func() time.Time, log *slog.Logger,
) *Hosts {
	return &Hosts{
		store: st, signer: signer, inventory: inventory, cluster: cluster, gateways: gateways, etcd: etcd, now: now, log: log,
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

// CreateHostToken stores a token.
func (h *Hosts) CreateHostToken(ctx context.Context, req *machinev1.CreateHostTokenRequest) (
	*machinev1.CreateHostTokenResponse, error,
) {
	if err := h.onHosts(); err != nil {
		return nil, err
	}
	switch carries := slices.Contains(req.GetRoles(), controlPlane); {
	case carries && len(req.GetBundle()) == 0:
		return nil, rpcerr.Invalid(object.Fault{Path: "bundle", Description: "is required for a control-plane host"})
	case !carries && len(req.GetBundle()) > 0:
		return nil, rpcerr.Invalid(object.Fault{Path: "bundle", Description: "is for control-plane hosts alone"})
	}
	valid, err := h.sweep(ctx)
	if err != nil {
		return nil, err
	}
	if valid >= maxHostTokens {
		return nil, rpcerr.TooMany(fmt.Sprintf("%d tokens of hosts are valid: wait until one expires", valid), time.Minute)
	}
	t := hostToken{
		ProofHash: req.GetProofHash(), Roles: req.GetRoles(), Expires: h.now().Add(req.GetTtl().AsDuration()).UTC(),
	}
	identity.Describe(ctx, "", req.GetId(), fmt.Sprintf("token of a host, %v until %s", t.Roles,
		t.Expires.Format(time.RFC3339)))
	value, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	ops := []store.Op{store.Put(hostTokens+req.GetId(), value, 0)}
	if len(req.GetBundle()) > 0 {
		ops = append(ops, store.Put(hostBundles+req.GetId(), req.GetBundle(), 0))
	}
	_, err = h.store.Commit(ctx, ops...)
	if errors.Is(err, store.ErrExists) {
		return nil, rpcerr.Exists("HostToken", req.GetId())
	}
	if err != nil {
		return nil, err
	}
	return &machinev1.CreateHostTokenResponse{
		AuthorityHash: h.signer.AuthorityHash(), Gateways: h.gateways(), ExpiryTime: timestamppb.New(t.Expires),
	}, nil
}

// sweep removes the tokens that have expired, with their bundles, and returns how many others there are.
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
		if err := h.remove(ctx, strings.TrimPrefix(r.Key, hostTokens)); err != nil {
			return valid, err
		}
	}
	return valid, nil
}

// remove removes a token and its bundle.
func (h *Hosts) remove(ctx context.Context, id string) error {
	_, err := h.store.Commit(ctx, store.Delete(hostTokens+id, store.Whatever),
		store.Delete(hostBundles+id, store.Whatever))
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrConflict) {
		return nil
	}
	return err
}

// Run removes the tokens that have expired, until ctx ends.
func (h *Hosts) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if _, err := h.sweep(ctx); err != nil && ctx.Err() == nil {
			h.log.WarnContext(ctx, "expired tokens of hosts are not removed", "error", err)
		}
		backoff.Sleep(ctx, sweepTokens)
	}
	return nil
}

// token returns a valid token and its revision.
func (h *Hosts) token(ctx context.Context, id string, proof []byte) (t hostToken, revision int64, err error) {
	r, err := h.store.Get(ctx, hostTokens+id)
	if errors.Is(err, store.ErrNotFound) {
		return t, 0, badHostToken("the token is unknown or has expired")
	}
	if err != nil {
		return t, 0, err
	}
	if err := json.Unmarshal(r.Value, &t); err != nil {
		return t, 0, fmt.Errorf("record %q: %w", r.Key, err)
	}
	given := sha256.Sum256(proof)
	if subtle.ConstantTimeCompare(given[:], t.ProofHash) != 1 {
		return t, 0, badHostToken("the token is unknown or has expired")
	}
	if !h.now().Before(t.Expires) {
		if err := h.remove(ctx, id); err != nil { // so that it stays so when the clock is set back
			return t, 0, err
		}
		return t, 0, badHostToken("the token has expired")
	}
	return t, r.Revision, nil
}

// badHostToken says what is wrong with a token, and how to get another one.
func badHostToken(why string) error {
	return rpcerr.BadToken(why + ": make a new one with `windlass host token` on a control-plane host")
}

// JoinHost exchanges a token for the certificate of a host.
func (h *Hosts) JoinHost(ctx context.Context, req *machinev1.JoinHostRequest) (*machinev1.JoinHostResponse, error) {
	if err := h.onHosts(); err != nil {
		return nil, err
	}
	t, revision, err := h.token(ctx, req.GetId(), req.GetProof())
	if err != nil {
		return nil, err
	}
	csr, err := hostRequest(req.GetAgentRequest())
	if err != nil {
		return nil, err
	}
	by := usedBy{Name: req.GetName(), Address: req.GetAddress(), Zone: req.GetZone(), Keys: keyOf(csr)}
	if t.Used != nil && !t.Used.is(by) {
		return nil, badHostToken("the token was used already, for host " + t.Used.Name)
	}
	identity.Describe(ctx, "", by.Name, fmt.Sprintf("certificate of a host that joins by token %s, %v at %s", req.GetId(),
		t.Roles, by.Address))
	if err := identity.BeforeChange(ctx); err != nil {
		return nil, err
	}
	uid, err := h.use(ctx, req, t, by, revision)
	if err != nil {
		return nil, err
	}
	out, err := h.answer(by.Name, uid, csr)
	if err != nil {
		return nil, err
	}
	if out.Roles = t.Roles; !slices.Contains(t.Roles, controlPlane) {
		return out, nil
	}
	bundle, err := h.store.Get(ctx, hostBundles+req.GetId())
	if errors.Is(err, store.ErrNotFound) {
		return nil, badHostToken("the token has expired")
	}
	if err != nil {
		return nil, err
	}
	out.Bundle, out.EtcdEndpoints = bundle.Value, h.etcd()
	return out, nil
}

// use binds a token to a host and registers that, or finds that both was done. It returns the uid of the Host.
func (h *Hosts) use(ctx context.Context, req *machinev1.JoinHostRequest, t hostToken, by usedBy,
	revision int64) (string,
	error,
) {
	if t.Used != nil && t.Used.UID != "" { // only the very host that was registered then
		host, err := h.inventory.GetHost(ctx, &hostv1.GetHostRequest{Name: by.Name})
		if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_NOT_FOUND || err == nil &&
			host.GetMetadata().GetUid() != t.Used.UID {
			return "", badHostToken("the token was used already, and its host was removed")
		}
		return t.Used.UID, err
	}
	// First the token is bound: of two hosts with it one gets a certificate.
	first := t.Used == nil
	if first {
		t.Used = &by
		var err error
		if revision, err = h.put(ctx, req.GetId(), t, revision); err != nil {
			return "", err
		}
	}
	host, err := h.register(ctx, req, t.Roles)
	if err != nil {
		switch reason := rpcerr.Reason(err); {
		case first && (reason == metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS ||
			reason == metav1.ErrorReason_ERROR_REASON_INVALID_FIELD):
			t.Used = nil // it can be used for another name
			if _, err := h.put(ctx, req.GetId(), t, revision); err != nil {
				h.log.WarnContext(ctx, "token stays bound to a host that was refused", "token", req.GetId(), "error", err)
			}
		default: // an earlier attempt may have registered the host
		}
		return "", err
	}
	bound := by
	bound.UID = host.GetMetadata().GetUid()
	t.Used = &bound
	_, err = h.put(ctx, req.GetId(), t, revision)
	return bound.UID, err
}

// put stores a token that has changed, and returns its revision.
func (h *Hosts) put(ctx context.Context, id string, t hostToken, ifRevision int64) (int64, error) {
	value, err := json.Marshal(t)
	if err != nil {
		return 0, err
	}
	revision, err := h.store.Commit(ctx, store.Put(hostTokens+id, value, ifRevision))
	if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) {
		return 0, rpcerr.Conflict("HostToken", id, "it is used at the same time, or has expired: try again")
	}
	return revision, err
}

// register has the inventory know the host. A host of the same name that joined by another token is refused: a token is
// no right to the certificate of a host that exists.
func (h *Hosts) register(ctx context.Context, req *machinev1.JoinHostRequest, roles []string) (*hostv1.Host, error) {
	host, err := h.inventory.RegisterHost(ctx, &hostv1.RegisterHostRequest{
		Name: req.GetName(), Roles: roles, Zone: req.GetZone(), Address: req.GetAddress(),
		Labels: map[string]string{tokenLabel: req.GetId()},
	})
	if err == nil && host.GetMetadata().GetLabels()[tokenLabel] != req.GetId() {
		err = rpcerr.Exists("Host", req.GetName())
	}
	return host, err
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
	if host.GetMetadata().GetUid() != caller.UID {
		return nil, rpcerr.Forbidden("the certificate is of an earlier host " + name +
			": it was removed, and joins again by a token")
	}
	csr, err := hostRequest(req.GetAgentRequest())
	if err != nil {
		return nil, err
	}
	identity.Describe(ctx, "", name, "certificate of a host")
	if err := identity.BeforeChange(ctx); err != nil {
		return nil, err
	}
	out, err := h.answer(name, caller.UID, csr)
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
func (h *Hosts) answer(name, uid string, csr *x509.CertificateRequest) (*machinev1.JoinHostResponse, error) {
	a := h.signer.now()
	certificate, err := a.Sign(csr, identity.Request{
		CommonName: name, URI: identity.HostURI(name, uid), Client: true, Lifetime: hostLives * h.signer.lifetime,
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
