package auth

import (
	"bytes"
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

// ahead is a server whose clock is an hour ahead of the one here.
type ahead struct{}

func (ahead) Invoke(_ context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	proto.Merge(reply.(proto.Message), &machinev1.Revocation{
		Spec: &machinev1.RevocationSpec{User: "ann", IssuedBefore: timestamppb.New(time.Now().Add(time.Hour))},
	})
	return nil
}

func (ahead) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	panic("revoke opens no stream")
}

func TestARevocationDoesNotWaitForTheServersClock(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	e := &session.Env{Out: new(bytes.Buffer)}
	if err := revoke(ctx, e, client.New(ahead{}), revokeFlags{user: "ann"}); err != nil || ctx.Err() != nil {
		t.Errorf("revoke: %v, %v", err, ctx.Err())
	}
}
