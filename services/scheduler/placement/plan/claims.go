package plan

import (
	"fmt"
	"slices"
	"strings"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"

	volumes "github.com/windlass-dev/windlass/services/scheduler/volume/plan"
)

// stock is the storage of a cluster.
type stock struct {
	volumes map[string]*volumes.Volume
	free    map[string]map[string]*volumes.Volume // those that no claim has, by class and name
	claims  map[object.Key]*volumes.Request
	classes map[string]*schedulingv1.StorageClass
	users   map[object.Key]map[*bound]struct{} // the pods of nodes that name a claim
	version uint64                             // counts the changes: what was known of a pod with a claim ends with it
}

func newStock() stock {
	return stock{
		volumes: map[string]*volumes.Volume{}, free: map[string]map[string]*volumes.Volume{},
		claims:  map[object.Key]*volumes.Request{},
		classes: map[string]*schedulingv1.StorageClass{}, users: map[object.Key]map[*bound]struct{}{},
	}
}

// AddVolume adds a volume, or replaces the one of that name.
func (c *Cluster) AddVolume(msg *schedulingv1.PersistentVolume) {
	name, v := msg.GetMetadata().GetName(), volumes.Read(msg)
	old := c.stock.volumes[name]
	c.stock.unfree(old)
	c.stock.volumes[name] = v
	if v.Free() {
		if c.stock.free[v.Class] == nil {
			c.stock.free[v.Class] = map[string]*volumes.Volume{}
		}
		c.stock.free[v.Class][name] = v
	}
	c.restocked(holderOf(old), holderOf(v))
}

// unfree takes a volume from the free ones. It may be nil.
func (s *stock) unfree(v *volumes.Volume) {
	if v == nil {
		return
	}
	if delete(s.free[v.Class], v.Msg.GetMetadata().GetName()); len(s.free[v.Class]) == 0 {
		delete(s.free, v.Class)
	}
}

// RemoveVolume takes a volume away.
func (c *Cluster) RemoveVolume(name string) {
	if old := c.stock.volumes[name]; old != nil {
		c.stock.unfree(old)
		delete(c.stock.volumes, name)
		c.restocked(holderOf(old))
	}
}

// holderOf returns the claim that a volume names.
func holderOf(v *volumes.Volume) object.Key {
	if v == nil {
		return object.Key{}
	}
	ref := v.Msg.GetSpec().GetClaimRef()
	return object.Key{Namespace: ref.GetNamespace(), Name: ref.GetName()}
}

// AddClaim adds a claim, or replaces the one of that name.
func (c *Cluster) AddClaim(msg *schedulingv1.PersistentVolumeClaim) {
	c.stock.claims[object.KeyOf(msg)] = volumes.Ask(msg)
	c.restocked(object.KeyOf(msg))
}

// RemoveClaim takes a claim away.
func (c *Cluster) RemoveClaim(k object.Key) {
	delete(c.stock.claims, k)
	c.restocked(k)
}

// AddStorageClass adds a storage class, or replaces the one of that name.
func (c *Cluster) AddStorageClass(msg *schedulingv1.StorageClass) {
	c.stock.classes[msg.GetMetadata().GetName()] = msg
	c.restocked()
}

// RemoveStorageClass takes a storage class away.
func (c *Cluster) RemoveStorageClass(name string) {
	delete(c.stock.classes, name)
	c.restocked()
}

// restocked ends what is known of pods with claims, and of the nodes of pods with some claims.
func (c *Cluster) restocked(claims ...object.Key) {
	c.stock.version++
	for _, k := range claims {
		for b := range c.stock.users[k] {
			if b.node != nil {
				c.note(change{node: b.node})
			}
		}
	}
}

// use keeps users in sync with a pod that comes or leaves.
func (c *Cluster) use(b *bound, comes bool) {
	for _, k := range b.claims {
		users := c.stock.users[k]
		switch {
		case !comes:
			if delete(users, b); len(users) == 0 {
				delete(c.stock.users, k)
			}
		case users == nil:
			c.stock.users[k] = map[*bound]struct{}{b: {}}
		default:
			users[b] = struct{}{}
		}
	}
}

