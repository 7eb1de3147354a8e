package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"

	"github.com/windlass-dev/windlass/services/hook-broker/plan"
)

const (
	// webhookWorkers is how many webhooks are called at once. They run beside the other loops, which a server that
	// hangs must not hold up.
	webhookWorkers = 32
	// perOwner is how many of these may call the same owner, so that one that hangs does not hold up the others.
	perOwner = 8
	// turn is how soon a call is tried again that waits for another one of its owner to end.
	turn = 200 * time.Millisecond
)

// calls counts the calls that are under way. The zero value has none.
type calls struct {
	mu    sync.Mutex
	owner map[string]int
}

// begin reports whether an owner may be called once more; if so, end ends that call.
func (c *calls) begin(owner string) (end func(), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.owner == nil {
		c.owner = map[string]int{}
	}
	if c.owner[owner] >= perOwner {
		return nil, false
	}
	c.owner[owner]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.owner[owner]--; c.owner[owner] == 0 {
			delete(c.owner, owner)
		}
	}, true
}

// CallWebhook calls the webhook of the owner of a task, if that is due, and notes the answer. A process that dies in
// between calls once more: webhooks are called at least once.
func (c *Controller) CallWebhook(ctx context.Context, name string) (time.Time, error) {
	t, ok := c.Tables.Tasks.Lookup("", name)
	if !ok {
		return time.Time{}, nil
	}
	owner, now := c.Views.Facts(t.GetSpec().GetOwner()), c.Views.Now()
	if at, ok := plan.NextCall(t, owner, now); !ok || at.After(now) {
		return time.Time{}, nil // the plan of the machine calls again in time
	}
	end, ok := c.calls.begin(t.GetSpec().GetOwner())
	if !ok {
		return now.Add(turn), nil
	}
	defer end()
	limited, cancel := context.WithTimeout(ctx, owner.CallTimeout())
	answer, failure := c.Webhooks.Call(limited, owner.Settings.GetWebhook(), t)
	cancel()
	if ctx.Err() != nil {
		return time.Time{}, ctx.Err() // another process leads, and calls again
	}
	if failure == nil {
		c.Presence.Seen(t.GetSpec().GetOwner())
	}
	var events []plan.Event
	stored, err := c.Tables.Tasks.Modify(ctx, object.Key{Name: name}, func(now *hookv1.HookTask) error {
		if now.GetMetadata().GetUid() != t.GetMetadata().GetUid() {
			return rpcerr.Conflict("HookTask", name, "")
		}
		var err error
		now.Status, events, err = plan.Answered(now, owner, answer, failure, c.Views.Now())
		return err
	})
	if err = rpcerr.IgnoreChanged(err); err != nil {
		return time.Time{}, fmt.Errorf("note the answer of the webhook: %w", err)
	}
	if stored != nil {
		c.record(stored, events)
	}
	return time.Time{}, nil
}
