package plan

import (
	"fmt"
	"maps"
	"slices"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
)

const (
	// ClaimProtection keeps a claim while pods use it, and VolumeProtection a volume while it is bound.
	ClaimProtection  = "kubernetes.io/pvc-protection"
	VolumeProtection = placement.VolumeProtection

	// bindCompleted of a claim says that it was bound: without its volume it is Lost, and not bound again.
	bindCompleted = "pv.kubernetes.io/bind-completed"
	// boundByController says that the controller and not a user chose the volume of a claim, or the claim of a volume.
	boundByController = "pv.kubernetes.io/bound-by-controller"
	// provisionedBy of a volume names the provisioner that made it, and deletes it.
	provisionedBy = "pv.kubernetes.io/provisioned-by"
	// storageProvisioner of a claim asks the provisioner of that name for a volume.
	storageProvisioner = "volume.kubernetes.io/storage-provisioner"
	// SelectedNode of a claim is the node for which its provisioner is to make a volume.
	SelectedNode = "volume.kubernetes.io/selected-node"

	pending = "Pending"
	bound   = "Bound"
	lost    = "Lost"
	yes     = "yes"
)

// Event is what users read once the action that it belongs to is done.
type Event struct {
	Type, Reason, Message string
}

// ClaimView is everything that a claim is decided on.
type ClaimView struct {
	Claim *schedulingv1.PersistentVolumeClaim
	Class *schedulingv1.StorageClass // that the claim names; nil if there is none of the name
	// Volumes are at least the free ones of its class, those that are bound to a claim of its name or reserved for it, and
	// the one that it names.
	Volumes []*schedulingv1.PersistentVolume
	Pods    []*schedulingv1.Pod // of its namespace
	Node    *nodev1.Node        // that was selected for it; nil if there is none of the name
}

// ClaimPlan is what is done for a claim. At most one of Bind, Provision and Next is there.
type ClaimPlan struct {
	Bind      *Binding                            // both are stored, or neither
	Provision *schedulingv1.PersistentVolume      // to create; the claim is bound to it after that
	Next      *schedulingv1.PersistentVolumeClaim // to store in place of the claim; nil if nothing changes
	Release   bool                                // remove ClaimProtection, if no pod with the claim is being bound
	Held      []*metav1.HeldBack
	Status    *schedulingv1.PersistentVolumeClaimStatus // after it
	Tell      []Event                                   // of the claim

	why string
}

// Binding is a claim and its volume, as they are to be stored together.
type Binding struct {
	Claim  *schedulingv1.PersistentVolumeClaim
	Volume *schedulingv1.PersistentVolume
}

// Loses reports whether a claim loses its volume with the plan.
func (p ClaimPlan) Loses() bool { return p.Status.GetPhase() == lost }

// Actions returns what is done, and why.
func (p ClaimPlan) Actions() []*metav1.PlannedAction {
	switch {
	case p.Bind != nil:
		return []*metav1.PlannedAction{{
			Action: "BindClaim", Object: object.Reference(p.Bind.Claim), Reason: p.why,
			Details: map[string]string{"volume": p.Bind.Volume.GetMetadata().GetName()},
		}}
	case p.Provision != nil:
		return []*metav1.PlannedAction{{
			Action: "CreatePersistentVolume", Object: object.Reference(p.Provision), Reason: p.why,
		}}
	case p.Next != nil:
		return []*metav1.PlannedAction{{Action: "UpdateClaim", Object: object.Reference(p.Next), Reason: p.why}}
	}
	return nil
}

// Claim decides which volume a claim is bound to.
func Claim(v ClaimView) ClaimPlan {
	c := claiming{ClaimView: v, ask: Ask(v.Claim)}
	switch {
	case object.Deleting(v.Claim) && has(v.Claim.GetMetadata().GetFinalizers(), ClaimProtection):
		c.release()
	case object.Deleting(v.Claim):
	case v.Claim.GetMetadata().GetAnnotations()[bindCompleted] != "":
		c.keep()
	case v.Claim.GetSpec().GetVolumeName() != "":
		c.bindNamed()
	default:
		c.find()
	}
	if c.p.Status == nil {
		c.p.Status = v.Claim.GetStatus()
	}
	if c.p.Bind != nil {
		c.p.Status = c.p.Bind.Claim.GetStatus()
	}
	return c.p
}

