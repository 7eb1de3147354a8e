package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	// Details of errors must be linked, or they cannot be printed.
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
)

// httpError is an error whose HTTP status is not the one of its code.
type httpError struct {
	code int
	err  error
}

func (e httpError) Error() string              { return e.err.Error() }
func (e httpError) Unwrap() error              { return e.err }
func (e httpError) GRPCStatus() *status.Status { return status.Convert(e.err) }

func withStatus(code int, err error) error { return httpError{code: code, err: err} }

// writeError answers with google.rpc.Status in JSON.
func writeError(w http.ResponseWriter, err error) {
	st := status.Convert(err)
	code := runtime.HTTPStatusFromCode(st.Code())
	if special := (httpError{}); errors.As(err, &special) {
		code = special.code
	}
	header := w.Header()
	header.Del("Trailer")
	header.Del("Transfer-Encoding")
	header.Set("Content-Type", mediaJSON)
	if st.Code() == codes.Unauthenticated {
		header.Set("WWW-Authenticate", `Bearer realm="windlass"`)
	}
	if seconds := retryAfter(st); seconds > 0 {
		header.Set("Retry-After", strconv.Itoa(seconds))
	}
	w.WriteHeader(code)
	w.Write(append(statusJSON(st), '\n')) //nolint:errcheck // the client is gone
}

// statusJSON prints a status. A detail of a type that is not linked is left out: the rest still says what is wrong.
func statusJSON(st *status.Status) []byte {
	out := &statuspb.Status{Code: int32(st.Code()), Message: st.Message()}
	for _, detail := range st.Proto().GetDetails() {
		if _, err := detail.UnmarshalNew(); err == nil {
			out.Details = append(out.Details, detail)
		}
	}
	data, err := protojson.Marshal(out)
	if err != nil {
		return []byte(`{"code":13,"message":"internal error"}`)
	}
	var compact bytes.Buffer // protojson's spacing differs from binary to binary
	if json.Compact(&compact, data) != nil {
		return data
	}
	return compact.Bytes()
}

// retryAfter is the RetryInfo of a status in whole seconds, rounded up.
func retryAfter(st *status.Status) int {
	return int(rpcerr.Retry(st.Err()).Seconds() + 0.999)
}

// handlerError is the mux's way to report an error of a call or of decoding its body.
func handlerError(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request,
	err error,
) {
	if b, ok := r.Body.(*body); ok && b.problem != nil {
		err = b.problem
	}
	if special := (*runtime.HTTPStatusError)(nil); errors.As(err, &special) {
		err = rpcerr.Invalid(object.Fault{Description: "the address has a wrong escape sequence"})
	}
	writeError(w, err)
}

// routingError is reached only where the mux and the catalog differ, which they do not; it must still be an answer.
func routingError(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request,
	code int,
) {
	if code == http.StatusMethodNotAllowed {
		writeError(w, notAllowed(r.Method))
		return
	}
	writeError(w, noSuchAddress(r))
}

func noSuchAddress(r *http.Request) error {
	return rpcerr.NotFound("address", r.URL.Path)
}

func notAllowed(verb string, allowed ...string) error {
	text := "the method " + verb + " is not for this address"
	if len(allowed) > 0 {
		text += "; it has " + strings.Join(allowed, ", ")
	}
	return withStatus(http.StatusMethodNotAllowed, status.Error(codes.Unimplemented, text))
}
