package object

import "fmt"

// Fault is one invalid field of an object or a request. Path is in JSON names, such as
// "spec.lifecycleHooks.preDrain[0].owner"; an empty Path is the object or request itself. Description completes a
// sentence that begins with the path.
type Fault struct{ Path, Description string }

// Faultf returns a fault whose description is made by fmt.Sprintf.
func Faultf(path, format string, args ...any) Fault {
	return Fault{Path: path, Description: fmt.Sprintf(format, args...)}
}

// String returns the path and the description on one line.
func (f Fault) String() string {
	if f.Path == "" {
		return f.Description
	}
	return f.Path + ": " + f.Description
}
