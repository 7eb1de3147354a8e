package controller

import (
	"context"
	"time"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/rpcerr"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// Try evaluates a query as if it were a rule of a risk. Only the leader evaluates queries: the error of any other
// replica is UNAVAILABLE. It is safe for concurrent use.
func (c *Controller) Try(ctx context.Context, query string) (*updatev1.RuleOutcome, error) {
	if !c.shown.leading() {
		return nil, rpcerr.Unavailable("this process does not lead, and only the leader evaluates queries")
	}
	applies, err := c.Trials.Evaluate(ctx, query)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	cv, _ := c.Tables.Cluster()
	return plan.Tried(query, cv.GetStatus().GetDesired().GetVersion(), plan.NewAnswer(applies, err, time.Now())), nil
}
