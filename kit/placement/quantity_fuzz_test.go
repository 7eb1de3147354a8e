package placement_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
)

// FuzzPodSpec holds that the rules of a pod name wrong fields by their path, and that the functions that decide by a
// pod read one that they took without changing it: no amount is negative, no selector chooses by chance.
func FuzzPodSpec(f *testing.F) {
	for _, seed := range []string{
		`{"containers":[{"name":"a","resources":{"requests":{"cpu":"500m","memory":"2Gi","example.com/gpu":1},"limits":{"cpu":1.5}},"ports":[{"containerPort":80,"hostPort":80,"protocol":"TCP","hostIP":"::"}]}]}`,
		`{"containers":[{"resources":{"requests":{"cpu":"1e999999999","memory":"-1","a":"1e-999999999","b":1e300,"c":"0.0000000000000000001Ei"}}}]}`,
		`{"nodeSelector":{"a":"b"},"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"a","operator":"Gt","values":["99999999999999999999"]},
		  {"key":"b","operator":"In","values":[]}],"matchFields":[{"key":"metadata.name","operator":"In","values":["n"]}]},{}]}}}}`,
		`{"tolerations":[{"operator":"Exists","tolerationSeconds":-1},{"key":"a","operator":"Equal","value":"b","effect":"NoExecute","tolerationSeconds":2147483647}]}`,
	} {
		f.Add(seed)
	}
	node := &nodev1.Node{}
	if err := manifest.Decode(
		[]byte(
			`{"metadata":{"name":"n","labels":{"a":"7"}},"spec":{"taints":[{"key":"a","value":"b","effect":"NoExecute"}]},"status":{"allocatable":{"cpu":"4","memory":"1Gi"}}}`), node); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		spec := &schedulingv1.PodSpec{}
		if manifest.Decode([]byte(text), spec) != nil {
			return
		}
		before := proto.CloneOf(spec)
		fields := append(placement.ValidateQuantities("spec", spec), placement.ValidatePorts("spec", spec)...)
		fields = append(fields, placement.ValidateNodeAffinity("spec.affinity.nodeAffinity",
			spec.GetAffinity().GetNodeAffinity())...)
		more, _ := placement.ValidateTolerations("spec.tolerations", spec.GetTolerations())
		for _, field := range append(fields, more...) {
			if !strings.HasPrefix(field.Path, "spec") || field.Description == "" {
				t.Fatalf("%s: %+v", text, object.Fault(field))
			}
		}
		r := placement.RequestsOf(spec)
		cpu, memory := placement.NonZeroRequestsOf(spec)
		if r.MilliCPU < 0 || r.Memory < 0 || r.EphemeralStorage < 0 || cpu < 0 || memory < 0 {
			t.Fatalf("%s asks for %+v, %d and %d", text, r, cpu, memory)
		}
		if placement.MatchesNode(spec, node) != placement.NewNodeMatcher(spec).Matches(node) {
			t.Fatalf("%s matches and does not", text)
		}
		placement.QOSClass(spec)
		placement.HostPorts(spec)
		placement.Untolerated(spec.GetTolerations(), node.GetSpec().GetTaints(), placement.NoExecute)
		if !proto.Equal(before, spec) {
			t.Fatalf("%s was changed", text)
		}
	})
}
