package controller

import (
	"context"
	"slices"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"golang.org/x/sync/errgroup"

	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
	volumes "github.com/windlass-dev/windlass/services/scheduler/volume/plan"
)

// claimWrites is how many pods have their claims stored at a time.
const claimWrites = 16

// observeStorage takes in that a volume, a claim or a storage class changed. The lock is held.
func (s *Scheduler) observeStorage(c change) {
	switch c.kind {
	case volumeKind:
		if v, ok := s.tables.Volumes.Lookup("", c.key.Name); ok {
			s.queue.AddVolume(v)
		} else {
			s.queue.RemoveVolume(c.key.Name)
		}
	case claimKind:
		if claim, ok := s.tables.Claims.Lookup(c.key.Namespace, c.key.Name); ok {
			s.queue.AddClaim(claim)
		} else {
			s.queue.RemoveClaim(c.key)
		}
	case classKind:
		if class, ok := s.tables.StorageClasses.Lookup("", c.key.Name); ok {
			s.queue.AddStorageClass(class)
		} else {
			s.queue.RemoveStorageClass(c.key.Name)
		}
	}
}

// bindClaims stores what the claims of placed pods get, before the pods are bound, and returns the plan without the
// bindings of those pods for which that failed. After it the queue has the claims and volumes as they are stored.
func (s *Scheduler) bindClaims(ctx context.Context, p plan.Plan) plan.Plan {
	var todo []plan.Action
	for _, a := range p.Do {
		if a.Verb == plan.BindClaims {
			todo = append(todo, a)
		}
	}
	if len(todo) == 0 {
		return p
	}
	results := make([]error, len(todo))
	var group errgroup.Group
	group.SetLimit(claimWrites)
	for i, a := range todo {
		group.Go(func() error {
			results[i] = s.bindClaimsOf(ctx, a.Claims)
			return nil
		})
	}
	_ = group.Wait()                 // the errors are in results
	failed := map[object.Key]error{} // by claim
	for i, a := range todo {
		for _, one := range a.Claims {
			if results[i] != nil {
				failed[object.KeyOf(one.Claim)] = results[i]
			}
		}
	}
	if len(failed) > 0 { // what is stored is not what the queue assumed
		_ = s.tables.Claims.CatchUp(ctx) // without it, a later change brings what is stored
		_ = s.tables.Volumes.CatchUp(ctx)
	}
	s.observeClaims(todo)
	return s.withoutPods(ctx, p, failed)
}

// observeClaims takes in what is stored of claims and of the volumes that they were given.
func (s *Scheduler) observeClaims(given []plan.Action) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range given {
		for _, one := range a.Claims {
			s.observeStorage(change{claimKind, object.KeyOf(one.Claim)})
			if one.Volume != nil {
				s.observeStorage(change{volumeKind, object.Key{Name: one.Volume.GetMetadata().GetName()}})
			}
		}
	}
}

// withoutPods returns a plan without the bindings of pods that name claims which could not be stored. They are placed
// again, also those that were placed by what another pod's claim was to be.
func (s *Scheduler) withoutPods(ctx context.Context, p plan.Plan, failed map[object.Key]error) plan.Plan {
	if len(failed) == 0 {
		return p
	}
	var outcomes []plan.Outcome
	p.Do = slices.DeleteFunc(slices.Clone(p.Do), func(a plan.Action) bool {
		if a.Verb != plan.BindPod {
			return false
		}
		err := claimsFailed(a.Pod, failed)
		if err == nil {
			return false
		}
		o := plan.Outcome{Action: a, Result: plan.Unwritten}
		if rpcerr.IgnoreChanged(err) == nil {
			o.Result = plan.Changed
			o.Now, _ = s.tables.Pods.Lookup(a.Pod.GetMetadata().GetNamespace(), a.Pod.GetMetadata().GetName())
		} else if ctx.Err() == nil {
			s.log.WarnContext(ctx, "claims not bound", "pod", object.KeyOf(a.Pod).String(), "error", err)
		}
		outcomes = append(outcomes, o)
		return true
	})
	s.done(outcomes)
	return p
}