func has(list []string, s string) bool { return slices.Contains(list, s) }

// claiming is a claim while a plan is made for it.
type claiming struct {
	ClaimView
	ask *Request
	p   ClaimPlan
}

func (c *claiming) hold(action, why, unblock string) {
	c.p.Held = append(c.p.Held, &metav1.HeldBack{
		Action: action, Object: object.Reference(c.Claim), Reason: why, Unblock: unblock,
	})
}

// users returns the pods that keep a claim from its removal: those that are bound and have not ended.
func users(claim *schedulingv1.PersistentVolumeClaim, pods []*schedulingv1.Pod) (out []*schedulingv1.Pod) {
	for _, pod := range pods {
		if placement.Assigned(pod) && uses(pod, object.KeyOf(claim)) {
			out = append(out, pod)
		}
	}
	return out
}

// uses reports whether a pod names a claim.
func uses(pod *schedulingv1.Pod, claim object.Key) bool {
	return pod.GetMetadata().GetNamespace() == claim.Namespace &&
		slices.ContainsFunc(pod.GetSpec().GetVolumes(), func(v *schedulingv1.Volume) bool {
			return v.GetPersistentVolumeClaim() != nil && v.GetPersistentVolumeClaim().GetClaimName() == claim.Name
		})
}

// release lets a claim go that is being deleted, once no pod uses it.
func (c *claiming) release() {
	if list := users(c.Claim, c.Pods); len(list) > 0 {
		c.hold("ReleaseClaim", "pod "+list[0].GetMetadata().GetName()+" uses it", "the pods that use it end")
		return
	}
	c.p.Release, c.p.why = true, "no pod uses it"
}

// volume returns the volume of a name; nil if there is none.
func (c *claiming) volume(name string) *schedulingv1.PersistentVolume {
	i := slices.IndexFunc(c.Volumes, func(v *schedulingv1.PersistentVolume) bool {
		return v.GetMetadata().GetName() == name
	})
	if i < 0 {
		return nil
	}
	return c.Volumes[i]
}

