package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/controlplane"
	"github.com/windlass-dev/windlass/kit/nodeid"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
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
	Now time.Time
	Set *machinev1.ControlPlaneMachineSet
	// Machines are those of the set's namespace that its selector matches or that a control-plane node may be of, at
	// least; ordered by name.
	Machines []*machinev1.Machine
	Nodes    map[string]*nodev1.Node // by name: those of Machines, and all of the control plane, at least
	// Unseen is why the nodes are not known as they are now; empty if they are. Then no machine is deleted: its
	// replacement may be gone again.
	Unseen string
	// DomainFields says where a provider spec has the settings of a failure domain, where it is not at the same path.
	DomainFields map[string]string
	// Platform of the cluster; failure domains must be of it. Empty means that any platform will do.
	Platform string
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

// MemberState is one machine of the control plane.
type MemberState struct {
	Machine  *machinev1.Machine
	Index    int    // -1 if it has none
	Domain   Domain // in its provider spec
	Outdated string // why it is to be replaced; empty if it is as the template says
	Changes  []string
	Ready    bool
}

// IndexState is one index of the control plane.
type IndexState struct {
	Index    int
	Domain   Domain
	Machines []*machinev1.Machine
}

// ControlPlanePlan is what a control-plane machine set does now.
type ControlPlanePlan struct {
	Indexes []IndexState  // ascending
	Members []MemberState // by name
	Adopt   []*machinev1.Machine
	Delete  []Replaced
	Create  []Creation
	Held    []*metav1.HeldBack
	Status  *machinev1.ControlPlaneMachineSetStatus
	Reason  string  // why nothing is done, in one word; empty if nothing is wrong
	Fault   string  // the same for people
	Events  []Event // to record with the status
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
	c.p.Reason, c.p.Fault = c.reason, c.fault
	c.p.Events = controlPlaneEvents(v.Set.GetStatus(), c.p.Status)
	return c.p
}

