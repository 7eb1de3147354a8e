// Package maintenance says what maintenance windows allow: which of them apply, whether one is open, and which opens
// next. It computes with values only, so plans of all services decide by it. What begins, and what is done about
// windows that are not known, is for the services.
package maintenance

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/schedule"
	"k8s.io/apimachinery/pkg/labels"
)

// Window is a maintenance window.
type Window = updatev1.MaintenanceWindow

// What windows apply to.
const (
	updates = "Updates"
	pools   = "Pools"
)

// nameLabel is a label that every pool has for the selectors of windows: its name. Source: Kubernetes' namespaces.
const nameLabel = "kubernetes.io/metadata.name"

// shortest is the shortest time that a window may be open: schedules count in minutes.
const shortest = time.Minute

// Faults returns what is wrong with a window.
func Faults(w *Window) []object.Fault {
	spec := w.GetSpec()
	var out []object.Fault
	add := func(path, format string, args ...any) {
		out = append(out, object.Faultf("spec."+path, format, args...))
	}
	if _, err := schedule.Parse("@daily", spec.GetTimeZone()); err != nil {
		add("timeZone", "%v", err)
	}
	times, err := schedule.Parse(spec.GetSchedule(), "")
	switch why := schedule.Fault(spec.GetSchedule(), shortest); {
	case err != nil:
		add("schedule", "%v", err)
	case why != "":
		add("schedule", "%s", why)
	case strings.HasPrefix(spec.GetSchedule(), "@every"):
		add("schedule", "%q has no beginning: give times, such as \"0 */6 * * *\"", spec.GetSchedule())
	default:
		length, err := time.ParseDuration(spec.GetDuration())
		switch gap := shortestGap(times); {
		case err != nil:
			add("duration", "%q is not a duration, such as 4h or 90m", spec.GetDuration())
		case length < shortest:
			add("duration", "%q must be at least %v", spec.GetDuration(), shortest)
		case length > gap:
			add("duration", "%q is longer than the %v to the next opening", spec.GetDuration(), gap)
		}
	}
	if spec.GetPoolSelector() != nil {
		if !applies(w, pools) {
			add("poolSelector", "is only allowed if the window applies to Pools")
		}
		_, faults := object.LabelSelector(spec.GetPoolSelector(), "spec.poolSelector")
		out = append(out, faults...)
	}
	return out
}

// shortestGap returns the shortest time between two times of a schedule in UTC: that a day has 23 hours once a year
// does not matter. It considers five years, or as many times as come in half a year of hours.
func shortestGap(times schedule.Times) time.Duration {
	const enough = 24 * 183
	at := times.Next(time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC).Add(-time.Second))
	least, end := time.Duration(1<<63-1), at.AddDate(5, 0, 0)
	for range enough {
		next := times.Next(at)
		if next.IsZero() || next.After(end) && least < 1<<63-1 {
			break
		}
		least, at = min(least, next.Sub(at)), next
	}
	return least
}

func applies(w *Window, to string) bool {
	list := w.GetSpec().GetAppliesTo()
	return len(list) == 0 || slices.Contains(list, to)
}

// Times are the times of one window.
type Times struct {
	Closes time.Time // of the opening that lasts; zero if the window is not open
	Opens  time.Time // the next opening; zero if there is none
}

// At returns the times of a window at now, whether or not it is suspended. A window that is open from 22:00 on is open
// at 22:00, and is not at the time at which it closes. A window that cannot be read never opens.
func At(w *Window, now time.Time) (Times, error) {
	times, err := schedule.Parse(w.GetSpec().GetSchedule(), w.GetSpec().GetTimeZone())
	if err != nil {
		return Times{}, err
	}
	length, err := time.ParseDuration(w.GetSpec().GetDuration())
	if err != nil {
		return Times{}, err
	}
	var t Times
	if begun := schedule.Latest(times, now.Add(-length), now); !begun.IsZero() {
		t.Closes = begun.Add(length).UTC()
	}
	if next := times.Next(now); !next.IsZero() {
		t.Opens = next.UTC()
	}
	return t, nil
}

// State is what the windows that apply to something say of it. The zero State allows it.
type State struct {
	Waits string    // why it does not begin, in one line; empty if it may
	Opens time.Time // when it may, if Waits is set; zero if that is not known
	Wake  time.Time // before it the state is the same if no window changes, from it on ask again; zero means never
}

// Closed reports whether nothing may begin.
func (s State) Closed() bool { return s.Waits != "" }

// ForUpdates returns whether an update of the cluster may begin at now.
func ForUpdates(windows []*Window, now time.Time) State {
	return state(windows, now, func(w *Window) bool { return applies(w, updates) })
}

// ForPool returns whether nodes of a pool may begin to change at now. pool is its metadata.
func ForPool(windows []*Window, pool *metav1.ObjectMeta, now time.Time) State {
	set := labels.Set(maps.Clone(pool.GetLabels()))
	if set == nil {
		set = labels.Set{}
	}
	set[nameLabel] = pool.GetName()
	return state(windows, now, func(w *Window) bool {
		if !applies(w, pools) {
			return false
		}
		if w.GetSpec().GetPoolSelector() == nil {
			return true
		}
		sel, bad := object.LabelSelector(w.GetSpec().GetPoolSelector(), "")
		return len(bad) > 0 || sel.Matches(set) // one that cannot be read holds back rather than not
	})
}

func state(windows []*Window, now time.Time, counts func(*Window) bool) State {
	type opening struct {
		window string
		at     time.Time
	}
	var next []opening
	var closes []time.Time
	var unreadable []string
	for _, w := range windows {
		if w.GetSpec().GetSuspend() || object.Deleting(w) || !counts(w) {
			continue
		}
		name := w.GetMetadata().GetName()
		switch t, err := At(w, now); {
		case err != nil:
			unreadable = append(unreadable, fmt.Sprintf("%s (%v)", name, err))
		case !t.Closes.IsZero():
			closes = append(closes, t.Closes)
		case !t.Opens.IsZero():
			next = append(next, opening{name, t.Opens})
		}
	}
	switch {
	case len(closes) > 0:
		return State{Wake: slices.MaxFunc(closes, time.Time.Compare)}
	case len(next) > 0:
		first := slices.MinFunc(next, func(a, b opening) int {
			return cmp.Or(a.at.Compare(b.at), strings.Compare(a.window, b.window))
		})
		return State{
			Waits: fmt.Sprintf("waits for maintenance window %s, which opens at %s", first.window,
				first.at.Format(time.RFC3339)),
			Opens: first.at, Wake: first.at,
		}
	case len(unreadable) > 0:
		slices.Sort(unreadable)
		return State{Waits: "waits for maintenance windows that cannot be read: " + strings.Join(unreadable, ", ")}
	}
	return State{}
}
