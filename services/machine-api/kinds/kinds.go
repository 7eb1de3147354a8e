// Package kinds holds the tables of the kinds that machine-api owns, and the rules by which their objects may be
// written.
package kinds

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"buf.build/go/protovalidate"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"google.golang.org/protobuf/types/known/structpb"
)

// ClusterName is the one name of the control-plane machine set and of the infrastructure.
const ClusterName = "cluster"

// AutoscalerName is the one name of the cluster autoscaler.
const AutoscalerName = "default"

// Tables are the kinds of machine-api.
type Tables struct {
	Machines       *resource.Table[*machinev1.Machine]
	Sets           *resource.Table[*machinev1.MachineSet]
	ControlPlanes  *resource.Table[*machinev1.ControlPlaneMachineSet]
	Infrastructure *resource.Table[*machinev1.Infrastructure]
	Revocations    *resource.Table[*machinev1.Revocation]
	HealthChecks   *resource.Table[*machinev1.MachineHealthCheck]
	Autoscalers    *resource.Table[*machinev1.MachineAutoscaler]
	// ClusterAutoscalers has at most one object, named AutoscalerName.
	ClusterAutoscalers *resource.Table[*machinev1.ClusterAutoscaler]
	// NodeLifetime is how long a machine's certificate lives; New sets 24 hours. Set it before Run.
	NodeLifetime time.Duration
	// DomainFields says where the provider of a provider spec has the settings of a failure domain; known is false while
	// that is unknown. If it is nil, they are at the same paths. Set it before Run.
	DomainFields func(spec *structpb.Struct) (fields map[string]string, known bool)
	// CheckSpec returns the faults of a provider spec, with paths from the spec on, and warnings; nil means that none is
	// checked. Set it before Run.
	CheckSpec func(spec *structpb.Struct) (bad []object.Fault, warnings []string)
	store     *store.Store
	policy    *identity.Policy
}

// Indexes of machines.
const (
	ByUID      = "metadata.uid"
	ByNode     = "node" // by the names that the machine's node may have
	ByInstance = "spec.providerID"
	ByAddress  = "address" // by its addresses inside the cluster, as plan.InternalAddresses writes them
	Unowned    = "unowned" // by the namespace of those without a controller
	Masters    = "masters" // by the namespace of those of the control plane
)

// ByRemediator is the index of revocations by the health check that had the machine deleted, as NAMESPACE/NAME.
const ByRemediator = "remediator"

// New returns the tables in a store. policy says who may remove the hooks of a machine that is being deleted.
func New(st *store.Store, v protovalidate.Validator, policy *identity.Policy, log *slog.Logger) *Tables {
	t := &Tables{store: st, policy: policy, NodeLifetime: 24 * time.Hour}
	t.Infrastructure = resource.NewTable(st, v, resource.Config[*machinev1.Infrastructure]{
		Admit: admitInfrastructure, Log: log,
	})
	t.Machines = resource.NewTable(st, v, resource.Config[*machinev1.Machine]{
		Default: t.defaultMachine, Validate: validateMachine, ValidateUpdate: validateMachineUpdate, Admit: t.admitMachine,
		Claims: machineClaims, Mark: markDeletion,
		Indexes: map[string]func(*machinev1.Machine) []string{
			ByUID: func(m *machinev1.Machine) []string { return []string{m.GetMetadata().GetUid()} },
			ByNode: func(m *machinev1.Machine) []string {
				return []string{m.GetMetadata().GetName(), m.GetStatus().GetNodeRef().GetName()}
			},
			ByInstance: func(m *machinev1.Machine) []string { return []string{m.GetSpec().GetProviderId()} },
			ByAddress: func(m *machinev1.Machine) []string {
				return plan.InternalAddresses(m.GetStatus().GetAddresses())
			},
			Unowned: func(m *machinev1.Machine) []string {
				if object.ControllerOf(m) != nil {
					return nil
				}
				return []string{m.GetMetadata().GetNamespace()}
			},
			Masters: func(m *machinev1.Machine) []string {
				if plan.Role(m) != plan.RoleMaster {
					return nil
				}
				return []string{m.GetMetadata().GetNamespace()}
			},
		},
		HasNamespace: hasNamespace, Finalizers: []string{plan.FinalizerMachine}, Log: log,
	})
	t.Sets = resource.NewTable(st, v, resource.Config[*machinev1.MachineSet]{
		Default: t.defaultSet, Validate: validateSet, ValidateUpdate: validateSetUpdate, Admit: t.admitSet, Owns: true,
		HasNamespace: hasNamespace, Log: log,
	})
	t.ControlPlanes = resource.NewTable(st, v, resource.Config[*machinev1.ControlPlaneMachineSet]{
		Default: t.defaultControlPlane, Validate: validateControlPlane, ValidateUpdate: validateControlPlaneUpdate,
		Admit:        t.admitControlPlane,
		HasNamespace: hasNamespace, Finalizers: []string{plan.FinalizerControlPlane}, Log: log,
	})
	t.Revocations = resource.NewTable(st, v, resource.Config[*machinev1.Revocation]{
		Default: t.defaultRevocation, Validate: validateRevocation, ValidateUpdate: validateRevocationUpdate, Log: log,
		Indexes: map[string]func(*machinev1.Revocation) []string{
			ByRemediator: func(r *machinev1.Revocation) []string {
				return []string{r.GetMetadata().GetAnnotations()[plan.AnnotationRemediatedBy]}
			},
		},
	})
	t.HealthChecks = resource.NewTable(st, v, resource.Config[*machinev1.MachineHealthCheck]{
		Default: defaultHealthCheck, Validate: plan.HealthCheckFaults, HasNamespace: hasNamespace, Log: log,
	})
	t.Autoscalers = resource.NewTable(st, v, resource.Config[*machinev1.MachineAutoscaler]{
		Validate: plan.MachineAutoscalerFaults, HasNamespace: hasNamespace, Log: log,
	})
	t.ClusterAutoscalers = resource.NewTable(st, v, resource.Config[*machinev1.ClusterAutoscaler]{
		Validate: plan.ClusterAutoscalerFaults, Admit: admitClusterAutoscaler, Log: log,
	})
	return t
}

// All returns all tables.
func (t *Tables) All() []resource.Served {
	return []resource.Served{
		t.Machines, t.Sets, t.ControlPlanes, t.Infrastructure, t.Revocations, t.HealthChecks,
		t.Autoscalers, t.ClusterAutoscalers,
	}
}

// admitInfrastructure refuses to delete what names the cluster: no control-plane machine could be created without it.
func admitInfrastructure(w *resource.Write[*machinev1.Infrastructure]) error {
	if w.Deletes() {
		return rpcerr.Forbidden(fmt.Sprintf("infrastructure %q may not be deleted: it always exists", ClusterName))
	}
	return nil
}

// InfrastructureName returns the name of the cluster at its provider; empty while it is not known.
func (t *Tables) InfrastructureName() string {
	i, ok := t.Infrastructure.Lookup("", ClusterName)
	if !ok {
		return ""
	}
	return i.GetStatus().GetInfrastructureName()
}

// hasNamespace knows the built-in namespaces, which always exist.
func hasNamespace(ns string) bool {
	return slices.Contains([]string{"default", "openshift-machine-api"}, ns)
}
