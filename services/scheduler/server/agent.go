package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/scheduler/kinds"
	"github.com/windlass-dev/windlass/services/scheduler/relay"
	storage "github.com/windlass-dev/windlass/services/scheduler/volume/plan"
)

// Agents serves PodAgentService.
type Agents struct {
	schedulingv1.UnimplementedPodAgentServiceServer
	Config
	reports *reports
}

// NewAgents returns PodAgentService.
func NewAgents(cfg Config) *Agents {
	return &Agents{Config: cfg, reports: &reports{of: map[string]span{}}}
}

// WatchOwnPods sends the pods that are bound to the agent's node and then every change.
func (s *Agents) WatchOwnPods(r *schedulingv1.WatchOwnPodsRequest,
	stream grpc.ServerStreamingServer[schedulingv1.WatchPodsResponse],
) error {
	ctx := stream.Context()
	if err := s.Nodes.Speaks(ctx, r.GetNodeName()); err != nil {
		return err
	}
	sel, err := resource.ParseSelection("", "spec.nodeName="+r.GetNodeName())
	if err != nil {
		return err
	}
	return s.Tables.Pods.Watching(ctx, "", sel, 0, true, func(e resource.Events[*schedulingv1.Pod]) error {
		out := &schedulingv1.WatchPodsResponse{Bookmark: e.Bookmark}
		if e.Revision > 0 {
			out.ResourceVersion = resource.FormatRevision(e.Revision)
		}
		for _, ev := range e.Events {
			out.Events = append(out.Events, &schedulingv1.WatchPodsResponse_Event{Type: ev.Type, Object: ev.Object})
		}
		return stream.Send(out)
	})
}

// ReportPod stores the status of a pod of the agent's node.
func (s *Agents) ReportPod(ctx context.Context, r *schedulingv1.ReportPodRequest) (*schedulingv1.Pod, error) {
	if err := s.Nodes.Speaks(ctx, r.GetNodeName()); err != nil {
		return nil, err
	}
	out, err := s.Tables.Pods.Modify(ctx, keyOf(r.GetNamespace(), r.GetName()), func(pod *schedulingv1.Pod) error {
		if err := runsOn(pod, r.GetNodeName(), r.GetUid()); err != nil {
			return err
		}
		if err := identity.BeforeChange(ctx); err != nil {
			return err
		}
		next := proto.CloneOf(r.GetStatus())
		if next == nil {
			return nil
		}
		if placement.Terminated(pod) && next.GetPhase() != pod.GetStatus().GetPhase() {
			return rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION, "pods/"+r.GetName(),
				fmt.Sprintf("it has ended as %s and cannot become %s", pod.GetStatus().GetPhase(), next.GetPhase()))
		}
		keepForeign(pod.GetStatus(), next)
		pod.Status = next
		return nil
	}, resource.WriteOptions{Own: true})
	if err != nil {
		return nil, err
	}
	told := events.From(s.Events, "node-agent, "+r.GetNodeName())
	for _, e := range r.GetEvents() {
		told.Event(out, e.GetType(), e.GetReason(), e.GetMessage())
	}
	return out, nil
}

// ofAgents are the conditions of a pod that its agent says. Others are written by the scheduler, or by those whose
// conditions the pod's readiness gates name.
var ofAgents = []string{"Initialized", "ContainersReady", "Ready"}

// keepForeign takes over what others than the agent write.
func keepForeign(have, next *schedulingv1.PodStatus) {
	if next.GetPhase() == "" {
		next.Phase = have.Phase
	}
	next.QosClass, next.NominatedNodeName = have.GetQosClass(), have.GetNominatedNodeName()
	var conditions []*schedulingv1.PodCondition
	foreign := func(c *schedulingv1.PodCondition) bool { return !slices.Contains(ofAgents, c.GetType()) }
	for _, c := range have.GetConditions() {
		if foreign(c) {
			conditions = append(conditions, c)
		}
	}
	for _, c := range next.GetConditions() {
		if !foreign(c) {
			conditions = append(conditions, c)
		}
	}
	next.Conditions = conditions
}

// runsOn returns nil if a pod is the one with that uid and bound to a node.
func runsOn(pod *schedulingv1.Pod, node, uid string) error {
	name := pod.GetMetadata().GetName()
	if have := pod.GetMetadata().GetUid(); have != uid {
		return rpcerr.Conflict("Pod", name, fmt.Sprintf("uid is %s, not %s", have, uid))
	}
	if have := pod.GetSpec().GetNodeName(); have != node {
		return rpcerr.Forbidden(fmt.Sprintf("pod %q is not bound to node %q", name, node))
	}
	return nil
}

