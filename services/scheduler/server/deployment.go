package server

import (
	"context"
	"errors"
	"fmt"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/scheduler/kinds"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

// Deployments serves what DeploymentService has beyond the standard methods.
type Deployments struct {
	schedulingv1.UnimplementedDeploymentServiceServer
	Config
}

// NewDeployments returns the custom methods of DeploymentService.
func NewDeployments(cfg Config) *Deployments { return &Deployments{Config: cfg} }

// RollbackDeployment takes a deployment back to an earlier template.
func (s *Deployments) RollbackDeployment(ctx context.Context, r *schedulingv1.RollbackDeploymentRequest) (
	*schedulingv1.Deployment, error,
) {
	key := keyOf(r.GetNamespace(), r.GetName())
	out, err := s.Tables.Deployments.Modify(ctx, key, func(d *schedulingv1.Deployment) error {
		if d.GetSpec().GetPaused() {
			return rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION, "deployments/"+r.GetName(),
				fmt.Sprintf(
					"cannot rollback a paused deployment; resume it first with 'windlass rollout resume deployment/%s' and try again",
					r.GetName()))
		}
		sets := kinds.ManagedBy(s.Tables.ReplicaSets, key.Namespace, d.GetMetadata().GetUid())
		template, err := plan.Rollback(d, sets, int64(r.GetRevision()))
		if errors.Is(err, plan.ErrNoRevision) {
			return rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION, "deployments/"+r.GetName(),
				err.Error())
		}
		if err != nil {
			return err
		}
		d.Spec.Template = proto.CloneOf(template)
		return nil
	})
	if err == nil {
		s.Events.Event(out, "Normal", "DeploymentRollback", "Rolled back deployment \""+r.GetName()+"\"")
	}
	return out, err
}
