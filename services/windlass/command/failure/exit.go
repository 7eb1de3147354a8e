package failure

import (
	"fmt"
)

// Exit ends the program with Code. The command has already printed its message.
type Exit struct{ Code int }

// Error implements error.
func (e Exit) Error() string { return fmt.Sprintf("exit code %d", e.Code) }
