// Package controller binds claims to volumes, makes the volumes of the built-in provisioner, and removes volumes whose
// claims are gone. Package plan decides; claims that wait for a pod are bound by the placement of that pod.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"

	"github.com/windlass-dev/windlass/services/scheduler/kinds"
	"github.com/windlass-dev/windlass/services/scheduler/volume/plan"
)

// localClass is the storage class that always exists: that of the built-in provisioner.
const localClass = "local"

// settlePatience is how long the removal of a claim waits for bindings that are being stored; it is tried again later.
const settlePatience = 10 * time.Second

// Nodes are the nodes as an informer shows them, and as their owner does.
type Nodes interface {
	HasNode(name string) bool
	Lookup(namespace, name string) (*nodev1.Node, bool)
	// Exists asks the owner of nodes.
	Exists(ctx context.Context, name string) (bool, error)
	Subscribe(f func(resource.Change[*nodev1.Node]))
	WaitSynced(ctx context.Context) error
}

// Placer is what places pods.
type Placer interface {
	// SettleClaim waits until pods are placed with the claim as it is now, and all earlier bindings are stored.
	SettleClaim(ctx context.Context, claim object.Key) error
}

// Controller looks after claims and volumes. Make it with New.
type Controller struct {
	tables *kinds.Tables
	nodes  Nodes
	placer Placer
	events events.Sink
	log    *slog.Logger
	loops  *controller.Loops
	// The keys are namespace/name of claims, and names of volumes.
	claims, volumes *controller.Loop
}

// New returns a controller that does nothing before Lead.
func New(tables *kinds.Tables, nodes Nodes, placer Placer, sink events.Sink, log *slog.Logger) *Controller {
	c := &Controller{
		tables: tables, nodes: nodes, placer: placer, events: sink, log: log, loops: controller.New(log),
	}
	// One worker: claims that compete for a volume would only disturb each other.
	c.claims = c.loops.Loop("persistentvolumeclaims", 1, c.reconcileClaim)
	controller.For(c.claims, tables.Claims)
	c.claims.Needs(tables.Volumes, tables.StorageClasses, tables.Pods, nodes)
	c.volumes = c.loops.Loop("persistentvolumes", 1, c.reconcileVolume)
	controller.For(c.volumes, tables.Volumes)
	c.volumes.Needs(tables.Claims, nodes)
	tables.Volumes.Subscribe(c.volumeChanged)
	tables.Claims.Subscribe(c.claimChanged)
	tables.StorageClasses.Subscribe(func(ch resource.Change[*schedulingv1.StorageClass]) { c.addUnbound(ch.Key.Name) })
	tables.Pods.Subscribe(c.podChanged)
	nodes.Subscribe(func(ch resource.Change[*nodev1.Node]) {
		if ch.Deleted {
			c.addVolumes(tables.Volumes.ByIndex(kinds.OnNode, ch.Key.Name))
			return
		}
		for _, claim := range tables.Claims.ByIndex(kinds.SelectedFor, ch.Key.Name) {
			c.claims.Add(object.KeyOf(claim).String())
		}
	})
	return c
}

// Lead works until ctx ends.
func (c *Controller) Lead(ctx context.Context) error {
	if c.tables.StorageClasses.WaitSynced(ctx) != nil {
		return nil // ctx ended
	}
	if _, ok := c.tables.StorageClasses.Lookup("", localClass); !ok {
		_, err := c.tables.StorageClasses.Create(ctx, &schedulingv1.StorageClass{
			Metadata: &metav1.ObjectMeta{Name: localClass}, Provisioner: plan.LocalProvisioner,
		})
		if err != nil && rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
			return fmt.Errorf("storage class %q: %w", localClass, err)
		}
	}
	return c.loops.Lead(ctx)
}

func (c *Controller) addVolumes(list []*schedulingv1.PersistentVolume) {
	for _, v := range list {
		c.volumes.Add(object.KeyOf(v).String())
	}
}

// addUnbound enqueues the claims of a class that are not bound.
func (c *Controller) addUnbound(class string) {
	for _, claim := range c.tables.Claims.ByIndex(kinds.UnboundOf, "class/"+class) {
		c.claims.Add(object.KeyOf(claim).String())
	}
}

