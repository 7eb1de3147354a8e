package plan_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "github.com/windlass-dev/windlass/gen/windlass/apiextensions/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// defined is a definition of a plural name in a group; its kind and its list kind are made from it.
func defined(plural, group string, short ...string) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		Metadata: &metav1.ObjectMeta{Name: plural + "." + group, Generation: 1},
		Spec: &apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Names: &apiextensionsv1.CustomResourceDefinitionNames{
				Plural: plural, Singular: "one-of-" + plural, Kind: plural, ListKind: plural + "List", ShortNames: short,
			},
		},
	}
}

// accepted is a definition whose names were accepted.
func accepted(d *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	d.Status = &apiextensionsv1.CustomResourceDefinitionStatus{
		AcceptedNames: proto.CloneOf(d.GetSpec().GetNames()),
		Conditions:    []*metav1.Condition{{Type: plan.NamesAccepted, Status: plan.True}},
	}
	return d
}

func deleted(d *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	d.Metadata.DeletionTimestamp = timestamppb.New(time.Unix(1, 0))
	return d
}

// objects returns n objects, of which the first is being deleted.
func objects(n int) (out []*apiextensionsv1.CustomObject) {
	for i := range n {
		o := &apiextensionsv1.CustomObject{Metadata: &metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("o%03d", i)}}
		if i == 0 {
			o.Metadata.DeletionTimestamp, o.Metadata.Finalizers = timestamppb.New(time.Unix(1, 0)), []string{"x/y"}
		}
		out = append(out, o)
	}
	return out
}

func TestWhatTheStatusOfADefinitionSaysAndWhatIsNextInItsDeletion(t *testing.T) {
	for name, test := range map[string]struct {
		view    plan.DefinitionView
		want    string // conditions, as type=status and reason
		deletes int
		release bool
	}{
		"its names are free, and nothing serves it yet": {
			plan.DefinitionView{Definition: defined("as", "x.example")},
			"NamesAccepted=True/NoConflicts Established=False/Installing", 0, false,
		},
		"it is served": {
			plan.DefinitionView{Definition: accepted(defined("as", "x.example")), Serves: true, Current: true},
			"NamesAccepted=True/NoConflicts Established=True/InitialNamesAccepted", 0, false,
		},
		"another of its group has a short name that is its plural": {
			plan.DefinitionView{
				Definition: defined("as", "x.example"),
				Others:     []*apiextensionsv1.CustomResourceDefinition{accepted(defined("bs", "x.example", "as"))},
			},
			"NamesAccepted=False/PluralConflict Established=False/NotAccepted", 0, false,
		},
		"one of another group has its names": {
			plan.DefinitionView{
				Definition: defined("as", "x.example"),
				Others:     []*apiextensionsv1.CustomResourceDefinition{accepted(defined("as", "y.example"))},
			},
			"NamesAccepted=True/NoConflicts Established=False/Installing", 0, false,
		},
		"another has its names, and they were not accepted": {
			plan.DefinitionView{
				Definition: defined("as", "x.example", "a"),
				Others:     []*apiextensionsv1.CustomResourceDefinition{defined("bs", "x.example", "a")},
			},
			"NamesAccepted=True/NoConflicts Established=False/Installing", 0, false,
		},
		"its schema cannot be served": {
			plan.DefinitionView{Definition: accepted(defined("as", "x.example")), Problem: "no schema"},
			"NamesAccepted=True/NoConflicts Established=False/NotServed", 0, false,
		},
		"it is deleted and its objects are not known": {
			plan.DefinitionView{Definition: deleted(accepted(defined("as", "x.example")))},
			"NamesAccepted=True/NoConflicts Established=False/Installing Terminating=True/InstanceDeletionPending", 0, false,
		},
		"it is deleted and has objects, one of which is being deleted": {
			plan.DefinitionView{
				Definition: deleted(accepted(defined("as", "x.example"))), Serves: true, Current: true, Objects: objects(3),
			},
			"NamesAccepted=True/NoConflicts Established=True/InitialNamesAccepted Terminating=True/InstanceDeletionInProgress",
			2, false,
		},
		"it is deleted and has very many objects": {
			plan.DefinitionView{
				Definition: deleted(accepted(defined("as", "x.example"))), Serves: true, Current: true, Objects: objects(500),
			},
			"NamesAccepted=True/NoConflicts Established=True/InitialNamesAccepted Terminating=True/InstanceDeletionInProgress",
			100, false,
		},
		"it is deleted and has no object": {
			plan.DefinitionView{Definition: deleted(accepted(defined("as", "x.example"))), Serves: true, Current: true},
			"NamesAccepted=True/NoConflicts Established=True/InitialNamesAccepted " +
				"Terminating=False/InstanceDeletionCompleted", 0, true,
		},
		"it is deleted and has no object, and others are owned by what it had": {
			plan.DefinitionView{
				Definition: deleted(accepted(defined("as", "x.example"))), Serves: true, Current: true, Dependents: 3,
			},
			"NamesAccepted=True/NoConflicts Established=True/InitialNamesAccepted " +
				"Terminating=True/InstanceDeletionInProgress", 0, false,
		},
		"it is deleted and has no object, and what was owned by them is not known": {
			plan.DefinitionView{
				Definition: deleted(accepted(defined("as", "x.example"))), Serves: true, Current: true, Unread: "bs.x.example",
			},
			"NamesAccepted=True/NoConflicts Established=True/InitialNamesAccepted " +
				"Terminating=True/InstanceDeletionPending", 0, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := proto.CloneOf(test.view.Definition)
			p := plan.Definition(test.view)
			var have []string
			for _, c := range p.Status.GetConditions() {
				have = append(have, c.GetType()+"="+c.GetStatus()+"/"+c.GetReason())
			}
			if got := strings.Join(have, " "); got != test.want || len(p.Delete) != test.deletes || p.Release != test.release {
				t.Errorf("%s, deletes %d, releases %v; want %s, %d, %v", got, len(p.Delete), p.Release, test.want, test.deletes,
					test.release)
			}
			if waits := test.view.Dependents > 0 || test.view.Unread != ""; p.Wake.IsZero() == waits {
				t.Errorf("it is decided on again at %v", p.Wake)
			}
			for _, k := range p.Delete {
				if k == object.KeyOf(objects(1)[0]) {
					t.Error("what is being deleted is deleted again")
				}
			}
			if !proto.Equal(before, test.view.Definition) {
				t.Error("the view was modified")
			}
		})
	}
}
