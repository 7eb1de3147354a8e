package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/controlplane"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/labels"
)

const (
	stateActive      = "Active"
	strategyOnDelete = "OnDelete"
	maxSurge         = 1 // machines beyond the replicas: the quorum is replaced one voter at a time
	// a node that is not ready for less may be rebooting; nothing is replaced for that
	rebootAllowance    = 20 * time.Minute
	actionCreate       = "CreateMachine"
	actionDelete       = "DeleteMachine"
	actionAdopt        = "AdoptMachine"
	defaultControlSize = 3
)

// ControlPlaneView is everything that the plan of a control-plane machine set depends on.
type ControlPlaneView struct {
	Now      time.Time
	Set      *machinev1.ControlPlaneMachineSet
	Machines []*machinev1.Machine    // of the set's namespace, ordered by name
	Nodes    map[string]*nodev1.Node // by name; all nodes of the cluster
	// DomainFields says where a provider spec has the settings of a failure domain, where it is not at the same path.
	DomainFields map[string]string
}

// Creation is a control-plane machine to be made.
type Creation struct {
	Index   int
	Domain  Domain
	Machine *machinev1.Machine // name and namespace are the caller's to set
	Reason  string
}

// Replaced is a control-plane machine to be deleted.
type Replaced struct {
	Machine *machinev1.Machine
	Reason  string
}

// IndexState is one index of the control plane.
type IndexState struct {
	Index    int
	Domain   Domain
	Machines []*machinev1.Machine
}

// ControlPlanePlan is what a control-plane machine set does now.
type ControlPlanePlan struct {
	Indexes []IndexState // ascending
	Adopt   []*machinev1.Machine
	Delete  []Replaced
	Create  []Creation
	Held    []*metav1.HeldBack
	Status  *machinev1.ControlPlaneMachineSetStatus
	Wake    time.Time
}

// ControlPlane returns what a control-plane machine set does now. A machine is deleted only when its replacement runs
// and its node is ready (or if it is itself a replacement that never joined and no longer fits the template); with
// RollingUpdate there is at most one machine more than replicas. It does not modify v.
func ControlPlane(v ControlPlaneView) ControlPlanePlan {
	c := newControlPlane(v)
	if c.fault == "" {
		c.fault, c.reason = c.check()
	}
	c.indexStates()
	if c.fault != "" {
		c.hold(actionCreate, object.Reference(v.Set), c.fault, "correct what is wrong; nothing is done until then")
	} else if c.acts() {
		c.decide()
	}
	c.status()
	return c.p
}

// member is a control-plane machine and what is known of it.
type member struct {
	m        *machinev1.Machine
	index    int
	domain   Domain
	updated  bool // as the template wants it in its index
	ready    bool // counts as working; a reboot is allowed for
	sound    bool // Running and its node ready right now: good enough to replace another
	deleting bool
	joined   bool // has had a node
	failed   bool
}

func (m *member) name() string { return m.m.GetMetadata().GetName() }

// controlPlane is one call of ControlPlane.
type controlPlane struct {
	v       ControlPlaneView
	t       *machinev1.OpenShiftMachineV1Beta1MachineTemplate
	domains domainList
	want    int
	members []*member         // by name
	byIndex map[int][]*member // with every index of the mapping
	mapping domainOf
	orphans []*machinev1.Machine
	fault   string // why nothing can be done, for people
	reason  string // the same in one word
	waits   time.Time
	p       ControlPlanePlan
}

func newControlPlane(v ControlPlaneView) *controlPlane {
	t := v.Set.GetSpec().GetTemplate().GetMachinesV1Beta1MachineOpenshiftIo()
	c := &controlPlane{
		v: v, t: t, domains: parseDomains(t, v.DomainFields), want: int(v.Set.GetSpec().GetReplicas()),
		byIndex: map[int][]*member{},
	}
	if c.want == 0 {
		c.want = defaultControlSize
	}
	c.collect()
	c.mapMembers()
	for _, m := range c.members {
		c.judge(m)
	}
	return c
}

func (c *controlPlane) stop(reason, message string) {
	if c.fault == "" {
		c.fault, c.reason = message, reason
	}
}

