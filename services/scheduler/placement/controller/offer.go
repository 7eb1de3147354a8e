package controller

import (
	"context"
	"errors"
	"sync"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"

	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
)

const (
	// offerPatience is how long the creation of pods waits for a decision to begin. While etcd stores the bindings of the
	// decision before, pods are better stored unbound at once.
	offerPatience = 5 * time.Millisecond
	// mostOffered is how many pods one decision places before they are stored: more would delay the first of them.
	mostOffered = 1000
	// resolveEvery is how often etcd is asked for a creation whose outcome is not known.
	resolveEvery = 500 * time.Millisecond
)

// offer is new pods that are placed before they are stored, in one call of Creating.
type offer struct {
	pods     []*schedulingv1.Pod
	answered chan struct{} // closed once placed and fence are set
	placed   []plan.Action // of those of pods that have a node
	fence    store.Fence   // of the term that placed them
}

// offers are the calls of Creating. The zero offers is closed: a process that does not lead places no pods. It is safe
// for concurrent use.
type offers struct {
	mu      sync.Mutex
	open    bool
	waiting []*offer
	created map[*offer][]plan.Outcome // the results that the loop has not taken yet
}

func (o *offers) begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.open, o.created = true, map[*offer][]plan.Outcome{}
}

// end refuses further offers and answers those that wait.
func (o *offers) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, one := range o.waiting {
		close(one.answered)
	}
	o.open, o.waiting, o.created = false, nil, nil
}

// add reports whether o is open.
func (o *offers) add(one *offer) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.open {
		o.waiting = append(o.waiting, one)
	}
	return o.open
}

// cancel takes an offer back; false if it was taken, and is answered soon.
func (o *offers) cancel(one *offer) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, other := range o.waiting {
		if other == one {
			o.waiting = append(o.waiting[:i:i], o.waiting[i+1:]...)
			return true
		}
	}
	return false
}

// finish notes how the creations of an offer ended.
func (o *offers) finish(one *offer, results []plan.Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.open {
		o.created[one] = results
	}
}

// take returns the offers to decide on now, and the results of earlier ones.
func (o *offers) take() (offered []*offer, created map[*offer][]plan.Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, pods := 0, 0
	for ; n < len(o.waiting) && (n == 0 || pods+len(o.waiting[n].pods) <= mostOffered); n++ {
		pods += len(o.waiting[n].pods)
	}
	offered, o.waiting = o.waiting[:n:n], o.waiting[n:]
	created, o.created = o.created, map[*offer][]plan.Outcome{}
	return offered, created
}

// Creating finds nodes for new pods before they are stored, so that each is stored once, already bound. Where this
// process does not lead, or does not answer in 5 ms, pods are stored without a node and placed after that. It is for
// resource.Config.
func (s *Scheduler) Creating(pods []*schedulingv1.Pod) *resource.Creation[*schedulingv1.Pod] {
	one := &offer{answered: make(chan struct{})}
	for _, pod := range pods {
		if s.places(plan.SchedulerOf(pod)) {
			one.pods = append(one.pods, pod)
		}
	}
	if len(one.pods) == 0 || !s.offers.add(one) {
		return nil
	}
	s.loop.Add(queueKey)
	patience, cancel := context.WithTimeout(context.Background(), s.patience)
	defer cancel()
	select {
	case <-one.answered:
	case <-patience.Done():
		if s.offers.cancel(one) {
			return nil
		}
		<-one.answered // it was taken
	}
	if len(one.placed) == 0 {
		return nil
	}
	for _, a := range one.placed {
		s.tables.Place(a.Pod, a.Node)
	}
	return &resource.Creation[*schedulingv1.Pod]{
		Fence: one.fence,
		Done: func(results []resource.Written[*schedulingv1.Pod]) {
			s.created(one, pods, results)
		},
	}
}

// places reports whether this scheduler finds nodes for the pods of a scheduler's name.
func (s *Scheduler) places(scheduler string) bool {
	_, ok := s.tables.Policies.Lookup("", scheduler)
	return ok || scheduler == plan.DefaultScheduler
}

