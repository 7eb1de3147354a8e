package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/spans"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// Action is one thing to be done for a machine. Every action may be repeated without harm.
type Action string

// The actions of a machine's life, in the order in which they come.
const (
	CreateInstance Action = "CreateInstance"
	// asks the provider for an instance that the copy does not show
	GetInstance Action = "GetInstance"
	// labels, annotations and taints of the machine's spec onto its node, which may take pods from then on
	UpdateNode  Action = "UpdateNode"
	CreateDrain Action = "CreateDrain"
	// also uses the machine's token up, so that no creation that is still under way makes an instance
	DeleteInstance  Action = "DeleteInstance"
	RevokeMachine   Action = "RevokeMachine" // its certificates are refused from then on
	DeleteNode      Action = "DeleteNode"
	DeleteDrain     Action = "DeleteDrain"
	RemoveFinalizer Action = "RemoveFinalizer"
)

// MachineView is everything that the next step of a machine depends on.
type MachineView struct {
	Now     time.Time
	Machine *machinev1.Machine

	Instance *providerv1.Instance // nil if there is none
	// the provider itself said that there is none, of a machine that is being deleted after it had used its token up;
	// never set together with Instance
	InstanceGone bool
	InstanceErr  string // why the provider could not say; empty if it could
	Doubted      bool   // the provider has one that cannot be the machine's, as InstanceErr says
	// why the last attempt to create it did not succeed; empty if it did, or there was none
	CreateErr string
	// why the provider, or the lack of one, makes creation impossible for good; empty if it does not
	Refused string
	// why no provider can be asked, as none understands the machine's provider spec; empty if one does
	NoProvider string
	Provider   string // name of the provider that is asked; empty if there is none
	// the calls to the provider
	Creation, Lookup, Deletion Call

	Node      *nodev1.Node // the machine's node; nil if there is none
	NodesSeen bool         // false while the nodes are unknown
	Drain     *nodev1.Drain

	// the steps that failed without a success since, with every attempt; those that are no longer needed are ignored
	Failures []*machinev1.StepFailure
	Faults   []Fault // the questions that failed when this was observed

	// for how long the states that the last plan named have been seen; not needed if Exact is set: Now and the times of
	// the objects are of one clock
	Seen  spans.Seen
	Exact bool
}

// MachinePlan is the outcome of one decision.
type MachinePlan struct {
	Status      *machinev1.MachineStatus // whole; write it before acting
	ProviderID  string                   // for the machine's spec
	Labels      map[string]string        // to be set on the machine
	Annotations map[string]string        // to be set on the machine
	Actions     []Action                 // to be done now, in this order; stop at the first that fails
	WaitsFor    string                   // in one line; empty if for nothing
	Events      []Event                  // to record if the status changed
	Wake        time.Time                // when to look again even if nothing changes; zero means never
	Failures    []*machinev1.StepFailure // the steps that fail at present; the status has them as they were stored
	States      spans.Seen               // keys of the states whose durations count: Seen of the next view
}

// Next returns the next step of a machine. It does not modify v.
func Next(v MachineView) MachinePlan {
	n := &next{
		v: v, m: v.Machine, status: &machinev1.MachineStatus{},
		clock: spans.Clock{Now: v.Now, Seen: v.Seen, Exact: v.Exact},
	}
	if s := v.Machine.GetStatus(); s != nil {
		n.status = proto.Clone(s).(*machinev1.MachineStatus)
	}
	n.p.ProviderID = v.Machine.GetSpec().GetProviderId()
	n.hooks()
	n.instance()
	paused := OtherAPI(v.Machine.GetSpec())
	n.status.Conditions = pausedCondition(n.status.Conditions, paused, v.Now)
	switch {
	case paused: // its deletion waits too: the other API decides about the instance
		n.p.WaitsFor = "spec.authoritativeAPI to be MachineAPI again"
	case object.Deleting(v.Machine):
		n.deleting()
	case n.status.GetPhase() == PhaseFailed:
		n.p.WaitsFor = "deletion by a user: it has failed permanently"
	default:
		n.living()
	}
	n.failures()
	n.finish()
	return n.p
}

// OtherAPI reports whether another API is authoritative for an object with this spec: machine-api then does nothing to
// it, and does not delete it either. Source: OpenShift's migration of machines between APIs.
func OtherAPI(spec interface{ GetAuthoritativeApi() string }) bool {
	a := spec.GetAuthoritativeApi()
	return a != "" && a != authoritativeMachineAPI
}

