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
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	programv1 "github.com/windlass-dev/windlass/gen/windlass/program/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/topology"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/update-orchestrator/kinds"
	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// callLimit is how long one call of an owner may take.
const callLimit = 10 * time.Second

// ExcludeID is the name by which manifests are left out of clusters of Windlass.
const ExcludeID = "windlass"

const configGroup = "config.openshift.io"

// appliedBy is the annotation of what releases applied.
const appliedBy = object.AppliedPrefix + topology.UpdateOrchestrator

// Task is one manifest, read and checked.
type Task struct {
	release.Manifest
	Operands []*updatev1.OperandVersion // for a ClusterOperator: the versions that it has to report

	kind   *kind         // nil if no other service owns the kind
	object object.Object // of kind, or the ClusterOperator; nil for what is kept unchanged
}

// Operator reports whether the manifest is a ClusterOperator, which is waited for.
func (t Task) Operator() bool {
	return operatorKind(t.APIVersion, t.Kind)
}

func operatorKind(apiVersion, kind string) bool {
	return apiVersion == configGroup+"/v1" && kind == "ClusterOperator"
}

// Job reports whether the manifest is a Job, which runs once for a release.
func (t Task) Job() bool {
	_, ok := t.object.(*schedulingv1.Job)
	return ok && !t.Delete()
}

// Program returns the program that the manifest is of, or nil.
func (t Task) Program() *programv1.Program {
	p, _ := t.object.(*programv1.Program)
	return p
}

// Hash is the SHA-256 of the manifest, in hexadecimal.
func (t Task) Hash() string {
	sum := sha256.Sum256(t.Content)
	return hex.EncodeToString(sum[:])
}

// Unserved reports whether no service owns the kind of the manifest: it is kept, and nothing acts on it.
func (t Task) Unserved() bool { return t.kind == nil && t.object == nil && t.Wants() }

// Wants reports whether the release wants the object that the manifest describes to be there.
func (t Task) Wants() bool {
	return !t.Delete() && !(t.APIVersion == configGroup+"/v1" && t.Kind == "ClusterVersion")
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
	tables  *kinds.Tables
	kinds   map[[2]string]*kind
	cluster release.Cluster
	runs    []string // names of the programs of the cluster
	pods    schedulingv1.PodServiceClient
	nodes   grpc.ClientConnInterface // the owner of the nodes' configuration
	custom  grpc.ClientConnInterface // to this service's own kinds
}

// New returns an applier that calls the owners of kinds. cluster is what the cluster is, and runs the names of its
// programs: those of others are left out.
func New(tables *kinds.Tables, owners Owners, cluster release.Cluster, runs []string) (*Applier, error) {
	k, err := owners.kinds()
	return &Applier{
		tables: tables, kinds: k, cluster: cluster, runs: runs,
		pods:  schedulingv1.NewPodServiceClient(owners["windlass.scheduling.v1"]),
		nodes: owners["windlass.config.v1"], custom: owners[ownKinds],
	}, err
}

// Prepare reads all manifests of a release that count here, in load order. An error means that the release must not be
// applied: a document does not fit its kind, or two describe one object.
func (a *Applier) Prepare(p *release.Payload) ([]Task, error) {
	var out []Task
	var failed []error
	selected := p.Select(a.cluster)
	defined := a.defined(p, selected)
	files := map[string]string{} // by the identity of the object
	for _, m := range p.Manifests {
		if selected.Excluded(m) != "" {
			continue
		}
		t, err := a.task(m, defined)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %s %q: %w", m.File, m.Kind, m.Name, err))
			continue
		}
		if t.Program() != nil && !slices.Contains(a.runs, t.Name) {
			continue // such as a provider of hosts, where the cluster is on one machine
		}
		id := plan.Identity(t.Object())
		if other, twice := files[id]; twice {
			failed = append(failed, fmt.Errorf("%s: %s %q: %s describes the same object", m.File, m.Kind, m.Name, other))
		}
		files[id] = m.File
		out = append(out, t)
	}
	return out, errors.Join(failed...)
}

