// Package authn finds out who calls the gateway: by a client certificate of the cluster's authority, or by a bearer
// token. It refuses who is wrong or nobody, and writes each refusal to the audit log before it is answered.
package authn

import (
	"context"
	"crypto/tls"
	"net/http"
	"slices"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/gateway/catalog"
)

// Refusals is where refusals are written down.
type Refusals interface {
	// Refused returns when the record is on disk. method may be nil, caller's User empty.
	Refused(ctx context.Context, caller identity.Caller, source string, method *catalog.Method, err error)
}

// Authenticator tells who callers are. Concurrent calls are safe.
type Authenticator struct {
	tokens   *Tokens
	catalog  *catalog.Catalog
	refusals Refusals
}

// New makes an authenticator.
func New(tokens *Tokens, c *catalog.Catalog, refusals Refusals) *Authenticator {
	return &Authenticator{tokens: tokens, catalog: c, refusals: refusals}
}

// identify returns the caller; without any credentials its User is empty. A token goes before a certificate, because
// whoever sends one means it; a wrong one is refused even so.
func (a *Authenticator) identify(state *tls.ConnectionState, authorization []string, requestID string) (identity.Caller, error) {
	caller := identity.Caller{RequestID: cleanID(requestID)}
	switch {
	case len(authorization) > 1:
		return caller, rpcerr.Unauthenticated("more than one authorization was given")
	case len(authorization) == 1:
		scheme, token, _ := strings.Cut(authorization[0], " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return caller, rpcerr.Unauthenticated("the authorization must be a bearer token")
		}
		o, ok := a.tokens.owner(strings.TrimSpace(token))
		if !ok {
			return caller, rpcerr.Unauthenticated("the bearer token is not known")
		}
		caller.User, caller.Groups = o.user, slices.Concat(o.groups, []string{identity.GroupAuthenticated})
		return caller, nil
	}
	// Only a verified chain counts: the handshake refuses a certificate of another authority.
	if state == nil || len(state.VerifiedChains) == 0 {
		return caller, nil
	}
	known, err := identity.FromCertificate(state.PeerCertificates[0])
	if err != nil {
		return caller, rpcerr.Unauthenticated("the client certificate names nobody that is known here")
	}
	caller.User, caller.UID, caller.Groups = known.User, known.UID, known.Groups
	return caller, nil
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

// Request returns who sends an HTTP request; without credentials its User is empty.
func (a *Authenticator) Request(r *http.Request) (identity.Caller, error) {
	return a.identify(r.TLS, r.Header.Values("Authorization"), r.Header.Get("X-Request-Id"))
}

// Refused writes the refusal of an HTTP request down.
func (a *Authenticator) Refused(r *http.Request, caller identity.Caller, method *catalog.Method, err error) {
	a.refusals.Refused(r.Context(), caller, r.RemoteAddr, method, err)
}

// Unary is the interceptor of the gateway's own unary methods.
func (a *Authenticator) Unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	ctx, err := a.admit(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	return next(ctx, request)
}

// Stream is the interceptor of everything else, the calls that are passed on included.
func (a *Authenticator) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx, err := a.admit(stream.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	return next(srv, known{ServerStream: stream, ctx: ctx})
}

// known is a stream whose context knows the caller.
type known struct {
	grpc.ServerStream
	ctx context.Context
}

func (k known) Context() context.Context { return k.ctx }

func (a *Authenticator) admit(ctx context.Context, fullMethod string) (context.Context, error) {
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
	caller, err := a.identify(state, md.Get("authorization"), id)
	method := a.catalog.Method(fullMethod)
	if err == nil && caller.User == "" && !method.Open() {
		err = rpcerr.Unauthenticated("no credentials: give a client certificate or a bearer token")
	}
	if err != nil {
		a.refusals.Refused(ctx, caller, source, method, err)
		return nil, err
	}
	return identity.WithCaller(ctx, caller), nil
}