// ConfirmPodGone removes a pod that is on its way out and of which nothing runs any more.
func (s *Agents) ConfirmPodGone(ctx context.Context, r *schedulingv1.ConfirmPodGoneRequest) (
	*schedulingv1.ConfirmPodGoneResponse, error,
) {
	if err := s.Nodes.Speaks(ctx, r.GetNodeName()); err != nil {
		return nil, err
	}
	key := keyOf(r.GetNamespace(), r.GetName())
	pod, err := s.Tables.Pods.Get(ctx, key.Namespace, key.Name)
	switch {
	case rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_NOT_FOUND:
		return &schedulingv1.ConfirmPodGoneResponse{}, nil
	case err != nil:
		return nil, err
	case pod.GetMetadata().GetUid() != r.GetUid():
		return &schedulingv1.ConfirmPodGoneResponse{}, nil // another one has its name by now
	}
	if err := runsOn(pod, r.GetNodeName(), r.GetUid()); err != nil {
		return nil, err
	}
	if !object.Deleting(pod) {
		return nil, rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION, "pods/"+r.GetName(),
			"its deletion was not requested")
	}
	if err := identity.BeforeChange(ctx); err != nil {
		return nil, err
	}
	_, err = s.Tables.Pods.Delete(ctx, key.Namespace, key.Name, &metav1.Preconditions{Uid: r.GetUid()},
		resource.WriteOptions{Grace: proto.Int32(0)})
	switch rpcerr.Reason(err) {
	case metav1.ErrorReason_ERROR_REASON_NOT_FOUND, metav1.ErrorReason_ERROR_REASON_CONFLICT:
		err = nil
	}
	return &schedulingv1.ConfirmPodGoneResponse{}, err
}

// ResolveVolumes returns the volumes of the claims of a pod of the agent's node.
func (s *Agents) ResolveVolumes(ctx context.Context, r *schedulingv1.ResolveVolumesRequest) (
	*schedulingv1.ResolveVolumesResponse, error,
) {
	if err := s.Nodes.Speaks(ctx, r.GetNodeName()); err != nil {
		return nil, err
	}
	pod, err := s.Tables.Pods.Get(ctx, r.GetNamespace(), r.GetName())
	if err != nil {
		return nil, err
	}
	if err := runsOn(pod, r.GetNodeName(), r.GetUid()); err != nil {
		return nil, err
	}
	if err := identity.BeforeChange(ctx); err != nil {
		return nil, err
	}
	out := &schedulingv1.ResolveVolumesResponse{Volumes: map[string]*schedulingv1.PersistentVolume{}}
	for _, v := range pod.GetSpec().GetVolumes() {
		if v.GetPersistentVolumeClaim() == nil {
			continue
		}
		volume, err := s.resolve(ctx, r, v.GetPersistentVolumeClaim().GetClaimName())
		if err != nil {
			return nil, err
		}
		out.Volumes[v.GetName()] = volume
	}
	return out, nil
}

// resolve returns the volume that a claim is bound to. One that is a directory of a node is kept from now on until that
// is removed.
func (s *Agents) resolve(ctx context.Context, r *schedulingv1.ResolveVolumesRequest, name string) (
	*schedulingv1.PersistentVolume, error,
) {
	claim, err := s.Tables.Claims.Get(ctx, r.GetNamespace(), name)
	if err != nil {
		return nil, err
	}
	if !storage.Bound(claim) {
		return nil, notBound(name, "it is not bound to a volume yet")
	}
	volume, err := s.Tables.Volumes.Get(ctx, "", claim.GetSpec().GetVolumeName())
	if err != nil {
		return nil, err
	}
	if !storage.Holds(volume, claim) {
		return nil, notBound(name, "its volume belongs to another claim")
	}
	switch node := placement.VolumeNode(volume); {
	case node == "":
		return volume, nil
	case node != r.GetNodeName():
		return nil, notBound(name, "its volume is on node "+node)
	}
	return s.Tables.Volumes.Modify(ctx, object.KeyOf(volume), func(now *schedulingv1.PersistentVolume) error {
		if now.GetMetadata().GetUid() != volume.GetMetadata().GetUid() || !storage.Holds(now, claim) {
			return rpcerr.Conflict("PersistentVolume", now.GetMetadata().GetName(), "")
		}
		return made(now, r.GetStoreId())
	}, resource.WriteOptions{Own: true})
}

// made notes that a volume is a directory in an agent's store. It returns an error if it was one in another store: an
// empty directory must not pass for the data.
func made(v *schedulingv1.PersistentVolume, store string) error {
	m := v.GetMetadata()
	was := m.GetAnnotations()[placement.LocalStore]
	if was != "" && store != "" && was != store {
		return rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION, "persistentvolumes/"+m.GetName(),
			fmt.Sprintf(
				"its directory was on an earlier machine or disk of node %s, and its data is not there: delete the claim, "+
					"or, to start with an empty directory, the annotation %s of the volume", placement.VolumeNode(v),
				placement.LocalStore))
	}
	if !slices.Contains(m.GetFinalizers(), placement.LocalDirectory) {
		m.Finalizers = append(m.Finalizers, placement.LocalDirectory)
	}
	if was == "" && store != "" {
		if m.Annotations == nil {
			m.Annotations = map[string]string{}
		}
		m.Annotations[placement.LocalStore] = store
	}
	return nil
}

