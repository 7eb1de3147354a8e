package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// RevisionHashLabel is the label of a pod that says of which revision of its stateful set or daemon set it is.
const RevisionHashLabel = "controller-revision-hash"

// templateData returns a template as the data of a ControllerRevision. Templates that TemplateFault accepts have data.
func templateData(t *schedulingv1.PodTemplateSpec) (*structpb.Struct, error) {
	raw, err := protojson.Marshal(t)
	if err != nil {
		return nil, err
	}
	template := &structpb.Struct{}
	if err := protojson.Unmarshal(raw, template); err != nil {
		return nil, err
	}
	spec := &structpb.Struct{Fields: map[string]*structpb.Value{"template": structpb.NewStructValue(template)}}
	return &structpb.Struct{Fields: map[string]*structpb.Value{"spec": structpb.NewStructValue(spec)}}, nil
}

// TemplateFault returns why a template cannot be recorded as a revision; nil if it can.
func TemplateFault(t *schedulingv1.PodTemplateSpec) error {
	_, err := templateData(t)
	return err
}

// templateOf returns the template of a revision.
func templateOf(r *schedulingv1.ControllerRevision) (*schedulingv1.PodTemplateSpec, error) {
	template := r.GetData().GetFields()["spec"].GetStructValue().GetFields()["template"].GetStructValue()
	raw, err := protojson.Marshal(template)
	if err != nil {
		return nil, err
	}
	out := &schedulingv1.PodTemplateSpec{}
	if err := protojson.Unmarshal(raw, out); err != nil {
		return nil, fmt.Errorf("revision %q: %w", r.GetMetadata().GetName(), err)
	}
	return out, nil
}

// history is the revisions of a set, the newest last.
type history []*schedulingv1.ControllerRevision

// newHistory returns the revisions that a set manages and that stay.
func newHistory(mine []*schedulingv1.ControllerRevision) history {
	h := slices.DeleteFunc(slices.Clone(mine), func(r *schedulingv1.ControllerRevision) bool { return object.Deleting(r) })
	slices.SortFunc(h, func(a, b *schedulingv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.GetRevision(), b.GetRevision()),
			cmp.Compare(a.GetMetadata().GetName(), b.GetMetadata().GetName()))
	})
	return h
}

// named returns the revision of a name; nil if there is none.
func (h history) named(name string) *schedulingv1.ControllerRevision {
	for _, r := range h {
		if r.GetMetadata().GetName() == name {
			return r
		}
	}
	return nil
}

// HistoryPlan is what is done about the revisions of a set. Record and Renumber come before its pods change.
type HistoryPlan struct {
	Adopt, Release []*schedulingv1.ControllerRevision
	Record         *schedulingv1.ControllerRevision   // a new revision; nil for none
	Renumber       *schedulingv1.ControllerRevision   // one that is used again, as desired; nil for none
	Forget         []*schedulingv1.ControllerRevision // after its pods change
}

func (p HistoryPlan) settled() bool { return len(p.Adopt)+len(p.Release) == 0 }

// before returns the actions before those on pods, after those that follow them.
func (p HistoryPlan) before(why reasons) []*metav1.PlannedAction {
	return slices.Concat(transfers(p.Adopt, p.Release),
		planned("CreateControllerRevision", present(p.Record), why),
		planned("UpdateControllerRevision", present(p.Renumber), why))
}

func (p HistoryPlan) after(why reasons) []*metav1.PlannedAction {
	return planned("DeleteControllerRevision", p.Forget, why)
}

// present returns a list of one revision, or of none.
func present(r *schedulingv1.ControllerRevision) []*schedulingv1.ControllerRevision {
	if r == nil {
		return nil
	}
	return []*schedulingv1.ControllerRevision{r}
}

// claimRevisions returns which revisions a set manages, adopts and releases.
func claimRevisions(owner object.Object, selector *metav1.LabelSelector,
	revisions []*schedulingv1.ControllerRevision,
) claim[*schedulingv1.ControllerRevision] {
	return claimAll(owner, matcher(selector), revisions, func(r *schedulingv1.ControllerRevision) bool {
		return !object.Deleting(r)
	})
}

