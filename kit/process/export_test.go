package process

import (
	"os"

	"golang.org/x/sys/unix"
)

// Markers is the environment that marks a start of spec.
func Markers(dir string, spec Spec, mark string) []string { return markers(dir, spec, mark) }

// TrimLog frees the older part of a log.
func TrimLog(path string, keep int64) error { return trimLog(path, keep, punch) }

// TrimLogWithoutHoles is TrimLog on a file system without holes.
func TrimLogWithoutHoles(path string, keep int64) error {
	return trimLog(path, keep, func(*os.File, int64) error { return unix.EOPNOTSUPP })
}

// Digest is what a process's record and environment have of its spec.
func Digest(spec Spec) string { return spec.digest() }
