// Package kinds says what the kinds of this service are beyond the shape of their messages: which writes are refused.
package kinds

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"buf.build/go/protovalidate"
	apiextensionsv1 "github.com/windlass-dev/windlass/gen/windlass/apiextensions/v1"
	programv1 "github.com/windlass-dev/windlass/gen/windlass/program/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/maintenance"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/kit/topology"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// Version is the name of the one ClusterVersion.
const Version = "version"

// Tables are the records of this service.
type Tables struct {
	Versions  *resource.Table[*updatev1.ClusterVersion]
	Operators *resource.Table[*updatev1.ClusterOperator]
	Releases  *resource.Table[*updatev1.Release]
	Manifests *resource.Table[*updatev1.Manifest]
	Programs  *resource.Table[*programv1.Program]
	Windows   *resource.Table[*updatev1.MaintenanceWindow]

	Definitions *resource.Table[*apiextensionsv1.CustomResourceDefinition]
}

// New returns the tables over a store. Nothing is read before they run.
func New(st *store.Store, validator protovalidate.Validator, log *slog.Logger) *Tables {
	definitions := definitions()
	definitions.Log = log
	return &Tables{
		Definitions: resource.NewTable(st, validator, definitions),
		Versions: resource.NewTable(st, validator, resource.Config[*updatev1.ClusterVersion]{
			Validate: specFaults, Admit: admitVersion, Log: log,
		}),
		// Who may write an operator's status is the policy's to say: it has a right of its own.
		Operators: resource.NewTable(st, validator, resource.Config[*updatev1.ClusterOperator]{Log: log}),
		Releases: resource.NewTable(st, validator, resource.Config[*updatev1.Release]{
			Admit: ownOnly[*updatev1.Release]("releases are written by update-orchestrator alone"), KeepStatus: true, Log: log,
		}),
		Manifests: resource.NewTable(st, validator, resource.Config[*updatev1.Manifest]{Admit: admitManifest, Log: log}),
		Windows: resource.NewTable(st, validator, resource.Config[*updatev1.MaintenanceWindow]{
			Validate: maintenance.Faults, Admit: admitWindow, Log: log,
		}),
		Programs: resource.NewTable(st, validator, resource.Config[*programv1.Program]{
			Validate: programFaults, Admit: admitProgram, Log: log,
		}),
	}
}

// Cluster returns the one ClusterVersion; callers must not modify it.
func (t *Tables) Cluster() (*updatev1.ClusterVersion, bool) { return t.Versions.Lookup("", Version) }

func admitVersion(w *resource.Write[*updatev1.ClusterVersion]) error {
	if w.Own {
		return nil
	}
	if !w.Deletes() && w.New.GetSpec().GetPause() != nil {
		pause := plan.Pausing(w.Old.GetSpec().GetPause(), w.New.GetSpec().GetPause(), w.By.User, time.Now())
		if w.New.Spec.Pause = pause; pause.GetUntil() != nil && !pause.GetUntil().AsTime().After(pause.GetSince().AsTime()) {
			return rpcerr.Invalid(object.Fault{Path: "spec.pause.until", Description: "must be later than now"})
		}
	}
	if !w.Deletes() {
		for i, s := range w.New.GetSpec().GetSignatureStores() {
			if s.GetCa().GetName() != "" {
				w.Warn(fmt.Sprintf("spec.signatureStores[%d].ca: it is not in force: the host's authorities are trusted", i))
			}
		}
	}
	switch {
	case w.Creates():
		return nil
	case !w.Deletes() && !proto.Equal(w.Old.GetSpec().GetCapabilities(), w.New.GetSpec().GetCapabilities()):
		if faults := plan.CapabilityFaults(w.New.GetSpec().GetCapabilities()); len(faults) > 0 {
			return rpcerr.Invalid(faults...)
		}
	}
	switch {
	case w.Deletes():
		return rpcerr.Forbidden("the version of a cluster cannot be deleted")
	case !proto.Equal(w.Old.GetStatus(), w.New.GetStatus()):
		return rpcerr.Forbidden("the status of a ClusterVersion is written by update-orchestrator alone")
	}
	if text := plan.Carried(w.Old.GetSpec().GetDesiredUpdate(), w.New.GetSpec().GetDesiredUpdate()); text != "" {
		w.Warn(text)
	}
	for _, text := range plan.CapabilityWarnings(w.New.GetSpec().GetCapabilities(), w.New.GetStatus().GetCapabilities()) {
		w.Warn(text)
	}
	return nil
}

// specFaults returns what no ClusterVersion may say. What else is wrong with one is said by its condition Invalid.
func specFaults(v *updatev1.ClusterVersion) []object.Fault {
	u := v.GetSpec().GetDesiredUpdate()
	if u.GetArchitecture() != "" && u.GetImage() != "" {
		return []object.Fault{
			{Path: "spec.desiredUpdate.architecture", Description: "cannot be given together with an image"},
		}
	}
	return nil
}

func ownOnly[T object.Object](refusal string) func(*resource.Write[T]) error {
	return func(w *resource.Write[T]) error {
		if w.Own {
			return nil
		}
		return rpcerr.Forbidden(refusal)
	}
}

// admitManifest refuses manifests that no release brought. A change or a deletion is let through: it is put back, as in
// any object of a release.
func admitManifest(w *resource.Write[*updatev1.Manifest]) error {
	if w.Own || !w.Creates() {
		return nil
	}
	return rpcerr.Forbidden(fmt.Sprintf("manifest %q: manifests come from releases alone", w.New.GetMetadata().GetName()))
}

// admitWindow leaves what only this service writes as it was.
func admitWindow(w *resource.Write[*updatev1.MaintenanceWindow]) error {
	if !w.Own && !w.Deletes() && !proto.Equal(w.Old.GetStatus(), w.New.GetStatus()) {
		return rpcerr.Forbidden("the status of a maintenance window is written by update-orchestrator alone")
	}
	return nil
}

// supervisor is the user as which the supervisors of programs call.
const supervisor = "supervisor"

func programFaults(p *programv1.Program) []object.Fault {
	if slices.Contains(topology.UpdateOrder(), p.GetMetadata().GetName()) {
		return nil
	}
	return []object.Fault{{
		Path: "metadata.name",
		Description: "must be a program of Windlass: " + strings.Join(slices.Sorted(slices.Values(topology.UpdateOrder())),
			", "),
	}}
}

// admitProgram refuses programs that no release brought: who could write one could run any executable with the rights
// of the cluster itself. Source: DESIGN section 8, only what is signed is applied.
func admitProgram(w *resource.Write[*programv1.Program]) error {
	if !w.Own && !w.Creates() && !w.Deletes() && w.By.User != supervisor &&
		(!proto.Equal(w.Old.GetStatus(), w.New.GetStatus()) ||
			!slices.Equal(w.Old.GetMetadata().GetFinalizers(), w.New.GetMetadata().GetFinalizers())) {
		return rpcerr.Forbidden("the status and the finalizers of programs are written by the supervisor alone")
	}
	same := !w.Creates() && !w.Deletes() && proto.Equal(w.Old.GetSpec(), w.New.GetSpec())
	if w.Own || same || w.By.User == identity.ServiceUser(topology.UpdateOrchestrator) {
		return nil
	}
	return rpcerr.Forbidden("programs come from releases alone: their spec is written by update-orchestrator")
}
