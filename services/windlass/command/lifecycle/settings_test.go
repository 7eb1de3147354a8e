package lifecycle

import (
	"slices"
	"testing"
)

func TestSettingsReplaceThoseOfTheSameFlag(t *testing.T) {
	has := []string{"scheduler.log-level=info", "gateway.peer=a=1", "gateway.peer=b=2"}
	for _, c := range []struct{ given, want []string }{
		{nil, has},
		{[]string{"scheduler.log-level=debug"}, []string{
			"gateway.peer=a=1", "gateway.peer=b=2",
			"scheduler.log-level=debug",
		}},
		{[]string{"gateway.peer=c=3", "gateway.peer=d=4"}, []string{
			"scheduler.log-level=info", "gateway.peer=c=3",
			"gateway.peer=d=4",
		}},
		{[]string{"gateway.log-level=debug"}, append(slices.Clone(has), "gateway.log-level=debug")},
	} {
		if got := mergeSettings(has, c.given); !slices.Equal(got, c.want) {
			t.Errorf("given %q: %q, want %q", c.given, got, c.want)
		}
	}
}
