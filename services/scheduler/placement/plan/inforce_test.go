package plan

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
)

func TestFieldsThatAreNotInForceAreRefusedOrWarnedOf(t *testing.T) {
	for what, c := range map[string]struct {
		spec              string
		refused, warnings []string
	}{
		"a readiness probe": {
			`{"containers": [{"name": "a", "readinessProbe": {"httpGet": {"port": 80}}}]}`,
			nil,
			nil,
		},
		"probes of an init container": {
			`{"initContainers": [{"name": "a", "livenessProbe": {"exec": {}}, "startupProbe": {"exec": {}}}]}`,
			[]string{"spec.initContainers[0].livenessProbe", "spec.initContainers[0].startupProbe"},
			nil,
		},
		"limits": {
			`{"containers": [{"name": "a", "resources": {"limits": {"memory": "1Gi", "cpu": 1, "ephemeral-storage": 1,
				"example.com/gpu": 1}, "requests": {"cpu": 1}}}]}`,
			[]string{
				"spec.containers[0].resources.limits['example.com/gpu']",
			},
			nil,
		},
		"variables of other objects": {
			`{"containers": [{"name": "a", "envFrom": [{"secretRef": {"name": "s"}}], "env": [
				{"name": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
				{"name": "y", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]}]}`,
			nil,
			nil,
		},
		"references that lead nowhere": {
			`{"containers": [{"name": "a", "envFrom": [{"secretRef": {}}]}], "volumes": [{"name": "v", "projected":
				{"sources": [{"serviceAccountToken": {"path": ""}}]}}]}`,
			[]string{
				"spec.containers[0].envFrom[0].secretRef.name",
				"spec.volumes[0].projected.sources[0].serviceAccountToken.path",
			},
			nil,
		},
		"users and groups": {
			`{"securityContext": {"runAsNonRoot": true, "runAsUser": 5, "fsGroup": 5}, "containers": [{"name": "a",
				"securityContext": {"runAsUser": 0, "runAsGroup": 7, "readOnlyRootFilesystem": true,
				"capabilities": {"drop": ["ALL"]}}}]}`,
			nil,
			[]string{
				"spec.securityContext.fsGroup: not in force as a group; each container of a pod can write its volumes without it",
			},
		},
		"entries for the file of hosts": {
			`{"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a.example", "b"]}, {"ip": "ten", "hostnames": ["UPPER"]},
				{"hostnames": ["c"], "other": 1}], "containers": [{"name": "a"}]}`,
			[]string{
				"spec.hostAliases[1].ip", "spec.hostAliases[1].hostnames[0]", "spec.hostAliases[2].other",
				"spec.hostAliases[2].ip",
			},
			nil,
		},
		"profiles of system calls": {
			`{"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}, "containers": [
				{"name": "a", "securityContext": {"seccompProfile": {"type": "Unconfined"}}},
				{"name": "b", "securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "x"}}},
				{"name": "c", "securityContext": {"seccompProfile": {"type": "Other"}}},
				{"name": "d", "securityContext": {"seccompProfile": {}}}]}`,
			[]string{
				"spec.containers[1].securityContext.seccompProfile.type",
				"spec.containers[2].securityContext.seccompProfile.type",
				"spec.containers[3].securityContext.seccompProfile.type",
			},
			nil,
		},
		"wrong users and groups": {
			`{"securityContext": {"runAsUser": -1, "runAsGroup": 1.5, "fsGroup": "5", "supplementalGroups": [4]},
				"initContainers": [{"name": "i", "securityContext": {"runAsUser": 2147483648}}],
				"containers": [{"name": "a", "securityContext": {"runAsNonRoot": "yes", "readOnlyRootFilesystem": 1}}]}`,
			[]string{
				"spec.securityContext.runAsUser", "spec.securityContext.runAsGroup", "spec.securityContext.fsGroup",
				"spec.securityContext.supplementalGroups", "spec.initContainers[0].securityContext.runAsUser",
				"spec.containers[0].securityContext.runAsNonRoot",
				"spec.containers[0].securityContext.readOnlyRootFilesystem",
			},
			nil,
		},
		"more of a security context": {
			`{"containers": [{"name": "a", "securityContext": {"privileged": true, "allowPrivilegeEscalation": true,
				"capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}, "procMount": "Unmasked", "appArmorProfile":
				{"type": "RuntimeDefault"}, "seLinuxOptions": {"level": "s0"}}}]}`,
			[]string{
				"spec.containers[0].securityContext.appArmorProfile.type",
				"spec.containers[0].securityContext.capabilities.add",
				"spec.containers[0].securityContext.privileged",
				"spec.containers[0].securityContext.procMount",
			},
			[]string{
				"spec.containers[0].securityContext.allowPrivilegeEscalation: stored and not in force yet",
				"spec.containers[0].securityContext.seLinuxOptions: stored and not in force yet",
			},
		},
		"what only pods have, and only containers": {
			`{"securityContext": {"privileged": true}, "containers": [{"name": "a", "securityContext": {"sysctls": []}}]}`,
			[]string{"spec.securityContext.privileged", "spec.containers[0].securityContext.sysctls"},
			nil,
		},
		"capabilities that are none": {
			`{"containers": [{"name": "a", "securityContext": {"capabilities": "NET_ADMIN", "privileged": "yes"}}]}`,
			[]string{
				"spec.containers[0].securityContext.capabilities", "spec.containers[0].securityContext.privileged",
			},
			nil,
		},
		"parameters of the kernel": {
			`{"securityContext": {"sysctls": [{"name": "net.core.somaxconn", "value": "1"}]}, "containers": [{"name": "a"}]}`,
			[]string{"spec.securityContext.sysctls"},
			nil,
		},
		"an init container that keeps running": {
			`{"initContainers": [{"name": "a", "restartPolicy": "Always"}]}`,
			nil,
			nil,
		},
		"another runtime": {
			`{"runtimeClassName": "fast", "containers": [{"name": "a", "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}]}`,
			[]string{"spec.runtimeClassName"},
			nil,
		},
		"a claim that is only read": {
			`{"containers": [{"name": "a"}], "volumes": [{"name": "v", "persistentVolumeClaim":
				{"claimName": "c", "readOnly": true}}]}`,
			nil,
			nil,
		},
		"empty and default values": {
			`{"securityContext": {"runAsNonRoot": false, "seLinuxOptions": {}}, "priorityClassName": "",
				"topologySpreadConstraints": [], "containers": [{"name": "a", "readinessProbe": {}, "envFrom": [],
				"resources": {"limits": {}}, "securityContext": {"allowPrivilegeEscalation": false, "privileged": false,
				"capabilities": {"add": []}}, "lifecycle": {}}]}`, nil, nil,
		},
	} {
		t.Run(what, func(t *testing.T) {
			spec := &schedulingv1.PodSpec{}
			if err := manifest.Decode([]byte(c.spec), spec); err != nil {
				t.Fatal(err)
			}
			fields, warnings := SpecNotInForce("spec", spec)
			var refused []string
			for _, f := range fields {
				refused = append(refused, f.Path)
			}
			if diff := cmp.Diff(c.refused, refused); diff != "" {
				t.Errorf("refused (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.warnings, warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEveryPodOfTheDocumentsIsInForce(t *testing.T) {
	files, err := filepath.Glob("../../../../kit/manifest/testdata/documents/*-Pod.*")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d documents, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		documents, err := manifest.Split(strings.NewReader(string(text)), file)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range documents {
			p := &schedulingv1.Pod{}
			if err := manifest.Decode(d.JSON, p); err != nil {
				continue // a fragment
			}
			if fields, warnings := SpecNotInForce("spec", p.GetSpec()); len(fields)+len(warnings) > 0 {
				t.Errorf("%s: %v %v", file, fields, warnings)
			}
		}
	}
}