func notBound(claim, why string) error {
	return rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION, "persistentvolumeclaims/"+claim, why)
}

// WatchOwnVolumes sends the volumes that are directories of the agent's node, and then every change.
func (s *Agents) WatchOwnVolumes(r *schedulingv1.WatchOwnVolumesRequest,
	stream grpc.ServerStreamingServer[schedulingv1.WatchPersistentVolumesResponse],
) error {
	ctx := stream.Context()
	if err := s.Nodes.Speaks(ctx, r.GetNodeName()); err != nil {
		return err
	}
	sel, err := resource.ParseSelection("", kinds.OnNode+"="+r.GetNodeName())
	if err != nil {
		return err
	}
	return s.Tables.Volumes.Watching(ctx, "", sel, 0, true, func(e resource.Events[*schedulingv1.PersistentVolume]) error {
		out := &schedulingv1.WatchPersistentVolumesResponse{Bookmark: e.Bookmark}
		if e.Revision > 0 {
			out.ResourceVersion = resource.FormatRevision(e.Revision)
		}
		for _, ev := range e.Events {
			out.Events = append(out.Events, &schedulingv1.WatchPersistentVolumesResponse_Event{
				Type: ev.Type, Object: ev.Object,
			})
		}
		return stream.Send(out)
	})
}

// ConfirmVolumeGone lets a volume go whose directory is removed.
func (s *Agents) ConfirmVolumeGone(ctx context.Context, r *schedulingv1.ConfirmVolumeGoneRequest) (
	*schedulingv1.ConfirmVolumeGoneResponse, error,
) {
	if err := s.Nodes.Speaks(ctx, r.GetNodeName()); err != nil {
		return nil, err
	}
	_, err := s.Tables.Volumes.Modify(ctx, object.Key{Name: r.GetName()}, func(v *schedulingv1.PersistentVolume) error {
		switch {
		case v.GetMetadata().GetUid() != r.GetUid():
			return rpcerr.NotFound("PersistentVolume", r.GetName()) // another one has its name by now
		case placement.VolumeNode(v) != r.GetNodeName():
			return rpcerr.Forbidden(fmt.Sprintf("volume %q is not on node %q", r.GetName(), r.GetNodeName()))
		case !placement.DirectoryGoes(v):
			return rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION, "persistentvolumes/"+r.GetName(),
				"its directory is to stay")
		}
		if err := identity.BeforeChange(ctx); err != nil {
			return err
		}
		v.Metadata.Finalizers = slices.DeleteFunc(v.Metadata.Finalizers, func(f string) bool {
			return f == placement.LocalDirectory
		})
		return nil
	}, resource.WriteOptions{Own: true})
	if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		err = nil
	}
	return &schedulingv1.ConfirmVolumeGoneResponse{}, err
}

// Attend brings an agent the requests for its pods.
func (s *Agents) Attend(r *schedulingv1.AttendRequest,
	stream grpc.ServerStreamingServer[schedulingv1.AttendResponse],
) error {
	ctx := stream.Context()
	if err := s.Nodes.Speaks(ctx, r.GetNodeName()); err != nil {
		return err
	}
	there, leave := s.Relay.Attend(r.GetNodeName())
	defer leave()
	if err := stream.Send(&schedulingv1.AttendResponse{}); err != nil {
		return err
	}
	for {
		select {
		case w := <-there.Requests:
			if err := stream.Send(w); err != nil {
				return err
			}
		case <-there.Replaced:
			return rpcerr.HeldByOther("nodes/"+r.GetNodeName(), "another stream attends for the node")
		case <-ctx.Done():
			return nil
		}
	}
}

// Deliver answers one request.
func (s *Agents) Deliver(stream grpc.BidiStreamingServer[schedulingv1.DeliverRequest, schedulingv1.DeliverResponse]) (
	err error,
) {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := s.Nodes.Speaks(stream.Context(), first.GetNodeName()); err != nil {
		return err
	}
	answer, err := s.Relay.Take(first.GetNodeName(), first.GetId())
	if err != nil {
		return rpcerr.NotFound("request", first.GetId())
	}
	defer func() { answer.End(err) }()
	said := make(chan error, 1)
	go func() { said <- say(stream, first, answer) }()
	for {
		select {
		case m := <-answer.Input():
			if err := stream.Send(m); err != nil {
				return err
			}
		case err := <-said:
			return err
		case <-answer.Done():
			return rpcerr.NotFound("request", first.GetId()) // the caller no longer waits
		}
	}
}

// say passes on what an agent says until it has said everything. Its stream ends with Deliver, and so does this.
func say(stream grpc.BidiStreamingServer[schedulingv1.DeliverRequest, schedulingv1.DeliverResponse],
	m *schedulingv1.DeliverRequest, to relay.Answer,
) error {
	for {
		if err := to.Say(m); err != nil {
			return rpcerr.NotFound("request", m.GetId())
		}
		var err error
		if m, err = stream.Recv(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}
