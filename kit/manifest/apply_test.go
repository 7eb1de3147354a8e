package manifest_test

import (
	"strings"
	"testing"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
)

func TestApplyRemovesWhatADocumentNoLongerHas(t *testing.T) {
	const first = `{"metadata":{"name":"a","labels":{"team":"x","old":"1"},"finalizers":["example.com/a"]},"spec":{` +
		`"replicas":2,"template":{"spec":{"containers":[{"name":"app","image":"a:1","env":[{"name":"A","value":"1"},` +
		`{"name":"B","value":"2"}]},{"name":"side","image":"s:1"}],"nodeSelector":{"disk":"ssd"},` +
		`"tolerations":[{"key":"k"}],"volumes":[{"name":"v","emptyDir":{}}]}}}}`
	for name, c := range map[string]struct{ applied, current, given, want string }{
		"containers, variables, labels, selectors and volumes": {
			first, first,
			`{"metadata":{"name":"a","labels":{"team":"x"}},"spec":{"replicas":2,"template":{"spec":{"containers":[` +
				`{"name":"app","image":"a:2","env":[{"name":"A","value":"1"}]}]}}}}`,
			`{"metadata":{"name":"a","labels":{"team":"x"}},"spec":{"replicas":2,"template":{"spec":{"containers":[` +
				`{"name":"app","image":"a:2","env":[{"name":"A","value":"1"}]}]}}}}`,
		},
		"what others set stays": {
			`{"metadata":{"name":"a"},"spec":{"replicas":2,"minReadySeconds":5}}`,
			`{"metadata":{"name":"a","labels":{"mine":"1"},"annotations":{"note":"x"}},"spec":{"replicas":7,` +
				`"minReadySeconds":5,"template":{"spec":{"containers":[{"name":"injected","image":"i"}]}}}}`,
			`{"metadata":{"name":"a"},"spec":{"replicas":2}}`,
			`{"metadata":{"name":"a","labels":{"mine":"1"},"annotations":{"note":"x"}},"spec":{"replicas":2,` +
				`"template":{"spec":{"containers":[{"name":"injected","image":"i"}]}}}}`,
		},
		"a field that the document does not have any more was scaled by others": {
			`{"metadata":{"name":"a"},"spec":{"minReadySeconds":5}}`,
			`{"metadata":{"name":"a"},"spec":{"replicas":7,"minReadySeconds":5}}`,
			`{"metadata":{"name":"a"},"spec":{"minReadySeconds":5}}`,
			`{"metadata":{"name":"a"},"spec":{"replicas":7,"minReadySeconds":5}}`,
		},
		"nothing was applied before": {
			"", `{"metadata":{"name":"a"},"spec":{"replicas":7,"minReadySeconds":5}}`,
			`{"metadata":{"name":"a"},"spec":{"replicas":2}}`,
			`{"metadata":{"name":"a"},"spec":{"replicas":2,"minReadySeconds":5}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := new(schedulingv1.Deployment)
			var applied []byte
			if c.applied != "" {
				var err error
				if applied, err = manifest.Fields([]byte(c.applied), d.ProtoReflect().Descriptor()); err != nil {
					t.Fatal(err)
				}
			}
			got, err := manifest.Apply([]byte(c.current), applied, []byte(c.given), d.ProtoReflect().Descriptor())
			if err != nil {
				t.Fatal(err)
			}
			samePatched(t, d, got, c.want)
		})
	}
}

func TestWhatWasAppliedMayBeSpoilt(t *testing.T) {
	d := new(schedulingv1.Deployment).ProtoReflect().Descriptor()
	const current = `{"metadata":{"name":"a"},"spec":{"replicas":7}}`
	for _, applied := range []string{
		"{", "[]", `"x"`, `{"spec":5}`, `{"spec":{"template":{"spec":{"containers":[5]}}}}`,
		`{"spec":{"template":{"spec":{"containers":[{"image":"x"}]}}}}`, `{"metadata":null,"spec":null}`,
	} {
		got, err := manifest.Apply([]byte(current), []byte(applied),
			[]byte(`{"metadata":{"name":"a"},"spec":{"paused":true}}`),
			d)
		if err != nil {
			t.Errorf("after %s was applied: %v", applied, err)
			continue
		}
		samePatched(t, new(schedulingv1.Deployment), got, `{"metadata":{"name":"a"},"spec":{"replicas":7,"paused":true}}`)
	}
}

func TestFieldsHoldNoValues(t *testing.T) {
	secret := &schedulingv1.Secret{StringData: map[string]string{"password": "hunter2"}}
	doc, err := manifest.Encode(secret)
	if err != nil {
		t.Fatal(err)
	}
	fields, err := manifest.Fields(doc, secret.ProtoReflect().Descriptor())
	if err != nil || strings.Contains(string(fields), "hunter2") || !strings.Contains(string(fields), "password") {
		t.Errorf("fields are %s, %v", fields, err)
	}
}