// claimsOf returns the claims that a pod names, those that several of its volumes name once.
func claimsOf(namespace string, spec *schedulingv1.PodSpec) (out []object.Key) {
	for _, v := range spec.GetVolumes() {
		if v.GetPersistentVolumeClaim() == nil {
			continue
		}
		k := object.Key{Namespace: namespace, Name: v.GetPersistentVolumeClaim().GetClaimName()}
		if !slices.Contains(out, k) {
			out = append(out, k)
		}
	}
	return out
}

// wanted is a claim of a pod that has no volume yet and gets one with a node.
type wanted struct {
	ask   *volumes.Request
	class *schedulingv1.StorageClass
	fits  []*volumes.Volume            // free ones for any node, the smallest first
	near  map[string][]*volumes.Volume // those for one node alone, by the name that it has or its label says
}

// demand is what the claims of a pod are to its shape.
type demand struct {
	keys   []object.Key
	bound  []*volumes.Volume // of the claims that have one
	wanted []wanted          // the smallest first
}

// demandOf resolves the claims of a pod.
func (c *Cluster) demandOf(namespace string, spec *schedulingv1.PodSpec) (d demand) {
	d.keys = claimsOf(namespace, spec)
	for _, k := range d.keys {
		ask := c.stock.claims[k]
		switch {
		case ask == nil:
		case volumes.Bound(ask.Msg):
			if v := c.stock.volumes[ask.Msg.GetSpec().GetVolumeName()]; v != nil {
				d.bound = append(d.bound, v)
			}
		case ask.Waiting(c.stock.classes[ask.Class]):
			d.wanted = append(d.wanted, wanted{ask: ask, class: c.stock.classes[ask.Class]})
		}
	}
	if len(d.wanted) == 0 {
		return d
	}
	slices.SortFunc(d.wanted, func(a, b wanted) int { return a.ask.Compare(b.ask) })
	for i := range d.wanted {
		c.supply(&d.wanted[i])
	}
	return d
}

// supply finds the volumes that a claim may be bound to.
func (c *Cluster) supply(w *wanted) {
	if w.ask.Msg.GetMetadata().GetAnnotations()[volumes.SelectedNode] != "" {
		return // its volume is being made
	}
	w.near = map[string][]*volumes.Volume{}
	for _, v := range c.stock.free[w.ask.Class] {
		if !w.ask.Suits(v) {
			continue
		}
		if only := v.Only(); only != "" {
			w.near[only] = append(w.near[only], v)
		} else {
			w.fits = append(w.fits, v)
		}
	}
	slices.SortFunc(w.fits, (*volumes.Volume).Compare)
	for _, list := range w.near {
		slices.SortFunc(list, (*volumes.Volume).Compare)
	}
}

// ClaimChoice is what a claim gets with the node of a pod.
type ClaimChoice struct {
	Claim  *schedulingv1.PersistentVolumeClaim
	Volume *schedulingv1.PersistentVolume // that it is bound to
	Made   bool                           // the volume does not exist yet
	// SelectedNode is the node for which another program is to make a volume; the pod waits for that. There is no Volume.
	SelectedNode string
}

// choices returns what the claims of a pod that are not bound get on a node, in their order; false if one of them gets
// nothing. Each volume is given once.
func (k *class) choices(n *node) (out []ClaimChoice, ok bool) {
	ok = k.picks(n, func(w *wanted, v *volumes.Volume) {
		choice := ClaimChoice{Claim: w.ask.Msg}
		switch {
		case v != nil:
			choice.Volume = v.Msg
		case w.class.GetProvisioner() == volumes.LocalProvisioner:
			choice.Volume, choice.Made = volumes.Local(w.ask.Msg, w.class, n.name), true
		default:
			choice.SelectedNode = n.name
		}
		out = append(out, choice)
	})
	return out, ok
}

