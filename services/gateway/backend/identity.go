package backend

import (
	"context"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/windlass-dev/windlass/kit/identity"
)

// withIdentity returns ctx with the metadata that a backend gets: what the client sent, without all that could be taken
// for an identity or belongs to its own connection, and then who it is.
func withIdentity(ctx context.Context, caller identity.Caller) context.Context {
	sent, _ := metadata.FromOutgoingContext(ctx)
	out := make(metadata.MD, len(sent)+5)
	for key, values := range sent {
		if passes(key) {
			out[key] = values
		}
	}
	out.Set(identity.MetadataRequestID, caller.RequestID)
	if caller.User != "" {
		out.Set(identity.MetadataUser, caller.User)
		out.Set(identity.MetadataGroup, caller.Groups...)
	}
	if caller.Source != "" {
		out.Set(identity.MetadataSource, caller.Source)
	}
	if caller.UID != "" {
		out.Set(identity.MetadataUID, caller.UID)
	}
	return metadata.NewOutgoingContext(ctx, out)
}

func passes(key string) bool {
	key = strings.ToLower(key)
	switch key {
	case "authorization", "proxy-authorization", "cookie", "forwarded", "x-request-id", "x-real-ip",
		"host", "connection", "te", "content-type", "content-length", "user-agent", "accept-encoding":
		return false
	case "grpc-trace-bin", "grpc-tags-bin":
		return true
	}
	for _, prefix := range []string{":", "windlass-", "grpc-", "grpcgateway-", "x-forwarded-"} {
		if strings.HasPrefix(key, prefix) {
			return false
		}
	}
	return true
}
