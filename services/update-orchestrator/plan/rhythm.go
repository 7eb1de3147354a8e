package plan

import "time"

const (
	// firstPause is how long a failed pass rests before the next one; it doubles up to the interval of reconciling.
	firstPause = 2 * time.Second
	// repairEvery is how often a manifest is put back that others change: two writers that disagree must not fill the
	// store.
	repairEvery = 10 * time.Second
)

// Rhythm is when the passes over a release begin. The zero Rhythm is that of a new release: its first pass is due at
// once.
type Rhythm struct {
	next     time.Time
	failed   int                  // passes that failed in a row
	repaired map[string]time.Time // when what others changed was put back last, by the ID of its manifest
}

// Turn is which pass is due: one over all manifests, one over some, or none before Wake.
type Turn struct {
	All  bool
	Only []string // IDs
	Wake time.Time
}

// Due returns which pass is due at now. drifted returns the IDs of the manifests whose objects are no longer as the
// release has them: their pass is due at once, but not too often. Whether others fail makes no difference to them.
func (r *Rhythm) Due(now time.Time, drifted func() []string) Turn {
	if !now.Before(r.next) {
		return Turn{All: true}
	}
	due := Turn{Wake: r.next}
	for _, id := range drifted() {
		before, again := r.repaired[id], time.Time{}
		if !before.IsZero() && !now.Before(before) { // the clock was not set back since
			again = before.Add(repairEvery)
		}
		switch {
		case !now.Before(again):
			if r.repaired == nil {
				r.repaired = map[string]time.Time{}
			}
			r.repaired[id] = now
			due.Only = append(due.Only, id)
		case again.Before(due.Wake):
			due.Wake = again
		}
	}
	return due
}

// Ended takes in how a pass over all manifests ended. every is the time between two of those that succeed.
func (r *Rhythm) Ended(now time.Time, completed bool, every time.Duration) {
	if completed {
		r.failed, r.next = 0, now.Add(every)
		return
	}
	r.next = now.Add(min(firstPause<<min(r.failed, 10), every))
	r.failed++
}

// Again has a pass over all begin at once, since what is to be applied has changed.
func (r *Rhythm) Again() { r.next = time.Time{} }

// Next returns when the next pass over all manifests is due; zero means at once.
func (r *Rhythm) Next() time.Time { return r.next }