// volumeChanged enqueues the claim of a volume, those that name it, or those that it may be for.
func (c *Controller) volumeChanged(ch resource.Change[*schedulingv1.PersistentVolume]) {
	for _, v := range []*schedulingv1.PersistentVolume{ch.Previous, ch.Object} {
		if ref := v.GetSpec().GetClaimRef(); ref != nil {
			c.claims.Add(object.Key{Namespace: ref.GetNamespace(), Name: ref.GetName()}.String())
		}
	}
	if ch.Deleted || ch.Object.GetSpec().GetClaimRef() != nil {
		return
	}
	name := plan.ClassOfVolume(ch.Object)
	class, _ := c.tables.StorageClasses.Lookup("", name)
	for _, claim := range c.tables.Claims.ByIndex(kinds.UnboundOf, "class/"+name) {
		if !plan.Waits(class) || claim.GetSpec().GetVolumeName() == ch.Key.Name {
			c.claims.Add(object.KeyOf(claim).String())
		}
	}
}

// claimChanged enqueues the volumes that name a claim, or that it names.
func (c *Controller) claimChanged(ch resource.Change[*schedulingv1.PersistentVolumeClaim]) {
	c.addVolumes(c.tables.Volumes.ByIndex(kinds.HeldBy, ch.Key.String()))
	for _, claim := range []*schedulingv1.PersistentVolumeClaim{ch.Previous, ch.Object} {
		if name := claim.GetSpec().GetVolumeName(); name != "" {
			c.volumes.Add(object.Key{Name: name}.String())
		}
	}
}

// podChanged enqueues the claims of a pod that is gone or has ended: they may be waiting for that.
func (c *Controller) podChanged(ch resource.Change[*schedulingv1.Pod]) {
	for _, v := range ch.Object.GetSpec().GetVolumes() {
		if source := v.GetPersistentVolumeClaim(); source != nil {
			claim, ok := c.tables.Claims.Lookup(ch.Key.Namespace, source.GetClaimName())
			if ok && object.Deleting(claim) {
				c.claims.Add(object.KeyOf(claim).String())
			}
		}
	}
}

// ViewClaim returns everything that a claim is decided on, as it is known here now.
func (c *Controller) ViewClaim(claim *schedulingv1.PersistentVolumeClaim) plan.ClaimView {
	v := plan.ClaimView{Claim: claim}
	v.Class, _ = c.tables.StorageClasses.Lookup("", plan.ClassOf(claim))
	k := object.KeyOf(claim)
	v.Volumes = c.tables.Volumes.ByIndex(kinds.HeldBy, k.String())
	if !plan.Bound(claim) {
		v.Volumes = append(v.Volumes, c.tables.Volumes.ByIndex(kinds.FreeOf, "class/"+plan.ClassOf(claim))...)
	}
	if name := claim.GetSpec().GetVolumeName(); name != "" {
		if one, ok := c.tables.Volumes.Lookup("", name); ok && !slices.Contains(v.Volumes, one) {
			v.Volumes = append(v.Volumes, one)
		}
	}
	v.Pods = c.tables.Pods.ByIndex(kinds.ClaimsOf, k.String())
	v.Node, _ = c.nodes.Lookup("", claim.GetMetadata().GetAnnotations()[plan.SelectedNode])
	return v
}

func (c *Controller) reconcileClaim(ctx context.Context, key string) (time.Time, error) {
	k := object.ParseKey(key)
	claim, ok := c.tables.Claims.Lookup(k.Namespace, k.Name)
	if !ok {
		return time.Time{}, nil
	}
	v := c.ViewClaim(claim)
	p := plan.Claim(v)
	var err error
	if name := claim.GetSpec().GetVolumeName(); p.Loses() && name != "" {
		// The copy of volumes may be behind that of claims: etcd says whether the volume is gone.
		if v.Volumes, err = c.stored(ctx, name); err != nil {
			return time.Time{}, err
		}
		p = plan.Claim(v)
	}
	switch {
	case p.Release:
		err = c.release(ctx, claim)
	case p.Bind != nil:
		_, _, err = resource.ReplaceBoth(ctx, c.tables.Volumes, p.Bind.Volume, c.tables.Claims, p.Bind.Claim)
		if err == nil {
			c.log.InfoContext(ctx, "claim bound", "claim", key, "volume", p.Bind.Volume.GetMetadata().GetName())
		}
	case p.Provision != nil:
		_, err = c.tables.Volumes.Create(ctx, p.Provision) // its change brings the claim back
		if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
			err = nil
		}
	case p.Next != nil:
		err = c.replaceClaim(ctx, p.Next)
	}
	if err = rpcerr.IgnoreChanged(err); err == nil {
		c.tell(claim, p.Tell)
	}
	return time.Time{}, err
}

