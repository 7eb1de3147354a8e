package maintenance

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

func window(name, schedule, zone, length string, change ...func(*updatev1.MaintenanceWindowSpec)) *Window {
	w := &Window{
		Metadata: &metav1.ObjectMeta{Name: name},
		Spec:     &updatev1.MaintenanceWindowSpec{Schedule: schedule, TimeZone: proto.String(zone), Duration: length},
	}
	for _, f := range change {
		f(w.Spec)
	}
	return w
}

func moment(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at.UTC()
}

func TestWindowsThatAreRefused(t *testing.T) {
	for _, tt := range []struct {
		name   string
		window *Window
		path   string // empty: it is accepted
		text   string
	}{
		{"each night", window("w", "0 22 * * *", "Europe/Berlin", "4h"), "", ""},
		{"open all the time", window("w", "0 0 * * *", "Europe/Berlin", "24h"), "", ""},
		{"weekends", window("w", "0 6 * * 6", "", "48h"), "", ""},
		{"once in four years", window("w", "0 0 29 2 *", "", "72h"), "", ""},
		{"an unknown zone", window("w", "0 22 * * *", "Europe/Atlantis", "4h"), "spec.timeZone", "unknown time zone"},
		{"the zone of the host", window("w", "0 22 * * *", "Local", "4h"), "spec.timeZone", "not the name of a time zone"},
		{"six fields", window("w", "0 0 22 * * *", "", "4h"), "spec.schedule", "expected exactly 5 fields"},
		{"no day", window("w", "0 0 31 2 *", "", "4h"), "spec.schedule", "never comes"},
		{"without a beginning", window("w", "@every 6h", "", "4h"), "spec.schedule", "has no beginning"},
		{"no length", window("w", "0 22 * * *", "", ""), "spec.duration", "is not a duration"},
		{"a number", window("w", "0 22 * * *", "", "4"), "spec.duration", "is not a duration"},
		{"zero", window("w", "0 22 * * *", "", "0h"), "spec.duration", "must be at least 1m0s"},
		{"negative", window("w", "0 22 * * *", "", "-4h"), "spec.duration", "must be at least 1m0s"},
		{"longer than a day", window("w", "0 22 * * *", "", "24h1m"), "spec.duration", "longer than the 24h0m0s to the next"},
		{"longer than the shortest pause", window("w", "0 1,22 * * *", "", "4h"), "spec.duration", "longer than the 3h0m0s"},
		{
			"pools of a window for updates", window("w", "0 22 * * *", "", "4h", func(s *updatev1.MaintenanceWindowSpec) {
				s.AppliesTo, s.PoolSelector = []string{updates}, &metav1.LabelSelector{}
			}), "spec.poolSelector", "only allowed if the window applies to Pools",
		},
		{
			"a bad selector", window("w", "0 22 * * *", "", "4h", func(s *updatev1.MaintenanceWindowSpec) {
				s.PoolSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"a b": ""}}
			}), "spec.poolSelector", "",
		},
	} {
		bad := Faults(tt.window)
		switch {
		case tt.path == "" && len(bad) == 0:
		case tt.path == "" || len(bad) != 1 || !strings.HasPrefix(bad[0].Path, tt.path) ||
			!strings.Contains(bad[0].Description, tt.text):
			t.Errorf("%s: %v, want %s: %s", tt.name, bad, tt.path, tt.text)
		}
	}
}

