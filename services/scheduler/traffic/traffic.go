// Package traffic keeps where the connections to each service are led: plan.Endpoints of all services and pods, kept up
// to date with every change and never stored. Each scheduler process has one Tracker, whether it leads or not. What a
// change costs depends on the services that select the pod and not on how many pods and services there are.
package traffic

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

// Source is the cache of a kind.
type Source[T object.Object] interface {
	Subscribe(f func(resource.Change[T]))
	WaitSynced(ctx context.Context) error
}

// Tracker follows services and pods. It is safe for concurrent use.
type Tracker struct {
	services Source[*schedulingv1.Service]
	pods     Source[*schedulingv1.Pod]
	news     news
	ready    chan struct{} // closed once everything that there was at first is here

	mu         sync.Mutex
	namespaces map[string]*namespace
	streams    map[*Stream]struct{}
}

// New returns a tracker that knows nothing before Run.
func New(services Source[*schedulingv1.Service], pods Source[*schedulingv1.Pod]) *Tracker {
	return &Tracker{
		services: services, pods: pods, news: news{wake: make(chan struct{}, 1)}, ready: make(chan struct{}),
		namespaces: map[string]*namespace{}, streams: map[*Stream]struct{}{},
	}
}

// Run follows the changes until ctx ends. It must be called once.
func (t *Tracker) Run(ctx context.Context) error {
	if t.services.WaitSynced(ctx) != nil || t.pods.WaitSynced(ctx) != nil {
		return nil // ctx ended
	}
	t.services.Subscribe(func(ch resource.Change[*schedulingv1.Service]) {
		put(&t.news, &t.news.services, ch)
	})
	t.pods.Subscribe(func(ch resource.Change[*schedulingv1.Pod]) {
		put(&t.news, &t.news.pods, ch)
	})
	t.take()
	close(t.ready)
	for {
		select {
		case <-t.news.wake:
			t.take()
		case <-ctx.Done():
			return nil
		}
	}
}

