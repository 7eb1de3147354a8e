package pods

import (
	"context"
	"slices"
	"strings"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/kit/process"
)

// ownConditions are those that an agent says.
var ownConditions = [...]string{"Initialized", "ContainersReady", "Ready"}

// report reports the status of a pod, and removes what is left of one that is over.
func (s *Pods) report(ctx context.Context, uid string) (time.Time, error) {
	s.mu.Lock()
	p := s.pods[uid]
	if p == nil {
		s.mu.Unlock()
		return time.Time{}, nil
	}
	m, st, reported, over, gone, overruled := p.object.GetMetadata(), p.status, p.reported, p.over, p.gone, p.overruled
	events := slices.Clone(p.events)
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	switch {
	case over:
		if !gone {
			_, err := s.agents.ConfirmPodGone(ctx, &schedulingv1.ConfirmPodGoneRequest{
				NodeName: s.cfg.Node, Namespace: m.GetNamespace(), Name: m.GetName(), Uid: uid,
			})
			if err != nil && !isGone(err) {
				return time.Time{}, err
			}
		}
		return time.Time{}, s.remove(ctx, p)
	case gone || st == nil || proto.Equal(st, reported) && len(events) == 0:
		return time.Time{}, nil
	}
	_, err := s.agents.ReportPod(ctx, &schedulingv1.ReportPodRequest{
		NodeName: s.cfg.Node, Namespace: m.GetNamespace(), Name: m.GetName(), Uid: uid, Status: st, Events: events,
	})
	if err != nil && isGone(err) {
		s.lose(uid)
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.events = p.events[len(events):] // new ones come at the end
	if p.overruled == overruled {     // else that may have been said after what was reported here
		p.reported = st
	}
	return time.Time{}, nil
}

// isGone reports whether an answer says that the cluster does not have the pod any more, or has another one of its
// name.
func isGone(err error) bool {
	st := status.Convert(err)
	return st.Code() == codes.NotFound || st.Code() == codes.Aborted && strings.Contains(st.Message(), "uid")
}

// ownPart returns what an agent says of the status that the cluster has.
func ownPart(st *schedulingv1.PodStatus) *schedulingv1.PodStatus {
	st = proto.CloneOf(st)
	if st == nil {
		return nil
	}
	st.NominatedNodeName, st.ObservedGeneration = "", nil
	st.Conditions = slices.DeleteFunc(st.GetConditions(), func(c *schedulingv1.PodCondition) bool {
		return !slices.Contains(ownConditions[:], c.GetType())
	})
	return st
}

// remove removes what is left of a pod of which nothing runs.
func (s *Pods) remove(ctx context.Context, p *pod) error {
	s.endJobs(p)
	if p.reclaimed != nil {
		select {
		case <-p.reclaimed:
		case <-ctx.Done(): // a container runtime that does not answer must not hold up the reports of other pods
			return ctx.Err()
		}
	}
	for name := range p.record.Containers {
		if err := s.stop(ctx, processName(p.uid, name)); err != nil {
			return err
		}
	}
	for _, d := range s.drivers() {
		if err := d.EndPool(ctx, processPrefix+p.uid); err != nil {
			return err
		}
	}
	if p.record.User != 0 { // a child that left its session
		if err := (process.Users{First: p.record.User, Count: 1}).Kill(); err != nil {
			return err
		}
		if err := s.closeVolumesOf(p); err != nil {
			return err
		}
	}
	if err := s.removeAll(s.dir(p.uid)); err != nil {
		return err
	}
	if err := s.releaseAddress(p); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pods, p.uid)
	s.cfg.Log.InfoContext(ctx, "pod is gone", "pod", p.object.GetMetadata().GetName(), "namespace",
		p.object.GetMetadata().GetNamespace())
	return nil
}