// stored returns the volume of a name as etcd has it, if there is one.
func (c *Controller) stored(ctx context.Context, name string) ([]*schedulingv1.PersistentVolume, error) {
	v, err := c.tables.Volumes.Get(ctx, "", name)
	if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("volume %q: %w", name, err)
	}
	return []*schedulingv1.PersistentVolume{v}, nil
}

func (c *Controller) tell(o object.Object, events []plan.Event) {
	for _, e := range events {
		c.events.Event(o, e.Type, e.Reason, e.Message)
	}
}

// release lets a claim go that is being deleted. A pod that was placed before the deletion was seen may be about to be
// bound: it is looked for once more after all such bindings are stored.
func (c *Controller) release(ctx context.Context, claim *schedulingv1.PersistentVolumeClaim) error {
	k := object.KeyOf(claim)
	settled, cancel := context.WithTimeout(ctx, settlePatience)
	defer cancel()
	if err := c.placer.SettleClaim(settled, k); err != nil {
		return fmt.Errorf("claim %q: %w", k.String(), err)
	}
	if err := c.tables.Pods.CatchUp(ctx); err != nil {
		return err
	}
	if p := plan.Claim(c.ViewClaim(claim)); !p.Release {
		return nil
	}
	next := proto.CloneOf(claim)
	next.Metadata.Finalizers = slices.DeleteFunc(next.Metadata.Finalizers, func(f string) bool {
		return f == plan.ClaimProtection
	})
	return c.replaceClaim(ctx, next)
}

// replaceClaim stores a claim if it is still as it was read.
func (c *Controller) replaceClaim(ctx context.Context, next *schedulingv1.PersistentVolumeClaim) error {
	return replace(ctx, c.tables.Claims, next)
}

// replace stores an object if the stored one still has its resourceVersion.
func replace[T object.Object](ctx context.Context, t *resource.Table[T], next T) error {
	_, err := t.Modify(ctx, object.KeyOf(next), func(now T) error {
		if m := now.GetMetadata(); m.GetResourceVersion() != next.GetMetadata().GetResourceVersion() {
			return rpcerr.Conflict(t.Type().GetKind(), m.GetName(), "")
		}
		proto.Reset(now)
		proto.Merge(now, next)
		return nil
	})
	return err
}

func (c *Controller) reconcileVolume(ctx context.Context, key string) (time.Time, error) {
	name := object.ParseKey(key).Name
	volume, ok := c.tables.Volumes.Lookup("", name)
	if !ok {
		return time.Time{}, nil
	}
	v, err := c.viewVolume(ctx, volume)
	if err != nil {
		return time.Time{}, err
	}
	p := plan.PersistentVolume(v)
	switch m := volume.GetMetadata(); {
	case p.Next != nil: // its change brings the volume back
		err = replace(ctx, c.tables.Volumes, p.Next)
	case p.Delete:
		_, err = c.tables.Volumes.Delete(ctx, "", name, &metav1.Preconditions{
			Uid: m.GetUid(), ResourceVersion: m.GetResourceVersion(), // it may have got another policy or another claim
		})
		if err == nil {
			c.log.InfoContext(ctx, "volume deleted", "volume", name, "reason", "its claim is gone")
		}
	}
	if err = rpcerr.IgnoreChanged(err); err == nil {
		c.tell(volume, p.Tell)
	}
	return time.Time{}, err
}

// viewVolume returns what a volume is decided on. Whether a claim or a node is gone decides about data, so etcd and the
// owner of nodes say it, and not a copy, which may be behind.
func (c *Controller) viewVolume(ctx context.Context, volume *schedulingv1.PersistentVolume) (plan.VolumeView, error) {
	v := plan.VolumeView{Volume: volume}
	if ref := volume.GetSpec().GetClaimRef(); ref.GetUid() != "" {
		claim, ok := c.tables.Claims.Lookup(ref.GetNamespace(), ref.GetName())
		if !ok || claim.GetMetadata().GetUid() != ref.GetUid() ||
			claim.GetSpec().GetVolumeName() != volume.GetMetadata().GetName() {
			var err error
			claim, err = c.tables.Claims.Get(ctx, ref.GetNamespace(), ref.GetName())
			if err != nil && rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
				return v, fmt.Errorf("claim %s/%s: %w", ref.GetNamespace(), ref.GetName(), err)
			}
			if err != nil {
				claim = nil
			}
		}
		v.Claim = claim
	}
	node := placement.VolumeNode(volume)
	if node == "" || !object.Deleting(volume) || c.nodes.HasNode(node) {
		return v, nil
	}
	exists, err := c.nodes.Exists(ctx, node)
	v.NodeGone = err == nil && !exists
	return v, errors.Join(err)
}
