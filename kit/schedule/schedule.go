// Package schedule computes the times of schedules in the format of cron. What is done at these times is left to the
// services.
package schedule

import (
	"cmp"
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // so that a time zone means the same on hosts and in images without a database of them

	"github.com/robfig/cron/v3"
)

// Times are the times of a schedule.
type Times = cron.Schedule

// Parse returns the times of a schedule: five fields, or a word such as @hourly or "@every 2h". zone is the name of a
// time zone; empty means UTC. "Local" is refused: it would be another zone on each host. A time of day that a change to
// summer time leaves out does not come on that day, and one that comes twice on a day comes twice.
func Parse(text, zone string) (Times, error) {
	if zone == time.Local.String() {
		return nil, fmt.Errorf("%q is not the name of a time zone, such as Europe/Berlin", zone)
	}
	return cron.ParseStandard("CRON_TZ=" + cmp.Or(zone, "UTC") + " " + text)
}

// Fault returns why a text that Parse accepts is no schedule; empty if it is one. least is the shortest time that may
// follow @every.
func Fault(text string, least time.Duration) string {
	if length, ok := strings.CutPrefix(text, "@every "); ok {
		if every, err := time.ParseDuration(length); err == nil && every < least {
			return fmt.Sprintf("%q must be at least %v", length, least)
		}
	}
	times, err := Parse(text, "")
	if leapYear := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC); err == nil && times.Next(leapYear).IsZero() {
		return fmt.Sprintf("%q never comes", text)
	}
	return ""
}

// Latest returns the last time of a schedule that is not after now; zero if none is after after. It takes as long for
// the times of a year as for those of an hour.
func Latest(times Times, after, now time.Time) time.Time {
	first := times.Next(after)
	if first.IsZero() || first.After(now) {
		return time.Time{}
	}
	if every, ok := times.(cron.ConstantDelaySchedule); ok {
		return first.Add(now.Sub(first).Truncate(every.Delay))
	}
	// The time after low has come, and the time after high has not.
	low, high := first.Add(-time.Second), now
	for high.Sub(low) > time.Second {
		middle := low.Add(high.Sub(low) / 2)
		if next := times.Next(middle); next.IsZero() || next.After(now) {
			high = middle
		} else {
			low = middle
		}
	}
	return times.Next(low)
}
