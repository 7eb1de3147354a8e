// Package authn finds out who calls the gateway: by a client certificate of the cluster's authority, or by a bearer
// token. It refuses unknown callers, and writes each refusal to the audit log before the answer.
package authn

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/windlass-dev/windlass/kit/accounttoken"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/gateway/catalog"
)

// Refusals is where refusals are written down.
type Refusals interface {
	// Refused does not wait. method may be nil, caller's User empty.
	Refused(caller identity.Caller, method *catalog.Method, err error)
}

// Authenticator identifies callers. Concurrent calls are safe.
type Authenticator struct {
	tokens   *Tokens
	oidc     *OIDC     // nil if there is no issuer
	accounts *Accounts // nil if there is no scheduler
	catalog  *catalog.Catalog
	refusals Refusals
	validity *identity.Validity
}

// New makes an authenticator. oidc is nil if there is no issuer of tokens, accounts if there is no scheduler.
func New(tokens *Tokens, oidc *OIDC, accounts *Accounts, c *catalog.Catalog, refusals Refusals,
	validity *identity.Validity,
) *Authenticator {
	return &Authenticator{
		tokens: tokens, oidc: oidc, accounts: accounts, catalog: c, refusals: refusals, validity: validity,
	}
}

// credential is what a caller showed.
type credential struct {
	identity.Credential
	still func() error // why it ends before its time, as a status; nil: by revocation alone
}

// identify returns the caller and the credential that it showed; without any the caller's User is empty and the
// credential nil. A token goes before a certificate, because a caller that sends one means it; a wrong one is refused
// even so. m is the method that is called, nil if it is not one of gRPC.
func (a *Authenticator) identify(ctx context.Context, state *tls.ConnectionState, authorization []string, requestID,
	source string, m *catalog.Method,
) (identity.Caller, *credential, error) {
	caller := identity.Caller{RequestID: cleanID(requestID), Source: source}
	var shown credential
	switch {
	case len(authorization) > 1:
		return caller, nil, rpcerr.Unauthenticated("more than one authorization was given")
	case len(authorization) == 1:
		scheme, token, _ := strings.Cut(authorization[0], " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return caller, nil, rpcerr.Unauthenticated("the authorization must be a bearer token")
		}
		t, still, err := a.bearer(ctx, strings.TrimSpace(token))
		if errors.Is(err, errNoIssuer) || errors.Is(err, errNoReview) {
			return caller, nil, rpcerr.Unavailable(err.Error())
		}
		if err != nil {
			return caller, nil, rpcerr.Unauthenticated(err.Error())
		}
		caller.User, caller.Groups = t.User, slices.Concat(t.Groups, []string{identity.GroupAuthenticated})
		shown.Credential = identity.Credential{User: t.User, Issued: t.Issued, NotAfter: t.Expires}
		shown.still = still
	// Only a verified chain counts: the handshake refuses a certificate of another authority.
	case state == nil || len(state.VerifiedChains) == 0:
		return caller, nil, nil
	default:
		known, err := identity.FromCertificate(state.PeerCertificates[0])
		if err != nil {
			return caller, nil, rpcerr.Unauthenticated("client certificate not recognized")
		}
		caller.User, caller.UID, caller.Groups = known.User, known.UID, known.Groups
		shown.Credential = identity.CertificateCredential(state.PeerCertificates[0])
	}
	if err := a.validity.Check(shown.Credential); err != nil {
		return caller, nil, rpcerr.Unauthenticated(err.Error())
	}
	program := ""
	if m != nil {
		program = m.Program
	}
	if err := a.validity.Unknown(caller, program); err != nil {
		return caller, nil, err
	}
	return caller, &shown, nil
}

