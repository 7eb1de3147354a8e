package controller

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"

	"github.com/windlass-dev/windlass/services/scheduler/kinds"
)

// quiet knows of no node and reports nothing.
type quiet struct{}

func (quiet) HasNode(string) bool                         { return true }
func (quiet) Event(object.Object, string, string, string) {}

// TestADeploymentWaitsForASetOfItsOwnThatIsOnItsWayOut holds the set of the present template by a finalizer: its name
// is taken until it is gone, and its deletion is observed.
func TestADeploymentWaitsForASetOfItsOwnThatIsOnItsWayOut(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	all := kinds.New(kinds.Config{
		Store: etcdtest.Store(t), Validator: protovalidate.GlobalValidator, Nodes: quiet{}, Log: log,
		MayBind: func(identity.Caller, string, string) bool { return true },
	})
	for _, k := range all.All() {
		go func() { _ = k.Run(t.Context()) }()
		if err := k.WaitSynced(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	looked := make(chan string, 8)
	loop := controller.NewLoop("probe", 1, func(_ context.Context, key string) (time.Time, error) {
		looked <- key
		return time.Time{}, nil
	}, log)
	go func() { _ = loop.Run(t.Context()) }()
	c := &Controllers{
		Tables:         Tables{ReplicaSets: all.ReplicaSets, Deployments: all.Deployments},
		deploymentLoop: loop,
		events:         quiet{}, log: log, now: time.Now,
	}
	web := map[string]string{"app": "web"}
	if _, err := all.Deployments.Create(t.Context(), &schedulingv1.Deployment{
		Metadata: &metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec: &schedulingv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: web},
			Template: &schedulingv1.PodTemplateSpec{
				Metadata: &metav1.ObjectMeta{Labels: web}, Spec: &schedulingv1.PodSpec{
					Containers: []*schedulingv1.Container{{Name: "web", Image: "v1"}},
				},
			},
		},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.reconcileDeployment(t.Context(), "default/web"); err != nil || len(all.ReplicaSets.All()) != 1 {
		t.Fatalf("%d sets, %v", len(all.ReplicaSets.All()), err)
	}
	set := object.KeyOf(all.ReplicaSets.All()[0])
	if _, err := all.ReplicaSets.Modify(t.Context(), set, func(s *schedulingv1.ReplicaSet) error {
		s.Metadata.Finalizers = []string{"example.com/hold"}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := all.ReplicaSets.Delete(t.Context(), set.Namespace, set.Name, nil); err != nil {
		t.Fatal(err)
	}
	wake, err := c.reconcileDeployment(t.Context(), "default/web")
	if err != nil || !wake.IsZero() {
		t.Errorf("looks again at %v, %v; want when the set is gone", wake, err)
	}
	loop.Add("end") // one worker handles keys in the order in which they come
	if key := <-looked; key != "end" {
		t.Errorf("%s is reconciled again at once, although nothing changed", key)
	}
}
