package api

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// refusal is an answer that says no, whichever way it came.
type refusal struct {
	Code   codes.Code
	Fields []string // paths of the wrong fields, in order
	Text   string
}

// String is for the texts of failures.
func (r refusal) String() string { return fmt.Sprintf("%s %q: %s", r.Code, r.Fields, r.Text) }

// ofError returns the refusal in the error of a gRPC call; Code is OK if there is none.
func ofError(err error) refusal {
	st := status.Convert(err)
	r := refusal{Code: st.Code(), Text: st.Message()}
	for _, d := range st.Details() {
		if bad, ok := d.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				r.Fields = append(r.Fields, v.GetField())
			}
		}
	}
	slices.Sort(r.Fields)
	return r
}

// ofResponse returns the refusal in the answer to a REST call, which must be a google.rpc.Status in JSON then.
func ofResponse(t *testing.T, resp harness.Response) refusal {
	t.Helper()
	if resp.Code < 300 {
		return refusal{}
	}
	return ofStatusJSON(t, resp.Body)
}

// ofStatusJSON reads a google.rpc.Status.
func ofStatusJSON(t *testing.T, raw []byte) refusal {
	t.Helper()
	var body struct {
		Code    codes.Code
		Message string
		Details []struct {
			Type            string `json:"@type"`
			FieldViolations []struct{ Field string }
		}
	}
	if err := json.Unmarshal(raw, &body); err != nil {
		t.Errorf("the answer is no google.rpc.Status: %v\n%s", err, raw)
		return refusal{Code: codes.Unknown, Text: string(raw)}
	}
	r := refusal{Code: body.Code, Text: body.Message}
	for _, d := range body.Details {
		for _, v := range d.FieldViolations {
			r.Fields = append(r.Fields, v.Field)
		}
	}
	slices.Sort(r.Fields)
	return r
}

// httpStatus is the HTTP status that belongs to a code.
func httpStatus(c codes.Code) int {
	switch c {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange:
		return 400
	case codes.Unauthenticated:
		return 401
	case codes.PermissionDenied:
		return 403
	case codes.NotFound:
		return 404
	case codes.AlreadyExists, codes.Aborted:
		return 409
	}
	return 500
}

// wants are what a refusal must say.
type wants struct {
	code   codes.Code
	fields []string // paths; the refusal names these and no others
	text   string   // part of the message, where no field is to blame
}

func (w wants) check(t *testing.T, way string, got refusal) {
	t.Helper()
	fields := slices.Sorted(slices.Values(w.fields))
	if got.Code != w.code || !slices.Equal(got.Fields, fields) || !strings.Contains(got.Text, w.text) {
		t.Errorf("%s: refused with %s\nwant %s %q … %s", way, got, w.code, fields, w.text)
	}
}

// checkCLI holds the end of a command against a refusal: exit code 1, and each path named on standard error.
func (w wants) checkCLI(t *testing.T, got harness.Result) {
	t.Helper()
	if got.Code != 1 {
		t.Errorf("command line: exit code %d, want 1\n%s%s", got.Code, got.Stdout, got.Stderr)
	}
	for _, part := range append([]string{w.text}, w.fields...) {
		if !strings.Contains(got.Stderr, part) {
			t.Errorf("command line: %q is not in the text of the error\n%s", part, got.Stderr)
		}
	}
}