// Around the changes of Europe/Berlin in 2026: clocks go from 02:00 to 03:00 on March 29 at 01:00 UTC, and from 03:00
// to 02:00 on October 25 at 01:00 UTC.
func TestWindowsAroundSummerTime(t *testing.T) {
	for _, tt := range []struct {
		name, schedule, length, now string
		closes, opens               string
	}{
		{"a winter night", "0 22 * * *", "4h", "2026-03-27T20:59:59Z", "", "2026-03-27T21:00:00Z"},
		{"at its opening", "0 22 * * *", "4h", "2026-03-27T21:00:00Z", "2026-03-28T01:00:00Z", "2026-03-28T21:00:00Z"},
		{"at its end", "0 22 * * *", "4h", "2026-03-28T01:00:00Z", "", "2026-03-28T21:00:00Z"},
		{
			"the night of the change is four hours, too", "0 22 * * *", "6h", "2026-03-29T02:59:59Z",
			"2026-03-29T03:00:00Z", "2026-03-29T20:00:00Z",
		},
		{"and over after them", "0 22 * * *", "6h", "2026-03-29T03:00:00Z", "", "2026-03-29T20:00:00Z"},
		{"a summer night", "0 22 * * *", "4h", "2026-03-29T19:59:59Z", "", "2026-03-29T20:00:00Z"},
		{"the hour that is left out", "30 2 * * *", "1h", "2026-03-29T00:59:00Z", "", "2026-03-30T00:30:00Z"},
		{"neither at the end of the hour", "30 2 * * *", "1h", "2026-03-29T01:30:00Z", "", "2026-03-30T00:30:00Z"},
		{
			"the hour that comes twice", "30 2 * * *", "1h", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z",
			"2026-10-25T01:30:00Z",
		},
		{"and its second time", "30 2 * * *", "1h", "2026-10-25T01:30:00Z", "2026-10-25T02:30:00Z", "2026-10-26T01:30:00Z"},
		{
			"two openings that overlap", "30 2 * * *", "2h", "2026-10-25T02:45:00Z", "2026-10-25T03:30:00Z",
			"2026-10-26T01:30:00Z",
		},
		{"a day of 23 hours", "0 0 * * *", "24h", "2026-03-29T22:30:00Z", "2026-03-30T22:00:00Z", "2026-03-30T22:00:00Z"},
		{"a day of 25 hours has one hour without", "0 0 * * *", "24h", "2026-10-25T22:30:00Z", "", "2026-10-25T23:00:00Z"},
	} {
		got, err := At(window("w", tt.schedule, "Europe/Berlin", tt.length), moment(t, tt.now))
		if err != nil {
			t.Fatal(err)
		}
		var want Times
		if tt.closes != "" {
			want.Closes = moment(t, tt.closes)
		}
		want.Opens = moment(t, tt.opens)
		if got != want {
			t.Errorf("%s: %v, want %v", tt.name, got, want)
		}
	}
}