// controlPlaneEvents returns the events of a change of status: what stops the set, and a machine that has failed.
func controlPlaneEvents(old, now *machinev1.ControlPlaneMachineSetStatus) []Event {
	var out []Event
	for _, typ := range []string{Degraded, Progressing} {
		was, is := object.FindCondition(old.GetConditions(), typ), object.FindCondition(now.GetConditions(), typ)
		bad := is.GetStatus() == conditionTrue && (typ == Degraded || is.GetReason() == reasonFailedReplicas)
		if bad && (was.GetReason() != is.GetReason() || was.GetMessage() != is.GetMessage()) {
			out = append(out, Event{"Warning", is.GetReason(), is.GetMessage()})
		}
	}
	return out
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
	outdated string   // why it is not updated
	changes  []string // parts of the template that it differs from, and that apply to new machines only
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
	specs   map[Domain]*structpb.Struct // provider specs by domain
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
		byIndex: map[int][]*member{}, specs: map[Domain]*structpb.Struct{},
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
	bad = append(PlatformFaults(c.t.GetFailureDomains(), c.v.Platform, "failureDomains"),
		SpecDomainFaults(c.t, "failureDomains")...)
	if len(bad) > 0 {
		c.stop(reasonInvalidConfiguration, bad[0].String())
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
	have := map[int]indexDomain{}
	newest := map[int]time.Time{}
	for _, m := range c.members {
		if m.index == noIndex {
			continue
		}
		p, known := have[m.index]
		created := m.m.GetMetadata().GetCreationTimestamp().AsTime()
		// A machine that stays speaks for its index before one that goes; among equals the newest does.
		if !known || p.OnlyDeleting && !m.deleting || p.OnlyDeleting == m.deleting && !created.Before(newest[m.index]) {
			have[m.index], newest[m.index] = indexDomain{Domain: m.domain, OnlyDeleting: m.deleting}, created
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
		if c.mapping[i] == d && !slices.ContainsFunc(c.members, func(m *member) bool { return m.index == i }) {
			return i
		}
	}
	return noIndex
}

// wanted returns the provider spec of a machine in a domain.
func (c *controlPlane) wanted(d Domain) *structpb.Struct {
	if c.specs[d] == nil {
		c.specs[d] = c.domains.Inject(c.t.GetSpec().GetProviderSpec().GetValue(), d)
	}
	return c.specs[d]
}

func (c *controlPlane) judge(m *member) {
	m.outdated = c.outdated(m)
	m.updated = m.outdated == ""
	m.changes = templateChanges(c.t, m.m)
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

// outdated returns why a machine is to be replaced; empty if it is as the template says.
func (c *controlPlane) outdated(m *member) string {
	switch want := c.mapping[m.index]; {
	case m.index == noIndex:
		return "it has no index"
	case c.restart() != "" && m.m.GetMetadata().GetAnnotations()[AnnotationRestart] != c.restart():
		return fmt.Sprintf("a restart was requested at %s", c.restart())
	case len(c.domains.list) > 0 && m.domain != want:
		return fmt.Sprintf("it is in failure domain %s, and index %d belongs to %s", m.domain, m.index, want)
	case !proto.Equal(c.wanted(want), m.m.GetSpec().GetProviderSpec().GetValue()):
		return "its provider spec differs from the template"
	}
	return ""
}

// restart returns when a restart of all machines was last requested, as the template has it.
func (c *controlPlane) restart() string { return c.t.GetMetadata().GetAnnotations()[AnnotationRestart] }

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
	if in := c.excessUpdated(); len(in) > 0 {
		var list []string
		for _, i := range in {
			n := len(c.filter(c.byIndex[i], func(m *member) bool { return m.updated && m.sound })) - 1
			list = append(list, fmt.Sprintf("%d updated machine(s) in excess for index %d", n, i))
		}
		return "Observed " + strings.Join(list, ", "), "ExcessUpdatedReplicas"
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
	o := c.owners()
	for name, n := range c.v.Nodes {
		if IsControlPlaneNode(n) && !o.manage(n) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// owners are the machines that a node may be of, by what the node says of itself.
type owners struct {
	linked            map[*nodev1.Node]bool
	byUID, byProvider map[string]*machinev1.Machine
}

func (c *controlPlane) owners() owners {
	o := owners{map[*nodev1.Node]bool{}, map[string]*machinev1.Machine{}, map[string]*machinev1.Machine{}}
	for _, m := range c.v.Machines {
		o.byUID[m.GetMetadata().GetUid()], o.byProvider[m.GetSpec().GetProviderId()] = m, m
		if n := linkedNode(c.v.Nodes, m); n != nil {
			o.linked[n] = true
		}
	}
	return o
}

func (o owners) manage(n *nodev1.Node) bool {
	if o.linked[n] {
		return true
	}
	for _, m := range []*machinev1.Machine{
		o.byUID[n.GetMetadata().GetAnnotations()[nodeid.MachineUID]], o.byProvider[n.GetSpec().GetProviderId()],
	} {
		if m != nil && IsNodeOf(n, m, m.GetSpec().GetProviderId()) {
			return true
		}
	}
	return false
}

// excessUpdated returns the indexes with more than one machine that is ready and up to date, ascending.
func (c *controlPlane) excessUpdated() (in []int) {
	if c.v.Set.GetSpec().GetStrategy().GetType() != strategyOnDelete {
		return nil
	}
	for _, i := range slices.Sorted(maps.Keys(c.byIndex)) {
		if len(c.filter(c.byIndex[i], func(m *member) bool { return m.updated && m.sound })) > 1 {
			in = append(in, i)
		}
	}
	return in
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
	for _, m := range c.members {
		c.p.Members = append(c.p.Members, MemberState{
			Machine: m.m, Index: m.index, Domain: c.domains.Observed(m.m.GetSpec().GetProviderSpec().GetValue()),
			Outdated: m.outdated, Changes: m.changes, Ready: m.ready,
		})
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
	if c.v.Unseen != "" {
		c.hold(actionDelete, reference(m.m), "the nodes are not known: "+c.v.Unseen, "")
		c.wakeAt(c.v.Now.Add(lookAgain))
		return
	}
	c.p.Delete = append(c.p.Delete, Replaced{m.m, reason})
}

func (c *controlPlane) hold(action string, object *metav1.ObjectReference, reason, unblock string) {
	c.p.Held = append(c.p.Held, &metav1.HeldBack{Action: action, Object: object, Reason: reason, Unblock: unblock})
}

func (c *controlPlane) create(w creation) {
	t := proto.Clone(c.t).(*machinev1.OpenShiftMachineV1Beta1MachineTemplate)
	spec := t.GetSpec()
	spec.ProviderSpec = &machinev1.ProviderSpec{
		Value: proto.Clone(c.wanted(c.mapping[w.index])).(*structpb.Struct),
	}
	c.p.Create = append(c.p.Create, Creation{
		Index: w.index, Domain: c.mapping[w.index], Reason: w.reason,
		Machine: &machinev1.Machine{
			Metadata: &metav1.ObjectMeta{
				Namespace: c.v.Set.GetMetadata().GetNamespace(), Labels: t.GetMetadata().GetLabels(),
				Annotations:     withTemplateRecord(t.GetMetadata().GetAnnotations(), c.t),
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
	var ready, updated, unavailable int32
	for _, m := range c.members {
		if m.ready {
			ready++
		}
		if m.ready && m.updated {
			updated++
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
	for _, cond := range []*metav1.Condition{c.available(unavailable), c.degraded(), c.progressing()} {
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
