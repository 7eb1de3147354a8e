package traffic

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

// world is a tracker over two caches, which the test changes.
type world struct {
	*Tracker
	services *resource.Cache[*schedulingv1.Service]
	pods     *resource.Cache[*schedulingv1.Pod]
	revision int64
}

func worldOf() *world {
	w := &world{
		services: resource.NewCache[*schedulingv1.Service](), pods: resource.NewCache[*schedulingv1.Pod](), revision: 1,
	}
	w.Tracker = New(w.services, w.pods)
	return w
}

// run runs the tracker until the test ends.
func (w *world) run(t testing.TB) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func (w *world) synced() {
	w.services.Replace(nil, w.revision)
	w.pods.Replace(nil, w.revision)
}

func step[T object.Object](w *world, c *resource.Cache[T], o T, deleted bool) {
	w.revision++
	o.GetMetadata().ResourceVersion = fmt.Sprint(w.revision)
	k := object.KeyOf(o)
	previous, existed := c.Lookup(k.Namespace, k.Name)
	c.Step(w.revision, []resource.Change[T]{{Key: k, Object: o, Previous: previous, Existed: existed, Deleted: deleted}})
}

func serviceOf(namespace, name string, selector map[string]string) *schedulingv1.Service {
	return &schedulingv1.Service{
		Metadata: &metav1.ObjectMeta{Namespace: namespace, Name: name, Uid: name},
		Spec: &schedulingv1.ServiceSpec{
			ClusterIp: "127.224.0.5", Selector: selector, Ports: []*schedulingv1.ServicePort{{Port: 80}},
		},
	}
}

func podOf(namespace, name, ready string, labels map[string]string) *schedulingv1.Pod {
	return &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{Namespace: namespace, Name: name, Uid: name, Labels: labels},
		Spec:     &schedulingv1.PodSpec{NodeName: "n"},
		Status: &schedulingv1.PodStatus{
			PodIp:      "127.240.0.9",
			Conditions: []*schedulingv1.PodCondition{{Type: "Ready", Status: ready}},
		},
	}
}

var web = map[string]string{"app": "web"}

// say returns services with their pods, those that serve before the others.
func say(all []*schedulingv1.ServiceEndpoints) (out []string) {
	for _, s := range all {
		text := s.GetName() + ":"
		for _, e := range s.GetEndpoints() {
			text += fmt.Sprintf(" %s %t", e.GetPod(), e.GetServing())
		}
		out = append(out, text)
	}
	return out
}

func TestAStreamBeginsWithAllServicesAndThenHasTheChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := worldOf()
		s := w.Watch()
		defer s.Close()
		w.run(t)
		synctest.Wait()
		early, stop := context.WithCancel(t.Context())
		stop()
		if all, err := s.All(early); err == nil {
			t.Errorf("before anything is known all services are %v", all)
		}
		w.synced()
		step(w, w.services, serviceOf("default", "a", web), false)
		step(w, w.services, serviceOf("default", "b", nil), false)
		step(w, w.services, serviceOf("elsewhere", "c", web), false)
		step(w, w.pods, podOf("default", "p", "False", web), false)
		synctest.Wait()
		all, err := s.All(t.Context())
		if got, want := say(all), []string{"a: p false", "b:", "c:"}; err != nil || !slices.Equal(got, want) {
			t.Fatalf("the stream begins with %q, %v, want %q", got, err, want)
		}
		next := func(want []string, gone ...string) {
			t.Helper()
			changed, removed, err := s.Next(t.Context())
			if got := say(changed); err != nil || !slices.Equal(got, want) || !slices.Equal(removed, gone) {
				t.Errorf("changed are %q, removed %q, %v; want %q and %q", got, removed, err, want, gone)
			}
		}
		step(w, w.pods, podOf("default", "p", "True", web), false)
		next([]string{"a: p true"})

		// Several changes are one; a change that changes no endpoint is none.
		step(w, w.pods, podOf("default", "q", "False", web), false)
		step(w, w.pods, podOf("default", "q", "True", web), false)
		step(w, w.pods, podOf("default", "other", "True", map[string]string{"app": "other"}), false)
		synctest.Wait()
		next([]string{"a: p true q true"})
		busy := podOf("default", "q", "True", web)
		busy.Status.Message = proto.String("busy")
		step(w, w.pods, busy, false)
		synctest.Wait()
		if changed, removed := s.take(); len(changed)+len(removed) > 0 {
			t.Errorf("a change of no endpoint: changed are %q, removed %q", say(changed), removed)
		}
		step(w, w.pods, podOf("default", "p", "True", map[string]string{"app": "other"}), false)
		synctest.Wait()
		next([]string{"a: q true"})
		step(w, w.pods, busy, true)
		next([]string{"a:"})
		step(w, w.services, serviceOf("default", "b", map[string]string{"app": "other"}), false)
		next([]string{"b: other true p true"})
		step(w, w.services, serviceOf("default", "a", web), true)
		next(nil, "default/a")
		step(w, w.services, serviceOf("default", "b", web), true)
		next(nil, "default/b")
		step(w, w.pods, podOf("default", "p", "False", map[string]string{"app": "other"}), false)
		synctest.Wait()
		if changed, removed := s.take(); len(changed)+len(removed) > 0 {
			t.Errorf("a pod of a service that is gone: changed are %q, removed %q", say(changed), removed)
		}
	})
}

