package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	apiextensionsv1 "github.com/windlass-dev/windlass/gen/windlass/apiextensions/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// Conditions of CustomResourceDefinitions.
const (
	NamesAccepted = "NamesAccepted"
	Established   = "Established"
	Terminating   = "Terminating"
)

// deletions is how many objects one plan deletes: the next one follows, and other definitions have their turn between.
const deletions = 100

// DefinitionView is everything that a decision about a CustomResourceDefinition depends on.
type DefinitionView struct {
	Now        time.Time
	Definition *apiextensionsv1.CustomResourceDefinition
	Others     []*apiextensionsv1.CustomResourceDefinition // all others, ordered by name

	Serves  bool                            // its objects are served, by its schema of any generation
	Current bool                            // they are served by its present schema
	Problem string                          // why its present schema cannot be served; empty if nothing prevents it
	Objects []*apiextensionsv1.CustomObject // all objects of the kind, if it is being deleted and Serves

	// Dependents is how many objects refer to objects of the kind as their owners, without those that are being deleted;
	// Unread is a definition whose objects may be such and are not read yet, or empty. Both are needed once the kind is
	// being deleted and has no Objects.
	Dependents int
	Unread     string
}

// DefinitionPlan is what to do about a CustomResourceDefinition.
type DefinitionPlan struct {
	Status  *apiextensionsv1.CustomResourceDefinitionStatus // to write if it differs
	Delete  []object.Key                                    // objects to delete
	Release bool                                            // nothing of it is left: its finalizer goes
	Wake    time.Time                                       // when to decide again even if nothing changes
}

// dependentsWait is how soon a deletion that waits for dependents is decided on again: their changes do not lead to it.
const dependentsWait = time.Second

// Definition decides what the status of a CustomResourceDefinition says, and what is next in its deletion: all objects
// are deleted first, and then what they own, since no owner of a kind without a definition is ever found to be gone. It
// does not modify v.
func Definition(v DefinitionView) DefinitionPlan {
	st := proto.CloneOf(v.Definition.GetStatus())
	if st == nil {
		st = &apiextensionsv1.CustomResourceDefinitionStatus{}
	}
	p := DefinitionPlan{Status: st}
	set := func(typ, status, reason, message string) {
		c := &metav1.Condition{
			Type: typ, Status: status, Reason: proto.String(reason), Message: proto.String(message),
			ObservedGeneration: proto.Int32(v.Definition.GetMetadata().GetGeneration()),
		}
		st.Conditions = object.SetCondition(st.GetConditions(), c, v.Now)
	}
	reason, message := conflict(v.Definition, v.Others)
	switch {
	case reason != "" && !object.IsTrue(st.GetConditions(), NamesAccepted):
		set(NamesAccepted, False, reason, message)
		set(Established, False, "NotAccepted", "not all names are accepted")
	case reason != "":
		set(NamesAccepted, False, reason, message) // the names that were accepted before stay in force
	default:
		set(NamesAccepted, True, "NoConflicts", "no conflicts found")
		st.AcceptedNames = proto.CloneOf(v.Definition.GetSpec().GetNames())
	}
	switch {
	case v.Problem != "":
		set(Established, False, "NotServed", v.Problem)
	case v.Current:
		set(Established, True, "InitialNamesAccepted", "the objects of the kind are served")
	case reason == "" && object.FindCondition(st.GetConditions(), Established).GetStatus() != True:
		set(Established, False, "Installing", "the names are accepted, and the objects are not served yet")
	}
	if !object.Deleting(v.Definition) {
		return p
	}
	switch {
	case st.GetAcceptedNames() == nil && !v.Serves:
		p.Release = true // there never was an object
	case !v.Serves && v.Problem != "":
		set(Terminating, True, "InstanceDeletionFailed", "its objects cannot be read: "+v.Problem)
	case !v.Serves:
		set(Terminating, True, "InstanceDeletionPending", "its objects are not read yet")
	case len(v.Objects) == 0 && v.Unread != "":
		set(Terminating, True, "InstanceDeletionPending", "removed all objects; whether objects of "+v.Unread+
			" are owned by them is not known yet")
		p.Wake = v.Now.Add(dependentsWait)
	case len(v.Objects) == 0 && v.Dependents > 0:
		set(Terminating, True, "InstanceDeletionInProgress",
			fmt.Sprintf("removed all objects; %d of the objects that they own remain", v.Dependents))
		p.Wake = v.Now.Add(dependentsWait)
	case len(v.Objects) == 0:
		set(Terminating, False, "InstanceDeletionCompleted", "removed all objects")
		p.Release = true
	default:
		set(Terminating, True, "InstanceDeletionInProgress", remaining(v.Objects))
		for _, o := range v.Objects {
			if !object.Deleting(o) && len(p.Delete) < deletions {
				p.Delete = append(p.Delete, object.KeyOf(o))
			}
		}
	}
	return p
}

