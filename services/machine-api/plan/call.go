package plan

import (
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
)

const (
	firstCallPause   = 50 * time.Millisecond // after a call to a provider failed; doubled after each further failure
	leastRetry       = time.Second           // whatever a provider says
	longestCallPause = 30 * time.Second      // so that every machine that is being deleted is checked at least that often
	// vanishedPause is how soon the provider is asked again when its watch contradicts its last answer.
	vanishedPause = 10 * time.Millisecond
)

// Call is the result of the calls to a provider of one kind for one machine. The zero Call means that there was none.
type Call struct {
	Busy   bool      // one is under way, or waits for its turn; its answer wakes the machine
	At     time.Time // when the last one was answered
	Err    string    // why that failed; empty if it did not
	Failed int       // calls that failed since the last one that did not
	Since  time.Time // when the first of these was answered
	There  bool      // the last one found an instance
	// Retry is after which time another call may succeed, as the provider said with the error; 0 if it did not.
	Retry time.Duration
}

// absent reports whether the last call was answered and found no instance.
func (c Call) absent() bool { return !c.At.IsZero() && c.Err == "" && !c.There }

// due returns when the call is to be made again, at most every after an answer that was no error; zero while one is
// under way.
func (c Call) due(now time.Time, every time.Duration) time.Time {
	switch {
	case c.Busy:
		return time.Time{}
	case c.At.IsZero():
		return now
	case c.Err != "":
		return c.At.Add(c.pause())
	}
	return c.At.Add(every)
}

// pause is how long a machine waits after a call that failed. What the provider says shortens it alone: calls that fail
// come with growing pauses up to that.
func (c Call) pause() time.Duration {
	pause := callPause(c.Failed)
	if c.Retry > 0 {
		pause = min(pause, max(c.Retry, leastRetry))
	}
	return pause
}

// callPause is how long a machine waits after that many failed calls in a row.
func callPause(failed int) time.Duration {
	if failed < 1 {
		return 0
	}
	if failed > 10 {
		return longestCallPause
	}
	return min(firstCallPause<<(failed-1), longestCallPause)
}

// MayHaveInstance reports whether machine-api has ever asked a provider for a machine's instance, as far as the machine
// itself says. The note is written before the first call.
func MayHaveInstance(m *machinev1.Machine) bool {
	return m.GetMetadata().GetAnnotations()[AnnotationProvider] != "" || m.GetSpec().GetProviderId() != "" ||
		len(m.GetStatus().GetAddresses()) > 0 || m.GetStatus().GetLastOperation().GetType() == operationCreate
}

// call plans a call to the provider if it is due, and when it is otherwise.
func (n *next) call(a Action, c Call, every time.Duration) {
	at := c.due(n.v.Now, every)
	switch {
	case at.IsZero():
		n.p.Wake = n.v.Now.Add(lookAgain)
	case at.After(n.v.Now):
		n.p.Wake = at
	default:
		n.p.Wake = n.v.Now.Add(lookAgain)
		n.do(a)
	}
}