// keep watches over a claim that was bound.
func (c *claiming) keep() {
	name := c.Claim.GetSpec().GetVolumeName()
	v := c.volume(name)
	ref := v.GetSpec().GetClaimRef()
	switch {
	case name == "":
		c.lose("ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
	case v == nil:
		c.lose("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
	case ref == nil, Holds(v, c.Claim):
		c.bind(v, "it names this volume")
	default:
		c.lose("ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly")
	}
}

func (c *claiming) lose(reason, message string) {
	c.p.Status = &schedulingv1.PersistentVolumeClaimStatus{Phase: proto.String(lost)}
	c.p.why = message
	c.p.Tell = append(c.p.Tell, Event{"Warning", reason, message})
	c.store(nil)
}

// bindNamed binds a claim to the volume that its user names.
func (c *claiming) bindNamed() {
	name := c.Claim.GetSpec().GetVolumeName()
	v := c.volume(name)
	var misfit string
	if v != nil {
		misfit = c.ask.misfit(readSize(v))
	}
	switch {
	case v == nil:
		c.wait("FailedBinding", fmt.Sprintf("volume %q not found", name), "the volume is created")
	case misfit != "":
		c.wait("VolumeMismatch", fmt.Sprintf("Cannot bind to requested volume %q: %s", name, misfit), "the volume changes")
	case v.GetSpec().GetClaimRef() != nil && !Holds(v, c.Claim):
		c.wait("FailedBinding", fmt.Sprintf("volume %q already bound to a different claim.", name),
			"the volume is released and made available")
	default:
		c.bind(v, "it names this volume")
	}
}

// find finds a volume for a claim, or has one made.
func (c *claiming) find() {
	if v := c.reserved(); v != nil {
		c.bind(v, "the volume is reserved for this claim")
		return
	}
	node := c.Claim.GetMetadata().GetAnnotations()[SelectedNode]
	if Waits(c.Class) && node == "" {
		c.wait("WaitForFirstConsumer", "waiting for first consumer to be created before binding",
			"a pod that uses the claim is placed on a node")
		return
	}
	if !Waits(c.Class) {
		if v := c.smallest(); v != nil {
			c.bind(v, "it is the smallest volume that fits")
			return
		}
	}
	switch {
	case !Provisioned(c.Class) && c.ask.Class == "":
		c.wait("FailedBinding", "no persistent volumes available for this claim and no storage class is set",
			"a volume that fits is created")
	case c.Class == nil:
		c.wait("ProvisioningFailed", fmt.Sprintf("storageclass.storage.k8s.io %q not found", c.ask.Class),
			"the class, or a volume of it that fits, is created")
	case !Provisioned(c.Class):
		c.wait("FailedBinding", fmt.Sprintf("no persistent volume of the class %q is available for this claim", c.ask.Class),
			"a volume that fits is created")
	case c.Class.GetProvisioner() == LocalProvisioner:
		c.provision(node)
	default:
		c.wait("ExternalProvisioning", fmt.Sprintf("waiting for a volume to be created by %q, which is not part of Windlass",
			c.Class.GetProvisioner()), "the provisioner creates a volume")
		c.store(map[string]string{storageProvisioner: c.Class.GetProvisioner()})
	}
}

// provision makes a volume on the node that was selected for a claim, which anyone may have done who writes claims.
func (c *claiming) provision(node string) {
	if why := Unprovisionable(c.Claim); why != "" {
		c.wait("ProvisioningFailed", why, "a claim of another kind is created")
		return
	}
	switch {
	case c.Node == nil:
		c.wait("ProvisioningFailed", fmt.Sprintf("the selected node %q does not exist", node),
			"the node registers, or the annotation "+SelectedNode+" is removed")
		return
	case !Allowed(c.Class, c.Node):
		c.wait("ProvisioningFailed", fmt.Sprintf("the class %q allows no volumes on the selected node %q", c.ask.Class, node),
			"the node gets labels that the class allows, or the annotation "+SelectedNode+" is removed")
		return
	}
	c.p.Provision, c.p.why = Local(c.Claim, c.Class, node), "node "+node+" was selected for it"
	c.p.Tell = append(c.p.Tell, Event{
		"Normal", "ProvisioningSucceeded", "Successfully provisioned volume " + c.p.Provision.GetMetadata().GetName(),
	})
}

// reserved returns a volume that is bound to the claim or reserved for it: the claim was not stored as bound yet, or a
// user or a provisioner wants it so.
func (c *claiming) reserved() *schedulingv1.PersistentVolume {
	for _, v := range c.Volumes {
		if Holds(v, c.Claim) && c.ask.misfit(readSize(v)) == "" {
			return v
		}
	}
	return nil
}

// smallest returns the free volume that fits best: with the fewest access modes, then the smallest.
func (c *claiming) smallest() *schedulingv1.PersistentVolume {
	var best *Volume
	modes := func(v *Volume) int { return len(v.Msg.GetSpec().GetAccessModes()) }
	for _, msg := range c.Volumes {
		if msg.GetSpec().GetClaimRef() != nil {
			continue
		}
		v := readSize(msg)
		if c.ask.Suits(v) && (best == nil || modes(v) < modes(best) || modes(v) == modes(best) && v.Compare(best) < 0) {
			best = v
		}
	}
	if best == nil {
		return nil
	}
	return best.Msg
}

// wait notes why a claim is not bound.
func (c *claiming) wait(reason, message, unblock string) {
	c.hold("BindClaim", message, unblock)
	typ := "Normal"
	if has([]string{"ProvisioningFailed", "VolumeMismatch"}, reason) {
		typ = "Warning"
	}
	c.p.Tell = append(c.p.Tell, Event{typ, reason, message})
	c.p.Status, c.p.why = &schedulingv1.PersistentVolumeClaimStatus{Phase: proto.String(pending)}, message
	c.store(nil)
}

// store has the claim stored with the status of the plan and some annotations, if that changes it.
func (c *claiming) store(annotations map[string]string) {
	next := proto.CloneOf(c.Claim)
	next.Status = c.p.Status
	next.Metadata.Annotations = with(next.GetMetadata().GetAnnotations(), annotations)
	if !proto.Equal(next, c.Claim) {
		c.p.Next = next
	}
}

// with returns annotations with further ones.
func with(have, more map[string]string) map[string]string {
	if len(more) == 0 {
		return have
	}
	out := maps.Clone(have)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, more)
	return out
}

func (c *claiming) bind(v *schedulingv1.PersistentVolume, why string) {
	b := Bind(c.Claim, v)
	if proto.Equal(b.Claim, c.Claim) && proto.Equal(b.Volume, v) {
		c.p.Status = c.Claim.GetStatus()
		return
	}
	c.p.Bind, c.p.why = &b, why
}

// Bind returns a claim and a volume as they are when they are bound to each other.
func Bind(claim *schedulingv1.PersistentVolumeClaim, volume *schedulingv1.PersistentVolume) Binding {
	c, v := proto.CloneOf(claim), proto.CloneOf(volume)
	if ref := v.GetSpec().GetClaimRef(); ref.GetUid() == "" {
		if ref == nil {
			v.Metadata.Annotations = with(v.GetMetadata().GetAnnotations(), map[string]string{boundByController: yes})
		}
		v.Spec.ClaimRef = object.Reference(c)
	}
	v.Status = &schedulingv1.PersistentVolumeStatus{Phase: proto.String(bound)}
	marks := map[string]string{bindCompleted: yes}
	if c.GetSpec().GetVolumeName() == "" {
		marks[boundByController] = yes
	}
	c.Metadata.Annotations = with(c.GetMetadata().GetAnnotations(), marks)
	c.Spec.VolumeName = v.GetMetadata().GetName()
	c.Status = &schedulingv1.PersistentVolumeClaimStatus{
		Phase: proto.String(bound), AccessModes: v.GetSpec().GetAccessModes(), Capacity: v.GetSpec().GetCapacity(),
		Conditions: c.GetStatus().GetConditions(),
	}
	return Binding{c, v}
}

// Unprovisionable says why the built-in provisioner makes no volume for a claim; empty if it does.
func Unprovisionable(c *schedulingv1.PersistentVolumeClaim) string {
	for _, m := range c.GetSpec().GetAccessModes() {
		if m != readWriteOnce {
			return LocalProvisioner + " makes volumes with the access mode " + readWriteOnce + " only, not " + m
		}
	}
	switch {
	case mode(c.GetSpec().GetVolumeMode()) != filesystem:
		return LocalProvisioner + " makes file systems only"
	case c.GetSpec().GetSelector() != nil:
		return "claim.Spec.Selector is not supported for dynamic provisioning"
	case len(c.GetSpec().GetDataSource().GetFields()) > 0:
		return LocalProvisioner + " knows no data sources"
	}
	return ""
}

// Local returns the volume that the built-in provisioner makes for a claim on a node. Its name depends on the claim
// alone, so that a claim never gets two.
func Local(c *schedulingv1.PersistentVolumeClaim, class *schedulingv1.StorageClass,
	node string,
) *schedulingv1.PersistentVolume {
	name := "pvc-" + c.GetMetadata().GetUid()
	text := structpb.NewStringValue
	fields := func(f map[string]*structpb.Value) *structpb.Value {
		return structpb.NewStructValue(&structpb.Struct{Fields: f})
	}
	list := func(v ...*structpb.Value) *structpb.Value {
		return structpb.NewListValue(&structpb.ListValue{Values: v})
	}
	itself := fields(map[string]*structpb.Value{
		"key": text("metadata.name"), "operator": text("In"), "values": list(text(node)),
	})
	return &schedulingv1.PersistentVolume{
		Metadata: &metav1.ObjectMeta{Name: name, Annotations: map[string]string{
			provisionedBy: LocalProvisioner, boundByController: yes,
		}},
		Spec: &schedulingv1.PersistentVolumeSpec{
			Capacity:    map[string]*structpb.Value{storage: requested(c)},
			AccessModes: []string{readWriteOnce}, ClaimRef: object.Reference(c),
			PersistentVolumeReclaimPolicy: class.GetReclaimPolicy(), StorageClassName: class.GetMetadata().GetName(),
			MountOptions: class.GetMountOptions(), VolumeMode: proto.String(filesystem),
			NodeAffinity: &structpb.Struct{Fields: map[string]*structpb.Value{
				"required": fields(map[string]*structpb.Value{
					"nodeSelectorTerms": list(fields(map[string]*structpb.Value{"matchFields": list(itself)})),
				}),
			}},
			Csi: &structpb.Struct{Fields: map[string]*structpb.Value{
				"driver": text(LocalProvisioner), "volumeHandle": text(name),
				"volumeAttributes": fields(map[string]*structpb.Value{"node": text(node)}),
			}},
		},
	}
}
