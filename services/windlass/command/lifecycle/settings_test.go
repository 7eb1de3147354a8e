package lifecycle

import (
	"slices"
	"testing"
)

func TestSettingsReplaceThoseOfTheSameFlag(t *testing.T) {
	has := []string{"scheduler.log-level=info", "gateway.peer=a=1", "gateway.peer=b=2"}
	for _, c := range []struct{ given, removed, want []string }{
		{nil, nil, has},
		{nil, []string{"gateway.peer", "gateway.other"}, []string{"scheduler.log-level=info"}},
		{[]string{"gateway.peer=c=3"}, []string{"gateway.peer", "scheduler.log-level"}, []string{"gateway.peer=c=3"}},
		{[]string{"scheduler.log-level=debug"}, nil, []string{
			"gateway.peer=a=1", "gateway.peer=b=2",
			"scheduler.log-level=debug",
		}},
		{[]string{"gateway.peer=c=3", "gateway.peer=d=4"}, nil, []string{
			"scheduler.log-level=info", "gateway.peer=c=3",
			"gateway.peer=d=4",
		}},
		{[]string{"gateway.log-level=debug"}, nil, append(slices.Clone(has), "gateway.log-level=debug")},
	} {
		if got := mergeSettings(has, c.given, c.removed); !slices.Equal(got, c.want) {
			t.Errorf("given %q, removed %q: %q, want %q", c.given, c.removed, got, c.want)
		}
	}
}
