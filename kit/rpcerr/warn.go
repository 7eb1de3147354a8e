package rpcerr

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// WarningKey is the metadata of an answer in which a service warns of what it accepted anyway. The gateway makes
// Warning headers of it.
const WarningKey = "windlass-warning"

// Warn adds a warning to the answer of the call under ctx. Outside of a call it is dropped.
func Warn(ctx context.Context, text string) {
	_ = grpc.SetHeader(ctx, metadata.Pairs(WarningKey, text))
}
