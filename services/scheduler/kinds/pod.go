package kinds

import (
	"fmt"
	"slices"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
)

// defaultPod fills in what every write must find there.
func defaultPod(pod *schedulingv1.Pod) {
	if pod.Spec != nil {
		plan.Default(pod.Spec)
	}
	if pod.Status == nil {
		pod.Status = &schedulingv1.PodStatus{}
	}
	if pod.Status.GetPhase() == "" {
		pod.Status.Phase = proto.String(placement.Pending)
	}
}

// podGrace says how long a pod stays once its deletion is asked for: one that runs on a node stays until its agent says
// that nothing of it is left.
func (t *Tables) podGrace(pod *schedulingv1.Pod, asked *int32) (int32, bool) {
	node := pod.GetSpec().GetNodeName()
	if node == "" || placement.Terminated(pod) || !t.cfg.Nodes.HasNode(node) {
		return 0, false
	}
	if asked != nil {
		return *asked, *asked > 0
	}
	return max(1, pod.GetSpec().GetTerminationGracePeriodSeconds()), true
}

// admitPod lets only this service bind a pod and write its status.
func (t *Tables) admitPod(w *resource.Write[*schedulingv1.Pod]) error {
	switch {
	case w.Deletes():
		return nil
	case w.Creates():
		return t.admitNew(w)
	case w.Own:
		return nil
	}
	return admitted(plan.AdmitUpdate(w.Old, w.New))
}

// admitted returns the error of a pod that admission refuses.
func admitted(a plan.Admission) error {
	switch {
	case a.Forbidden != "":
		return rpcerr.Forbidden(a.Forbidden)
	case len(a.Fields) > 0:
		return rpcerr.Invalid(a.Fields...)
	}
	return nil
}

// Bind makes a pod run on a node, unless it is bound already or on its way out. It is for Table.Modify and
// Table.ModifyAll.
func (t *Tables) Bind(pod *schedulingv1.Pod, uid, node string) error {
	name := pod.GetMetadata().GetName()
	switch {
	case uid != "" && pod.GetMetadata().GetUid() != uid:
		return rpcerr.Conflict("Pod", name, fmt.Sprintf("uid is %s, not %s", pod.GetMetadata().GetUid(), uid))
	case pod.GetSpec().GetNodeName() != "":
		return rpcerr.Conflict("Pod", name, fmt.Sprintf("it is bound to node %q", pod.GetSpec().GetNodeName()))
	case object.Deleting(pod):
		return rpcerr.Conflict("Pod", name, "it is being deleted")
	case len(pod.GetSpec().GetSchedulingGates()) > 0:
		return rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION, "pods/"+name,
			"it has scheduling gates")
	}
	t.Place(pod, node)
	return nil
}

// Place puts a pod on a node, whatever else of it says.
func (t *Tables) Place(pod *schedulingv1.Pod, node string) {
	pod.Spec.NodeName = node
	t.SetPodCondition(pod, &schedulingv1.PodCondition{Type: plan.PodScheduled, Status: "True"})
	pod.Status.NominatedNodeName = ""
}

// SetPodCondition puts a condition into a pod's status; the time of its transition moves only with its status.
func (t *Tables) SetPodCondition(pod *schedulingv1.Pod, c *schedulingv1.PodCondition) {
	c.LastTransitionTime = t.now()
	if pod.Status == nil {
		pod.Status = &schedulingv1.PodStatus{}
	}
	i := slices.IndexFunc(pod.Status.Conditions, func(o *schedulingv1.PodCondition) bool {
		return o.GetType() == c.GetType()
	})
	if i < 0 {
		pod.Status.Conditions = append(pod.Status.Conditions, c)
		return
	}
	if have := pod.Status.Conditions[i]; have.GetStatus() == c.GetStatus() {
		c.LastTransitionTime = have.GetLastTransitionTime()
	}
	pod.Status.Conditions[i] = c
}
