// Package apply brings one manifest of a release to where it belongs: to the service that owns its kind, to this
// service's own cluster operators, or, for a kind without an owner, to the manifests that are kept unchanged.
// Everything it does may be done again. It decides nothing about order.
package apply

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/update-orchestrator/kinds"
)

// callLimit is how long one call of an owner may take.
const callLimit = 10 * time.Second

// What a manifest must say to be applied here. The documents' own profile is the one that everybody's manifests name.
const (
	excludeID = "windlass"
	profile   = "self-managed-high-availability"
)

const configGroup = "config.openshift.io"

// Task is one manifest, read and checked.
type Task struct {
	release.Manifest
	Operands []*updatev1.OperandVersion // for a ClusterOperator: the versions that it has to report

	kind   *kind         // nil if no other service owns the kind
	object object.Object // of kind, or the ClusterOperator; nil for what is kept unchanged
}

// Operator reports whether the manifest is a ClusterOperator, which is waited for.
func (t Task) Operator() bool {
	return t.APIVersion == configGroup+"/v1" && t.Kind == "ClusterOperator"
}

// Object returns a reference to the object that the manifest describes.
func (t Task) Object() *metav1.ObjectReference {
	ref := &metav1.ObjectReference{ApiVersion: t.APIVersion, Kind: t.Kind, Namespace: t.Namespace, Name: t.Name}
	if t.kind != nil {
		key := t.kind.key(t.object)
		ref.Namespace, ref.Name = key.Namespace, key.Name
	}
	return ref
}

// Applier applies manifests. It is safe for concurrent use.
type Applier struct {
	tables *kinds.Tables
	kinds  map[[2]string]*kind
}

// New returns an applier that calls the owners of kinds.
func New(tables *kinds.Tables, owners Owners) (*Applier, error) {
	k, err := owners.kinds()
	return &Applier{tables: tables, kinds: k}, err
}

// Prepare reads all manifests of a release that count here, in load order. An error means that the release must not be
// applied: a document does not fit its kind.
func (a *Applier) Prepare(p *release.Payload) ([]Task, error) {
	var out []Task
	var failed []error
	for _, m := range p.Manifests {
		if m.Excluded(excludeID, profile) != "" {
			continue
		}
		t, err := a.task(m)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %s %q: %w", m.File, m.Kind, m.Name, err))
			continue
		}
		out = append(out, t)
	}
	return out, errors.Join(failed...)
}

func (a *Applier) task(m release.Manifest) (Task, error) {
	t := Task{Manifest: m}
	doc, err := json.Marshal(m.Object)
	if err != nil {
		return t, err
	}
	switch k, owned := a.kinds[[2]string{m.APIVersion, m.Kind}]; {
	case owned:
		t.kind = k
		t.object, err = k.decode(doc)
		if err == nil && k.methods[resource.Apply] == nil {
			err = errors.New("the kind is made by its service alone")
		}
	case t.Operator():
		o := &updatev1.ClusterOperator{}
		err = manifest.Decode(doc, o)
		t.Operands, o.Status, t.object = o.GetStatus().GetVersions(), nil, o
	}
	return t, err
}

// Apply brings a manifest to where it belongs and returns the object as its owner has it then; nil where there is
// nothing to wait for. deletions says whether manifests that ask for a deletion are followed; else they do nothing.
func (a *Applier) Apply(ctx context.Context, t Task, version string, deletions bool) (object.Object, error) {
	switch {
	case t.APIVersion == configGroup+"/v1" && t.Kind == "ClusterVersion":
		return nil, nil // the spec of the ClusterVersion belongs to administrators
	case t.Delete():
		if !deletions {
			return nil, nil
		}
		return nil, ignoreGone(a.delete(ctx, t))
	case t.Operator():
		return nil, a.ensureOperator(ctx, t)
	case t.kind == nil:
		return nil, a.keep(ctx, t, version)
	case t.CreateOnly():
		out, err := t.kind.call(ctx, resource.Create, t.object)
		if status.Code(err) == codes.AlreadyExists {
			return nil, nil
		}
		return asObject(out, err)
	}
	return asObject(t.kind.call(ctx, resource.Apply, t.object))
}

func asObject(m proto.Message, err error) (object.Object, error) {
	if err != nil {
		return nil, err
	}
	o, _ := m.(object.Object)
	return o, nil
}

func (a *Applier) delete(ctx context.Context, t Task) error {
	var err error
	switch {
	case t.Operator():
		_, err = a.tables.Operators.Delete(ctx, "", t.Name, nil)
	case t.kind == nil:
		_, err = a.tables.Manifests.Delete(ctx, "", name(t.Manifest), nil)
	default:
		_, err = t.kind.call(ctx, resource.Delete, t.object)
	}
	return err
}

func ignoreGone(err error) error {
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}

// ensureOperator makes the ClusterOperator of a manifest if it is not there, so that people see what will be waited
// for.
func (a *Applier) ensureOperator(ctx context.Context, t Task) error {
	if _, ok := a.tables.Operators.Lookup("", t.Name); ok || t.Delete() {
		return nil
	}
	o, ok := t.object.(*updatev1.ClusterOperator)
	if !ok {
		return nil
	}
	_, err := a.tables.Operators.Create(ctx, o)
	if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
		return nil
	}
	return err
}

// keep stores a manifest of a kind without an owner.
func (a *Applier) keep(ctx context.Context, t Task, version string) error {
	spec := &updatev1.ManifestSpec{Object: t.Object(), File: t.File, Version: version, Content: t.Content}
	name := name(t.Manifest)
	if old, ok := a.tables.Manifests.Lookup("", name); ok {
		if t.CreateOnly() || proto.Equal(old.GetSpec(), spec) {
			return nil
		}
	}
	_, err := a.tables.Manifests.Modify(ctx, object.Key{Name: name}, func(m *updatev1.Manifest) error {
		m.Spec = spec
		return nil
	})
	if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		return err
	}
	_, err = a.tables.Manifests.Create(ctx, &updatev1.Manifest{Metadata: &metav1.ObjectMeta{Name: name}, Spec: spec})
	return err
}

// Kept reports whether a manifest that is kept unchanged is there as the release has it. It is true for all that are
// kept elsewhere.
func (a *Applier) Kept(t Task) bool {
	if t.kind != nil || t.object != nil || t.Delete() || t.CreateOnly() || t.Kind == "ClusterVersion" {
		return true
	}
	m, ok := a.tables.Manifests.Lookup("", name(t.Manifest))
	return ok && string(m.GetSpec().GetContent()) == string(t.Content)
}

// name returns the name under which a manifest is kept: kind, group, namespace and name of its object as far as a name
// can hold them, and a hash of them, since two objects may read alike.
func name(m release.Manifest) string {
	const most = 200 // of the 253 characters that a name may have
	parts := slices.DeleteFunc([]string{m.Kind, m.Group(), m.Namespace, m.Name}, func(p string) bool { return p == "" })
	words := strings.FieldsFunc(strings.ToLower(strings.Join(parts, "-")), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	})
	text := strings.Join(words, "-")
	sum := sha256.Sum256([]byte(strings.Join([]string{m.Group(), m.Kind, m.Namespace, m.Name}, "/")))
	return text[:min(len(text), most)] + "-" + hex.EncodeToString(sum[:4])
}
