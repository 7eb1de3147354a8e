package object

import (
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// FindCondition returns the condition of a type, or nil.
func FindCondition(list []*metav1.Condition, typ string) *metav1.Condition {
	for _, c := range list {
		if c.GetType() == typ {
			return c
		}
	}
	return nil
}

// IsTrue reports whether the condition of a type exists and is True.
func IsTrue(list []*metav1.Condition, typ string) bool {
	return FindCondition(list, typ).GetStatus() == "True"
}

// SetCondition returns a list in which the condition of c's type is c. The time of its last transition is now if any
// other field differs, and unchanged otherwise. Neither list nor c is modified.
func SetCondition(list []*metav1.Condition, c *metav1.Condition, now time.Time) []*metav1.Condition {
	c = proto.Clone(c).(*metav1.Condition)
	out := make([]*metav1.Condition, 0, len(list)+1)
	found := false
	for _, old := range list {
		if old.GetType() != c.GetType() {
			out = append(out, old)
			continue
		}
		found = true
		c.LastTransitionTime = old.GetLastTransitionTime()
		if !proto.Equal(old, c) {
			c.LastTransitionTime = &timestamppb.Timestamp{Seconds: now.Unix()}
		}
		out = append(out, c)
	}
	if !found {
		c.LastTransitionTime = &timestamppb.Timestamp{Seconds: now.Unix()}
		out = append(out, c)
	}
	return out
}