// pausedCondition returns conditions with Paused while another API is authoritative, and without it otherwise.
func pausedCondition(list []*metav1.Condition, paused bool, now time.Time) []*metav1.Condition {
	if paused {
		return object.SetCondition(list, condition(conditionPaused, conditionTrue, "", reasonOtherAPI, pausedMessage), now)
	}
	return without(list, conditionPaused)
}

// without returns conditions without the one of a type. It does not modify list.
func without(list []*metav1.Condition, typ string) []*metav1.Condition {
	return slices.DeleteFunc(slices.Clone(list), func(c *metav1.Condition) bool { return c.GetType() == typ })
}

// next is one call of Next.
type next struct {
	v      MachineView
	m      *machinev1.Machine
	status *machinev1.MachineStatus
	clock  spans.Clock
	p      MachinePlan
}

func (n *next) set(c *metav1.Condition) {
	n.status.Conditions = object.SetCondition(n.status.Conditions, c, n.v.Now)
}

func (n *next) do(a ...Action) { n.p.Actions = append(n.p.Actions, a...) }

func (n *next) tell(typ, reason, message string) {
	n.p.Events = append(n.p.Events, Event{typ, reason, message})
}

// hooks sets the conditions that say whether hooks are in the way, as they also do for machines that live on.
func (n *next) hooks() {
	h := n.m.GetSpec().GetLifecycleHooks()
	n.set(hookCondition(Drainable, "Drain", h.GetPreDrain()))
	n.set(hookCondition(Terminable, "Terminate", h.GetPreTerminate()))
}

func hookCondition(typ, operation string, hooks []*machinev1.LifecycleHook) *metav1.Condition {
	if len(hooks) == 0 {
		return condition(typ, conditionTrue, "", "", "")
	}
	return condition(typ, conditionFalse, severityWarning, "HookPresent",
		fmt.Sprintf("%s operation currently blocked by: %s", operation, hookList(hooks)))
}

// hookList prints hooks in the order in which they are stored.
func hookList(hooks []*machinev1.LifecycleHook) string {
	parts := make([]string, len(hooks))
	for i, h := range hooks {
		parts[i] = fmt.Sprintf("{Name:%s Owner:%s}", h.GetName(), h.GetOwner())
	}
	return "[" + strings.Join(parts, " ") + "]"
}

// instance takes over what the provider says.
func (n *next) instance() {
	i := n.v.Instance
	switch {
	case i == nil && gaveUpAddress(n.m): // an error is no news of it
		n.set(condition(InstanceExists, conditionFalse, severityWarning, reasonCannotFindInstance, instanceNotFoundMessage))
	case IsForgotten(n.m):
		n.set(condition(InstanceExists, conditionUnknown, "", Forgotten, "The provider is not asked any more"))
	case n.v.NoProvider != "" && i == nil && MayHaveInstance(n.m):
		n.set(condition(InstanceExists, conditionUnknown, "", reasonNoProvider, checkingProviderMessage+": "+
			n.v.NoProvider))
	case n.v.InstanceErr != "" && i == nil:
		n.set(condition(InstanceExists, conditionUnknown, "", "ErrorCheckingProvider", checkingProviderMessage+": "+
			n.v.InstanceErr))
	case i == nil && n.provisioned():
		n.set(condition(InstanceExists, conditionFalse, severityWarning, reasonCannotFindInstance, instanceNotFoundMessage))
	case i == nil:
		n.set(condition(InstanceExists, conditionFalse, severityWarning, "InstanceNotCreated",
			withCause(instanceNotCreatedMessage, cmp.Or(n.v.NoProvider, n.v.CreateErr))))
	default:
		n.seen(i)
	}
}

// IsForgotten reports whether a machine is deleted without its provider.
func IsForgotten(m *machinev1.Machine) bool {
	return object.Deleting(m) && object.IsTrue(m.GetStatus().GetConditions(), Forgotten)
}

// Forget notes in a machine's status that it is deleted without its provider, by whom and why.
func Forget(m *machinev1.Machine, user, reason string, now time.Time) {
	if m.Status == nil {
		m.Status = &machinev1.MachineStatus{}
	}
	m.Status.Conditions = object.SetCondition(m.Status.Conditions,
		condition(Forgotten, conditionTrue, "", "RequestedByUser", withCause("requested by "+user, reason)), now)
}

