package process

import (
	"os"

	"golang.org/x/sys/unix"
)

// WithoutCgroups has a supervisor that does not run yet use no control groups, as where they are not writable.
func (s *Supervisor) WithoutCgroups() *Supervisor {
	s.noCgroups = true
	return s
}

// Markers is the environment that marks a start of spec.
func Markers(dir string, spec Spec, mark string) []string { return markers(dir, spec, mark) }

// TrimLogWithoutHoles is TrimLog on a file system without holes.
func TrimLogWithoutHoles(path string, keep int64) error {
	return trimLog(path, keep, func(*os.File, int64) error { return unix.EOPNOTSUPP })
}
