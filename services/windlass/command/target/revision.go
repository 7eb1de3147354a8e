package target

import (
	"strconv"
)

// RevisionNumber returns a resource version as a number; 0 if it is none.
func RevisionNumber(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
