package workload

import (
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/resource"
	"google.golang.org/protobuf/proto"
)

func TestIndexTellsOfAChangeThatItsWriterTookInBefore(t *testing.T) {
	table := resource.NewTable(nil, nil, resource.Config[*schedulingv1.Pod]{})
	x := newIndex(table)
	k := resource.Key{Namespace: "default", Name: "a"}
	pod := &schedulingv1.Pod{Metadata: &metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Name, OwnerReferences: []*metav1.OwnerReference{
		{Kind: "ReplicaSet", Uid: "u", Controller: proto.Bool(true)},
	}}}
	table.Replace([]*schedulingv1.Pod{pod}, 1)
	x.refresh(k)
	if got := x.of("default", "u"); len(got) != 1 {
		t.Errorf("the writer sees %v", got)
	}
	if was, is := x.change(k); was != nil || is != pod {
		t.Errorf("change = %v, %v, want that the pod is new", was, is)
	}
	table.Replace(nil, 2)
	x.refresh(k)
	if was, is := x.change(k); was != pod || is != nil {
		t.Errorf("change = %v, %v, want that the pod is gone", was, is)
	}
	if len(x.of("default", "u"))+len(x.indexed)+len(x.told)+len(x.groups) != 0 {
		t.Errorf("something is left: %v", x)
	}
}
