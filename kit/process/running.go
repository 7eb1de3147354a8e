package process

import (
	"slices"
	"strings"
	"time"
)

// Found is a running process that has a record in a run directory.
type Found struct {
	Name  string
	PID   int
	Since time.Time
}

// Running returns the running processes of a run directory, ordered by name, with or without a supervisor.
func Running(runDir string) ([]Found, error) {
	names, err := recorded(runDir)
	if err != nil {
		return nil, err
	}
	var out []Found
	for _, name := range names {
		r, err := readRecord(runDir, name)
		if err != nil || r.PID == 0 {
			continue // it is being replaced or removed
		}
		if since, err := r.confirm(); err == nil {
			out = append(out, Found{Name: name, PID: r.PID, Since: since})
		}
	}
	slices.SortFunc(out, func(a, b Found) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// Stopped reports whether a process exists but is stopped by a signal or a debugger.
func Stopped(pid int) bool {
	st, err := readStat(pid)
	return err == nil && (st.state == "T" || st.state == "t")
}
