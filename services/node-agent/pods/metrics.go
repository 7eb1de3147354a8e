package pods

import (
	"errors"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

// measured is what pods had used of the processors when that was read last.
type measured struct {
	at  time.Time // with its monotonic reading; zero before the first time
	cpu map[string]time.Duration
}

// publish notes what the pods use, for callers of the cluster. The use of processors is an average since the last time,
// so there is none at the first time. What a pod used that was not there then, it used since.
func (s *Pods) publish(now time.Time, pods []plan.PodUse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.measured
	s.measured = measured{now, make(map[string]time.Duration, len(pods))}
	window := now.Sub(last.at)
	m := &schedulingv1.NodeMetrics{
		Name: s.cfg.Node, Timestamp: timestamppb.New(now), Window: durationpb.New(window), Use: &schedulingv1.ResourceUse{},
	}
	for _, p := range pods {
		s.measured.cpu[p.UID] = p.CPU
		if window <= 0 {
			continue
		}
		use := &schedulingv1.ResourceUse{
			// where no control group counts it, the time of processes that ended is missing
			MilliCpu:    max(0, int64(p.CPU-last.cpu[p.UID])*1000/int64(window)),
			MemoryBytes: p.Memory, DiskBytes: p.Disk.Total, Processes: int64(p.Processes),
		}
		m.Pods = append(m.Pods, &schedulingv1.PodMetrics{
			Namespace: p.Pod.GetMetadata().GetNamespace(), Name: p.Pod.GetMetadata().GetName(), Uid: p.UID,
			NodeName: s.cfg.Node, Timestamp: m.GetTimestamp(), Window: m.GetWindow(), Use: use,
		})
		m.Use.MilliCpu += use.GetMilliCpu()
		m.Use.MemoryBytes += use.GetMemoryBytes()
		m.Use.DiskBytes += use.GetDiskBytes()
		m.Use.Processes += use.GetProcesses()
	}
	if !last.at.IsZero() {
		s.metrics = m
	}
}

// sendMetrics answers what the pods use.
func (s *Pods) sendMetrics(d *delivery) error {
	s.mu.Lock()
	m := s.metrics
	s.mu.Unlock()
	if m == nil {
		return errors.New("metrics are not available yet: the agent started less than 10 s ago")
	}
	return d.send(&schedulingv1.DeliverRequest{Metrics: m})
}
