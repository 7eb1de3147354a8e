package controller_test

import (
	"testing"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
)

// TestAReplicaSetWhosePodsAreDeletedAtOnceMakesFewerAndFewer deletes every pod as soon as it runs, as a taint does.
func TestAReplicaSetWhosePodsAreDeletedAtOnceMakesFewerAndFewer(t *testing.T) {
	c := start(t)
	must[*schedulingv1.ReplicaSet](c)(c.ReplicaSets.Create(c.ctx, &schedulingv1.ReplicaSet{
		Metadata: meta(), Spec: &schedulingv1.ReplicaSetSpec{
			Replicas: proto.Int32(1), Selector: selector(), Template: template("v1"),
		},
	}))
	const span = 3 * time.Second
	for end := time.After(span); ; {
		for _, p := range c.Pods.All() {
			if !running(p) {
				continue
			}
			m := p.GetMetadata()
			_, err := c.Pods.Delete(c.ctx, m.GetNamespace(), m.GetName(), &metav1.Preconditions{Uid: m.GetUid()})
			if err != nil && !resourceGone(err) {
				t.Fatal(err)
			}
		}
		select {
		case <-c.moved:
			continue
		case <-end:
		}
		break
	}
	if n := c.told("SuccessfulCreate"); n < 2 || n > 3 { // at once, after 1 s and after 2 s more
		t.Errorf("%d pods were made in %v", n, span)
	}
}

// TestPodsThatTheirOwnerRemovesAreReplacedAtOnce scales a set down and up again.
func TestPodsThatTheirOwnerRemovesAreReplacedAtOnce(t *testing.T) {
	c := start(t)
	set := must[*schedulingv1.ReplicaSet](c)(c.ReplicaSets.Create(c.ctx, &schedulingv1.ReplicaSet{
		Metadata: meta(), Spec: &schedulingv1.ReplicaSetSpec{
			Replicas: proto.Int32(3), Selector: selector(), Template: template("v1"),
		},
	}))
	began := time.Now()
	for _, n := range []int32{3, 0, 3, 0, 3, 0, 3} {
		must[*schedulingv1.ReplicaSet](c)(c.ReplicaSets.Modify(c.ctx, object.KeyOf(set),
			func(s *schedulingv1.ReplicaSet) error {
				s.Spec.Replicas = proto.Int32(n)
				return nil
			}))
		c.until("as many pods as wanted", func() bool { return c.count(running) == int(n) && len(c.Pods.All()) == int(n) })
	}
	if took := time.Since(began); took > 6*time.Second { // pauses after three rounds would take 7 s
		t.Errorf("it took %v", took)
	}
}