// collect finds the set's machines, and those that it may adopt.
func (c *controlPlane) collect() {
	sel, bad := object.LabelSelector(c.v.Set.GetSpec().GetSelector(), "spec.selector")
	switch {
	case len(bad) > 0:
		c.stop(reasonInvalidConfiguration, bad[0].String())
	case sel.String() == labels.Nothing().String():
		c.stop(reasonInvalidConfiguration, "spec.selector: must be given: an empty selector matches no machine")
	case c.t.GetSpec().GetProviderSpec().GetValue() == nil:
		c.stop(reasonInvalidConfiguration,
			"spec.template.machines_v1beta1_machine_openshift_io.spec.providerSpec.value: must be given")
	}
	for _, m := range c.v.Machines {
		if m.GetMetadata().GetNamespace() != c.v.Set.GetMetadata().GetNamespace() ||
			!sel.Matches(labels.Set(m.GetMetadata().GetLabels())) {
			continue
		}
		switch owner := object.ControllerOf(m); {
		case owner == nil && !object.Deleting(m):
			c.orphans = append(c.orphans, m)
		case owner != nil && owner.GetUid() != c.v.Set.GetMetadata().GetUid():
			c.stop("MachinesAlreadyOwned", fmt.Sprintf("Machine %s belongs to %s %s", m.GetMetadata().GetName(), owner.GetKind(),
				owner.GetName()))
			continue
		}
		c.members = append(c.members, &member{
			m: m, index: controlplane.Index(m.GetMetadata().GetName()),
			domain: c.domains.Of(m.GetSpec().GetProviderSpec().GetValue()), deleting: object.Deleting(m),
		})
	}
}

const noIndex = controlplane.NoIndex

// mapMembers says the domain of each index, and gives machines without an index in their name one whose
// domain fits.
func (c *controlPlane) mapMembers() {
	have := map[int]placement{}
	newest := map[int]time.Time{}
	for _, m := range c.members {
		if m.index == noIndex {
			continue
		}
		p, known := have[m.index]
		created := m.m.GetMetadata().GetCreationTimestamp().AsTime()
		// A machine that stays speaks for its index before one that goes; among equals the newest does.
		if !known || p.OnlyDeleting && !m.deleting || p.OnlyDeleting == m.deleting && !created.Before(newest[m.index]) {
			have[m.index], newest[m.index] = placement{Domain: m.domain, OnlyDeleting: m.deleting}, created
		}
	}
	c.mapping = mapDomains(c.domains.List(), c.want, have)
	for _, m := range c.members {
		if m.index == noIndex {
			m.index = c.freeIndex(m.domain)
		}
		if m.index == noIndex {
			c.stop("UnknownIndex", fmt.Sprintf("Machine %s has no index in its name, and no index is free in its failure domain",
				m.name()))
			continue
		}
		c.byIndex[m.index] = append(c.byIndex[m.index], m)
	}
	for i := range c.mapping {
		c.byIndex[i] = append([]*member{}, c.byIndex[i]...)
	}
}

func (c *controlPlane) freeIndex(d Domain) int {
	for _, i := range slices.Sorted(maps.Keys(c.mapping)) {
		taken := slices.ContainsFunc(c.members, func(m *member) bool { return m.index == i })
		if !taken && c.mapping[i] == d {
			return i
		}
	}
	return noIndex
}

func (c *controlPlane) judge(m *member) {
	want := c.domains.Inject(c.t.GetSpec().GetProviderSpec().GetValue(), c.mapping[m.index])
	m.updated = proto.Equal(want, m.m.GetSpec().GetProviderSpec().GetValue())
	m.joined = m.m.GetStatus().GetNodeRef() != nil
	m.failed = m.m.GetStatus().GetPhase() == PhaseFailed
	node := linkedNode(c.v.Nodes, m.m)
	isReady, since := readySince(node)
	phase := m.m.GetStatus().GetPhase()
	m.sound = !m.deleting && phase == PhaseRunning && node != nil && isReady
	rebooting := phase == PhaseRunning && node != nil && since.Unix() > 0 && c.v.Now.Sub(since) < rebootAllowance &&
		!c.fresh(m)
	m.ready = m.sound || !m.deleting && rebooting || m.deleting && node != nil && isReady
	if rebooting && !isReady {
		c.wakeAt(since.Add(rebootAllowance))
	}
}

// fresh reports whether a machine's node may never have been ready: then no reboot excuses it.
func (c *controlPlane) fresh(m *member) bool {
	return c.v.Now.Sub(m.m.GetMetadata().GetCreationTimestamp().AsTime()) < rebootAllowance
}

func (c *controlPlane) wakeAt(t time.Time) {
	if c.waits.IsZero() || t.Before(c.waits) {
		c.waits = t
	}
}

