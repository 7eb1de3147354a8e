package service

import (
	"context"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/services/gateway/backend"
)

// register adds the REST handlers of every service that has some. A test compares it with the catalog.
func register(router *backend.Router, events eventv1.EventServiceClient, access metav1.AccessServiceClient) func(context.Context, *runtime.ServeMux) error {
	return func(ctx context.Context, mux *runtime.ServeMux) error {
		for _, add := range []func() error{
			func() error {
				return machinev1.RegisterMachineServiceHandlerClient(ctx, mux, machinev1.NewMachineServiceClient(router))
			},
			func() error {
				return machinev1.RegisterMachineSetServiceHandlerClient(ctx, mux, machinev1.NewMachineSetServiceClient(router))
			},
			func() error {
				return machinev1.RegisterControlPlaneMachineSetServiceHandlerClient(ctx, mux, machinev1.NewControlPlaneMachineSetServiceClient(router))
			},
			func() error {
				return machinev1.RegisterInfrastructureServiceHandlerClient(ctx, mux, machinev1.NewInfrastructureServiceClient(router))
			},
			func() error {
				return machinev1.RegisterRevocationServiceHandlerClient(ctx, mux, machinev1.NewRevocationServiceClient(router))
			},
			func() error {
				return machinev1.RegisterJoinServiceHandlerClient(ctx, mux, machinev1.NewJoinServiceClient(router))
			},
			func() error {
				return hookv1.RegisterHookTaskServiceHandlerClient(ctx, mux, hookv1.NewHookTaskServiceClient(router))
			},
			func() error {
				return hookv1.RegisterHookOwnerServiceHandlerClient(ctx, mux, hookv1.NewHookOwnerServiceClient(router))
			},
			func() error {
				return etcdv1.RegisterQuorumServiceHandlerClient(ctx, mux, etcdv1.NewQuorumServiceClient(router))
			},
			func() error {
				return nodev1.RegisterNodeServiceHandlerClient(ctx, mux, nodev1.NewNodeServiceClient(router))
			},
			func() error {
				return nodev1.RegisterDrainServiceHandlerClient(ctx, mux, nodev1.NewDrainServiceClient(router))
			},
			func() error {
				return schedulingv1.RegisterNamespaceServiceHandlerClient(ctx, mux, schedulingv1.NewNamespaceServiceClient(router))
			},
			func() error {
				return schedulingv1.RegisterPodServiceHandlerClient(ctx, mux, schedulingv1.NewPodServiceClient(router))
			},
			func() error {
				return schedulingv1.RegisterReplicaSetServiceHandlerClient(ctx, mux, schedulingv1.NewReplicaSetServiceClient(router))
			},
			func() error {
				return schedulingv1.RegisterReplicationControllerServiceHandlerClient(ctx, mux, schedulingv1.NewReplicationControllerServiceClient(router))
			},
			func() error {
				return schedulingv1.RegisterDeploymentServiceHandlerClient(ctx, mux, schedulingv1.NewDeploymentServiceClient(router))
			},
			func() error {
				return schedulingv1.RegisterDaemonSetServiceHandlerClient(ctx, mux, schedulingv1.NewDaemonSetServiceClient(router))
			},
			func() error {
				return schedulingv1.RegisterStatefulSetServiceHandlerClient(ctx, mux, schedulingv1.NewStatefulSetServiceClient(router))
			},
			func() error {
				return schedulingv1.RegisterJobServiceHandlerClient(ctx, mux, schedulingv1.NewJobServiceClient(router))
			},
			func() error {
				return schedulingv1.RegisterServiceServiceHandlerClient(ctx, mux, schedulingv1.NewServiceServiceClient(router))
			},
			func() error {
				return schedulingv1.RegisterPodDisruptionBudgetServiceHandlerClient(ctx, mux, schedulingv1.NewPodDisruptionBudgetServiceClient(router))
			},
			func() error {
				return schedulingv1.RegisterPersistentVolumeServiceHandlerClient(ctx, mux, schedulingv1.NewPersistentVolumeServiceClient(router))
			},
			func() error {
				return schedulingv1.RegisterPersistentVolumeClaimServiceHandlerClient(ctx, mux, schedulingv1.NewPersistentVolumeClaimServiceClient(router))
			},
			func() error {
				return schedulingv1.RegisterPolicyServiceHandlerClient(ctx, mux, schedulingv1.NewPolicyServiceClient(router))
			},
			func() error {
				return schedulingv1.RegisterAdmissionConfigServiceHandlerClient(ctx, mux, schedulingv1.NewAdmissionConfigServiceClient(router))
			},
			func() error {
				return schedulingv1.RegisterKubernetesMasterConfigServiceHandlerClient(ctx, mux, schedulingv1.NewKubernetesMasterConfigServiceClient(router))
			},
			func() error {
				return schedulingv1.RegisterEvictionServiceHandlerClient(ctx, mux, schedulingv1.NewEvictionServiceClient(router))
			},
			func() error {
				return configv1.RegisterMachineConfigServiceHandlerClient(ctx, mux, configv1.NewMachineConfigServiceClient(router))
			},
			func() error {
				return configv1.RegisterMachineConfigPoolServiceHandlerClient(ctx, mux, configv1.NewMachineConfigPoolServiceClient(router))
			},
			func() error {
				return updatev1.RegisterClusterVersionServiceHandlerClient(ctx, mux, updatev1.NewClusterVersionServiceClient(router))
			},
			func() error {
				return updatev1.RegisterClusterOperatorServiceHandlerClient(ctx, mux, updatev1.NewClusterOperatorServiceClient(router))
			},
			func() error {
				return updatev1.RegisterReleaseServiceHandlerClient(ctx, mux, updatev1.NewReleaseServiceClient(router))
			},
			func() error {
				return updatev1.RegisterManifestServiceHandlerClient(ctx, mux, updatev1.NewManifestServiceClient(router))
			},
			func() error { return metav1.RegisterAccessServiceHandlerClient(ctx, mux, access) },
			func() error { return eventv1.RegisterEventServiceHandlerClient(ctx, mux, events) },
		} {
			if err := add(); err != nil {
				return err
			}
		}
		return nil
	}
}
