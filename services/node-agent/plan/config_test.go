package plan_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/podconfig"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

func configObjects() plan.Objects {
	return plan.NewObjects([]*schedulingv1.ConfigMap{{
		Metadata: &metav1.ObjectMeta{Name: "c"}, Data: map[string]string{"level": "debug", "app.conf": "x"},
		BinaryData: map[string][]byte{"zero": {0}},
	}}, []*schedulingv1.Secret{{
		Metadata: &metav1.ObjectMeta{Name: "s"}, Data: map[string][]byte{"password": []byte("hunter2")},
	}})
}

func decodePod(t *testing.T, spec string) *schedulingv1.Pod {
	t.Helper()
	p := &schedulingv1.Pod{Metadata: &metav1.ObjectMeta{Name: "web", Labels: map[string]string{"b": "2", "a": `1"`}}}
	p.Spec = &schedulingv1.PodSpec{}
	if err := manifest.Decode([]byte(spec), p.Spec); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestVariablesOfObjects(t *testing.T) {
	for what, c := range map[string]struct {
		container string
		want      []string
		missing   string // part of the error
	}{
		"all keys of a secret with a prefix, then single ones, which count more": {
			`{"name": "a", "envFrom": [{"prefix": "P_", "secretRef": {"name": "s"}}],
				"env": [{"name": "P_password", "value": "own"}, {"name": "L", "valueFrom": {"configMapKeyRef":
				{"name": "c", "key": "level"}}}, {"name": "M", "value": "is $(L)"}]}`,
			[]string{"P_password=hunter2", "P_password=own", "L=debug", "M=is debug"},
			"",
		},
		"what is optional and missing is left out": {
			`{"name": "a", "envFrom": [{"configMapRef": {"name": "no", "optional": true}}],
				"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "no", "optional": true}}},
				{"name": "Y", "valueFrom": {"secretKeyRef": {"name": "no", "key": "no", "optional": true}}}]}`, nil, "",
		},
		"a config map that does not exist": {
			`{"name": "a", "envFrom": [{"configMapRef": {"name": "no"}}]}`, nil, `configmap "no" not found`,
		},
		"a key that does not exist": {
			`{"name": "a", "env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "no"}}}]}`, nil,
			`secret "s" has no key "no"`,
		},
		"a request": {
			`{"name": "a", "resources": {"requests": {"memory": "1Gi"}}, "env": [{"name": "X", "valueFrom":
				{"resourceFieldRef": {"resource": "requests.memory", "divisor": "1Mi"}}}]}`, []string{"X=1024"}, "",
		},
	} {
		t.Run(what, func(t *testing.T) {
			pod := decodePod(t, `{"containers": [`+c.container+`]}`)
			got, err := plan.Environment(pod, pod.GetSpec().GetContainers()[0], "", "", nil, configObjects())
			if c.missing != "" {
				if !errors.Is(err, plan.ErrMissing) || !strings.Contains(err.Error(), c.missing) {
					t.Errorf("error is %v, want %s", err, c.missing)
				}
				return
			}
			if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
	pod := decodePod(t, `{"containers": [{"name": "a", "envFrom": [{"configMapRef": {"name": "c"}}]}]}`)
	if _, err := plan.Environment(pod, pod.GetSpec().GetContainers()[0], "", "", nil, configObjects()); err == nil ||
		!strings.Contains(err.Error(), `"zero"`) {
		t.Errorf("a variable with a zero byte: %v", err)
	}
}

func TestFilesOfVolumes(t *testing.T) {
	for what, c := range map[string]struct {
		volume  string
		want    map[string]plan.File
		missing string
	}{
		"all keys": {
			`{"name": "v", "secret": {"secretName": "s", "defaultMode": 256}}`,
			map[string]plan.File{"password": {Data: []byte("hunter2"), Mode: 0o400}},
			"",
		},
		"items of several sources": {
			`{"name": "v", "projected": {"sources": [
				{"configMap": {"name": "c", "items": [{"key": "level", "path": "d/level", "mode": 292}]}},
				{"secret": {"name": "no", "optional": true}},
				{"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}}]}}`,
			map[string]plan.File{
				"d/level": {Data: []byte("debug"), Mode: 0o444}, "labels": {Data: []byte("a=\"1\\\"\"\nb=\"2\""), Mode: 0o644},
			},
			"",
		},
		"an item that does not exist": {
			`{"name": "v", "configMap": {"name": "c", "items": [{"key": "no", "path": "x"}]}}`, nil,
			`configmap "c" has no key "no"`,
		},
		"an optional item that does not exist": {
			`{"name": "v", "configMap": {"name": "c", "optional": true, "items": [{"key": "no", "path": "x"}]}}`,
			map[string]plan.File{},
			"",
		},
	} {
		t.Run(what, func(t *testing.T) {
			pod := decodePod(t, `{"volumes": [`+c.volume+`]}`)
			v, ok, faults := podconfig.VolumeOf(pod.GetSpec().GetVolumes()[0])
			if !ok || len(faults) > 0 {
				t.Fatal(ok, faults)
			}
			got, err := plan.Files(pod, v, configObjects())
			if c.missing != "" {
				if !errors.Is(err, plan.ErrMissing) || !strings.Contains(err.Error(), c.missing) {
					t.Errorf("error is %v, want %s", err, c.missing)
				}
				return
			}
			if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}
