package controller

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// window writes whether a maintenance window is open, and returns when that changes.
func (c *Controller) window(ctx context.Context, name string) (time.Time, error) {
	w, ok := c.Tables.Windows.Lookup("", name)
	if !ok || object.Deleting(w) {
		return time.Time{}, nil
	}
	next := object.Clone(w)
	st, wake := plan.WindowStatus(w, time.Now())
	if next.Status = st; proto.Equal(w.GetStatus(), st) {
		return wake, nil
	}
	_, err := c.Tables.Windows.UpdateStatus(ctx, next)
	return wake, rpcerr.IgnoreChanged(err)
}
