package service

import (
	"io"
	"testing"
)

func TestTheLimitOfProcessesOfAPod(t *testing.T) {
	for args, want := range map[string]int64{"": 4096, "--pod-pids-limit=100": 100, "--pod-pids-limit=-1": -1} {
		list := []string{"--dir", t.TempDir()}
		if args != "" {
			list = append(list, args)
		}
		if c, err := parse(list, io.Discard); err != nil || c.podPIDsLimit != want {
			t.Errorf("%q: %d, %v, want %d", args, c.podPIDsLimit, err, want)
		}
	}
	if _, err := parse([]string{"--dir", t.TempDir(), "--pod-pids-limit=many"}, io.Discard); err == nil {
		t.Error("a limit that is no number is accepted")
	}
}