// created takes in the results of the creation of pods, some of which an offer placed.
func (s *Scheduler) created(one *offer, pods []*schedulingv1.Pod, results []resource.Written[*schedulingv1.Pod]) {
	of := make(map[object.Key]resource.Written[*schedulingv1.Pod], len(pods))
	for i, pod := range pods {
		of[object.KeyOf(pod)] = results[i]
	}
	outcomes := make([]plan.Outcome, len(one.placed))
	for i, a := range one.placed {
		w := of[object.KeyOf(a.Pod)]
		o := plan.Outcome{Action: a, Result: plan.Unwritten}
		switch reason := rpcerr.Reason(w.Err); {
		case w.Err == nil:
			o.Result, o.Now = plan.Changed, w.Object
			if w.Object.GetMetadata().GetUid() == a.Pod.GetMetadata().GetUid() {
				o.Result = plan.Written
				s.record(o)
			}
		case reason == metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS, errors.Is(w.Err, store.ErrFenced):
			o.Result = plan.Changed
		}
		outcomes[i] = o
	}
	s.offers.finish(one, outcomes)
	s.loop.Add(queueKey)
}

// inDoubt is a creation whose outcome is not known.
type inDoubt struct {
	offer *offer
	plan.Outcome
}

// takeCreated gives the queue the results of creations. A creation whose outcome is not known keeps its room until etcd
// has answered for it.
func (s *Scheduler) takeCreated(created map[*offer][]plan.Outcome) {
	for one, outcomes := range created {
		if _, ok := s.settle.under[one]; !ok {
			continue // an earlier term as the leader placed it
		}
		for _, o := range outcomes {
			if o.Result == plan.Unwritten {
				s.doubtful = append(s.doubtful, inDoubt{one, o})
				continue
			}
			s.settled(one, o)
		}
	}
}

// settled gives the queue the result of a creation, with the pod as the cache has it unless the cache is behind.
func (s *Scheduler) settled(one *offer, o plan.Outcome) {
	revision, err := resource.ParseRevision(o.Now.GetMetadata().GetResourceVersion())
	if o.Now == nil || err == nil && s.tables.Pods.Revision() >= revision {
		k := object.KeyOf(o.Pod)
		o.Now, _ = s.tables.Pods.Lookup(k.Namespace, k.Name)
	}
	s.done([]plan.Outcome{o})
	s.settle.settled(one)
}

// resolve asks etcd for the creations whose outcome is not known, and returns when to ask again; zero if all is known.
func (s *Scheduler) resolve(ctx context.Context) time.Time {
	if now := time.Now(); len(s.doubtful) == 0 || now.Before(s.resolveAt) {
		return s.resolveAt
	}
	s.resolveAt = time.Time{}
	ctx, cancel := context.WithTimeout(ctx, resolveEvery)
	defer cancel()
	for len(s.doubtful) > 0 {
		d := s.doubtful[0]
		now, err := s.tables.Pods.Resolve(ctx, object.KeyOf(d.Pod))
		if err != nil { // etcd does not answer
			s.resolveAt = time.Now().Add(resolveEvery)
			break
		}
		d.Result, d.Now = plan.Changed, now
		s.settled(d.offer, d.Outcome)
		s.doubtful = s.doubtful[1:]
	}
	return s.resolveAt
}

// answer gives offers the nodes that a plan has for their pods.
func (s *Scheduler) answer(offered []*offer, p plan.Plan, fence store.Fence) {
	of := map[*schedulingv1.Pod]plan.Action{}
	for _, a := range p.Do {
		if a.Verb == plan.CreateBound {
			of[a.Pod] = a
		}
	}
	for _, one := range offered {
		one.fence = fence
		for _, pod := range one.pods {
			if a, ok := of[pod]; ok {
				one.placed = append(one.placed, a)
			}
		}
		if len(one.placed) > 0 {
			s.settle.begin(one, len(one.placed))
		}
		close(one.answered)
	}
}