// A slow stream does not keep others, or the tracker, from going on.
func TestAStreamThatNobodyReadsBlocksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := worldOf()
		slow := w.Watch()
		defer slow.Close()
		w.run(t)
		w.synced()
		step(w, w.services, serviceOf("default", "a", web), false)
		for i := range 100 {
			step(w, w.pods, podOf("default", "p", []string{"True", "False"}[i%2], web), false)
			synctest.Wait()
		}
		if all, err := slow.All(t.Context()); err != nil || !slices.Equal(say(all), []string{"a: p false"}) {
			t.Errorf("all services are %q, %v", say(all), err)
		}
		if changed, removed := slow.take(); len(changed)+len(removed) > 0 {
			t.Errorf("more is pending: %v, %v", changed, removed)
		}
	})
}

// After any changes, a reader that follows them has what the plan says of the objects that there are.
func TestAReaderHasTheEndpointsOfThePlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := worldOf()
		w.run(t)
		w.synced()
		s := w.Watch()
		defer s.Close()
		random := rand.New(rand.NewPCG(1, 2))
		labels := func() map[string]string {
			out := map[string]string{}
			for _, k := range []string{"app", "tier", "zone"} {
				if n := random.IntN(3); n > 0 {
					out[k] = fmt.Sprint(n)
				}
			}
			return out
		}
		has := map[string]*schedulingv1.ServiceEndpoints{}
		if _, err := s.All(t.Context()); err != nil {
			t.Fatal(err)
		}
		for round := range 3000 {
			namespace := fmt.Sprint("ns-", random.IntN(2))
			if random.IntN(4) == 0 {
				o := serviceOf(namespace, fmt.Sprint("s-", random.IntN(6)), labels())
				if _, there := w.services.Lookup(namespace, o.GetMetadata().GetName()); !there || random.IntN(3) > 0 {
					step(w, w.services, o, false)
				} else {
					step(w, w.services, o, true)
				}
			} else {
				o := podOf(namespace, fmt.Sprint("p-", random.IntN(12)), []string{"True", "False"}[random.IntN(2)], labels())
				if random.IntN(5) == 0 {
					o.Status.PodIp = ""
				}
				if _, there := w.pods.Lookup(namespace, o.GetMetadata().GetName()); !there || random.IntN(4) > 0 {
					step(w, w.pods, o, false)
				} else {
					step(w, w.pods, o, true)
				}
			}
			if random.IntN(3) > 0 {
				continue
			}
			synctest.Wait()
			changed, removed := s.take()
			for _, e := range changed {
				has[e.GetNamespace()+"/"+e.GetName()] = e
			}
			for _, k := range removed {
				delete(has, k)
			}
			n := 0
			for o := range w.services.Objects() {
				n++
				want := plan.Endpoints(o, w.pods.All())
				for _, e := range want.GetEndpoints() {
					e.Why = "" // that is for people
				}
				if got := has[object.KeyOf(o).String()]; !proto.Equal(got, want) {
					t.Fatalf("round %d: the reader has %v, want %v", round, got, want)
				}
			}
			if len(has) != n {
				t.Fatalf("round %d: the reader has %d services, want %d", round, len(has), n)
			}
		}
		synctest.Wait()
		for namespace, ns := range w.namespaces {
			if len(ns.services)+len(ns.pods) == 0 {
				t.Errorf("namespace %s is kept without content", namespace)
			}
		}
	})
}

// BenchmarkChange changes one pod of 5,000, of which each of 500 services selects 10, all in one namespace.
func BenchmarkChange(b *testing.B) {
	const pods, services = 5000, 500
	w := worldOf()
	changed := map[object.Key]struct{}{}
	app := func(i int) map[string]string {
		return map[string]string{"app": fmt.Sprint("app-", i%services), "team": "one", "pod-template-hash": fmt.Sprint(i)}
	}
	for i := range services {
		s := serviceOf("default", fmt.Sprint("s-", i), map[string]string{"app": fmt.Sprint("app-", i)})
		w.setService(object.KeyOf(s), s, changed)
	}
	all := make([][2]*schedulingv1.Pod, pods)
	for i := range pods {
		for j, ready := range []string{"True", "False"} {
			all[i][j] = podOf("default", fmt.Sprint("p-", i), ready, app(i))
		}
		w.setPod(object.KeyOf(all[i][0]), all[i][0], changed)
	}
	n := 0
	for b.Loop() {
		pod := all[n%pods][(n/pods+1)%2]
		put(&w.news, &w.news.pods, resource.Change[*schedulingv1.Pod]{Key: object.KeyOf(pod), Object: pod})
		w.take()
		n++
	}
}