// acts reports whether the set may do anything at all.
func (c *controlPlane) acts() bool {
	return c.v.Set.GetSpec().GetState() == stateActive && !object.Deleting(c.v.Set)
}

// check returns why nothing must be done now.
func (c *controlPlane) check() (message, reason string) {
	if c.noneReady() {
		return "No ready control plane machines found", "NoReadyMachines"
	}
	if stray := c.unmanaged(); len(stray) > 0 {
		return fmt.Sprintf("Found %d unmanaged node(s): %s", len(stray), names(stray)), "UnmanagedNodes"
	}
	if n := len(c.byIndex); n > c.want {
		return fmt.Sprintf("Observed %d index(es) in excess", n-c.want), "ExcessIndexes"
	}
	if n := c.excessUpdated(); n > 0 {
		return fmt.Sprintf("Observed %d updated machine(s) in excess for %d index(es)", n, len(c.byIndex)),
			"ExcessUpdatedReplicas"
	}
	if failed := c.failedReplacements(); len(failed) > 0 {
		return fmt.Sprintf("Observed %d replacement machine(s) in error state: %s", len(failed), names(failed)),
			"FailedReplacement"
	}
	return "", ""
}

// noneReady reports whether a control plane that once worked has no ready machine. One that is only being made is no
// cause for alarm.
func (c *controlPlane) noneReady() bool {
	worked := false
	for _, m := range c.members {
		if m.ready {
			return false
		}
		worked = worked || m.joined && !c.fresh(m)
	}
	return worked
}

