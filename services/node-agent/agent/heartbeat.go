package agent

import (
	"context"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
)

// Beat registers the node and says once a second that it lives, until ctx ends, or with ErrReboot when the cluster asks
// for that.
func (a *Agent) Beat(ctx context.Context) error { return a.again(ctx, "heartbeat", a.beat) }

// beat is one stream.
func (a *Agent) beat(ctx context.Context) error {
	if err := a.register(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := a.nodes.Heartbeat(ctx)
	if err != nil {
		return err
	}
	answers := receive(ctx, stream.Recv)
	ticker := time.NewTicker(beatEvery)
	defer ticker.Stop()
	said := conditions{of: a.cfg.Conditions}
	if err := stream.Send(a.heartbeat(&said)); err != nil {
		return whyEnded(ctx, answers)
	}
	for open := 1; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if open >= unansweredBeats {
				return notAnswered()
			}
			open++
			if err := stream.Send(a.heartbeat(&said)); err != nil {
				return whyEnded(ctx, answers)
			}
		case r := <-answers:
			if r.err != nil {
				return r.err
			}
			open = 0
			if r.message.GetCommand() == "Reboot" && r.message.GetBootId() == a.cfg.BootID {
				return ErrReboot
			}
		}
	}
}

// conditions are what was said of the node on one stream.
type conditions struct {
	of   func() []*nodev1.NodeCondition
	last []*nodev1.NodeCondition
}

// news returns the conditions if they changed since they were said.
func (c *conditions) news() []*nodev1.NodeCondition {
	if c.of == nil {
		return nil
	}
	now := c.of()
	if len(now) == 0 || len(c.last) > 0 && &now[0] == &c.last[0] {
		return nil
	}
	c.last = now
	return now
}

func (a *Agent) heartbeat(said *conditions) *nodev1.HeartbeatRequest {
	r := &nodev1.HeartbeatRequest{Name: a.cfg.Node, BootId: a.cfg.BootID, Conditions: said.news()}
	if a.cfg.NotReady != nil {
		r.NotReady = a.cfg.NotReady()
	}
	return r
}
