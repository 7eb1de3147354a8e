// Package plan decides which volume a claim is bound to, which volumes are made for claims, and what happens to volumes
// whose claims are gone. It does no I/O and reads no clock: the same view always gives the same plan, and no view is
// modified. It promises that no claim is bound to two volumes and no volume to two claims, if each plan is carried out
// only while what it was made from is unchanged. The placement of pods finds volumes by the same rules.
// Source: Kubernetes' controller of persistent volumes, which these rules follow.
package plan

import (
	"encoding/json"
	"slices"
	"strings"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
)

const (
	// LocalProvisioner makes volumes that are directories of a node's agent, and is the driver of these volumes.
	LocalProvisioner = placement.LocalDriver
	// NoProvisioner is the provisioner of classes whose volumes are made by users.
	NoProvisioner = "kubernetes.io/no-provisioner"

	// WaitForFirstConsumer is the binding mode in which a claim gets its volume when a pod with it is placed.
	WaitForFirstConsumer = "WaitForFirstConsumer"
	// Immediate is the other binding mode.
	Immediate = "Immediate"

	// Retain and Delete are what can happen to a volume whose claim is gone.
	Retain = "Retain"
	Delete = placement.ReclaimDelete

	readWriteOnce = "ReadWriteOnce"
	filesystem    = "Filesystem"
	storage       = "storage"
	// betaClass is the annotation that was the class of claims and volumes before the field; it has precedence.
	betaClass = "volume.beta.kubernetes.io/storage-class"
)

// ClassOf returns the storage class of a claim; empty if it wants a volume without one.
func ClassOf(c *schedulingv1.PersistentVolumeClaim) string {
	if class, ok := c.GetMetadata().GetAnnotations()[betaClass]; ok {
		return class
	}
	return c.GetSpec().GetStorageClassName()
}

// ClassOfVolume returns the storage class of a volume; empty if it has none.
func ClassOfVolume(v *schedulingv1.PersistentVolume) string {
	if class, ok := v.GetMetadata().GetAnnotations()[betaClass]; ok {
		return class
	}
	return v.GetSpec().GetStorageClassName()
}

// Waits reports whether the claims of a class get their volumes when a pod is placed. It is false for nil.
func Waits(class *schedulingv1.StorageClass) bool {
	return class.GetVolumeBindingMode() == WaitForFirstConsumer
}

// Provisioned reports whether a provisioner makes volumes of a class. It is false for nil.
func Provisioned(class *schedulingv1.StorageClass) bool {
	return class != nil && class.GetProvisioner() != NoProvisioner
}

// Volume is a volume that is ready to be compared with claims and nodes. It is not changed by use.
type Volume struct {
	Msg   *schedulingv1.PersistentVolume
	Class string
	size  resource.Quantity
	nodes placement.NodeMatcher
	only  string
	home  string // the node that it is a directory of; empty if it is another volume
}

// Read makes a volume ready.
func Read(msg *schedulingv1.PersistentVolume) *Volume {
	v := readSize(msg)
	v.home = placement.VolumeNode(msg)
	v.only = v.home
	if selector, err := nodesOf(msg); selector != nil || err != nil {
		if v.only == "" {
			v.only = onlyIn(selector)
		}
		v.nodes = placement.NewNodeMatcher(&schedulingv1.PodSpec{Affinity: &schedulingv1.Affinity{
			NodeAffinity: &schedulingv1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: orNone(selector)},
		}})
	}
	return v
}

// readSize makes a volume ready to be compared with claims alone, which costs much less.
func readSize(msg *schedulingv1.PersistentVolume) *Volume {
	v := &Volume{Msg: msg, Class: ClassOfVolume(msg)}
	v.size, _ = placement.Quantity(msg.GetSpec().GetCapacity()[storage]) // what cannot be read is too small
	return v
}

// HostnameLabel is the label of a node that no other node has with its value.
const HostnameLabel = "kubernetes.io/hostname"

// onlyIn returns the one value that a selector allows for the name of a node or for HostnameLabel; empty if it allows
// others.
func onlyIn(s *schedulingv1.NodeSelector) string {
	if len(s.GetNodeSelectorTerms()) != 1 {
		return ""
	}
	t := s.GetNodeSelectorTerms()[0]
	for _, e := range slices.Concat(t.GetMatchFields(), t.GetMatchExpressions()) {
		if (e.GetKey() == "metadata.name" || e.GetKey() == HostnameLabel) && e.GetOperator() == "In" &&
			len(e.GetValues()) == 1 {
			return e.GetValues()[0]
		}
	}
	return ""
}

// Only returns the name, or the value of HostnameLabel, that a node must have for a volume; empty if it may have
// others.
func (v *Volume) Only() string { return v.only }

// orNone returns a selector, or one that selects no node.
func orNone(s *schedulingv1.NodeSelector) *schedulingv1.NodeSelector {
	if s == nil {
		return &schedulingv1.NodeSelector{}
	}
	return s
}

// Reaches reports whether a volume can be used on a node.
func (v *Volume) Reaches(n *nodev1.Node) bool {
	return (v.home == "" || v.home == n.GetMetadata().GetName()) && v.nodes.Matches(n)
}

// Free reports whether a volume is for any claim.
func (v *Volume) Free() bool { return v.Msg.GetSpec().GetClaimRef() == nil && !object.Deleting(v.Msg) }

// nodesOf returns the selector of the nodes that can use a volume; nil means all nodes.
func nodesOf(v *schedulingv1.PersistentVolume) (*schedulingv1.NodeSelector, error) {
	required := v.GetSpec().GetNodeAffinity().GetFields()["required"]
	if required == nil {
		return nil, nil
	}
	raw, err := protojson.Marshal(required)
	if err != nil {
		return nil, err
	}
	out := &schedulingv1.NodeSelector{}
	return out, protojson.Unmarshal(raw, out)
}

