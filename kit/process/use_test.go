package process_test

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/kit/process"
)

func TestTheUseOfAPoolIsThatOfAllItsProcesses(t *testing.T) {
	for name, groups := range map[string]bool{"with control groups, if the host has them": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := process.NewSupervisor(dir, slog.New(slog.DiscardHandler))
			if !groups {
				s.WithoutCgroups()
			}
			if _, err := s.Uses([]string{"busy"}); err == nil {
				t.Error("a supervisor that does not run knows what is used")
			}
			s, _ = run(t, dir, s)
			busy := process.Spec{ // a child without the marker, which is in a session of its own
				Name: "busy.main", Pool: "busy", Path: "/bin/sh", LogFile: filepath.Join(dir, "busy.log"),
				Args: []string{"-c", `env -i setsid sh -c "while :; do :; done" & sleep 1000`},
			}
			idle := process.Spec{Name: "idle.main", Pool: "idle", Path: "/bin/sleep", Args: []string{"1000"}}
			for _, spec := range []process.Spec{busy, idle} {
				if err := s.Ensure(spec); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, "what both use is seen", func() bool {
				got, err := s.Uses([]string{"busy", "idle", "none"})
				if err != nil {
					t.Fatal(err)
				}
				b, i := got["busy"], got["idle"]
				return b.Processes == 3 && b.CPU >= 100*time.Millisecond && b.Memory > 0 && i.Processes == 1 && i.CPU < b.CPU &&
					got["none"] == process.Use{}
			})
		})
	}
}
