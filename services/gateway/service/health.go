package service

import (
	"context"
	"log/slog"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/windlass-dev/windlass/kit/audit"
	"github.com/windlass-dev/windlass/kit/clusteroperator"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/gateway/authn"
	"github.com/windlass-dev/windlass/services/gateway/backend"
)

// programs answers how the gateway is, and, where a check names a program, how that one is ("machine-api",
// "machine-api/changes"): a caller who reaches the gateway alone can so ask every program.
type programs struct {
	*health.Server
	pool     *backend.Pool
	validity *identity.Validity
	policy   *identity.Policy
	tokens   *authn.Tokens
	audit    *audit.Trail
	here     presence
}

// Check implements grpc_health_v1.HealthServer.
func (p programs) Check(ctx context.Context, r *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse,
	error,
) {
	if r.GetService() == "" {
		_ = grpc.SetHeader(ctx, metadata.Pairs( // a caller outside of gRPC gets none
			serve.PolicyHeader, p.policy.Hash(), serve.TokensHeader, p.tokens.Hash()))
		return p.Server.Check(ctx, r)
	}
	program, part, _ := strings.Cut(r.GetService(), "/")
	conn := p.pool.Conn(program)
	if conn == nil {
		return nil, rpcerr.NotFound("Program", program)
	}
	return grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: part})
}

// report keeps the gateway's ClusterOperator, until ctx ends.
func (p programs) report(ctx context.Context, log *slog.Logger) error {
	conn := p.pool.Conn(topology.UpdateOrchestrator)
	if conn == nil {
		return nil
	}
	return clusteroperator.New(topology.Gateway, conn, p.here.replicated(p.state), p.here.reports(), log).Run(ctx)
}

// serving reports whether the gateway serves.
func (p programs) serving(ctx context.Context) bool {
	r, err := p.Server.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return err == nil && r.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING
}

func (p programs) state(ctx context.Context) clusteroperator.State {
	if !p.serving(ctx) {
		return clusteroperator.State{Degraded: true, Reason: "NotReady", Message: "the gateway is not ready"}
	}
	lost := p.validity.Lost()
	p.here.fault(lost)
	if err := lost; err != nil {
		return clusteroperator.State{Degraded: true, Reason: "RevocationsUnknown", Message: "users and agents are refused: " +
			err.Error()}
	}
	s := clusteroperator.State{Available: true}
	if err := p.policy.Err(); err != nil {
		s.Degraded, s.Reason, s.Message = true, "PolicyNotInForce",
			"the policy file cannot be used, the former policy stays in force: "+err.Error()
	} else if err := p.audit.Failed(); err != nil {
		s.Degraded, s.Reason, s.Message = true, "AuditLogFailed", "which policy and tokens are in force is not recorded: "+
			err.Error()
	}
	return s
}

var _ grpc_health_v1.HealthServer = programs{}
