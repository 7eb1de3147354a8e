package apply

import (
	"strings"
	"testing"

	"github.com/windlass-dev/windlass/kit/release"
	"k8s.io/apimachinery/pkg/util/validation"
)

func TestAManifestHasAValidNameOfItsOwn(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range []release.Manifest{
		{APIVersion: "v1", Kind: "ConfigMap", Namespace: "a", Name: "b-c"},
		{APIVersion: "v1", Kind: "ConfigMap", Namespace: "a-b", Name: "c"},
		{APIVersion: "v1", Kind: "ConfigMap", Name: "a-b-c"},
		{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole", Name: "system:foo:Bar"},
		{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole", Name: "system-foo-bar"},
		{APIVersion: "x/v1", Kind: "Long", Name: strings.Repeat("n.", 200)},
		{APIVersion: "x/v1", Kind: "Odd", Name: "ÄÖÜ"},
	} {
		name := name(m)
		if wrong := validation.IsDNS1123Subdomain(name); len(wrong) > 0 || seen[name] {
			t.Errorf("name of %s %q is %q: %v", m.Kind, m.Name, name, wrong)
		}
		seen[name] = true
	}
}

func TestEveryOwnedKindIsFound(t *testing.T) {
	owners := Owners{}
	for pkg := range Packages() {
		owners[pkg] = nil
	}
	a, err := New(nil, owners, release.Cluster{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range [][2]string{
		{"v1", "Namespace"},
		{"apps/v1", "Deployment"},
		{"batch/v1", "Job"},
		{"policy/v1", "PodDisruptionBudget"},
		{"machineconfiguration.openshift.io/v1", "MachineConfig"},
		{"machine.openshift.io/v1beta1", "MachineSet"},
	} {
		if a.kinds[want] == nil {
			t.Errorf("%v has no owner", want)
		}
	}
	if a.kinds[[2]string{"v1", "LimitRange"}] != nil ||
		a.kinds[[2]string{"config.openshift.io/v1", "ClusterVersion"}] != nil {
		t.Error("a kind without an owner has one")
	}
}
