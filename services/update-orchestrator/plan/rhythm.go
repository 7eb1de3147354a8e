package plan

import "time"

const (
	// firstPause is how long a failed pass rests before the next one; it doubles up to the interval of reconciling.
	firstPause = 2 * time.Second
	// repairEvery is how often what others change is put back: two writers that disagree must not fill the store.
	repairEvery = 10 * time.Second
)

// Rhythm is when the passes over a release begin. The zero Rhythm is that of a new release: its first pass is due at
// once.
type Rhythm struct {
	next     time.Time
	failed   int       // passes that failed in a row
	repaired time.Time // when something that others changed was put back last
}

// Due returns when the next pass is to begin: at once if something is no longer as the release has it, which drifted
// reports, but not too often.
func (r *Rhythm) Due(now time.Time, drifted func() bool) time.Time {
	if now.Before(r.next) && r.failed == 0 && drifted() {
		if again := r.repaired.Add(repairEvery); now.Before(again) {
			if again.Before(r.next) {
				return again
			}
			return r.next
		}
		r.repaired, r.next = now, time.Time{}
	}
	return r.next
}

// Ended takes in how a pass ended. every is the time between two passes that succeed.
func (r *Rhythm) Ended(now time.Time, completed bool, every time.Duration) {
	if completed {
		r.failed, r.next = 0, now.Add(every)
		return
	}
	r.next = now.Add(min(firstPause<<min(r.failed, 10), every))
	r.failed++
}

// Again has the next pass begin at once, since what is to be applied has changed.
func (r *Rhythm) Again() { r.next = time.Time{} }
