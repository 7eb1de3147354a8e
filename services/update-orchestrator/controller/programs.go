package controller

import (
	"context"
	"maps"
	"slices"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	programv1 "github.com/windlass-dev/windlass/gen/windlass/program/v1"
	"github.com/windlass-dev/windlass/kit/discovery"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/topology"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// turnEvery is how often it is decided which program changes on which host.
const turnEvery = 500 * time.Millisecond

// ProgramsView returns what is known of the programs of a cluster whose control plane is on hosts; false while the
// hosts are not known.
func (c *Controller) ProgramsView() (plan.ProgramsView, bool) {
	v := plan.ProgramsView{
		Programs: c.Tables.Programs.All(), Levels: topology.UpdateLevels(), Images: topology.UpdateOrchestrator,
	}
	if c.Hosts == nil {
		return v, false
	}
	hosts, known := c.Hosts()
	v.Hosts = hosts
	return v, known
}

// turns lets one program after the other change on one host after the other.
func (c *Controller) turns(ctx context.Context, _ string) (time.Time, error) {
	again := time.Now().Add(turnEvery)
	v, known := c.ProgramsView()
	if !known {
		return again, nil
	}
	for _, t := range plan.Programs(v) {
		// What was decided of the next one depends on this one.
		if written, err := c.turn(ctx, t, v.Hosts); !written || err != nil {
			return again, err
		}
	}
	return again, nil
}

// turn writes what happens to a program. False means that the program has changed since it was decided.
func (c *Controller) turn(ctx context.Context, t plan.ProgramTurn, hosts []plan.ProgramHost) (written bool, err error) {
	next := t.Applied(hosts, now())
	if proto.Equal(next, t.Program) {
		return true, nil
	}
	key := object.Key{Name: t.Program.GetMetadata().GetName()}
	_, err = c.Tables.Programs.Modify(ctx, key, func(p *programv1.Program) error {
		if written = p.GetMetadata().GetResourceVersion() == t.Program.GetMetadata().GetResourceVersion(); written {
			p.Status, p.Metadata.Finalizers = next.GetStatus(), slices.Clone(next.GetMetadata().GetFinalizers())
		}
		return nil
	})
	if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		return false, nil
	}
	if err == nil && written && t.Turn != t.Program.GetStatus().GetTurn() {
		c.Log.InfoContext(ctx, "turn of a program", "program", key.Name, "host", t.Turn, "reason", t.Reason, "message",
			t.Message)
	}
	return written, err
}

// ProgramHosts returns the hosts of the control plane by what their processes announce, in the order of their names.
func ProgramHosts(v discovery.View) []plan.ProgramHost {
	var out []plan.ProgramHost
	for _, name := range v.Hosts() {
		h := plan.ProgramHost{Name: name}
		for _, service := range slices.Sorted(maps.Keys(v.Endpoints)) {
			for _, e := range v.Endpoints[service] {
				if e.Host != name {
					continue
				}
				h.Present = true
				if e.Ready {
					h.Serving = append(h.Serving, service)
				}
				if v.Leaders[service] == e.Address {
					h.Leading = append(h.Leading, service)
				}
			}
		}
		if h.Present { // `windlass host run` announces nothing of itself
			h.Serving = append(h.Serving, topology.Host)
		}
		out = append(out, h)
	}
	return out
}