// Refresh has the tracker take what its sources have by now, which it otherwise does a moment later.
func (t *Tracker) Refresh(ctx context.Context) error {
	select {
	case <-t.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	t.take()
	return nil
}

// news are the changes that the tracker has not taken yet: of each object the last state, nil if it is deleted.
type news struct {
	mu       sync.Mutex
	services map[object.Key]*schedulingv1.Service
	pods     map[object.Key]*schedulingv1.Pod
	wake     chan struct{}
}

// put notes a change. It returns at once, as subscribers of a cache must.
func put[T object.Object](n *news, of *map[object.Key]T, ch resource.Change[T]) {
	var state T
	if !ch.Deleted {
		state = ch.Object
	}
	n.mu.Lock()
	if *of == nil {
		*of = map[object.Key]T{}
	}
	(*of)[ch.Key] = state
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// take applies all changes that are not applied yet, and wakes the streams that they concern.
func (t *Tracker) take() {
	t.mu.Lock() // first: who takes news later must not be ahead of who took them before
	defer t.mu.Unlock()
	t.news.mu.Lock()
	services, pods := t.news.services, t.news.pods
	t.news.services, t.news.pods = nil, nil
	t.news.mu.Unlock()
	changed := map[object.Key]struct{}{}
	for k, pod := range pods {
		t.setPod(k, pod, changed)
	}
	for k, s := range services {
		t.setService(k, s, changed)
	}
	if len(changed) == 0 {
		return
	}
	for s := range t.streams {
		s.note(changed)
	}
}

// namespace is what is known of the services and pods of a namespace.
type namespace struct {
	services map[string]*service
	pods     map[string]*schedulingv1.Pod
	// selecting finds the services by one label of their selectors: only those of the labels of a pod can select it.
	selecting map[label]map[string]*service
	// selected are the services that each pod is an endpoint of.
	selected map[string][]*service
}

type label struct{ key, value string }

// service is a service with its endpoints.
type service struct {
	object    *schedulingv1.Service
	endpoints []*schedulingv1.ServiceEndpoint // ordered by pod; the elements are never changed

	message *schedulingv1.ServiceEndpoints // of endpoints, for all streams; nil until it is needed
}

func (t *Tracker) namespace(name string) *namespace {
	ns := t.namespaces[name]
	if ns == nil {
		ns = &namespace{
			services: map[string]*service{}, pods: map[string]*schedulingv1.Pod{},
			selecting: map[label]map[string]*service{}, selected: map[string][]*service{},
		}
		t.namespaces[name] = ns
	}
	return ns
}

// forget drops a namespace without content.
func (t *Tracker) forget(name string) {
	if ns := t.namespaces[name]; ns != nil && len(ns.services)+len(ns.pods) == 0 {
		delete(t.namespaces, name)
	}
}

// setPod applies a change of a pod, nil if it is deleted, and adds the services that are changed by it.
func (t *Tracker) setPod(k object.Key, pod *schedulingv1.Pod, changed map[object.Key]struct{}) {
	ns := t.namespace(k.Namespace)
	var now []*service
	if pod == nil {
		delete(ns.pods, k.Name)
		defer t.forget(k.Namespace)
	} else {
		ns.pods[k.Name] = pod
		for _, s := range ns.selectors(pod) {
			e := endpointOf(s.object, pod)
			if e == nil {
				continue
			}
			if now = append(now, s); s.set(k.Name, e) {
				changed[object.KeyOf(s.object)] = struct{}{}
			}
		}
	}
	for _, s := range ns.selected[k.Name] {
		if !slices.Contains(now, s) && s.set(k.Name, nil) {
			changed[object.KeyOf(s.object)] = struct{}{}
		}
	}
	ns.setSelected(k.Name, now)
}

// endpointOf returns what a pod is for the connections to a service that selects it; nil if it is left out. Why it does
// not serve is left out: agents do not need it, and it changes more often than where connections are led.
func endpointOf(s *schedulingv1.Service, pod *schedulingv1.Pod) *schedulingv1.ServiceEndpoint {
	e := plan.Endpoint(s, pod)
	if e != nil {
		e.Why = ""
	}
	return e
}

// setSelected replaces the services that a pod is an endpoint of.
func (ns *namespace) setSelected(pod string, services []*service) {
	if len(services) == 0 {
		delete(ns.selected, pod)
		return
	}
	ns.selected[pod] = services
}

// selectors returns the services that select a pod.
func (ns *namespace) selectors(pod *schedulingv1.Pod) (out []*service) {
	for k, v := range pod.GetMetadata().GetLabels() {
		for _, s := range ns.selecting[label{k, v}] {
			if plan.Selects(s.object, pod) {
				out = append(out, s)
			}
		}
	}
	return out
}

// set replaces the endpoint of a pod, nil if it has none, and reports whether that changes anything.
func (s *service) set(pod string, e *schedulingv1.ServiceEndpoint) bool {
	i, has := slices.BinarySearchFunc(s.endpoints, pod, func(e *schedulingv1.ServiceEndpoint, pod string) int {
		return strings.Compare(e.GetPod(), pod)
	})
	switch {
	case e == nil && !has, e != nil && has && proto.Equal(s.endpoints[i], e):
		return false
	case e == nil:
		s.endpoints = slices.Delete(s.endpoints, i, i+1)
	case has:
		s.endpoints[i] = e
	default:
		s.endpoints = slices.Insert(s.endpoints, i, e)
	}
	s.message = nil
	return true
}

// setService applies a change of a service, nil if it is deleted, and adds it if its endpoints changed.
func (t *Tracker) setService(k object.Key, obj *schedulingv1.Service, changed map[object.Key]struct{}) {
	ns := t.namespace(k.Namespace)
	old := ns.services[k.Name]
	if old != nil {
		ns.leave(old)
	}
	if obj == nil {
		if old != nil {
			changed[k] = struct{}{}
		}
		t.forget(k.Namespace)
		return
	}
	s := &service{object: obj}
	ns.enter(s)
	if old == nil || !proto.Equal(old.built(), s.built()) {
		changed[k] = struct{}{}
	}
}

// leave is the inverse of enter.
func (ns *namespace) leave(s *service) {
	name := s.object.GetMetadata().GetName()
	delete(ns.services, name)
	if by, ok := selectingLabel(s.object); ok {
		if delete(ns.selecting[by], name); len(ns.selecting[by]) == 0 {
			delete(ns.selecting, by)
		}
	}
	for _, e := range s.endpoints {
		ns.setSelected(e.GetPod(), slices.DeleteFunc(ns.selected[e.GetPod()], func(o *service) bool { return o == s }))
	}
}

// enter adds a service with its endpoints.
func (ns *namespace) enter(s *service) {
	name := s.object.GetMetadata().GetName()
	ns.services[name] = s
	by, ok := selectingLabel(s.object)
	if !ok {
		return
	}
	if ns.selecting[by] == nil {
		ns.selecting[by] = map[string]*service{}
	}
	ns.selecting[by][name] = s
	for pod, o := range ns.pods {
		if !plan.Selects(s.object, o) {
			continue
		}
		if e := endpointOf(s.object, o); e != nil {
			s.endpoints = append(s.endpoints, e)
			ns.setSelected(pod, append(ns.selected[pod], s))
		}
	}
	slices.SortFunc(s.endpoints, func(a, b *schedulingv1.ServiceEndpoint) int {
		return strings.Compare(a.GetPod(), b.GetPod())
	})
}

// selectingLabel returns one label of those that a service selects pods by: the last one by name, since the first is
// often one that all pods of an application have. It is false if the service selects none.
func selectingLabel(s *schedulingv1.Service) (label, bool) {
	selector := s.GetSpec().GetSelector()
	if len(selector) == 0 || !plan.HasAddress(s) {
		return label{}, false
	}
	k := slices.Max(slices.Collect(maps.Keys(selector)))
	return label{k, selector[k]}, true
}

// built returns the message for a service. It must not be modified.
func (s *service) built() *schedulingv1.ServiceEndpoints {
	if s.message == nil {
		s.message = plan.EndpointsOf(s.object)
		s.message.Endpoints = slices.Clone(s.endpoints)
	}
	return s.message
}