// remaining says which objects a deletion waits for.
func remaining(objects []*apiextensionsv1.CustomObject) string {
	const most = 5
	var texts []string
	for _, o := range objects[:min(len(objects), most)] {
		text := object.KeyOf(o).String()
		if f := o.GetMetadata().GetFinalizers(); len(f) > 0 {
			text += " (finalizers " + strings.Join(f, ", ") + ")"
		}
		texts = append(texts, text)
	}
	if n := len(objects) - most; n > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", n))
	}
	if len(objects) == 1 {
		return "1 object remains: " + texts[0]
	}
	return fmt.Sprintf("%d objects remain: %s", len(objects), strings.Join(texts, ", "))
}

// conflict returns which names of a definition another one of its group has, and has had first; empty if none.
func conflict(d *apiextensionsv1.CustomResourceDefinition, others []*apiextensionsv1.CustomResourceDefinition) (reason,
	message string,
) {
	var words, kinds []string
	for _, o := range others {
		if o.GetSpec().GetGroup() != d.GetSpec().GetGroup() {
			continue
		}
		n := o.GetStatus().GetAcceptedNames()
		words = append(append(words, n.GetPlural(), n.GetSingular()), n.GetShortNames()...)
		kinds = append(kinds, n.GetKind(), n.GetListKind())
	}
	n := d.GetSpec().GetNames()
	for _, c := range []struct {
		reason, name string
		in           []string
	}{
		{"PluralConflict", n.GetPlural(), words},
		{"SingularConflict", n.GetSingular(), words},
		{"KindConflict", n.GetKind(), kinds},
		{"ListKindConflict", n.GetListKind(), kinds},
	} {
		if slices.Contains(c.in, c.name) {
			return c.reason, fmt.Sprintf("%q is already in use", c.name)
		}
	}
	for _, short := range n.GetShortNames() {
		if slices.Contains(words, short) {
			return "ShortNamesConflict", fmt.Sprintf("%q is already in use", short)
		}
	}
	return "", ""
}

// definitionRollout says whether a CustomResourceDefinition is Established at its present generation.
func definitionRollout(d *apiextensionsv1.CustomResourceDefinition) Rollout {
	s := Rollout{Reason: "CustomResourceDefinitionNotEstablished", Fact: "the objects of the kind are served"}
	conditions := d.GetStatus().GetConditions()
	established := object.FindCondition(conditions, Established)
	names := object.FindCondition(conditions, NamesAccepted)
	switch {
	case established.GetStatus() == True && established.GetObservedGeneration() >= d.GetMetadata().GetGeneration():
		return Rollout{Ready: true}
	case established == nil, established.GetObservedGeneration() < d.GetMetadata().GetGeneration():
		s.Observed = "the definition is not observed yet"
	case names.GetStatus() == False:
		s.Observed = names.GetMessage()
	default:
		s.Observed = established.GetMessage()
	}
	return s
}