func (n *next) seen(i *providerv1.Instance) {
	if gaveUpAddress(n.m) {
		n.set(condition(InstanceExists, conditionTrue, "", reasonReappeared, instanceReappearedMessage))
	} else {
		n.set(condition(InstanceExists, conditionTrue, "", "", ""))
	}
	if n.status.GetPhase() == PhaseFailed && !object.Deleting(n.m) {
		return // it stays Failed even if its instance appears again
	}
	n.status.ProviderStatus = i.GetProviderStatus()
	if object.Deleting(n.m) {
		return // what it takes over could be another machine's by now, and is of no use
	}
	if len(i.GetAddresses()) > 0 {
		n.status.Addresses = i.GetAddresses()
	}
	if n.p.ProviderID == "" {
		n.p.ProviderID = i.GetProviderId()
	}
	n.p.Labels = map[string]string{}
	for k, v := range map[string]string{
		LabelInstanceType: i.GetInstanceType(), LabelRegion: i.GetRegion(),
		LabelZone: i.GetZone(),
	} {
		if v != "" {
			n.p.Labels[k] = v
		}
	}
	n.p.Annotations = map[string]string{AnnotationInstanceState: i.GetState()}
}

// provisioned reports whether there was an instance at some time.
func (n *next) provisioned() bool {
	return n.m.GetSpec().GetProviderId() != "" || len(n.m.GetStatus().GetAddresses()) > 0
}

// withCause returns text, and what is behind it if that is known.
func withCause(text, cause string) string {
	if cause == "" {
		return text
	}
	return text + ": " + cause
}

func (n *next) phase(p string) { n.status.Phase = proto.String(p) }

// fail ends the machine's life for good; only its deletion helps. event is the reason of the event.
func (n *next) fail(event, reason, message string) {
	n.phase(PhaseFailed)
	n.status.ErrorReason, n.status.ErrorMessage = proto.String(reason), proto.String(message)
	n.p.Annotations = map[string]string{AnnotationInstanceState: "Unknown"}
	n.p.WaitsFor = "deletion by a user: it has failed permanently"
	n.status.ProviderStatus = unknownState(n.status.GetProviderStatus())
	n.tell("Warning", event, message)
}

// unknownState returns a provider's status of an instance with its state, under either name that providers have for it,
// set to Unknown: the last known state is not the present one. A status without a state is returned as it is.
func unknownState(s *structpb.Struct) *structpb.Struct {
	for _, field := range []string{"instanceState", "vmState"} {
		if _, ok := s.GetFields()[field]; ok {
			s = proto.Clone(s).(*structpb.Struct)
			s.Fields[field] = structpb.NewStringValue("Unknown")
		}
	}
	return s
}

// living decides for a machine that is not being deleted.
func (n *next) living() {
	n.status.ErrorReason, n.status.ErrorMessage = nil, nil
	n.p.Wake = n.v.Now.Add(lookAgain)
	switch {
	case n.v.Instance == nil && !n.provisioned():
		n.unborn()
	case n.v.Instance == nil && n.v.NoProvider != "":
		n.p.WaitsFor = "a provider: " + n.v.NoProvider // it keeps the phase that it has
	case n.v.Instance == nil && n.v.InstanceGone:
		n.fail("InstanceMissing", reasonCannotFindInstance, cannotFindInstanceForMachine)
	case n.v.Instance == nil:
		n.p.WaitsFor = withCause("the provider to answer", n.v.InstanceErr) // it keeps the phase that it has
		if !n.v.Doubted {
			n.call(GetInstance, n.v.Lookup, vanishedPause)
		}
	default:
		n.born()
	}
}

func (n *next) unborn() {
	switch {
	case n.m.GetSpec().GetProviderSpec().GetValue() == nil:
		n.fail("FailedValidate", reasonInvalidConfiguration, providerSpecMissing)
	case n.v.Refused != "":
		n.fail("FailedValidate", reasonInvalidConfiguration, n.v.Refused)
	case n.v.InstanceErr != "":
		n.phase(PhaseProvisioning)
		n.p.WaitsFor = "the provider, whose instance cannot be this machine's: " + n.v.InstanceErr
		// its address may be that of a machine which is about to be gone, and no change of that one wakes this
		n.p.Wake = n.v.Now.Add(time.Second)
	case n.v.NoProvider != "":
		n.phase(PhaseProvisioning)
		n.p.WaitsFor = "a provider: " + n.v.NoProvider
	default:
		n.phase(PhaseProvisioning)
		n.p.WaitsFor = withCause("the provider to make its instance", n.v.CreateErr)
		n.operation(operationCreate, "Processing", n.v.CreateErr)
		if n.v.Provider != "" {
			n.p.Annotations = map[string]string{AnnotationProvider: n.v.Provider}
		}
		n.call(CreateInstance, n.v.Creation, vanishedPause)
	}
}

