package serve

import (
	"context"
	"fmt"

	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/windlass-dev/windlass/kit/clusteroperator"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/kit/topology"
)

// report returns the part that reports the service's ClusterOperator; it does nothing without the address of
// update-orchestrator.
func (p *Process) report() (Part, error) {
	if !p.cfg.Knows(topology.UpdateOrchestrator) {
		return func(context.Context) error { return nil }, nil
	}
	conn, err := p.Dial(topology.UpdateOrchestrator)
	if err != nil {
		return nil, err
	}
	state := p.Operator
	if state == nil {
		state = p.Readiness
	}
	state = p.guarded(state)
	if p.Directory != nil {
		state = Replicated(p.Directory.View, p.cfg.Name, state)
	}
	return clusteroperator.New(topology.Operator(p.cfg.Name), conn, state, p.Leads, p.Log).Run, nil
}

// unreadable returns the records of the service's store that cannot be read.
func (p *Process) unreadable() []store.Unreadable {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.store == nil {
		return nil
	}
	return p.store.Unreadable()
}

// kmsFailed returns the error of the KMS plugin; nil if there is no plugin.
func (p *Process) kmsFailed() error {
	if p.kms == nil {
		return nil
	}
	return p.kms.Err()
}

// guarded adds faults of the policy, the audit log, the deny list, the KMS plugin and the records to a state.
func (p *Process) guarded(
	state func(context.Context) clusteroperator.State,
) func(context.Context) clusteroperator.State {
	return func(ctx context.Context) clusteroperator.State {
		s := state(ctx)
		refuses, err := p.refuses(ctx)
		if p.announcer != nil {
			p.announcer.Fault(refuses.Message)
		}
		if s.Degraded {
			return s
		}
		if err != nil {
			s.Degraded, s.Reason, s.Message = true, refuses.Reason, refuses.Message
		} else if err := p.Policy.Err(); err != nil {
			s.Degraded, s.Reason, s.Message = true, "PolicyNotInForce",
				"the policy file cannot be used, the former policy stays in force: "+err.Error()
		} else if err := p.kmsFailed(); err != nil {
			s.Degraded, s.Reason, s.Message = true, "RecordKMSFailed",
				"sealed records can be opened while their data key is in memory, new records are refused after three minutes: "+
					err.Error()
		} else if bad := p.unreadable(); len(bad) > 0 {
			s.Degraded, s.Reason = true, "UnreadableRecords"
			s.Message = fmt.Sprintf("%d records cannot be read and are skipped, the first is %s: %s", len(bad), bad[0].Key,
				bad[0].Err)
		}
		return s
	}
}

// refuses returns why this process refuses callers although it is ready, with the error of it.
func (p *Process) refuses(ctx context.Context) (clusteroperator.Objection, error) {
	if err := p.Audit.Check(ctx); err != nil {
		return clusteroperator.Objection{Reason: "AuditLogFailed", Message: "callers' changes are refused: " + err.Error()},
			err
	}
	if err := p.Validity.Lost(); err != nil {
		return clusteroperator.Objection{
			Reason: "RevocationsUnknown", Message: "users and agents are refused: " + err.Error(),
		}, err
	}
	return clusteroperator.Objection{}, nil
}

// Readiness is the state of a service that has nothing further to report: available while it is ready, degraded
// otherwise.
func (p *Process) Readiness(ctx context.Context) clusteroperator.State {
	r, err := p.health.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil || r.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		return clusteroperator.State{Degraded: true, Reason: "NotReady", Message: "the service is not ready"}
	}
	return clusteroperator.State{Available: true}
}
