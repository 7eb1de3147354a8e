package plan_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// refs reads references like "apps/v1 Deployment beacon/web".
func refs(texts ...string) (out []*metav1.ObjectReference) {
	for _, text := range texts {
		f := strings.Fields(text)
		namespace, name, _ := strings.Cut(f[2], "/")
		out = append(out, &metav1.ObjectReference{ApiVersion: f[0], Kind: f[1], Namespace: namespace, Name: name})
	}
	return out
}

func names(list []*metav1.ObjectReference) (out []string) {
	for _, o := range list {
		out = append(out, o.GetApiVersion()+" "+o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName())
	}
	return out
}

func TestLeftoversAreWhatAReleaseLacks(t *testing.T) {
	before := refs("v1 Service a/web", "apps/v1 Deployment a/web", "batch/v1beta1 CronJob a/clean", "v1 Service b/web")
	wants := refs("apps/v1 Deployment a/web", "batch/v1 CronJob a/clean", "v1 ConfigMap a/web")
	want := []string{"v1 Service a/web", "v1 Service b/web"} // another version of a kind is the same object
	if diff := cmp.Diff(want, names(plan.Leftovers(before, wants))); diff != "" {
		t.Errorf("leftovers (-want +got)\n%s", diff)
	}
	want = append(want, names(wants)...)
	if diff := cmp.Diff(want, names(plan.Inventory(before, wants))); diff != "" {
		t.Errorf("inventory (-want +got)\n%s", diff)
	}
	// The way back from an update that was not completed removes what that had brought.
	if diff := cmp.Diff([]string{"v1 ConfigMap a/web"},
		names(plan.Leftovers(plan.Inventory(before, wants), before))); diff != "" {
		t.Errorf("leftovers of the way back (-want +got)\n%s", diff)
	}
}

func TestWhatIsNotAReleasesToRemoveStays(t *testing.T) {
	const by = "applied.windlass.dev/update-orchestrator"
	of := func(notes map[string]string) *updatev1.Manifest {
		return &updatev1.Manifest{Metadata: &metav1.ObjectMeta{Annotations: notes}}
	}
	unmanaged := []*updatev1.ComponentOverride{{
		Group: "apps", Kind: "Deployment", Namespace: "a", Name: "web", Unmanaged: proto.Bool(true),
	}}
	for name, test := range map[string]struct {
		object    string
		live      *updatev1.Manifest
		by        string
		overrides []*updatev1.ComponentOverride
		want      string
	}{
		"what a release applied goes": {
			"apps/v1 Deployment a/web",
			of(map[string]string{by: "{}"}), by, nil, "",
		},
		"what has no such mark, of a kind without an owner, goes": {"v1 LimitRange a/web", of(nil), "", nil, ""},
		"what people made under the same name": {
			"apps/v1 Deployment a/web", of(map[string]string{"applied.windlass.dev/user": "{}"}), by, nil,
			"not the object that a release applied",
		},
		"what is annotated": {
			"apps/v1 Deployment a/web", of(map[string]string{by: "{}", plan.KeepAnnotation: "true"}), by, nil,
			plan.KeepAnnotation,
		},
		"what is annotated not to be kept goes": {
			"apps/v1 Deployment a/web", of(map[string]string{by: "{}", plan.KeepAnnotation: "false"}), by, nil, "",
		},
		"what is overridden": {
			"apps/v1 Deployment a/web", of(map[string]string{by: "{}"}), by, unmanaged, "spec.overrides",
		},
		"what would take more along": {"v1 Namespace /a", of(nil), "", nil, "everything in it"},
		"the report of a service": {
			"config.openshift.io/v1 ClusterOperator /etcd", of(nil), "", nil, "report of a service",
		},
		"the report of something else goes": {"config.openshift.io/v1 ClusterOperator /dns", of(nil), "", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := plan.Stays(refs(test.object)[0], test.live, test.by, test.overrides, []string{"etcd"})
			if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
				t.Errorf("stays because of %q, want %q", got, test.want)
			}
		})
	}
}