func (n *next) born() {
	if n.status.GetLastOperation().GetType() == operationCreate {
		n.operation(operationCreate, "Successful", "")
	}
	n.link()
	if n.status.GetNodeRef() == nil {
		n.phase(PhaseProvisioned)
		n.p.WaitsFor = "its node to join the cluster"
		if s := n.v.Instance.GetState(); s != "Running" && s != "" {
			n.p.WaitsFor = fmt.Sprintf("its instance to run (it is %s)", s)
		}
		n.p.WaitsFor = withCause(n.p.WaitsFor, n.v.Instance.GetMessage())
		return
	}
	n.phase(PhaseRunning)
	if n.v.Node == nil {
		n.p.WaitsFor = "its node to register again"
		return
	}
	if ready, _ := readySince(n.v.Node); !ready {
		n.p.WaitsFor = "its node to become ready"
	} else {
		n.p.Wake = time.Time{}
	}
	if !InStep(n.m, n.v.Node) {
		n.do(UpdateNode)
	}
}

// link notes the machine's node.
func (n *next) link() {
	if n.v.Node == nil {
		return
	}
	m := n.v.Node.GetMetadata()
	n.status.NodeRef = &metav1.ObjectReference{ApiVersion: "v1", Kind: "Node", Name: m.GetName(), Uid: m.GetUid()}
}

// deleting decides for a machine that is to go: hooks, drain, hooks, instance, node, and then the machine itself.
func (n *next) deleting() {
	n.phase(PhaseDeleting)
	n.p.Wake = n.v.Now.Add(lookAgain)
	n.status.ErrorReason, n.status.ErrorMessage = nil, nil
	n.link()
	if !object.IsTrue(n.status.Conditions, Drained) && !n.drained() {
		return
	}
	n.status.BlockingPods = nil
	if IsForgotten(n.m) {
		n.status.BlockingVolumes = nil // the provider is not asked for them
	} else if !n.detached() {
		return
	}
	if hooks := n.m.GetSpec().GetLifecycleHooks().GetPreTerminate(); len(hooks) > 0 {
		n.p.WaitsFor = waitsForHooks(hooks, "before its instance is deleted")
		return
	}
	n.end()
}

// AsksDrain reports whether the next step of a deletion depends on the drain: its owner is asked for it.
func AsksDrain(m *machinev1.Machine) bool {
	_, excluded := m.GetMetadata().GetAnnotations()[AnnotationExcludeDrain]
	return object.Deleting(m) && !object.IsTrue(m.GetStatus().GetConditions(), Drained) &&
		len(m.GetSpec().GetLifecycleHooks().GetPreDrain()) == 0 && !excluded
}

// drained takes the drain one step further and reports whether it is over. Hooks count for every machine, also for one
// without a node and for one that is excluded from draining.
func (n *next) drained() bool {
	if hooks := n.m.GetSpec().GetLifecycleHooks().GetPreDrain(); len(hooks) > 0 {
		n.p.WaitsFor = waitsForHooks(hooks, "before its node is drained")
		n.tell("Normal", "DrainBlocked", "Drain operation currently blocked by: "+hookList(hooks))
		return false
	}
	_, excluded := n.m.GetMetadata().GetAnnotations()[AnnotationExcludeDrain]
	switch {
	case excluded:
		return n.drainSkipped()
	case !n.v.NodesSeen:
		n.p.WaitsFor = "word of its node"
		n.p.Wake = n.askAgain(GetNode)
		return false
	case n.v.Node == nil && n.status.GetNodeRef() == nil:
		return n.drainSkipped()
	case n.v.Node == nil:
		n.set(condition(Drained, conditionTrue, "", "", drainedMessage+": the node is gone"))
		return true
	}
	return n.drain()
}

func (n *next) drainSkipped() bool {
	n.set(condition(Drained, conditionTrue, "", "", drainSkippedMessage))
	n.tell("Normal", "DrainSkipped", drainSkippedMessage)
	return true
}