// unmanaged returns the control-plane nodes without a machine.
func (c *controlPlane) unmanaged() []string {
	var out []string
	for name, n := range c.v.Nodes {
		if !isControlPlaneNode(n) || c.managed(n) {
			continue
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

func (c *controlPlane) managed(n *nodev1.Node) bool {
	return slices.ContainsFunc(c.v.Machines, func(m *machinev1.Machine) bool {
		return linkedNode(c.v.Nodes, m) == n || IsNodeOf(n, m, m.GetSpec().GetProviderId())
	})
}

func (c *controlPlane) excessUpdated() (n int) {
	if c.v.Set.GetSpec().GetStrategy().GetType() != strategyOnDelete {
		return 0
	}
	for _, list := range c.byIndex {
		if ready := c.filter(list, func(m *member) bool { return m.updated && m.sound }); len(ready) > 1 {
			n += len(ready) - 1
		}
	}
	return n
}

// failedReplacements returns the failed machines that were to replace another. Nothing more is tried until a user
// deletes them: the next would fail as well.
func (c *controlPlane) failedReplacements() []string {
	var out []string
	for _, list := range c.byIndex {
		for _, m := range list {
			if m.failed && m.updated && !m.deleting && len(list) > 1 {
				out = append(out, m.name())
			}
		}
	}
	slices.Sort(out)
	return out
}

func (c *controlPlane) filter(list []*member, want func(*member) bool) (out []*member) {
	for _, m := range list {
		if want(m) {
			out = append(out, m)
		}
	}
	return out
}

func (c *controlPlane) indexStates() {
	for _, i := range slices.Sorted(maps.Keys(c.byIndex)) {
		s := IndexState{Index: i, Domain: c.mapping[i]}
		for _, m := range c.byIndex[i] {
			s.Machines = append(s.Machines, m.m)
		}
		c.p.Indexes = append(c.p.Indexes, s)
	}
}

// decide says for each index what is to be deleted and what is to be made. Indexes without a machine come before those
// whose machine goes, and these before those whose machine only is outdated.
func (c *controlPlane) decide() {
	c.p.Adopt = c.orphans
	var wanted []creation
	for _, i := range slices.Sorted(maps.Keys(c.byIndex)) {
		c.replaced(c.byIndex[i])
		if w, ok := c.creation(i, c.byIndex[i]); ok {
			wanted = append(wanted, w)
		}
	}
	slices.SortStableFunc(wanted, func(a, b creation) int { return cmp.Compare(a.urgency, b.urgency) })
	surge := len(c.members) - c.want
	for _, w := range wanted {
		if !w.unlimited && surge >= maxSurge {
			c.hold(actionCreate, w.object, fmt.Sprintf("%s; but %s for %d replicas", w.reason, c.present(), c.want), "")
			continue
		}
		surge++
		c.create(w)
	}
}

// present says how many machines there are, and how many this plan creates.
func (c *controlPlane) present() string {
	if n := len(c.p.Create); n > 0 {
		return fmt.Sprintf("there are %d machines already, and %d to be created now,", len(c.members), n)
	}
	return fmt.Sprintf("there are %d machines already", len(c.members))
}

// creation is a machine to create for an index.
type creation struct {
	index     int
	urgency   int
	reason    string
	object    *metav1.ObjectReference // what it would replace, or the set
	unlimited bool                    // the number of machines does not matter
}

// creation returns the machine to create for an index, if any.
func (c *controlPlane) creation(i int, list []*member) (creation, bool) {
	onDelete := c.v.Set.GetSpec().GetStrategy().GetType() == strategyOnDelete
	if len(list) == 0 {
		return creation{i, 0, fmt.Sprintf("index %d has no machine", i), object.Reference(c.v.Set), onDelete}, true
	}
	if fresh := c.filter(list, func(m *member) bool { return m.updated && !m.deleting }); len(fresh) > 0 {
		old := c.filter(list, func(m *member) bool { return m != fresh[0] && !m.deleting })
		if m := fresh[0]; !m.sound && len(old) > 0 {
			c.hold(actionDelete, reference(c.oldest(old).m), fmt.Sprintf("its replacement %s is not ready yet", m.name()), "")
		}
		return creation{}, false
	}
	old := c.filter(list, func(m *member) bool { return !m.deleting })
	if len(old) == 0 {
		return creation{i, 1, fmt.Sprintf("machine %s is being deleted", list[0].name()), reference(list[0].m), onDelete},
			true
	}
	if onDelete {
		c.hold(actionCreate, reference(old[0].m),
			fmt.Sprintf("machine %s is not as the template says, and the strategy is OnDelete", old[0].name()),
			"delete the machine to trigger a replacement")
		return creation{}, false
	}
	return creation{
			i, 2, fmt.Sprintf("machine %s is not as the template says", old[0].name()), reference(old[0].m),
			false,
		},
		true
}

func (c *controlPlane) oldest(list []*member) *member {
	return slices.MinFunc(list, func(a, b *member) int {
		return a.m.GetMetadata().GetCreationTimestamp().AsTime().Compare(b.m.GetMetadata().GetCreationTimestamp().AsTime())
	})
}

// replaced deletes the machines of an index whose replacement has come.
func (c *controlPlane) replaced(list []*member) {
	keep := c.keeper(list)
	for _, m := range list {
		switch {
		case m.deleting, m == keep:
		case keep != nil && (!m.updated || m.sound):
			c.remove(m, fmt.Sprintf("its replacement %s is ready", keep.name()))
		case keep == nil && !m.updated && !m.joined && len(list) > 1:
			// It was made from a template that has changed since, and never worked: nothing depends on it.
			c.remove(m, "it is a replacement that never joined, and the template has changed since")
		}
	}
}

// keeper returns the machine of an index that others may go for, or nil: the newest that is sound and as the template
// says. Where the template changed while a replacement came, so that none is as it says, a sound one still lets the
// rest go: otherwise there would permanently be one machine too many, and no room for the next replacement.
func (c *controlPlane) keeper(list []*member) *member {
	if good := c.filter(list, func(m *member) bool { return m.updated && m.sound }); len(good) > 0 {
		return c.newest(good)
	}
	staying := c.filter(list, func(m *member) bool { return !m.deleting })
	sound := c.filter(staying, func(m *member) bool { return m.sound })
	hopeful := slices.ContainsFunc(staying, func(m *member) bool { return m.updated })
	if hopeful || len(sound) == 0 || len(staying) < 2 {
		return nil
	}
	return c.newest(sound)
}

func (c *controlPlane) newest(list []*member) *member {
	return slices.MaxFunc(list, func(a, b *member) int {
		return a.m.GetMetadata().GetCreationTimestamp().AsTime().Compare(b.m.GetMetadata().GetCreationTimestamp().AsTime())
	})
}

func (c *controlPlane) remove(m *member, reason string) {
	c.p.Delete = append(c.p.Delete, Replaced{m.m, reason})
}

func (c *controlPlane) hold(action string, object *metav1.ObjectReference, reason, unblock string) {
	c.p.Held = append(c.p.Held, &metav1.HeldBack{Action: action, Object: object, Reason: reason, Unblock: unblock})
}

func (c *controlPlane) create(w creation) {
	t := proto.Clone(c.t).(*machinev1.OpenShiftMachineV1Beta1MachineTemplate)
	spec := t.GetSpec()
	spec.ProviderSpec = &machinev1.ProviderSpec{
		Value: c.domains.Inject(spec.GetProviderSpec().GetValue(), c.mapping[w.index]),
	}
	c.p.Create = append(c.p.Create, Creation{
		Index: w.index, Domain: c.mapping[w.index], Reason: w.reason,
		Machine: &machinev1.Machine{
			Metadata: &metav1.ObjectMeta{
				Namespace: c.v.Set.GetMetadata().GetNamespace(), Labels: t.GetMetadata().GetLabels(),
				Annotations:     t.GetMetadata().GetAnnotations(),
				OwnerReferences: []*metav1.OwnerReference{object.OwnedBy(c.v.Set)},
			},
			Spec: spec,
		},
	})
}

// status returns the status of the control plane.
func (c *controlPlane) status() {
	s := &machinev1.ControlPlaneMachineSetStatus{}
	if old := c.v.Set.GetStatus(); old != nil {
		s = proto.Clone(old).(*machinev1.ControlPlaneMachineSetStatus)
	}
	var ready, updated, outdated, unavailable int32
	for _, m := range c.members {
		if m.ready {
			ready++
		}
		if m.ready && m.updated {
			updated++
		}
		if !m.updated && !m.deleting {
			outdated++
		}
	}
	for _, list := range c.byIndex {
		if !slices.ContainsFunc(list, func(m *member) bool { return m.ready }) {
			unavailable++
		}
	}
	s.Replicas, s.ReadyReplicas = proto.Int32(int32(len(c.members))), proto.Int32(ready)
	s.UpdatedReplicas, s.UnavailableReplicas = proto.Int32(updated), proto.Int32(unavailable)
	s.ObservedGeneration = proto.Int32(c.v.Set.GetMetadata().GetGeneration())
	for _, cond := range []*metav1.Condition{c.available(unavailable), c.degraded(), c.progressing(outdated)} {
		cond.ObservedGeneration = s.ObservedGeneration
		s.Conditions = object.SetCondition(s.Conditions, cond, c.v.Now)
	}
	c.p.Status, c.p.Wake = s, c.waits
}

func (c *controlPlane) available(missing int32) *metav1.Condition {
	if missing == 0 {
		return condition(Available, conditionTrue, "", "AllReplicasAvailable", "")
	}
	return condition(Available, conditionFalse, "", "UnavailableReplicas", fmt.Sprintf("Missing %d available replica(s)",
		missing))
}

func (c *controlPlane) degraded() *metav1.Condition {
	if c.fault == "" {
		return condition(Degraded, conditionFalse, "", "AsExpected", "")
	}
	return condition(Degraded, conditionTrue, "", c.reason, c.fault)
}

func (c *controlPlane) progressing(outdated int32) *metav1.Condition {
	excess, missing := len(c.members)-c.want, c.want-len(c.members)
	switch {
	case c.fault != "":
		return condition(Progressing, conditionFalse, "", "OperatorDegraded", "")
	case missing > 0:
		return condition(Progressing, conditionTrue, "", "NeedsUpdateReplicas", fmt.Sprintf("Observed %d missing replica(s)",
			missing))
	case outdated > 0:
		return condition(Progressing, conditionTrue, "", "NeedsUpdateReplicas",
			fmt.Sprintf("Observed %d replica(s) in need of update", outdated))
	case excess > 0:
		return condition(Progressing, conditionTrue, "", "ExcessReplicas",
			fmt.Sprintf("Waiting for %d old replica(s) to be removed", excess))
	}
	return condition(Progressing, conditionFalse, "", "AllReplicasUpdated", "")
}

// Actions returns what a plan does in the form of the Plan method.
func (p ControlPlanePlan) Actions() []*metav1.PlannedAction {
	var out []*metav1.PlannedAction
	for _, m := range p.Adopt {
		out = append(out, &metav1.PlannedAction{
			Action: actionAdopt, Object: reference(m),
			Reason: "it matches the selector and has no owner",
		})
	}
	for _, d := range p.Delete {
		out = append(out, &metav1.PlannedAction{Action: actionDelete, Object: reference(d.Machine), Reason: d.Reason})
	}
	for _, c := range p.Create {
		details := map[string]string{"index": strconv.Itoa(c.Index)}
		if c.Domain != "" {
			details["failureDomain"] = string(c.Domain)
		}
		out = append(out, &metav1.PlannedAction{Action: actionCreate, Object: &metav1.ObjectReference{
			ApiVersion: machineAPIVersion, Kind: machineKind, Namespace: c.Machine.GetMetadata().GetNamespace(),
		}, Reason: c.Reason, Details: details})
	}
	return out
}
