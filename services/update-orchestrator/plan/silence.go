package plan

import (
	"fmt"
	"slices"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"google.golang.org/protobuf/proto"
)

// AskEvery is the time between two questions to each service.
const AskEvery = 3 * time.Second

const (
	// silentAfter is how long a service may be silent. A program that its supervisor starts again is back after a second
	// or two, and a busy host may take ten for it.
	silentAfter = 15 * time.Second
	// silentQuestions is how many questions in a row a service must leave open as well: the time between two of them may
	// have been one in which this program itself did not run.
	silentQuestions = 3
)

// ServiceSilent is the reason of a condition Available=Unknown that this program gave to an operator.
const ServiceSilent = "ServiceSilent"

// Contact is the record of a service's answers.
type Contact struct {
	Since time.Time // of the last answer, or when it was first asked
	Open  int       // questions in a row that were not answered, 0 after an answer
	Last  string    // why the last question was not answered, such as "connection refused"
}

// Called returns a Contact after one more call, made at now. problem is empty if it was answered,
// whatever the answer was: a service that says that it is not ready reports its operator itself.
func (h Contact) Called(now time.Time, problem string) Contact {
	switch {
	case problem == "":
		return Contact{Since: now}
	case h.Since.IsZero():
		h.Since = now
	}
	h.Open++
	h.Last = problem
	return h
}

// SilenceView is what the judgment on a silent service depends on.
type SilenceView struct {
	Now      time.Time
	Service  string
	Contact  Contact
	Deaf     bool                      // this program did not reach itself either, so silence says nothing about others
	Operator *updatev1.ClusterOperator // nil if the service has not reported one yet
}

// Silence returns the condition Available that the operator of a service gets because the service is silent, and nil if
// its operator stays as it is: because the service answers, because too little is known, or because the operator says
// so already. The service itself replaces the condition when it is back.
func Silence(v SilenceView) *metav1.Condition {
	if v.Deaf || v.Contact.Open < silentQuestions || v.Now.Sub(v.Contact.Since) < silentAfter {
		return nil
	}
	is := Find(v.Operator.GetStatus().GetConditions(), Available)
	if is.GetStatus() == Unknown && is.GetReason() == ServiceSilent {
		return nil // since when, the first one to notice has said
	}
	return Stamp(condition(Available, Unknown, ServiceSilent, fmt.Sprintf("%s has not answered since %s: %s",
		v.Service, v.Contact.Since.UTC().Format(time.RFC3339), v.Contact.Last)), is, v.Now.Truncate(time.Second))
}

// Silenced returns a status with the condition of a silent service in it. It does not modify have, which may be nil.
func Silenced(have *updatev1.ClusterOperatorStatus, c *metav1.Condition) *updatev1.ClusterOperatorStatus {
	next := proto.CloneOf(have)
	if next == nil {
		next = &updatev1.ClusterOperatorStatus{}
	}
	i := slices.IndexFunc(next.Conditions, func(c *metav1.Condition) bool { return c.GetType() == Available })
	if i < 0 {
		next.Conditions = append(next.Conditions, c)
	} else {
		next.Conditions[i] = c
	}
	return next
}
