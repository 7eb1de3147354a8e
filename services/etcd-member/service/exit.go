package service

import "errors"

// Exit codes of the program, for its supervisor.
const (
	ExitFailure = 1  // start it again, later
	ExitRemoved = 3  // the member was removed: never start it again on this data
	ExitUsage   = 64 // wrong flags or files (2 would be the code of a panic)
)

// errRemoved means that the cluster removed this member for good.
var errRemoved = errors.New(
	"this member was removed from its cluster; it can join again only under a new id, with an empty data directory")

// usageError marks errors in flags and in the files they name.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// ExitCode returns the code with which the program should exit after Run returned err.
func ExitCode(err error) int {
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errRemoved):
		return ExitRemoved
	case errors.As(err, &usage):
		return ExitUsage
	default:
		return ExitFailure
	}
}
