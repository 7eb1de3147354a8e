package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/disruption"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/spans"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	policyProceed = "Proceed"
	mostBlocking  = 16 // pods and volumes that a machine lists: its status stays small
	longestWait   = 366 * 24 * time.Hour

	// what resolves a wait, in messages
	unblockPods = "make room in the disruption budget, or delete the pod"
	unblockWait = "detach them, or set spec.nodeVolumeDetachTimeout with spec.nodeTimeoutPolicy Proceed"
)

// timeout is one of the times of a machine's spec after which its deletion does not wait as before.
type timeout struct {
	field string // of the spec
	text  string // its value
	since *timestamppb.Timestamp
}

// length returns how long a timeout is; ok is false if it never passes.
func (t timeout) length() (d time.Duration, ok bool) {
	d, err := time.ParseDuration(t.text)
	return d, err == nil && d > 0 && t.since != nil // it may be empty; others are refused
}

// TimeoutFaults returns the timeouts of a machine's spec that are invalid beyond the rules of its proto. prefix ends
// with "spec.".
func TimeoutFaults(s *machinev1.MachineSpec, prefix string) []object.Fault {
	var out []object.Fault
	for _, t := range []timeout{
		{field: "nodeDrainTimeout", text: s.GetNodeDrainTimeout()},
		{field: "nodeVolumeDetachTimeout", text: s.GetNodeVolumeDetachTimeout()},
	} {
		if d, err := time.ParseDuration(cmp.Or(t.text, "0")); err != nil || d > longestWait {
			out = append(out, object.Fault{
				Path: prefix + t.field, Description: "must be a duration of at most 8784h, such as 10m",
			})
		}
	}
	return out
}

// passed reports whether a wait ends because its timeout has passed and the policy is to proceed. Otherwise it wakes
// the machine at the end of the timeout, and from then on the condition typ and what the machine waits for report that
// it has passed.
func (n *next) passed(typ string, t timeout, forced string) bool {
	d, ok := t.length()
	if !ok {
		n.unset(typ)
		return false
	}
	since := t.since.AsTime()
	at := n.clock.End(spans.Key(since, t.field), since, d)
	text := fmt.Sprintf("spec.%s %s passed at %s", t.field, t.text, since.Add(d).UTC().Format(time.RFC3339))
	// What an earlier leader found has passed still has.
	c := object.FindCondition(n.m.GetStatus().GetConditions(), typ)
	if known := strings.HasPrefix(c.GetMessage(), text); !known && n.v.Now.Before(at) {
		n.unset(typ)
		n.p.Wake = earliest(n.p.Wake, at)
		return false
	}
	if n.m.GetSpec().GetNodeTimeoutPolicy() == policyProceed && forced == "" {
		text += "; machine-api proceeded, as spec.nodeTimeoutPolicy Proceed requests"
		n.set(condition(typ, conditionTrue, "", "Proceeded", text))
		n.tell("Warning", typ, text)
		return true
	}
	text += "; the deletion waits, as " + cmp.Or(forced, "spec.nodeTimeoutPolicy is not Proceed")
	if !object.IsTrue(n.m.GetStatus().GetConditions(), typ) {
		n.tell("Warning", typ, text)
	}
	n.set(condition(typ, conditionTrue, "", "Waiting", text))
	n.p.WaitsFor += " (" + text + ")"
	return false
}

func (n *next) unset(typ string) { n.status.Conditions = without(n.status.Conditions, typ) }

// earliest returns the earlier of two times, of which a zero one counts as never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// cause returns the record of the deletion, to be changed.
func (n *next) cause() *machinev1.MachineDeletion {
	if n.status.Deletion == nil {
		n.status.Deletion = &machinev1.MachineDeletion{RequestTime: n.m.GetMetadata().GetDeletionTimestamp()}
	}
	return n.status.Deletion
}

// beginDrain records when the wait for the drain began.
func (n *next) beginDrain() {
	if c := n.cause(); c.GetNodeDrainStartTime() == nil {
		c.NodeDrainStartTime = seconds(n.v.Now)
	}
}