func (n *next) drain() bool {
	d, node := n.v.Drain, n.v.Node.GetMetadata().GetName()
	n.beginDrain()
	if d == nil || object.Deleting(d) {
		n.tell("Normal", "DrainProceeds", fmt.Sprintf("Node drain proceeds: %s", node))
		n.p.WaitsFor = fmt.Sprintf("the drain of node %s", node)
		n.do(CreateDrain)
		n.status.BlockingPods = nil
		return false
	}
	if drainsAnother(d, n.v.Node) {
		n.p.WaitsFor = fmt.Sprintf("the drain of node %s, in place of one of an earlier node", node)
		n.set(condition(Drained, conditionFalse, severityInfo, "Draining", "the drain was of an earlier node of the machine"))
		n.do(DeleteDrain) // its end has this decided again
		n.status.BlockingPods = nil
		return false
	}
	message := d.GetStatus().GetMessage()
	switch d.GetStatus().GetPhase() {
	case "Succeeded":
		if n.failed(GetDrain) { // the copy shows a drain that may have been deleted since, and the node is in use again
			n.p.WaitsFor = fmt.Sprintf("word of the drain of node %s", node)
			n.p.Wake = n.askAgain(GetDrain)
			return false
		}
		n.unset(DrainTimedOut)
		n.set(condition(Drained, conditionTrue, "", "", drainedMessage))
		n.tell("Normal", "DrainSucceeded", "Node drain succeeded")
		return true
	case "Failed":
		n.set(condition(Drained, conditionFalse, severityWarning, "DrainError", "could not drain machine: "+message))
		n.tell("Warning", "DrainRequeued", "Node drain requeued: "+message)
	default:
		n.set(condition(Drained, conditionFalse, severityInfo, "Draining", message))
	}
	n.p.WaitsFor = withCause(fmt.Sprintf("the drain of node %s", node), message)
	return n.drainOverdue()
}

// drainsAnother reports whether a drain is of another node than the one that a machine has now: an agent registers its
// node again after a user has deleted it, and the pods of the new one were not evicted by the old drain.
func drainsAnother(d *nodev1.Drain, n *nodev1.Node) bool {
	spec, node := d.GetSpec(), n.GetMetadata()
	return spec.GetNodeUid() != "" && node.GetUid() != "" && spec.GetNodeUid() != node.GetUid() ||
		spec.GetNodeName() != "" && spec.GetNodeName() != node.GetName()
}

func waitsForHooks(hooks []*machinev1.LifecycleHook, when string) string {
	parts := make([]string, len(hooks))
	for i, h := range hooks {
		parts[i] = fmt.Sprintf("%s of %s", h.GetName(), h.GetOwner())
	}
	word := "hook"
	if len(hooks) > 1 {
		word = "hooks"
	}
	return fmt.Sprintf("%s %s, %s", word, names(parts), when)
}

// end removes the instance and, once it is gone, everything else.
func (n *next) end() {
	n.noteProvider()
	gone := n.v.InstanceGone || n.v.Instance == nil && !MayHaveInstance(n.m)
	switch {
	case IsForgotten(n.m) && n.v.NodesSeen:
		why := object.FindCondition(n.status.Conditions, Forgotten).GetMessage()
		n.operation("Delete", "Processing", "without the provider: "+why)
		n.tell("Warning", Forgotten, fmt.Sprintf("Machine %s goes without its provider, which may still have instance %s: %s",
			n.m.GetMetadata().GetName(), cmp.Or(n.p.ProviderID, "of it"), why))
		n.remove()
	case n.v.Instance != nil:
		n.p.WaitsFor = withCause(fmt.Sprintf("the provider to delete instance %s", n.v.Instance.GetProviderId()),
			cmp.Or(n.v.Deletion.Err, n.v.Instance.GetMessage()))
		n.call(DeleteInstance, n.v.Deletion, lookAgain)
	case !gone && !IsForgotten(n.m) && n.v.NoProvider != "":
		n.p.WaitsFor = "a provider: " + n.v.NoProvider
		n.p.Wake = n.v.Now.Add(lookAgain)
	case !gone && !IsForgotten(n.m):
		n.p.WaitsFor = withCause("the provider to answer", n.v.InstanceErr)
		n.call(DeleteInstance, n.v.Deletion, vanishedPause)
	case !n.v.NodesSeen:
		n.p.WaitsFor = "word of its node"
		n.p.Wake = n.askAgain(GetNode)
	default:
		n.tell("Normal", "Deleted", fmt.Sprintf("Machine %s is gone with its instance and node", n.m.GetMetadata().GetName()))
		n.remove()
	}
}

