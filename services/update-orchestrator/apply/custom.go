package apply

import (
	"context"
	"encoding/json"

	apiextensionsv1 "github.com/windlass-dev/windlass/gen/windlass/apiextensions/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/kit/resource"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/windlass-dev/windlass/services/update-orchestrator/custom"
	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// ownKinds is the package of the kinds that this service owns and releases bring: CustomResourceDefinitions, and the
// objects of the kinds that they define.
const ownKinds protoreflect.FullName = "windlass.apiextensions.v1"

// OwnKinds returns the package of the kinds that update-orchestrator itself owns, for Owners.
func OwnKinds() protoreflect.FullName { return ownKinds }

var customObject = (&apiextensionsv1.CustomObject{}).ProtoReflect().Descriptor()

// own reports whether this service owns the kind.
func (k *kind) own() bool { return k.message.ParentFile().Package() == ownKinds }

// address returns the field of a request that names a kind of a CustomResourceDefinition; empty for other fields and
// kinds.
func (k *kind) address(field protoreflect.Name) string {
	if k.message != customObject {
		return ""
	}
	switch field {
	case "group":
		return k.typ.GetGroup()
	case "version":
		return k.typ.GetVersion()
	case "resource":
		return k.typ.GetPlural()
	}
	return ""
}

// customKinds returns the kinds of a definition in the versions that it serves.
func (a *Applier) customKinds(d *custom.Definition) map[[2]string]*kind {
	methods, err := resource.Methods(customObject)
	if err != nil {
		panic(err) // the program was linked without the service
	}
	out := map[[2]string]*kind{}
	for _, t := range custom.Types(d) {
		out[[2]string{object.APIVersion(t), t.GetKind()}] = &kind{
			message: customObject, typ: t, methods: methods, conn: a.custom,
		}
	}
	return out
}

// definitions returns the definitions in the cluster; none for an applier without a cluster, which only prepares.
func (a *Applier) definitions() []*custom.Definition {
	if a.tables == nil {
		return nil
	}
	return a.tables.Definitions.All()
}

// defined returns the kinds that the definitions of a release define, and those that others in the cluster do.
func (a *Applier) defined(p *release.Payload, selected release.Selection) map[[2]string]*kind {
	out := map[[2]string]*kind{}
	add := func(d *custom.Definition) {
		if custom.Served(d.GetSpec().GetGroup()) {
			return
		}
		for id, k := range a.customKinds(d) {
			out[id] = k
		}
	}
	for _, d := range a.definitions() {
		add(d)
	}
	for _, m := range p.Manifests {
		if m.Kind != "CustomResourceDefinition" || selected.Excluded(m) != "" || m.Delete() {
			continue
		}
		if d, err := definition(m); err == nil { // its own task has the error
			add(d)
		}
	}
	return out
}

// definition reads a definition of a release.
func definition(m release.Manifest) (*custom.Definition, error) {
	doc, err := json.Marshal(m.Object)
	if err != nil {
		return nil, err
	}
	d := &custom.Definition{}
	return d, manifest.Decode(doc, d)
}

// ownerOf returns the kind of a manifest; false if it is kept unchanged. A definition of a group that Windlass serves
// itself is kept: its kind has an owner already, or cannot have one.
func (a *Applier) ownerOf(m release.Manifest, defined map[[2]string]*kind) (*kind, bool) {
	id := [2]string{m.APIVersion, m.Kind}
	k, owned := a.kinds[id]
	if !owned {
		k, owned = defined[id]
		return k, owned
	}
	if k.own() {
		spec, _ := m.Object["spec"].(map[string]any)
		if group, ok := spec["group"].(string); ok && custom.Served(group) {
			return nil, false
		}
	}
	return k, true
}

// lookup returns the kind of an object, of another service or of a definition in the cluster.
func (a *Applier) lookup(apiVersion, name string) (*kind, bool) {
	id := [2]string{apiVersion, name}
	if k, ok := a.kinds[id]; ok {
		return k, true
	}
	for _, d := range a.definitions() {
		if k, ok := a.customKinds(d)[id]; ok {
			return k, true
		}
	}
	return nil, false
}

// Place returns a reference to the object of the task with its namespace, if o is that object as it was kept while its
// kind had no owner: the namespace is then as the manifest has it, which may have none. Other references are returned
// as they are.
func (t Task) Place(o *metav1.ObjectReference) *metav1.ObjectReference {
	if t.kind == nil || t.kind.message != customObject || o.GetNamespace() != "" {
		return o
	}
	placed := proto.CloneOf(o)
	placed.Namespace = t.kind.typ.GetDefaultNamespace()
	if plan.Identity(placed) != plan.Identity(t.Object()) {
		return o
	}
	return placed
}

// Apply brings a manifest to where it belongs. What was kept unchanged while its kind had no owner is then removed.
func (a *Applier) Apply(ctx context.Context, t Task, r Release) (Applied, error) {
	out, err := a.bring(ctx, t, r)
	if err != nil || t.kind == nil || !t.kind.own() || t.Delete() {
		return out, err
	}
	kept, ok := a.tables.Manifests.Lookup("", name(t.Manifest))
	if !ok {
		return out, nil
	}
	_, err = a.tables.Manifests.Delete(ctx, "", kept.GetMetadata().GetName(),
		&metav1.Preconditions{Uid: kept.GetMetadata().GetUid()})
	return out, ignoreGone(err)
}
