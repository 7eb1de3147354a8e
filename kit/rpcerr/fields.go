package rpcerr

import (
	"errors"
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// Fields returns the wrong fields that an error names, so that they can be reported together with others; false if the
// error is not one of INVALID_ARGUMENT with fields.
func Fields(err error) ([]object.Fault, bool) {
	var carrier interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &carrier) || carrier.GRPCStatus().Code() != codes.InvalidArgument {
		return nil, false
	}
	var out []object.Fault
	for _, d := range carrier.GRPCStatus().Details() {
		if bad, ok := d.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				out = append(out, object.Fault{Path: v.GetField(), Description: v.GetDescription()})
			}
		}
	}
	return out, len(out) > 0
}

// NotFoundField says that what a field names is not there (NOT_FOUND).
func NotFoundField(kind, objectName, path string) error {
	return build(codes.NotFound, metav1.ErrorReason_ERROR_REASON_NOT_FOUND,
		fmt.Sprintf("%s: %s %q not found", path, kind, objectName), about(kind, objectName),
		&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
			{Field: path, Description: fmt.Sprintf("%s %q not found", kind, objectName)},
		}})
}