// picks calls pick with the volume that each claim of a pod gets on a node, nil if one is made for it, and reports
// whether all of them get one. It is called for every node, and makes none.
func (k *class) picks(n *node, pick func(*wanted, *volumes.Volume)) bool {
	var taken map[*volumes.Volume]bool
	for i := range k.demand.wanted {
		w := &k.demand.wanted[i]
		v := w.volumeFor(n, taken)
		if v == nil && !w.makes(n.msg) {
			return false
		}
		if v != nil && len(k.demand.wanted) > 1 {
			if taken == nil {
				taken = map[*volumes.Volume]bool{}
			}
			taken[v] = true
		}
		if pick != nil {
			pick(w, v)
		}
	}
	return true
}

// makes reports whether a volume can be made for a node.
func (w *wanted) makes(n *nodev1.Node) bool {
	selected := w.ask.Msg.GetMetadata().GetAnnotations()[volumes.SelectedNode]
	return volumes.Provisioned(w.class) && volumes.Allowed(w.class, n) &&
		(w.class.GetProvisioner() != volumes.LocalProvisioner || volumes.Unprovisionable(w.ask.Msg) == "") &&
		(selected == "" || selected == n.GetMetadata().GetName())
}

// volumeFor returns the smallest volume that a claim can get on a node, nil if there is none.
func (w *wanted) volumeFor(n *node, taken map[*volumes.Volume]bool) *volumes.Volume {
	var best *volumes.Volume
	for _, list := range [][]*volumes.Volume{w.fits, w.near[n.name], w.nearByLabel(n)} {
		for _, v := range list {
			if best != nil && v.Compare(best) >= 0 {
				break
			}
			if !taken[v] && v.Reaches(n.msg) {
				best = v
				break
			}
		}
	}
	return best
}

func (w *wanted) nearByLabel(n *node) []*volumes.Volume {
	if host := n.labels[volumes.HostnameLabel]; host != n.name {
		return w.near[host]
	}
	return nil
}

// assume has the cluster be as it is once choices are stored.
func (c *Cluster) assume(choices []ClaimChoice) {
	for _, one := range choices {
		if one.Volume == nil {
			continue
		}
		b := volumes.Bind(one.Claim, one.Volume)
		c.AddVolume(b.Volume)
		c.AddClaim(b.Claim)
	}
}

// awaited says for whose volumes a pod waits that was given these choices; empty if all of them are stored with it.
func awaited(choices []ClaimChoice) string {
	for _, one := range choices {
		if one.SelectedNode != "" {
			return fmt.Sprintf("the pod waits until a volume is made for persistentvolumeclaim %q on node %s",
				one.Claim.GetMetadata().GetName(), one.SelectedNode)
		}
	}
	return ""
}

// reachable is CheckVolumeBinding: the volumes that the pod's claims are bound to can be used on the node, and the
// other claims find volumes there, or these can be made.
func (k *class) reachable(p *predicate, n *node, r *report) bool {
	ok := true
	for _, v := range k.demand.bound {
		if v.Reaches(n.msg) {
			continue
		}
		if ok = false; r == nil {
			return false
		}
		r.fail(p.filter.names[0], "node(s) had volume node affinity conflict", func() (string, string) {
			return "volume " + v.Msg.GetMetadata().GetName() + " cannot be used there",
				"the node gets the labels that its nodeAffinity asks for"
		})
	}
	if len(k.demand.wanted) == 0 {
		return ok
	}
	if k.picks(n, nil) {
		return ok
	}
	return r != nil && r.fail(p.filter.names[0], "node(s) didn't find available persistent volumes to bind",
		func() (string, string) {
			var names []string
			for _, w := range k.demand.wanted {
				names = append(names, w.ask.Msg.GetMetadata().GetName())
			}
			return "asked by claim " + strings.Join(names, ", "), "a volume that fits is created there"
		})
}

// zoneLabels are the labels of volumes and nodes that must agree, each with its older name.
func zoneLabels() [2][2]string {
	return [2][2]string{
		{"topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"},
		{"topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"},
	}
}

// zoned is NoVolumeZoneConflict. A node without zone and region passes. The labels of a volume may name several zones,
// joined by "__".
func (k *class) zoned(p *predicate, n *node, r *report) bool {
	if len(k.demand.bound) == 0 || !inZone(n.labels) {
		return true
	}
	ok := true
	for _, v := range k.demand.bound {
		label, want := conflict(v.Msg.GetMetadata().GetLabels(), n.labels)
		if label == "" {
			continue
		}
		if ok = false; r == nil {
			return false
		}
		r.fail(p.filter.names[0], "node(s) had no available volume zone", func() (string, string) {
			return fmt.Sprintf("volume %s is in %s=%s", v.Msg.GetMetadata().GetName(), label, want),
				"a node of that zone has room"
		})
	}
	return ok
}

