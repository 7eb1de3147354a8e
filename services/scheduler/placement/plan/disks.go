package plan

import (
	"cmp"
	"fmt"
	"slices"

	"google.golang.org/protobuf/types/known/structpb"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// Sources of volumes that are disks, as pods name them.
const (
	ebs       = "awsElasticBlockStore"
	gcePD     = "gcePersistentDisk"
	azureDisk = "azureDisk"
	iscsiDisk = "iscsi"
	rbdDisk   = "rbd"
)

// How many disks of a kind a node can have attached, unless its allocatable resources say it. Source: Kubernetes'
// scheduler.
const (
	maxEBS   = 39
	maxGCEPD = 16
	maxAzure = 16
)

// disk is a disk that a volume of a pod is.
type disk struct {
	kind     string   // source of the volume
	id       string   // within its kind
	readOnly bool     // the pod does not write to it
	monitors []string // of a RADOS block device: another cluster may have one of the same id
}

// disksOf returns the disks of a pod, those that several of its volumes name more than once, without those of its
// claims.
func disksOf(spec *schedulingv1.PodSpec) []disk {
	var out []disk
	for _, v := range spec.GetVolumes() {
		if d := diskOf(v); d.kind != "" {
			out = append(out, d)
		}
	}
	return out
}

// diskOf returns the disk that a volume is; one without a kind if it is none.
func diskOf(v *schedulingv1.Volume) disk {
	field := func(s *structpb.Struct, name string) string { return s.GetFields()[name].GetStringValue() }
	readOnly := func(s *structpb.Struct) bool { return s.GetFields()["readOnly"].GetBoolValue() }
	switch {
	case v.GetAwsElasticBlockStore() != nil: // it is attached to one node for one pod, whatever the pod does with it
		return disk{kind: ebs, id: field(v.GetAwsElasticBlockStore(), "volumeID")}
	case v.GetGcePersistentDisk() != nil:
		s := v.GetGcePersistentDisk()
		return disk{kind: gcePD, id: field(s, "pdName"), readOnly: readOnly(s)}
	case v.GetAzureDisk() != nil:
		s := v.GetAzureDisk()
		return disk{kind: azureDisk, id: field(s, "diskName"), readOnly: readOnly(s)}
	case v.GetIscsi() != nil: // the unit of the target is not compared
		s := v.GetIscsi()
		return disk{kind: iscsiDisk, id: field(s, "iqn"), readOnly: readOnly(s)}
	case v.GetRbd() != nil:
		s := v.GetRbd()
		pool := field(s, "pool")
		if pool == "" {
			pool = "rbd"
		}
		d := disk{kind: rbdDisk, id: pool + "/" + field(s, "image"), readOnly: readOnly(s)}
		for _, m := range s.GetFields()["monitors"].GetListValue().GetValues() {
			d.monitors = append(d.monitors, m.GetStringValue())
		}
		return d
	}
	return disk{}
}

// conflicts reports whether two pods of one node may not have these disks mounted at once. Source: Kubernetes'
// NoDiskConflict.
func (d disk) conflicts(o disk) bool {
	if d.kind != o.kind || d.id != o.id || d.kind == azureDisk || d.readOnly && o.readOnly {
		return false
	}
	return d.kind != rbdDisk ||
		slices.ContainsFunc(d.monitors, func(m string) bool { return slices.Contains(o.monitors, m) })
}

// disksFree is NoDiskConflict.
func (k *class) disksFree(p *predicate, n *node, r *report) bool {
	if len(k.disks) == 0 {
		return true
	}
	var by *bound // the first by name
	var wanted disk
	for b := range n.pods {
		for _, d := range k.disks {
			if !slices.ContainsFunc(b.disks, d.conflicts) {
				continue
			}
			if r == nil {
				return false
			}
			if by == nil || before(b.key, by.key) {
				by, wanted = b, d
			}
		}
	}
	return by == nil || r.fail("NoDiskConflict", "node(s) had no available disk", func() (string, string) {
		pod := by.key.namespace + "/" + by.key.name
		return fmt.Sprintf("%s %q is mounted by pod %s", wanted.kind, wanted.id, pod), "pod " + pod + " leaves the node"
	})
}

func before(a, b podKey) bool {
	return a.namespace < b.namespace || a.namespace == b.namespace && a.name < b.name
}

// attaching returns the check of a predicate that counts the disks of a kind on a node. Disks that several pods name
// count once. most is the limit of a node that does not state one as the allocatable amount of resource, unless the
// operator has set another.
func attaching(kind string, most int64, resource string) check {
	return func(k *class, p *predicate, n *node, r *report) bool {
		asked := map[string]bool{}
		for _, d := range k.disks {
			if d.kind == kind {
				asked[d.id] = true
			}
		}
		for _, claim := range k.demand.keys {
			if id, is := k.cluster.diskOfClaim(claim, kind); is {
				asked[id] = true
			}
		}
		if len(asked) == 0 {
			return true
		}
		attached := map[string]bool{}
		for b := range n.pods {
			for _, d := range b.disks {
				if d.kind == kind {
					attached[d.id] = true
					delete(asked, d.id)
				}
			}
			for _, claim := range b.claims {
				if id, is := k.cluster.diskOfClaim(claim, kind); is {
					attached[id] = true
					delete(asked, id)
				}
			}
		}
		limit := cmp.Or(k.profile.maxDisks, most)
		if _, stated := n.msg.GetStatus().GetAllocatable()[resource]; stated {
			limit = n.has.Scalar[resource]
		}
		have, fresh := int64(len(attached)), int64(len(asked))
		if have+fresh <= limit {
			return true
		}
		if r == nil {
			return false
		}
		r.fail(p.filter.names[0], "node(s) exceed max volume count", func() (string, string) {
			return fmt.Sprintf("asked %d more, attached %d of at most %d", fresh, have, limit),
				"a pod with such a volume leaves the node, or its " + resource + " is raised"
		})
		last := &r.failures[len(r.failures)-1]
		last.resource, last.asked, last.free = resource, fresh, max(0, limit-have)
		return false
	}
}
