package identity

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/topology"
)

// Names of the metadata by which the gateway says for whom it calls. From any other peer they are refused as forged.
const (
	MetadataUser      = "windlass-user"
	MetadataUID       = "windlass-uid"
	MetadataGroup     = "windlass-group"
	MetadataRequestID = "windlass-request-id"
	MetadataSource    = "windlass-source" // address of the gateway's client
)

// authenticate returns the caller. With an error, which is the peer's fault, the caller is the one that the certificate
// names, for the audit log. A Caller without User is anonymous: a peer without a certificate, or a client of the
// gateway without credentials. Calls that the gateway passes on have a request id; its own calls have none.
func authenticate(ctx context.Context) (Caller, error) {
	sent, _ := metadata.FromIncomingContext(ctx)
	users, uids := sent.Get(MetadataUser), sent.Get(MetadataUID)
	groups, ids := sent.Get(MetadataGroup), sent.Get(MetadataRequestID)
	sources := sent.Get(MetadataSource)
	itself, err := peerCaller(ctx)
	itself.RequestID, itself.Source = uuid.NewString(), sourceOf(ctx)
	if err != nil {
		return itself, err
	}
	if itself.User != ServiceUser(topology.Gateway) {
		if len(users)+len(uids)+len(groups)+len(sources) > 0 {
			return itself, fmt.Errorf("%s, %s, %s and %s may be sent by the gateway alone", MetadataUser, MetadataUID,
				MetadataGroup, MetadataSource)
		}
		return itself, nil
	}
	if len(users)+len(uids)+len(groups)+len(ids) == 0 {
		return itself, nil
	}
	if len(sources) == 1 {
		itself.Source = sources[0]
	}
	return passedOn(itself, users, uids, groups, ids)
}

func passedOn(gateway Caller, users, uids, groups, ids []string) (Caller, error) {
	c := Caller{Via: gateway.User, RequestID: gateway.RequestID, Source: gateway.Source}
	if len(ids) == 1 && ids[0] != "" {
		c.RequestID = ids[0]
	}
	switch {
	case len(users)+len(uids)+len(groups) == 0:
		return c, nil
	case len(users) != 1 || users[0] == "" || len(uids) > 1 || len(ids) > 1:
		return c, fmt.Errorf("the gateway must name one user")
	}
	c.User, c.UID, c.Groups = users[0], strings.Join(uids, ""), groups
	if _, node := c.Node(); node && c.UID == "" {
		return c, fmt.Errorf("the gateway must say of which machine node %q is", c.User)
	}
	if !c.In(GroupAuthenticated) {
		c.Groups = append(slices.Clone(groups), GroupAuthenticated)
	}
	return c, nil
}

// peerCaller returns the caller that the peer's certificate names; the zero Caller without a certificate.
func peerCaller(ctx context.Context) (Caller, error) {
	cert := peerCertificate(ctx)
	if cert == nil {
		return Caller{}, nil
	}
	return FromCertificate(cert)
}

// valid checks the certificate that a call came by, and the machine that the gateway speaks for.
func (w *watchman) valid(ctx context.Context, caller Caller) error {
	if cert := peerCertificate(ctx); cert != nil {
		if err := w.Validity.Check(CertificateCredential(cert)); err != nil {
			return notValid(caller, rpcerr.Unauthenticated(err.Error()))
		}
	}
	if caller.UID != "" {
		if err := w.Validity.Check(Credential{machine: caller.UID}); err != nil {
			return rpcerr.Unauthenticated(err.Error())
		}
	}
	return w.Validity.Unknown(caller, w.Service)
}

// bound returns a context that ends when the certificate that a stream came by is no longer good, or the caller lost a
// right that it needs.
func (c *call) bound(ctx context.Context) (context.Context, func()) {
	cert := peerCertificate(ctx)
	if cert == nil {
		return ctx, func() {}
	}
	return c.Validity.Bound(ctx, CertificateCredential(cert), c.entitled)
}

// notValid is the answer to a refusal of a connection's certificate. Those for whom the gateway speaks are not at fault
// for its own: they may call again.
func notValid(caller Caller, refusal error) error {
	if caller.Via != "" && status.Code(refusal) == codes.Unauthenticated {
		return rpcerr.Unavailable("the gateway's connection has come to its end: call again")
	}
	return refusal
}

func sourceOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return ""
}