// inZone reports whether a node says in which zone or region it is.
func inZone(node map[string]string) bool {
	for _, names := range zoneLabels() {
		for _, l := range names {
			if _, ok := node[l]; ok {
				return true
			}
		}
	}
	return false
}

// conflict returns the first zone label of a volume that a node does not agree with, and its value; empty if there is
// none.
func conflict(volume, node map[string]string) (label, value string) {
	for _, names := range zoneLabels() {
		var have string
		for _, l := range names {
			if v, ok := node[l]; ok && have == "" {
				have = v
			}
		}
		for _, l := range names {
			if want, ok := volume[l]; ok && !slices.Contains(strings.Split(want, "__"), have) {
				return l, want
			}
		}
	}
	return "", ""
}

// diskOfClaim returns the disk of a kind that a claim is bound to. A claim of which that is not known counts as one,
// unless its class has directories. Source: Kubernetes' MaxPDVolumeCount predicates, which do not have such a class.
func (c *Cluster) diskOfClaim(k object.Key, kind string) (id string, is bool) {
	var v *volumes.Volume
	if ask := c.stock.claims[k]; ask != nil {
		v = c.stock.volumes[ask.Msg.GetSpec().GetVolumeName()]
		if v == nil && c.stock.classes[ask.Class].GetProvisioner() == volumes.LocalProvisioner {
			return "", false
		}
	}
	if v == nil {
		return "claim " + k.String(), true
	}
	spec := v.Msg.GetSpec()
	d := diskOf(&schedulingv1.Volume{
		AwsElasticBlockStore: spec.GetAwsElasticBlockStore(), GcePersistentDisk: spec.GetGcePersistentDisk(),
		AzureDisk: spec.GetAzureDisk(),
	})
	return d.id, d.kind == kind
}

// unready says what of a pod's claims keeps it from every node; empty if nothing does.
func (c *Cluster) unready(p *Profile, namespace string, spec *schedulingv1.PodSpec) string {
	for _, k := range claimsOf(namespace, spec) {
		ask := c.stock.claims[k]
		switch {
		case ask == nil:
			return fmt.Sprintf("persistentvolumeclaim %q not found", k.Name)
		case object.Deleting(ask.Msg):
			return fmt.Sprintf("persistentvolumeclaim %q is being deleted", k.Name)
		case volumes.Bound(ask.Msg):
			name := ask.Msg.GetSpec().GetVolumeName()
			switch v := c.stock.volumes[name]; {
			case !p.checks(checkVolumeBinding, noVolumeZoneConflict):
			case v == nil:
				return fmt.Sprintf("persistentvolumeclaim %q bound to non-existent persistentvolume %q", k.Name, name)
			case !volumes.Holds(v.Msg, ask.Msg):
				return fmt.Sprintf("persistentvolumeclaim %q bound to persistentvolume %q, which another claim has", k.Name, name)
			}
		case !ask.Waiting(c.stock.classes[ask.Class]):
			if p.checks(checkVolumeBinding, noVolumeZoneConflict) {
				return fmt.Sprintf("pod has unbound immediate PersistentVolumeClaims: %q", k.Name)
			}
		case !p.checks(checkVolumeBinding):
			return fmt.Sprintf("persistentvolumeclaim %q gets its volume with the node of its pod, which the policy does not "+
				"do without the predicate %s", k.Name, checkVolumeBinding)
		}
	}
	return ""
}

const (
	checkVolumeBinding   = "CheckVolumeBinding"
	noVolumeZoneConflict = "NoVolumeZoneConflict"
)

// checks reports whether one of some predicates, by their usual names, is in a profile.
func (p *Profile) checks(names ...string) bool {
	return slices.ContainsFunc(p.predicates, func(o predicate) bool { return slices.Contains(names, o.filter.names[0]) })
}
