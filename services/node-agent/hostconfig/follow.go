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

// begin enables reports to the cluster. Before, the state of the machine is unknown, and commands depend on it.
func (r *report) begin() { r.once.Do(func() { close(r.begun) }) }

// set changes the report. The channel is closed when the cluster has received it.
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

// again sends the report once more. The channel is closed when the cluster has received it this time.
func (r *report) again() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heard = make(chan struct{})
	r.repeat()
	return r.heard
}

// repeat sends the report again: the server may have lost it, as when the node was recreated.
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

// delivered records that the cluster received a report, if it is still the latest.
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
	if err := h.deliver(ctx); err != nil {
		return err
	}
	orders, err := h.agents.FollowConfig(ctx, &configv1.FollowConfigRequest{NodeName: h.cfg.Node, RenewsServices: true})
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
			case h.orders <- order{
				config: m.GetMachineConfig(), apply: m.GetApply(), reboot: m.GetReboot(), services: m.GetServices(),
				repairs: m.GetRepairs(), from: m.CurrentConfig,
			}:
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
			if err := h.deliver(ctx); err != nil {
				return err
			}
		}
	}
}

// deliver delivers the latest report, if there is one.
func (h *Host) deliver(ctx context.Context) error {
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
