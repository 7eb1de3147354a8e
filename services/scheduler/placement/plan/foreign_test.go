package plan

import (
	"strings"
	"testing"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// TestAPodThatNamesASchedulerThatWasNotSeenSaysSo has two pods of a scheduler which binds one of them, and two of none.
func TestAPodThatNamesASchedulerThatWasNotSeenSaysSo(t *testing.T) {
	of := func(name, scheduler string, age time.Duration, change ...func(*schedulingv1.Pod)) *schedulingv1.Pod {
		return waiting("uid-"+name, append(change, func(p *schedulingv1.Pod) {
			p.Metadata.Name, p.Spec.SchedulerName = name, scheduler
			p.Metadata.CreationTimestamp = timestamppb.New(start.Add(-age))
		})...)
	}
	bound := func(p *schedulingv1.Pod) {
		p.Spec.NodeName = "a"
		p.Status.Conditions = []*schedulingv1.PodCondition{{Type: PodScheduled, Status: "True"}}
	}
	q := NewQueue(clusterOf(newNode("a")), only(nil))
	q.AddPod(of("old", "none", 10*time.Second))
	q.AddPod(of("young", "none", 4*time.Second))
	q.AddPod(of("served", "mine", time.Hour, bound))
	q.AddPod(of("next", "mine", time.Hour))
	q.AddPod(of("named", "none", time.Hour, on("a"))) // created for its node: no scheduler bound it
	told := func(now time.Time) (names []string, wake time.Time) {
		for {
			p := q.Next(now)
			for _, a := range p.Do {
				if a.Verb != StoreUnseen || !strings.Contains(a.Message, `no scheduler of that name has been seen`) {
					t.Errorf("%s: %s", a.Verb, a.Message)
				}
				names = append(names, a.Pod.GetMetadata().GetName())
			}
			q.Done(now, nil)
			if !p.Wake.Equal(now) {
				return names, p.Wake
			}
		}
	}
	if names, wake := told(start); len(names) != 1 || names[0] != "old" || !wake.Equal(start.Add(6*time.Second)) {
		t.Errorf("it is said of %v, next at %v", names, wake)
	}
	if names, wake := told(start.Add(6 * time.Second)); len(names) != 1 || names[0] != "young" || !wake.IsZero() {
		t.Errorf("after 6 s it is said of %v, next at %v", names, wake)
	}
	q.RemovePod(object.Key{Namespace: "default", Name: "served"})
	q.AddPod(of("later", "mine", time.Hour))
	if names, _ := told(start.Add(time.Minute)); len(names) != 1 || names[0] != "later" {
		t.Errorf("without a pod that the scheduler bound it is said of %v", names)
	}
	failed := of("again", "none", time.Hour)
	q.AddPod(failed)
	p := q.Next(start)
	q.Done(start, []Outcome{{Action: p.Do[0], Result: Unwritten}})
	if p = q.Next(start.Add(writePause)); len(p.Do) != 1 || p.Do[0].Verb != StoreUnseen {
		t.Errorf("what could not be written is not tried again: %+v", p)
	}
}
