package plan

import "time"

const (
	// soonest is after which time a machine that found no host asks again: a host may have joined or been wiped.
	soonest = 5 * time.Second
	// apart is the time between the questions of all waiting machines: 20 a second.
	apart = 50 * time.Millisecond
	// latest is how long a machine waits at most: it may be the only one that a free host suits.
	latest = time.Minute
)

// AskAgain returns after which time a machine that found no host asks again. waiting is how many machines found none
// lately, itself included. The more wait, the longer each does, so that together they ask 20 times a second at most, up
// to 1,200 machines; a host that is free is found as soon, since one of them asks every 50 ms.
func AskAgain(waiting int) time.Duration {
	return min(max(time.Duration(waiting)*apart, soonest), latest)
}