// present returns the revision of a template. If there is none it is a new one, which the plan records; if it is not
// the newest, a copy with a new number, which the plan stores.
func (h history) present(owner object.Object, template *schedulingv1.PodTemplateSpec, collisions int32, why reasons) (
	r *schedulingv1.ControllerRevision, p HistoryPlan,
) {
	data, err := templateData(template)
	if err != nil {
		data = nil // the rules of the kinds keep it out
	}
	next := int32(1)
	if len(h) > 0 {
		next = h[len(h)-1].GetRevision() + 1
	}
	for _, have := range slices.Backward(h) {
		if !proto.Equal(have.GetData(), data) {
			continue
		}
		if have == h[len(h)-1] {
			return have, p
		}
		p.Renumber = proto.CloneOf(have)
		p.Renumber.Revision = next
		note(why, "the present template is that of this older revision", p.Renumber)
		return p.Renumber, p
	}
	hash := templateHash(template, collisions)
	m := owner.GetMetadata()
	r = &schedulingv1.ControllerRevision{
		Metadata: &metav1.ObjectMeta{
			Name: m.GetName() + "-" + hash, Namespace: m.GetNamespace(),
			Labels:          label(maps.Clone(template.GetMetadata().GetLabels()), RevisionHashLabel, hash),
			OwnerReferences: []*metav1.OwnerReference{object.OwnedBy(owner)},
		},
		Data: data, Revision: next,
	}
	if cause := m.GetAnnotations()[changeCause]; cause != "" {
		r.Metadata.Annotations = map[string]string{changeCause: cause}
	}
	p.Record = r
	note(why, "no revision has the present template", r)
	return r, p
}

// changeCause is the annotation that says why a template was changed; a revision keeps that of its time.
const changeCause = "kubernetes.io/change-cause"

// superfluous returns the oldest revisions that no pod has, beyond those that are kept. live are the names of revisions
// that are in use.
func (h history) superfluous(limit *int32, live map[string]bool, why reasons) []*schedulingv1.ControllerRevision {
	keep := defaultHistory
	if limit != nil {
		keep = int(*limit)
	}
	old := slices.DeleteFunc(slices.Clone(h), func(r *schedulingv1.ControllerRevision) bool {
		return live[r.GetMetadata().GetName()]
	})
	old = old[:max(0, len(old)-keep)]
	note(why, "no pod is of it, and enough newer ones are kept to go back to", old...)
	return old
}

// RevisionTaken reports whether a revision that has the name of a new one is another: not of this set, or of another
// template.
func RevisionTaken(owner object.Object, wanted, found *schedulingv1.ControllerRevision) bool {
	return object.ControllerOf(found) != nil &&
		object.ControllerOf(found).GetUid() != owner.GetMetadata().GetUid() ||
		!proto.Equal(wanted.GetData(), found.GetData())
}

// Restore returns the template of an older revision of a set. Revision 0 means the one before the present one. The
// error wraps ErrNoRevision if there is none.
func Restore(owner object.Object, revisions []*schedulingv1.ControllerRevision,
	revision int32,
) (*schedulingv1.PodTemplateSpec, error) {
	h := newHistory(revisions)
	kind, name := object.TypeOf(owner.ProtoReflect().Descriptor()).GetSingular(), owner.GetMetadata().GetName()
	if revision == 0 {
		if len(h) < 2 {
			return nil, fmt.Errorf("%s %q: no rollout history to go back to: %w", kind, name, ErrNoRevision)
		}
		return templateOf(h[len(h)-2])
	}
	for _, r := range h {
		if r.GetRevision() == revision {
			return templateOf(r)
		}
	}
	return nil, fmt.Errorf("%s %q: unable to find revision %d in its history: %w", kind, name, revision, ErrNoRevision)
}
