package attacks

import (
	"context"
	"os"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/audit"
)

const developer = `
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: developers, namespace: of-dora}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: pod-creator}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: dora}]
`

// TestADeveloperCreatesPodsInOneNamespaceAlone binds the role pod-creator in a namespace of a running cluster.
func TestADeveloperCreatesPodsInOneNamespaceAlone(t *testing.T) {
	c := shared.Cluster(t)
	policy := c.Dir("policy.yaml")
	before, err := os.ReadFile(policy)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(policy, before, 0o600); err != nil {
			t.Error(err)
		}
	})
	for _, namespace := range []string{"of-dora", "of-others"} {
		if err := createNamespace(t, c, c.Admin(), namespace); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(policy, append(append([]byte(nil), before...), developer...), 0o600); err != nil {
		t.Fatal(err)
	}
	dora := schedulingv1.NewPodServiceClient(c.As("dora").Conn())
	create := func(namespace string) error {
		_, err := dora.CreatePod(context.Background(), &schedulingv1.CreatePodRequest{
			Namespace: namespace,
			Pod: &schedulingv1.Pod{
				Metadata: &metav1.ObjectMeta{Name: "doras"},
				Spec: &schedulingv1.PodSpec{SchedulerName: "nobodys", Containers: []*schedulingv1.Container{
					{Name: "c", Image: "hello-pod"},
				}},
			},
		})
		return err
	}
	until(t, "the binding is in force", func() bool { return status.Code(create("of-dora")) != codes.PermissionDenied })
	t.Cleanup(func() {
		_, _ = schedulingv1.NewPodServiceClient(c.Conn()).DeletePod(context.Background(), &schedulingv1.DeletePodRequest{
			Namespace: "of-dora", Name: "doras",
		})
	})
	if _, err := dora.GetPod(t.Context(), &schedulingv1.GetPodRequest{Namespace: "of-dora", Name: "doras"}); err != nil {
		t.Errorf("GetPod = %v, want the pod", err)
	}
	refused := map[string]error{"in another namespace": create("of-others"), "in the default namespace": create("")}
	_, refused["all pods"] = dora.ListPods(t.Context(), &schedulingv1.ListPodsRequest{})
	_, refused["another namespace's pods"] = dora.ListPods(t.Context(), &schedulingv1.ListPodsRequest{
		Namespace: "of-others",
	})
	_, refused["a binding"] = dora.BindPod(t.Context(), &schedulingv1.BindPodRequest{
		Namespace: "of-dora", Name: "doras",
		NodeName: "x",
	})
	for what, err := range refused {
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v, want PERMISSION_DENIED", what, err)
		}
	}
	canCreate := func(namespace string) int {
		out, err := c.As("dora").CLI("", "auth", "can-i", "create", "pods", "-n", namespace)
		if err != nil {
			t.Fatal(err)
		}
		return out.Code
	}
	until(t, "the binding is in force at the gateway, too", func() bool { return canCreate("of-dora") == 0 })
	if code := canCreate("of-others"); code != 1 {
		t.Errorf("can-i create pods in of-others: %d, want 1", code)
	}
	recorded(t, c, "the change of the policy", func(r audit.Record) bool {
		return r.Event == audit.EventPolicy && r.Service == "scheduler" && r.Hash != ""
	})
}