func TestWhichWindowsApply(t *testing.T) {
	only := func(to ...string) func(*updatev1.MaintenanceWindowSpec) {
		return func(s *updatev1.MaintenanceWindowSpec) { s.AppliesTo = to }
	}
	suspended := func(s *updatev1.MaintenanceWindowSpec) { s.Suspend = proto.Bool(true) }
	of := func(label, value string) func(*updatev1.MaintenanceWindowSpec) {
		return func(s *updatev1.MaintenanceWindowSpec) {
			s.PoolSelector = &metav1.LabelSelector{MatchLabels: map[string]string{label: value}}
		}
	}
	nights := window("nights", "0 22 * * *", "", "4h")
	noon := window("noon", "0 12 * * *", "", "30m")
	const tonight = "waits for maintenance window nights, which opens at 2026-12-01T22:00:00Z"
	for _, tt := range []struct {
		name    string
		windows []*Window
		now     string
		update  string
		pool    string
	}{
		{"none", nil, "2026-12-01T12:00:00Z", "", ""},
		{"one that is closed", []*Window{nights}, "2026-12-01T12:00:00Z", tonight, tonight},
		{"one that is open", []*Window{nights}, "2026-12-01T23:00:00Z", "", ""},
		{"one that is open is enough", []*Window{nights, noon}, "2026-12-01T12:15:00Z", "", ""},
		{
			"the next one counts",
			[]*Window{nights, noon},
			"2026-12-01T11:00:00Z",
			"waits for maintenance window noon, which opens at 2026-12-01T12:00:00Z",
			"waits for maintenance window noon, which opens at 2026-12-01T12:00:00Z",
		},
		{
			"one that is suspended holds nothing back",
			[]*Window{window("nights", "0 22 * * *", "", "4h", suspended)},
			"2026-12-01T12:00:00Z", "", "",
		},
		{
			"one that is suspended allows nothing",
			[]*Window{nights, window("all", "0 0 * * *", "", "24h", suspended)},
			"2026-12-01T12:00:00Z", tonight, tonight,
		},
		{
			"for updates",
			[]*Window{window("nights", "0 22 * * *", "", "4h", only(updates))},
			"2026-12-01T12:00:00Z", tonight,
			"",
		},
		{"for pools", []*Window{window("nights", "0 22 * * *", "", "4h", only(pools))}, "2026-12-01T12:00:00Z", "", tonight},
		{
			"for a pool by its label",
			[]*Window{window("nights", "0 22 * * *", "", "4h", only(pools), of("tier", "web"))},
			"2026-12-01T12:00:00Z", "", tonight,
		},
		{
			"for another pool",
			[]*Window{window("nights", "0 22 * * *", "", "4h", only(pools), of("tier", "db"))},
			"2026-12-01T12:00:00Z", "", "",
		},
		{
			"for a pool by its name",
			[]*Window{window("nights", "0 22 * * *", "", "4h", only(pools), of(nameLabel, "worker"))},
			"2026-12-01T12:00:00Z", "", tonight,
		},
		{
			"one that cannot be read holds back",
			[]*Window{window("w", "0 22 * *", "", "4h")},
			"2026-12-01T12:00:00Z",
			"waits for maintenance windows that cannot be read: w (expected exactly 5 fields, found 4: [0 22 * *])",
			"waits for maintenance windows that cannot be read: w (expected exactly 5 fields, found 4: [0 22 * *])",
		},
	} {
		now := moment(t, tt.now)
		if got := ForUpdates(tt.windows, now).Waits; got != tt.update {
			t.Errorf("%s: an update %q, want %q", tt.name, got, tt.update)
		}
		pool := &metav1.ObjectMeta{Name: "worker", Labels: map[string]string{"tier": "web"}}
		if got := ForPool(tt.windows, pool, now).Waits; got != tt.pool {
			t.Errorf("%s: a pool %q, want %q", tt.name, got, tt.pool)
		}
	}
}

// Who sleeps until Wake misses nothing: what is allowed is the same until then. What waits goes on at it, and what is
// allowed is no longer so if no window has opened since.
func TestAStateLastsUntilItsWake(t *testing.T) {
	schedules := []string{"0 22 * * *", "30 2 * * *", "*/30 * * * *", "15 1,13 * * *", "0 6 * * 6"}
	zones := []string{"", "Europe/Berlin", "America/New_York"}
	rapid.Check(t, func(t *rapid.T) {
		var windows []*Window
		for i := range rapid.IntRange(1, 3).Draw(t, "windows") {
			windows = append(windows, window(string(rune('a'+i)), rapid.SampledFrom(schedules).Draw(t, "schedule"),
				rapid.SampledFrom(zones).Draw(t, "zone"), rapid.SampledFrom([]string{"10m", "30m"}).Draw(t, "length")))
		}
		start := time.Date(2026, rapid.SampledFrom([]time.Month{1, 3, 10}).Draw(t, "month"), 24, 0, 0, 0, 0, time.UTC)
		now := start.Add(time.Duration(rapid.IntRange(0, 7*24*60).Draw(t, "minutes")) * time.Minute)
		s := ForUpdates(windows, now)
		if !s.Wake.After(now) {
			t.Fatalf("at %v it wakes at %v", now, s.Wake)
		}
		for at := now; at.Before(s.Wake); at = at.Add(time.Minute) {
			if other := ForUpdates(windows, at); other.Waits != s.Waits || !other.Opens.Equal(s.Opens) ||
				other.Wake.Before(s.Wake) {
				t.Fatalf("at %v it is %v, and at %v %v", now, s, at, other)
			}
		}
		open := slices.ContainsFunc(windows, func(w *Window) bool {
			times, err := At(w, s.Wake)
			return err == nil && !times.Closes.IsZero()
		})
		if s.Closed() && (!open || ForUpdates(windows, s.Wake).Closed() || !s.Opens.Equal(s.Wake)) {
			t.Fatalf("at %v it is to open, and does not: %v", s.Wake, ForUpdates(windows, s.Wake))
		}
	})
}
