package target

import (
	"strings"
)

// PodName accepts both NAME and pod/NAME.
func PodName(arg string) string {
	for _, prefix := range []string{"pod/", "pods/", "po/"} {
		if name, ok := strings.CutPrefix(arg, prefix); ok {
			return name
		}
	}
	return arg
}
