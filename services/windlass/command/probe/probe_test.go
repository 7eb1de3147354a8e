package probe

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/services/windlass/command/progress"
)

// The last call is cut off by the end of the wait, and says nothing of what is waited for.
func TestAWaitThatEndsSaysWhatItWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := Until(ctx, progress.New(io.Discard), func(ctx context.Context) (bool, string, error) {
			if time.Until(deadlineOf(ctx)) > 500*time.Millisecond {
				return false, "member m-1", nil
			}
			time.Sleep(time.Until(deadlineOf(ctx)) - time.Millisecond) // as gRPC does, by its own clock
			return false, "", status.FromContextError(context.DeadlineExceeded).Err()
		})
		if err == nil || !strings.Contains(err.Error(), "waited for member m-1") {
			t.Errorf("error %v", err)
		}
	})
}

func deadlineOf(ctx context.Context) time.Time {
	d, _ := ctx.Deadline()
	return d
}