// CheckNodeAffinity returns what is wrong with the node affinity of a volume.
func CheckNodeAffinity(v *schedulingv1.PersistentVolume) []object.Fault {
	const path = "spec.nodeAffinity"
	for name := range v.GetSpec().GetNodeAffinity().GetFields() {
		if name != "required" {
			return []object.Fault{object.Faultf(path+"."+name, "unknown field; known is: required")}
		}
	}
	selector, err := nodesOf(v)
	switch {
	case err != nil:
		return []object.Fault{object.Faultf(path+".required", "must be a node selector: %v", err)}
	case selector == nil:
		return nil
	}
	bad := placement.ValidateNodeAffinity(path, &schedulingv1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: selector,
	})
	for i := range bad {
		bad[i].Path = strings.Replace(bad[i].Path, "requiredDuringSchedulingIgnoredDuringExecution", "required", 1)
	}
	return bad
}

// Request is what a claim asks of a volume, ready to be compared with many of them. It is not changed by use.
type Request struct {
	Msg      *schedulingv1.PersistentVolumeClaim
	Class    string
	size     resource.Quantity
	selector labels.Selector // nil selects all
}

// Ask makes a claim ready.
func Ask(msg *schedulingv1.PersistentVolumeClaim) *Request {
	r := &Request{Msg: msg, Class: ClassOf(msg)}
	r.size, _ = placement.Quantity(requested(msg)) // it was checked when it was stored
	if s := msg.GetSpec().GetSelector(); s != nil {
		r.selector = placement.PodSelector(s)
	}
	return r
}

// requested returns the size that a claim asks for.
func requested(c *schedulingv1.PersistentVolumeClaim) *structpb.Value {
	return c.GetSpec().GetResources().GetFields()["requests"].GetStructValue().GetFields()[storage]
}

// Waiting reports whether a claim gets its volume when a pod with it is placed. It does not if it names a volume, as in
// Kubernetes.
func (r *Request) Waiting(class *schedulingv1.StorageClass) bool {
	return Waits(class) && r.Msg.GetSpec().GetVolumeName() == ""
}

// Bound reports whether a claim has been bound to a volume.
func Bound(c *schedulingv1.PersistentVolumeClaim) bool {
	return c.GetSpec().GetVolumeName() != "" && c.GetMetadata().GetAnnotations()[bindCompleted] != ""
}

// Holds reports whether a volume is bound to a claim, or reserved for it.
func Holds(v *schedulingv1.PersistentVolume, c *schedulingv1.PersistentVolumeClaim) bool {
	ref, m := v.GetSpec().GetClaimRef(), c.GetMetadata()
	return ref != nil && ref.GetNamespace() == m.GetNamespace() && ref.GetName() == m.GetName() &&
		(ref.GetUid() == "" || ref.GetUid() == m.GetUid())
}

// misfit says in one line why a volume is not what a claim asks for; empty if it is. The selector and the other claims
// of a volume are not considered.
func (r *Request) misfit(v *Volume) string {
	switch {
	case object.Deleting(v.Msg):
		return "it is being deleted"
	case mode(r.Msg.GetSpec().GetVolumeMode()) != mode(v.Msg.GetSpec().GetVolumeMode()):
		return "its volumeMode is " + mode(v.Msg.GetSpec().GetVolumeMode())
	case r.Class != v.Class:
		return "its storage class is " + quoted(v.Class) + ", not " + quoted(r.Class)
	case v.size.Cmp(r.size) < 0:
		return "its size is " + v.size.String() + ", and " + r.size.String() + " is requested"
	}
	for _, m := range r.Msg.GetSpec().GetAccessModes() {
		if !slices.Contains(v.Msg.GetSpec().GetAccessModes(), m) {
			return "it lacks the access mode " + m
		}
	}
	return ""
}

func mode(m string) string {
	if m == "" {
		return filesystem
	}
	return m
}

func quoted(s string) string {
	raw, _ := json.Marshal(s) // a string has an encoding
	return string(raw)
}

// Suits reports whether a claim may be bound to a free volume.
func (r *Request) Suits(v *Volume) bool {
	return v.Free() && r.misfit(v) == "" &&
		(r.selector == nil || r.selector.Matches(labels.Set(v.Msg.GetMetadata().GetLabels())))
}

// Compare orders volumes by their size, then by their name.
func (v *Volume) Compare(o *Volume) int {
	if c := v.size.Cmp(o.size); c != 0 {
		return c
	}
	return strings.Compare(v.Msg.GetMetadata().GetName(), o.Msg.GetMetadata().GetName())
}

// Compare orders requests by their size, then by namespace and name.
func (r *Request) Compare(o *Request) int {
	if c := r.size.Cmp(o.size); c != 0 {
		return c
	}
	return strings.Compare(object.KeyOf(r.Msg).String(), object.KeyOf(o.Msg).String())
}

// Allowed reports whether volumes of a class can be made for a node.
func Allowed(class *schedulingv1.StorageClass, n *nodev1.Node) bool {
	terms, have := class.GetAllowedTopologies(), n.GetMetadata().GetLabels()
	if len(terms) == 0 {
		return true
	}
	return slices.ContainsFunc(terms, func(t *schedulingv1.TopologySelectorTerm) bool {
		for _, e := range t.GetMatchLabelExpressions() {
			value, ok := have[e.GetKey()]
			if !ok || !slices.Contains(e.GetValues(), value) {
				return false
			}
		}
		return len(t.GetMatchLabelExpressions()) > 0
	})
}
