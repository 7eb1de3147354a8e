package lifecycle_test

import (
	"slices"
	"testing"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/lifecycle"
	"github.com/windlass-dev/windlass/kit/manifest"
)

func spec(t *testing.T, text string) *schedulingv1.PodSpec {
	t.Helper()
	out := &schedulingv1.PodSpec{}
	if err := manifest.Decode([]byte(text), out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestWrongFieldsAreNamedByTheirPath(t *testing.T) {
	for name, c := range map[string]struct {
		spec string
		want []string
	}{
		"all handlers": {`{"containers": [{"name": "a", "ports": [{"name": "web", "containerPort": 80}],
			"livenessProbe": {"httpGet": {"port": "web", "path": "/a?b=c", "scheme": "HTTPS", "httpHeaders": [{"name": "X-A",
				"value": "b"}]}, "terminationGracePeriodSeconds": 1},
			"readinessProbe": {"tcpSocket": {"port": 5}, "successThreshold": 3, "periodSeconds": 0},
			"startupProbe": {"grpc": {"port": 5, "service": "x"}, "failureThreshold": 30},
			"lifecycle": {"postStart": {"exec": {"command": ["true"]}}, "preStop": {"sleep": {"seconds": 3}}}}]}`, nil},
		"no handler": {
			`{"containers": [{"name": "a", "readinessProbe": {"periodSeconds": 1}}]}`,
			[]string{"spec.containers[0].readinessProbe"},
		},
		"two handlers": {
			`{"containers": [{"name": "a", "readinessProbe": {"exec": {"command": ["a"]}, "grpc": {"port": 1}}}]}`,
			[]string{"spec.containers[0].readinessProbe.grpc"},
		},
		"an unknown field": {
			`{"containers": [{"name": "a", "readinessProbe": {"exec": {"command": ["a"]}, "period": 1}}]}`,
			[]string{"spec.containers[0].readinessProbe.period"},
		},
		"a port without such a name": {
			`{"containers": [{"name": "a", "readinessProbe": {"httpGet": {"port": "web"}}}]}`,
			[]string{"spec.containers[0].readinessProbe.httpGet.port"},
		},
		"wrong numbers": {`{"containers": [{"name": "a", "livenessProbe": {"exec": {"command": ["a"]}, "periodSeconds": -1,
			"timeoutSeconds": 1.5, "successThreshold": 2, "failureThreshold": "3"}}]}`, []string{
			"spec.containers[0].livenessProbe.periodSeconds", "spec.containers[0].livenessProbe.timeoutSeconds",
			"spec.containers[0].livenessProbe.failureThreshold", "spec.containers[0].livenessProbe.successThreshold",
		}},
		"a probe of an init container": {
			`{"initContainers": [{"name": "a", "readinessProbe": {"exec": {"command": ["a"]}},
			"lifecycle": {"preStop": {"exec": {"command": ["a"]}}}}]}`,
			[]string{"spec.initContainers[0].readinessProbe", "spec.initContainers[0].lifecycle"},
		},
		"a probe of a sidecar": {`{"initContainers": [{"name": "a", "restartPolicy": "Always", "readinessProbe": {"exec":
			{"command": ["a"]}}}]}`, nil},
		"restart policies": {`{"initContainers": [{"name": "a", "restartPolicy": "Never"}], "containers": [{"name": "b",
			"restartPolicy": "Always"}]}`, []string{
			"spec.initContainers[0].restartPolicy",
			"spec.containers[0].restartPolicy",
		}},
		"a sleep beyond the grace period": {`{"terminationGracePeriodSeconds": 5, "containers": [{"name": "a", "lifecycle":
			{"preStop": {"sleep": {"seconds": 6}}}}]}`, []string{"spec.containers[0].lifecycle.preStop.sleep.seconds"}},
		"a header that breaks the request": {`{"containers": [{"name": "a", "livenessProbe": {"httpGet": {"port": 1,
			"httpHeaders": [{"name": "a b", "value": "x\r\ny: z"}]}}}]}`, []string{
			"spec.containers[0].livenessProbe.httpGet.httpHeaders[0].name",
			"spec.containers[0].livenessProbe.httpGet.httpHeaders[0].value",
		}},
	} {
		var got []string
		for _, f := range lifecycle.Check("spec", spec(t, c.spec)) {
			got = append(got, f.Path)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestDefaultsAreThoseOfKubernetes(t *testing.T) {
	c, faults := lifecycle.Of(spec(t, `{"containers": [{"name": "a", "readinessProbe": {"httpGet": {"port": 80}}}]}`).
		GetContainers()[0], false)
	p := c.Readiness
	if len(faults) > 0 || p == nil || p.Period != 10*time.Second || p.Timeout != time.Second || p.Success != 1 ||
		p.Failures != 3 || p.InitialDelay != 0 || p.Grace != nil || p.HTTP.Path != "/" || c.Liveness != nil {
		t.Errorf("%+v, %v", p, faults)
	}
}
