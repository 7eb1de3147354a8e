// Package plan decides which machines exist, in which failure domains, and what the next step of each is from creation
// to the end. It does no I/O and reads no clock: the same view always gives the same plan. A controller that acts on a
// plan writes its status first and acts afterwards, so that a crash in between only repeats the action.
package plan

import (
	"fmt"
	"strings"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Labels, annotations and finalizers of machines, spelled as OpenShift spells them.
const (
	LabelRole         = "machine.openshift.io/cluster-api-machine-role"
	LabelType         = "machine.openshift.io/cluster-api-machine-type"
	LabelCluster      = "machine.openshift.io/cluster-api-cluster"
	LabelInstanceType = "machine.openshift.io/instance-type"
	LabelRegion       = "machine.openshift.io/region"
	LabelZone         = "machine.openshift.io/zone"

	// What a node says of where it is, in the words of today and in those of the documents.
	LabelNodeRegion    = "topology.kubernetes.io/region"
	LabelNodeZone      = "topology.kubernetes.io/zone"
	LabelNodeRegionOld = "failure-domain.beta.kubernetes.io/region"
	LabelNodeZoneOld   = "failure-domain.beta.kubernetes.io/zone"

	AnnotationInstanceState = "machine.openshift.io/instance-state"
	AnnotationExcludeDrain  = "machine.openshift.io/exclude-node-draining"
	AnnotationDelete        = "machine.openshift.io/delete-machine"
	AnnotationDeleteOld     = "machine.openshift.io/cluster-api-delete-machine" // its former name
	AnnotationMachine       = "machine.openshift.io/machine"                    // on nodes: "<namespace>/<name>"

	// AnnotationProvider names the provider that was asked for the machine's instance, from before the first call on. Only
	// machine-api sets it.
	AnnotationProvider = "windlass.dev/provider"

	// AnnotationTemplate of a control-plane machine has a hash of each item of the template that the machine was created
	// with and that does not lead to its replacement: so an item that the template lost is known from one that a user
	// added.
	AnnotationTemplate = "windlass.dev/template"

	FinalizerMachine = "machine.machine.openshift.io"
	// holds a deleted set until its machines are let go
	FinalizerControlPlane = "controlplanemachineset.machine.openshift.io"
	// holds a deleted machine set while another API is authoritative for it
	FinalizerPaused = "windlass.dev/paused-machineset"

	// taintUninitialized keeps pods from a node until it carries what its machine wants.
	taintUninitialized = "node.cloudprovider.kubernetes.io/uninitialized"

	nodeLabelControlPlane = "node-role.kubernetes.io/control-plane"
	nodeLabelMaster       = "node-role.kubernetes.io/master"
)

// Roles of machines: the values of LabelRole.
const (
	RoleMaster = "master"
	RoleWorker = "worker"
)

// reasonInvalidConfiguration is the errorReason of an object that cannot work as it is written.
const reasonInvalidConfiguration = "InvalidConfiguration"

const (
	lookAgain      = 30 * time.Second // in case a change went unnoticed; every step is woken by one
	maxNamesInLine = 5                // more names would hide the rest of a message

	machineKind             = "Machine"
	machineAPIVersion       = "machine.openshift.io/v1beta1"
	authoritativeMachineAPI = "MachineAPI"

	conditionTrue    = "True"
	conditionFalse   = "False"
	conditionUnknown = "Unknown"
	severityWarning  = "Warning"
	severityInfo     = "Info"
	conditionPaused  = "Paused"
	reasonOtherAPI   = "AuthoritativeAPINotMachineAPI"
	pausedMessage    = "spec.authoritativeAPI names another API: nothing is done, and a deletion waits, until it is MachineAPI"

	reasonCannotFindInstance     = "InstanceMissing"
	cannotFindInstanceForMachine = "Can't find created instance."
	drainSkippedMessage          = "Node drain skipped"
	drainedMessage               = "Drain finished successfully"
	instanceNotCreatedMessage    = "Instance has not been created"
	instanceNotFoundMessage      = "Instance not found on provider"
	reasonReappeared             = "InstanceReappeared"
	instanceReappearedMessage    = "The provider reports the instance again, after it reported that it was gone"
	checkingProviderMessage      = "Failed to check if machine exists"
	reasonNoProvider             = "NoProvider"
	operationCreate              = "Create"
	providerSpecMissing          = "spec.providerSpec.value: must be given"
)

// Phases of a machine.
const (
	PhaseProvisioning = "Provisioning"
	PhaseProvisioned  = "Provisioned"
	PhaseRunning      = "Running"
	PhaseDeleting     = "Deleting"
	PhaseFailed       = "Failed"
)

// Types of conditions.
const (
	Drainable      = "Drainable"
	Drained        = "Drained"
	Terminable     = "Terminable"
	InstanceExists = "InstanceExists"
	Forgotten      = "Forgotten" // its deletion goes on without its provider

	VolumesDetached = "VolumesDetached"       // of a machine that is being deleted and drained
	DrainTimedOut   = "DrainTimedOut"         // spec.nodeDrainTimeout has passed
	VolumesTimedOut = "VolumesDetachTimedOut" // spec.nodeVolumeDetachTimeout has passed

	Available   = "Available"
	Degraded    = "Degraded"
	Progressing = "Progressing"
)

// Event is an event to record for users.
type Event struct{ Type, Reason, Message string }

// Role returns the role of a machine: master or worker.
func Role(m *machinev1.Machine) string {
	if m.GetMetadata().GetLabels()[LabelRole] == RoleMaster {
		return RoleMaster
	}
	return RoleWorker
}

// IsControlPlaneNode reports whether a node carries one of the labels of the control plane.
func IsControlPlaneNode(n *nodev1.Node) bool {
	labels := n.GetMetadata().GetLabels()
	_, a := labels[nodeLabelControlPlane]
	_, b := labels[nodeLabelMaster]
	return a || b
}

// readySince says whether a node is ready, and since when it has been as it is.
func readySince(n *nodev1.Node) (ready bool, since time.Time) {
	for _, c := range n.GetStatus().GetConditions() {
		if c.GetType() == "Ready" {
			return c.GetStatus() == conditionTrue, c.GetLastTransitionTime().AsTime()
		}
	}
	return false, time.Time{}
}

// isAnnotated reports whether a user wants this machine to be the next to go when its set shrinks.
func isAnnotated(m *machinev1.Machine) bool {
	a := m.GetMetadata().GetAnnotations()
	return a[AnnotationDelete] != "" || a[AnnotationDeleteOld] != ""
}

func reference(m *machinev1.Machine) *metav1.ObjectReference {
	r := object.Reference(m)
	r.ApiVersion, r.Kind = machineAPIVersion, machineKind
	return r
}

func condition(typ, status, severity, reason, message string) *metav1.Condition {
	c := &metav1.Condition{Type: typ, Status: status, Severity: severity}
	if reason != "" {
		c.Reason = proto.String(reason)
	}
	if message != "" {
		c.Message = proto.String(message)
	}
	return c
}

func seconds(t time.Time) *timestamppb.Timestamp { return &timestamppb.Timestamp{Seconds: t.Unix()} }

func names(list []string) string {
	if more := len(list) - maxNamesInLine; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:maxNamesInLine], ", "), more)
	}
	return strings.Join(list, ", ")
}
