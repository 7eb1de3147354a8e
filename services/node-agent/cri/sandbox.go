package cri

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// place is what one call at a time may be in.
type place struct {
	busy  chan struct{} // has one place
	users int
}

// enter waits until this call alone is in a place.
func (r *Runtime) enter(ctx context.Context, name string) (leave func(), err error) {
	r.mu.Lock()
	p := r.places[name]
	if p == nil {
		p = &place{busy: make(chan struct{}, 1)}
		r.places[name] = p
	}
	p.users++
	r.mu.Unlock()
	forget := func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if p.users--; p.users == 0 {
			delete(r.places, name)
		}
	}
	select {
	case p.busy <- struct{}{}:
		return func() { <-p.busy; forget() }, nil
	case <-ctx.Done():
		forget()
		return nil, ctx.Err()
	}
}

// enterPool waits until this call alone may make and remove sandboxes of a pool.
func (r *Runtime) enterPool(ctx context.Context, pool string) (leave func(), err error) {
	return r.enter(ctx, "pool "+pool)
}

// listSandboxes returns the sandboxes of the owner, of one pool unless that is empty.
func (r *Runtime) listSandboxes(ctx context.Context, pool string) ([]*runtimeapi.PodSandbox, error) {
	selector := map[string]string{labelOwner: r.owner}
	if pool != "" {
		selector[labelPool] = pool
	}
	out, err := call(ctx, r.cri.ListPodSandbox, &runtimeapi.ListPodSandboxRequest{
		Filter: &runtimeapi.PodSandboxFilter{LabelSelector: selector},
	})
	if err != nil {
		return nil, err
	}
	return out.GetItems(), nil
}

func isReady(s *runtimeapi.PodSandbox) bool {
	return s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY
}

// sandboxReady reports whether a sandbox can have containers.
func (r *Runtime) sandboxReady(ctx context.Context, id string) (bool, error) {
	out, err := call(ctx, r.cri.PodSandboxStatus, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
	if missing(err) {
		return false, nil
	}
	return out.GetStatus().GetState() == runtimeapi.PodSandboxState_SANDBOX_READY, err
}

// sandboxFor returns the sandbox of a container's pool, which it makes if there is none that is ready. One that is not
// is kept while it has containers, so that what the runtime knows of these is not lost.
func (r *Runtime) sandboxFor(ctx context.Context, spec Spec) (id string, config *runtimeapi.PodSandboxConfig,
	err error,
) {
	leave, err := r.enterPool(ctx, spec.Pool)
	if err != nil {
		return "", nil, err
	}
	defer leave()
	list, err := r.listSandboxes(ctx, spec.Pool)
	if err != nil {
		return "", nil, err
	}
	attempt := uint32(0)
	for _, s := range list {
		if isReady(s) {
			config = inParent(spec.sandboxConfig(r.owner, s.GetMetadata().GetAttempt()), r.updateParent(ctx, spec, s))
			return s.GetId(), config, nil
		}
		attempt = max(attempt, s.GetMetadata().GetAttempt()+1)
	}
	r.removeEmpty(ctx, list)
	if err := makeLogDir(spec); err != nil {
		return "", nil, err
	}
	parent, err := r.parentFor(ctx, spec)
	if err != nil {
		return "", nil, err
	}
	config = inParent(spec.sandboxConfig(r.owner, attempt), parent)
	out, err := call(ctx, r.cri.RunPodSandbox, &runtimeapi.RunPodSandboxRequest{Config: config})
	if err != nil {
		return "", nil, err
	}
	r.checkUsed(ctx, spec.Pool, parent)
	r.log.InfoContext(ctx, "sandbox made", "pool", spec.Pool, "sandbox", out.GetPodSandboxId(), "attempt", attempt)
	return out.GetPodSandboxId(), config, nil
}

// removeEmpty removes those of sandboxes that are not ready and have no containers. What fails is tried again before
// the next sandbox is made, and by EndPool.
func (r *Runtime) removeEmpty(ctx context.Context, sandboxes []*runtimeapi.PodSandbox) {
	for _, s := range sandboxes {
		list, err := r.listContainers(ctx, map[string]string{labelPool: s.GetLabels()[labelPool]})
		if err != nil {
			return
		}
		used := false
		for _, c := range list {
			used = used || c.GetPodSandboxId() == s.GetId()
		}
		if used {
			continue
		}
		if err := r.removeSandbox(ctx, s.GetId()); err != nil {
			r.log.WarnContext(ctx, "sandbox not removed", "sandbox", s.GetId(), "error", err)
		}
	}
}

// removeSandbox ends a sandbox and its containers and removes them.
func (r *Runtime) removeSandbox(ctx context.Context, id string) error {
	_, err := call(ctx, r.cri.StopPodSandbox, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	if notFound(err) != nil {
		return err
	}
	_, err = call(ctx, r.cri.RemovePodSandbox, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	return notFound(err)
}

// EndAll ends containers, by names that Recorded returned, within their grace periods and at most a patience, kills
// what runs then, and removes all that the runtime has of their pools. What fails is tried again until ctx ends: then
// something may be left.
func (r *Runtime) EndAll(ctx context.Context, names []string, patience time.Duration) error {
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pools := map[string]bool{}
	var stopping sync.WaitGroup
	for _, name := range names {
		pools[name[:strings.LastIndexByte(name, '.')]] = true
		stopping.Go(func() { _ = r.Stop(within, name) }) // what is left is killed
	}
	stopping.Wait()
	var ending errgroup.Group
	for pool := range pools {
		ending.Go(func() error {
			for pause := (backOff{}); ; {
				err := r.EndPool(ctx, pool)
				if err == nil || errors.Is(err, ErrNotRunning) || !sleep(ctx, pause.next()) {
					return err
				}
			}
		})
	}
	return ending.Wait()
}

// EndPool kills and removes all containers of a pool, which are then no longer wanted, its sandboxes, and its control
// group. An error means that something may be left: it is to be called again.
func (r *Runtime) EndPool(ctx context.Context, pool string) error {
	if err := r.endPool(ctx, pool); err != nil {
		return fmt.Errorf("end of pool %q: %w", pool, err)
	}
	return nil
}

func (r *Runtime) endPool(ctx context.Context, pool string) error {
	list, err := r.listContainers(ctx, map[string]string{labelPool: pool})
	if err != nil {
		return err
	}
	names := r.namesOf(pool)
	for _, c := range list {
		names = append(names, c.GetLabels()[labelContainer])
	}
	for _, name := range names {
		if _, ss := r.unwant(name, true); ss == nil {
			return ErrNotRunning
		}
	}
	for _, name := range names {
		if err := r.Stop(ctx, name); err != nil {
			return err
		}
	}
	leave, err := r.enterPool(ctx, pool)
	if err != nil {
		return err
	}
	defer leave()
	sandboxes, err := r.listSandboxes(ctx, pool)
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range sandboxes {
		errs = append(errs, r.removeSandbox(ctx, s.GetId()))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return r.parents().Remove(pool)
}

// namesOf returns the containers of a pool that are ensured.
func (r *Runtime) namesOf(pool string) (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, k := range r.keepers {
		if k.isOf(pool) {
			names = append(names, name)
		}
	}
	return names
}