// drainOverdue reports whether the drain is no longer waited for, and takes over which pods block it.
func (n *next) drainOverdue() bool {
	blocked := n.v.Drain.GetStatus().GetBlockedPods()
	n.status.BlockingPods = blocked[:min(len(blocked), mostBlocking)]
	if len(blocked) > 0 {
		n.p.WaitsFor = fmt.Sprintf("the drain of node %s: %s; %s", n.v.Node.GetMetadata().GetName(),
			podsInLine(blocked), unblockPods)
	}
	forced := ""
	if Role(n.m) == RoleMaster || IsControlPlaneNode(n.v.Node) {
		forced = "it is a control-plane machine"
	}
	drainTimeout := timeout{
		"nodeDrainTimeout", n.m.GetSpec().GetNodeDrainTimeout(), n.cause().GetNodeDrainStartTime(),
	}
	if !n.passed(DrainTimedOut, drainTimeout, forced) {
		return false
	}
	left := object.FindCondition(n.status.Conditions, DrainTimedOut).GetMessage()
	if len(blocked) > 0 {
		left += "; left: " + podsInLine(blocked)
	}
	n.set(condition(Drained, conditionTrue, "", DrainTimedOut, "Node drain given up: "+left))
	n.tell("Warning", "DrainGivenUp", left)
	n.p.WaitsFor, n.status.BlockingPods = "", nil
	return true
}

// podsInLine describes pods that block a drain, in one line: each with the budgets that refuse its eviction and since
// when.
func podsInLine(list []*nodev1.BlockedPod) string {
	parts := make([]string, len(list))
	for i, p := range list {
		why := p.GetReason()
		if b := p.GetBudgets(); len(b) > 0 {
			why = "budget " + strings.Join(b, ", ")
		}
		parts[i] = fmt.Sprintf("%s/%s blocked by %s since %s", p.GetNamespace(), p.GetName(), why,
			p.GetSinceTime().AsTime().UTC().Format(time.RFC3339))
	}
	return names(parts)
}

// detached takes the wait for attached volumes one step further and reports whether it is over. It is never repeated
// once it is over: no pod of the node can attach one.
func (n *next) detached() bool {
	if object.IsTrue(n.status.Conditions, VolumesDetached) {
		return true
	}
	gone := n.v.InstanceGone || n.v.Instance == nil && !MayHaveInstance(n.m)
	if !gone && n.v.Node == nil && !n.v.NodesSeen {
		n.unset(VolumesTimedOut)
		n.set(condition(VolumesDetached, conditionUnknown, "", "NodeUnknown",
			"It is not known whether the node reports attached volumes"))
		n.p.WaitsFor = "word of its node, which may report attached volumes"
		n.p.Wake = n.askAgain(GetNode)
		return false
	}
	volumes := n.volumes()
	n.status.BlockingVolumes = volumes[:min(len(volumes), mostBlocking)]
	switch {
	case len(volumes) == 0 && !gone && n.v.Instance == nil && n.provisioned():
		return n.detachedUnseen()
	case len(volumes) == 0 && !gone && !n.v.Instance.GetVolumesKnown():
		n.unset(VolumesTimedOut)
		n.set(condition(VolumesDetached, conditionUnknown, "", "NotReported",
			"The node reports no attached volume, and the provider reports no volumes of the instance"))
		return true
	case len(volumes) == 0:
		n.unset(VolumesTimedOut)
		n.set(condition(VolumesDetached, conditionTrue, "", "", "No volume is attached"))
		return true
	case !disruption.WaitsOf(disruption.Ready(n.v.Node), n.confirmed()).Volumes:
		n.status.BlockingVolumes = nil
		n.set(condition(VolumesDetached, conditionTrue, "", "InstanceStopped",
			"The provider reports that the instance is stopped, so no volume is in use"))
		return true
	}
	c := n.cause()
	if c.GetVolumeDetachStartTime() == nil {
		c.VolumeDetachStartTime = seconds(n.v.Now)
		n.tell("Normal", "VolumesAttached", "The deletion waits for volumes to be detached: "+volumesInLine(volumes))
	}
	n.set(condition(VolumesDetached, conditionFalse, severityInfo, "VolumesAttached", "attached: "+
		volumesInLine(volumes)))
	n.p.WaitsFor = fmt.Sprintf("volumes to be detached since %s: %s; %s",
		c.GetVolumeDetachStartTime().AsTime().UTC().Format(time.RFC3339), volumesInLine(volumes), unblockWait)
	volumeTimeout := timeout{
		"nodeVolumeDetachTimeout", n.m.GetSpec().GetNodeVolumeDetachTimeout(), c.GetVolumeDetachStartTime(),
	}
	if !n.passed(VolumesTimedOut, volumeTimeout, "") {
		return false
	}
	n.set(condition(VolumesDetached, conditionTrue, "", VolumesTimedOut, "Given up: "+
		object.FindCondition(n.status.Conditions, VolumesTimedOut).GetMessage()+"; attached: "+volumesInLine(volumes)))
	n.p.WaitsFor, n.status.BlockingVolumes = "", nil
	return true
}

