package podconfig

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
)

func specOf(t *testing.T, text string) *schedulingv1.PodSpec {
	t.Helper()
	spec := &schedulingv1.PodSpec{}
	if err := manifest.Decode([]byte(text), spec); err != nil {
		t.Fatal(err)
	}
	return spec
}

func TestWhatIsWrongWithReferences(t *testing.T) {
	for what, c := range map[string]struct {
		spec string
		want []string
	}{
		"all sources": {`{"containers": [{"name": "a", "resources": {"requests": {"cpu": "1500m"}},
			"envFrom": [{"prefix": "P_", "configMapRef": {"name": "c"}}, {"secretRef": {"name": "s", "optional": true}}],
			"env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
				{"name": "Y", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": true}}},
				{"name": "Z", "valueFrom": {"resourceFieldRef": {"resource": "requests.cpu", "divisor": "1m"}}}]}],
			"volumes": [{"name": "v", "projected": {"defaultMode": 288, "sources": [
				{"configMap": {"name": "c", "items": [{"key": "k", "path": "d/k", "mode": 256}]}},
				{"secret": {"name": "s"}},
				{"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}}]}}]}`, nil},
		"paths that lead out of the volume": {`{"volumes": [{"name": "v", "configMap": {"name": "c", "items": [
			{"key": "k", "path": "../x"}, {"key": "k", "path": "/x"}, {"key": "k", "path": "a/../../x"},
			{"key": "k", "path": "..data"}, {"key": "a/k", "path": "x"}]}}]}`, []string{
			"spec.volumes[0].configMap.items[0].path", "spec.volumes[0].configMap.items[1].path",
			"spec.volumes[0].configMap.items[2].path", "spec.volumes[0].configMap.items[3].path",
			"spec.volumes[0].configMap.items[4].key",
		}},
		"a token": {`{"volumes": [{"name": "v", "projected": {"sources": [
			{"serviceAccountToken": {"path": "t", "audience": "vault", "expirationSeconds": 7200}}]}}]}`, nil},
		"wrong tokens": {`{"volumes": [{"name": "v", "projected": {"sources": [
			{"serviceAccountToken": {"path": "../t", "audience": "a b", "expirationSeconds": 599, "x": 1}}]}}]}`, []string{
			"spec.volumes[0].projected.sources[0].serviceAccountToken.x",
			"spec.volumes[0].projected.sources[0].serviceAccountToken.audience",
			"spec.volumes[0].projected.sources[0].serviceAccountToken.expirationSeconds",
			"spec.volumes[0].projected.sources[0].serviceAccountToken.path",
		}},
		"more tokens than a pod may have": {`{"volumes": [{"name": "v", "projected": {"sources": [` +
			manyTokens(maxTokens+1) + `]}}]}`, []string{"spec.volumes"}},
		"a limit that is not set": {`{"containers": [{"name": "a", "env": [
			{"name": "X", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}}]}]}`, []string{
			"spec.containers[0].env[0].valueFrom.resourceFieldRef",
		}},
		"no name, a wrong mode, two sources": {`{"containers": [{"name": "a", "envFrom": [
			{"configMapRef": {}}, {"configMapRef": {"name": "a"}, "secretRef": {"name": "b"}}]}],
			"volumes": [{"name": "v", "secret": {"secretName": "s", "defaultMode": 512}}]}`, []string{
			"spec.containers[0].envFrom[0].configMapRef.name", "spec.containers[0].envFrom[1]",
			"spec.volumes[0].secret.defaultMode",
		}},
	} {
		t.Run(what, func(t *testing.T) {
			var got []string
			for _, f := range Check("spec", specOf(t, c.spec)) {
				got = append(got, f.Path)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestReferencesAreThoseOfAllContainersAndVolumes(t *testing.T) {
	maps, secrets := References(specOf(t, `{
		"initContainers": [{"name": "i", "envFrom": [{"configMapRef": {"name": "c1"}}]}],
		"containers": [{"name": "a", "env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s1", "key": "k"}}}]}],
		"volumes": [{"name": "v", "secret": {"secretName": "s2"}},
			{"name": "w", "projected": {"sources": [{"configMap": {"name": "c2"}}, {"secret": {"name": "s1"}}]}}]}`))
	if diff := cmp.Diff([][]string{{"c1", "c2"}, {"s1", "s2"}}, [][]string{maps, secrets}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestResourcesAreInUnitsOfTheDivisorRoundedUp(t *testing.T) {
	spec := specOf(t, `{"containers": [{"name": "a", "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}}}]}`)
	for r, want := range map[Resource]string{
		{Name: "cpu"}:                "2",
		{Name: "cpu", Divisor: "1m"}: "1500",
		{Name: "memory", Divisor: "1Mi", Container: "a"}: "1024",
		{Name: "ephemeral-storage", Divisor: "0"}:        "0",
	} {
		if got, err := r.Text(spec, spec.GetContainers()[0]); got != want || err != nil {
			t.Errorf("%+v is %q, %v, want %q", r, got, err, want)
		}
	}
	if _, err := (Resource{Name: "cpu", Limit: true}).Text(spec, spec.GetContainers()[0]); err == nil {
		t.Error("a limit that is not set has a value")
	}
}

// manyTokens returns sources of different tokens.
func manyTokens(n int) string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf(`{"serviceAccountToken": {"path": "t%d", "audience": "a%d"}}`, i, i))
	}
	return strings.Join(out, ", ")
}
