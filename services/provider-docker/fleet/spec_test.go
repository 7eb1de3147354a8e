package fleet

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestProviderSpecs(t *testing.T) {
	valid := func(more map[string]any) map[string]any {
		out := map[string]any{"apiVersion": SpecAPIVersion, "kind": SpecKind}
		for field, v := range more {
			out[field] = v
		}
		return out
	}
	for name, c := range map[string]struct {
		spec  map[string]any
		wrong []string
	}{
		"the shortest": {spec: valid(nil)},
		"every field": {spec: valid(map[string]any{
			"metadata": map[string]any{}, "instanceType": "small", "region": "local", "zone": "rack-a", "image": "node:1",
			"network": "fleet", "capacity": map[string]any{"cpu": "500m", "memory": "1Gi", "pods": 20},
		})},
		"nothing": {spec: map[string]any{}, wrong: []string{"apiVersion", "kind"}},
		"wrong types": {
			spec:  valid(map[string]any{"zone": 1, "image": "", "capacity": "2", "extra": true}),
			wrong: []string{"capacity", "extra", "image", "zone"},
		},
		"wrong quantities": {
			spec:  valid(map[string]any{"capacity": map[string]any{"cpu": "0", "memory": "many", "pods": "-1"}}),
			wrong: []string{"capacity.cpu", "capacity.memory", "capacity.pods"},
		},
		"a network without fixed addresses": {spec: valid(map[string]any{"network": "bridge"}), wrong: []string{"network"}},
		"the network of another container": {
			spec:  valid(map[string]any{"network": "container:etcd"}),
			wrong: []string{"network"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := structpb.NewStruct(c.spec)
			if err != nil {
				t.Fatal(err)
			}
			_, faults := ParseSpec(s)
			var paths []string
			for _, f := range faults {
				paths = append(paths, f.Path)
			}
			if diff := cmp.Diff(c.wrong, paths); diff != "" {
				t.Errorf("%v: -want +got\n%s", faults, diff)
			}
		})
	}
}

func TestTheCapacityLimitsTheContainer(t *testing.T) {
	s := Spec{Capacity: map[string]string{"cpu": "500m", "memory": "1Gi"}}
	if cpu, memory := s.limit("cpu", resource.Nano), s.limit("memory", 0); cpu != 5e8 || memory != 1<<30 {
		t.Errorf("limits are %d and %d, want half a CPU and one GiB", cpu, memory)
	}
	if none := (Spec{}).limit("cpu", resource.Nano); none != 0 {
		t.Errorf("without a capacity the limit is %d, want none", none)
	}
}
