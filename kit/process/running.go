package process

import (
	"slices"
	"strings"
	"time"
)

// Found is a process that a run directory has a record of and that runs.
type Found struct {
	Name  string
	PID   int
	Since time.Time
}

// Running returns the processes of a run directory that run now, ordered by name, whoever supervises them.
func Running(runDir string) ([]Found, error) {
	names, err := recorded(runDir)
	if err != nil {
		return nil, err
	}
	var out []Found
	for _, name := range names {
		r, err := readRecord(runDir, name)
		if err != nil || r.PID == 0 {
			continue // being replaced or removed just now
		}
		if since, err := r.confirm(); err == nil {
			out = append(out, Found{Name: name, PID: r.PID, Since: since})
		}
	}
	slices.SortFunc(out, func(a, b Found) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// Stopped reports whether a process is there but does not run because a signal or a debugger stopped it.
func Stopped(pid int) bool {
	st, err := readStat(pid)
	return err == nil && (st.state == "T" || st.state == "t")
}