// noteProvider keeps which provider may have an instance of the machine, before the last operation, which an earlier
// version shows that by, changes.
func (n *next) noteProvider() {
	noted := n.m.GetMetadata().GetAnnotations()[AnnotationProvider] != "" || n.provisioned()
	if !noted && MayHaveInstance(n.m) {
		if n.v.Provider == "" && n.v.NoProvider != "" {
			return
		}
		if n.v.Provider != "" {
			n.p.Annotations = map[string]string{AnnotationProvider: n.v.Provider}
		}
	}
	n.operation("Delete", "Processing", "")
}

// remove takes everything away that the machine has in the cluster, and then the machine itself.
func (n *next) remove() {
	n.do(RevokeMachine) // before its node goes, or its agent's certificate could register it once more
	if n.v.Node != nil {
		n.do(DeleteNode)
	}
	if n.v.Drain != nil || n.status.GetNodeRef() != nil { // it may be there without having been seen yet
		n.do(DeleteDrain)
	}
	n.do(RemoveFinalizer)
}

func (n *next) operation(typ, state, description string) {
	n.status.LastOperation = &machinev1.LastOperation{
		Type: typ, State: state, Description: description, LastUpdated: n.status.GetLastOperation().GetLastUpdated(),
	}
}

// finish dates the status, which moves only if something in it changed.
func (n *next) finish() {
	old := n.m.GetStatus()
	if !proto.Equal(old.GetLastOperation(), n.status.GetLastOperation()) {
		n.status.LastOperation.LastUpdated = seconds(n.v.Now)
	}
	n.p.Status, n.p.States = n.status, n.clock.Used
	if !proto.Equal(old, n.status) {
		n.status.LastUpdated = seconds(n.v.Now)
	} else {
		n.p.Events = nil
	}
	n.p.Labels = missing(n.p.Labels, n.m.GetMetadata().GetLabels())
	n.p.Annotations = missing(n.p.Annotations, n.m.GetMetadata().GetAnnotations())
}

// missing returns what of want is not so in have.
func missing(want, have map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range want {
		if h, ok := have[k]; !ok || h != v {
			out[k] = v
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// InStep reports whether a node carries what the spec of its machine wants it to carry.
func InStep(m *machinev1.Machine, n *nodev1.Node) bool {
	labels, annotations, taints := NodeChange(m, n)
	return labels == nil && annotations == nil && taints == nil
}

// NodeChange returns the labels and annotations that are missing on a machine's node, and all its taints if one is
// missing or the node was not linked yet; nil where nothing is to be done. Nothing else is ever removed, and a taint
// with the same key and effect is left as it is.
func NodeChange(m *machinev1.Machine, n *nodev1.Node) (labels, annotations map[string]string, taints []*nodev1.Taint) {
	want := maps.Clone(m.GetSpec().GetMetadata().GetAnnotations())
	if want == nil {
		want = map[string]string{}
	}
	want[AnnotationMachine] = m.GetMetadata().GetNamespace() + "/" + m.GetMetadata().GetName()
	labels = missing(nodeLabels(m), n.GetMetadata().GetLabels())
	annotations = missing(want, n.GetMetadata().GetAnnotations())
	have := n.GetSpec().GetTaints()
	all := slices.DeleteFunc(slices.Clone(have), func(t *nodev1.Taint) bool { return t.GetKey() == taintUninitialized })
	changed := len(all) < len(have)
	for _, t := range m.GetSpec().GetTaints() {
		if !hasTaint(all, t) {
			all, changed = append(all, t), true
		}
	}
	if changed {
		taints = all
	}
	return labels, annotations, taints
}

// nodeLabels returns the labels that a machine gives its node: those of its spec, and where it is.
func nodeLabels(m *machinev1.Machine) map[string]string {
	out := map[string]string{}
	for _, p := range []struct{ of, today, old string }{
		{LabelRegion, LabelNodeRegion, LabelNodeRegionOld},
		{LabelZone, LabelNodeZone, LabelNodeZoneOld},
	} {
		if v := m.GetMetadata().GetLabels()[p.of]; v != "" {
			out[p.today], out[p.old] = v, v
		}
	}
	maps.Copy(out, m.GetSpec().GetMetadata().GetLabels())
	return out
}

func hasTaint(list []*nodev1.Taint, t *nodev1.Taint) bool {
	for _, have := range list {
		if have.GetKey() == t.GetKey() && have.GetEffect() == t.GetEffect() {
			return true
		}
	}
	return false
}
