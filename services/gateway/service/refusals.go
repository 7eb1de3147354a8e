package service

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/kit/audit"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/gateway/catalog"
)

// refusals writes what the gateway itself refuses to its audit log; what a service refuses is in that service's.
type refusals struct {
	audit *audit.Trail
	log   *slog.Logger
}

// Refused records a refusal. It does not wait for the disk.
func (r refusals) Refused(caller identity.Caller, method *catalog.Method, err error) {
	record := audit.Record{
		Time:      time.Now().UTC(),
		RequestID: caller.RequestID,
		User:      caller.User,
		Groups:    caller.Groups,
		Source:    caller.Source,
		Service:   topology.Gateway,
		Reason:    status.Convert(err).Message(),
		Code:      status.Code(err).String(),
	}
	if method != nil {
		record.Method = method.FullName
		record.Verb = method.Access.GetVerb()
		record.Group = method.Access.GetGroup()
		record.Resource = method.Access.GetResource()
	}
	r.audit.Refused(record)
}

// handshake notes a handshake that failed: in the audit log if it was for the client's certificate.
func (r refusals) handshake(source net.Addr, err error) {
	var wrong *tls.CertificateVerificationError
	if !errors.As(err, &wrong) {
		r.log.Debug("handshake failed", "source", source.String(), "error", err)
		return
	}
	r.Refused(identity.Caller{Source: source.String()}, nil,
		rpcerr.Unauthenticated("the client certificate is not of this cluster's authority, or ran out"))
}

// tokensChanged records that other bearer tokens are in force.
func tokensChanged(trail *audit.Trail, path string) func(hash string) {
	return func(hash string) {
		trail.Noted(audit.Record{Event: audit.EventTokens, Detail: path, Hash: hash})
	}
}
