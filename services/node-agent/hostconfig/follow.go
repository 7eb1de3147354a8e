package hostconfig

import (
	"context"
	"strings"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/node-agent/stream"
)

// callPatience bounds one report: it is one write.
const callPatience = 10 * time.Second

// begin lets the cluster be spoken to: before, nobody knows what the machine has, and orders follow from that.
func (r *report) begin() { r.once.Do(func() { close(r.begun) }) }

// set changes what the cluster is told. The channel is closed when it has heard that.
func (r *report) set(next *configv1.ReportConfigRequest) <-chan struct{} {
	defer r.begin()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last != nil && proto.Equal(r.last, next) {
		return r.heard
	}
	r.last, r.heard = next, make(chan struct{})
	r.repeat()
	return r.heard
}

// repeat has the cluster told once more: whoever orders may have forgotten what was said, as when the node was made anew.
func (r *report) repeat() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

func (r *report) get() (*configv1.ReportConfigRequest, chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last, r.heard
}

// delivered notes that the cluster has heard something, if that is still the last word.
func (r *report) delivered(heard chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if heard != r.heard {
		return
	}
	select {
	case <-heard:
	default:
		close(heard)
	}
}

// follow keeps a stream to the cluster until ctx ends.
func (h *Host) follow(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-h.report.begun:
	}
	return stream.Again(ctx, h.cfg.Log, "config", nil, h.session)
}

// session says what the machine has, and then takes orders: they follow from what was said.
func (h *Host) session(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if h.cfg.Registered != nil {
		if err := h.cfg.Registered(ctx); err != nil {
			return err
		}
	}
	if err := h.tell(ctx); err != nil {
		return err
	}
	orders, err := h.agents.FollowConfig(ctx, &configv1.FollowConfigRequest{NodeName: h.cfg.Node})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		for {
			m, err := orders.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case h.orders <- order{m.GetMachineConfig(), m.GetApply(), m.GetReboot()}:
			case <-ctx.Done():
				ended <- ctx.Err()
				return
			}
		}
	}()
	for {
		select {
		case err := <-ended:
			return err
		case <-h.report.changed:
			if err := h.tell(ctx); err != nil {
				return err
			}
		}
	}
}

// tell delivers the last word; without one there is nothing to tell.
func (h *Host) tell(ctx context.Context) error {
	last, heard := h.report.get()
	if last == nil {
		return nil
	}
	next := proto.CloneOf(last)
	next.NodeName, next.BootId, next.Reason = h.cfg.Node, h.cfg.BootID, strings.ToValidUTF8(last.GetReason(), "?")
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	if _, err := h.agents.ReportConfig(ctx, next); err != nil {
		return err
	}
	h.report.delivered(heard)
	return nil
}
