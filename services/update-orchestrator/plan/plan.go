// Package plan decides about updates: which ones there are and which of them are risky, whether a desired update may
// start, in which order the manifests of a release are applied, what a cluster operator still owes, and what the
// history and the conditions say of it. It does no I/O and reads no clock: the same values always give the same answer.
// Source: OpenShift's Cluster Version Operator and the Cincinnati protocol.
package plan

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
)

// Statuses of a condition.
const (
	True    = "True"
	False   = "False"
	Unknown = "Unknown"
)

// Types of the conditions of a ClusterVersion and of its parts.
const (
	Available        = "Available"
	Progressing      = "Progressing"
	Failing          = "Failing"
	RetrievedUpdates = "RetrievedUpdates"
	ReleaseAccepted  = "ReleaseAccepted"
	Upgradeable      = "Upgradeable"
	Invalid          = "Invalid"
	Recommended      = "Recommended"
	Applies          = "Applies"
	Degraded         = "Degraded"
)

// A Problem is something wrong at one place of a document.
type Problem struct {
	Path   string // JSON names, such as spec.desiredUpdate.version or edges[3][1]
	Reason string // what is wrong, for people
}

// Error implements error.
func (p Problem) Error() string { return fmt.Sprintf("%s: %s", p.Path, p.Reason) }

// condition makes a condition without times.
func condition(kind, status, reason, message string) *metav1.Condition {
	c := &metav1.Condition{Type: kind, Status: status}
	if reason != "" {
		c.Reason = proto.String(reason)
	}
	if message != "" {
		c.Message = proto.String(message)
	}
	return c
}

// Find returns the condition of a type, or nil.
func Find(list []*metav1.Condition, kind string) *metav1.Condition {
	for _, c := range list {
		if c.GetType() == kind {
			return c
		}
	}
	return nil
}

// Stamp gives a condition the time of its last change: that of before if the status is the same, else now. before may
// be nil.
func Stamp(c, before *metav1.Condition, now time.Time) *metav1.Condition {
	if before.GetStatus() == c.GetStatus() && before.GetLastTransitionTime() != nil {
		c.LastTransitionTime = before.GetLastTransitionTime()
	} else {
		c.LastTransitionTime = timestamppb.New(now)
	}
	return c
}