// detachedUnseen decides about the volumes of an instance that the copy does not show, although there was one. The
// copy can be behind or empty, so the provider itself is asked.
func (n *next) detachedUnseen() bool {
	n.unset(VolumesTimedOut)
	if n.v.Lookup.absent() {
		n.set(condition(VolumesDetached, conditionTrue, "", "NoInstance", "The provider has no instance of the machine"))
		return true
	}
	n.set(condition(VolumesDetached, conditionUnknown, "", "InstanceUnknown", withCause(
		"The provider has not said which volumes are attached", cmp.Or(n.v.NoProvider, n.v.InstanceErr))))
	switch {
	case n.v.Doubted:
		return true // it is another machine's instance, and its volumes are not this one's
	case n.v.NoProvider != "":
		n.p.WaitsFor = "a provider: " + n.v.NoProvider
	default:
		n.p.WaitsFor = withCause("the provider to answer which volumes are attached", n.v.InstanceErr)
		n.call(GetInstance, n.v.Lookup, vanishedPause)
	}
	return false
}

// confirmed returns what the provider confirms about the instance.
func (n *next) confirmed() disruption.Instance {
	switch {
	case n.v.InstanceGone, n.v.Instance.GetState() == "Stopped":
		return disruption.InstanceStopped
	case n.v.Instance != nil:
		return disruption.InstanceExists
	}
	return disruption.InstanceUnknown
}

// volumes returns what is attached to the instance: what the provider reports, and what the node reports beyond that.
func (n *next) volumes() []*machinev1.BlockingVolume {
	var out []*machinev1.BlockingVolume
	add := func(v *machinev1.BlockingVolume) {
		if !slices.ContainsFunc(out, func(o *machinev1.BlockingVolume) bool { return o.GetId() == v.GetId() }) {
			out = append(out, v)
		}
	}
	for _, v := range n.v.Instance.GetVolumes() {
		add(&machinev1.BlockingVolume{
			Id: v.GetId(), DevicePath: v.GetDevicePath(), AttachTime: proto.CloneOf(v.GetAttachTime()),
			ReportedBy: "Provider",
		})
	}
	for _, v := range n.v.Node.GetStatus().GetVolumesAttached() {
		add(&machinev1.BlockingVolume{Id: v.GetName(), DevicePath: v.GetDevicePath(), ReportedBy: "Node"})
	}
	for _, id := range n.v.Node.GetStatus().GetVolumesInUse() {
		add(&machinev1.BlockingVolume{Id: id, ReportedBy: "Node"})
	}
	return out
}

func volumesInLine(list []*machinev1.BlockingVolume) string {
	parts := make([]string, len(list))
	for i, v := range list {
		parts[i] = v.GetId()
		if d := v.GetDevicePath(); d != "" {
			parts[i] += " at " + d
		}
		if t := v.GetAttachTime(); t != nil {
			parts[i] += " since " + t.AsTime().UTC().Format(time.RFC3339)
		}
	}
	return names(parts)
}
