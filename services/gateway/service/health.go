package service

import (
	"context"
	"log/slog"

	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/windlass-dev/windlass/kit/clusteroperator"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/gateway/backend"
)

// orchestrator is the program that has the ClusterOperators.
const orchestrator = "update-orchestrator"

// programs answers how the gateway is, and, where a check names a program, how that one is: a caller who reaches the gateway
// alone can so ask every program.
type programs struct {
	*health.Server
	pool     *backend.Pool
	validity *identity.Validity
}

// Check implements grpc_health_v1.HealthServer.
func (p programs) Check(ctx context.Context, r *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	if r.GetService() == "" {
		return p.Server.Check(ctx, r)
	}
	conn := p.pool.Conn(r.GetService())
	if conn == nil {
		return nil, rpcerr.NotFound("Program", r.GetService())
	}
	return grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
}

// report keeps the gateway's ClusterOperator, until ctx ends.
func (p programs) report(ctx context.Context, log *slog.Logger) error {
	conn := p.pool.Conn(orchestrator)
	if conn == nil {
		return nil
	}
	return clusteroperator.New("gateway", conn, p.state, nil, log).Run(ctx)
}

func (p programs) state(ctx context.Context) clusteroperator.State {
	r, err := p.Server.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil || r.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		return clusteroperator.State{Degraded: true, Reason: "NotReady", Message: "the gateway is not ready"}
	}
	if err := p.validity.Lost(); err != nil {
		return clusteroperator.State{Degraded: true, Reason: "RevocationsUnknown", Message: "users and agents are refused: " + err.Error()}
	}
	return clusteroperator.State{Available: true}
}

var _ grpc_health_v1.HealthServer = programs{}