func (a *Applier) task(m release.Manifest, defined map[[2]string]*kind) (Task, error) {
	t := Task{Manifest: m}
	doc, err := json.Marshal(m.Object)
	if err != nil {
		return t, err
	}
	switch k, owned := a.ownerOf(m, defined); {
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

// Release is the release that manifests are applied for.
type Release struct {
	Version   string
	Digest    string
	Deletions bool // manifests that ask for a deletion are followed; else they do nothing
}

// Applied is what came of the application of a manifest.
type Applied struct {
	Object  object.Object // as its owner has it then; nil where there is nothing to wait for
	Leaving string        // what an object that has to go first still waits for: the manifest is applied again later
}

// bring applies a manifest where it belongs.
func (a *Applier) bring(ctx context.Context, t Task, r Release) (Applied, error) {
	switch {
	case t.APIVersion == configGroup+"/v1" && t.Kind == "ClusterVersion":
		return Applied{}, nil // the spec of the ClusterVersion belongs to administrators
	case t.Delete():
		if !r.Deletions {
			return Applied{}, nil
		}
		return a.delete(ctx, t)
	case t.Operator():
		return Applied{}, a.ensureOperator(ctx, t)
	case t.kind == nil:
		return Applied{}, a.keep(ctx, t, r.Version)
	case t.Job():
		return a.job(ctx, t, r.Digest)
	case t.CreateOnly():
		out, err := t.kind.call(ctx, resource.Create, t.object)
		if status.Code(err) == codes.AlreadyExists {
			return Applied{}, nil
		}
		return applied(out, err)
	}
	return applied(t.kind.call(ctx, resource.Apply, t.object))
}

func applied(m proto.Message, err error) (Applied, error) {
	if err != nil {
		return Applied{}, err
	}
	o, _ := m.(object.Object)
	return Applied{Object: o}, nil
}

func (a *Applier) delete(ctx context.Context, t Task) (Applied, error) {
	f, err := a.find(ctx, t.Object())
	if err != nil {
		return Applied{}, ignoreGone(err)
	}
	leaving, err := a.remove(ctx, t.Object(), f)
	return Applied{Leaving: leaving}, err
}

// job makes the Job of a release of a digest, unless it did so before. The one of an earlier release has to go first.
func (a *Applier) job(ctx context.Context, t Task, digest string) (Applied, error) {
	f, err := a.find(ctx, t.Object())
	if ignoreGone(err) != nil {
		return Applied{}, err
	}
	live, _ := f.object.(*schedulingv1.Job)
	next, err := plan.NextOfJob(live, appliedBy, digest)
	switch {
	case live != nil && t.CreateOnly() && next != plan.AwaitJob:
		return Applied{}, nil
	case err != nil:
		return Applied{}, err
	case next == plan.AwaitJob:
		return Applied{Object: live}, nil
	case next == plan.ReplaceJob:
		if leaving, err := a.remove(ctx, t.Object(), f); err != nil || leaving != "" {
			return Applied{Leaving: leaving}, err
		}
	}
	pods, err := a.podsOf(ctx, t.Object())
	if err != nil {
		return Applied{}, err
	}
	if leaving := plan.Unended(pods); leaving != "" {
		return Applied{Leaving: leaving}, nil
	}
	made := object.Clone(t.object)
	m := made.GetMetadata()
	m.Annotations = maps.Clone(m.Annotations)
	if m.Annotations == nil {
		m.Annotations = map[string]string{}
	}
	m.Annotations[plan.DigestAnnotation] = digest
	return applied(t.kind.call(ctx, resource.Apply, made))
}

// podsOf returns the pods that Jobs of a name have made.
func (a *Applier) podsOf(ctx context.Context, job *metav1.ObjectReference) ([]*schedulingv1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	list, err := a.pods.ListPods(ctx, &schedulingv1.ListPodsRequest{
		Namespace: job.GetNamespace(), LabelSelector: "batch.kubernetes.io/job-name=" + job.GetName(),
	})
	return list.GetItems(), err
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
	notes := map[string]string{}
	if v, ok := t.Annotations[plan.KeepAnnotation]; ok {
		notes[plan.KeepAnnotation] = v
	}
	_, err := a.tables.Manifests.Modify(ctx, object.Key{Name: name}, func(m *updatev1.Manifest) error {
		m.Spec = spec
		if m.Metadata.Annotations == nil {
			m.Metadata.Annotations = map[string]string{}
		}
		maps.Copy(m.Metadata.Annotations, notes)
		return nil
	})
	if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		return err
	}
	_, err = a.tables.Manifests.Create(ctx, &updatev1.Manifest{
		Metadata: &metav1.ObjectMeta{Name: name, Annotations: notes}, Spec: spec,
	})
	return err
}

// Kept reports whether a manifest that this service keeps itself is there as the release has it. It is true for all
// that are kept elsewhere.
func (a *Applier) Kept(t Task) bool {
	switch {
	case t.kind != nil || !t.Wants():
		return true
	case t.Operator():
		_, ok := a.tables.Operators.Lookup("", t.Name)
		return ok
	}
	m, ok := a.tables.Manifests.Lookup("", name(t.Manifest))
	return ok && (t.CreateOnly() || string(m.GetSpec().GetContent()) == string(t.Content))
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
