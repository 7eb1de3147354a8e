package service

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/gateway/catalog"
)

// refusals writes what the gateway itself refuses to its audit log; what a service refuses stands in that service's.
type refusals struct {
	audit *identity.Audit
	log   *slog.Logger
}

// Refused returns when the record is on disk.
func (r refusals) Refused(ctx context.Context, caller identity.Caller, source string, method *catalog.Method, err error) {
	record := identity.Record{
		Time:      time.Now().UTC(),
		RequestID: caller.RequestID,
		User:      caller.User,
		Groups:    caller.Groups,
		Source:    source,
		Service:   catalog.Gateway,
		Decision:  identity.Deny,
		Reason:    status.Convert(err).Message(),
		Code:      status.Code(err).String(),
	}
	if method != nil {
		record.Method = method.FullName
		record.Verb = method.Access.GetVerb()
		record.Group = method.Access.GetGroup()
		record.Resource = method.Access.GetResource()
	}
	if err := r.audit.Write(ctx, record); err != nil {
		r.log.ErrorContext(ctx, "refusal not written to the audit log", "error", err)
	}
}

// handshake notes a handshake that failed: in the audit log if it was for the client's certificate.
func (r refusals) handshake(source net.Addr, err error) {
	var wrong *tls.CertificateVerificationError
	if !errors.As(err, &wrong) {
		r.log.Debug("handshake failed", "source", source.String(), "error", err)
		return
	}
	r.Refused(context.Background(), identity.Caller{}, source.String(), nil,
		rpcerr.Unauthenticated("the client certificate is not of this cluster's authority, or ran out: "+wrong.Err.Error()))
}
