package identity

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// Names of the metadata by which the gateway says for whom it calls. From anybody else they are a forgery.
const (
	MetadataUser      = "windlass-user"
	MetadataUID       = "windlass-uid"
	MetadataGroup     = "windlass-group"
	MetadataRequestID = "windlass-request-id"
)

// authenticate says who calls. The error is what the peer did wrong; the caller is then whoever the certificate names,
// for the record. A caller without User is nobody: somebody without a certificate, or a client of the gateway's without
// credentials. The gateway's own calls are told from those it passes on by the request id, which only the latter have.
func authenticate(ctx context.Context) (Caller, error) {
	sent, _ := metadata.FromIncomingContext(ctx)
	users, uids := sent.Get(MetadataUser), sent.Get(MetadataUID)
	groups, ids := sent.Get(MetadataGroup), sent.Get(MetadataRequestID)
	itself, err := peerCaller(ctx)
	itself.RequestID = uuid.NewString()
	if err != nil {
		return itself, err
	}
	if itself.User != ServiceUser(gatewayName) {
		if len(users)+len(uids)+len(groups) > 0 {
			return itself, fmt.Errorf("%s, %s and %s may be sent by the gateway alone", MetadataUser, MetadataUID, MetadataGroup)
		}
		return itself, nil
	}
	if len(users)+len(uids)+len(groups)+len(ids) == 0 {
		return itself, nil
	}
	return passedOn(itself, users, uids, groups, ids)
}

func passedOn(gateway Caller, users, uids, groups, ids []string) (Caller, error) {
	c := Caller{Via: gateway.User, RequestID: gateway.RequestID}
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

// peerCaller says whom the certificate of the connection's other end names; nobody if it showed none.
func peerCaller(ctx context.Context) (Caller, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return Caller{}, nil
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return Caller{}, nil
	}
	return FromCertificate(info.State.PeerCertificates[0])
}

// hasCertificate reports whether the other end showed a certificate of our authority, whomever it names.
func hasCertificate(ctx context.Context) bool {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return false
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	return ok && len(info.State.VerifiedChains) > 0
}

func sourceOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return ""
}
