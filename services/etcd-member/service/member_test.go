package service

import (
	"testing"
	"time"
)

func TestAStartThatTakesLongIsNotRepeatedTooSoon(t *testing.T) {
	cases := []struct {
		name               string
		start, wait, limit time.Duration
		want               bool
	}{
		{"a quick start, within the limit", 100 * time.Millisecond, 200 * time.Millisecond, 250 * time.Millisecond, false},
		{"a quick start, beyond the limit", 100 * time.Millisecond, 300 * time.Millisecond, 250 * time.Millisecond, true},
		{"a start of six seconds, beyond the limit", 6 * time.Second, time.Second, 250 * time.Millisecond, false},
		{
			"a start of six seconds, after as long again", 6 * time.Second, 6100 * time.Millisecond, 250 * time.Millisecond,
			true,
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			began := time.Unix(1_000, 0)
			since := began.Add(c.start)
			if got := isLate(began, since, since.Add(c.wait), c.limit); got != c.want {
				t.Errorf("isLate = %t, want %t", got, c.want)
			}
		})
	}
}