// bearer returns whose token it is, and for one of the file or of a service account what says as a status that it no
// longer is.
func (a *Authenticator) bearer(ctx context.Context, token string) (t identity.Token, still func() error, err error) {
	if token == "" || len(token) > maxToken {
		return identity.Token{}, nil, errNoToken
	}
	if t, known := a.tokens.owner(token); known {
		return t, func() error { return a.tokens.still(t) }, nil
	}
	if strings.Count(token, ".") != 2 {
		return identity.Token{}, nil, errNoToken
	}
	if a.accounts != nil && accounttoken.Is(token) {
		return a.accounts.owner(ctx, token)
	}
	if a.oidc == nil {
		return identity.Token{}, nil, errNoToken
	}
	t, err = a.oidc.owner(ctx, token)
	return t, nil, err
}

// Request returns who sends an HTTP request; without credentials its User is empty.
func (a *Authenticator) Request(r *http.Request) (identity.Caller, error) {
	caller, _, err := a.identifyRequest(r)
	return caller, err
}

func (a *Authenticator) identifyRequest(r *http.Request) (identity.Caller, *credential, error) {
	return a.identify(r.Context(), r.TLS, r.Header.Values("Authorization"), r.Header.Get("X-Request-Id"), r.RemoteAddr,
		a.catalog.Method(r.URL.Path))
}

// Bound returns a context for a request that streams: it ends when the credentials of the request are no longer good.
// stop must be called unless there is an error, which says that they are not good any more.
func (a *Authenticator) Bound(ctx context.Context, r *http.Request) (bound context.Context, stop func(), err error) {
	_, shown, err := a.identifyRequest(r)
	if err != nil {
		return nil, nil, err
	}
	bound, stop = a.bound(ctx, shown)
	return bound, stop, nil
}

func (a *Authenticator) bound(ctx context.Context, shown *credential) (context.Context, func()) {
	if shown == nil {
		return ctx, func() {}
	}
	return a.validity.Bound(ctx, shown.Credential, shown.still)
}

// cleanID keeps a client's request id if it is short and plain, or makes one.
func cleanID(id string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.'
	}
	if id == "" || len(id) > 64 || strings.ContainsFunc(id, func(r rune) bool { return !plain(r) }) {
		return uuid.NewString()
	}
	return id
}

// Refused writes the refusal of an HTTP request down.
func (a *Authenticator) Refused(r *http.Request, caller identity.Caller, method *catalog.Method, err error) {
	a.refusals.Refused(caller, method, err)
}

// Stream is the interceptor of all calls. It ends one when the caller's credentials are no longer good.
func (a *Authenticator) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	next grpc.StreamHandler,
) error {
	c, err := a.admit(stream.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	ctx, stop := a.bound(identity.WithCaller(stream.Context(), c.caller), c.shown)
	defer stop()
	err = next(srv, known{ServerStream: stream, ctx: ctx})
	if refusal := identity.Refusal(ctx); refusal != nil {
		err = refusal
		a.refusals.Refused(c.caller, c.method, err)
	}
	return err
}

// known is a stream whose context knows the caller.
type known struct {
	grpc.ServerStream
	ctx context.Context
}

func (k known) Context() context.Context { return k.ctx }

// call is a call whose caller is known.
type call struct {
	caller identity.Caller
	shown  *credential
	method *catalog.Method
}

func (a *Authenticator) admit(ctx context.Context, fullMethod string) (c call, err error) {
	md, _ := metadata.FromIncomingContext(ctx)
	var state *tls.ConnectionState
	source := ""
	if p, ok := peer.FromContext(ctx); ok {
		source = p.Addr.String()
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			state = &info.State
		}
	}
	id := ""
	if given := md.Get("x-request-id"); len(given) == 1 {
		id = given[0]
	}
	c.method = a.catalog.Method(fullMethod)
	c.caller, c.shown, err = a.identify(ctx, state, md.Get("authorization"), id, source, c.method)
	if err == nil && c.caller.User == "" && !c.method.Open() {
		err = rpcerr.Unauthenticated("no credentials: give a client certificate or a bearer token")
	}
	if err != nil {
		a.refusals.Refused(c.caller, c.method, err)
	}
	return c, err
}
