package apply

import (
	"context"
	"encoding/json"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/clusteroperator"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// controlPlanePool is the name of the pool of the control plane's nodes.
const controlPlanePool = "master"

// poolEvery is how often the pool is read while it is waited for.
const poolEvery = time.Second

// NodeTask is the operator of the nodes' configuration for a release without a manifest of it: nothing is applied.
func NodeTask(version string) Task {
	return Task{
		Manifest: release.Manifest{APIVersion: configGroup + "/v1", Kind: "ClusterOperator", Name: plan.NodeOperator},
		Operands: []*updatev1.OperandVersion{{Name: clusteroperator.Operand, Version: version}},
	}
}

// FollowNodes calls see with how far the nodes of the control plane have come, until they have what their machine
// configurations make, ctx ends, or their owner does not answer. Their pool is marked then: its operator reports the
// version. A cluster without the pool has nothing to wait for.
func (a *Applier) FollowNodes(ctx context.Context, version string, see func(plan.Rollout)) error {
	for again := time.NewTicker(poolEvery); ; {
		r, err := a.controlPlane(ctx, version)
		if err != nil {
			again.Stop()
			return err
		}
		if see(r); r.Ready {
			again.Stop()
			return nil
		}
		select {
		case <-ctx.Done():
			again.Stop()
			return ctx.Err()
		case <-again.C:
		}
	}
}

func (a *Applier) controlPlane(ctx context.Context, version string) (plan.Rollout, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	pools := configv1.NewMachineConfigPoolServiceClient(a.nodes)
	pool, err := pools.GetMachineConfigPool(ctx, &configv1.GetMachineConfigPoolRequest{Name: controlPlanePool})
	switch {
	case status.Code(err) == codes.NotFound:
		return plan.Rollout{Ready: true, Missing: true}, nil
	case err != nil:
		return plan.Rollout{}, err
	}
	rendered, err := configv1.NewMachineConfigServiceClient(a.nodes).RenderMachineConfig(ctx,
		&configv1.RenderMachineConfigRequest{PoolName: controlPlanePool})
	if status.Code(err) == codes.FailedPrecondition { // the status of the pool says so, too
		return plan.ControlPlane(pool, "", status.Convert(err).Message()), nil
	}
	if err != nil {
		return plan.Rollout{}, err
	}
	r := plan.ControlPlane(pool, rendered.GetMachineConfig().GetMetadata().GetName(), "")
	if !r.Ready || pool.GetMetadata().GetAnnotations()[clusteroperator.ReleaseAnnotation] == version {
		return r, nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": pool.GetMetadata().GetResourceVersion(),
		"annotations":     map[string]any{clusteroperator.ReleaseAnnotation: version},
	}})
	if err != nil {
		return plan.Rollout{}, err
	}
	_, err = pools.PatchMachineConfigPool(ctx, &configv1.PatchMachineConfigPoolRequest{
		Name: controlPlanePool, Patch: &httpbody.HttpBody{ContentType: manifest.MergePatch, Data: patch},
	})
	return r, err
}
