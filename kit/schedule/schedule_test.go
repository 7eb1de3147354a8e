package schedule_test

import (
	"strings"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/kit/schedule"
	"pgregory.net/rapid"
)

func parse(t interface{ Fatal(...any) }, text, zone string) schedule.Times {
	times, err := schedule.Parse(text, zone)
	if err != nil {
		t.Fatal(err)
	}
	return times
}

func moment(t *testing.T, text string) time.Time {
	t.Helper()
	out, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestWhatIsNoScheduleIsRefused(t *testing.T) {
	for _, c := range []struct{ text, zone string }{
		{"* * * *", ""},
		{"61 * * * *", ""},
		{"@often", ""},
		{"", ""},
		{"0 3 * * *", "Mars/Olympus"},
		{"0 3 * * *", "Local"},
		{"CRON_TZ=UTC 0 3 * * *", ""},
		{"TZ=UTC 0 3 * * *", ""},
		{"0 0 3 * * *", ""},
	} {
		if _, err := schedule.Parse(c.text, c.zone); err == nil {
			t.Errorf("%q in the zone %q was accepted", c.text, c.zone)
		}
	}
	for text, want := range map[string]string{
		"0 0 30 2 *": "never comes", "@every 59s": "at least 1m", "@every 1m": "", "0 0 29 2 *": "", "@hourly": "",
	} {
		if got := schedule.Fault(text, time.Minute); !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestTimesOfDaysThatChangeTheirClocks(t *testing.T) {
	for _, c := range []struct{ name, text, after, want string }{
		{
			"a time that is left out does not come on that day", "30 2 * * *",
			"2026-03-28T12:00:00+01:00", "2026-03-30T02:30:00+02:00",
		},
		{"a time that comes twice", "30 2 * * *", "2026-10-24T12:00:00+02:00", "2026-10-25T02:30:00+02:00"},
		{"the second of them", "30 2 * * *", "2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"},
		{"every hour of a day of 23", "0 * * * *", "2026-03-29T01:00:00+01:00", "2026-03-29T03:00:00+02:00"},
	} {
		got := parse(t, c.text, "Europe/Berlin").Next(moment(t, c.after))
		if !got.Equal(moment(t, c.want)) {
			t.Errorf("%s: %v, want %s", c.name, got, c.want)
		}
	}
}

// TestTheLatestTimeIsThatOfCountingThem compares Latest with passing over all times one by one.
func TestTheLatestTimeIsThatOfCountingThem(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SampledFrom([]string{
			"*/7 * * * *", "@hourly", "@daily", "@weekly", "@monthly", "30 2 * * *", "0 0 29 2 *", "@every 7m",
			"0 9-17/3 * * 1-5",
			"59 23 31 * *",
		}).Draw(t, "schedule")
		times := parse(t, text, rapid.SampledFrom([]string{"", "Europe/Berlin", "America/Sao_Paulo"}).Draw(t, "zone"))
		after := time.Unix(rapid.Int64Range(1_700_000_000, 1_900_000_000).Draw(t, "after"), 0)
		now := after.Add(time.Duration(rapid.Int64Range(0, int64(30*24*time.Hour)).Draw(t, "span")))
		var want time.Time
		for next := times.Next(after); !next.IsZero() && !next.After(now); next = times.Next(next) {
			want = next
		}
		if got := schedule.Latest(times, after, now); !got.Equal(want) {
			t.Errorf("%s after %v: %v, want %v", text, after, got, want)
		}
	})
}

func TestTheLatestTimeOfManyYears(t *testing.T) {
	now := moment(t, "2026-03-01T12:00:30Z")
	begin := time.Now()
	for range 1000 {
		if got := schedule.Latest(parse(t, "* * * * *", ""), time.Unix(0, 0), now); !got.Equal(now.Truncate(time.Minute)) {
			t.Fatalf("the last minute is %v", got)
		}
	}
	if took := time.Since(begin); took > 10*time.Second { // a thousand times what it takes
		t.Errorf("took %v", took)
	}
}
