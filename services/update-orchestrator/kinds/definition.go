package kinds

import (
	apiextensionsv1 "github.com/windlass-dev/windlass/gen/windlass/apiextensions/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/update-orchestrator/custom"
)

// definitions are the rules of CustomResourceDefinitions.
func definitions() resource.Config[*apiextensionsv1.CustomResourceDefinition] {
	return resource.Config[*apiextensionsv1.CustomResourceDefinition]{
		Default: custom.Default, Validate: definitionFaults, ValidateUpdate: custom.UpdateFaults, Admit: admitDefinition,
		Finalizers: []string{custom.Finalizer}, Owns: true,
	}
}

func definitionFaults(d *apiextensionsv1.CustomResourceDefinition) []object.Fault {
	if len(d.GetSpec().GetVersions()) == 0 {
		return nil // refused by its proto
	}
	return custom.Faults(d)
}

// admitDefinition leaves the status to this service.
func admitDefinition(w *resource.Write[*apiextensionsv1.CustomResourceDefinition]) error {
	if w.Own || w.Creates() || w.Deletes() {
		return nil
	}
	old, next := proto.CloneOf(w.Old.GetStatus()), proto.CloneOf(w.New.GetStatus())
	if old != nil && next != nil {
		old.StoredVersions, next.StoredVersions = nil, nil // a change of the storage version adds it
	}
	if !proto.Equal(old, next) {
		return rpcerr.Forbidden("the status of a CustomResourceDefinition is written by update-orchestrator alone")
	}
	return nil
}