// claimsFailed returns why a claim that a pod names could not be stored; nil if none of them is among failed.
func claimsFailed(pod *schedulingv1.Pod, failed map[object.Key]error) error {
	for _, v := range pod.GetSpec().GetVolumes() {
		k := object.Key{Namespace: pod.GetMetadata().GetNamespace(), Name: v.GetPersistentVolumeClaim().GetClaimName()}
		if err := failed[k]; err != nil {
			return err
		}
	}
	return nil
}

// bindClaimsOf stores what the claims of a pod get. Each claim is stored with its volume in one transaction, if both
// are as they were when it was decided.
func (s *Scheduler) bindClaimsOf(ctx context.Context, choices []plan.ClaimChoice) error {
	for _, one := range choices {
		if one.Volume == nil {
			if err := s.selectNode(ctx, one); err != nil {
				return err
			}
			continue
		}
		volume := one.Volume
		if one.Made {
			made, err := s.makeVolume(ctx, volume)
			if err != nil {
				return err
			}
			volume = made
		}
		b := volumes.Bind(one.Claim, volume)
		_, _, err := resource.ReplaceBoth(ctx, s.tables.Volumes, b.Volume, s.tables.Claims, b.Claim)
		if err != nil && !s.isBoundTo(ctx, one.Claim, volume) {
			return err
		}
		if one.Made {
			s.events.Event(one.Claim, "Normal", "ProvisioningSucceeded",
				"Successfully provisioned volume "+volume.GetMetadata().GetName())
		}
	}
	return nil
}

// isBoundTo reports whether a claim is bound to a volume by now: the controller of claims binds it, too, once it sees a
// volume that was made for it.
func (s *Scheduler) isBoundTo(ctx context.Context, claim *schedulingv1.PersistentVolumeClaim,
	v *schedulingv1.PersistentVolume,
) bool {
	m := claim.GetMetadata()
	now, err := s.tables.Claims.Get(ctx, m.GetNamespace(), m.GetName())
	return err == nil && now.GetMetadata().GetUid() == m.GetUid() && volumes.Bound(now) &&
		now.GetSpec().GetVolumeName() == v.GetMetadata().GetName()
}

// makeVolume creates a volume for a claim. One of the same node that was created before, by a process that died before
// it bound the claim, is used. One of another node is a conflict: the claim is about to be bound to it.
func (s *Scheduler) makeVolume(ctx context.Context, v *schedulingv1.PersistentVolume) (*schedulingv1.PersistentVolume,
	error,
) {
	made, err := s.tables.Volumes.Create(ctx, v)
	if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
		return made, err
	}
	made, err = s.tables.Volumes.Get(ctx, "", v.GetMetadata().GetName())
	if err != nil {
		return nil, err
	}
	name := v.GetMetadata().GetName()
	switch {
	case object.Deleting(made):
		return nil, rpcerr.Conflict("PersistentVolume", name, "it is being deleted")
	case made.GetSpec().GetClaimRef().GetUid() != v.GetSpec().GetClaimRef().GetUid():
		return nil, rpcerr.Conflict("PersistentVolume", name, "it is of another claim")
	case placement.VolumeNode(made) != placement.VolumeNode(v):
		return nil, rpcerr.Conflict("PersistentVolume", name, "it is on node "+placement.VolumeNode(made))
	}
	return made, nil
}

// selectNode asks another program to make a volume for a claim on a node.
func (s *Scheduler) selectNode(ctx context.Context, one plan.ClaimChoice) error {
	_, err := s.tables.Claims.Modify(ctx, object.KeyOf(one.Claim), func(now *schedulingv1.PersistentVolumeClaim) error {
		m := now.GetMetadata()
		if m.GetResourceVersion() != one.Claim.GetMetadata().GetResourceVersion() {
			return rpcerr.Conflict("PersistentVolumeClaim", m.GetName(), "")
		}
		if m.Annotations == nil {
			m.Annotations = map[string]string{}
		}
		m.Annotations[volumes.SelectedNode] = one.SelectedNode
		return nil
	})
	return err
}
