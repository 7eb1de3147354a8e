package printer

import (
	"fmt"

	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
)

// Nothing returns the message for an empty list, as kubectl words it.
func Nothing(e *session.Env, groups []target.Group, s target.Selection) string {
	k := groups[0].Kind
	if !k.GetNamespaced() || s.Everywhere {
		return "No resources found"
	}
	return fmt.Sprintf("No resources found in %s namespace.", e.NamespaceOf(k))
}
