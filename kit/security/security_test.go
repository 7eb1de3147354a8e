package security_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/security"
)

func TestWhatAContainerSaysCounts(t *testing.T) {
	id := func(n uint32) *uint32 { return &n }
	for what, c := range map[string]struct {
		spec string
		want security.Context
	}{
		"nothing": {`{"containers": [{"name": "a"}]}`, security.Context{}},
		"the pod": {
			`{"securityContext": {"runAsUser": 5, "runAsGroup": 6, "runAsNonRoot": true,
				"seccompProfile": {"type": "RuntimeDefault"}}, "containers": [{"name": "a"}]}`,
			security.Context{User: id(5), Group: id(6), NonRoot: true, Seccomp: security.RuntimeDefault},
		},
		"the container": {
			`{"securityContext": {"runAsUser": 5, "runAsGroup": 6, "runAsNonRoot": true,
				"seccompProfile": {"type": "RuntimeDefault"}}, "containers": [{"name": "a", "securityContext": {"runAsUser": 0,
				"runAsNonRoot": false, "readOnlyRootFilesystem": true, "seccompProfile": {"type": "Unconfined"}}}]}`,
			security.Context{User: id(0), Group: id(6), ReadOnlyRoot: true, Seccomp: security.Unconfined},
		},
		"null says nothing": {
			`{"securityContext": {"runAsUser": 5, "runAsNonRoot": true}, "containers": [{"name": "a",
				"securityContext": {"runAsUser": null, "runAsNonRoot": null, "seccompProfile": null}}]}`,
			security.Context{User: id(5), NonRoot: true},
		},
	} {
		spec := &schedulingv1.PodSpec{}
		if err := manifest.Decode([]byte(c.spec), spec); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, security.Of(spec, spec.GetContainers()[0])); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
}

func TestFieldsOfTheOtherLevelAreRefused(t *testing.T) {
	spec := &schedulingv1.PodSpec{}
	if err := manifest.Decode([]byte(`{"securityContext": {"readOnlyRootFilesystem": true}, "initContainers": [{"name": "i",
		"securityContext": {"fsGroup": 5}}], "containers": [{"name": "a", "securityContext": {"supplementalGroups": [5]}}]}`),
		spec); err != nil {
		t.Fatal(err)
	}
	faults, _ := security.Check("spec", spec)
	var paths []string
	for _, f := range faults {
		paths = append(paths, f.Path)
	}
	want := []string{
		"spec.securityContext.readOnlyRootFilesystem", "spec.initContainers[0].securityContext.fsGroup",
		"spec.containers[0].securityContext.supplementalGroups",
	}
	if diff := cmp.Diff(want, paths); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
