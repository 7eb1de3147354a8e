package serve

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/kit/audit"
	"github.com/windlass-dev/windlass/kit/identity"
)

// ChangesCheck is the name under which the health service of a process reports whether callers' changes are accepted.
// If they are not, the response is an error with the reason: RESOURCE_EXHAUSTED if the disk of the audit log is full,
// else FAILED_PRECONDITION. Heartbeats and the cluster's own work continue then, so the process itself is SERVING.
const ChangesCheck = "changes"

// Headers of the answer to a health check: SHA-256, in hexadecimal, of what the process has in force.
const (
	PolicyHeader = "windlass-policy" // of the policy file
	TokensHeader = "windlass-tokens" // of the file of bearer tokens, without one that of an empty one; of the gateway
)

// healthServer is the health service of a process.
type healthServer struct {
	*health.Server
	audit  *audit.Trail
	policy *identity.Policy
}

// Check implements grpc_health_v1.HealthServer.
func (h healthServer) Check(ctx context.Context, r *grpc_health_v1.HealthCheckRequest) (
	*grpc_health_v1.HealthCheckResponse, error,
) {
	// A caller outside of gRPC, such as a test, gets no header.
	_ = grpc.SetHeader(ctx, metadata.Pairs(PolicyHeader, h.policy.Hash()))
	if r.GetService() != ChangesCheck {
		return h.Server.Check(ctx, r)
	}
	err := h.audit.Check(ctx)
	switch {
	case err == nil:
		return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}, nil
	case audit.Full(err):
		return nil,
			status.Error(codes.ResourceExhausted, "the audit log cannot be written: its disk is full, free space on it")
	}
	return nil,
		status.Error(codes.FailedPrecondition, "the audit log cannot be written: the log of the service has the reason")
}
