// Package failure has the errors of commands: several in one, their text for the user in the form of oc, and exit
// codes.
package failure

import (
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// List collects the errors of a verb that acts on many objects.
type List []error

// Add adds an error, or each error of another List; nil adds nothing.
func (f *List) Add(err error) {
	var more List
	switch {
	case errors.As(err, &more):
		*f = append(*f, more...)
	case err != nil:
		*f = append(*f, err)
	}
}

// Err returns nil without errors, a single error itself, else the list.
func (f List) Err() error {
	switch len(f) {
	case 0:
		return nil
	case 1:
		return f[0]
	}
	return f
}

// Error implements error.
func (f List) Error() string {
	texts := make([]string, len(f))
	for i, err := range f {
		texts[i] = Describe(err)
	}
	return strings.Join(texts, "\n")
}

// IsNotFound reports whether the cluster answered that an object does not exist.
func IsNotFound(err error) bool { return status.Code(err) == codes.NotFound }
