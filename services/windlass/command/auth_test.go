package command

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
)

// stopped makes a cluster that does not run.
func stopped(t *testing.T) *cluster.Cluster {
	t.Helper()
	t.Setenv("WINDLASS_HOME", t.TempDir())
	c, err := cluster.Create(cluster.Settings{Name: "idle"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.EnsureCertificates(time.Now()); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestTheStatusOfARotationBeginsNone(t *testing.T) {
	c := stopped(t)
	var out, errs bytes.Buffer
	code := Run(t.Context(), []string{"auth", "rotate", "api", "--status", "--name", c.Name, "--timeout", "1s"}, nil, &out,
		&errs)
	if code != 0 || !strings.Contains(out.String(), "AUTHORITY") {
		t.Errorf("exit code %d: %s%s", code, out.String(), errs.String())
	}
	if step, err := c.Rotation(topology.APIAuthority); err != nil || step != identity.Steady {
		t.Errorf("the rotation is at %q, %v", step, err)
	}
}

func TestATokenIsNotIssuedIntoADirectory(t *testing.T) {
	c := stopped(t)
	var out, errs bytes.Buffer
	code := Run(t.Context(), []string{"auth", "issue", "--name", c.Name, "--user", "ann", "--token", "--out", t.TempDir()},
		nil, &out, &errs)
	if code == 0 || !strings.Contains(errs.String(), "--out") || out.Len() > 0 {
		t.Errorf("exit code %d: %s%s", code, out.String(), errs.String())
	}
}

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
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	e := &env{out: new(bytes.Buffer)}
	if err := e.revoke(ctx, client.New(ahead{}), revokeFlags{user: "ann"}); err != nil || ctx.Err() != nil {
		t.Errorf("revoke: %v, %v", err, ctx.Err())
	}
}
