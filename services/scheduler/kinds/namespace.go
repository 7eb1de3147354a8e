package kinds

import (
	"fmt"
	"slices"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

// BuiltIns returns the namespaces that always exist.
func BuiltIns() []string {
	return []string{
		"default", "kube-public", "kube-system", "openshift-cluster-version", "openshift-config", "openshift-config-managed",
		"openshift-etcd", "openshift-machine-api", "windlass",
	}
}

// BuiltIn reports whether a namespace always exists.
func BuiltIn(name string) bool { return slices.Contains(BuiltIns(), name) }

func defaultNamespace(ns *schedulingv1.Namespace) {
	if ns.Status == nil {
		ns.Status = &schedulingv1.NamespaceStatus{}
	}
	ns.Status.Phase = proto.String("Active")
	if object.Deleting(ns) {
		ns.Status.Phase = proto.String(plan.Terminating)
	}
}

// admitNamespace refuses to delete what always exists.
func admitNamespace(w *resource.Write[*schedulingv1.Namespace]) error {
	if name := w.Old.GetMetadata().GetName(); w.Deletes() && BuiltIn(name) {
		return rpcerr.Forbidden(fmt.Sprintf("namespace %q may not be deleted: it always exists", name))
	}
	return nil
}
