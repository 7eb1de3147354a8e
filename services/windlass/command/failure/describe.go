package failure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// fromServer is the prefix of every error of the cluster.
const fromServer = "from server"

// Describe returns the text of an error for the user, in oc's form "Error from server (Reason): message", with one
// line per field if several are invalid.
func Describe(err error) string {
	st, ok := status.FromError(err)
	if !ok {
		return err.Error()
	}
	if st.Code() == codes.Unavailable && len(st.Details()) == 0 { // no service of the cluster answered
		return "the cluster cannot be reached: " + st.Message()
	}
	var b strings.Builder
	fmt.Fprintf(&b, fromServer+" (%s): %s", Reason(st.Code()), headline(st))
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.BadRequest:
			if lines := wrongFields(d); len(lines) > 1 {
				fmt.Fprint(&b, "\n* "+strings.Join(lines, "\n* "))
			}
		case *errdetails.PreconditionFailure:
			for _, v := range d.GetViolations() {
				if !strings.Contains(st.Message(), v.GetDescription()) {
					fmt.Fprintf(&b, "\n* %s: %s", v.GetSubject(), v.GetDescription())
				}
			}
		}
	}
	return b.String()
}

// Silent reports whether an error means that a part of the cluster does not answer.
func Silent(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded:
		return true
	}
	return false
}

// Canceled reports whether an error means that the caller ended the call.
func Canceled(err error) bool {
	return errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled
}

// headline returns the message of an error without the list of invalid fields.
func headline(st *status.Status) string {
	for _, d := range st.Details() {
		bad, ok := d.(*errdetails.BadRequest)
		if !ok {
			continue
		}
		lines := wrongFields(bad)
		switch {
		case len(lines) == 0 || !strings.HasPrefix(st.Message(), lines[0]): // the message does not repeat the fields
		case len(lines) == 1:
			return lines[0]
		default:
			return fmt.Sprintf("%d fields are invalid:", len(lines))
		}
	}
	return st.Message()
}

// wrongFields returns one line for each invalid field, without duplicates.
func wrongFields(d *errdetails.BadRequest) []string {
	var lines []string
	for _, v := range d.GetFieldViolations() {
		line := v.GetDescription()
		if v.GetField() != "" {
			line = v.GetField() + ": " + line
		}
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// Reason returns the Kubernetes API reason for a code.
func Reason(c codes.Code) string {
	switch c {
	case codes.NotFound:
		return "NotFound"
	case codes.AlreadyExists:
		return "AlreadyExists"
	case codes.InvalidArgument:
		return "Invalid"
	case codes.Aborted:
		return "Conflict"
	case codes.PermissionDenied:
		return "Forbidden"
	case codes.Unauthenticated:
		return "Unauthorized"
	case codes.OutOfRange:
		return "Expired"
	case codes.ResourceExhausted:
		return "TooManyRequests"
	case codes.DeadlineExceeded:
		return "Timeout"
	case codes.Unavailable:
		return "ServiceUnavailable"
	case codes.Unimplemented:
		return "NotImplemented"
	case codes.Internal:
		return "InternalError"
	}
	return c.String()
}

// Headed prefixes an error as oc does: "Error from server (NotFound): …" for the cluster's errors, "error: …" for
// those of the command line.
func Headed(text string) string {
	if strings.HasPrefix(text, fromServer) {
		return "Error " + text
	}
	return "error: " + text
}
