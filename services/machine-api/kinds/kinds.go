// Package kinds holds the tables of the kinds that machine-api owns, and the rules by which their objects may be written.
package kinds

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"buf.build/go/protovalidate"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"golang.org/x/sync/errgroup"
)

// ClusterName is the one name of the control-plane machine set and of the infrastructure.
const ClusterName = "cluster"

// Tables are the kinds of machine-api.
type Tables struct {
	Machines       *resource.Table[*machinev1.Machine]
	Sets           *resource.Table[*machinev1.MachineSet]
	ControlPlanes  *resource.Table[*machinev1.ControlPlaneMachineSet]
	Infrastructure *resource.Table[*machinev1.Infrastructure]
	Revocations    *resource.Table[*machinev1.Revocation]
	// NodeLifetime is how long a machine's certificate lives; New sets 24 hours. Set it before Run.
	NodeLifetime time.Duration
	store        *store.Store
	policy       *identity.Policy
}

// New returns the tables in a store. policy says who may remove the hooks of a machine that is being deleted.
func New(st *store.Store, v protovalidate.Validator, policy *identity.Policy, log *slog.Logger) *Tables {
	t := &Tables{store: st, policy: policy, NodeLifetime: 24 * time.Hour}
	t.Infrastructure = resource.NewTable(st, v, resource.Config[*machinev1.Infrastructure]{Log: log})
	t.Machines = resource.NewTable(st, v, resource.Config[*machinev1.Machine]{
		Default: t.defaultMachine, Validate: validateMachine, ValidateUpdate: validateMachineUpdate, Admit: t.admitMachine, Claims: machineClaims,
		HasNamespace: hasNamespace, Finalizers: []string{plan.FinalizerMachine}, Log: log,
	})
	t.Sets = resource.NewTable(st, v, resource.Config[*machinev1.MachineSet]{
		Default: t.defaultSet, Validate: validateSet, ValidateUpdate: validateSetUpdate, Admit: t.admitSet, HasNamespace: hasNamespace, Log: log,
	})
	t.ControlPlanes = resource.NewTable(st, v, resource.Config[*machinev1.ControlPlaneMachineSet]{
		Default: t.defaultControlPlane, Validate: validateControlPlane, ValidateUpdate: validateControlPlaneUpdate,
		HasNamespace: hasNamespace, Finalizers: []string{plan.FinalizerControlPlane}, Log: log,
	})
	t.Revocations = resource.NewTable(st, v, resource.Config[*machinev1.Revocation]{
		Default: t.defaultRevocation, Validate: validateRevocation, ValidateUpdate: validateRevocationUpdate, Log: log,
	})
	return t
}

// Run keeps all tables in step until ctx ends.
func (t *Tables) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{t.Machines.Run, t.Sets.Run, t.ControlPlanes.Run, t.Infrastructure.Run, t.Revocations.Run} {
		group.Go(func() error { return run(ctx) })
	}
	return group.Wait()
}

// Synced returns nil once every table shows what etcd held when it was asked; for readiness.
func (t *Tables) Synced(ctx context.Context) error {
	for _, wait := range []func(context.Context) error{t.Machines.WaitSynced, t.Sets.WaitSynced, t.ControlPlanes.WaitSynced, t.Infrastructure.WaitSynced, t.Revocations.WaitSynced} {
		if err := wait(ctx); err != nil {
			return fmt.Errorf("tables are not filled yet: %w", err)
		}
	}
	return nil
}

// CatchUp returns once the tables show everything that was written before the call, by whoever led before.
func (t *Tables) CatchUp(ctx context.Context) error {
	for _, k := range []struct {
		prefix string
		wait   func(context.Context, int64) error
	}{
		{t.Machines.Type().GetPlural(), t.Machines.WaitRevision},
		{t.Sets.Type().GetPlural(), t.Sets.WaitRevision},
		{t.ControlPlanes.Type().GetPlural(), t.ControlPlanes.WaitRevision},
		{t.Infrastructure.Type().GetPlural(), t.Infrastructure.WaitRevision},
		{t.Revocations.Type().GetPlural(), t.Revocations.WaitRevision},
	} {
		page, err := t.store.List(ctx, k.prefix+"/", store.ListOptions{})
		if err != nil {
			return err
		}
		// The newest record's own revision, and not the list's: a quiet kind would hear of that one only with the next sign of life.
		var newest int64
		for _, r := range page.Records {
			newest = max(newest, r.Revision)
		}
		if err := k.wait(ctx, newest); err != nil {
			return err
		}
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

func fields(list []plan.Violation) []rpcerr.Field {
	var out []rpcerr.Field
	for _, v := range list {
		out = append(out, rpcerr.Field{Path: v.Field, Description: v.Description})
	}
	return out
}
